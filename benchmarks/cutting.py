"""How fast a cut model is, beside the ceiling that its operations allow, and what the cut costs beside Torch-Pruning.

    python benchmarks/cutting.py [--size tiny|cores|accelerator] [--json FILE]

A random share of heads goes, the same in every layer; whole and cut models take turns. The ceiling counts the
operations of matrix products, those between queries and keys included. Before anything is timed, cut models must
answer what the whole model answers with the same heads closed, and Torch-Pruning must leave the same model as we do.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from comparing import Row, equal, fastest, finish, parameters_of, row, seconds
from importance import SHAPES
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, BertConfig

from headwise.heads.cutting import prune
from headwise.heads.gates import gated
from headwise.pruning.export import export

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
    for layer in mask:
        layer[torch.randperm(heads, generator=generator)[: round(share * heads)]] = True
    return mask


def operations(model: Any, inputs: dict[str, torch.Tensor]) -> int:
    """Those of every matrix product: torch does not count what fused attention does on a CPU."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs)
    model.set_attn_implementation(before)
    return counter.get_total_flops()


@torch.no_grad()
def states(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**inputs).last_hidden_state.cpu()


@torch.no_grad()
def closed(model: Any, mask: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the whole model answers with the heads of a mask closed."""
    with gated(model, (~mask).float().to(model.device)):
        return states(model, inputs)


def runner(model: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], object]:
    @torch.inference_mode()
    def run() -> None:
        model(**inputs)

    return run


def onnx_session(model: Any, mask: torch.Tensor, inputs: dict[str, torch.Tensor], folder: Path) -> Callable[[], Any]:
    import onnxruntime

    export(copy.deepcopy(model).cpu(), mask, folder, "onnx")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / "model.onnx", settings, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    given = {name: value.cpu().numpy() for name, value in inputs.items() if name in wanted}
    return lambda: session.run(None, given)[0]


class Graphs:
    """Torch-Pruning by its most direct way: its graph of dependencies, and one cut of every output projection."""

    def __init__(self, model: Any):
        import torch_pruning

        self.cut_inputs, self.attentions = (
            torch_pruning.prune_linear_in_channels,
            [layer.attention for layer in model.encoder.layer],
        )
        example = {"input_ids": torch.zeros(1, 2, dtype=torch.long, device=model.device)}
        self.graph = torch_pruning.DependencyGraph().build_dependency(
            model, example, output_transform=lambda answer: answer.last_hidden_state.sum()
        )

    def cut(self, mask: torch.Tensor) -> None:
        for attention, gone in zip(self.attentions, mask):
            places = torch.arange(attention.self.all_head_size).view(len(gone), -1)[gone].flatten().tolist()
            self.graph.get_pruning_group(attention.output.dense, self.cut_inputs, places).prune()
            attention.self.num_attention_heads -= int(gone.sum())
            attention.self.all_head_size = attention.self.query.out_features


def rows_of(name: str) -> list[Row]:
    size = SIZES[name]
    torch.manual_seed(0)
    model = build(size)
    inputs = {"input_ids": torch.randint(0, 1000, (size.batch, size.length), device=size.device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    masks = {share: mask_of(model, share) for share in SHARES}
    cut = {share: prune(copy.deepcopy(model), mask) for share, mask in masks.items()}
    whole = operations(model, inputs)
    ceilings = {share: whole / operations(m, inputs) for share, m in cut.items()}
    wanted = {share: closed(model, mask, inputs) for share, mask in masks.items()}
    same = {s: equal("answers with these heads closed", states(m, inputs), wanted[s], 1e-4) for s, m in cut.items()}
    times = dict(zip(cut, fastest([runner(m, inputs) for m in cut.values()], size.repeats, size.device)))
    rows = [speed(f"torch, {s:.0%} cut: speed", times[0.0] / times[s], ceilings[s], same[s]) for s in SHARES[1:]]
    return [*rows, *onnx_rows(model, inputs, size, ceilings, wanted), *peer_rows(model, inputs, size)]


def onnx_rows(model: Any, inputs: dict, size: Size, ceilings: dict[float, float], wanted: dict) -> list[Row]:
    if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        return [{"what": "onnxruntime", "skipped": "the extra onnx is not installed"}]
    with tempfile.TemporaryDirectory() as folder:
        ways = {s: onnx_session(model, mask_of(model, s), inputs, Path(folder) / f"{s}") for s in SHARES}
        same = {s: equal("answers with these heads closed", way(), wanted[s], 1e-3) for s, way in ways.items()}
        times = dict(zip(ways, fastest([*ways.values()], size.repeats)))
    return [
        speed(f"onnxruntime, {s:.0%} cut: speed", times[0.0] / times[s], ceilings[s], same[s], "onnxruntime")
        for s in SHARES[1:]
    ]


def peer_rows(model: Any, inputs: dict, size: Size, share: float = 0.5) -> list[Row]:
    """What cutting costs. The cut models are the same model, so that their speed is no comparison."""
    if find_spec("torch_pruning") is None:
        return [{"what": "Torch-Pruning", "skipped": "torch-pruning is not installed"}]
    mask = mask_of(model, share)
    ours, theirs = prune(copy.deepcopy(model), mask), copy.deepcopy(model)
    Graphs(theirs).cut(mask)
    same = same_model(ours, theirs, inputs)
    rounds = range(size.repeats + 2)
    times = np.array([cutting_times(model, mask, size.device) for _ in rounds])[1:].min(0)
    more = {"goal": ">= 1", "same": same, "peer": "Torch-Pruning"}
    return [
        row(f"Torch-Pruning, its graph at hand / ours, {share:.0%} cut", times[2] / times[0], **more),
        row(f"Torch-Pruning, graph and cut / ours, {share:.0%} cut", (times[1] + times[2]) / times[0], **more),
        row(f"our cut of {share:.0%}, ms", 1e3 * times[0]),
    ]


def same_model(ours: Any, theirs: Any, inputs: dict[str, torch.Tensor]) -> list[str]:
    return [
        equal("parameters left", parameters_of(ours), parameters_of(theirs)),
        equal("answers", states(ours, inputs), states(theirs, inputs), 1e-6),
    ]


def cutting_times(model: Any, mask: torch.Tensor, device: str) -> list[float]:
    """Of our cut, of Torch-Pruning's graph, and of its cut, on fresh copies."""
    ours, theirs, graphs = copy.deepcopy(model), copy.deepcopy(model), []
    return [
        seconds(lambda: prune(ours, mask), device),
        seconds(lambda: graphs.append(Graphs(theirs)), device),
        seconds(lambda: graphs[0].cut(mask), device),
    ]


def speed(what: str, ratio: float, ceiling: float, same: str, peer: str = "") -> Row:
    goal = f">= {1 + 0.7 * (ceiling - 1):.3f}"
    return row(what, ratio, goal, f"{ceiling:.3f} (ceiling)", same=[same], peer=peer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=[*SIZES], default="accelerator" if torch.cuda.is_available() else "cores")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    finish(rows_of(args.size), args.json)


if __name__ == "__main__":
    main()
