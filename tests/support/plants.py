"""A model whose one head, and no other, carries a label; and vectors for probes."""

from __future__ import annotations

import torch

from headwise.tasks import Classify, Rows, Task
from headwise.testing import tiny, tiny_tokenizer

WORDS = [f"w{i}" for i in range(20)]


def planted(layer: int = 1, head: int = 2):
    """A tiny BERT that keeps one direction u of its stream apart, and its tokenizer.

    The markers ``yes`` and ``no`` differ in the sign of u alone, and only the values of one head read it.
    """
    tokenizer, model = tiny_tokenizer([*WORDS, "yes", "no"]), tiny("bert")
    u = torch.zeros(24)
    u[0], u[1] = 0.5**0.5, -(0.5**0.5)
    off = torch.eye(24) - torch.outer(u, u)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embeddings" in name and weight.ndim == 2:
                weight.copy_(weight @ off)
            elif "LayerNorm" in name:
                weight[:2] = 1.0 if name.endswith("weight") else 0.0
            elif weight.ndim == 2 and weight.shape[1] == 24 and "attention.output" not in name:
                weight.copy_(weight @ off)
            if ("output.dense" in name or "attention.output" in name) and "LayerNorm" not in name:
                weight.copy_(off @ weight)
        table = model.embeddings.word_embeddings.weight
        yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
        table[yes], table[no] = table[yes] + 3 * u, table[yes] - 3 * u
        model.encoder.layer[layer].attention.self.value.weight[6 * head] += 4 * u
    return model, tokenizer


def marked(rows: int = 600, seed: int = 0, shuffled: bool = False) -> Task:
    """Which of two markers a text holds; ``shuffled`` labels say nothing."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int) -> int:
        return int(torch.randint(0, high, (1,), generator=generator))

    made = []
    for _ in range(2 * rows):
        text, label = [WORDS[draw(20)] for _ in range(4 + draw(4))], ("no", "yes")[draw(2)]
        text.insert(draw(len(text)), label)
        made.append({"text": " ".join(text), "label": ("no", "yes")[draw(2)] if shuffled else label})
    made = list({row["text"]: row for row in made}.values())
    parts = Rows(made[:rows], made[rows : rows + rows // 3], made[rows + rows // 3 : 2 * rows - rows // 3])
    return Task("marker", Classify(("no", "yes")), parts, "accuracy")


def clouds(
    heads: int, rows: int, size: int, classes: int, seed: int = 0, reach: float = 1.0
) -> tuple[torch.Tensor, ...]:
    """Vectors (P, N, D) of uneven spread, and labels that the first head's tell in part."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(heads, size, size, generator=generator) * torch.logspace(0, -1.5, size)[:, None]
    x = torch.randn(heads, rows, size, generator=generator) @ mix + torch.randn(heads, 1, size, generator=generator)
    scores = reach * x[0] @ torch.randn(size, classes, generator=generator)
    return x, (scores + 2 * torch.randn(rows, classes, generator=generator)).argmax(1)
