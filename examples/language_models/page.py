"""The page of the study, from its records alone; the numbers of its sentences are computed (no torch)."""

from __future__ import annotations

from functools import partial

import numpy as np
from examples.language_models import tables
from examples.language_models.tables import CLOSES, Records

from headwise.io.records import Results
from headwise.papers.recipe import Part
from headwise.probing.figures import heat_maps

COMMAND = """\
python -m examples.language_models --model smollm2-135m=FOLDER --model gemma3-270m=FOLDER --data FOLDER \\
  --out runs/language_models --size medium full --device cuda --processes 4
cp runs/language_models/language_models.parquet results/
python -m examples.language_models --records results/language_models.parquet --pages docs/results"""
TRAINED = (  # of results/specialization: mean D of five tasks, trained together, 30 % of heads closed
    "[Trained with an output head for each task](specialization.md), the tasks of smollm2-135m share most of their top "
    "heads, and those of gemma3-270m come apart with 10 and 20 % of heads closed."
)


class Page:
    """What is said of the two models, as `headwise.papers.pages` takes it."""

    name = "language_models"
    title = "Heads of language models as they are"
    paper = (
        "Nothing is trained: tasks are minimal pairs (BLiMP, Warstadt et al. 2020), prompts, questions and copying, "
        "answered by the models' own likelihoods"
    )

    def parts(self, results: Results) -> list[Part]:
        records = Records(results)
        made = [intact(records), lesions(records), apart(records), gating(records), wording(records)]
        return [part for part in made if part is not None]


def intact(records: Records) -> Part:
    unlearned = {
        model: [t for t in records.tasks(model) if t not in records.learned(model)] for model in records.models
    }
    said = "; ".join(f"{model}: {', '.join(names) or 'none'}" for model, names in unlearned.items())
    text = (
        "Three groups of BLiMP, three classification tasks asked by prompts with balanced examples from their training "
        "rows and contextual calibration, questions about short texts in English and Spanish (how likely is each token "
        "of the right answer), and copying (which word follows in a list that begins again). Each seed has its own "
        "wording of the prompts and its own examples. "
        "The halves of a task without training rows serve for scores and for measures.\n\n"
        f"Not better than a constant answer, by the 95 % interval: {said}. Nothing is claimed about these.\n\n"
        f"{_sided(records)}"
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
    return (
        f"Of {all_} prompted tasks {len(seen)} get one answer on nine rows of ten or more{few}. Margins say more there."
    )


def lesions(records: Records) -> Part | None:
    made = tables.lesion_tables(records)
    if not made:
        return None
    text = (
        "Each task's top tenth of heads, by the gradient of its loss, is closed, and every task is measured. What a "
        "closed head returns matters: zero, its mean over training rows, or what it returns on another row (resample). "
        f"{_floors(records)}"
    )
    return Part("Closing heads in three ways", text, made)


def _floors(records: Records) -> str:
    said = []
    for model in records.models:
        losses = []
        for close in CLOSES:
            record = records.find("lesions", model, seed=records.first, close=close)
            if record is not None:
                rows = tables.lesion_rows(records, model, close, record.result["default"])
                own = [row[1 + i] / row[0] for i, row in enumerate(rows.values()) if row[0] > 0]
                random = [row[-1] / row[0] for row in rows.values() if row[0] > 0]
                losses.append(f"{close} {100 * np.mean(own):.0f} % (random heads {100 * np.mean(random):.0f} %)")
        said.append(f"{model}: {', '.join(losses)}")
    return f"What is left of a task's score without its own heads, on average: {'; '.join(said)}."


def apart(records: Records) -> Part | None:
    if not any(records.each("lesions", model) for model in records.models):
        return None
    text = (
        "D is how much more a task loses by its own heads than by another task's, in percent of its whole score. "
        f"{_verdicts(records)}\n\n{TRAINED}"
    )
    maps = {
        f"{model}\n{task}": scores / np.nanmax(scores)
        for model in records.models
        for task in records.tasks(model)
        if (scores := records.scores(model, task, records.first)) is not None
    }
    shown = [tables.d_table(records), tables.task_d_table(records)]
    return Part("Do tasks come apart?", text, shown, {"importance by head": partial(heat_maps, maps, columns=5)})


def _verdicts(records: Records) -> str:
    said = []
    for model in records.models:
        cells = []
        for close in CLOSES:
            for record in records.each("lesions", model, close=close):
                entry = next(e for e in record.result["D"] if e["fraction"] == record.result["default"])
                mean = entry["mean"]
                p = "not tested" if mean["p"] is None else f"p = {mean['p']:.2g}"
                seed = record.config["seed"]
                cells.append(f"{close}, seed {seed}: {100 * mean['value']:.1f} % ({p})")
        said.append(f"{model}: {'; '.join(cells)}")
    return f"With 10 % of heads closed, over all tasks. {'. '.join(said)}."


def gating(records: Records) -> Part | None:
    found = tables.role_counts(records)
    if not found:
        return None
    text = (
        "Causal head gating (Nam et al. 2025) fits gates on the frozen model twice: pushed open and pushed closed. A "
        "head that stays open though pushed closed facilitates, one that closes though pushed open interferes, and "
        f"one that follows the push is irrelevant. {_roles(records)}"
    )
    maps = {f"{model}\n{task}": (record.arrays["signed"] + 1) / 2 for model, task, _, record in found}
    figures = {"facilitating and interfering heads": partial(heat_maps, maps, shared=True, columns=5)}
    return Part("Heads that facilitate and interfere", text, [tables.role_table(records)], figures)


def _roles(records: Records) -> str:
    said = []
    for model in records.models:
        counts = [counts for name, _, counts, _ in tables.role_counts(records) if name == model]
        if counts:
            total = sum(counts[0].values())
            means = {role: float(np.mean([each[role] for each in counts])) for role in counts[0]}
            listed = ", ".join(f"{mean:.0f} {role}" for role, mean in means.items())
            said.append(f"{model}: of {total} heads on average {listed}")
    return f"{'; '.join(said)}. The maps show (signed + 1) / 2: dark facilitates, light interferes."


def wording(records: Records) -> Part:
    said = []
    table = tables.overlap_table(records)
    for model in records.models:
        rows = [row for row in table["rows"] if row[0] == model and row[3] is not None]
        if rows:
            alike, others = (float(np.mean([row[place] for row in rows])) for place in (3, 4))
            said.append(f"{model}: {alike:.0f} % with another wording, {others:.0f} % with another task")
    words = f"What a prompted task's top heads share: {'; '.join(said)}." if said else "One seed only."
    return Part("Do other words need other heads?", words, [table])
