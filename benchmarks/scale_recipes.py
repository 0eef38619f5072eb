"""How much the published recipes work through at size full: all jobs, and the models they leave (no rates).

`benchmarks/scale.py` makes time of it. Job counts, epochs, tasks and lesions are the recipes' own; training rows are
those of the papers' tables; development rows and lengths are written down in `headwise.papers.checklist`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from unittest import mock

from headwise.experiments import works
from headwise.experiments.jobs import Job, in_order
from headwise.papers.anatomy import jobs as anatomy
from headwise.papers.checklist import (  # noqa: F401
    BASE,
    LENGTH,
    SHAPES,
    Amount,
    amount,
    closing,
    lesions,
    model_of,
    rows,
    tokens,
    training,
)
from headwise.papers.mesh import jobs as mesh
from headwise.papers.recipe import Scale, recipes

NAMES = ("specialization", "anatomy", "stem_cell", "mesh")


@lru_cache
def full(name: str) -> list[Job]:
    """All jobs of a recipe's published size, each after those it stands on; no rows are read for it."""
    nothing = {"new": lambda *_, **__: None}
    unread = [(works, "data_of"), (anatomy, "data_of"), (mesh, "digest_of")]
    with ExitStack() as stack:
        for module, function in unread:
            stack.enter_context(mock.patch.object(module, function, **nothing))
        return in_order(recipes[name].jobs(Scale("full")))


def kept(job: Job) -> float:
    """Bytes of the model that a job leaves for others, in 32 bits, with a BERT's embeddings."""
    layers, _, width = SHAPES.get(model_of(job), BASE)
    stays = job.config.get("keep", job.work == "train" or job.work.endswith(("mtdnn", "distilled")))
    return 4.0 * (12 * layers * width**2 + 31000 * width) if stays else 0.0


def longest(jobs: Sequence[Job], spent: Mapping[str, float]) -> float:
    """Seconds of the longest chain of jobs that wait for each other."""
    ends: dict[str, float] = {}
    for job in jobs:
        ends[job.key] = spent[job.key] + max((ends[before.key] for before in job.after), default=0.0)
    return max(ends.values())
