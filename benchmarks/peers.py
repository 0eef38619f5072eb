"""Importance against captum, on the same model, data and batches; scores must agree.

    python benchmarks/peers.py [--size tiny|cores|accelerator] [--json FILE]

With captum alone one asks for gradient times activation at the input of every attention output projection and adds up
each head's part. Its backward also fills the gradients of all parameters, and every layer's product stays in memory.
"""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from importance import build, timed

from headwise.batching import Encoded, Order, encode
from headwise.evaluate import to_device
from headwise.importance import importance
from headwise.model import MultiTaskModel

SIZES = {  # shape, examples, padded tokens in a batch, device, repeats
    "tiny": ("small", 8, 512, "cpu", 1),
    "cores": ("small", 256, 4096, "cpu", 3),
    "accelerator": ("base", 8192, 65536, "cuda", 3),
}


def by_captum(model: MultiTaskModel, data: Encoded, items: np.ndarray, tokens: int) -> torch.Tensor:
    """Mean |gradient times activation| of every head, (L, H), with captum as its manual shows."""
    from captum.attr import LayerGradientXActivation

    heads = model.config.num_attention_heads
    layers: Any = [m for n, m in model.encoder.named_modules() if n.endswith("attention.output.dense")]
    total = torch.zeros(len(layers), heads)
    batch: dict[str, torch.Tensor] = {}

    def losses(input_ids: torch.Tensor) -> torch.Tensor:
        return model("t", {**batch, "input_ids": input_ids}).loss

    explain = LayerGradientXActivation(losses, layers)
    for part in Order(data.lengths[items], tokens=tokens).plain():
        batch = to_device(data.batch(items[part]), model.device)
        found = explain.attribute(batch["input_ids"], attribute_to_layer_input=True)
        for layer, product in enumerate(found):
            value: Any = product[0] if isinstance(product, tuple) else product
            total[layer] += value.unflatten(-1, (heads, -1)).sum((1, -1)).abs().sum(0).detach().cpu()
    return total / len(items)


def rows_of(size: str) -> list[dict[str, Any]]:
    if find_spec("captum") is None:
        return [{"what": "captum / importance", "skipped": "captum is not installed"}]
    shape, examples, tokens, device, repeats = SIZES[size]
    model = build(shape, examples, device)
    data = encode(model.tasks["t"], "train", model.tokenizer, model.max_length)
    items = np.arange(len(data))
    ours = importance(model, "t", data=data, tokens=tokens).scores
    model.requires_grad_(True)
    theirs = by_captum(model, data, items, tokens)
    away = float((ours - theirs).abs().max() / ours.max())
    fast = timed(lambda: importance(model, "t", data=data, tokens=tokens), device, repeats)
    slow = timed(lambda: by_captum(model, data, items, tokens), device, repeats)
    return [
        {"what": "captum / importance", "ratio": slow / fast, "goal": ">= 1", "floor": "1.5 (operations)"},
        {"what": "largest difference of scores", "ratio": away, "goal": "<= 1e-3", "floor": "0"},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES], default="accelerator" if torch.cuda.is_available() else "cores")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = rows_of(args.size)
    for row in rows:
        print(row["what"], row.get("skipped") or f"{row['ratio']:.3g}   goal {row['goal']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
