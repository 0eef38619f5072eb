"""Tables of training: GLUE by method, ablations, sweeps, the released code, few-shot transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headwise.io.files import finite
from headwise.io.records import Record
from headwise.measuring.stats import adjust, paired_bootstrap
from headwise.papers.specialization import published as paper
from headwise.papers.specialization.records import SETTING, Records, beside, erratum, label, of_base, real
from headwise.papers.specialization.settings import CONTROLS, CORPUS_GLUE, OWN, RELEASED, STARTS, UNSAID
from headwise.papers.specialization.transfer import Transfer
from headwise.papers.summary import mean_sd, over_seeds, table

Table = dict[str, Any]
Scores = Mapping[int, Mapping[str, float]]  # seed to task
COLUMNS = ("cola", "mnli", "mnli_mm", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb")  # the paper's order
FIRST = (
    *("single", "multi", "iat", "iat, α and δ untuned", "iat, gradients zeroed", "iat, output rows held"),
    *("random heads", "bottom heads"),
    *("ticket-share", "prune least", "mt-dnn", "distilled", *OWN),
)
PUBLISHED_7 = {"multi": "multi", "prune least": "prune least 30 %", "random heads": "train random 30 %"}
PUBLISHED_7 |= {"iat": "train top 30 %"}
PAIRED = "against plain and p (paired t test, two-sided): over the seeds that both have."
START = (
    "Same start: seeds that branched off that plain training; for others it was repeated, which adds noise to the "
    "difference."
)
MEAN = "Mean over GLUE's development sets in percent"
UNCLIPPED = "–"
BEST = "a factor per head and task, faster"
CLIPPED, CLIPPED_BEST = "plain, clipped", "a factor per head and task, faster, clipped"


# -- GLUE


def glue_table(records: Records, model: str, sampling: str) -> Table | None:
    """Table 13: development scores by method, and each method against plain training over the same seeds."""
    scores = by_method(records, model, sampling)
    if "multi" not in scores:
        return None
    tasks = columns_of(scores["multi"])
    rows = [_glue_row(name, scores[name], scores["multi"], tasks) for name in FIRST if name in scores]
    for row, holm in zip(rows, after_holm(row[-3] for row in rows)):
        row.insert(-2, holm)
    theirs = beside(model, paper.TABLE_13[sampling])
    lines = {name: paper.TABLE_13[sampling].get((theirs, name)) for name in scores} if real(tasks) else {}
    published = [[None, *_spread_out(lines.get(row[0]), tasks), *[None] * 5] for row in rows]
    columns = ["method", *(_glue_label(t) for t in tasks), "mean", "sd", "against plain", "p", "p (Holm)"]
    columns += ["tasks better", "seeds"]
    note = f"Development scores in percent, means over seeds; {PAIRED} MT-DNN samples proportionally."
    note += f" {records.trained_on(model)}"
    note += f" Published: {theirs}, Table 13." if lines and theirs else ""
    return table(f"GLUE, {sampling} sampling, {model}", columns, rows, note, published)


def by_method(records: Records, model: str, sampling: str, setting: tuple | None = None) -> dict[str, Scores]:
    """The scores of a model's trainings on GLUE under the usual setting, or another."""
    return {name: one for (m, s, name), one in records.glue(setting).items() if (m, s) == (model, sampling)}


def columns_of(scores: Scores) -> list[str]:
    known = [*COLUMNS, *CORPUS_GLUE]
    return sorted(next(iter(scores.values())), key=lambda t: known.index(t) if t in known else len(known))


def _glue_label(task: str) -> str:
    return "MNLI-m" if task == "mnli" else label(task)


def mean_scores(scores: Scores, tasks: Sequence[str]) -> dict[int, float]:
    """The mean over tasks of each seed, in percent; seeds that lack a task are skipped."""
    whole = {seed: [one.get(task) for task in tasks] for seed, one in scores.items()}
    return {s: float(100 * np.mean([v for v in row if v is not None])) for s, row in whole.items() if None not in row}


def _glue_row(name: str, own: Scores, plain: Scores, tasks: Sequence[str]) -> list[Any]:
    mine, base = mean_scores(own, tasks), mean_scores(plain, tasks)
    own, plain = _whole(own, mine), _whole(plain, base)
    cells = [mean_sd([100 * one[task] for one in own.values() if task in one])[0] for task in tasks]
    gap, p = against(mine, base) if name != "multi" else (None, None)
    others = [mean_sd([100 * one[task] for one in plain.values() if task in one])[0] for task in tasks]
    both = [(a, b) for a, b in zip(cells, others) if a is not None and b is not None]
    better = None if name == "multi" else sum(a > b for a, b in both)
    return [name, *cells, *mean_sd(list(mine.values())), gap, p, better, len(own)]


def _whole(scores: Scores, seeds: Mapping[int, float]) -> Scores:
    """The seeds that have all tasks, so that a row's numbers are of the same trainings; all where none has."""
    return {seed: scores[seed] for seed in seeds} or scores


def gaps(mine: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """The difference of every common seed."""
    return [mine[seed] - base[seed] for seed in sorted(mine) if seed in base]


def against(mine: Mapping[int, float], base: Mapping[int, float]) -> tuple[float | None, float | None]:
    """The mean difference over common seeds and its p-value (Student's, two-sided), which needs two and a spread."""
    each, test = gaps(mine, base), over_seeds(mine, base)
    p = np.nan if test is None else float(test.p)  # type: ignore[arg-type]
    return float(np.mean(each)) if each else None, finite(p)


def after_holm(ps: Iterable[float | None]) -> list[float]:
    """P-values after Holm over all existing ones; NaN, an empty cell, for the others."""
    return adjust(np.array([np.nan if p is None else p for p in ps])).tolist()


def method_gaps(records: Records, model: str) -> dict[str, list[float]]:
    """Every method against plain training, seed by seed."""
    scores = by_method(records, model, "annealed")
    if "multi" not in scores:
        return {}
    tasks = columns_of(scores["multi"])
    means = {name: mean_scores(scores[name], tasks) for name in FIRST if name in scores}
    means |= {name: mean_scores(one, tasks) for name, one in _clipped(records, model).items()}
    each = {name: gaps(one, means["multi"]) for name, one in means.items() if name != "multi"}
    return {name: differences for name, differences in each.items() if differences}


def _clipped(records: Records, model: str) -> dict[str, Scores]:
    """Plain training and our own under the usual setting but for clipped gradients: what else explains a gain."""
    settings = [setting for setting, _ in records.usual.get(model, Counter()).most_common()]
    scores: dict[str, Scores] = {}
    for setting in settings[1:]:
        differs = [name for name, a, b in zip(SETTING, settings[0], setting) if a != b]
        made = by_method(records, model, "annealed", setting) if differs == ["clip"] else {}
        scores |= {name: made[method] for name, method in ((CLIPPED, "multi"), (CLIPPED_BEST, BEST)) if method in made}
    return scores


def _spread_out(line: Sequence[float] | None, tasks: Sequence[str]) -> list[float | None]:
    """A published row under our columns: tasks, mean and its standard deviation."""
    if line is None:
        return [None] * (len(tasks) + 2)
    by_name: dict[str, float] = dict(zip((*paper.GLUE, "sd"), line))
    return [*(by_name.get(_glue_label(task)) for task in tasks), by_name["mean"], by_name.get("sd")]


def server_tables() -> list[Table]:
    """Tables 5 and 12 as printed: scores of GLUE's server, which alone has the labels of its test sets."""
    made = []
    for name, sampling, lines in (("5", "annealed", paper.TABLE_5), ("12", "proportional", paper.TABLE_12)):
        rows = [[model, method, *line] for (model, method), line in lines.items()]
        note = (
            f"As printed in Table {name}; for scores of your own, send the files of `headwise submit` to the server. "
        )
        note += f"PALs, CA-MTL and adapters: as the paper cites them. {erratum('table 5')}" if name == "5" else ""
        columns = ["model", "method", *paper.GLUE]
        made.append(table(f"Test sets of GLUE, {sampling} sampling", columns, rows, note.strip()))
    return made


def ablation_table(records: Records, model: str) -> Table | None:
    """Table 7: which heads to train, or to prune, in the last tenth."""
    scores = by_method(records, model, "annealed")
    if "multi" not in scores or "iat" not in scores:
        return None
    tasks, rows, published = columns_of(scores["multi"]), [], []
    names = ("multi", "prune least", "random heads", "bottom heads", "iat", "iat, gradients zeroed")
    for name in (*names, "iat, output rows held"):
        if name in scores:
            row = _glue_row(name, scores[name], scores["multi"], tasks)
            alike = None if name == "multi" else records.same_start(model, "annealed", name)
            rows.append([name, *row[-6:], alike])
            line = (
                paper.TABLE_7.get(PUBLISHED_7.get(name, ""), (None, None, None))
                if real(tasks) and of_base(model)
                else [None] * 3
            )
            published.append([None, line[0], line[1], None, None, line[2], None, None])
    columns = ["method", "mean", "sd", "against plain", "p", "tasks better", "seeds", "same start"]
    note = f"{MEAN}; δ = 0.1, α = 0.3; {PAIRED} {START}"
    return table(f"What the last tenth of training moves, {model}", columns, rows, note, published)


def released_table(records: Records, model: str) -> Table | None:
    """From the method as written to the released program, one departure after another; last, dropout off alone."""
    scores = by_method(records, model, "annealed")
    names = ["iat", *(f"released: {name}" for name in RELEASED | CONTROLS)]
    if "multi" not in scores or not any(name in scores for name in names[1:]):
        return None
    tasks = columns_of(scores["multi"])
    means = {name: mean_scores(scores[name], tasks) for name in ("multi", *names) if name in scores}
    rows, before = [], dict[int, float]()
    for name in (name for name in names if name in means):
        mine, step_name = means[name], name.removeprefix("released: ")
        step = (None, None) if step_name in CONTROLS else against(mine, before)
        alike = records.same_start(model, "annealed", name)
        rows.append([step_name, *mean_sd(mine.values()), *against(mine, means["multi"]), *step, len(mine), alike])
        before = mine
    for row, holm in zip(rows, after_holm(row[4] for row in rows)):
        row.insert(5, holm)
    rows[0][0] = "as the paper says" if "iat" in scores else rows[0][0]
    note = (
        f"{MEAN}; {PAIRED} Every row adds one departure from the paper to the row above; the last is the released "
        "program: gradients zeroed (momentum continues), scores per token, last layer undivided, no dropout after "
        "scoring, and the gradients of the scoring pass left in the next update. Dropout off alone: all heads are "
        f"trained on. {START}"
    )
    columns = ["method", "mean", "sd", "against plain", "p", "p (Holm)", "against the row above", "p", "seeds"]
    columns += ["same start"]
    return table(f"The released code step by step, {model}", columns, rows, note)


def unsaid_table(records: Records, model: str) -> Table | None:
    """Plain training and IAT under settings of the released program that the paper does not name."""
    scores = by_method(records, model, "annealed")
    named = [name for name in UNSAID if f"multi: {name}" in scores]
    if "multi" not in scores or not named:
        return None
    tasks, rows = columns_of(scores["multi"]), []
    usual = mean_scores(scores["multi"], tasks)
    for name, plain, held in [("as the paper says", "multi", "iat"), *((n, f"multi: {n}", f"iat: {n}") for n in named)]:
        a, b = (mean_scores(scores.get(method, {}), tasks) for method in (plain, held))
        gap = (None, None) if name == "as the paper says" else against(a, usual)
        rows.append([name, *mean_sd(a.values()), *gap, *mean_sd(b.values()), *against(b, a), len(gaps(b, a))])
    note = f"{MEAN}, annealed sampling; p: paired t tests over seeds, two-sided. Native: BERT's pretrained pooler, or "
    note += (
        "the head of RoBERTa's classifier, under each output layer. Grades: the loss of STS-B on 0 to 5, 25 times as "
    )
    note += "large. Drawn anew: every batch is sampled from all rows."
    columns = ["setting", "plain", "sd", "against plain", "p", "IAT", "sd", "IAT − plain", "p", "seeds"]
    return table(f"Settings of the release, {model}", columns, rows, note)


def clipped(setting: tuple) -> str:
    """At which norm gradients are clipped under a setting."""
    clip = dict(zip(SETTING, setting))["clip"]
    return UNCLIPPED if clip is None else f"{clip:g}"


def condition_table(records: Records, model: str) -> Table | None:
    """When does important-head training help? Plain against IAT under every setting that was tried."""
    rows = []
    for setting, _ in records.usual.get(model, {}).items():
        scores = by_method(records, model, "annealed", setting)
        if "multi" in scores and "iat" in scores:
            tasks = columns_of(scores["multi"])
            base, mine = (mean_scores(scores[name], tasks) for name in ("multi", "iat"))
            said = dict(zip(SETTING, setting))
            rate = [f"{said['lr']:g}", said["schedule"], clipped(setting)]
            shown = [said["max_examples"], *rate, mean_sd(list(base.values()))[0]]
            alike = records.same_start(model, "annealed", "iat", setting)
            rows.append([*shown, *mean_sd(list(mine.values())), *against(mine, base), len(mine), alike])
    rows.sort(key=lambda row: (row[0] or 0, float(row[1]), *row[2:4]))
    columns = ["rows a task", "learning rate", "schedule", "clipped at"]
    columns += ["plain", "IAT", "sd", "difference", "p", "seeds", "same start"]
    note = f"{MEAN}; α = 0.3, δ = 0.1, annealed sampling; p: paired t test over seeds, two-sided. {START}"
    return table(f"IAT under other conditions, {model}", columns, rows, note) if len(rows) > 1 else None


# -- few-shot transfer


def few_shot(records: Records, model: str, averaged: bool = False) -> dict[str, Transfer]:
    """Transfer to each new task, starting points side by side: every draw of rows, or the mean of each model's."""
    parts: dict[str, dict[str, list[Record]]] = {}
    for record in records.of("few_shot"):
        if record.config["model"] == model:
            parts.setdefault(record.config["task"], {}).setdefault(record.config["start"], []).append(record)
    transfers = {}
    for task, starts in parts.items():
        read = [[Transfer.from_record(r.result) for r in rs] for rs in starts.values()]
        joined = [_joined([_averaged(one) for one in parts] if averaged else parts) for parts in read]
        joined.sort(key=lambda one: STARTS.index(one.starts[0]))
        whole = max((one.seeds for one in joined), key=len)
        transfers[task] = Transfer.side_by_side([one for one in joined if one.seeds == whole])
    return transfers


def _averaged(part: Transfer) -> Transfer:
    """One trained model as one seed: its draws of rows are no trainings of their own."""
    return replace(part, seeds=part.seeds[:1], scores=part.scores.mean(-1, keepdims=True))


def _joined(parts: Sequence[Transfer]) -> Transfer:
    """One starting point's seeds in order."""
    columns = {seed: part.scores[:, :, i] for part in parts for i, seed in enumerate(part.seeds)}
    order, first = tuple(sorted(columns)), parts[0]
    scores = np.stack([columns[seed] for seed in order], -1)
    return Transfer(first.task, first.metric, first.starts, first.shots, order, scores, first.examples)


def few_shot_table(records: Records, model: str) -> Table | None:
    """Tables 6 and 8: means, spreads and stars."""
    rows, published = [], []
    trained = few_shot(records, model, averaged=True)
    for task, transferred in few_shot(records, model).items():
        tests = {(t["start"], t["shots"]): t for t in trained[task].against()}
        for i, start in enumerate(transferred.starts):
            for j, shots in enumerate(transferred.shots):
                test = tests.get((start, shots), {})
                gap = None if not test else 100 * test["difference"]
                star = "*" if test.get("star") else ""
                p = [None if test.get(name) != test.get(name) else test.get(name) for name in ("p", "holm")]
                drawn = paired_bootstrap(transferred.scores[i, j], transferred.scores[0, j]).p if i else None
                cells = [100 * transferred.mean[i, j], 100 * transferred.sd[i, j], gap, *p, star, drawn]
                sizes = [len(transferred.seeds), len(trained[task].seeds), transferred.examples]
                rows.append([label(task), shots, start, *cells, *sizes])
                theirs = _table_6(label(task), shots, start) if of_base(model) else [None, None]
                marks = paper.STARS_6 if of_base(model) and start == "iat" else ()
                published.append([None, None, None, *theirs, *[None] * 9])
                rows[-1].insert(9, "*" if (label(task), shots) in marks else "")
    if not rows:
        return None
    columns = ["task", "shots", "start", "mean", "sd", "against multi", "p", "p (Holm)", "", "starred in Table 6"]
    columns += ["p over draws", "draws", "models", "n"]
    note = (
        "In percent. A draw has its own rows, order and new output head, the same for all starting points; sd over "
        "draws. p: one-sided, Student's t over trained models, each the mean of its draws; * where it is below 0.05 "
        "after Holm over the task. p over draws: one-sided, paired bootstrap as published, which treats draws of rows "
        "as independent models. Published: Tables 6 and 8, whose stars are over draws."
    )
    return table(f"Few-shot transfer, {model}", columns, rows, note, published)


def _table_6(task: str, shots: int, start: str) -> list[float | None]:
    if (task, shots) not in paper.FEW_SHOT:
        return [None, None]
    if start in paper.TABLE_6:
        means, sds = paper.TABLE_6[start]
        return [line[paper.FEW_SHOT.index((task, shots))] for line in (means, sds)]
    if start == "random heads" and shots == 4:
        return list(paper.TABLE_8["train random 30 %"][("SciTail", "IMDB").index(task)])
    return [None, None]


def inventory_tables(records: Records) -> list[Table]:
    """Tables 1 and 2: the tasks and models used here, beside the published ones."""
    inventories = records.of("inventory")
    if not inventories:
        return []
    rows, published = [], []
    for name, one in inventories[-1].result["tasks"].items():
        rows.append([label(name), one["classes"], one["metric"], one["train"], one["dev"], one["origin"]])
        theirs = paper.TABLE_1.get(label(name), (None,) * 3)
        published.append([None, theirs[1], None, theirs[2], None, None])
    tasks = table("Tasks", ["task", "classes", "metric", "train", "dev", "from"], rows, "", published)
    rows = [
        [r.config["model"], *(r.result["model"][k] for k in ("layers", "heads", "parameters"))] for r in inventories
    ]
    there = {row[0] for row in rows}
    for model in (model for model in records.models() if model not in there):
        if lesioned := records.five(model):  # without an inventory
            rows.append([model, *lesioned[0].scores(lesioned[0].trained.tasks[0]).shape, None])
    published = [[None, *_table_2(row[0])] for row in rows]
    return [tasks, table("Models", ["model", "layers", "heads a layer", "parameters"], rows, "", published)]


def _table_2(model: str) -> list[float | None]:
    layers, heads, millions = paper.TABLE_2.get(model, (None, None, None))
    return [layers, heads, None if millions is None else 1e6 * millions]
