"""Tables of the anatomy recipe, each beside the published one; and the printed Table 5 computed again."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from headwise.io.records import Record, Results
from headwise.measuring.stats import adjust, paired_t
from headwise.papers.anatomy import published as paper
from headwise.papers.summary import mean_sd, over_seeds, pearson, sentence, table
from headwise.probing.roles import SEMANTIC, SYNTACTIC, Scatter, across, change, profiles, scatter, score_map
from headwise.probing.utilization import EffectOfN

PRINTED = {name: printed for printed, (name, _, _) in paper.TASKS.items()}  # our names to those of the tables


def property_of(task: str) -> str:
    """The property that a task asks for: the last part of its name."""
    return task.split(".")[-1]


def suite_of(task: str) -> str:
    return task.split(".")[0]


class Records:
    """All records of a folder that are this recipe's, read once; one model may have several suites of tasks."""

    def __init__(self, results: Results):
        self.inventory: dict[str, Record] = {}
        self.probed: dict[tuple[str, str], Record] = {}  # by model and task
        self.converged: dict[tuple[str, str], Record] = {}  # the same at their optimum
        self.controlled: dict[tuple[str, str], Record] = {}  # standardized, with controls
        self.tuned: dict[tuple[str, str, int], Record] = {}  # by model, task and seed
        self.along: dict[tuple[str, str], Record] = {}  # heads at points of a training
        for record in results:
            c = record.config
            if record.work == "anatomy.inventory":
                self.inventory[c["model"]] = record
            elif record.work == "anatomy.probed":
                group = self.converged if c["protocol"] == "sklearn" else self.probed
                group[c["model"], c["task"]] = record
            elif record.work == "anatomy.controlled":
                self.controlled[c["model"], c["task"]] = record
            elif record.work == "anatomy.along":
                self.along[c["model"], c["task"]] = record
            elif record.work == "anatomy.tuned":
                self.tuned[c["model"], c["task"], c["plan"]["seed"]] = record
        if not self.probed:  # nothing was stopped early
            self.probed, self.converged = self.converged, {}

    def benches(self) -> list[tuple[str, str]]:
        """Every model and suite that was probed."""
        return list(dict.fromkeys((model, suite_of(task)) for model, task in self.probed))

    def tasks(self, model: str, suite: str, converged: bool = False) -> list[str]:
        """Its tasks in the paper's order."""
        order, probed = list(PRINTED), self.converged if converged else self.probed
        names = [task for other, task in probed if (other, suite_of(task)) == (model, suite)]
        return sorted(names, key=lambda task: order.index(property_of(task)) if property_of(task) in order else 99)

    def utilization(self, model: str, task: str, side: str = "dev", converged: bool = False) -> dict[str, Any]:
        return (self.converged if converged else self.probed)[model, task].result["utilization"][side]

    def maps(self, model: str, suite: str, name: str = "test") -> dict[str, np.ndarray]:
        """Heads' scores by task."""
        return {t: score_map(self.probed[model, t].arrays[name]) for t in self.tasks(model, suite)}

    def effects(self, model: str, suite: str) -> list[EffectOfN]:
        entries = [self.probed[model, task].result["effect"] for task in self.tasks(model, suite)]
        return [EffectOfN(e["task"], tuple(e["sizes"]), tuple(e["dev"]), tuple(e["test"])) for e in entries]

    def tunings(self) -> dict[tuple[str, str], list[Record]]:
        """Fine-tunings by model and task, over seeds."""
        tunings: dict[tuple[str, str], list[Record]] = {}
        for (model, task, _), record in sorted(self.tuned.items()):
            tunings.setdefault((model, task), []).append(record)
        return tunings

    def real(self, suite: str) -> bool:
        """Whether the sentences are natural: only then are published numbers shown."""
        return suite != "corpus"


def beside(model: str, table: dict[str, Any]) -> str:
    """The model of the paper that a model is compared with."""
    return model if model in table else "bert-base"


def medians(records: list[Record], metric: str) -> dict[str, float]:
    """The median over seeds of each input's score."""
    names = records[0].result["scores"]
    return {name: median(record.result["scores"][name][metric] for record in records) for name in names}


Table = dict[str, Any]
INPUTS = ("last", "best", "top")
METRICS = {"f1": "F1", "accuracy": "accuracy", "pearson": "Pearson", "spearman": "Spearman"}
LABELS = {"mrpc": "MRPC", "stsb": "STS-B", "sst2": "SST-2"}


def model_table(records: Records) -> Table | None:
    """Table 1."""
    rows, published = [], []
    for model, record in records.inventory.items():
        rows.append([model, record.result["layers"], record.result["heads"], record.result["parameters"] / 1e6])
        published.append([None, *paper.TABLE_1.get(model, (None,) * 3)])
    if not rows:
        return None
    columns = ["model", "layers", "heads per layer", "million parameters"]
    return table("Table 1: models", columns, rows, "", published)


def task_table(records: Records) -> Table | None:
    """Table 2."""
    rows, published = [], []
    sizes = {task: size for record in records.inventory.values() for task, size in record.result["tasks"].items()}
    for task, size in sizes.items():
        rows.append([task, size["classes"], 100 * size["chance"], *(size[s] for s in ("train", "dev", "test"))])
        known = paper.TABLE_2.get(PRINTED.get(property_of(task), ""))
        known = known if not task.startswith("corpus.") else None
        published.append([None, known, None, *((100_000, None, 10_000) if known else (None,) * 3)])
    if not rows:
        return None
    columns = ["task", "classes", "chance %", "train", "dev", "test"]
    return table("Table 2: probing tasks", columns, rows, "Chance: the most frequent test class.", published)


def probing_table(records: Records, model: str, suite: str, converged: bool = False) -> Table | None:
    """Tables 3 and 5: the last layer, the best layer and the top heads, chosen on development data."""
    rows, published = [], []
    tasks = records.tasks(model, suite, converged)
    if not tasks:
        return None
    known = paper.TABLE_5[beside(model, paper.TABLE_5)] if records.real(suite) else {}
    for task in tasks:
        used = records.utilization(model, task, converged=converged)
        scores = [100 * used["scores"][name]["value"] for name in INPUTS]
        top, gain = used["scores"]["top"], [100 * (score / scores[0] - 1) for score in scores[1:]]
        spread = [100 * top["low"], 100 * top["high"], used["against"]["best"]["p"]]
        rows.append([property_of(task), *scores, *gain, *spread, used["layer"], used["n"]])
        printed = known.get(PRINTED.get(property_of(task), ""))
        gains = [paper.gain(printed, 1), paper.gain(printed)] if printed else [None, None]
        published.append([None, *(printed or (None,) * 3), *gains, *[None] * 5])
    middle = [median(row[i] for row in rows) for i in (4, 5)]
    every = [row[4:6] for row in published if row[4] is not None]
    rows.append(["median", None, None, None, *middle, *[None] * 5])
    published.append([None] * 4 + ([median(x) for x in zip(*every)] if every else [None] * 2) + [None] * 5)
    columns = ["task", "last layer", "best layer", "top heads", "gain of best layer", "gain of top heads"]
    columns += ["low", "high", "p", "layer", "heads"]
    wins = sum(row[3] > row[2] for row in rows[:-1])
    note = "Test accuracy in percent; gains over the last layer in percent. Layer and heads chosen on dev. Low, high: "
    note += "95 % of top heads over test sentences; p: not better than the best layer. Top heads are better on "
    note += f"{wins} of {len(rows) - 1} (published: on all ten). {_stands(model)}"
    title = f"Tables 3 and 5: {model}, {suite}{', converged probes' * converged}"
    return table(title, columns, rows, note, published)


def _stands(model: str) -> str:
    return "" if model in paper.TABLE_5 else "Published: BERT base on SentEval's sentences."


def selection_table(records: Records) -> Table | None:
    """What choosing on test data, as published, adds to the top heads' scores."""
    rows, published = [], []
    for model, suite in records.benches():
        known = paper.TOP_12_DEV if model == "bert-base" and suite == "senteval" else {}
        for task in records.tasks(model, suite):
            tops = [100 * records.utilization(model, task, s)["scores"]["top"]["value"] for s in ("dev", "test")]
            rows.append([model, task, *tops, tops[1] - tops[0]])
            printed = PRINTED.get(property_of(task), "")
            pair = (known[printed], paper.TABLE_3["bert-base"][printed][2]) if printed in known else None
            published.append([None, None, *(pair or (None, None)), pair[1] - pair[0] if pair else None])
    if not rows:
        return None
    mean = mean_sd(row[4] for row in rows)[0]
    note = f"Mean difference {mean:+.2f} points over {len(rows)} tasks. The released code chooses on the test set."
    columns = ["model", "task", "chosen on dev", "chosen on test", "difference"]
    return table("Choosing heads on test data", columns, rows, note, published)


def recomputed_table() -> Table:
    """The printed Table 5: gains from its accuracies beside the printed gains."""
    rows, published = [], []
    for model, tasks in paper.TABLE_5.items():
        for task, scores in tasks.items():
            printed = paper.TABLE_5_GAINS[model][task]
            remark = "printed '5.5 (1.6)', which is 55.5" if (model, task) == ("gpt2", "OddManOut") else ""
            remark = remark or ("from the released table" if (model, task, "top") in paper.UNREADABLE else "")
            rows.append([model, task, *scores, paper.gain(scores, 1), paper.gain(scores), remark])
            published.append([None] * 5 + [*printed, None])
    over = [median(paper.gain(s, 2, over) for t in paper.TABLE_5.values() for s in t.values()) for over in (0, 1)]
    rows.append(
        ["median", f"over the best layer {over[1]:.2f}", None, None, None, None, over[0], "over the last layer"]
    )
    published.append([None] * 6 + [paper.MEDIAN_GAIN, None])
    columns = ["model", "task", "last layer", "best layer", "top heads", "gain of best layer", "gain of top heads", ""]
    note = f"{sentence(paper.ERRATA['section 4.4'])}. Accuracies as printed, gains computed from them."
    return table("The printed Table 5, recomputed", columns, rows, note, published)


def controls_table(records: Records, model: str, suite: str) -> Table | None:
    """Chosen heads compared with layers and controls; all probes standardized and converged."""
    by_task = {task: r for (name, task), r in records.controlled.items() if (name, suite_of(task)) == (model, suite)}
    if not by_task:
        return None
    rows, order = [], list(PRINTED)
    for task in sorted(by_task, key=lambda task: order.index(property_of(task))):
        c = by_task[task].result["controls"]
        last = by_task[task].result["utilization"]["scores"]["last"]["value"]
        draws = [float(np.mean(c[name])) for name in ("random", "mixed")]
        scores = (last, c["best_layer"], c["mean_last"], c["mean_best"], *draws, c["top"])
        rows.append([property_of(task), *(100 * score for score in scores), c["p_random"], c["p_mixed"]])
    columns = ["task", "last layer", "best layer", "last layer, mean", "best layer, mean", "random heads"]
    columns += ["mixed layers", "top heads", "p against random", "p against mixed"]
    tops = np.array([row[7] for row in rows])
    gains = [f"{name} {_over(tops - [row[place] for row in rows])}" for place, name in enumerate(columns[2:7], 2)]
    note = (
        f"Mean lead of the top heads in points: over {'; '.join(gains)}. p: fraction of {len(c['random'])} draws that "
        "do as well, counting the top heads themselves (one-sided). "
    )
    train, test = ([by_task[task].result["sizes"][side] for task in by_task] for side in ("train", "test"))
    note += (
        f"Training rows: {_range(train)}; test rows: {_range(test)}. Random heads and mixed values of all layers are "
        "as wide as the top heads; their means are shown."
    )
    return table(f"Controls: {model}, {suite}, standardized probes", columns, rows, note)


def _range(sizes: list[int]) -> str:
    return f"{min(sizes):,} to {max(sizes):,}" if min(sizes) < max(sizes) else f"{sizes[0]:,}"


def control_gaps(records: Records) -> dict[str, dict[str, list[float]]]:
    """How far the top heads are above each control, in points: model to control to tasks."""
    gaps: dict[str, dict[str, list[float]]] = {}
    for (model, _), record in records.controlled.items():
        c = record.result["controls"]
        others = {"best layer": c["best_layer"], "best layer, mean": c["mean_best"]}
        others |= {
            name: float(np.mean(c[key])) for name, key in (("random heads", "random"), ("mixed layers", "mixed"))
        }
        for name, value in others.items():
            gaps.setdefault(model, {}).setdefault(name, []).append(100 * (c["top"] - value))
    return gaps


def _over(gaps: np.ndarray) -> str:
    """The mean over tasks with Student's interval and p."""
    if len(gaps) < 2:
        return f"{gaps.mean():+.1f}"
    test = paired_t(gaps, np.zeros(len(gaps)))
    return f"{test.value:+.1f} [{test.low:.1f}, {test.high:.1f}], p = {test.p:.2g}"


def tuning_table(records: Records) -> Table | None:
    """Table 4."""
    rows, published = [], []
    for (model, task), runs in records.tunings().items():
        for metric in next(iter(runs[0].result["scores"].values())):
            middle = medians(runs, metric)
            name = f"{LABELS.get(task, task)} ({METRICS.get(metric, metric)})"
            scores = [{r.config["plan"]["seed"]: r.result["scores"][w][metric] for r in runs} for w in INPUTS]
            tests = [over_seeds(scores[2], other) for other in scores[:2]]
            cells = [*(100 * middle[what] for what in INPUTS), *(test.p if test else None for test in tests)]
            rows.append([model, name, *cells, runs[0].result["split"], len(runs)])
            known = paper.TABLE_4[beside(model, paper.TABLE_4)].get(name, (None,) * 3)
            published.append([None, None, *known, *[None] * 4])
    if not rows:
        return None
    for row, holm in zip(rows, adjust(np.array([np.nan if row[5] is None else row[5] for row in rows])).tolist()):
        row.insert(6, holm)
    published = [[*line[:6], None, *line[6:]] for line in published]
    columns = ["model", "task", "last layer", "best layer", "top heads", "p over last", "p (Holm)", "p over best"]
    columns += ["judged on", "seeds"]
    note = (
        "Medians over seeds, in percent. The classifier is trained with the encoder, unlike in the released script; "
        "models not in the paper are compared with its BERT base. p: top heads against the last or the best layer, "
        "Student's paired t over seeds, two-sided; Holm over the rows."
    )
    return table("Table 4: fine-tuning", columns, rows, note, published)


def change_table(records: Records) -> Table | None:
    """Figure 4 in numbers: heads probed for the task before and after fine-tuning on it."""
    rows = []
    for (model, task), runs in records.tunings().items():
        each = [change(r.arrays["test_before"], r.arrays["test_after"]) for r in runs]
        means = [np.mean([getattr(one, name) for one in each]) for name in ("mean", "raised", "moved_up")]
        pattern = np.mean([one.pattern.r for one in each])
        top = [change(a["test_before"], a["test_after_top"]).mean for r in runs if "test_after_top" in (a := r.arrays)]
        with_top = 100 * float(np.mean(top)) if top else None
        rows.append([model, task, 100 * means[0], 100 * means[1], pattern, means[2], with_top, len(each)])
    if not rows:
        return None
    columns = ["model", "task", "mean change", "% of heads that gained", "r of maps", "layers climbed"]
    columns += ["mean change, tuned with top heads", "seeds"]
    note = "Change of heads' probe scores in points; r of the maps before and after; layers their centre moved up."
    return table("Heads before and after fine-tuning", columns, rows, note)


def along_table(records: Records) -> dict[str, Any] | None:
    """Heads at points of a training: how far their scores and their map are from the pretrained ones."""
    rows = []
    for (model, task), record in records.along.items():
        maps = along_maps(record)
        first, last = maps[0][1], maps[-1][1]
        for fraction, scores in maps:
            since, to_end = change(first, scores), change(scores, last)
            top = overlap(first, scores)
            values = [100 * float(np.nanmean(scores)), 100 * since.mean, since.pattern.r, to_end.pattern.r, 100 * top]
            rows.append([model, task, f"{fraction:.0%}", *values, since.moved_up])
    if not rows:
        return None
    columns = ["model", "task", "of training", "mean of heads", "change", "r with start", "r with end"]
    note = (
        "Every head probed separately for the trained task, at several points of one training run (first seed); test "
        "scores in percent. Kept: fraction of the best 30 % of heads before training that are still among the best 30 "
        "%. One run each: a description, not a test."
    )
    return table("Heads along a training", [*columns, "kept", "layers climbed"], rows, note)


def along_maps(record: Record) -> list[tuple[float, np.ndarray]]:
    """Maps of test scores by the fraction of training."""
    fractions = sorted(record.config["fractions"])
    return [(f, record.arrays[f"test_{i}"]) for i, f in enumerate(fractions) if f"test_{i}" in record.arrays]


def overlap(before: np.ndarray, after: np.ndarray, fraction: float = 0.3) -> float:
    """The fraction of a map's best heads that are among the best of another."""
    number = max(1, int(fraction * np.isfinite(before).sum()))
    best = [set(np.argsort(-np.nan_to_num(m, nan=-np.inf).ravel(), kind="stable")[:number]) for m in (before, after)]
    return len(best[0] & best[1]) / number


def effect_table(records: Records, model: str, suite: str) -> Table:
    """The effect of n: test accuracy of the n best heads together."""
    effects = records.effects(model, suite)
    sizes = [n for n in dict.fromkeys(n for e in effects for n in e.sizes) if all(n in e.sizes for e in effects)]
    rows = []
    for e in effects:
        best = e.sizes[int(np.argmax(e.dev))]
        rows.append([property_of(e.task), *(100 * e.test[e.sizes.index(n)] for n in sizes), best])
    note = "Test accuracy in percent; heads concatenated in the order of their development scores."
    return table(f"Effect of n, {model}, {suite}", ["task", *map(str, sizes), "best n on dev"], rows, note)


def scatters(records: Records) -> dict[tuple[str, str], Scatter]:
    """Figure 5 of every model and suite with tasks of both kinds."""
    maps = {bench: records.maps(*bench) for bench in records.benches()}
    able = [b for b, of in maps.items() if all({*map(property_of, of)} & {*kind} for kind in (SYNTACTIC, SEMANTIC))]
    return {bench: scatter(maps[bench]) for bench in able}


def roles_table(records: Records) -> Table | None:
    """Figure 5 in numbers, and the kinds of heads."""
    rows = []
    for (model, suite), points in scatters(records).items():
        maps, fit = records.maps(model, suite), points.fit
        kinds = profiles(maps, kinds=min(6, next(iter(maps.values())).size))
        sizes = ", ".join(str(int((kinds.cluster == k).sum())) for k in range(kinds.cluster.max() + 1))
        r = [fit.r, fit.low, fit.high, fit.p, within_layers(points)]
        rows.append([model, suite, *r, len(kinds.heads), sizes])
    if not rows:
        return None
    columns = ["model", "suite", "r syntactic-semantic", "low", "high", "p", "r within layers", "heads"]
    note = (
        "Each head's mean accuracy over syntactic and over semantic tasks; kinds by Ward's method on all tasks. Low, "
        "high and p treat heads as independent; heads of a layer are alike, so they are overconfident. Within layers: "
        "the layer's own means are subtracted from both."
    )
    return table("Roles of heads", [*columns, "heads of each kind"], rows, note)


def within_layers(points: Scatter) -> float:
    """The correlation of deviations from the layer means; NaN if there are none."""
    inside = np.equal.outer(points.layer, points.layer)
    sides = [side - inside @ side / inside.sum(1) for side in (points.x, points.y)]
    return float(pearson(np.stack(sides))[0, 1])


def depth_table(records: Records) -> Table | None:
    """Where in each model a property lives: the best head, and the centre of scores from 0, first layer, to 1, last."""
    rows = []
    for suite in dict.fromkeys(suite for _, suite in records.benches()):
        models = [model for model, other in records.benches() if other == suite]
        by_model = {model: across({model: records.maps(model, suite)}) for model in models}
        for task in dict.fromkeys(task for one in by_model.values() for task in one.tasks):
            for model, one in by_model.items():
                if task in one.tasks:
                    t = one.tasks.index(task)
                    rows.append([suite, property_of(task), model, 100 * one.best[0, t], one.depth[0, t]])
    if not rows:
        return None
    return table("Where properties live", ["suite", "task", "model", "best head", "depth"], rows, "Depth: 0 to 1.")
