"""Importance and lesions against the floor and against the reference's way, side by side in one run.

    python benchmarks/importance.py [--device cuda] [--examples 512] [--json FILE]

Random weights of a BERT-base shape (a small one on a CPU) and sentence lengths as in GLUE: speed does not depend on
what the weights know.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from transformers import AutoModel, BertConfig

from headwise.batching import Encoded, Order, encode
from headwise.evaluate import default_tokens, evaluate, evaluating, to_device
from headwise.importance import CHUNK, importance
from headwise.model import MultiTaskModel
from headwise.tasks.sentence import Classify
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny_tokenizer

SHAPES = {"base": (12, 12, 768, 3072), "small": (6, 12, 384, 1536)}


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


def timed(work: Callable[[], object], device: str, repeat: int = 3) -> float:
    """The best of a few runs, in seconds."""
    best = float("inf")
    for _ in range(repeat + 1):  # the first warms up
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


@torch.no_grad()
def forward(model: MultiTaskModel, data: Encoded, items: np.ndarray, tokens: int) -> None:
    """The floor: one bare forward over the same examples in the same batches."""
    with evaluating(model):
        for start in range(0, len(items), CHUNK):
            chunk = items[start : start + CHUNK]
            for batch in Order(data.lengths[chunk], tokens=tokens).plain():
                model("t", to_device(data.batch(chunk[batch]), model.device)).loss.sum()


def reference(model: MultiTaskModel, data: Encoded, items: np.ndarray, size: int = 8, width: int = 256) -> torch.Tensor:
    """As the released code works: padded to 256, eager, float32, parameter gradients, |·| per token on the host."""
    model.encoder.set_attn_implementation("eager")
    total = 0.0
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
        total = total + torch.stack(dots).detach().cpu().numpy()
    for handle in handles:
        handle.remove()
    model.zero_grad()
    model.encoder.set_attn_implementation("sdpa")
    return torch.as_tensor(total)


def rows_of(args: argparse.Namespace) -> list[dict]:
    device = args.device
    model = build("base" if device == "cuda" else "small", args.examples, device)
    tokens = default_tokens(model)
    data = encode(model.tasks["t"], "train", model.tokenizer, model.max_length)
    items = np.random.default_rng([0, 3]).permutation(len(data))
    half = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
    with half:
        floor = timed(lambda: forward(model, data, items, tokens), device)
        scored = partial(importance, model, "t", data=data)
        ours = timed(partial(scored, tokens=tokens), device)
        fewer = timed(partial(scored, tokens=tokens // 4), device)
        more = timed(partial(scored, tokens=4 * tokens), device)
        lesions = 8
        gates = torch.ones(lesions, model.config.num_hidden_layers, model.config.num_attention_heads)
        gates[:, 0, 0] = 0.5
        matrix = timed(lambda: evaluate(model, "t", gates, data=data, tokens=tokens), device, 1)
        alone = timed(lambda: evaluate(model, "t", gates[:1], data=data, tokens=tokens), device, 1)
    few = items[: max(16, args.examples // 16)]
    model.requires_grad_(True)
    old = timed(lambda: reference(model, data, few), device, 1) * len(items) / len(few)
    one = (
        timed(lambda: importance(model, "t", data=data, tokens=1, examples=len(few)), device, 1) * len(items) / len(few)
    )
    return [
        {"what": "importance / bare forward", "ratio": ours / floor, "goal": "<= 2.25", "floor": "2.0 (operations)"},
        {
            "what": "reference's way / importance",
            "ratio": old / ours,
            "goal": ">= 60" if device == "cuda" else "",
            "floor": "",
        },
        {
            "what": "batch of one / importance",
            "ratio": one / ours,
            "goal": ">= 400" if device == "cuda" else "",
            "floor": "",
        },
        {"what": "a quarter of the tokens a pass / importance", "ratio": fewer / ours, "goal": "", "floor": ""},
        {"what": "four times the tokens a pass / importance", "ratio": more / ours, "goal": "", "floor": ""},
        {
            "what": f"{lesions} lesions / {lesions} forwards",
            "ratio": matrix / (lesions * alone),
            "goal": "<= 1.1",
            "floor": "1.0",
        },
        {"what": "importance, µs per example", "ratio": 1e6 * ours / len(items), "goal": "", "floor": ""},
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--examples", type=int, default=None)
    parser.add_argument("--json")
    args = parser.parse_args()
    args.examples = args.examples or (16384 if args.device == "cuda" else 256)
    rows = rows_of(args)
    for row in rows:
        print(f"{row['what']:44s} {row['ratio']:10.2f}   goal {row['goal'] or '-':8s} floor {row['floor'] or '-'}")
    if args.json:
        with open(args.json, "w") as file:  # noqa: PTH123
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
