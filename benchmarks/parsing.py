"""Batched chart parsing against one sentence at a time, the same functions on the same scores in one run.

    python benchmarks/parsing.py [--device cuda] [--sentences 2000] [--json FILE]

Sentence lengths as in the English Web Treebank, batches as evaluation makes them (longest first, by a token budget).
One by one is run on every twentieth sentence by length and scaled up, in turns with the batches, and must find the
same trees; each side's best time counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from comparing import Row, equal, fastest, finish, row

from headwise.measuring.evaluate import TOKENS
from headwise.models.batching import Order
from headwise.tasks.kinds.parsing import chu_liu_edmonds, cky, eisner, marginals

Parser = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PARSERS: dict[str, tuple[Parser, int, str]] = {  # what, how many more rows than words its scores have, goal
    "CKY": (cky, 1, ">= 20"),
    "Eisner": (eisner, 0, ">= 20"),
    "inside-outside (span probabilities)": (marginals, 1, ""),
    "Chu-Liu/Edmonds": (chu_liu_edmonds, 0, ""),
}
EVERY = 20  # one sentence of so many is parsed by itself
Problem = tuple[torch.Tensor, torch.Tensor]  # scores and lengths


def batched(lengths: np.ndarray, batches: list[np.ndarray], more: int, device: str) -> list[Problem]:
    """Random scores of all sentences."""
    generator, problems = torch.Generator().manual_seed(0), []
    for items in batches:
        size = torch.from_numpy(lengths[items])
        words = int(size.max())
        scores = torch.randn(len(items), words + more, words + 1, generator=generator)
        problems.append((scores.to(device), size.to(device)))
    return problems


def taken(parsed: list[torch.Tensor], where: list[tuple[int, int]], alone: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the batches say about the sentences that were parsed alone."""
    return [parsed[i][j][tuple(map(slice, one.shape[1:]))] for (i, j), one in zip(where, alone)]


def parser_rows(name: str, lengths: np.ndarray, repeat: int, device: str) -> list[Row]:
    parse, more, goal = PARSERS[name]
    batches = Order(lengths, tokens=TOKENS).plain()
    problems = batched(lengths, batches, more, device)
    places = sorted(((i, j) for i, items in enumerate(batches) for j in range(len(items))), key=_length_in(problems))
    where = places[EVERY // 2 :: EVERY] or places[:1]
    few = [
        (problems[i][0][j : j + 1, : n + more, : n + 1], problems[i][1][j : j + 1])
        for i, j, n in _sized(where, problems)
    ]
    together, alone = ([parse(*problem) for problem in some] for some in (problems, few))
    numbers = [
        torch.cat([part.double().flatten().cpu() for part in parts]) for parts in (taken(together, where, alone), alone)
    ]
    same = [equal("trees" if parse is not marginals else "probabilities", *numbers, 1e-5)]
    fast, slow = fastest([lambda: [parse(*p) for p in problems], lambda: [parse(*p) for p in few]], repeat, device)
    slow *= len(lengths) / len(few)
    return [
        row(f"{name}: one by one / batched", slow / fast, goal, same=same),
        row(f"{name}: sentences a second", len(lengths) / fast),
    ]


def _length_in(problems: list[Problem]) -> Callable[[tuple[int, int]], int]:
    return lambda place: int(problems[place[0]][1][place[1]])


def _sized(where: list[tuple[int, int]], problems: list[Problem]) -> list[tuple[int, int, int]]:
    return [(i, j, int(problems[i][1][j])) for i, j in where]


def rows_of(sentences: int, repeat: int, device: str) -> list[Row]:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(2.6, 0.7, sentences), 1, 90).astype(int)  # mean 16, longest 90
    return [each for name in PARSERS for each in parser_rows(name, lengths, repeat, device)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    finish(rows_of(args.sentences, args.repeat, args.device), args.json)


if __name__ == "__main__":
    main()
