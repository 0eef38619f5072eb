"""All roles by attention against an eager forward of the same sentences, and memory against their number.

    python benchmarks/roles.py [--size tiny|cores|accelerator] [--json FILE]

Random weights of BERT-base's shape, and sentences with dependencies from the embedded corpus: speed does not depend on
what the weights know.
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from typing import Any

import torch
from comparing import Row, equal, fastest, finish, row
from transformers import BertConfig, BertModel

from headwise.atlas import texts as inputs
from headwise.atlas.measure import roles
from headwise.heads.attention import eager
from headwise.heads.modules import evaluating
from headwise.tasks.lookup import get
from headwise.testing import tiny_tokenizer

SIZES = {"tiny": (2, 64, 24), "cores": (12, 768, 1000), "accelerator": (12, 768, 1000)}  # layers, width, sentences


def build(layers: int, width: int, device: str) -> tuple[Any, Any, list]:
    rows = get("corpus.dep").rows("train")
    tokenizer = tiny_tokenizer(words := sorted({word for row in rows for word in row["words"]}), len(words) + 8)
    shape = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
    config = BertConfig(vocab_size=len(tokenizer), num_attention_heads=max(1, width // 64), **shape)
    torch.manual_seed(0)
    return BertModel(config).to(device).eval(), tokenizer, rows


@torch.no_grad()
def forward(model: Any, tokenizer: Any, rows: list) -> int:
    """The floor: an eager forward of the same batches; how many sub-words it read."""
    device, read = next(model.parameters()).device, 0
    some = inputs.annotated(tokenizer, rows, (), 128)
    with evaluating(model), eager(model):
        for batch in inputs.batched(some, 0, False, device):
            model(input_ids=batch.ids_BT, attention_mask=batch.mask_BT.long())
            read += int(batch.mask_BT.sum())
    return read


def rows_of(size: str, device: str, sentences: int | None) -> list[Row]:
    layers, width, count = SIZES[size]
    model, tokenizer, rows = build(layers, width, device)
    rows = (rows * (1 + (sentences or count) // len(rows)))[: sentences or count]
    roles(model, tokenizer, rows[: len(rows) // 4], repeats=0)
    few = resident()
    found = roles(model, tokenizer, rows, repeats=0)
    many = resident()
    work = equal("sentences with a role of position", found.texts[0], len(rows))
    subwords = sum(len(text.ids) for text in inputs.annotated(tokenizer, rows, (), 128))
    read = equal("sub-words read", forward(model, tokenizer, rows), subwords)
    ours, floor = fastest(
        [lambda: roles(model, tokenizer, rows, repeats=0), lambda: forward(model, tokenizer, rows)], 1, device
    )
    names = f"{len(found.names)} roles of {len(rows)} sentences"
    return [
        row(f"{names} / eager forward", ours / floor, "<= 3", "1.0 (operations)", same=[work, read]),
        row("the most memory held for all sentences, as a multiple of a quarter of them", many / few, "<= 1.1"),
    ]


def resident() -> int:
    """The most memory this process has held, in bytes or kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES], default="cores")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    finish(rows_of(args.size, args.device, args.sentences), args.json)


if __name__ == "__main__":
    main()
