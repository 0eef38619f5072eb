"""Records of ``reactions.py`` and their tables (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm

from headwise.probing.roles import Change, change
from headwise.recipes.summary import mean_sd, table
from headwise.results import Record, Results
from headwise.stats import adjust

RELATIONS = {  # what is asked, in words
    "atoms": "product atom to its reactant atom, among all tokens",
    "atoms_exact": "the same, atoms that symmetry makes equal told apart",
    "atoms_element": "the same, among reactant atoms of its element",
    "brackets": "closing bracket to its opening one",
    "rings": "ring-closing digit to its opening one",
}
PROPERTIES = {
    "class": "reaction class",
    "rings": "rings in the product",
    "length": "length in tokens",
    "halogen": "halogen in the product",
}
BINS = 6  # of lengths
PUBLISHED = {"rxnmapper-albert": (10, 5)}  # counted from 0, as its code counts (layers=[10], head=5)
ONE_BASED = (9, 4)  # the head those numbers would mean if they were counted from 1
BEFORE, AFTER, MAPPER = "rxnfp-pretrained", "rxnfp-finetuned", "rxnmapper-albert"
Table = dict[str, Any]
CHANCE = "Chance: the commonest test class. Lengths are cut into bins of equal size on the training side."


class Records:
    """The records of a folder by what they are."""

    def __init__(self, results: Results):
        found = list(results)
        self.made = next(record for record in found if record.kind == "reactions").result
        self.relations: dict[str, Record] = {}
        self.untrained: dict[str, list[Record]] = {}  # by the model whose shape they have; one for each seed
        self.probes: dict[tuple[str, str], Record] = {}
        for record in found:
            model = record.config.get("model", "")
            if record.kind == "probe":
                self.probes[model, record.config["asked"]] = record
            elif record.kind == "relations" and "seed" in record.config:
                self.untrained.setdefault(model.removesuffix(" untrained"), []).append(record)
            elif record.kind == "relations":
                self.relations[model] = record

    def map(self, model: str, relation: str, of: str = "test") -> np.ndarray:
        return self.relations[model].arrays[f"{relation}.{of}"]

    def probe(self, model: str, asked: str) -> np.ndarray:
        return self.probes[model, asked].arrays["test"]

    def best(self, model: str, relation: str) -> dict[str, Any]:
        """The head that development data chose: ``best``, ``score``, and for a published one ``behind``."""
        return self.relations[model].result[relation]

    def said(self, model: str, relation: str) -> str:
        found = self.best(model, relation)
        return f"{named(found['best'])} {spanned(found['score'])}"


# -- numbers as words


def named(head: Any) -> str:
    return f"{head[0]}.{head[1]}"


def percent(estimate: dict[str, Any]) -> list[float]:
    return [100 * float(estimate[name]) for name in ("value", "low", "high")]


def spanned(estimate: dict[str, Any]) -> str:
    value, low, high = percent(estimate)
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"


# -- relations


def relation_table(records: Records, title: str, relations: tuple[str, ...]) -> Table:
    """Best heads, encoders with random weights, and what needs no model."""
    rows, base = [], records.made["baselines"]
    for relation in relations:
        for model in records.relations:
            found = records.best(model, relation)
            either = records.relations[model].arrays.get(f"either.{relation.split('_')[0]}")
            beside = 100 * float(either[*found["best"]]) if relation in ("atoms_exact", "brackets", "rings") else None
            rows.append([RELATIONS[relation], model, named(found["best"]), *percent(found["score"]), beside])
        for model, seeds in records.untrained.items():
            mean, sd = mean_sd(100 * each.result[relation]["score"]["value"] for each in seeds)
            low, high = (None, None) if sd is None else (mean - sd, mean + sd)
            words = f"{model}, {len(seeds)} seeds of random weights"
            rows.append([RELATIONS[relation], words, "", mean, low, high, None])
        rows.append(
            [RELATIONS[relation], f"offset {base[relation]['offset']}", "", *percent(base[relation]["score"]), None]
        )
        if relation == "atoms_element":
            rows.append(
                [RELATIONS[relation], "the same place in the order of its element", "", *percent(base["order"]), None]
            )
            rows.append([RELATIONS[relation], "chance", "", *percent(base["chance"]), None])
    asked = "; ".join(f"{RELATIONS[each]}: n = {base[each]['asked']:,}" for each in relations)
    note = (
        f"{asked}; {records.best(BEFORE, 'atoms')['reactions']} test reactions. For random weights mean and mean ± sd "
    )
    note += (
        "of each seed's best head. Offset: the commonest on the training side. Either end: `headwise.probing.relations`"
    )
    note += " of the same head, where the other end may look back, and [CLS] may be chosen."
    return table(title, ["right where", "who", "head", "right %", "low", "high", "either end %"], rows, note)


def published_table(records: Records) -> Table:
    rows, published = [], PUBLISHED[MAPPER]
    for relation in ("atoms", "atoms_exact", "atoms_element"):
        found, scores = records.best(MAPPER, relation), records.map(MAPPER, relation)
        rank, other = int((scores > scores[published]).sum()) + 1, 100 * float(scores[ONE_BASED])
        behind = percent(found["behind"])
        row = [RELATIONS[relation], *percent(found["published"]), rank, named(found["best"]), *behind, other]
        rows.append(row)
    columns = ["right where", "10.5 right %", "low", "high", f"rank of {scores.size}", "best by development data"]
    columns += ["its lead, points", "low", "high", "9.4 right %"]
    note = (
        "The lead is paired over test reactions. 9.4 is the head that 'layer 10, head 5' would mean if counted from 1."
    )
    return table("The published head", columns, rows, note)


def depth_table(records: Records) -> Table:
    scores = {relation: records.map(MAPPER, relation) for relation in ("atoms", "atoms_element")}
    second = int(np.sort(np.argsort(-scores["atoms_element"].max(0))[:2])[0])
    second = second if second != PUBLISHED[MAPPER][1] else int(np.argsort(-scores["atoms_element"].max(0))[1])
    heads = (PUBLISHED[MAPPER][1], second)
    rows = [[layer, *(100 * found[layer, head] for found in scores.values() for head in heads)] for layer in range(12)]
    columns = ["layer", *(f"head {head}, {words}" for words in ("all tokens", "its element") for head in heads)]
    return table("RXNMapper's mapping heads by layer", columns, rows, "Right %; the layers share their weights.")


def class_table(records: Records) -> Table:
    names = [each["name"] for each in records.made["templates"]]
    chosen = {model: records.best(model, "atoms_element")["best"] for model in records.relations}
    rows = []
    for i, name in enumerate(names):
        rows.append([name, *(100 * records.relations[m].arrays["classes"][i, *head] for m, head in chosen.items())])
    columns = ["class", *(f"{model} {named(head)}" for model, head in chosen.items())]
    each = records.made["sizes"]["test"] // len(names)
    note = f"Right %, among reactant atoms of its element; {each} test reactions a class."
    return table("Atom mapping by reaction class", columns, rows, note)


# -- probes


def probe_table(records: Records) -> Table:
    rows = []
    for (model, asked), record in records.probes.items():
        use, head = record.result["utilization"], record.arrays["dev"]
        best = np.unravel_index(head.argmax(), head.shape)
        last, layer, top = (percent(use["scores"][name])[0] for name in ("last", "best", "top"))
        lead = use["against"]["best"]
        row = [PROPERTIES[asked], model, last, layer, use["layer"], top, *percent(use["scores"]["top"])[1:], use["n"]]
        rows.append([*row, *percent(lead), lead["p"], named(best), 100 * float(record.arrays["test"][best])])
    rows.sort(key=lambda row: list(PROPERTIES.values()).index(row[0]))
    columns = ["property", "model", "last layer %", "best layer %", "which", "top heads %", "low", "high", "heads"]
    columns += ["lead over best layer", "low", "high", "p", "best head", "its %"]
    sizes = records.probes[BEFORE, "class"].result["sizes"]
    note = f"Converged linear probes of the first token; n = {sizes['test']} test reactions. Untrained: seed 0."
    late = [note for record in records.probes.values() for note in record.result["notes"] if "optimum" in note]
    note += f" In {len(late)} of {len(rows)} rows some probes were stopped before their optimum." if late else ""
    return table("Probes of layers and heads", columns, rows, note)


# -- before and after


def moves(records: Records) -> dict[str, tuple[Change, np.ndarray]]:
    """How rxnfp's maps moved in fine-tuning, and each head's p-value of no change, Holm over heads.

    Both sides were judged on the same reactions; their errors are taken as independent, which is careful.
    """
    out = {}
    for relation in ("atoms", "atoms_element", "brackets", "rings"):
        before, after = (records.map(model, relation) for model in (BEFORE, AFTER))
        widths = [records.map(m, relation, "high") - records.map(m, relation, "low") for m in (BEFORE, AFTER)]
        errors = [width / (2 * norm.ppf(0.975)) for width in widths]
        out[relation] = before, after, errors, records.best(BEFORE, relation)["asked"]
    for asked in PROPERTIES:
        before, after = (records.probe(model, asked) for model in (BEFORE, AFTER))
        n = records.probes[BEFORE, asked].result["sizes"]["test"]
        out[f"probe {asked}"] = before, after, [np.sqrt(each * (1 - each) / n) for each in (before, after)], n
    return {name: (change(before, after), _p(before, after, *rest)) for name, (before, after, *rest) in out.items()}


def _p(before: np.ndarray, after: np.ndarray, errors: list[np.ndarray], n: int) -> np.ndarray:
    spread = np.maximum(np.sqrt(errors[0] ** 2 + errors[1] ** 2), 1 / n)  # no head is known without error
    return adjust(2 * norm.sf(np.abs(after - before) / spread))


def change_table(found: dict[str, tuple[Change, np.ndarray]]) -> Table:
    rows = []
    for name, (moved, p) in found.items():
        sure, r = p < 0.05, moved.pattern
        counts = [int((sure & (moved.difference > 0)).sum()), int((sure & (moved.difference < 0)).sum())]
        rows.append([_what(name), r.r, r.low, r.high, 100 * moved.mean, *counts, moved.moved_up])
    columns = ["map", "r of before and after", "low", "high", "mean change, points", "heads up", "heads down"]
    note = "Over 48 heads. Heads up and down: p < 0.05 after Holm over the 48. Climb: layers that the centre of scores rose."
    return table("How the maps of rxnfp changed", [*columns, "climb"], rows, note)


def most_table(records: Records, found: dict[str, tuple[Change, np.ndarray]], most: int = 3) -> Table:
    rows = []
    for name, (moved, p) in found.items():
        asked = name.removeprefix("probe ")
        maps = [records.probe(m, asked) if asked != name else records.map(m, name) for m in (BEFORE, AFTER)]
        for place in np.argsort(-np.abs(moved.difference), axis=None)[:most]:
            head = np.unravel_index(place, p.shape)
            values = [100 * float(each[head]) for each in (*maps, moved.difference)]
            rows.append([_what(name), named(head), *values, float(p[head])])
    return table("Heads that changed most", ["map", "head", "before %", "after %", "change, points", "p"], rows)


def _what(name: str) -> str:
    asked = name.removeprefix("probe ")
    return f"probe: {PROPERTIES[asked]}" if asked != name else RELATIONS[name]
