"""The measurements of the page, each a function of a model's folder that returns plain data; small ones for a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, WhisperForConditionalGeneration, WhisperProcessor

from headwise.atlas import speech
from headwise.atlas.copying import copied, copying_curve, needles, retrieval
from headwise.atlas.functions import function_vectors
from headwise.atlas.languages import language_heads, soft_mask
from headwise.atlas.measure import roles
from headwise.atlas.writing import writing
from headwise.heads.gates import gated
from headwise.measuring.evaluate import to_device
from headwise.measuring.stats import paired_bootstrap
from headwise.models.batching import Order
from headwise.models.language import LanguageModel
from headwise.models.loading import load_encoder, load_language_model
from headwise.pruning.kv_policy import kv_policy, passages, policy_curve
from headwise.scoring.importance import importance
from headwise.tasks.lookup import get

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Sizes = dict[str, Any]
SMALL: Sizes = {
    "needles": 10,
    "length": 160,
    "counts": (0, 2, 4, 8),
    "random": 2,
    "kv": 256,
    "kv texts": 8,
    "prompts": 4,
}
LARGE: Sizes = {
    **{"needles": 48, "length": 512, "counts": (0, 1, 2, 4, 8, 12, 16, 24, 32), "random": 5},
    **{"kv": 1024, "kv texts": 48, "kv needles": 96, "prompts": 20},
}


def attention(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Roles by attention on sentences with dependencies, beside a re-initialised model."""
    model, tokenizer = load_encoder(folder)
    rows = get("corpus.dep").rows("train")[: sizes.get("sentences", 64)]
    found = roles(model.to(DEVICE), tokenizer, rows, repeats=32, untrained=sizes.get("untrained", True))
    holds = found.holds()
    return {
        "shape": found.score.shape[1:],
        "texts": len(rows),
        "roles": {
            name: {"best": found.top(name, 3), "heads": int(holds[r].sum()), "floor": float(found.untrained[r])}
            for r, name in enumerate(found.names)
            if found.texts[r]
        },
        "with a role": int(holds.any(0).sum()),
    }


def copying(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Retrieval heads, and what closing them or induction heads costs, beside random heads of the same layers."""
    model, tokenizer = _language_model(folder)
    filler, other = contexts("mlqa_en"), contexts("xquad_en")
    count, length = sizes["needles"], sizes["length"]
    found = retrieval(model, needles(tokenizer, filler, count, length, seed=0))
    induction = roles(model, tokenizer, get("corpus.dep").rows("train")[:16], repeats=32)
    test = needles(tokenizer, other, count, length, seed=1)
    curves = {
        name: copying_curve(model, test, lift, sizes["counts"], sizes["random"])
        for name, lift in (("retrieval", found.lift[0]), ("induction", induction.lift[induction.index("induction")]))
    }
    best = {"retrieval": found.top("retrieval", 8), "induction": induction.top("induction", 8)}
    return {"best": best, "texts": count, "length": length, "copied": copied(model, test).mean(), "curves": curves}


def kv(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Key-value heads that stream: calibrated on one set of texts and needles, measured on others."""
    model, tokenizer = _language_model(folder)
    filler, other = contexts("mlqa_en"), contexts("xquad_en")
    length, count = sizes["kv"], sizes["kv texts"]
    recent = length // 8
    own = passages(tokenizer, filler, length, length // 4, count) + needles(tokenizer, filler, count, length, seed=1)
    policy = kv_policy(model, own, 4, recent)
    tests = {
        "text": passages(tokenizer, other, length, length // 4, count),
        "needle": needles(tokenizer, other, count, length, seed=2),
    }
    shares = (0, 0.25, 0.5, 0.75)
    curves = {what: policy_curve(model, some, policy, shares, sizes["random"]) for what, some in tests.items()}
    more = needles(tokenizer, other, sizes["kv needles"], length, seed=3)
    curves["needle, more of them"] = policy_curve(model, more, policy, (0.5,), 1)
    return {"length": length, "recent": recent, "texts": count, "scores": policy.scores, "curves": curves}


def written(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Name movers and successor heads."""
    found = writing(*_language_model(folder), count=sizes["prompts"] * 2)
    return {"best": {name: found.top(name, 5) for name in found.names}, "heads": found.holds().sum((1, 2))}


def functions(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Function-vector heads on five in-context tasks."""
    found = function_vectors(*_language_model(folder), count=sizes["prompts"])
    return {"best": {name: found.top(name, 5) for name in found.names}, "prompts": sizes["prompts"]}


def language(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Sixteen learned gates of Spanish heads on XQuAD in Spanish, beside as many of random heads."""
    tasks = ("xquad_en@prompt", "xquad_es@prompt")
    lm = LanguageModel(*_language_model(folder), list(tasks), max_length=1024, reading={"long": "left"})
    needs = {task: importance(lm, task, examples=64) for task in tasks}
    chosen = language_heads(needs, tasks[1], 16)
    rest = [tuple(p) for p in lm.attention.alive.nonzero().tolist() if tuple(p) not in chosen]
    drawn = [rest[i] for i in np.random.default_rng(0).permutation(len(rest))[:16]]
    data = {task: lm.encode(task, "dev", limit=200) for task in tasks}
    plain = {task: _losses(lm, task, data[task]) for task in tasks}
    rows = []
    for name, heads in (("language heads", chosen), ("random heads", drawn)):
        mask = soft_mask(lm, tasks[1], heads, examples=128, steps=60)
        for task in tasks:
            gap = paired_bootstrap(plain[task], _losses(lm, task, data[task], mask.full(lm.attention.shape)))
            found = {"loss": plain[task].mean(), "gain": gap.value, "low": gap.low, "high": gap.high}
            rows.append({"gates": name, "task": task, **found})
    return {"heads": chosen, "rows": rows}


def atoms(folder: Path, sizes: Sizes, reactions: Sequence[Any]) -> dict[str, Any]:
    """The head that maps atoms, as a role of links from product atoms to the reactant atoms that they were."""
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = roles(model, tokenizer, reactions, repeats=0)
    return {"best": found.top("atom", 8), "texts": len(reactions)}


def alignment(folder: Path, sizes: Sizes, clips: Sequence[speech.Clip]) -> dict[str, Any]:
    """Cross heads that follow speech: chosen on one half of the clips, word onsets compared on the other."""
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    processor = WhisperProcessor.from_pretrained(folder)
    published = [tuple(head) for head in model.generation_config.alignment_heads]
    found = speech.alignment(model, processor, clips)
    half = len(clips) // 2
    own = speech.onset_errors(model, processor, clips[:half])
    shape = found.score.shape[1:]
    sets = {"by onsets": speech.best_heads(own, shape), "by order": speech.monotonic(found), "published": published}
    errors = speech.onset_errors(model, processor, clips[half:], list(sets.values()))
    gains = [paired_bootstrap(errors[:, 2], errors[:, i]) for i in range(2)]
    before = _own_timestamps(model, processor, clips[half:])
    speech.write_heads(model, sets["by onsets"])
    after = _own_timestamps(model, processor, clips[half:])
    right = ~np.isnan(before + after)
    gap = paired_bootstrap(before[right], after[right]) if right.sum() > 1 else None
    return {
        "transformers": gap
        and [int(right.sum()), before[right].mean(), after[right].mean(), gap.value, gap.low, gap.high, gap.p],
        "clips": len(clips),
        "order": found.score[0],
        "other sound": found.control[0],
        "p": found.p[0],
        "sets": sets,
        "onset errors": errors.mean(0),
        "gains": [[gap.value, gap.low, gap.high] for gap in gains],
    }


def _own_timestamps(model: Any, processor: Any, clips: Sequence[speech.Clip]) -> np.ndarray:
    """Mean errors of the word timestamps that transformers gives; NaN where it hears other words."""
    found = []
    for clip in clips:
        how = {"sampling_rate": speech.RATE, "return_tensors": "pt", "return_attention_mask": True}
        heard = processor.feature_extractor(clip.sound, **how)
        out = model.generate(
            heard.input_features,
            attention_mask=heard.attention_mask,
            return_token_timestamps=True,
            return_dict_in_generate=True,
            max_new_tokens=40,
        )
        words: list[tuple[str, float]] = []
        for token, at in zip(out["sequences"][0].tolist(), out["token_timestamps"][0].tolist()):
            text = processor.tokenizer.decode([token])
            if token < processor.tokenizer.eos_token_id and (text.startswith(" ") or not words):
                words.append((text, at))
            elif token < processor.tokenizer.eos_token_id:
                words[-1] = (words[-1][0] + text, words[-1][1])
        said = [
            ["".join(filter(str.isalpha, word.lower())) for word in some]
            for some in ([w for w, _ in words], clip.text.split())
        ]
        same = said[0] == said[1]
        found.append(np.abs(np.array([at for _, at in words]) - clip.onsets).mean() if same else np.nan)
    return np.array(found)


def contexts(task: str) -> list[str]:
    """The distinct paragraphs of a task of questions."""
    known = get(task)
    return list(dict.fromkeys(row["context"] for row in known.rows(known.splits[-1])))


def _language_model(folder: Path) -> tuple[Any, Any]:
    model, tokenizer = load_language_model(folder)
    return model.float().to(DEVICE), tokenizer


@torch.no_grad()
def _losses(lm: LanguageModel, task: str, data: Any, gates: torch.Tensor | None = None) -> np.ndarray:
    found = np.zeros(len(data))
    gates = torch.ones(lm.attention.shape) if gates is None else gates
    with gated(lm.backbone, gates.to(lm.device), heads=lm.attention):
        for items in Order(data.lengths, tokens=4096).plain():
            found[items] = lm.losses(task, to_device(data.batch(items), lm.device)).float().cpu().numpy()
    return found


def few(folder: Path, sizes: Sizes, name: str = "sst2", draws: int = 2) -> dict[str, Any]:
    """Twenty heads that vote, from 20 labels a class, beside a linear probe and beside training on the same rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from headwise import FewHeads, MultiTaskModel, Plan, evaluate, fit
    from headwise.probing import HeadFeatures
    from headwise.tasks.kinds.classify import Classify
    from headwise.tasks.task import Rows, Task

    model, tokenizer = load_encoder(folder)
    train, test = get(name).rows("train"), get(name).rows("dev")[:200]
    every = [tuple(place) for place in np.ndindex(model.config.num_hidden_layers, model.config.num_attention_heads)]
    asked, gold = [row["text"] for row in test], [row["label"] for row in test]
    scores: dict[str, list[float]] = {"few heads": [], "linear probe of all heads": [], "training on the same rows": []}
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(train))
        rows = [
            row for label in sorted(set(gold)) for row in [train[i] for i in order if train[i]["label"] == label][:20]
        ]
        texts, labels = [row["text"] for row in rows], [row["label"] for row in rows]
        scores["few heads"].append(FewHeads(model, tokenizer, heads=20).fit(texts, labels).score(asked, gold))
        probe = make_pipeline(
            HeadFeatures(model, tokenizer, heads=every), StandardScaler(), LogisticRegression(C=0.01, max_iter=500)
        )
        scores["linear probe of all heads"].append(probe.fit(texts, labels).score(asked, gold))
        task = Task(name, Classify(tuple(sorted(set(gold)))), Rows(train=rows, dev=test), "accuracy")
        tuned = MultiTaskModel.from_pretrained(str(folder), [task])
        fit(tuned, Plan(epochs=10, batch_size=8, evaluate_every=0, checkpoint_every=0, seed=draw))
        scores["training on the same rows"].append(evaluate(tuned, name).value)
    return {"task": name, "scores": scores, "test": len(test), "labels a class": 20}
