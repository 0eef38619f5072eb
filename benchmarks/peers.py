"""Importance against captum, on the same model, data and batches; scores must agree.

    python benchmarks/peers.py [--size tiny|cores|accelerator] [--json FILE]

With captum alone one asks for gradient times activation at the input of every attention output projection and adds up
each head's part. It asks autograd for the gradients of these inputs alone, as we do, so that both do the same
operations. Parameters are frozen on both sides, captum's faster setting: only the word embeddings still ask for a
gradient, without which captum has no path to differentiate.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comparing import Row, equal, fastest, finish, row, subwords_of
from importance import build

from headwise.measuring.evaluate import to_device
from headwise.models.batching import Encoded, Order, encode
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import importance

SIZES = {  # shape, examples, padded tokens in a batch, device, repeats
    "tiny": ("small", 8, 512, "cpu", 1),
    "cores": ("small", 128, 2048, "cpu", 2),
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


def rows_of(size: str) -> list[Row]:
    if find_spec("captum") is None:
        return [{"what": "captum / importance", "skipped": "captum is not installed"}]
    shape, examples, tokens, device, repeats = SIZES[size]
    model = build(shape, examples, device)
    data = encode(model.tasks["t"], "train", model.tokenizer, model.max_length)
    items = np.arange(len(data))
    model.requires_grad_(False)
    model.encoder.get_input_embeddings().requires_grad_(True)

    def ours() -> torch.Tensor:
        return importance(model, "t", data=data, tokens=tokens).scores

    def theirs() -> torch.Tensor:
        return by_captum(model, data, items, tokens)

    same = [
        equal("scores", ours(), theirs(), 1e-3),
        equal("sub-words read", *(subwords_of(model.encoder, way) for way in (ours, theirs))),
    ]
    fast, slow, whole = fastest([ours, theirs, _moving(model, theirs)], repeats, device)
    return [
        row("captum / importance", slow / fast, "", "1 (operations)", same=same, peer="captum"),
        row("captum, no parameter frozen / importance", whole / fast, same=same, peer="captum"),
    ]


def _moving(model: MultiTaskModel, work: Any) -> Any:
    """The same with parameters as they are loaded, all of them asking for gradients."""

    def run() -> None:
        asked = {p: p.requires_grad for p in model.parameters()}
        model.requires_grad_(True)
        work()
        for parameter, wanted in asked.items():
            parameter.requires_grad_(wanted)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES], default="accelerator" if torch.cuda.is_available() else "cores")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    finish(rows_of(args.size), args.json)


if __name__ == "__main__":
    main()
