"""The main job: model and tasks in; training, importance, lesions, IAT and pruning; study.json and a verdict out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headwise.errors import HeadwiseError
from headwise.heads.selection import budget, require_share
from headwise.io.files import finite, plain, require_replaceable, write_json
from headwise.io.identity import identity
from headwise.io.progress import Progress, quiet
from headwise.io.records import Results, about
from headwise.models.device import default_device
from headwise.models.language import LanguageModel, layers_by_stack
from headwise.models.loading import is_trained, load_encoder, name_of
from headwise.models.multitask import MultiTaskModel
from headwise.study.evidence import trust_of, withheld_of
from headwise.study.schema import VERSION
from headwise.study.stages import STAGES, Data, Settings, Stage
from headwise.study.verdict import verdict, withheld
from headwise.tasks.kinds.choice import Prompted
from headwise.tasks.task import Task
from headwise.training import checkpoint
from headwise.training.history import History
from headwise.training.loop import branch_step, fit

__all__ = ["STAGES", "Settings", "Study"]


class Study:
    """One study in a folder: stages whose results are stored are read back, not run again.

    Example:
        >>> study = Study("bert-base-uncased", tasks, Settings(skip=("iat",)), "runs/first")
        >>> headwise.report(study.run(), "runs/first/report.html")
    """

    def __init__(
        self,
        model: str | Path,
        tasks: Sequence[Task],
        settings: Settings,
        out: str | Path,
        *,
        log: Callable[[str], None] = lambda line: None,
        on_stage: Callable[[Stage], None] = lambda stage: None,
        progress: Progress | None = None,
        device: str | None = None,
        name: str = "",
        command: str = "",
    ):
        """
        Args:
            model: a folder or a name on the Hugging Face Hub.
            tasks: one or more; with one there is a lesion curve in place of a dissociation.
            settings: what to do.
            out: folder for records, models and ``study.json``.
            log: called with a line of text.
            on_stage: called with every stage before it runs.
            progress: of training.
            device: as `headwise.fit` takes it.
            name: the model's name in the report (default: from its folder).
            command: what was typed, for the report.
        """
        if not tasks:
            raise HeadwiseError("no task", "one or more; heads dissociate between two or more", "--tasks sst2,qnli")
        self.source, self.settings, self.out = str(model), settings, Path(out)
        require_replaceable(self.out / "model")
        self.log, self.on_stage, self.progress, self.device = log, on_stage, progress or quiet(), device
        self.name, self.command = name or name_of(self.source), command
        self.errors: dict[str, Exception] = {}  # of stages that failed
        self.model = self.load(tasks)
        self.heads = self.model.attention
        require_share(settings.alpha, self.heads.alive)
        self.settings = self._without_large_fractions(self.settings)
        self.records = Results(self.out / "records")
        parts = {"model": self.model, "form": self.model.form, "tokenizer": self.model.tokenizer}
        parts |= {"data": {task.name: task for task in tasks}, "plan": self.settings.plan}
        self.base = identity({**parts, "trained": "train" not in self.settings.skip})

    def _without_large_fractions(self, settings: Settings) -> Settings:
        """Drop fractions larger than the remaining heads."""
        count, remaining = self.heads.alive.numel(), int(self.heads.alive.sum())
        asked = {name: getattr(settings, name) for name in ("fractions", "prune")}
        possible = {name: tuple(f for f in values if budget(f, count) <= remaining) for name, values in asked.items()}
        if possible != asked:
            self.log(f"{remaining} of {count} heads remain: larger fractions are dropped")
        return replace(settings, **possible)

    @property
    def tasks(self) -> list[str]:
        return list(self.model.tasks)

    def run(self) -> Data:
        """Run all stages, write ``study.json`` and return it (`headwise.study.schema.StudyData`)."""
        data, self.errors = self._heading(), {}
        if not self.base["trained"] and not is_trained(self.source) and isinstance(self.model, MultiTaskModel):
            self.log("not trained: output heads are random, so scores are too")
        for stage in STAGES.values():
            if stage.asked(self.settings):
                self.on_stage(stage)
                self._run_stage(stage, data)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # other runs may share the device
        data["withheld"] = withheld_of(data, self.settings.alpha)
        data["trust"] |= trust_of(data, list(self.model.tasks.values()))
        data["verdict"] = verdict(data, self.settings.alpha)
        data["withheld"] = withheld(data)
        data = finite(data)
        write_json(self.out / "study.json", data)
        return data

    def _run_stage(self, stage: Stage, data: Data) -> None:
        """Add a stage's results; one that fails leaves its message in their place."""
        if missing := stage.missing(self.settings):
            self.log(f"skipped: needs the stage {missing[0]!r}")
            return
        try:
            data |= stage.run(self, data)
        except Exception as error:
            if not stage.may_fail:
                raise
            self.errors[stage.name] = error
            line = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            data.setdefault("failed", {})[stage.name] = line
            self.log(f"failed: {line}")

    def recorded(self, work: str, config: Mapping[str, Any], run: Callable[[], Data]) -> Data:
        """A stage's result: read from its record, or computed and stored."""
        full = {**self.base, **config}
        if record := self.records.find(work, full):
            self.log("already done, read back")
            return record.result
        return self.records[self.records.save(work, full, run())].result

    # -- models

    def load(self, tasks: Sequence[Task]) -> Any:
        """Load the initial model with these tasks: a language model if they are prompts."""
        s = self.settings
        if any(isinstance(task.kind, Prompted) for task in tasks):
            self.settings = replace(s, skip=tuple(dict.fromkeys((*s.skip, "train"))))
            lm = LanguageModel.from_pretrained(self.source, tasks, max_length=s.max_length)
            for task in lm.tasks:  # what cannot be asked is refused before any work; encoded rows are kept
                lm.encode(task, "train", s.examples)
                lm.encode(task, "dev", s.dev)
            return lm.to(default_device(self.device))
        if is_trained(self.source):
            model = self._load_trained(tasks)
            self.settings = replace(s, pooling=model.pooling, max_length=model.max_length)
            if self.settings != replace(s, pooling=s.pooling or model.pooling):
                self.log(f"using the trained model's pooling {model.pooling} and max length {model.max_length}")
            return model
        encoder, tokenizer = load_encoder(self.source)
        torch.manual_seed(s.plan.seed)  # output heads start from the plan's seed
        model = MultiTaskModel(encoder, tokenizer, tasks, s.pooling, max_length=s.max_length or 128)
        self.settings = replace(s, pooling=model.pooling)
        return model

    def _load_trained(self, tasks: Sequence[Task]) -> MultiTaskModel:
        """A trained model with these tasks; without further training it must have all of them."""
        if "train" not in self.settings.skip:
            return MultiTaskModel.continued(self.source, tasks, seed=self.settings.plan.seed)
        model = MultiTaskModel.load(self.source, tasks, only=[task.name for task in tasks])
        if new := [task.name for task in tasks if task.name not in model.tasks]:
            seen = f"{self.source} was not trained for {new[0]!r}"
            raise HeadwiseError(seen, "tasks of this model", "training too: no --skip train")
        return model

    def saved_model(self, name: str) -> MultiTaskModel:
        """A model that this study saved, on the device of the present one."""
        model = MultiTaskModel.load(self.out / name, self.model.tasks.values())
        return model.to(self.model.device)

    def folder(self, work: str, config: Mapping[str, Any]) -> Path:
        """The folder of a training: one per configuration, so that changed settings never meet old checkpoints."""
        return self.out / work / self.records.key(work, {**self.base, **config})[:8]

    def fit(self, model: MultiTaskModel, out: Path, **options: Any) -> History:
        """Train a model by the study's plan."""
        return fit(model, self.settings.plan, out=out, device=self.device, progress=self.progress, **options)

    def train(self) -> History:
        """Plain training, resumed where it was interrupted; the model is saved."""
        delta = self.settings.delta
        history = self.fit(self.model, self.folder("train", {"delta": delta}), marks=[delta])
        self.model.save_pretrained(self.out / "model")
        return history

    def branch(self) -> Path | None:
        """The checkpoint of plain training where IAT begins; without one the common part is trained again."""
        record = self.records.find("train", self.base)
        step = branch_step(record.result.get("planned", 0), self.settings.delta) if record else 0
        path = checkpoint.place(self.folder("train", {"delta": self.settings.delta}) / "checkpoints", step)
        return path if step and path.exists() else None

    # -- what the report says of the study itself

    def _heading(self) -> Data:
        """Title, date, model, tasks and what reproduces the study; the plan only where the study itself trained."""
        heads, now, settings, trained = self.heads, about(), self.settings, self.base["trained"]
        model = {"name": self.name, "family": self.model.config.model_type}
        model |= {"layers": heads.num_layers, "heads": heads.num_heads, "kv_heads": heads.num_kv_heads}
        if "+" in heads.stack:
            model["stacks"] = layers_by_stack(self.model.backbone)
        model |= {"head_dim": heads.head_dim, "parameters": sum(p.numel() for p in self.model.backbone.parameters())}
        model |= {} if heads.verified else {"verified": False}
        reproduce = {"command": self.command, "settings": used(settings), "versions": now["versions"]}
        reproduce |= {"plan": plain(settings.plan)} if trained else {}
        limits = {"train": settings.plan.max_examples if trained else None, "dev": settings.dev}
        return {
            "version": VERSION,
            "title": f"{self.name} · {', '.join(self.tasks)}",
            "created": now["created"],
            "model": model,
            "tasks": [_described(task, limits) for task in self.model.tasks.values()],
            "reproduce": {**reproduce, "hashes": {"model": self.base["model"], **self.base["data"]}},
        }


def used(settings: Settings) -> Data:
    """The settings that the stages of this study read; the plan stands apart."""
    idle = [stage for stage in STAGES.values() if not stage.asked(settings) or stage.missing(settings)]
    unread = {"plan", *(name for stage in idle for name in stage.reads)}
    return plain({n: value for n, value in vars(settings).items() if n not in unread and (n != "skip" or value)})


def _described(task: Task, limits: dict[str, int | None]) -> Data:
    rows = {split: min(len(task.rows(split)), limit or 10**9) for split, limit in limits.items()}
    kind = type(task.kind).__name__.lower()
    described = {"name": task.name, "kind": kind, "metric": task.metric, "language": task.language}
    return {**described, **rows, "origin": task.source.origin}
