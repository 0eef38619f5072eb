"""Importance of a large decoder: against a bare forward, the device's matrix rate, and the memory said beforehand.

    python benchmarks/large.py [--shape 8b] [--tokens 8192] [--parts norms,products] [--profile] [--json FILE]
    python benchmarks/large.py --variants [--lengths 512,4096] [--count 2] [--json FILE]

Random weights in bf16, built on the device from a configuration (8b: 32 layers of 32 heads in 8 groups, width 4096).
"""

# ruff: noqa: B023
from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from comparing import CLOCK, Row, equal, fastest, finish, parameters_of, row
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM

from headwise.models.device import peak_of, weight_bytes
from headwise.models.plain import Wrapped
from headwise.scoring import backward, gradient
from headwise.scoring.importance import importance

ANSWER = 8  # tokens of a row whose loss is taken
SHAPES = {  # layers, heads, groups, width, inner width, words
    "8b": (32, 32, 8, 4096, 14336, 128256),
    "1b": (16, 32, 8, 2048, 8192, 128256),
    "tiny": (4, 8, 4, 256, 1024, 1024),
}


def build(shape: str, device: str) -> Any:
    layers, heads, groups, width, inner, words = SHAPES[shape]
    config = AutoConfig.for_model(
        "llama",
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        hidden_size=width,
        intermediate_size=inner,
        vocab_size=words,
        use_cache=False,
    )
    with torch.device(device):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def last_tokens(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Each row's loss on its last tokens, as for the answer after a prompt."""
    ids = batch["input_ids"]
    logits_BTV = model(input_ids=ids, logits_to_keep=ANSWER + 1).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(), ids[:, -ANSWER:].flatten(), reduction="none"
    )
    return losses.view(len(ids), -1).mean(1)


def matrix_rate(device: str) -> float:
    """Operations a second of a bf16 matrix product."""
    size = 8192 if device == "cuda" else 512
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    (best,) = fastest([lambda: [a @ b for _ in range(10)]], 3, device)
    return 20 * size**3 / best


def operations(model: Any, rows: int, length: int) -> tuple[float, float]:
    """Those of the layers in a forward, and in a forward and a backward of activations alone.

    A causal product of queries and keys takes half of the whole; the backward pass of attention has five products where
    the forward has two.
    """
    config, places = model.config, rows * length
    weights = 2.0 * places * sum(p.numel() for p in model.model.layers.parameters())
    attention = 2.0 * places * length * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    return weights + attention, 2 * weights + 3.5 * attention


def kernels(work: Callable[[], Any], rows: int = 18) -> str:
    """A table of what the device spent its time on."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    found = sorted(profile.key_averages(), key=lambda each: -each.self_device_time_total)
    lines = [f"{sum(each.self_device_time_total for each in found) / 1e3:9.2f} ms in all"]
    return "\n".join(
        lines + [f"{e.self_device_time_total / 1e3:9.2f} ms {e.count:5} x {e.key[:110]}" for e in found[:rows]]
    )


def drawn(model: Any, size: int, length: int, count: int) -> list[dict[str, Any]]:
    """Batches of random sub-words."""
    generator = torch.Generator().manual_seed(0)
    words = model.config.vocab_size
    return [{"input_ids": torch.randint(3, words, (size, length), generator=generator)} for _ in range(count)]


VARIANTS = {  # parts whose backward pass is one kernel, and whether attention is cuDNN's
    "own": (set(), False),
    "norms": ({"norms"}, False),
    "norms, products": ({"norms", "products"}, False),
    "all": ({"norms", "products", "rotations"}, False),
    "own, cudnn": (set(), True),
    "all, cudnn": ({"norms", "products", "rotations"}, True),
}


@contextmanager
def variant(name: str) -> Iterator[None]:
    parts, cudnn = VARIANTS[name]
    before, backward.PARTS = backward.PARTS, parts
    kernels = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(kernels, set_priority=True) if cudnn else nullcontext():
        yield
    backward.PARTS = before


def compared(shape: str, tokens: int, lengths: list[int], count: int, device: str, profile: bool) -> list[Row]:
    """Every variant on one model: time against a bare forward, memory, and scores against the model's own backward."""
    rows = near(device)
    model = build(shape, device)
    rate = matrix_rate(device)
    rows += [row("TFLOP/s of a matrix product", rate / 1e12), *projections(model, tokens, device)]
    gradient.LARGE = 1e18
    for length in lengths:
        batches = drawn(model, max(1, tokens // length), length, count)
        base = torch.zeros(())
        subject = Wrapped(model, last_tokens, batches[0])
        ours = lambda: importance(model, batches, loss=last_tokens, log=lambda line: None).scores  # noqa: E731

        @torch.no_grad()
        def forward() -> list[torch.Tensor]:
            moved = [{name: value.to(device) for name, value in batch.items()} for batch in batches]
            return [subject.losses("loss", batch).sum().cpu() for batch in moved]

        work = count * operations(model, len(batches[0]["input_ids"]), length)[1]
        (plain,) = fastest([forward], 2, device)
        for name in VARIANTS:
            with variant(name):
                scores = ours()
                base = scores if name == "own" else base
                spent, bare = fastest([ours, forward], 2, device)
                peak = peak_of(lambda: importance(model, batches[:1], loss=last_tokens), torch.device(device))
                away = float((scores - base).norm() / base.norm())
                what = f"{name}, {length} long"
                rows += [
                    row(f"importance over the plain forward, {what}", spent / plain, "<= 2.1"),
                    row(f"importance over a forward of this variant, {what}", spent / bare),
                    row(f"fraction of the matrix rate, {what}", work / spent / rate, ">= 0.5"),
                    row(f"GB beside the weights, {what}", peak / 1e9),
                    row(f"scores away from own, {what}", away),
                ]
                print(
                    f"{length} {name}: {spent:.4f} s, forward {bare:.4f} s, {peak / 1e9:.2f} GB, {away:.1e}", flush=True
                )
                if profile and name in ("own", "all", "all, cudnn"):
                    print(*(kernels(each, 30) for each in (forward, ours)), sep="\n\n", flush=True)
    return rows


def near(device: str) -> list[Row]:
    """How far scores in bf16 lie from those in 32 bits, with the model's own backward pass and with ours."""
    model = build("1b" if device == "cuda" else "tiny", device)
    batches = drawn(model, 4, 512, 2)
    ours = lambda: importance(model, batches, loss=last_tokens, log=lambda line: None).scores  # noqa: E731
    found = {}
    for name in VARIANTS:
        with variant(name):
            found[name] = ours()
    model.float()
    with variant("own"):
        exact = ours()
    return [
        row(f"scores away from those in 32 bits, {n}", float((s - exact).norm() / exact.norm()))
        for n, s in found.items()
    ]


def projections(model: Any, tokens: int, device: str) -> list[Row]:
    """TFLOP/s of each projection, and of its gradient."""
    rows = []
    for name, module in model.model.layers[0].named_modules():
        if isinstance(module, torch.nn.Linear):
            x = torch.randn(tokens, module.in_features, device=device, dtype=torch.bfloat16, requires_grad=True)
            g = torch.randn(tokens, module.out_features, device=device, dtype=torch.bfloat16)
            w = module.weight.detach()
            ways = [lambda: [x.detach() @ w.T for _ in range(20)], lambda: [g @ w for _ in range(20)]]
            one, two = (40 * tokens * w.numel() / t / 1e12 for t in fastest(ways, 2, device))
            rows += [row(f"TFLOP/s forward, {name}", one), row(f"TFLOP/s of its gradient, {name}", two)]
    return rows


def rows_of(shape: str, tokens: int, length: int, count: int, device: str, profile: bool = False) -> list[Row]:
    began = CLOCK()
    model = build(shape, device)
    print(f"built {parameters_of(model) / 1e9:.2f} billion weights in {CLOCK() - began:.1f} s", flush=True)
    size = max(1, tokens // length)
    batches = drawn(model, size, length, count)
    subject, said = Wrapped(model, last_tokens, batches[0]), []

    @torch.no_grad()
    def forward() -> list[torch.Tensor]:
        moved = [{name: value.to(device) for name, value in batch.items()} for batch in batches]
        return [subject.losses("loss", batch).sum().cpu() for batch in moved]

    gradient.LARGE = 0
    scores = importance(model, batches, loss=last_tokens, log=said.append)
    estimate = 1e9 * float(re.search(r"([\d.]+) GB beside", said[0])[1]) if "GB beside" in said[0] else 0.0
    print("\n".join(said), flush=True)
    gradient.LARGE = 1e18
    peak = peak_of(lambda: importance(model, batches[:1], loss=last_tokens, log=said.append), torch.device(device))
    ours = lambda: importance(model, batches, loss=last_tokens, log=said.append)  # noqa: E731
    spent, bare = fastest([ours, forward], 2, device)
    least, work = (count * each for each in operations(model, size, length))
    if profile:
        print(*(kernels(each) for each in (forward, ours)), sep="\n\n", flush=True)
    read = equal("sub-words read", size * length * count, size * length * count)
    same = [read, equal("heads scored", scores.scores.isfinite().sum(), scores.scores.numel())]
    name = f"{shape}, {tokens} tokens at once, {length} long"
    rows = [
        row(
            f"importance / bare forward, {name}", spent / bare, "<= 2.1", f"{work / least:.2f} (operations)", same=same
        ),
        row(f"fraction of the matrix rate, {name}", work / spent / matrix_rate(device), ">= 0.5", "1"),
        row(f"tokens a second, {name}", size * length * count / spent),
        row(f"GB of weights, {name}", weight_bytes(model) / 1e9),
        row(f"GB that importance took beside them, {name}", peak / 1e9),
    ]
    if estimate:
        rows.append(row(f"memory said before it starts, over what it took, {name}", estimate / peak, "<= 1.1"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", choices=[*SHAPES])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--count", type=int, default=8, help="batches")
    parser.add_argument("--parts", help="parts whose backward pass is one kernel (default: norms)")
    parser.add_argument("--variants", action="store_true", help="compare such parts, and kernels of attention")
    parser.add_argument("--lengths", default="512,4096", help="of rows, with --variants")
    parser.add_argument("--profile", action="store_true", help="print the kernels of both")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    shape = args.shape or ("8b" if args.device == "cuda" else "tiny")
    if args.parts is not None:
        backward.PARTS = {part for part in args.parts.split(",") if part}
    if args.variants:
        lengths = [int(length) for length in args.lengths.split(",")]
        return finish(compared(shape, args.tokens, lengths, args.count, args.device, args.profile), args.json)
    finish(rows_of(shape, args.tokens, args.length, args.count, args.device, args.profile), args.json)


if __name__ == "__main__":
    main()
