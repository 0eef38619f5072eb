"""What a study says of its model, its tasks and how it was run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwise.heads.gates import Heads
from headwise.io.files import plain
from headwise.io.records import about
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.task import Task

if TYPE_CHECKING:
    from headwise.study.study import Settings


def heading(model: MultiTaskModel, name: str, settings: Settings, trained: bool) -> dict[str, Any]:
    """Title, date, model, tasks and settings; the plan only where the study itself trained."""
    heads, now, plan = Heads.of(model.encoder), about(), plain(settings.plan)
    facts = {"name": name, "family": model.config.model_type, "layers": heads.num_layers, "heads": heads.num_heads}
    facts |= {"kv_heads": heads.num_kv_heads, "head_dim": heads.head_dim}
    facts["parameters"] = sum(p.numel() for p in model.encoder.parameters())
    reproduce = {"settings": used(settings, trained), "versions": now["versions"]} | ({"plan": plan} if trained else {})
    limits = {"train": settings.plan.max_examples if trained else None, "dev": settings.dev}
    return {
        "title": f"{name} · {', '.join(model.tasks)}",
        "created": now["created"],
        "model": facts,
        "tasks": [_task(task, limits) for task in model.tasks.values()],
        "reproduce": reproduce,
    }


def used(settings: Settings, trained: bool) -> dict[str, Any]:
    """The settings that the stages of a study read."""
    s = settings
    found = {"alpha": s.alpha, "by": s.by, "examples": s.examples, "pooling": s.pooling, "max_length": s.max_length}
    of_stages = {
        "lesions": {"fractions": s.fractions, "random": s.random, "matched": s.matched, "dev": s.dev},
        "probes": {"probes": s.probes, "probe_rows": s.probe_rows} if s.probes else {},
        "iat": {"delta": s.delta} if trained else {},
        "prune": {"prune": s.prune},
    }
    for stage, values in of_stages.items():
        found |= {} if stage in s.skip else values
    return plain(found | ({"skip": s.skip} if s.skip else {}))


def _task(task: Task, limits: dict[str, int | None]) -> dict[str, Any]:
    rows = {split: min(len(task.rows(split)), limit or 10**9) for split, limit in limits.items()}
    kind = type(task.kind).__name__.lower()
    shown = {"name": task.name, "kind": kind, "metric": task.metric, "language": task.language}
    return {**shown, **rows, "origin": task.source.origin}
