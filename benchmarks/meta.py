"""Meta-learning speed as ratios: an outer step against the bare passes it is made of, and second against first order.

    python benchmarks/meta.py [--repeats 9] [--threads 2] [--clock wall] [--json FILE]

The packaged MiniLM encoder, episodes of 16 support and 16 query rows, three inner steps on all parameters, float32,
sentence lengths as in GLUE. The floor of an outer step is four forwards and backwards of the same episodes' batches and
the optimizer's step. The ways take turns, so that whatever else the machine does falls on all of them; a ratio is the
median over turns, its spread the quartiles. On a shared machine ``--threads 1 --clock cpu`` counts the process's own
time only.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from training import CLOCKS, Turn, compare, sentences, timed, turns
from transformers.utils import logging

from headwise.demo import encoder_folder
from headwise.errors import HeadwiseWarning
from headwise.methods.episodes import Episodes
from headwise.methods.meta import Meta
from headwise.model import MultiTaskModel
from headwise.plan import Plan
from headwise.train import Run, _step

PLAN = Plan(epochs=1000, batch_size=32, clip=1.0)
STEPS, SUPPORT = 3, 16


def outer_steps(folder: Path, by: str, steps: int, clock: Callable[[], float]) -> Turn:
    """One outer step of a run that goes on from turn to turn."""
    tasks = sentences(256, ("one", "two"))
    method = Meta(by, steps=steps, support=SUPPORT, rates=1e-3)
    run = Run(MultiTaskModel.from_pretrained(folder, tasks), PLAN, method, None, "cpu")
    run.model.train()
    method.start(run)

    def work() -> None:
        _step(run)
        run.step += 1

    return lambda: timed(work, clock)


def floor(folder: Path, steps: int, clock: Callable[[], float]) -> Turn:
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

    return lambda: timed(work, clock)


def measure(repeats: int, clock: Callable[[], float]) -> list[dict[str, Any]]:
    folder = encoder_folder()
    ways = [outer_steps(folder, "fomaml", STEPS, clock), floor(folder, STEPS, clock)]
    ways += [outer_steps(folder, by, STEPS, clock) for by in ("maml", "reptile", "anil")]
    fomaml, bare, maml, reptile, anil = turns(ways, repeats)
    return [
        compare("FOMAML's outer step / its forwards and backwards", fomaml, bare, 1.15),
        compare("MAML's outer step, second order / FOMAML's", maml, fomaml, 3.0),
        compare("Reptile's outer step / FOMAML's", reptile, fomaml, 1.15),
        compare("ANIL's outer step / FOMAML's", anil, fomaml, 1.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.disable_progress_bar()
    warnings.simplefilter("ignore", HeadwiseWarning)  # second order says which kernel it runs
    found = measure(given.repeats, CLOCKS[given.clock])
    print(f"{'what':50}{'ours, s':>10}{'other, s':>10}{'ratio':>8}  {'quartiles':17}{'goal':>7}")
    for row in found:
        low, high = row["spread"]
        seconds = f"{row['ours_s']:>10.3g}{row['other_s']:>10.3g}"
        line = f"{row['what']:50}{seconds}{row['ratio']:>8.3f}  {f'{low:.3f} to {high:.3f}':17}≤ {row['goal']:<5g}"
        print(f"{line}  {'met' if row['met'] else 'MISSED'}")
    if given.json:
        settings = {"repeats": given.repeats, "threads": given.threads, "clock": given.clock}
        given.json.write_text(json.dumps({"settings": settings, "found": found}, indent=1))


if __name__ == "__main__":
    main()
