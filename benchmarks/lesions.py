"""Every head closed alone: forwards from the lesioned layer on against whole forwards, for an encoder and for prompts.

    python benchmarks/lesions.py [--device cuda] [--examples 64] [--json FILE]

Random weights, six layers and twelve: layers below a lesion are not run again, so L layers of heads cost
(L + 1) / 2L of the layers' work, and all of the embeddings' and the output head's. Losses are compared first.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from comparing import Row, equal, fastest, finish, row
from importance import build

from headwise.heads.gates import Heads
from headwise.measuring.replay import Replay
from headwise.models.subject import Subject
from headwise.scoring.importance import importance
from headwise.testing import toy_language_model


@torch.no_grad()
def whole(model: Subject, task: str, data, tokens: int) -> torch.Tensor:
    """The scores of `importance` by ablation from L x H + 1 whole forwards of every batch."""
    run, Replay.run = Replay.run, lambda self, gates, work: work(self.heads)
    try:
        return importance(model, task, "ablation", data=data, tokens=tokens, log=lambda line: None).scores
    finally:
        Replay.run = run


def ratio(what: str, goal: str, model: Subject, task: str, tokens: int, device: str, repeats: int) -> Row:
    data, heads = model.encode(task, "train"), model.attention
    ours = partial(importance, model, task, "ablation", data=data, tokens=tokens, log=lambda line: None)
    theirs = partial(whole, model, task, data, tokens)
    same = [equal("losses added", ours().scores, theirs(), within=1e-6)]
    mine, other = fastest([ours, theirs], repeats, device)
    floor = f"{(heads.num_layers + 1) / (2 * heads.num_layers):.2f} (layers run)"
    return row(what, mine / other, goal, floor, same=same)


def decoder(layers: int) -> Subject:
    """A small llama with choices of several tokens after a prompt, which is read once."""
    model = toy_language_model("llama", torch.float32, rows=48)
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama",
        vocab_size=64,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    torch.manual_seed(0)
    return type(model)(AutoModelForCausalLM.from_config(config).eval(), model.tokenizer, list(model.tasks.values()))


def rows_of(device: str, examples: int, repeats: int) -> list[Row]:
    encoder = build("base" if device == "cuda" else "small", examples, device)
    layers = Heads.of(encoder.encoder).num_layers
    tokens = 32768 if device == "cuda" else 2048
    goal = "<= 0.62" if layers == 6 else "<= 0.60"
    rows = [ratio(f"every head closed / whole forwards, {layers} layers", goal, encoder, "t", tokens, device, repeats)]
    prompts = decoder(6).to(device)
    what = "every head closed / whole forwards, prompts, 6 layers"
    return [*rows, ratio(what, "<= 0.66", prompts, "several", tokens, device, repeats)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    finish(rows_of(args.device, args.examples, args.repeats), args.json)


if __name__ == "__main__":
    main()
