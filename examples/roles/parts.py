"""The measurements of the page, each a function of a model's folder that returns plain data; small ones for a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModelForMaskedLM, AutoTokenizer, WhisperForConditionalGeneration, WhisperProcessor

from headwise import FewHeads, MultiTaskModel, Plan, fit
from headwise.atlas import speech
from headwise.atlas.copying import copied, copying_curve, needles, retrieval
from headwise.atlas.functions import function_vectors
from headwise.atlas.languages import language_heads, language_roles, soft_mask
from headwise.atlas.measure import roles
from headwise.atlas.texts import ENTITY
from headwise.atlas.texts import NAME as ASKED
from headwise.atlas.writing import writing
from headwise.heads.gates import gated
from headwise.measuring.evaluate import to_device
from headwise.measuring.stats import paired_bootstrap
from headwise.models.batching import Order
from headwise.models.language import LanguageModel
from headwise.models.loading import load_encoder, load_language_model
from headwise.probing import HeadFeatures
from headwise.pruning.kv_policy import kv_policy, passages, policy_curve
from headwise.scoring.importance import importance
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.kinds.generation import Continuation
from headwise.tasks.lookup import get
from headwise.tasks.task import Rows, Task

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Sizes = dict[str, Any]
RANDOM_MASKS = 2
SMALL: Sizes = {
    **{"sentences": 128, "needles": 32, "length": 128, "counts": (0, 1, 2, 4, 8, 16, 32), "random": 4},
    **{"kv": 256, "kv texts": 48, "prompts": 24, "learned": 192, "asked": 120, "few": 300, "paragraphs": 48},
    "dtype": torch.bfloat16,
}
LARGE: Sizes = {
    **{"sentences": 512, "needles": 48, "length": 512, "counts": (0, 1, 2, 4, 8, 12, 16, 24, 32), "random": 5},
    **{"kv": 1024, "kv texts": 96, "prompts": 24, "learned": 480, "asked": 400, "few": 300, "paragraphs": 192},
    "dtype": torch.float32,
}


def attention(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Roles by attention on sentences with dependencies or entities and on questions, beside a re-initialised model."""
    model, tokenizer = load_encoder(folder)
    model, count = model.to(DEVICE), sizes["sentences"]
    rows = get("corpus.dep").rows("train")[:count]
    found = roles(model, tokenizer, rows, repeats=64, untrained=True)
    tagged = [row for row in get("corpus.ner").rows("train") if any(label.startswith("I-") for label in row["labels"])]
    asked = get("xquad_en").rows("test")[:: max(1, 1190 // count * 2)]
    parts = [(found, found.names)]
    parts += [
        (roles(model, tokenizer, some, repeats=0, untrained=True), names)
        for some, names in ((tagged[:count], [ENTITY]), (asked, [ASKED]))
    ]
    held = [part.holds()[[*map(part.index, names)]].any(0) for part, names in parts]
    return {
        "shape": found.score.shape[1:],
        "texts": len(rows),
        "roles": {
            name: _summary(part, name) for part, names in parts for name in names if part.texts[part.index(name)]
        },
        "with a role": int(np.any(held, 0).sum()),
    }


def _summary(found: Any, name: str) -> dict[str, Any]:
    """A role's best heads, how many have it, and the best head of the re-initialised model."""
    r = found.index(name)
    return {"best": found.top(name, 3), "heads": int(found.holds()[r].sum()), "floor": float(found.untrained[r])}


def copying(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Retrieval heads, and what closing them or induction heads costs, beside random heads of the same layers."""
    model, tokenizer = _language_model(folder, sizes["dtype"])
    filler, other = contexts("mlqa_en"), contexts("xquad_en")
    count, length = sizes["needles"], sizes["length"]
    found = retrieval(model, needles(tokenizer, filler, count, length, seed=0))
    induction = roles(model, tokenizer, get("corpus.dep").rows("train")[:16], repeats=64)
    test = needles(tokenizer, other, count, length, seed=1)
    curves = {
        name: copying_curve(model, test, lift, sizes["counts"], sizes["random"])
        for name, lift in (("retrieval", found.lift[0]), ("induction", induction.lift[induction.index("induction")]))
    }
    best = {"retrieval": found.top("retrieval", 8), "induction": induction.top("induction", 8)}
    return {"best": best, "texts": count, "length": length, "copied": copied(model, test).mean(), "curves": curves}


def kv(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Key-value heads that stream: calibrated on one set of texts and needles, measured on others."""
    model, tokenizer = _language_model(folder, sizes["dtype"])
    filler, other = contexts("mlqa_en"), contexts("xquad_en")
    length, count = sizes["kv"], sizes["kv texts"]
    recent = length // 8
    own = passages(tokenizer, filler, length, length // 4, count) + needles(tokenizer, filler, count, length, seed=1)
    policy = kv_policy(model, own, 4, recent)
    tests = {
        "text": passages(tokenizer, other, length, length // 4, count),
        "needle": needles(tokenizer, other, count, length, seed=4),
    }
    shares = (0, 0.25, 0.5, 0.75)
    curves = {what: policy_curve(model, some, policy, shares, sizes["random"]) for what, some in tests.items()}
    return {"length": length, "recent": recent, "texts": count, "scores": policy.scores, "curves": curves}


def written(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Name movers and successor heads."""
    found = writing(*_language_model(folder), count=sizes["prompts"])
    return {"best": {name: found.top(name, 5) for name in found.names}, "heads": found.holds().sum((1, 2))}


def functions(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Function-vector heads on five in-context tasks."""
    found = function_vectors(*_language_model(folder), count=sizes["prompts"])
    return {"best": {name: found.top(name, 5) for name in found.names}, "prompts": sizes["prompts"]}


def languages(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Heads that matter to one language, on the paragraphs of XQuAD in English and Spanish."""
    model, tokenizer = _language_model(folder)
    texts = {name: contexts(f"xquad_{name}")[: sizes["paragraphs"]] for name in ("en", "es")}
    found = language_roles(model, tokenizer, texts)
    return {"roles": {name: _summary(found, name) for name in found.names}, "texts": sizes["paragraphs"]}


def language(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Sixteen learned gates of Spanish heads on XQuAD, beside as many of random heads: the right Spanish answer to a
    Spanish question, and to an English one, which is to switch the language of the answer."""
    lm = LanguageModel(*_language_model(folder, sizes["dtype"]), tasks=parallel(sizes["learned"], sizes["asked"]))
    needs = {task: importance(lm, task, examples=sizes["learned"] // 4) for task in ("en → en", "es → es")}
    chosen = language_heads(needs, "es → es", 16)
    rest = np.array([place for place in lm.attention.alive.nonzero().tolist() if tuple(place) not in chosen])
    sets = {"language heads": chosen}
    for draw in range(RANDOM_MASKS):
        drawn = np.random.default_rng(draw).permutation(len(rest))[:16]
        sets[f"random heads {draw + 1}"] = [(int(a), int(b)) for a, b in rest[drawn]]
    data = {task: lm.encode(task, "dev") for task in lm.tasks}
    plain = {task: _read(lm, task, data[task]) for task in lm.tasks}
    rows = []
    for learned in ("es → es", "en → es"):
        for name, heads in sets.items():
            mask = soft_mask(lm, learned, heads, examples=sizes["learned"], steps=sizes["learned"] // 6, size=6)
            gates = mask.full(lm.attention.shape)
            after = {task: _read(lm, task, data[task], gates) for task in {learned: 0, "en → en": 0}}
            rows += [
                {"learned": learned, "heads": name, "measured": task, **_gain(plain[task], after[task])}
                for task in after
            ]
            rows[-2]["gates"] = mask.gates
    return {"heads": chosen, "rows": rows, "texts": len(plain["en → en"][0]), "learned": sizes["learned"]}


def parallel(learned: int, asked: int) -> list[Task]:
    """XQuAD's questions in English and Spanish whose answers differ: learned on some paragraphs, asked on others."""
    english, spanish = (get(f"xquad_{language}").rows("test") for language in ("en", "es"))
    pairs = [(a, b) for a, b in zip(english, spanish) if _said(a).casefold() != _said(b).casefold()]
    half = pairs[len(pairs) // 2][0]["context"]
    cut = next(i for i, (a, _) in enumerate(pairs) if a["context"] == half)
    splits = {"train": (np.arange(cut), learned), "dev": (np.arange(cut, len(pairs)), asked)}
    tasks = []
    for source, target in (("en", "en"), ("es", "es"), ("en", "es")):
        number = ("en", "es").index
        rows = {
            split: [
                {"prompt": _question(pairs[i][number(source)], source), "target": _said(pairs[i][number(target)])}
                for i in np.random.default_rng(1).permutation(places)[:count]
            ]
            for split, (places, count) in splits.items()
        }
        tasks.append(Task(f"{source} → {target}", Continuation("token"), Rows(**rows), "continuation_match"))
    return tasks


def _said(row: Any) -> str:
    return row["answers"][0]["text"] if isinstance(row["answers"][0], dict) else row["answers"][0]


def _question(row: Any, language: str, around: int = 240) -> str:
    """The part of a paragraph around the answer, and the question."""
    asked, said = {"en": ("Question", "Answer"), "es": ("Pregunta", "Respuesta")}[language]
    place = max(0, row["context"].find(_said(row)))
    shown = row["context"][max(0, place - around) : place + around].strip()
    return f"{shown}\n\n{asked}: {row['question']}\n{said}:"


def _gain(before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """What a mask lowers the loss by, in nats per token, and by how much more answers are the likeliest text."""
    gap, exact = paired_bootstrap(before[0], after[0]), paired_bootstrap(after[1], before[1])
    found = {"loss": before[0].mean(), "gain": gap.value, "low": gap.low, "high": gap.high}
    return found | {"exact": before[1].mean(), "more": exact.value, "more_low": exact.low, "more_high": exact.high}


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


def _language_model(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    model, tokenizer = load_language_model(folder)
    return model.to(DEVICE, dtype), tokenizer


@torch.no_grad()
def _read(lm: LanguageModel, task: str, data: Any, gates: torch.Tensor | None = None) -> np.ndarray:
    """Each row's loss, and whether its answer is the likeliest text, (2, N)."""
    found = np.zeros((2, len(data)))
    gates = torch.ones(lm.attention.shape) if gates is None else gates
    with gated(lm.backbone, gates.to(lm.device), heads=lm.attention):
        for items in Order(data.lengths, tokens=4096).plain():
            batch = to_device(data.batch(items), lm.device)
            loss, scores = lm(task, batch)
            found[:, items] = loss.float().cpu().numpy(), scores.greedy[:, 0].cpu().numpy()
    return found


def few(folder: Path, sizes: Sizes, name: str, draws: int = 3) -> dict[str, Any]:
    """Twenty heads that vote, from 20 labels a class, beside a linear probe and beside training on the same rows."""
    train, test = get(name).rows("train"), get(name).rows("dev")[: sizes["few"]]
    labels = tuple(sorted({row["label"] for row in test}))
    right: dict[str, list[np.ndarray]] = {}
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(train))
        rows = [row for label in labels for row in [train[i] for i in order if train[i]["label"] == label][:20]]
        for method, correct in _from_few(folder, rows, test, labels, draw).items():
            right.setdefault(method, []).append(correct)
    own, *others = (np.mean(found, 0) for found in right.values())
    gaps = [paired_bootstrap(own, other) for other in others]
    return {
        "task": name,
        "scores": {method: [found.mean() for found in each] for method, each in right.items()},
        "gaps": {method: [g.value, g.low, g.high] for method, g in zip(list(right)[1:], gaps)},
        "test": len(test),
        "labels a class": 20,
        "classes": len(labels),
    }


def _from_few(folder: Path, rows: list, test: list, labels: tuple, seed: int) -> dict[str, np.ndarray]:
    """Which test rows each method classifies correctly."""
    model, tokenizer = load_encoder(folder)
    every = [tuple(place) for place in np.ndindex(model.config.num_hidden_layers, model.config.num_attention_heads)]
    texts, known = [row["text"] for row in rows], [row["label"] for row in rows]
    asked, gold = [row["text"] for row in test], np.array([row["label"] for row in test])
    probe = make_pipeline(
        HeadFeatures(model, tokenizer, heads=every), StandardScaler(), LogisticRegression(C=0.01, max_iter=500)
    )
    task = Task("few", Classify(labels), Rows(train=rows, dev=test), "accuracy")
    tuned = MultiTaskModel.from_pretrained(str(folder), [task])
    fit(tuned, Plan(epochs=10, batch_size=8, evaluate_every=0, checkpoint_every=0, seed=seed))
    return {
        "few heads": np.array(FewHeads(model, tokenizer, heads=20).fit(texts, known).predict(asked)) == gold,
        "linear probe of all heads": np.array(probe.fit(texts, known).predict(asked)) == gold,
        "training on the same rows": np.array([found.label for found in tuned.predict("few", asked)]) == gold,
    }
