"""Records of the study and their tables (no torch)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import binomtest, norm

from headwise.io.records import Record, Results
from headwise.measuring.stats import adjust
from headwise.papers.summary import mean_sd, table
from headwise.probing.roles import Change, change

RELATIONS = {  # what is asked, in words
    "atoms": "atom, all tokens",
    "atoms_exact": "atom, exactly",
    "atoms_element": "atom, its element",
    "brackets": "bracket",
    "rings": "ring digit",
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
Moves = dict[str, tuple[Change, np.ndarray]]


class Records:
    """The records of a folder by what they are."""

    def __init__(self, results: Results):
        records = list(results)
        self.made = next(record for record in records if record.work == "reactions").result
        self.counts = next(record for record in records if record.work == "counts").result
        self.relations: dict[str, Record] = {}
        self.untrained: dict[str, list[Record]] = {}  # by the model whose shape they have; one for each seed
        self.probes: dict[tuple[str, str], Record] = {}
        for record in records:
            model = record.config.get("model", "")
            if record.work == "probe":
                self.probes[model, record.config["asked"]] = record
            elif record.work == "relations" and "seed" in record.config:
                self.untrained.setdefault(model.removesuffix(" untrained"), []).append(record)
            elif record.work == "relations":
                self.relations[model] = record

    def map(self, model: str, relation: str, of: str = "test") -> np.ndarray:
        return self.relations[model].arrays[f"{relation}.{of}"]

    def probe(self, model: str, asked: str) -> np.ndarray:
        return self.probes[model, asked].arrays["test"]

    def counted(self, asked: str) -> dict[str, float]:
        """The share of test reactions that a probe of token counts gets right."""
        return share_of(self.counts[asked]["value"], self.made["sizes"]["test"])

    def scored(self, model: str, asked: str, what: str) -> dict[str, float]:
        """The share of test reactions that a probe gets right: of the ``last`` or ``best`` layer, or ``top`` heads."""
        result = self.probes[model, asked].result
        return share_of(result["utilization"]["scores"][what]["value"], result["sizes"]["test"])

    def best(self, model: str, relation: str) -> dict[str, Any]:
        """The head that development data chose: ``best``, ``score``, and for a published one ``behind``."""
        return self.relations[model].result[relation]

    def said(self, model: str, relation: str) -> str:
        best = self.best(model, relation)
        return f"head {named(best['best'])} {spanned(best['score'])}"


def share_of(value: float, n: int) -> dict[str, float]:
    """A share of n examples with Wilson's interval: resampled, one with all right would have no width.

    Example:
        >>> spanned(share_of(1.0, 480))
        '100.0 % [99.2, 100.0]'
    """
    ends = binomtest(round(value * n), n).proportion_ci(method="wilson")
    return {"value": value, "low": ends.low, "high": ends.high}


def named(head: Any) -> str:
    return f"{head[0]}.{head[1]}"


def percent(estimate: dict[str, Any]) -> list[float]:
    """Value and interval."""
    return [100 * float(estimate[name]) for name in ("value", "low", "high")]


def spanned(estimate: dict[str, Any]) -> str:
    value, low, high = percent(estimate)
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"


# -- reactions and models


def reaction_table(records: Records) -> Table:
    names = ("name", "reactions", "tokens", "maps", "halogen", "example")
    rows = [[each[name] for name in names] for each in records.made["templates"]]
    columns = ["class", "reactions", "tokens (median)", "atoms mapped (mean)", "share with halogen", "the shortest"]
    return table("Reactions", columns, rows, "Halogens of the product.")


def model_table(records: Records) -> Table:
    rows = [
        [name, *record.arrays["atoms.test"].shape, record.result["parameters"] / 1e6]
        for name, record in records.relations.items()
    ]
    return table("Models", ["model", "layers", "heads per layer", "million parameters"], rows)


def property_table(records: Records) -> Table:
    rows = []
    for name, words in PROPERTIES.items():
        result = records.probes[BEFORE, name].result
        counts = percent(records.counted(name))
        rows.append([words, result["classes"], 100 * result["chance"], *counts, *result["sizes"].values()])
    note = (
        "Chance: the most frequent test class. Counts: a linear probe of how often each token occurs. Lengths are cut "
    )
    note += "into bins of equal size on the training side."
    columns = ["property", "classes", "chance %", "counts %", "low", "high", "train", "dev", "test"]
    return table("Properties", columns, rows, note)


# -- relations


def relation_table(records: Records, title: str, relations: tuple[str, ...]) -> Table:
    """Best heads, encoders with random weights, and what needs no model."""
    rows, base = [], records.made["baselines"]
    for relation in relations:
        entries = _best_rows(records, relation)
        entries.append([f"offset {base[relation]['offset']}", "", *percent(base[relation]["score"]), None])
        if relation == "atoms_element":
            entries.append(["the same place in the order of its element", "", *percent(base["order"]), None])
            entries.append(["chance", "", *percent(base["chance"]), None])
        rows += [[RELATIONS[relation], *row] for row in entries]
    asked = "; ".join(f"{RELATIONS[each]}: n = {base[each]['asked']:,}" for each in relations)
    note = f"{asked}; {records.best(BEFORE, 'atoms')['reactions']} test reactions. For random weights the mean of each "
    note += "seed's best head, and that mean minus and plus one sd over seeds: not a 95 % interval. "
    note += "Offset: the most frequent in training rows. Either end: the same head by `headwise.probing.relations`, "
    note += "where the other end may look back and [CLS] may be chosen."
    return table(title, ["relation", "who", "head", "right %", "low", "high", "either end %"], rows, note)


def _best_rows(records: Records, relation: str) -> list[list[Any]]:
    rows = []
    for model, record in records.relations.items():
        best = records.best(model, relation)
        either = record.arrays.get(f"either.{relation.removesuffix('_exact')}") if relation != "atoms" else None
        beside = None if either is None else 100 * float(either[*best["best"]])
        rows.append([model, named(best["best"]), *percent(best["score"]), beside])
    for model, seeds in records.untrained.items():
        mean, sd = mean_sd(100 * each.result[relation]["score"]["value"] for each in seeds)
        span = [None, None] if mean is None or sd is None else [mean - sd, mean + sd]
        rows.append([f"{model}, {len(seeds)} seeds of random weights", "", mean, *span, None])
    return rows


def published_table(records: Records) -> Table:
    rows, published = [], PUBLISHED[MAPPER]
    for relation in ("atoms", "atoms_exact", "atoms_element"):
        best, scores = records.best(MAPPER, relation), records.map(MAPPER, relation)
        rank, other = int((scores > scores[published]).sum()) + 1, 100 * float(scores[ONE_BASED])
        lead = percent(best["behind"])
        rows.append([RELATIONS[relation], *percent(best["published"]), rank, named(best["best"]), *lead, other])
    columns = ["relation", "10.5 right %", "low", "high", "rank of 96", "best by development data"]
    columns += ["its lead, points", "low", "high", "9.4 right %"]
    note = "The lead is paired over test reactions. 9.4 is what 'layer 10, head 5' would mean if counted from 1."
    return table("The published head", columns, rows, note)


def depth_table(records: Records) -> Table:
    """The published head and the next best one in every layer."""
    scores = {relation: records.map(MAPPER, relation) for relation in ("atoms", "atoms_element")}
    first = PUBLISHED[MAPPER][1]
    second = next(int(head) for head in np.argsort(-scores["atoms_element"].max(0)) if head != first)
    heads, layers = (first, second), range(len(scores["atoms"]))
    rows = [[layer, *(100 * found[layer, head] for found in scores.values() for head in heads)] for layer in layers]
    columns = ["layer", *(f"head {head}, {words}" for words in ("all tokens", "its element") for head in heads)]
    return table("RXNMapper's mapping heads by layer", columns, rows, "Right %; the layers share their weights.")


def class_table(records: Records) -> Table:
    names = [each["name"] for each in records.made["templates"]]
    chosen = {model: records.best(model, "atoms_element")["best"] for model in records.relations}
    maps = {model: records.relations[model].arrays["classes"] for model in chosen}
    rows = [[name, *(100 * maps[model][i, *head] for model, head in chosen.items())] for i, name in enumerate(names)]
    columns = ["class", *(f"{model} {named(head)}" for model, head in chosen.items())]
    each = records.made["sizes"]["test"] // len(names)
    note = f"Right %, among reactant atoms of its element; {each} test reactions a class."
    return table("Atom mapping by reaction class", columns, rows, note)


# -- probes


def probe_table(records: Records) -> Table:
    rows = []
    for asked, words in PROPERTIES.items():
        for model in dict.fromkeys(model for model, other in records.probes if other == asked):
            record = records.probes[model, asked]
            use, dev = record.result["utilization"], record.arrays["dev"]
            best = np.unravel_index(dev.argmax(), dev.shape)
            last, layer, top = (percent(records.scored(model, asked, name)) for name in ("last", "best", "top"))
            lead = use["against"]["best"]
            row = [words, model, *last[:1], *layer[:1], use["layer"], *top, use["n"], *percent(lead), lead["p"]]
            rows.append([*row, named(best), 100 * float(record.arrays["test"][best])])
    columns = ["property", "model", "last layer %", "best layer %", "which", "top heads %", "low", "high", "heads"]
    columns += ["lead over best layer", "low", "high", "p", "best head", "its %"]
    sizes = records.probes[BEFORE, "class"].result["sizes"]
    note = f"Converged linear probes of the first token; n = {sizes['test']} test reactions. Untrained: seed 0."
    late = [each for each in records.probes.values() if any("optimum" in note for note in each.result["notes"])]
    note += f" In {len(late)} of {len(rows)} rows some probes were stopped before their optimum." if late else ""
    return table("Probes of layers and heads", columns, rows, note)


# -- before and after


def moves(records: Records) -> Moves:
    """How rxnfp's maps moved in fine-tuning, and each head's p-value of no change, Holm over heads.

    Both sides were judged on the same reactions; their errors are taken as independent, which is careful.
    """
    out = {}
    for relation in ("atoms", "atoms_element", "brackets", "rings"):
        before, after = (records.map(model, relation) for model in (BEFORE, AFTER))
        widths = [records.map(m, relation, "high") - records.map(m, relation, "low") for m in (BEFORE, AFTER)]
        errors = [width / (2 * norm.ppf(0.975)) for width in widths]
        out[relation] = change(before, after), _p(before, after, errors, records.best(BEFORE, relation)["reactions"])
    for asked in PROPERTIES:
        before, after = (records.probe(model, asked) for model in (BEFORE, AFTER))
        n = records.probes[BEFORE, asked].result["sizes"]["test"]
        errors = [np.sqrt(each * (1 - each) / n) for each in (before, after)]
        out[f"probe {asked}"] = change(before, after), _p(before, after, errors, n)
    return out


def _p(before: np.ndarray, after: np.ndarray, errors: list[np.ndarray], n: int) -> np.ndarray:
    spread = np.maximum(np.sqrt(errors[0] ** 2 + errors[1] ** 2), 1 / n)  # no head is known without error
    return adjust(2 * norm.sf(np.abs(after - before) / spread))


def change_table(found: Moves) -> Table:
    rows = []
    for name, (moved, p) in found.items():
        sure, r = p < 0.05, moved.pattern
        counts = [int((sure & (moved.difference > 0)).sum()), int((sure & (moved.difference < 0)).sum())]
        rows.append([what(name), r.r, r.low, r.high, 100 * moved.mean, *counts, moved.moved_up])
    columns = ["map", "r of before and after", "low", "high", "mean change, points", "heads up", "heads down"]
    note = "Over 48 heads. Heads up and down: p < 0.05 after Holm over the 48. Climb: layers the centre of scores rose."
    return table("How the maps of rxnfp changed", [*columns, "climb"], rows, note)


def most_table(records: Records, found: Moves, most: int = 3) -> Table:
    rows = []
    for name, (moved, p) in found.items():
        asked = name.removeprefix("probe ")
        maps = [records.probe(m, asked) if asked != name else records.map(m, name) for m in (BEFORE, AFTER)]
        for place in np.argsort(-np.abs(moved.difference), axis=None, kind="stable")[:most]:
            head = np.unravel_index(place, p.shape)
            values = [100 * float(each[head]) for each in (*maps, moved.difference)]
            rows.append([what(name), named(head), *values, float(p[head])])
    note = "p after Holm over the 48 heads of a map."
    return table("Heads that changed most", ["map", "head", "before %", "after %", "change, points", "p"], rows, note)


def what(name: str) -> str:
    """A map in words."""
    asked = name.removeprefix("probe ")
    return f"probe: {PROPERTIES[asked]}" if asked != name else RELATIONS[name]
