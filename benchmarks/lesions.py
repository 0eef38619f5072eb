"""Every head closed alone: forwards from the lesioned layer on against whole forwards, for an encoder and for prompts.

    python benchmarks/lesions.py [--device cuda] [--examples 64] [--json FILE]

With TransformerLens and nnsight installed, they close the heads of the same prompts too, by whole forwards.

Random weights, six layers and twelve: layers below a lesion are not run again, so L layers of heads cost
(L + 1) / 2L of the layers' work, and all of the embeddings' and the output head's. Losses are compared first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from comparing import Row, equal, fastest, finish, row
from importance import build
from language import bridge_of
from language import build as language

from headwise.heads.gates import Heads
from headwise.measuring.evaluate import to_device
from headwise.measuring.replay import Replay
from headwise.models.batching import Order
from headwise.models.likelihood import piece
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
    rows.append(ratio(what, "<= 0.66", prompts, "several", tokens, device, repeats))
    return [*rows, *peer_rows(language(96, device), tokens, device, repeats)]


def peer_rows(lm: Any, tokens: int, device: str, repeats: int) -> list[Row]:
    """Each head closed alone on the same prompts by TransformerLens and nnsight, a forward for each."""
    data, rows, floor = lm.encode("short", "train"), [], f"{2 * 6 / 7:.2f} (layers run)"
    ours = lambda: importance(lm, "short", "ablation", data=data, tokens=tokens, log=lambda line: None).scores  # noqa: E731
    for peer, module, closed in (("TransformerLens", "transformer_lens", by_lens), ("nnsight", "nnsight", by_nnsight)):
        what = f"{peer} / every head closed, prompts"
        if find_spec(module) is None:
            rows.append({"what": what, "skipped": f"{peer} is not installed"})
            continue
        forward = closed(lm, device)
        theirs = partial(one_by_one, lm, data, tokens, forward)
        same = [equal("losses added", ours(), theirs(), within=1e-5)]
        fast, slow = fastest([ours, theirs], repeats, device)
        rows.append(row(what, slow / fast, ">= 1.6", floor, same=same, peer=peer))
    return rows


@torch.no_grad()
def one_by_one(lm: Any, data: Any, tokens: int, forward: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The loss that each head adds by L x H + 1 forwards of every batch, ``forward(ids, mask, head)`` giving logits."""
    heads: list[Any] = [
        (layer, head) for layer in range(lm.attention.num_layers) for head in range(lm.attention.num_heads)
    ]
    total = torch.zeros(len(heads), dtype=torch.float64)
    for items in Order(data.lengths, tokens=tokens).plain():
        batch = to_device(data.batch(items), lm.device)
        prompt, right, wrong = piece(batch, 0), batch["label"][:, None] + 1, 2 - batch["label"][:, None]
        choices = torch.cat([piece(batch, choice).ids for choice in (right, wrong)], 1)  # a token each
        losses = []
        for head in (None, *heads):
            scores = forward(prompt.ids, prompt.mask.long(), head).log_softmax(-1)[prompt.last].gather(1, choices)
            losses.append((scores[:, 1] - scores[:, 0]).double().cpu())
        total += (torch.stack(losses[1:]) - losses[0]).sum(1)
    return (total / len(data)).view(lm.attention.shape).float()


def by_lens(lm: Any, device: str) -> Callable[..., torch.Tensor]:

    bridge = bridge_of(lm, device)

    def forward(ids: torch.Tensor, mask: torch.Tensor, closed: tuple[int, int] | None) -> torch.Tensor:
        def close(z: torch.Tensor, hook: Any) -> torch.Tensor:
            width = z.shape[-1] if z.ndim == 4 else lm.attention.head_dim
            z.view(*z.shape[:2], -1, width)[:, :, closed[1]] = 0  # type: ignore[index]
            return z

        hooks = [(f"blocks.{closed[0]}.attn.hook_z", close)] if closed else []
        with bridge.hooks(fwd_hooks=hooks):
            return bridge(ids, attention_mask=mask)

    return forward


def by_nnsight(lm: Any, device: str) -> Callable[..., torch.Tensor]:
    from nnsight import NNsight  # pyright: ignore[reportMissingImports]

    traced, size = NNsight(deepcopy(lm.model)), lm.attention.head_dim

    def forward(ids: torch.Tensor, mask: torch.Tensor, closed: tuple[int, int] | None) -> torch.Tensor:
        with traced.trace(input_ids=ids, attention_mask=mask):
            if closed:
                layer, head = closed
                traced.model.layers[layer].self_attn.o_proj.input[:, :, head * size : (head + 1) * size] = 0
            logits = traced.lm_head.output.save()
        return logits

    return forward


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
