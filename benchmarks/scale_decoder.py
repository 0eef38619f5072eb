"""Memory of a large decoder, from its shape (no rates): weights, and what a backward pass keeps.

`benchmarks/scale.py` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GB, DEVICE = 1e9, 141e9
PRECISIONS = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Decoder:
    """The shape of a decoder whose heads share keys and values."""

    layers: int = 80
    heads: int = 64
    shared: int = 8
    width: int = 8192
    inner: int = 28672
    words: int = 128256

    @property
    def attention(self) -> int:
        """Weights of all q, k, v and output projections."""
        return self.layers * 2 * self.width**2 * (self.heads + self.shared) // self.heads

    @property
    def blocks(self) -> int:
        """Weights without embeddings."""
        return self.attention + self.layers * 3 * self.width * self.inner

    @property
    def parameters(self) -> int:
        return self.blocks + 2 * self.words * self.width

    @property
    def activations(self) -> int:
        """Bytes a token leaves for the backward pass in bf16: two norms, q, k, v, head outputs, three of the MLP."""
        keys = 2 * self.width * self.shared // self.heads
        return 2 * self.layers * (4 * self.width + keys + 3 * self.inner)

    def memory(self, per_weight: float, tokens: float = 0) -> float:
        """Bytes of the weights, and of what a backward pass through so many tokens keeps."""
        return per_weight * self.parameters + tokens * self.activations


def memory_rows(model: Decoder) -> list[list[Any]]:
    each = {name: [model.memory(b, tokens) for tokens in (0, 1024, 4096)] for name, b in PRECISIONS.items()}
    return [[name, *(m / GB for m in found), -(-found[-1] // DEVICE)] for name, found in each.items()]


def parts_rows(model: Decoder) -> list[list[Any]]:
    """What is left on each device, bf16, by FSDP and by tensor parallelism of the feed-forward part."""
    found, layer = [], 2 * model.blocks / model.layers
    whole = 2 * (model.parameters - model.blocks + model.attention)
    for number in (1, 2, 4, 8):
        fsdp = DEVICE - model.memory(2) / number - (2 * layer if number > 1 else 0)
        tensor = DEVICE - whole - 2 * (model.blocks - model.attention) / number
        room = [max(0.0, left) for left in (fsdp, tensor)]
        found.append([number, room[0] / GB, room[0] // model.activations, room[1] / GB, room[1] // model.activations])
    return found


def features(model: Decoder, sentences: int = 120_000) -> float:
    """Bytes of all heads' and all layers' vectors in bf16."""
    return 2.0 * sentences * 2 * model.layers * model.width
