"""Tables of our own methods: against plain training and IAT, against each other, and over all models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.papers.specialization.records import Records
from headwise.papers.specialization.settings import OWN
from headwise.papers.specialization.training import (
    BEST,
    FIRST,
    MEAN,
    UNCLIPPED,
    Scores,
    Table,
    after_holm,
    against,
    by_method,
    clipped,
    columns_of,
    gaps,
    mean_scores,
)
from headwise.papers.summary import mean_sd, over_seeds, sentence, table

DIRECT = ("multi", "iat", "mt-dnn", *(name for name, settings in OWN.items() if "tied" in settings))


def own_tables(records: Records, model: str) -> list[Table]:
    """Methods of our own against plain training and IAT over all seeds, a table for every setting of the plan."""
    made = []
    for setting, _ in records.usual.get(model, Counter()).most_common():
        scores = by_method(records, model, "annealed", setting)
        names = [name for name in OWN if name in scores]
        if "multi" in scores and names:
            suffix = "" if clipped(setting) == UNCLIPPED else f", gradients clipped at {clipped(setting)}"
            made.append(table(f"Methods of our own{suffix}, {model}", *_own_rows(scores, names)))
    return made


def _own_rows(scores: Mapping[str, Scores], names: Sequence[str]) -> tuple[list[str], list[list[Any]], str]:
    tasks, bases = columns_of(scores["multi"]), ("multi", "iat")
    means = {name: mean_scores(scores[name], tasks) for name in (*bases, *names) if name in scores}
    tests = [against(means[name], means.get(base, {})) for name in names for base in bases]
    level = after_holm(p for _, p in tests)
    rows = {name: [name, *mean_sd(list(one.values())), *[None] * 6, len(one)] for name, one in means.items()}
    if "iat" in rows:
        rows["iat"][3:5] = against(means["iat"], means["multi"])
    for number, name in enumerate(names):
        pair = zip(tests[2 * number : 2 * number + 2], level[2 * number : 2 * number + 2])
        rows[name][3:9] = [value for test, corrected in pair for value in (*test, corrected)]
    columns = ["method", "mean", "sd", "against plain", "p", "p (Holm)", "against IAT", "p", "p (Holm)", "seeds"]
    return columns, list(rows.values()), f"{MEAN}, annealed sampling; paired t tests over seeds, two-sided."


def direct_table(records: Records, model: str) -> Table | None:
    """The best of our own against what it is made of, against the others, and against clipping alone."""
    means: dict[tuple[str, str], dict[int, float]] = {}
    for setting in records.usual.get(model, {}):
        scores = by_method(records, model, "annealed", setting)
        if BEST in scores:
            tasks, clip = columns_of(scores[BEST]), clipped(setting)
            means |= {(name, clip): mean_scores(scores[name], tasks) for name in (BEST, *DIRECT) if name in scores}
    pairs = [(a, b) for a in means for b in means if a[0] == BEST != b[0] and (a[1] == b[1] or b[0] == "multi")]
    tests = [(clip, b, means[name, clip], means[b]) for (name, clip), b in pairs]
    rows = [[clip, *b, *against(mine, other), len(gaps(mine, other))] for clip, b, mine, other in tests]
    columns = ["clipped at", "against", "clipped at", "difference", "p", "seeds"]
    note = f"{MEAN}, annealed sampling; paired t tests over seeds, two-sided, not corrected."
    return table(f"{sentence(BEST)}: direct comparisons, {model}", columns, rows, note) if rows else None


def pooled_table(records: Records) -> Table | None:
    """Methods over all models: every training is set against those of the same model and seed."""
    rows = []
    for clip, means in _pooled(records).items():
        for name, base in ((name, base) for name in means for base in ("multi", "iat") if base in means):
            mine, other = means[name], means[base]
            models = {model for model, _ in mine.keys() & other.keys()}
            if name not in ("multi", base) and (base == "multi" or name in OWN) and len(models) > 1:
                each, test = gaps(mine, other), over_seeds(mine, other)
                above = f"{sum(gap > 0 for gap in each)} of {len(each)}"
                rows.append([name, clip, base, test.value, test.low, test.high, test.p, above, len(models)])  # type: ignore[union-attr]
    for row, holm in zip(rows, after_holm(row[6] for row in rows)):
        row.insert(7, holm)
    columns = ["method", "clipped at", "against", "difference", "low", "high", "p", "p (Holm)", "better in", "models"]
    note = (
        f"{MEAN}, annealed sampling; mean over all trainings of all models that have both, 95 % interval and p by "
        "Student's paired t, two-sided; they hold for these models only. MT-DNN samples proportionally and clips "
        "gradients at 1 in both."
    )
    return table("Methods over all models", columns, rows, note) if rows else None


def _pooled(records: Records) -> dict[str, dict[str, dict[Any, float]]]:
    """By clipping and method the mean score of every model and seed.

    Under the usual settings, and others in which methods of our own were tried; of two that clip alike the commoner.
    """
    made: dict[tuple, dict[str, dict[Any, float]]] = {}
    usual = []
    for model in records.models():
        for place, (setting, _) in enumerate(records.usual.get(model, Counter()).most_common()):
            usual += [] if place else [setting]
            scores = by_method(records, model, "annealed", setting if place else None)  # None has MT-DNN as well
            if "multi" in scores:
                for name in (name for name in FIRST if name in scores):
                    means = mean_scores(scores[name], columns_of(scores["multi"]))
                    pooled = made.setdefault(setting, {}).setdefault(name, {})
                    pooled |= {(model, seed): mean for seed, mean in means.items()}
    order = [setting for setting, _ in sum(records.usual.values(), Counter()).most_common() if setting in made]
    kept: dict[str, dict[str, dict[Any, float]]] = {}
    for setting in (one for one in order if one in usual or made[one].keys() & OWN.keys()):
        kept.setdefault(clipped(setting), made[setting])
    return kept
