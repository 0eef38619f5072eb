"""Meta-learning speed as ratios: an outer step against the bare passes it is made of, and second against first order.

    python benchmarks/meta.py [--repeats 9] [--json FILE]

The packaged MiniLM encoder, episodes of 16 support and 16 query rows, three inner steps on all parameters, float32,
sentence lengths as in GLUE. The floor of an outer step is four forwards and backwards of the same episodes' batches and
the optimizer's step; all ways must read as many sub-words. The ways take turns, so that whatever else the machine does
falls on all of them; a ratio is the median over turns, its spread the quartiles.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from comparing import Row, equal, finish, in_turns, reading
from transformers.utils import logging

from headwise.errors import HeadwiseWarning
from headwise.models.multitask import MultiTaskModel
from headwise.papers.mesh.episodes import Episodes
from headwise.papers.mesh.meta import Meta
from headwise.study.demo import encoder_folder
from headwise.training.loop import Run, _step
from headwise.training.plan import Plan
from training import compare, sentences

PLAN = Plan(epochs=1000, batch_size=32, clip=1.0)
STEPS, SUPPORT = 3, 16


def outer_steps(folder: Path, by: str, steps: int) -> tuple[MultiTaskModel, Callable[[], object]]:
    """One outer step of a run that goes on from turn to turn."""
    tasks = sentences(256, ("one", "two"))
    method = Meta(by, steps=steps, support=SUPPORT, rates=1e-3)
    run = Run(MultiTaskModel.from_pretrained(folder, tasks), PLAN, method, None, "cpu")
    run.model.train()
    method.start(run)

    def work() -> None:
        _step(run)
        run.step += 1

    return run.model, work


def floor(folder: Path, steps: int) -> tuple[MultiTaskModel, Callable[[], object]]:
    """The passes of the same episodes and nothing else: support, ``steps`` times, query, clipping, AdamW."""
    tasks = sentences(256, ("one", "two"))
    run = Run(MultiTaskModel.from_pretrained(folder, tasks), PLAN, Meta(steps=steps, support=SUPPORT), None, "cpu")
    run.model.train()

    def work() -> None:
        (task,) = run.tasks_of_step(run.step)
        stream: Any = run.streams[task]
        assert isinstance(stream, Episodes)
        stream.next()
        support, query = (run.data[task].batch(items) for items in stream.parts)
        for batch in [support] * steps + [query]:
            run.optimizer.zero_grad(set_to_none=True)
            run.model(task, batch).loss.mean().backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()
        run.step += 1

    return run.model, work


def read_by(model: MultiTaskModel, work: Callable[[], object]) -> int:
    with reading(model.encoder) as read:
        work()
    return read.subwords


def measure(repeats: int) -> list[Row]:
    folder = encoder_folder()
    ways = [outer_steps(folder, "fomaml", STEPS), floor(folder, STEPS)]
    ways += [outer_steps(folder, by, STEPS) for by in ("maml", "reptile", "anil")]
    read = [read_by(*way) for way in ways]
    same = [[equal("sub-words of a step", read[0], other)] for other in read]
    fomaml, bare, maml, reptile, anil = in_turns([work for _, work in ways], repeats)
    return [
        compare("FOMAML's outer step / its forwards and backwards", fomaml, bare, 1.15, same[1]),
        compare("MAML's outer step, second order / FOMAML's", maml, fomaml, 3.0, same[2]),
        compare("Reptile's outer step / FOMAML's", reptile, fomaml, 1.15, same[3]),
        compare("ANIL's outer step / FOMAML's", anil, fomaml, 1.0, same[4]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable_progress_bar()
    warnings.simplefilter("ignore", HeadwiseWarning)  # second order says which kernel it runs
    finish(measure(args.repeats), args.json)


if __name__ == "__main__":
    main()
