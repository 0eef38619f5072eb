"""Tables of the MESH recipe from the existing records; numbers in percent, means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from headwise.io.records import Record, Results
from headwise.measuring.intervals import interval
from headwise.measuring.stats import above_zero
from headwise.papers.mesh import published as paper
from headwise.papers.mesh.jobs import BEYOND, ROWS, STARTS
from headwise.papers.mesh.metatest import drawn_means
from headwise.papers.summary import mean_sd, over_seeds, student, table

Table = dict[str, Any]
LABELS = {"nli": "NLI", "qa": "QA", "ner": "NER", "pa": "PA"}
ALPHA = 0.3
RELATIONS = ("same task, other language", "same language, other task", "other task and language")


def label(pair: str) -> str:
    """A pair as Table I names it.

    Example:
        >>> label("nli_es")
        'NLI-es'
    """
    task, _, language = pair.partition("_")
    return f"{LABELS.get(task, task)}-{language}"


class Records:
    """The recipe's records by kind."""

    def __init__(self, results: Results):
        own = [record for record in results if record.work in ("mesh.train", "mesh.apart", "mesh.retrieved")]
        self.trained = [record for record in own if record.work == "mesh.train"]
        self.retrieved = [record for record in own if record.work == "mesh.retrieved"]
        self.apart = [record for record in own if record.work == "mesh.apart"]

    def models(self) -> list[str]:
        return list(dict.fromkeys(record.config["model"] for record in self.trained))

    def part(self, model: str, part: str, name: str | None = None) -> list[Record]:
        """The trainings of a part of the recipe, one for each name and seed: the newest where data changed since."""
        wanted = {"model": model, "part": part} | ({"name": name} if name else {})
        matching = [r for r in self.trained if all(r.config[k] == v for k, v in wanted.items())]
        newest = {(record.config["name"], record.config["plan"]["seed"]): record for record in matching}
        return sorted(newest.values(), key=lambda record: record.config["plan"]["seed"])

    def starts(self, model: str) -> list[Record]:
        """The multi-task trainings from which a model's recoveries started, one for each seed."""
        keys = {record.config.get("start") for record in self.part(model, "recovery")}
        runs = [r for r in self.trained if r.key in keys] or self.part(model, "table", "multi-task")
        return sorted(runs, key=lambda record: record.config["plan"]["seed"])

    def sources(self, model: str) -> str:
        """The source of the rows, for every table's note."""
        sources = {record.config["source"] for record in self.trained if record.config["model"] == model}
        names = {"corpus": "the embedded corpus", "samples": "small published files (see the table of pairs)"}
        return " and ".join(names.get(s, "the published training files") for s in sorted(sources))


def _percent(records: Sequence[Record], pairs: Sequence[str], key: str = "scores") -> np.ndarray:
    """Scores (seeds, pairs) in percent."""

    def one(record: Record, pair: str) -> float:
        score = record.result[key].get(pair, np.nan)
        return 100 * (score["value"] if isinstance(score, Mapping) else score)

    return np.array([[one(record, pair) for pair in pairs] for record in records])


def scored_pairs(records: Sequence[Record]) -> list[str]:
    """The pairs that trainings have scores of, in order."""
    return list(dict.fromkeys(pair for record in records for pair in record.result["scores"]))


def pairs_table(records: Records, model: str) -> Table | None:
    """Table II: what every pair was trained and measured on, and how the model's tokenizer reads it."""
    runs = records.part(model, "table")
    if not runs:
        return None
    rows, published = [], []
    for pair, about in runs[0].result["pairs"].items():
        pieces, lost = about.get("pieces"), about.get("unknown")
        rows.append([label(pair), about["note"], about["rows"], about["measured"], about["metric"], pieces])
        rows[-1].append(None if lost is None else 100 * lost)
        theirs = paper.TABLE_2.get(pair) if runs[0].config["source"] != "corpus" else None
        published.append([None, None, theirs, *[None] * 4])
    columns = ["pair", "rows", "training rows", "measured rows", "metric", "sub-words per word", "unknown, %"]
    note = "Above three sub-words per word, the tokenizer spells rather than reads. A plan may use fewer training rows."
    return table(f"Pairs, {model}", columns, rows, note, published)


def english_rules(records: Sequence[Record]) -> str:
    """A sentence where answers in other languages were scored by the rules for English."""
    scores = [(pair, score) for record in records for pair, score in record.result["scores"].items()]
    pairs = {label(pair) for pair, score in scores if not pair.endswith("_en") and score.get("metric") == "answer_f1"}
    return f" {', '.join(sorted(pairs))}: scored by the English rules." if pairs else ""


def table_one(records: Records, model: str) -> Table | None:
    """Table I and the combination of pruning and training that its text speaks of."""
    base, pairs = records.part(model, "table", "multi-task"), scored_pairs(records.part(model, "table"))
    rows, published = [], []
    for name in ROWS:
        runs = records.part(model, "table", name)
        if not runs:
            continue
        scores = _percent(runs, pairs)
        mean, sd = mean_sd(scores.mean(1))
        rows.append([name, *scores.mean(0), mean, sd, *_gain(runs, base, name), len(runs)])
        known = paper.TABLE_1.get(name) if runs[0].config["source"] != "corpus" else None
        theirs: dict[str, Any] = dict(zip(paper.PAIRS, known or ()))
        mean_of = np.mean(known) if known and set(pairs) == set(theirs) else None
        published.append([None, *(theirs.get(pair) for pair in pairs), mean_of, *[None] * 4])
    if not rows:
        return None
    columns = ["heads", *map(label, pairs), "mean", "sd", "gain", "p", "seeds"]
    note = (
        f"All pairs trained together on {records.sources(model)}; each pair by its own metric. Gain: of the mean over "
        "multi-task training; p over seeds (Student's paired t, two-sided). The published ± are copied from another "
        "paper's table and omitted."
    )
    note += english_rules(records.part(model, "table"))
    return table(f"Table I, {model}", columns, rows, note, published)


def _gain(runs: Sequence[Record], base: Sequence[Record], name: str) -> tuple[float | None, float | None]:
    ours, theirs = (
        {r.config["plan"]["seed"]: float(_percent([r], scored_pairs(runs)).mean()) for r in side}
        for side in (runs, base)
    )
    both = [seed for seed in ours if seed in theirs]
    if name == "multi-task" or not both:
        return None, None
    return float(np.mean([ours[seed] - theirs[seed] for seed in both])), _chance(ours, theirs)


def _chance(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Any:
    """Two-sided p of the difference over seeds; None for a single one."""
    test = over_seeds(ours, theirs)
    return test.p if test else None


# -- pruning and recovery


def recovered(records: Records, model: str) -> dict[tuple[str, str, float], list[Record]]:
    """The recoveries of a model: (which heads, in which layers, their fraction) -> one record for each seed."""
    recoveries: dict[tuple[str, str, float], list[Record]] = {}
    for record in records.part(model, "recovery"):
        trim = record.config["method"]["trim"]
        key = (trim.get("prune_by", "least"), trim.get("where", "all"), trim["prune"])
        recoveries.setdefault(key, []).append(record)
    order = ["least", "random", "most"]
    return dict(
        sorted(recoveries.items(), key=lambda item: (item[0][1] != "all", order.index(item[0][0]), item[0][1:]))
    )


def seeds_of(runs: Mapping[Any, Sequence[Record]]) -> str:
    """The number of trainings behind each of these: 3, or 1 or 3."""
    return " or ".join(str(number) for number in sorted({len(each) for each in runs.values()}))


def recovery_table(records: Records, model: str) -> Table | None:
    """Heads closed in the trained model: mean scores of both languages before and after recovery."""
    recoveries, base = recovered(records, model), records.starts(model)
    if not recoveries or not base:
        return None
    pairs = scored_pairs(base)
    languages = list(dict.fromkeys(pair.partition("_")[2] for pair in pairs))
    sides = {language: [p for p in pairs if p.endswith(f"_{language}")] for language in languages}
    whole = [float(_percent(base, pairs).mean()) for pairs in sides.values()]
    rows: list[list[Any]] = [["none", "", 0, *(one for one in whole for _ in range(2)), None, len(base)]]
    for (by, where, share), each in recoveries.items():
        cells = [float(_percent(each, pairs, key).mean()) for pairs in sides.values() for key in ("cut", "scores")]
        rows.append([by, where, round(100 * share), *cells, _kept(base, each), len(each)])
    columns = ["heads closed", "layers", "%"]
    columns += [f"{language}, {when}" for language in languages for when in ("cut", "recovered")]
    note = (
        f"Means over the four tasks, trained on {records.sources(model)}. Kept: recovered scores as a fraction of the "
        "intact model's (same seeds), which is not trained further."
    )
    return table(f"Pruning and recovery, {model}", [*columns, "kept, %", "seeds"], rows, note)


def _kept(base: Sequence[Record], each: Sequence[Record]) -> float | None:
    """The mean score of all pairs after recovery, in percent of the whole models' of the same seeds."""
    pairs = scored_pairs(each)
    ours, whole = (_percent(side, pairs) for side in (same_seeds(each, base), same_seeds(base, each)))
    return 100 * float(ours.mean() / whole.mean()) if whole.any() else None


def same_seeds(records: Sequence[Record], others: Sequence[Record]) -> list[Record]:
    """Those of the records whose seeds the others have."""
    seeds = {other.config["plan"]["seed"] for other in others}
    return [record for record in records if record.config["plan"]["seed"] in seeds]


def models_table(records: Records) -> Table | None:
    """What models keep of their scores after recovery, side by side: a multilingual one against the others."""
    models = {model: recoveries for model in records.models() if (recoveries := recovered(records, model))}
    if len(models) < 2:
        return None
    bases = {model: records.starts(model) for model in models}
    rows = []
    for key in dict.fromkeys(key for recoveries in models.values() for key in recoveries):
        kept = [
            _kept(bases[model], recoveries[key]) if key in recoveries else None for model, recoveries in models.items()
        ]
        rows.append([key[0], key[1], round(100 * key[2]), *kept])
    seeds = ", ".join(f"{model} {seeds_of(recoveries)}" for model, recoveries in models.items())
    note = f"Mean score of all pairs after recovery, in percent of the intact model's (same seeds). Seeds: {seeds}."
    return table("What models keep", ["heads closed", "layers", "%", *models], rows, note)


# -- meta-tests


def beyond_table(records: Records, model: str, what: str) -> Table | None:
    """The same for what is not the paper's, beside what it is set against."""
    if not any(records.part(model, "meta", f"{what}: {start}") for start in BEYOND if start not in STARTS):
        return None
    shown = meta_table(records, model, what, ("multi-task", *BEYOND), f"Beyond the paper, {what}, {model}")
    return shown and {**shown, "note": f"{shown['note']} {BY}"}


BY = "Pruned by support: the 30 % of heads with the least effect on the new pair's own examples are closed before it "
BY += "adapts. Gates by input: a gate of each example and head, from the mean of its word embeddings."


def meta_table(
    records: Records, model: str, what: str, starts: Sequence[str] = tuple(STARTS), title: str = ""
) -> Table | None:
    """Scores of the pairs held out, from every start, and the gain over the multi-task start."""
    rows, made = [], [r for start in starts for r in records.part(model, "meta", f"{what}: {start}")]
    for pair in dict.fromkeys(pair for record in made for pair in record.result["tests"]):
        base = records.part(model, "meta", f"{what}: multi-task")
        for start in starts:
            runs = [r for r in records.part(model, "meta", f"{what}: {start}") if pair in r.result["tests"]]
            if runs:
                rows.append([label(pair), start, *_shots(runs, pair), *_better(runs, base, pair), len(runs)])
    if not rows:
        return None
    shots = [entry["shots"] for entry in found_shots(records, model, what)]
    columns = ["pair", "start", "zero-shot", *(f"{n} shots" for n in shots[1:]), "gain", "low", "high", "p"]
    columns += ["p over seeds", "seeds"]
    note = f"Trained on {', '.join(map(label, made[0].config['pairs']))} ({records.sources(model)}). "
    note += f"Gain over the multi-task start at {shots[-1]} shots; low, high and the one-sided p resample examples "
    note += "and support sets (paired bootstrap), not trainings. p over seeds: Student's paired t over trainings, "
    note += "two-sided. "
    note += "Every start's adaptation rate was chosen on the pairs it was trained on. "
    note += "Zero-shot: with the task's output head trained on the other language."
    return table(title or f"Meta-test on {what}, {model}", columns, rows, note)


def found_shots(records: Records, model: str, what: str) -> list[Mapping[str, Any]]:
    """The sizes of support sets of a meta-test, zero-shot first."""
    tests = [
        t
        for r in records.part(model, "meta")
        if r.config["name"].startswith(f"{what}: ")
        for t in r.result["tests"].values()
    ]
    return tests[0]["shots"] if tests else []


def _shots(runs: Sequence[Record], pair: str) -> list[float | None]:
    each = [[entry["value"] for entry in record.result["tests"][pair]["shots"]] for record in runs]
    return [mean_sd([100 * v for v in column if v is not None])[0] for column in zip(*each)]


def _better(runs: Sequence[Record], base: Sequence[Record], pair: str) -> list[Any]:
    """The mean gain over the multi-task starts of the same seeds at the most shots; interval, p and p over seeds."""
    others = {record.config["plan"]["seed"]: record for record in base if pair in record.result["tests"]}
    both = [(r, others[s]) for r in runs if (s := r.config["plan"]["seed"]) in others and r is not others[s]]
    if not both:
        return [None] * 5
    test = both[0][0].result["tests"][pair]
    shots, metric = test["shots"][-1]["shots"], test["metric"]
    ours, theirs = 100 * np.array([[_value(r, pair, shots) for r in two] for two in both]).T
    chance = _chance(dict(enumerate(ours)), dict(enumerate(theirs)))
    drawn = [[100 * drawn_means(r.arrays[f"{pair}/{shots}"].astype(float), metric) for r in two] for two in both]
    samples = np.mean([a - b for a, b in drawn], 0)
    gap, (low, high) = float((ours - theirs).mean()), interval(samples)
    return [gap, float(low), float(high), float(above_zero(gap, samples)), chance]


def _value(record: Record, pair: str, shots: int) -> float:
    return next(e["value"] for e in record.result["tests"][pair]["shots"] if e["shots"] == shots)


# -- languages and tasks


def relation(a: str, b: str) -> str:
    """What two pairs have in common."""
    (task, language), (task_b, language_b) = a.split("_"), b.split("_")
    return RELATIONS[0 if task == task_b else 1 if language == language_b else 2]


def retrieval_table(records: Records) -> Table | None:
    """XTREME's sentence retrieval by untouched vectors, whole and with heads closed."""
    rows = []
    for model in dict.fromkeys(r.config["model"] for r in records.retrieved):
        runs = [r for r in records.retrieved if r.config["model"] == model]
        for name in dict.fromkeys(name for r in runs for name in r.result):
            each = [r.result[name] for r in runs if name in r.result]
            pair, way = name.split(" ", 1)
            rows.append([model, pair, way, each[0]["metric"], *mean_sd([100 * one["value"] for one in each])])
            rows[-1] += [each[0]["n"], len(each)]
    columns = ["model", "pair", "pooling", "metric", "score", "sd", "n", "seeds"]
    note = (
        "In percent; nearest neighbours by cosine similarity of the pretrained encoder's vectors. F1: the similarity "
        "threshold is chosen on every second sentence and evaluated on the others. Closed heads are random for each "
        "seed."
    )
    return table("Translations found by their vectors", columns, rows, note) if rows else None


def groups_table(records: Records) -> Table | None:
    """D between languages and between tasks: are there language heads?"""
    rows = []
    for model in records.models():
        runs = [r for r in records.apart if r.config["model"] == model]
        for by in ("language", "task"):
            for names, entries in _by_names([r.result[by] for r in runs if by in r.result]).items():
                mean = [entry["mean"] for entry in entries if entry["mean"]["value"] is not None]
                values = 100 * np.array([m["value"] for m in mean])
                above = sum((m["low"] or 0) > 0 for m in mean)
                each = {n: mean_sd([100 * e["tasks"][n]["value"] for e in entries])[0] for n in names}
                languages = ", ".join(f"{n} {value:.1f}" for n, value in each.items() if value is not None)
                p = max((m["p"] for m in mean if m["p"] is not None), default=None)
                cells = [mean_sd(values)[0], *student(values), f"{above} of {len(mean)}", p]
                rows.append([model, f"{by}s", *cells, languages, len(entries)])
    if not rows:
        return None
    columns = ["model", "between", "D", "low", "high", "above 0", "p", "D of each", "seeds"]
    note = (
        "α = 0.3: the heads most important to a group's pairs together are closed, and a group's score is the mean of "
        "its pairs'. D: mean over seeds; low, high: Student's interval over seeds. Above 0: number of seeds whose own "
        "interval over examples lies above zero; p: one-sided, the largest over seeds."
    )
    return table("D between languages and between tasks", columns, rows, note)


def _entry(record: Mapping[str, Any]) -> Mapping[str, Any]:
    place = int(np.abs(np.array(record["fractions"]) - ALPHA).argmin())
    return record["D"][place]


def _by_names(entries: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    out: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in entries:
        out.setdefault(tuple(_entry(one)["tasks"]), []).append(_entry(one))
    return out


def relations_table(records: Records) -> Table | None:
    """Pairs against pairs: D and shared heads, by what two pairs have in common."""
    rows = []
    for model in records.models():
        runs = [r for r in records.apart if r.config["model"] == model]
        for what in RELATIONS:
            d = [
                100 * p["d"]
                for r in runs
                for p in _entry(r.result["pairs"])["pairs"]
                if relation(p["a"], p["b"]) == what
            ]
            shared = [100 * v for r in runs for pair, v in shared_heads(r).items() if relation(*pair) == what]
            (mean, sd), (heads, _) = mean_sd(d), mean_sd(shared)
            if d:
                rows.append([model, what, mean, sd, heads, len(d)])
    if not rows:
        return None
    columns = ["model", "two pairs of", "D", "sd", "heads shared, %", "n"]
    note = (
        "If heads belonged to tasks and not to languages, D would be near zero for one task in two languages, which "
        "would share most of their top 30 % of heads (by chance: 30 %)."
    )
    return table("Two pairs at a time", columns, rows, note)


def shared_heads(record: Record) -> dict[tuple[str, str], float]:
    """The fraction of their top 30 % of heads that each two pairs have in common."""
    tops = {}
    for name, one in record.result["importance"].items():
        scores = np.array(one["scores"], float).ravel()
        tops[name] = set(np.argsort(-scores, kind="stable")[: int(ALPHA * scores.size + 1e-6)].tolist())
    return {(a, b): len(tops[a] & tops[b]) / max(1, len(tops[a])) for a, b in combinations(tops, 2)}
