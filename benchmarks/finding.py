"""What it costs to find the heads of a model by tracing, beside a lookup by names and beside one forward.

    python benchmarks/finding.py [--shape small|base] [--repeats N] [--json FILE]

Random weights in BERT's and Llama's layouts. Before anything is timed, names and trace must give the same sites.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from comparing import Row, equal, fastest, finish, row, seconds
from importance import SHAPES
from transformers import AutoModel, BertConfig, LlamaConfig

from headwise import Heads
from headwise.heads import proven
from headwise.heads.finding import _named
from headwise.heads.modules import forget
from headwise.heads.samples import samples


def models(shape: str) -> dict[str, Any]:
    layers, heads, hidden, inner = SHAPES[shape]
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden}
    sizes |= {"intermediate_size": inner, "vocab_size": 1000}
    kinds = {"BERT": BertConfig(**sizes), "Llama": LlamaConfig(**sizes)}
    return {name: AutoModel.from_config(config).eval() for name, config in kinds.items()}


def measured(name: str, model: Any, shape: str, repeats: int) -> list[Row]:
    inputs = next(samples(model))

    def anew() -> Heads:
        forget(model)
        proven._known.clear()
        return Heads.of(model)

    @torch.no_grad()
    def forward() -> Any:
        return model(**inputs)

    by_name = _named(model, model.config.model_type, None, None)["sites"]
    found = anew().sites
    places = [[(site.start, site.head_dim, *site.kept) for site in sites] for sites in (found, by_name)]
    same = [equal("sites", *places), f"projections: {len({site.name for site in (*found, *by_name)})}"]
    first = seconds(anew)
    traced, one = fastest([anew, forward], repeats)
    again = min(seconds(lambda: Heads.of(model)) for _ in range(20))
    names = min(seconds(lambda: _named(model, model.config.model_type, None, None)) for _ in range(20))
    what = f"{name}-{shape}"
    return [
        row(f"{what}: seconds to find its heads", first, "<= 1", "each attention call and projection, traced"),
        row(f"{what}: find heads / one forward of the sample", traced / one, same=same, floor="1 + bits of heads"),
        row(f"{what}: milliseconds to find them again", 1000 * again, "<= 5", "a walk over the modules"),
        row(f"{what}: find them again / look them up by names", again / names, "<= 1.2", same=same),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=[*SHAPES], default="base")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [
        each for name, model in models(args.shape).items() for each in measured(name, model, args.shape, args.repeats)
    ]
    finish(rows, args.json)


if __name__ == "__main__":
    main()
