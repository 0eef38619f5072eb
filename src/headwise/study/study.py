"""The main job: model and tasks in; training, importance, lesions, IAT and pruning; a page and a verdict out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from headwise.dissociation.lesions import dissociate
from headwise.errors import HeadwiseError, unknown
from headwise.heads.attention import attention_patterns
from headwise.heads.gates import Heads
from headwise.heads.selection import budget, require_share, top
from headwise.io.files import digest, finite, require_replaceable, write_json
from headwise.io.identity import checkpoint as checkpoint_hash
from headwise.io.identity import data, identity
from headwise.io.progress import Progress, quiet
from headwise.io.records import Results
from headwise.measuring.baseline import against_baseline
from headwise.measuring.evaluate import Score, difference, evaluate
from headwise.models.folders import is_trained
from headwise.models.loading import load_encoder, name_of
from headwise.models.multitask import MultiTaskModel
from headwise.probing.splits import to_probe
from headwise.pruning.cost import export_small, trials
from headwise.reporting import report
from headwise.reporting.verdict import verdict, withheld
from headwise.scoring.importance import Importance, estimators, importance
from headwise.scoring.stability import Blocks
from headwise.study.heading import heading
from headwise.study.trust import chances_of, stability_of, trust_of, withheld_of
from headwise.tasks.leakage import splits_of
from headwise.tasks.task import Task
from headwise.training import checkpoint
from headwise.training.history import History
from headwise.training.loop import fit
from headwise.training.methods.iat import IAT
from headwise.training.plan import Plan

STAGES = ("train", "importance", "lesions", "looks", "probes", "iat", "prune")
Told = Callable[[str, str], None]  # (stage or "", line)


@dataclass(frozen=True)
class Settings:
    """What a study does; every field has a flag of the same name."""

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
    """Fractions of heads to ablate, alpha among them; the page's slider moves over them."""
    random: int | None = None
    """Random head sets per fraction, which D is tested against (default: 20 or more, by the number of tasks)."""
    matched: int | None = None
    """Random head sets with each task's number of heads per layer, at alpha (default: 20 or more)."""
    dev: int | None = None
    """Development rows per task (default: all)."""
    probes: tuple[str, ...] = ()
    """Properties to probe every head for."""
    probe_rows: int = 4000
    """Training rows of a probe."""
    prune: tuple[float, ...] = (0.1, 0.3, 0.5)
    """Fractions of the least important heads to try pruning."""
    skip: tuple[str, ...] = ()
    """Stages to skip."""
    pooling: str | None = None
    """How to pool tokens into the text's vector (default: last token for decoders, first otherwise)."""
    max_length: int = 128

    def __post_init__(self) -> None:
        for stage in self.skip:
            if stage not in STAGES:
                raise unknown("stage", stage, STAGES)
        if "importance" in self.skip:
            raise HeadwiseError("cannot skip 'importance': later stages and the report depend on it")
        for name, share in (("alpha", self.alpha), ("delta", self.delta)):
            if not 0 < share <= 1:
                raise HeadwiseError(f"{name}={share}", "a fraction above 0, up to 1")
        _ = estimators[self.by]  # an unknown one is told before training, not after
        _ = [to_probe(name) for name in self.probes]


class Study:
    """One study in a folder: stages that are done are read back, not run again."""

    def __init__(
        self,
        model: str | Path,
        tasks: Sequence[Task],
        settings: Settings,
        out: str | Path,
        told: Told = lambda stage, line: None,
        progress: Progress | None = None,
        device: str | None = None,
        called: str = "",
    ):
        """``called`` is the model's name on the page, where its folder's says nothing."""
        if len(tasks) < 2:
            raise HeadwiseError(f"{len(tasks)} task", "two tasks or more", "--tasks sst2,qnli")
        self.name, self.settings, self.out = str(model), settings, Path(out)
        require_replaceable(self.out / "model")
        self.told, self.progress, self.device = told, progress or quiet(), device
        self.command = ""  # what was typed, for the page
        self.errors: dict[str, Exception] = {}  # of late stages that failed
        self.called = called or name_of(self.name)
        self.model = self._load(tasks)
        self.heads = Heads.of(self.model.encoder)
        require_share(settings.alpha, self.heads.alive)
        self.settings = self._of_living(self.settings)
        self.records = Results(self.out / "records")
        parts = {"model": self.model, "form": self.model.form, "tokenizer": self.model.tokenizer}
        parts |= {"data": {task.name: task for task in tasks}, "plan": self.settings.plan}
        self.base = identity({**parts, "trained": "train" not in settings.skip})

    def _of_living(self, settings: Settings) -> Settings:
        """Without the shares that a model which has lost heads has not."""
        count, living = self.heads.alive.numel(), int(self.heads.alive.sum())
        shares = {name: getattr(settings, name) for name in ("fractions", "prune")}
        there = {name: tuple(f for f in all_ if budget(f, count) <= living) for name, all_ in shares.items()}
        if there != shares:
            self.told("", f"{living} of {count} heads are there: larger shares are neither closed nor cut")
        return replace(settings, **there)

    def _load(self, tasks: Sequence[Task]) -> MultiTaskModel:
        s = self.settings
        if is_trained(self.name):  # goes on from there
            model = self._trained(tasks)
            self.settings = replace(s, pooling=model.pooling, max_length=model.max_length)
            if self.settings != replace(s, pooling=s.pooling or model.pooling):
                self.told("", f"as the model was trained: pooling {model.pooling}, max length {model.max_length}")
            return model
        encoder, tokenizer = load_encoder(self.name)
        torch.manual_seed(s.plan.seed)  # output heads start from the plan's seed
        model = MultiTaskModel(encoder, tokenizer, tasks, s.pooling, max_length=s.max_length)
        self.settings = replace(s, pooling=model.pooling)
        return model

    def _trained(self, tasks: Sequence[Task]) -> MultiTaskModel:
        """A trained model with the tasks asked for, all of which it has where training does not go on."""
        if "train" not in self.settings.skip:
            return MultiTaskModel.continued(self.name, tasks, seed=self.settings.plan.seed)
        model = MultiTaskModel.load(self.name, tasks, only=[task.name for task in tasks])
        if new := [task.name for task in tasks if task.name not in model.tasks]:
            seen = f"{self.name} was not trained for {new[0]!r}"
            raise HeadwiseError(seen, "tasks of this model", "training too: no --skip train")
        return model

    @property
    def tasks(self) -> list[str]:
        return list(self.model.tasks)

    def run(self) -> dict[str, Any]:
        """All stages; returns the study as plain data and writes ``study.json`` and ``report.html``."""
        study, self.errors = self._head(), {}
        if not self.base["trained"] and not is_trained(self.name):
            self.told("", "not trained: output heads are random, so scores are too")
        for stage in STAGES:
            if stage in self.settings.skip or (stage == "probes" and not self.settings.probes):
                continue
            self.told(stage, "")
            self._run_stage(stage, study)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # other runs may share the device
        study["withheld"] = withheld_of(study, self.settings.alpha)
        study["trust"] |= trust_of(study, list(self.model.tasks.values()))
        study["verdict"] = verdict(study, self.settings.alpha)
        study["withheld"] = withheld(study)
        study = finite(study)
        write_json(self.out / "study.json", study)
        report(study, self.out / "report.html")
        return study

    def _run_stage(self, stage: str, study: dict[str, Any]) -> None:
        """Add a stage's results; a late stage that fails leaves its message in their place."""
        try:
            study |= getattr(self, f"stage_{stage}")(study)
        except Exception as error:
            if stage in ("train", "importance"):
                raise
            self.errors[stage] = error
            line = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            study.setdefault("failed", {})[stage] = line
            self.told("", f"failed: {line}")

    def _head(self) -> dict[str, Any]:
        trained = self.base["trained"]
        head = heading(self.model, self.called, self.settings, trained)
        hashes = {"model": self.base["model"], **self.base["data"]}
        head["reproduce"] = {"command": self.command, **head["reproduce"], "hashes": hashes}
        return head

    def _kept(self, kind: str, config: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A stage's result, from the records where it was made before."""
        full = {**self.base, **config}
        found = self.records.find(kind, full)
        if found is None:
            self.records.save(kind, full, make())
            found = self.records.find(kind, full)
        else:
            self.told("", "already done, read back")
        assert found is not None
        return found.result

    def _home(self, kind: str, config: Mapping[str, Any]) -> Path:
        """The folder of a training: one for each setting, so that changed settings never meet old checkpoints."""
        return self.out / kind / self.records.key(kind, {**self.base, **config})[:8]

    def stage_train(self, study: dict) -> dict[str, Any]:
        """Train the tasks together, keeping a checkpoint where IAT will branch off."""

        def make() -> dict[str, Any]:
            history = self._train()
            done = {"curves": history.curves(), "steps": history.steps, "seconds": round(history.seconds, 1)}
            return done | {"weights": checkpoint_hash(self.out / "model")}

        done = self._kept("train", {}, make)
        if checkpoint_hash(self.out / "model") != done["weights"]:  # a training with other settings came after
            self._train()
        self.model = self._read_back("model")
        self.told("", f"{done['steps']} steps in {done['seconds']:.0f} s")
        return {"training": {"tasks": done["curves"]}}

    def _train(self) -> History:
        """Train, or take up the last checkpoint of the same training."""
        s, home = self.settings, self._home("train", {"delta": self.settings.delta})
        history = fit(self.model, s.plan, out=home, device=self.device, progress=self.progress, marks=[s.delta])
        self.model.save_pretrained(self.out / "model")
        return history

    def _read_back(self, name: str) -> MultiTaskModel:
        model = MultiTaskModel.load(self.out / name, self.model.tasks.values())
        return model.to(self.model.device)

    def _branch_step(self) -> int:
        from headwise.training.loop import Run, branch_step
        from headwise.training.methods.method import Method

        with closing(Run(self.model, self.settings.plan, Method(), None, self.device)) as run:
            return branch_step(run.total, self.settings.delta)

    def stage_importance(self, study: dict) -> dict[str, Any]:
        """Score every head for every task."""
        found, stable, alpha, scores = {}, {}, self.settings.alpha, self._intact()
        for task in self.tasks:
            config = {"task": task, "by": self.settings.by, "examples": self.settings.examples}
            done = _importance_of(task, self._kept("importance", config, lambda task=task: self._importance(task)))
            best = top(done.scores, alpha)
            found[task] = done.to_record() | {"top_probability": chances_of(done.blocks, alpha)}
            stable[task] = stability_of(done, alpha)
            self.told("", f"{task}: {int(best.sum())} heads, per layer {' '.join(map(str, best.sum(1).tolist()))}")
        return {"importance": found, "scores": scores, "trust": {"stability": stable}}

    def _intact(self) -> dict[str, Any]:
        """Every task's score with all heads, and whether the task was learned."""
        dev = self.settings.dev

        def make() -> dict[str, Any]:
            return {task: against_baseline(evaluate(self.model, task, limit=dev)) for task in self.tasks}

        scores = self._kept("scores", {"dev": dev}, make)
        for task in (task for task, score in scores.items() if not score["learned"]):
            self.told("", f"{task} was not learned: not significantly better than a constant answer")
        return scores

    def _importance(self, task: str) -> dict[str, Any]:
        done = importance(self.model, task, self.settings.by, examples=self.settings.examples)
        return done.to_record() | {"blocks": done.blocks.to_record()}

    def _scores(self, study: dict) -> dict[str, torch.Tensor]:
        return {task: torch.tensor(found["scores"], dtype=torch.float32) for task, found in study["importance"].items()}

    def stage_lesions(self, study: dict) -> dict[str, Any]:
        """Ablate each task's heads and random ones, and measure every task."""
        s = self.settings
        shares = s.fractions if s.alpha in s.fractions else tuple(sorted((*s.fractions, s.alpha)))
        config = {"by": s.by, "examples": s.examples, "fractions": shares, "alpha": s.alpha, "dev": s.dev}
        config |= {"random": s.random, "matched": s.matched}

        def make() -> dict[str, Any]:
            told = lambda line: self.told("", line)  # noqa: E731
            how = {"random": s.random, "matched": s.matched, "alpha": s.alpha, "limit": s.dev, "undefined": "leave"}
            return dissociate(self.model, self._scores(study), shares, told=told, **how).to_record()

        found = self._kept("dissociation", config, make)
        return {"dissociation": found | {"default": s.alpha}}  # what the verdict, trust and the page start from

    def stage_looks(self, study: dict) -> dict[str, Any]:
        """Where heads look, over a few development texts."""
        texts = [
            row["text"]
            for t in self.model.tasks.values()
            for row in t.rows("dev")[:40]
            if isinstance(row.get("text"), str)
        ]
        if not texts:
            return {}

        def make() -> dict[str, Any]:
            stats, examples = attention_patterns(self.model, texts).to_record()
            return {"attention": stats, "examples": examples}

        return self._kept("looks", {"texts": digest(texts)}, make)

    def stage_probes(self, study: dict) -> dict[str, Any]:
        """What each head encodes."""
        from headwise.probing import probe
        from headwise.probing.measure import best_head

        found = {}
        for name in self.settings.probes:
            task, rows = to_probe(name), self.settings.probe_rows
            config = {"probe": name, "rows": data(task, splits_of(task)), "limit": rows}
            made = self._kept("probe", config, lambda t=task, n=rows: probe(self.model, t, limit=n).to_record())
            found[name] = {key: made[key] for key in ("accuracy", "chance", "metric")}
            layer, head, best = best_head(made)
            self.told("", f"{name}: best head {layer}.{head}, {100 * best:.1f}; chance {100 * made['chance']:.1f}")
        return {"probes": found}

    def stage_iat(self, study: dict) -> dict[str, Any]:
        """The same training with important-head training in its last part, against plain."""
        s = self.settings
        if not self.heads.exact or not self.base["trained"]:
            why = "no training in this study" if self.heads.exact else f"{self.heads.family} has no verified slices"
            self.told("", f"skipped: {why}")
            return {}
        config = {"alpha": s.alpha, "delta": s.delta, "by": s.by, "examples": s.examples, "dev": s.dev}
        return {"iat": self._kept("iat", config, lambda: self._iat(self._home("iat", config)))}

    def _iat(self, home: Path) -> dict[str, Any]:
        s, step = self.settings, self._branch_step()
        plain_scores = {task: evaluate(self.model, task, limit=s.dev) for task in self.tasks}
        branch = checkpoint.place(self._home("train", {"delta": s.delta}) / "checkpoints", step)
        common = branch if step and branch.exists() else None  # without it, what they have in common is trained again
        other = self._read_back("model") if common else self._load(list(self.model.tasks.values()))
        method = IAT(s.alpha, s.delta, by=s.by, examples=s.examples)
        fit(other, s.plan, method, out=home, branch=common, device=self.device, progress=self.progress)
        other.save_pretrained(home / "model")
        rows = [_difference(plain_scores[task], evaluate(other, task, limit=s.dev)) for task in self.tasks]
        how = f"α = {s.alpha}, δ = {s.delta}, {s.by}, freeze update. One training each; intervals are over examples."
        return {"rows": rows, "settings": how}

    def stage_prune(self, study: dict) -> dict[str, Any]:
        """What pruning the least important heads costs and gains; the largest cheap cut is saved to ``small``."""
        s, scores = self.settings, self._scores(study)
        config = {"fractions": s.prune, "by": s.by, "examples": s.examples, "dev": s.dev}
        learned = [task for task, score in study["scores"].items() if score["learned"]] or None
        found = self._kept("prune", config, lambda: trials(self.model, scores, s.prune, s.dev, learned))
        cut = next((row for row in found["rows"] if row["fraction"] == found["chosen"] and learned), None)
        small, whole = self.out / "small", found["rows"][0]["kept"]
        if cut and self.heads.exact:
            where = export_small(self.model, scores, cut["fraction"], small)
            self.told("", f"{whole - cut['kept']} of {whole} heads pruned: {where}")
        elif small.exists():
            shutil.rmtree(small.resolve())  # cut by other settings
        return {"prune": found if learned else found | {"chosen": None, "held out": {}}}


def _importance_of(task: str, kept: Mapping[str, Any]) -> Importance:
    scores, stderr = (torch.tensor(kept[name]) for name in ("scores", "stderr"))
    return Importance(task, kept["by"], scores, stderr, kept["examples"], Blocks.of(kept["blocks"]))


def _difference(before: Score, after: Score) -> dict[str, Any]:
    """IAT against plain on the same examples; the interval and p-value are of this task alone."""
    found = difference(after, before)
    row = {"task": before.task, "metric": before.metric, "plain": before.value, "iat": after.value}
    return row | {"low": found.low, "high": found.high, "p": found.p}
