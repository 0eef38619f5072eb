"""The stages of a study as one table, and the settings they read.

Verbs are imported where a stage runs, so that the table opens without torch: the command line reads its names, titles
and settings from here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError, unknown
from headwise.training.plan import Plan, check_fields

if TYPE_CHECKING:
    import torch

    from headwise.measuring.evaluate import Score
    from headwise.scoring.importance import Importance
    from headwise.study.study import Study

Data = dict[str, Any]  # a study so far, `headwise.study.schema.StudyData` when all stages are done
RANGES = (
    ("alpha delta", lambda v: 0 < v <= 1, "a fraction above 0, up to 1"),
    ("fractions prune", lambda v: 0 <= v <= 1, "fractions from 0 to 1"),
    ("examples dev probe_rows max_length", lambda v: v > 0, "a number above 0"),
    ("random matched roles", lambda v: v >= 0, "0 or more"),
)


@dataclass(frozen=True)
class Settings:
    """What a study does; every field is a flag of ``headwise study`` and a key of its config file."""

    plan: Plan = field(default_factory=Plan)
    alpha: float = 0.3
    """Fraction of heads that count as a task's own."""
    delta: float = 0.1
    """Final fraction of training in which IAT freezes the other heads."""
    by: str = "gradient"
    """Importance estimator."""
    examples: int = 10_000
    """Training examples for importance."""
    fractions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
    """Fractions of heads to ablate, beside alpha."""
    close: tuple[str, ...] = ("zero",)
    """What ablated heads return: zero, mean, resample (another example's output) or optimal; several are compared."""
    random: int | None = None
    """Random head sets per fraction that D is tested against (default: 20 or more, by the number of tasks)."""
    matched: int | None = None
    """Random head sets with each task's number of heads per layer, at alpha (default: 20 or more)."""
    dev: int | None = None
    """Development rows per task (default: all)."""
    probes: tuple[str, ...] = ()
    """Properties to probe every head for."""
    probe_rows: int = 4000
    """Training rows of each probe."""
    roles: int = 0
    """Training texts per task to measure the roles of heads on (0: no roles)."""
    prune: tuple[float, ...] = (0.1, 0.3, 0.5)
    """Fractions of the least important heads to try pruning."""
    skip: tuple[str, ...] = ()
    """Stages to skip."""
    pooling: str | None = None
    """How tokens become one vector per text: cls, mean or last (default: last for causal models, else cls)."""
    max_length: int | None = None
    """Longest input in sub-words (default: 128, or the context of a language model)."""

    def __post_init__(self) -> None:
        from headwise.measuring.references import CLOSE
        from headwise.probing.splits import to_probe
        from headwise.scoring.importance import estimators

        if isinstance(self.close, str):
            object.__setattr__(self, "close", (self.close,))
        check_fields(self, RANGES)
        if not self.close:
            raise HeadwiseError("no value for close", "one or more of: " + ", ".join(CLOSE))
        for name in self.close:
            if name not in CLOSE:
                raise unknown("reference of closed heads", name, CLOSE)
        for name in self.skip:
            if name not in STAGES:
                raise unknown("stage", name, STAGES)
            if not STAGES[name].skippable:
                raise HeadwiseError(f"cannot skip {name!r}: later stages and the report depend on it")
        _ = estimators[self.by]  # refused before training, not after it
        _ = [to_probe(name) for name in self.probes]


@dataclass(frozen=True)
class Stage:
    """One step of a study: what it adds to the data, and from which earlier stages."""

    name: str
    """The name that ``--skip`` takes."""
    title: str
    """The title shown in a terminal."""
    run: Callable[[Study, Data], Data]
    needs: tuple[str, ...] = ()
    """The stage is skipped if one of these did not run."""
    reads: tuple[str, ...] = ()
    """Settings that only this stage reads."""
    wanted: Callable[[Settings], bool] = lambda settings: True
    """Whether the settings give it anything to do."""
    skippable: bool = True
    may_fail: bool = True
    """Whether the study continues without this part if the stage fails; otherwise it stops."""

    def asked(self, settings: Settings) -> bool:
        """Whether the settings ask for this stage."""
        return self.name not in settings.skip and self.wanted(settings)

    def missing(self, settings: Settings) -> list[str]:
        """Required stages that are skipped."""
        return [name for name in self.needs if name in settings.skip]


STAGES: dict[str, Stage] = {}  # in the order in which they run


def stage(name: str, title: str, **details: Any) -> Callable[[Callable[[Study, Data], Data]], Stage]:
    """Add a stage to the table."""

    def add(run: Callable[[Study, Data], Data]) -> Stage:
        return STAGES.setdefault(name, Stage(name, title, run, **details))

    return add


@stage("train", "Train the tasks together", may_fail=False)
def train(study: Study, data: Data) -> Data:
    """Train the tasks together, keeping a checkpoint where IAT will branch off."""
    from headwise.io.identity import checkpoint

    def work() -> Data:
        history = study.train()
        result = {"curves": history.curves(), "steps": history.steps, "seconds": round(history.seconds, 1)}
        return result | {"planned": history.planned, "weights": checkpoint(study.out / "model")}

    result = study.recorded("train", {}, work)
    if checkpoint(study.out / "model") != result["weights"]:  # another training has replaced it since
        study.train()
        if checkpoint(study.out / "model") != result["weights"]:  # trained again, without its checkpoints
            seen = f"training again in {study.out} gave other weights than its records were measured on"
            raise HeadwiseError(seen, "the model or the checkpoints of that training", "name another --out")
    study.model = study.saved_model("model")
    study.log(f"{result['steps']} steps in {result['seconds']:.0f} s")
    return {"training": {"tasks": result["curves"]}}


@stage("importance", "Score every head for every task", skippable=False, may_fail=False)
def importance(study: Study, data: Data) -> Data:
    """Each task's intact score, the importance of every head for it, and how stable its head set is."""
    from headwise.heads.selection import top
    from headwise.study.evidence import chances_of, stability_of

    alpha, scores = study.settings.alpha, _intact(study)
    importances, stability = {}, {}
    for task in study.tasks:
        config = {"task": task, "by": study.settings.by, "examples": study.settings.examples}
        record = study.recorded("importance", config, lambda task=task: _scored(study, task))
        result = _importance_of(task, record)
        mask = top(result.scores, alpha)
        importances[task] = result.to_record() | {"top_probability": chances_of(result.blocks, alpha)}
        stability[task] = stability_of(result, alpha)
        study.log(f"{task}: {int(mask.sum())} heads, per layer {' '.join(map(str, mask.sum(1).tolist()))}")
    return {"importance": importances, "scores": scores, "trust": {"stability": stability}}


def _intact(study: Study) -> Data:
    """Every task's score with all heads, and whether the task was learned."""
    from headwise.measuring.evaluate import evaluate
    from headwise.study.evidence import against_baseline

    dev = study.settings.dev

    def work() -> Data:
        intact = {task: evaluate(study.model, task, limit=dev) for task in study.tasks}
        return {task: against_baseline(score) | _answers(study, score) for task, score in intact.items()}

    scores = study.recorded("scores", {"dev": dev}, work)
    for task in (task for task, score in scores.items() if not score["learned"]):
        study.log(f"{task} was not learned: not significantly better than a constant answer")
    return scores


def _answers(study: Study, score: Score) -> Data:
    """How often each class was predicted, and how often correctly, by name."""
    labels = study.model.tasks[score.task].kind.labels
    named = {labels[i] if i < len(labels) > 1 else str(i): counts for i, counts in score.answers.items()}
    return {"answers": named} if named else {}


def _scored(study: Study, task: str) -> Data:
    from headwise.scoring.importance import importance as measure

    result = measure(study.model, task, study.settings.by, examples=study.settings.examples)
    return result.to_record() | {"blocks": result.blocks.to_record()}


def _importance_of(task: str, record: Mapping[str, Any]) -> Importance:
    import torch

    from headwise.scoring.importance import Importance
    from headwise.scoring.stability import Blocks

    scores, stderr = (torch.tensor(record[name]) for name in ("scores", "stderr"))
    signed = {name: torch.tensor(record[name]) for name in ("signed", "signed_stderr") if name in record}
    return Importance(task, record["by"], scores, stderr, record["examples"], Blocks.of(record["blocks"]), **signed)


def _head_scores(data: Data) -> dict[str, torch.Tensor]:
    import torch

    return {task: torch.tensor(entry["scores"], dtype=torch.float32) for task, entry in data["importance"].items()}


@stage(
    "lesions",
    "Ablate head sets, measure every task",
    needs=("importance",),
    reads=("fractions", "close", "random", "matched"),
)
def lesions(study: Study, data: Data) -> Data:
    """Ablate each task's heads and random ones, and measure every task."""
    from headwise.study.evidence import lesioned

    return lesioned(study, data, _head_scores(data))


@stage("attention", "Describe where heads attend")
def attention(study: Study, data: Data) -> Data:
    """Where heads attend, over a few development texts."""
    from headwise.heads.attention import attention_patterns
    from headwise.io.files import digest

    rows = [row for task in study.model.tasks.values() for row in task.rows("dev")[:40]]
    texts = [row["text"] for row in rows if isinstance(row.get("text"), str)]
    if not texts:
        return {}

    def work() -> Data:
        patterns, examples = attention_patterns(study.model, texts).to_record()
        return {"attention": patterns, "examples": examples}

    return study.recorded("attention", {"texts": digest(texts)}, work)


@stage("probes", "Probe what each head encodes", reads=("probes", "probe_rows"), wanted=lambda s: bool(s.probes))
def probes(study: Study, data: Data) -> Data:
    """What each head encodes."""
    from headwise.io.identity import data as data_hash
    from headwise.probing import probe
    from headwise.probing.measure import best_head
    from headwise.probing.splits import to_probe

    results = {}
    for name in study.settings.probes:
        task, rows = to_probe(name), study.settings.probe_rows
        config = {"probe": name, "rows": data_hash(task, task.splits), "limit": rows}
        work = lambda task=task, rows=rows: probe(study.model, task, limit=rows).to_record()  # noqa: E731
        record = study.recorded("probe", config, work)
        results[name] = {key: record[key] for key in ("accuracy", "chance", "metric")}
        layer, head, best = best_head(record)
        study.log(f"{name}: best head {layer}.{head}, {100 * best:.1f}; chance {100 * record['chance']:.1f}")
    return {"probes": results}


@stage("roles", "Measure what each head does", reads=("roles",), wanted=lambda s: s.roles > 0)
def roles(study: Study, data: Data) -> Data:
    """The roles of heads; ``roles.json`` has every score, ``atlas.json`` what the atlas page shows."""
    from headwise.study.evidence import roles_of

    return roles_of(study, data, _head_scores(data))


@stage("iat", "Important-head training against plain", needs=("train",), reads=("delta",))
def iat(study: Study, data: Data) -> Data:
    """The same training with important-head training in its last part, against plain."""
    s = study.settings
    if not study.heads.exact:
        study.log(f"skipped: {study.heads.family} has no verified slices")
        return {}
    config = {"alpha": s.alpha, "delta": s.delta, "by": s.by, "examples": s.examples, "dev": s.dev}
    return {"iat": study.recorded("iat", config, lambda: _iat(study, study.folder("iat", config)))}


def _iat(study: Study, out: Path) -> Data:
    from headwise.measuring.evaluate import evaluate
    from headwise.training.methods.iat import IAT

    s, branch = study.settings, study.branch()
    plain = {task: evaluate(study.model, task, limit=s.dev) for task in study.tasks}
    other = study.saved_model("model") if branch else study.load(list(study.model.tasks.values()))
    method = IAT(s.alpha, s.delta, by=s.by, examples=s.examples)
    study.fit(other, out, method=method, branch=branch)
    other.save_pretrained(out / "model")
    rows = [_compared(plain[task], evaluate(other, task, limit=s.dev)) for task in study.tasks]
    described = f"α = {s.alpha}, δ = {s.delta}, {s.by}, freeze update. One training each; intervals are over examples."
    return {"rows": rows, "settings": described}


def _compared(plain: Score, other: Score) -> Data:
    """IAT against plain on the same examples; the interval and p-value are of this task alone."""
    from headwise.measuring.evaluate import difference

    change = difference(other, plain)
    row = {"task": plain.task, "metric": plain.metric, "plain": plain.value, "iat": other.value}
    return row | {"low": change.low, "high": change.high, "p": change.p}


@stage("prune", "Find what can be pruned", needs=("importance",), reads=("prune",))
def prune(study: Study, data: Data) -> Data:
    """What pruning the least important heads costs and gains; the largest cheap cut is saved to ``small``."""
    from headwise.io.identity import data as data_hash
    from headwise.pruning.cost import trials

    s, scores = study.settings, _head_scores(data)
    config: Data = {"fractions": s.prune, "by": s.by, "examples": s.examples, "dev": s.dev}
    tested = {name: task for name, task in study.model.tasks.items() if "test" in task.splits}
    config |= {"test": {name: data_hash(task, ("test",)) for name, task in tested.items()}} if tested else {}
    learned = [task for task, score in data["scores"].items() if score["learned"]] or None
    result = study.recorded("prune", config, lambda: trials(study.model, scores, s.prune, s.dev, learned))
    chosen = next((row for row in result["rows"] if row["fraction"] == result["chosen"] and learned), None)
    _save_small(study, scores, chosen, result["rows"])
    return {"prune": result if learned else result | {"chosen": None, "held out": {}}}


def _save_small(study: Study, scores: dict[str, torch.Tensor], chosen: Data | None, rows: Sequence[Data]) -> None:
    from headwise.pruning.cost import export_small

    small, heads = study.out / "small", rows[0]["kept"]
    if chosen and study.heads.cuttable:
        path = export_small(study.model, scores, chosen["fraction"], small)
        study.log(f"{heads - chosen['kept']} of {heads} heads pruned: {path}")
    elif small.exists():
        shutil.rmtree(small.resolve())  # pruned with other settings
