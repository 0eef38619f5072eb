"""Batched chart parsing against one sentence at a time, the same functions on the same scores in one run.

    python benchmarks/parsing.py [--device cuda] [--sentences 2000] [--json FILE]

Sentence lengths as in the English Web Treebank, batches as evaluation makes them (longest first, by a token budget).
One by one is run on a sample and scaled up, in turns with the batches; each side's best time counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from headwise.batching import Order
from headwise.evaluate import TOKENS
from headwise.tasks.parsing import chu_liu_edmonds, cky, eisner, marginals

Parser = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PARSERS: dict[str, tuple[Parser, int, str]] = {  # what, how many more rows than words its scores have, goal
    "CKY": (cky, 1, ">= 20"),
    "Eisner": (eisner, 0, ">= 20"),
    "inside-outside (span probabilities)": (marginals, 1, ""),
    "Chu-Liu/Edmonds": (chu_liu_edmonds, 0, ""),
}


def seconds(parse: Parser, more: int, lengths: np.ndarray, batches: Iterable[np.ndarray], device: str) -> float:
    """Time in the parser alone."""
    spent, generator = 0.0, torch.Generator().manual_seed(0)
    for items in batches:
        size = torch.from_numpy(lengths[items]).to(device)
        words = int(size.max())
        scores = torch.randn(len(items), words + more, words + 1, generator=generator).to(device)
        parse(scores[:1], size[:1].clamp(max=1))  # what came before is done
        start = time.perf_counter()
        float(parse(scores, size).sum())
        spent += time.perf_counter() - start
    return spent


def rows(sentences: int, repeat: int, device: str) -> list[dict]:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(2.6, 0.7, sentences), 1, 90).astype(int)  # mean 16, longest 90
    together = Order(lengths, tokens=TOKENS).plain()
    alone = [np.array([i]) for i in rng.choice(sentences, max(1, sentences // 20), replace=False)]
    found = []
    for name, (parse, more, goal) in PARSERS.items():
        times = np.array(
            [
                [seconds(parse, more, lengths, batches, device) for batches in (together, alone)]
                for _ in range(repeat + 1)
            ]
        )[1:].min(0)
        slow = times[1] * sentences / len(alone)
        found.append({"what": f"{name}: one by one / batched", "ratio": slow / times[0], "goal": goal, "floor": ""})
        found.append({"what": f"{name}: sentences a second", "ratio": sentences / times[0], "goal": "", "floor": ""})
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    table = rows(args.sentences, args.repeat, args.device)
    for each in table:
        print(f"{each['what']:56s} {each['ratio']:10.4g}   goal {each['goal'] or '-'}")
    if args.json:
        args.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
