"""The page of the study, from its records alone; the numbers of its sentences are computed (no torch)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from examples.language_models import tables
from examples.language_models.tables import CLOSES, Records

from headwise.io.records import Record, Results
from headwise.papers.recipe import Part
from headwise.papers.summary import table
from headwise.probing.figures import heat_maps


class Trained(NamedTuple):
    """What the study of trained models found of one."""

    d: tuple[float, float, float]  # and its interval over seeds
    shared: tuple[float, float]  # the fewest and the most that two tasks share, in percent
    first: tuple[float, float]  # how many top heads lie in the first layer and in the second
    top: int  # number of top heads


COMMAND = """\
python -m examples.language_models --model smollm2-135m=FOLDER --model gemma3-270m=FOLDER --data FOLDER \\
  --out runs/language_models --size medium --device cuda --processes 4
python -m examples.language_models --model gemma3-270m=FOLDER --data FOLDER --out runs/language_models \\
  --size small --device cuda --processes 2 --resume results/language_models.parquet
cp runs/language_models/language_models.parquet results/
python -m examples.language_models --records results/language_models.parquet --pages docs/results"""
TRAINED = {  # from docs/results/specialization.md, on accuracy and with 30 % of heads closed
    "smollm2-135m": Trained((1.00, -2.58, 4.58), (65.43, 86.83), (8.87, 9.00), 81),
    "gemma3-270m": Trained((2.14, -3.22, 7.51), (52.38, 90.48), (1.40, 1.67), 21),
}


class Page:
    """What is said of the two models, as `headwise.papers.pages` takes it."""

    name = "language_models"
    title = "Heads of language models without training"
    paper = (
        "Nothing is trained: tasks are minimal pairs (BLiMP, Warstadt et al. 2020), prompts, questions and copying, "
        "answered by the models' own likelihoods"
    )

    def parts(self, results: Results) -> list[Part]:
        records = Records(results)
        made = [intact(records), lesions(records), apart(records), trained(records), gating(records), wording(records)]
        return [part for part in made if part is not None]


def intact(records: Records) -> Part:
    unlearned = {
        model: [t for t in records.tasks(model) if t not in records.learned(model)] for model in records.models
    }
    said = "; ".join(f"{model}: {', '.join(names) or 'none'}" for model, names in unlearned.items())
    text = (
        "Three groups of BLiMP; three classification tasks asked by prompts, with balanced examples from their "
        "training rows and contextual calibration; questions about short texts in English and Spanish (the likelihood "
        "of each token of the right answer); and copying (the next word of a repeated list). Each seed has its own "
        "wording of the prompts and its own examples. Of a task without training rows, one half serves to score "
        f"heads, the other to evaluate.\n\nNot better than a constant answer, by the 95 % interval: {said}. No claim "
        f"is made about these.\n\n{_sided(records)}"
    )
    return Part("What the models answer", text, [tables.intact_table(records), tables.answers_table(records)])


def _sided(records: Records) -> str:
    """How often prompts get nearly always the same answer."""
    seen, all_ = [], 0
    for model in records.models:
        for record in records.each("intact", model):
            for task, score in record.result.items():
                counts = score.get("answers") or []
                if counts and not task.startswith("blimp") and task != "copying":
                    all_ += 1
                    if max(answered for answered, _ in counts) >= 0.9 * score["n"]:
                        seen.append(f"{task} ({model}, seed {record.config['seed']})")
    few = f": {', '.join(seen)}" if seen else ""
    return f"Of {all_} prompted tasks, {len(seen)} get one answer on 90 % of rows or more{few}; margins say more there."


def lesions(records: Records) -> Part | None:
    made = tables.lesion_tables(records)
    if not made:
        return None
    text = (
        "Each task's top tenth of heads, by the gradient of its loss, is closed, and every task is evaluated. It "
        "matters what a closed head returns: zero, its mean over training rows, or its output on another row "
        "(resample). Gradients always refer to zero. Fraction of a learned task's score that remains without its own "
        f"heads, on average: {_floors(records)}.{_unmeasured(records)}"
    )
    return Part("Closing heads in several ways", text, made)


def _floors(records: Records) -> str:
    said = []
    for model in records.models:
        losses = []
        for close in CLOSES:
            record = records.find("lesions", model, seed=records.first, close=close)
            if record is not None:
                losses.append(f"{close} {_left(record, records.learned(model))}")
        said.append(f"{model}: {', '.join(losses) or 'not measured'}")
    return "; ".join(said)


def _unmeasured(records: Records) -> str:
    """Which tasks have no lesions, though the model was asked."""
    said = []
    for model in records.models:
        record = records.find("lesions", model, seed=records.first, close="zero")
        without = [task for task in records.tasks(model) if record and task not in record.result["tasks"]]
        said += [f" No lesions of {', '.join(without)} were measured in {model}."] * bool(without)
    return "".join(said)


def _left(record: Record, learned: list[str]) -> str:
    """Percent of the whole score under a task's own heads, and under random ones."""
    kept = tables.left(record, learned)
    if kept is None:
        return "of no task"
    own, random, alike = kept
    within = "" if alike is None else f", random heads of the same layers {alike:.0f} %"
    return f"{own:.0f} % (random heads {random:.0f} %{within})"


def apart(records: Records) -> Part | None:
    if not any(records.each("lesions", model) for model in records.models):
        return None
    text = (
        "D is how much more a task loses by its own heads than by another task's, in percent of its whole score. With "
        f"10 % of heads closed, over the tasks that a model has learned: {_verdicts(records)}."
    )
    maps = {
        f"{model}\n{task}": scores / np.nanmax(scores)
        for model in records.models
        for task in records.tasks(model)
        if (scores := records.scores(model, task, records.first)) is not None
    }
    shown = [tables.d_table(records), *tables.task_d_tables(records)]
    return Part("Do tasks dissociate?", text, shown, {"importance by head": partial(heat_maps, maps, columns=5)})


def _verdicts(records: Records) -> str:
    said = []
    for model in records.models:
        cells = []
        for close in CLOSES:
            for record in records.each("lesions", model, close=close):
                tasks, d, p = tables.learned_d(records, record)
                cells.append(
                    f"{close}, seed {record.config['seed']}: {100 * d:.1f} % ({len(tasks)} tasks, {_tested(p)})"
                )
        said.append(f"{model}: {', '.join(cells) or 'not measured'}")
    return "; ".join(said)


def _tested(p: float) -> str:
    return "not tested: fewer than ten random sets" if np.isnan(p) else f"p = {p:.2g}"


def trained(records: Records) -> Part | None:
    """What the study of trained models found, beside this one."""
    rows, same, unlike = [], [], []
    for model in records.models:
        before, record = TRAINED.get(model), records.find("lesions", model, seed=records.first, close="zero")
        if before is None or record is None:
            continue
        _, d, p = tables.learned_d(records, record)
        low, high = before.d[1:]
        if not np.isnan(p):
            (same if (low > 0) == (p < 0.05) else unlike).append(model)
        shared, first, chance = tables.concentration(records, model)
        layers = f"{100 * sum(before.first) / before.top:.0f} (by chance {100 * chance:.0f})"
        rows.append([model, "mean D %", f"{before.d[0]:.1f} [{low:.1f}, {high:.1f}]", f"{100 * d:.1f}, {_tested(p)}"])
        rows.append([model, "top heads in layers 1 and 2, %", layers, f"{first:.0f} (by chance {100 * chance:.0f})"])
        spans = f"{before.shared[0]:.0f} to {before.shared[1]:.0f} (by chance 30)"
        rows.append(
            [model, "top heads two tasks share, %", spans, f"{shared[0]:.0f} to {shared[1]:.0f} (by chance 10)"]
        )
    if not rows:
        return None
    agreed = [f"they agree on D for {', '.join(same)}"] * bool(same) + [f"not for {', '.join(unlike)}"] * bool(unlike)
    text = (
        "The same models [with output heads, trained on MNLI, QQP, QNLI, AG and SST-2](specialization.md), three "
        "seeds and D on accuracy, compared with the models before this training, heads closed to zero. Tasks, metrics "
        "and fractions of heads differ, so only the direction is comparable: whether mean D is above zero (trained: "
        "by the interval over seeds; not trained: by p < 0.05). By this, "
        f"{' and '.join(agreed) or 'nothing can be said'}."
    )
    columns = ["model", "what", "trained, 30 % of heads", "not trained, 10 % of heads"]
    return Part("Compared with trained models", text, [table("With and without training", columns, rows)])


def gating(records: Records) -> Part | None:
    counted = tables.role_counts(records)
    if not counted:
        return None
    text = (
        "Causal head gating (Nam et al. 2025) fits gates on the frozen model twice: pushed open and pushed closed. A "
        "head that stays open when pushed closed facilitates, one that closes when pushed open interferes, and one "
        f"that follows the push is irrelevant. {_roles(records)}"
    )
    maps = {f"{model}\n{task}": (record.arrays["signed"] + 1) / 2 for model, task, _, record in counted}
    figures = {"facilitating and interfering heads": partial(heat_maps, maps, shared=True, columns=5)}
    return Part("Heads that facilitate and interfere", text, [tables.role_table(records)], figures)


def _roles(records: Records) -> str:
    said = []
    for model in records.models:
        counts = [counts for name, _, counts, _ in tables.role_counts(records) if name == model]
        if counts:
            total = sum(counts[0].values())
            means = {role: float(np.mean([each[role] for each in counts])) for role in counts[0]}
            words = {"facilitates": "facilitate", "irrelevant": "are irrelevant", "interferes": "interfere"}
            listed = ", ".join(f"{means[role]:.0f} {word}" for role, word in words.items())
            of = f" (of {len(counts)} of {len(records.tasks(model))} tasks)"
            said.append(
                f"{model}{of * (len(counts) < len(records.tasks(model)))}: of {total} heads on average {listed}"
            )
    return f"{'; '.join(said)}. The maps show (signed + 1) / 2: light heads facilitate, dark heads interfere."


def wording(records: Records) -> Part | None:
    said, shown = [], tables.overlap_table(records)
    for model in records.models:
        rows = [row for row in shown["rows"] if row[0] == model and row[3] is not None]
        if rows:
            alike, others = (float(np.mean([row[place] for row in rows])) for place in (3, 4))
            said.append(f"{model}: {alike:.0f} % with another wording, {others:.0f} % with another task")
    words = f"Overlap of a prompted task's top heads: {'; '.join(said)}." if said else "One seed only."
    return Part("Do other wordings need other heads?", words, [shown]) if shown["rows"] else None
