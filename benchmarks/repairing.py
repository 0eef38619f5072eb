"""What cutting heads costs a language model in perplexity, with and without refitting what is left.

    python benchmarks/repairing.py [--model smollm2-135m ...] [--windows N] [--json FILE]

Heads are scored on the training split of IMDb, projections are refitted on other windows of it, and perplexity is that
of its test split, in windows of 128 sub-words. Beside the least important heads, random ones are cut. The models are
folders in HEADWISE_WEIGHTS, the data is in HEADWISE_DATA; without them rows are skipped.
"""

from __future__ import annotations

import argparse
import copy
import os
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from comparing import Row, finish, row
from transformers import AutoModelForCausalLM, AutoTokenizer

from headwise import Heads, importance
from headwise.heads.gates import gated
from headwise.heads.repairing import moments, refit
from headwise.heads.selection import bottom, random_heads

LENGTH, BATCH = 128, 8
FRACTIONS = (0.1, 0.2, 0.3)
MODELS = ("smollm2-135m", "gemma3-270m")


def windows(tokenizer: Any, data: Path, split: str, skip: int, count: int) -> torch.Tensor:
    """Consecutive reviews, end to end, in windows."""
    import pandas

    texts = pandas.read_parquet(data / "imdb" / f"{split}.parquet")["text_a"].sample(frac=1.0, random_state=0)
    found: list[int] = []
    for text in texts:
        found += tokenizer(text.replace("<br />", " "), add_special_tokens=False)["input_ids"]
        if len(found) >= (skip + count) * (LENGTH - 1):
            break
    rows = torch.tensor(found[: (skip + count) * (LENGTH - 1)]).view(-1, LENGTH - 1)[skip:]
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return torch.cat([torch.full((len(rows), 1), first), rows], 1)


def batches(ids: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": part, "labels": part} for part in ids.split(BATCH)]


@torch.no_grad()
def perplexity(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> float:
    """Of a model with heads gated to zero, which is what the cut one answers."""
    with gated(model, (~mask).float()):
        losses = [float(model(**batch, use_cache=False).loss) * len(batch["labels"]) for batch in batches(ids)]
    return float(torch.tensor(sum(losses) / len(ids)).exp())


def measured(name: str, weights: Path, data: Path, count: int) -> list[Row]:
    """A row for every fraction: how much of the added loss the repair takes back."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(weights / name, dtype=torch.float32).eval().to(device)
    tokenizer = AutoTokenizer.from_pretrained(weights / name)
    train, test = (windows(tokenizer, data, s, 0, n).to(device) for s, n in (("train", 3 * count), ("test", count)))
    scores = importance(model, batches(train[:count])).scores
    known = moments(model, ({"input_ids": batch["input_ids"]} for batch in batches(train[count:])))
    whole = perplexity(model, test, torch.zeros(Heads.of(model).shape, dtype=torch.bool))
    print(f"{name}: perplexity {whole:.2f}, whole, on {test.numel():,} sub-words", flush=True)
    rows = []
    for fraction in FRACTIONS:
        masks = [bottom(scores, fraction), *(random_heads(scores.shape, fraction, seed=seed) for seed in range(2))]
        found = []
        for mask in masks:
            repaired = refit(copy.deepcopy(model), mask, known)
            found.append((perplexity(model, test, mask), perplexity(repaired, test, mask)))
        least, *chance = found
        others = [round(sum(each) / len(chance), 2) for each in zip(*chance)]
        more = {"whole": round(whole, 2), "least": [round(x, 2) for x in least], "random": others}
        said = f"perplexity {whole:.2f} whole; least important {least[0]:.2f}, repaired {least[1]:.2f}; "
        said += f"random {others[0]:.2f}, repaired {others[1]:.2f}"
        what = f"{name}, {fraction:.0%} of heads cut: perplexity repaired over not repaired"
        rows.append(row(what, least[1] / least[0], "<= 1", said, **more))
        print(said, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--windows", type=int, default=32, help="of 128 sub-words, for the perplexity")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    weights, data = (os.environ.get(name) for name in ("HEADWISE_WEIGHTS", "HEADWISE_DATA"))

    def rows(name: str) -> list[Row]:
        if weights is None or data is None or not (Path(weights) / name).is_dir():
            return [{"what": f"{name}: perplexity after a cut", "skipped": "needs HEADWISE_WEIGHTS and HEADWISE_DATA"}]
        return measured(name, Path(weights), Path(data), args.windows)

    finish(list(chain.from_iterable(rows(name) for name in args.model or MODELS)), args.json)


if __name__ == "__main__":
    main()
