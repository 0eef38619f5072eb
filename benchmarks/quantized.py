"""Importance, lesions and BLiMP of language models whose weights torchao holds in int8 and int4, beside fp32.

    python benchmarks/quantized.py [--models smollm2-135m,gemma3-270m] [--rows 48] [--json FILE]

The models are folders in HEADWISE_WEIGHTS, the minimal pairs are in HEADWISE_DATA; without them rows are skipped.
Weights alone are rounded: int8 by output channel, int4 in groups of 32. Lesions close the top 10 % of heads by each
model's own scores, and as many random ones.
"""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from comparing import Row, finish, row
from scipy.stats import spearmanr

from headwise import LanguageModel, evaluate, importance, tasks
from headwise.heads.selection import random_heads, top
from headwise.models.batching import sample
from headwise.tasks import Rows, Task

PARADIGMS = ("anaphor_number_agreement", "determiner_noun_agreement_1", "wh_island", "npi_present_1")
MODELS = "smollm2-135m,gemma3-270m"
FRACTION = 0.1


def pairs(rows: int) -> list[Task]:
    """Some rows of each paradigm, scored and tested on different ones."""
    found = []
    for name in PARADIGMS:
        task = tasks.get(f"blimp.{name}")
        some = sample(task.rows("test"), 2 * rows)
        found.append(Task(name, task.kind, Rows(train=some[:rows], dev=some[rows:]), task.metric))
    return found


def rounded(model: Any, width: str) -> None:
    """Replace the weights of linear layers."""
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup, quantize_

    if width == "int8":
        quantize_(model, Int8WeightOnlyConfig())
    elif width == "int4":
        quantize_(model, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))


def measured(folder: Path, rows: int) -> list[Row]:
    chosen, found, base = pairs(rows), [], {}
    for width in ("fp32", "int8", "int4"):
        subject = LanguageModel.from_pretrained(folder, chosen)
        rounded(subject.model, width)
        agree, intact, own, other = [], [], [], []
        for task in chosen:
            scores = importance(subject, task.name, log=lambda line: None).scores
            base.setdefault(task.name, scores)
            agree.append(float(spearmanr(scores.flatten(), base[task.name].flatten()).statistic))
            closed = top(scores, FRACTION)
            drawn = random_heads(scores.shape, FRACTION, seed=0)
            gates = torch.stack([torch.ones_like(scores), (~closed).float(), (~drawn).float()])
            for column, score in zip((intact, own, other), evaluate(subject, task.name, gates)):
                column.append(score.value)
        what = f"{folder.name} in {width}, {len(chosen)} paradigms of BLiMP, {rows} pairs each"
        mean = lambda values: sum(values) / len(values)  # noqa: E731
        if width != "fp32":
            found.append(row(f"{what}: rank correlation of heads with fp32, lowest", min(agree)))
        found.append(row(f"{what}: accuracy, all heads open", mean(intact)))
        found.append(row(f"{what}: accuracy, top {FRACTION:.0%} closed", mean(own)))
        found.append(row(f"{what}: accuracy, as many random heads closed", mean(other)))
        print(*(f"{each['what']}: {each['ratio']:.3f}" for each in found[-4:]), sep="\n", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    weights, rows = Path(os.environ.get("HEADWISE_WEIGHTS", "")), []
    for name in args.models.split(","):
        absent = [
            what for what, there in (("torchao", find_spec("torchao")), (name, (weights / name).is_dir())) if not there
        ]
        absent += [] if os.environ.get("HEADWISE_DATA") else ["HEADWISE_DATA"]
        if absent:
            rows.append({"what": name, "skipped": f"needs {' and '.join(absent)}"})
        else:
            rows += measured(weights / name, args.rows)
    finish(rows, args.json)


if __name__ == "__main__":
    main()
