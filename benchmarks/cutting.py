"""How fast a cut model really is, beside the ceiling that its share of operations allows, and beside Torch-Pruning.

    python benchmarks/cutting.py [--size tiny|cores|accelerator] [--json FILE]

A random share of heads goes, the same in every layer; times of whole and cut models take turns. The ceiling counts the
operations of matrix products; heads are only a third of them, so no cut can make a model twice as fast.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from importance import SHAPES
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, BertConfig

from headwise.exports import export
from headwise.prune import prune

SHARES = (0.0, 0.3, 0.5, 0.7)


class Size(NamedTuple):
    shape: str
    batch: int
    length: int
    device: str
    repeats: int


SIZES = {
    "tiny": Size("small", 1, 8, "cpu", 1),
    "cores": Size("small", 8, 128, "cpu", 7),
    "accelerator": Size("base", 64, 128, "cuda", 30),
}


def build(size: Size) -> Any:
    layers, heads, hidden, inner = SHAPES[size.shape]
    shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden}
    config = BertConfig(**shape, intermediate_size=inner)
    return AutoModel.from_config(config).to(size.device).eval()


def mask_of(model: Any, share: float) -> torch.Tensor:
    """The same number of random heads in every layer."""
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    generator, mask = torch.Generator().manual_seed(0), torch.zeros(layers, heads, dtype=torch.bool)
    for row in mask:
        row[torch.randperm(heads, generator=generator)[: round(share * heads)]] = True
    return mask


def operations(model: Any, inputs: dict[str, torch.Tensor]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs)
    return counter.get_total_flops()


def in_turns(ways: list[Callable[[], object]], repeats: int, device: str) -> list[float]:
    """The best time of each, taken in turns, so that a busy moment falls on all."""
    best = [float("inf")] * len(ways)
    for _ in range(repeats + 1):
        for number, way in enumerate(ways):
            began = time.perf_counter()
            way()
            if device == "cuda":
                torch.cuda.synchronize()
            best[number] = min(best[number], time.perf_counter() - began)
    return best


def runner(model: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], object]:
    @torch.inference_mode()
    def run() -> None:
        model(**inputs)

    return run


def onnx_runner(model: Any, mask: torch.Tensor, inputs: dict[str, torch.Tensor], folder: Path) -> Callable[[], object]:
    import onnxruntime

    export(copy.deepcopy(model).cpu(), mask, folder, "onnx")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / "model.onnx", settings, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    given = {name: value.cpu().numpy() for name, value in inputs.items() if name in wanted}
    return lambda: session.run(None, given)


def torch_pruned(model: Any, share: float, inputs: dict[str, torch.Tensor]) -> Any:
    """The same number of heads cut by Torch-Pruning, as its manual cuts BERT."""
    import torch_pruning

    queries = {m.self.query: model.config.num_attention_heads for m in _attentions(model)}
    pruner = torch_pruning.pruner.BasePruner(
        model,
        dict(inputs),
        importance=torch_pruning.importance.RandomImportance(),
        num_heads=queries,
        prune_num_heads=True,
        prune_head_dims=False,
        head_pruning_ratio=share,
        pruning_ratio=0.0,
        output_transform=lambda answer: answer.last_hidden_state.sum(),
        root_module_types=[torch.nn.Linear],
    )
    pruner.step()
    for attention in _attentions(model):
        attention.self.num_attention_heads = pruner.num_heads[attention.self.query]
        attention.self.all_head_size = attention.self.query.out_features
    return model


def _attentions(model: Any) -> list[Any]:
    return [layer.attention for layer in model.encoder.layer]


def rows_of(name: str) -> list[dict[str, Any]]:
    size = SIZES[name]
    torch.manual_seed(0)
    model = build(size)
    inputs = {"input_ids": torch.randint(0, 1000, (size.batch, size.length), device=size.device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    cut = {share: prune(copy.deepcopy(model), mask_of(model, share)) for share in SHARES[1:]}
    times = in_turns([runner(m, inputs) for m in (model, *cut.values())], size.repeats, size.device)
    whole = operations(model, inputs)
    ceilings = {share: whole / operations(m, inputs) for share, m in cut.items()}
    rows = [row(f"torch, {s:.0%} cut: speed", times[0] / t, ceilings[s]) for s, t in zip(SHARES[1:], times[1:])]
    return [*rows, *onnx_rows(model, inputs, size, ceilings), *peer_rows(model, inputs, size, cut)]


def onnx_rows(model: Any, inputs: dict, size: Size, ceilings: dict[float, float]) -> list[dict[str, Any]]:
    if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        return [{"what": "onnxruntime", "skipped": "the extra onnx is not installed"}]
    with tempfile.TemporaryDirectory() as folder:
        ways = [onnx_runner(model, mask_of(model, s), inputs, Path(folder) / f"{s}") for s in SHARES]
        times = in_turns(ways, size.repeats, "cpu")
    return [row(f"onnxruntime, {s:.0%} cut: speed", times[0] / t, ceilings[s]) for s, t in zip(SHARES[1:], times[1:])]


def peer_rows(model: Any, inputs: dict, size: Size, cut: dict[float, Any]) -> list[dict[str, Any]]:
    if find_spec("torch_pruning") is None:
        return [{"what": "Torch-Pruning", "skipped": "torch-pruning is not installed"}]
    began = time.perf_counter()
    prune(copy.deepcopy(model), mask_of(model, 0.5))
    ours = time.perf_counter() - began
    began = time.perf_counter()
    other = torch_pruned(copy.deepcopy(model), 0.5, inputs)
    theirs = time.perf_counter() - began
    times = in_turns([runner(cut[0.5], inputs), runner(other, inputs)], size.repeats, size.device)
    return [
        {
            "what": "Torch-Pruning / ours, forward at 50 %",
            "ratio": times[1] / times[0],
            "goal": ">= 0.97",
            "floor": "1",
        },
        {"what": "Torch-Pruning / ours, cutting itself", "ratio": theirs / ours, "goal": ">= 1", "floor": ""},
    ]


def row(what: str, ratio: float, ceiling: float) -> dict[str, Any]:
    return {
        "what": what,
        "ratio": ratio,
        "goal": f">= {1 + 0.7 * (ceiling - 1):.3f}",
        "floor": f"{ceiling:.3f} (ceiling)",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES], default="accelerator" if torch.cuda.is_available() else "cores")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = rows_of(args.size)
    for each in rows:
        said = each.get("skipped") or f"{each['ratio']:.3f}   goal {each['goal']}   {each['floor']}"
        print(f"{each['what']:44s} {said}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
