"""Importance and lesions against the floor, against the released way, and against smaller and larger batches.

    python benchmarks/importance.py [--device cuda] [--examples 512] [--json FILE]

Random weights of a BERT-base shape (a small one on a CPU) and sentence lengths as in GLUE: speed does not depend on
what the weights know. The two slow ways and ours work on the same few examples, in float32, and must give equal scores.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from comparing import Row, equal, fastest, finish, row, subwords_of
from transformers import AutoModel, BertConfig

from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import default_tokens, evaluate, to_device
from headwise.models.batching import Encoded, Order, encode
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import Importance, importance
from headwise.scoring.sample import CHUNK
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny_tokenizer

SHAPES = {"base": (12, 12, 768, 3072), "small": (6, 12, 384, 1536)}
LESIONS = 8


def build(shape: str, rows: int, device: str) -> MultiTaskModel:
    layers, heads, hidden, inner = SHAPES[shape]
    config = BertConfig(
        num_hidden_layers=layers, num_attention_heads=heads, hidden_size=hidden, intermediate_size=inner
    )
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.3, 0.6, rows), 6, 126).astype(int)  # mean near 32 words
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 50, n)) for n in lengths]
    made = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]
    task = Task("t", Classify(("a", "b")), Rows(train=made, dev=made), "accuracy")
    tokenizer = tiny_tokenizer([f"w{i}" for i in range(50)])
    return MultiTaskModel(AutoModel.from_config(config), tokenizer, [task]).to(device).eval()


@torch.no_grad()
def forward(model: MultiTaskModel, data: Encoded, items: np.ndarray, tokens: int) -> None:
    """The floor: one bare forward over the same examples in the same batches."""
    with evaluating(model):
        for start in range(0, len(items), CHUNK):
            chunk = items[start : start + CHUNK]
            for batch in Order(data.lengths[chunk], tokens=tokens).plain():
                model("t", to_device(data.batch(chunk[batch]), model.device)).loss.sum()


def released(model: MultiTaskModel, data: Encoded, items: np.ndarray, size: int = 8, width: int = 256) -> torch.Tensor:
    """Scores as the released code takes them: padded to 256, eager, parameter gradients, |·| per token on the host."""
    model.encoder.set_attn_implementation("eager")
    total = torch.zeros(1)
    kept: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, args: tuple) -> None:
        args[0].retain_grad()
        kept.append(args[0])

    handles = [
        m.register_forward_pre_hook(keep)
        for n, m in model.encoder.named_modules()
        if n.endswith("attention.output.dense")
    ]
    for start in range(0, len(items), size):
        batch = data.batch(items[start : start + size])
        pad = width - batch["input_ids"].shape[1]
        batch = {k: torch.nn.functional.pad(v, (0, pad)) if v.ndim == 2 else v for k, v in batch.items()}
        kept.clear()
        model("t", to_device(batch, model.device)).loss.mean().backward()
        heads = model.config.num_attention_heads
        dots = [(z * z.grad).unflatten(-1, (heads, -1)).sum(-1).abs().sum((0, 1)) for z in kept]
        total = total + torch.stack(dots).detach().cpu() * len(batch["input_ids"])  # of the sum, not of the mean
    for handle in handles:
        handle.remove()
    model.zero_grad()
    model.encoder.set_attn_implementation("sdpa")
    return total / int(data.lengths[items].sum())


def batch_rows(model: MultiTaskModel, data: Encoded, items: np.ndarray, tokens: int, device: str) -> list[Row]:
    """Importance against a bare forward, and beside batches of other sizes."""
    scored = partial(importance, model, "t", data=data)
    sizes = (tokens, tokens // 4, 4 * tokens)
    scores = [scored(tokens=size).scores for size in sizes]
    read = [subwords_of(model.encoder, work) for work in (scored, lambda: forward(model, data, items, tokens))]
    ways: list[Callable[[], object]] = [partial(scored, tokens=size) for size in sizes]
    ours, fewer, more, floor = fastest([*ways, lambda: forward(model, data, items, tokens)], 3, device)
    near = 1e-2 if device == "cuda" else 1e-4  # bfloat16, or float32
    each = {n: [equal("scores", scores[0], s, near)] for n, s in zip(("fewer", "more"), scores[1:])}
    return [
        row(
            *("importance / bare forward", ours / floor, "<= 2.25", "2.0 (operations)"),
            same=[equal("sub-words read", *read)],
        ),
        row("a quarter of the tokens a pass / importance", fewer / ours, same=each["fewer"]),
        row("four times the tokens a pass / importance", more / ours, same=each["more"]),
        row("importance, µs per example", 1e6 * ours / len(items)),
    ]


def lesion_rows(model: MultiTaskModel, data: Encoded, tokens: int, device: str) -> list[Row]:
    """Several lesions in one pass over the data against one pass for each."""
    gates = torch.ones(LESIONS, model.config.num_hidden_layers, model.config.num_attention_heads)
    for number, lesion in enumerate(gates):
        lesion[:, number] = 0
    scored = partial(evaluate, model, "t", data=data, split="train", tokens=tokens)
    one_by_one = [lambda lesion=lesion: scored(gates=lesion[None])[0] for lesion in gates]
    answers = [[score.predictions for score in found] for found in (scored(gates=gates), [way() for way in one_by_one])]
    ways = (lambda: scored(gates=gates), lambda: [way() for way in one_by_one])
    read = [subwords_of(model.encoder, way) for way in ways]
    same = [equal("answers under each lesion", *answers), equal("sub-words read", *read)]
    together, apart = fastest(ways, 2, device)
    return [row(f"{LESIONS} lesions / {LESIONS} evaluations", together / apart, "<= 1.1", "1.0", same=same)]


def slow_rows(model: MultiTaskModel, data: Encoded, few: np.ndarray, tokens: int, device: str) -> list[Row]:
    """The released way and batches of one, on the same examples as ours."""
    model.requires_grad_(True)

    def scored(**options) -> Importance:
        return importance(model, "t", data=data, examples=len(few), **options)

    per_token = equal(
        "scores per token", scored(by="token", tokens=tokens).scores, released(model, data, few), within=1e-3
    )
    alone = equal("scores", scored(tokens=tokens).scores, scored(tokens=1).scores, within=1e-3)
    ours, old, ours_again, one = fastest(
        [
            lambda: scored(by="token", tokens=tokens),
            lambda: released(model, data, few),
            lambda: scored(tokens=tokens),
            lambda: scored(tokens=1),
        ],
        *(1, device),
    )
    large = device == "cuda"
    return [
        row("the released way / importance by token", old / ours, ">= 60" if large else "", same=[per_token]),
        row("batches of one / importance", one / ours_again, ">= 400" if large else "", same=[alone]),
    ]


def rows_of(device: str, examples: int) -> list[Row]:
    model = build("base" if device == "cuda" else "small", examples, device)
    tokens = default_tokens(model)
    data = encode(model.tasks["t"], "train", model.tokenizer, model.max_length)
    items = np.random.default_rng([0, 3]).permutation(len(data))  # as importance draws them
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        rows = batch_rows(model, data, items, tokens, device) + lesion_rows(model, data, tokens, device)
    return rows + slow_rows(model, data, items[: max(16, examples // 8)], tokens, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--examples", type=int, default=None)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    finish(rows_of(args.device, args.examples or (16384 if args.device == "cuda" else 256)), args.json)


if __name__ == "__main__":
    main()
