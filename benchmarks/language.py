"""Language models: importance and lesions against bare forwards, captum and TransformerLens, on the same prompts.

    python benchmarks/language.py [--device cuda] [--rows 192] [--json FILE]

Random weights of a small Llama. A bare forward asks for the likelihoods of every choice of every row, without a
gradient. With captum alone one asks for gradient times activation at the input of every attention output projection;
with TransformerLens (`pip install transformer-lens`, 4.3 or later) for the same at its hooks ``hook_z``. It reads all
logits of a prompt and its attention is eager; ours is measured as it is and with eager attention.
"""

from __future__ import annotations

import argparse
import tempfile
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from comparing import Row, equal, fastest, finish, row, subwords_of
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from headwise.measuring.evaluate import evaluate, to_device
from headwise.models.batching import Encoded, Order
from headwise.models.language import LanguageModel
from headwise.models.likelihood import piece
from headwise.scoring.importance import importance
from headwise.testing import causal_tokenizer, toy_prompts

LESIONS = 8
WORDS = [f"w{i}" for i in range(40)]


def build(rows: int, device: str) -> LanguageModel:
    """A Llama of six layers with tasks of one-token choices and of longer ones."""
    size = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 12, "num_key_value_heads": 4}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=8000, **size, **heads)).eval()
    return LanguageModel(model, causal_tokenizer(WORDS), toy_prompts(WORDS, rows)[:3]).to(device)


@torch.no_grad()
def bare(lm: LanguageModel, task: str, data: Encoded, tokens: int) -> None:
    """The losses of all rows and nothing else."""
    for items in Order(data.lengths, tokens=tokens).plain():
        lm.losses(task, to_device(data.batch(items), lm.device))


def by_captum(lm: LanguageModel, task: str, data: Encoded, tokens: int) -> torch.Tensor:
    """Mean |gradient times activation| of every head, (L, H), with captum as its manual shows."""
    from captum.attr import LayerGradientXActivation

    layers: Any = [layer.self_attn.o_proj for layer in lm.model.model.layers]
    total = torch.zeros(lm.attention.shape)
    batch: dict[str, torch.Tensor] = {}
    explain = LayerGradientXActivation(lambda ids: lm.losses(task, {**batch, "input_ids": ids}), layers)
    for items in Order(data.lengths, tokens=tokens).plain():
        batch = to_device(data.batch(items), lm.device)
        for layer, product in enumerate(explain.attribute(batch["input_ids"], attribute_to_layer_input=True)):
            value: Any = product[0] if isinstance(product, tuple) else product
            total[layer] += value.unflatten(-1, (total.shape[1], -1)).sum((1, -1)).abs().sum(0).detach().cpu()
    return total / len(data)


def cost_rows(lm: LanguageModel, task: str, words: str, tokens: int, device: str, repeats: int) -> list[Row]:
    """Importance against a bare forward; several lesions in one pass against one pass for each."""
    data = lm.encode(task, "train")
    scored = partial(importance, lm, task, data=data, tokens=tokens)
    read = [subwords_of(lm.model, work) for work in (scored, lambda: bare(lm, task, data, tokens))]
    ours, floor = fastest([scored, lambda: bare(lm, task, data, tokens)], repeats, device)
    same = [equal("sub-words read", *read)]
    rows = [row(f"importance / bare forward, {words}", ours / floor, "<= 2.1", "2.0 (operations)", same=same)]
    gates = torch.ones(LESIONS, *lm.attention.shape)
    for number, lesion in enumerate(gates):
        lesion[number % 6, number] = 0
    measured = partial(evaluate, lm, task, data=data, split="train", tokens=tokens)
    together, one = lambda: measured(gates=gates), lambda: [measured(gates=gate[None])[0] for gate in gates]
    same = [equal("answers", *([score.predictions for score in way()] for way in (together, one)))]
    several, apart = fastest([together, one], repeats, device)
    return [*rows, row(f"{LESIONS} lesions / {LESIONS} evaluations, {words}", several / apart, "<= 1", "", same=same)]


def peer_rows(lm: LanguageModel, tokens: int, device: str, repeats: int) -> list[Row]:
    if find_spec("captum") is None:
        return [{"what": "captum / importance, prompts", "skipped": "captum is not installed"}]
    data = lm.encode("short", "train")
    lm.requires_grad_(False)
    lm.model.get_input_embeddings().requires_grad_(True)  # captum's faster setting: one path to differentiate is left
    ours = lambda: importance(lm, "short", data=data, tokens=tokens).scores  # noqa: E731
    theirs = lambda: by_captum(lm, "short", data, tokens)  # noqa: E731
    same = [equal("scores", ours(), theirs(), 1e-3)]
    same.append(equal("sub-words read", *(subwords_of(lm.model, way) for way in (ours, theirs))))
    fast, slow = fastest([ours, theirs], repeats, device)
    return [row("captum / importance, prompts", slow / fast, "", "1 (operations)", same=same, peer="captum")]


def by_lens(bridge: Any, lm: LanguageModel, data: Encoded, tokens: int) -> torch.Tensor:
    """Mean |gradient times activation| of every head, (L, H), by the hooks of TransformerLens."""
    total = torch.zeros(lm.attention.shape)
    kept: dict[int, torch.Tensor] = {}

    def keep(layer: int, z: torch.Tensor, hook: Any) -> torch.Tensor:
        kept[layer] = z
        return z  # what a hook returns is in the graph

    hooks = [(f"blocks.{layer}.attn.hook_z", partial(keep, layer)) for layer in range(len(total))]
    for items in Order(data.lengths, tokens=tokens).plain():
        batch = to_device(data.batch(items), lm.device)
        prompt, right, wrong = piece(batch, 0), batch["label"][:, None] + 1, 2 - batch["label"][:, None]
        choices = torch.cat([piece(batch, choice).ids for choice in (right, wrong)], 1)  # a token each
        with bridge.hooks(fwd_hooks=hooks):
            logits = bridge(prompt.ids, attention_mask=prompt.mask.long())
        scores = logits.log_softmax(-1)[prompt.last].gather(1, choices)
        gradients = torch.autograd.grad((scores[:, 1] - scores[:, 0]).sum(), list(kept.values()))
        for (layer, z), gradient in zip(kept.items(), gradients):
            product = z.detach() * gradient
            total[layer] += product.view(*gradient.shape[:2], total.shape[1], -1).sum((1, 3)).abs().sum(0).cpu()
    return total / len(data)


def lens_rows(lm: LanguageModel, tokens: int, device: str, repeats: int) -> list[Row]:
    """Importance of the same prompts by TransformerLens, on a copy of the model."""
    what = "TransformerLens / importance, prompts"
    if find_spec("transformer_lens") is None:
        return [{"what": what, "skipped": "TransformerLens is not installed"}]
    bridge, data = bridge_of(lm, device), lm.encode("short", "train")
    rows, floor = [], "1 (operations)"
    for attention, words in (("sdpa", ""), ("eager", ", both eager")):
        lm.model.set_attn_implementation(attention)
        ours = lambda: importance(lm, "short", data=data, tokens=tokens).scores  # noqa: E731
        theirs = lambda: by_lens(bridge, lm, data, tokens)  # noqa: E731
        same = [equal("scores", ours(), theirs(), 1e-3)]
        same.append(equal("sub-words read", subwords_of(lm.model, ours), subwords_of(bridge.original_model, theirs)))
        fast, slow = fastest([ours, theirs], repeats, device)
        rows.append(row(what + words, slow / fast, "", floor, same=same, peer="TransformerLens"))
    lm.model.set_attn_implementation("sdpa")
    return rows


def bridge_of(lm: LanguageModel, device: str) -> Any:
    """A copy of the model in TransformerLens."""
    from transformer_lens import TransformerBridge  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:  # it reads a tokenizer from files alone
        lm.tokenizer.save_pretrained(folder)
        how: dict[str, Any] = {"tokenizer": AutoTokenizer.from_pretrained(folder), "device": device}
        return TransformerBridge.boot_transformers("llama", hf_model=deepcopy(lm.model), **how)


def rows_of(device: str, examples: int, repeats: int) -> list[Row]:
    lm, tokens = build(examples, device), 2048 if device == "cpu" else 32768
    _ = lm.attention  # heads are found by forwards of their own, once
    rows = cost_rows(lm, "short", "choices of a token", tokens, device, repeats)
    rows += cost_rows(lm, "several", "longer choices", tokens, device, repeats)
    return rows + peer_rows(lm, tokens, device, repeats) + lens_rows(lm, tokens, device, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    finish(rows_of(args.device, args.rows, args.repeats), args.json)


if __name__ == "__main__":
    main()
