"""Heads of three chemistry Transformers: where they look, what they encode, and what fine-tuning changes.

rxnfp (BERT, before and after fine-tuning; Schwaller et al. 2021, Mapping the space of chemical reactions) and RXNMapper
(ALBERT; Schwaller et al. 2021, Extraction of organic chemistry grammar) read reactions as SMILES. Here every head is
asked for relations that are known exactly, by the arg-max of its attention, and every head and layer is probed for
properties of the reaction. Reactions are made from a file of molecules, see ``data.py``.

    python -m examples.reactions --molecules FILE --model NAME=FOLDER ... --out runs/reactions
    python -m examples.reactions --records results/reactions.parquet --pages docs/results    # the page alone
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from examples.reactions import data
from examples.reactions.data import Reaction
from examples.reactions.page import COMMAND, Page
from examples.reactions.tables import BINS, PROPERTIES, PUBLISHED, RELATIONS

from headwise.io.files import digest, file_digest, plain
from headwise.io.records import Results
from headwise.measuring.stats import bootstrap, paired_bootstrap
from headwise.papers.pages import pages

Pairs = Callable[[Reaction], list[tuple[int, int]]]
LENGTH = 256  # longest input, special tokens too
BATCH = 16
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # of the probe of counts
UNTRAINED = (0, 1, 2)  # seeds of encoders with random weights
SIDES = ("dev", "test")  # the best head is chosen on the first and judged on the second


# -- relations


def pairs_of(relation: str) -> Pairs:
    """What a relation asks: tokens, and those they belong to."""
    if relation.startswith("atoms"):
        return lambda reaction: [(each.product, each.reactant) for each in reaction.maps]
    return lambda reaction: reaction.brackets if relation == "brackets" else reaction.closures


def targets(reaction: Reaction, relation: str) -> tuple[list[int], np.ndarray, np.ndarray]:
    """The asking tokens; which tokens they may choose from and which are right, bool ``(asking, tokens)`` each."""
    pairs, size = pairs_of(relation)(reaction), len(reaction.tokens)
    right, allowed = np.zeros((len(pairs), size), bool), np.ones((len(pairs), size), bool)
    for row, (_, target) in enumerate(pairs):
        right[row, list(reaction.maps[row].same) if relation in ("atoms", "atoms_element") else [target]] = True
    if relation == "atoms_element":
        elements = [data.element(token) for token in reaction.tokens]
        candidates = np.isin(np.arange(size), reaction.reactant_atoms)
        same = [[elements[place] == other for other in elements] for place, _ in pairs]
        allowed = np.array(same, bool).reshape(allowed.shape) & candidates
    return [place for place, _ in pairs], allowed, right


def hits(encoder: Any, tokenizer: Any, reactions: Sequence[Reaction]) -> dict[str, np.ndarray]:
    """How often every head is right, ``(reactions, layers, heads, 2)``: hits and questions."""
    import torch

    from headwise.heads.attention import eager

    by_relation: dict[str, list[np.ndarray]] = {relation: [] for relation in RELATIONS}
    with torch.no_grad(), eager(encoder) as maps:
        for start in range(0, len(reactions), BATCH):
            part = reactions[start : start + BATCH]
            coded = tokenizer([each.text for each in part], padding=True, return_tensors="pt")
            lengths = coded["attention_mask"].sum(1).tolist()
            assert lengths == [len(each.tokens) + 2 for each in part], "one token of the model for each of SMILES"
            whole = torch.stack(maps(**coded), 1)  # (B, L, H, T, T)
            for looks, each in zip(whole, part):
                inner = looks[:, :, 1 : len(each.tokens) + 1, 1 : len(each.tokens) + 1]  # special tokens left out
                for relation in RELATIONS:
                    by_relation[relation].append(_right(inner, *targets(each, relation)))
    return {relation: np.stack(each) for relation, each in by_relation.items()}


def _right(looks: Any, asking: list[int], allowed: np.ndarray, right: np.ndarray) -> np.ndarray:
    import torch

    rows = looks[:, :, asking].masked_fill(~torch.from_numpy(allowed), -1)
    choice = rows.argmax(-1)  # (L, H, asking)
    hit = torch.from_numpy(right).expand(*rows.shape).gather(-1, choice[..., None]).sum((-1, -2))
    return np.stack([hit.numpy(), np.full(hit.shape, len(asking))], -1)


def share(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def judged(right: Mapping[str, Mapping[str, np.ndarray]], relation: str, published: tuple | None) -> dict[str, Any]:
    """The best head by development data with its test score, and the published head beside it."""
    dev, test = (right[side][relation].astype(float) for side in SIDES)
    best = np.unravel_index(share(dev.sum(0)).argmax(), dev.shape[1:3])
    out: dict[str, Any] = {"reactions": len(test), "asked": int(test[:, 0, 0, 1].sum())}
    out |= {"best": [int(place) for place in best], "score": bootstrap(test[:, *best], share)}
    if published:
        out["published"] = bootstrap(test[:, *published], share)
        out["behind"] = paired_bootstrap(test[:, *best], test[:, *published], share)
    return out


def relation_record(name: str, encoder: Any, tokenizer: Any, made: dict[str, list[Reaction]]) -> tuple[dict, dict]:
    """Maps of every relation with intervals over reactions, and what is said of the best heads."""
    right = {side: hits(encoder, tokenizer, made[side]) for side in SIDES}
    result = {relation: judged(right, relation, PUBLISHED.get(name)) for relation in RELATIONS}
    arrays = {}
    for relation in RELATIONS:
        estimate = bootstrap(right["test"][relation].astype(float), share)
        arrays |= {f"{relation}.test": estimate.value, f"{relation}.low": estimate.low}
        arrays[f"{relation}.high"] = estimate.high
        arrays[f"{relation}.dev"] = share(right["dev"][relation].sum(0))
    classes = np.array([reaction.name for reaction in made["test"]])
    by_class = [share(right["test"]["atoms_element"][classes == each].sum(0)) for each in data.TEMPLATES]
    arrays["classes"] = np.stack(by_class)
    return plain(result), {key: np.asarray(value, np.float32) for key, value in arrays.items()}


def either_way(encoder: Any, tokenizer: Any, made: dict[str, list[Reaction]]) -> dict[str, np.ndarray]:
    """headwise's own relations: right where either end attends most to the other (exact maps, [CLS] may be chosen)."""
    from headwise.models.multitask import MultiTaskModel
    from headwise.probing import relations
    from headwise.tasks import Frames, Rows, Task

    asked = ("atoms", "brackets", "rings")
    rows = [
        {
            "words": list(each.tokens),
            "frames": [
                {"predicate": place, "arguments": [[target, target + 1, name]]}
                for name in asked
                for place, target in pairs_of(name)(each)
            ],
        }
        for each in made["test"]
    ]
    task = Task("relations", Frames(labels=asked), Rows(train=rows, test=rows), "srl_f1")
    measured = relations(MultiTaskModel(encoder, tokenizer, [task], max_length=LENGTH), task)
    return {f"either.{name}": scores.astype(np.float32) for name, scores in zip(measured.labels, measured.by_label)}


# -- without a model


def baselines(made: dict[str, list[Reaction]]) -> dict[str, Any]:
    """The commonest offset of the training side; among reactant atoms of one element also order, and chance."""
    out: dict[str, Any] = {}
    for relation in RELATIONS:
        pairs = pairs_of(relation)
        step = data.offset(made["train"], pairs)
        counts = np.array([_offset_hits(each, relation, step) for each in made["test"]], float)
        out[relation] = {"offset": step, "score": bootstrap(counts, share), "asked": int(counts[:, 1].sum())}
    out["order"] = bootstrap(np.array([_order_hits(each) for each in made["test"]], float), share)
    out["chance"] = bootstrap(np.array([_chance_hits(each) for each in made["test"]], float), share)
    return plain(out)


def _offset_hits(reaction: Reaction, relation: str, step: int) -> tuple[int, int]:
    places, _, right = targets(reaction, relation)
    inside = [0 <= place + step < len(reaction.tokens) and right[row, place + step] for row, place in enumerate(places)]
    return sum(map(bool, inside)), len(places)


def _order_hits(reaction: Reaction) -> tuple[int, int]:
    """The k-th atom of an element in the product for the k-th among the reactants."""
    places, allowed, right = targets(reaction, "atoms_element")
    seen: dict[str | None, int] = {}
    hit = 0
    for row, place in enumerate(places):
        number = seen.setdefault(data.element(reaction.tokens[place]), 0)
        seen[data.element(reaction.tokens[place])] = number + 1
        options = np.flatnonzero(allowed[row])
        hit += bool(right[row, options[min(number, len(options) - 1)]])
    return hit, len(places)


def _chance_hits(reaction: Reaction) -> tuple[float, int]:
    places, allowed, right = targets(reaction, "atoms_element")
    return float((right.sum(1) / allowed.sum(1)).sum()), len(places)


# -- probes


def labels(made: dict[str, list[Reaction]]) -> dict[str, Callable[[Reaction], str]]:
    """What probes ask for; lengths are cut into bins of equal size on the training side."""
    cuts = np.quantile([len(each.tokens) for each in made["train"]], np.arange(1, BINS) / BINS)
    return {
        "class": lambda each: each.name,
        "rings": lambda each: {0: "1 or none", 1: "1 or none", 2: "2", 3: "3"}.get(each.rings, "4 or more"),
        "length": lambda each: str(np.searchsorted(cuts, len(each.tokens), side="right")),
        "halogen": lambda each: "yes" if each.halogen else "no",
    }


def probe_record(encoder: Any, tokenizer: Any, made: dict[str, list[Reaction]], asked: str, kept: str) -> tuple:
    """Converged linear probes of all heads and layers for one property; vectors are kept for the next one."""
    from headwise.probing import probe, utilize
    from headwise.tasks import Classify, Rows, Task

    label = labels(made)[asked]
    rows = {side: [{"text": each.text, "label": label(each)} for each in found] for side, found in made.items()}
    task = Task(asked, Classify(tuple(sorted({row["label"] for row in rows["train"]}))), Rows(**rows), "accuracy")
    found = probe(
        encoder, task, tokenizer=tokenizer, protocol="sklearn", standardize=False, max_length=LENGTH, cache=kept
    )
    result = {"classes": len(task.kind.labels), "chance": found.chance, "sizes": found.about["sizes"]}
    result |= {"notes": found.about["notes"], "cut": found.about["cut"], "utilization": utilize(found).to_record()}
    arrays = {"test": found.accuracy, "dev": found.dev, "layers": found.layers, "layers_dev": found.layers_dev}
    return plain(result), {key: np.asarray(value, np.float32) for key, value in arrays.items()}


def counted(made: dict[str, list[Reaction]]) -> tuple[dict, dict]:
    """The same properties from how often each token occurs, without a model; the penalty is chosen as for probes."""
    from sklearn.linear_model import LogisticRegression

    tokens = sorted({token for each in made["train"] for token in each.tokens})
    counts = {side: np.array([[each.tokens.count(t) for t in tokens] for each in made[side]], float) for side in made}
    mean, sd = counts["train"].mean(0), np.maximum(counts["train"].std(0), 1e-9)
    x = {side: (found - mean) / sd for side, found in counts.items()}
    out = {}
    for asked, label in labels(made).items():
        y = {side: [label(each) for each in found] for side, found in made.items()}
        fits = [LogisticRegression(C=c, max_iter=5000).fit(x["train"], y["train"]) for c in STRENGTHS]
        best = max(fits, key=lambda fit: fit.score(x["dev"], y["dev"]))
        hit = (best.predict(x["test"]) == np.array(y["test"])).astype(float)
        out[asked] = bootstrap(np.stack([hit, np.ones_like(hit)], 1), share)
    return plain(out), {}


# -- the program


class Work:
    """Everything to measure, one record each; what was measured before is not measured again."""

    def __init__(self, results: Results, made: dict[str, list[Reaction]], source: dict[str, Any], kept: str):
        self.results, self.made, self.kept = results, made, kept
        self.data = {**source, "reactions": digest([[side, each.text] for side in made for each in made[side]])}

    def record(self, kind: str, config: dict[str, Any], measure: Callable[[], tuple[dict, dict]]) -> None:
        config = {**config, "data": self.data}
        if self.results.find(kind, config):
            return
        start = time.perf_counter()
        result, arrays = measure()
        seconds = round(time.perf_counter() - start, 1)
        self.results.save(kind, config, result, arrays, {"seconds": seconds})
        print(kind, config.get("model", ""), config.get("asked", ""), seconds, "s", flush=True)

    def reactions(self) -> None:
        def measure() -> tuple[dict, dict]:
            sizes = {side: len(found) for side, found in self.made.items()}
            every = [each for found in self.made.values() for each in found]
            templates = [_about(name, [each for each in every if each.name == name]) for name in data.TEMPLATES]
            return {"sizes": sizes, "templates": templates, "baselines": baselines(self.made)}, {}

        self.record("reactions", {}, measure)
        self.record("counts", {}, lambda: counted(self.made))

    def model(self, name: str, folder: str) -> None:
        from headwise.io.identity import checkpoint
        from headwise.models.loading import load_encoder

        encoder, tokenizer = load_encoder(folder)
        config = {"model": name, "weights": checkpoint(folder)}
        self.relations(config, encoder.eval(), tokenizer, both=True)
        self.probes(config, encoder, tokenizer)

    def control(self, name: str, folder: str) -> None:
        """Encoders of the same shape with random weights; the first of them is probed as well."""
        from headwise.models.loading import load_encoder
        from headwise.probing import untrained

        encoder, tokenizer = load_encoder(folder)
        for seed in UNTRAINED:
            config, other = {"model": f"{name} untrained", "seed": seed}, untrained(encoder, seed)
            self.relations(config, other, tokenizer)
            if seed == UNTRAINED[0]:
                self.probes(config, other, tokenizer)

    def relations(self, config: dict[str, Any], encoder: Any, tokenizer: Any, both: bool = False) -> None:
        def measure() -> tuple[dict, dict]:
            result, arrays = relation_record(config["model"], encoder, tokenizer, self.made)
            size = {"parameters": sum(p.numel() for p in encoder.parameters())}
            return result | size, arrays | (either_way(encoder, tokenizer, self.made) if both else {})

        self.record("relations", config, measure)

    def probes(self, config: dict[str, Any], encoder: Any, tokenizer: Any) -> None:
        for asked in PROPERTIES:
            way = {**config, "asked": asked, "protocol": "sklearn", "at": "cls"}
            self.record("probe", way, partial(probe_record, encoder, tokenizer, self.made, asked, self.kept))


def _about(name: str, reactions: list[Reaction]) -> dict[str, Any]:
    return {
        "name": name,
        "reactions": len(reactions),
        "tokens": float(np.median([len(each.tokens) for each in reactions])),
        "maps": float(np.mean([len(each.maps) for each in reactions])),
        "halogen": float(np.mean([each.halogen for each in reactions])),
        "example": min(reactions, key=lambda each: (len(each.tokens), each.text)).text,
    }


def run(results: Results, molecules: Path, each: int, models: Mapping[str, str], kept: str) -> None:
    """Make the reactions and measure every model, the trained ones first."""
    made = data.make(data.molecules(molecules), each)
    work = Work(results, made, {"molecules": file_digest(molecules), "each": each}, kept)
    work.reactions()
    for name, folder in models.items():
        work.model(name, folder)
    for name, folder in models.items():
        if not name.endswith("finetuned"):  # of the same shape as before
            work.control(name, folder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--molecules", help="SMILES, one per line or the first column of a csv file")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--each", type=int, default=200, help="reactions of every template")
    parser.add_argument("--out", default="runs/reactions", help="records go to OUT/records")
    parser.add_argument("--pages", help="folder for the page (default: OUT)")
    parser.add_argument("--records", help="write the page from these records, a folder or a .parquet file; run nothing")
    given = parser.parse_args(arguments)
    out = Path(given.out)
    results = Results(given.records or out / "records")
    if not given.records:
        if not given.molecules or not given.model:
            parser.error("--molecules and --model are needed, or --records")
        models = dict(entry.split("=", 1) for entry in given.model)
        with tempfile.TemporaryDirectory() as kept:
            run(results, Path(given.molecules), given.each, models, kept)
    page: Any = Page()  # pages asks for no jobs
    print(pages(page, results, given.pages or out, COMMAND).with_suffix(".md"))
