"""Importance and lesions of a model that lies on two processes in parts are those of the whole model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

SCRIPT = """
import os, sys, torch
import torch.distributed as dist
from safetensors.torch import save_file
from headwise.measuring.evaluate import evaluate
from headwise.scoring.importance import importance
from headwise.testing import toy_model

torch.set_num_threads(1)
how, out = sys.argv[1:]
model = toy_model().eval()
if how != "whole":
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2,))
if how == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for layer in model.encoder.encoder.layer:
        fully_shard(layer, mesh=mesh)
    fully_shard(model.encoder, mesh=mesh)
if how == "tensor":
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    for layer in model.encoder.encoder.layer:
        parallelize_module(layer, mesh, {"intermediate.dense": ColwiseParallel(), "output.dense": RowwiseParallel()})
if how == "split":
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    parts = {f"attention.self.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    for layer in model.encoder.encoder.layer:
        parallelize_module(layer, mesh, {**parts, "attention.output.dense": RowwiseParallel()})
gates = torch.ones(3, 2, 4)
gates[1, 0, 0] = gates[1, 1, 2] = gates[2, 1, 3] = 0
found = {}
for task in model.tasks:
    found[f"{task}.scores"] = importance(model, task, examples=48).scores
    scores = evaluate(model, task, gates)
    found[f"{task}.lesions"] = torch.tensor([[float(p) for p in one.predictions] for one in scores])
if os.environ.get("RANK", "0") == "0":
    save_file({name: value.contiguous() for name, value in found.items()}, out)
if how != "whole":
    dist.barrier()
    dist.destroy_process_group()
"""


WAYS = ("whole", "fsdp", "tensor", "split")


def ran(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(SCRIPT)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HEADWISE_CACHE": str(folder)}
    two = ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={29531 + WAYS.index(how)}"]
    command = [sys.executable, *(two if how != "whole" else []), str(folder / "job.py"), how]
    command.append(str(folder / f"{how}.safetensors"))
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fsdp", "tensor"])
def test_a_model_in_parts_has_the_scores_of_the_whole(tmp_path, how):
    for name in ("whole", how):
        done = ran(tmp_path, name)
        assert done.returncode == 0, done.stderr[-3000:]
    whole, parts = (load_file(tmp_path / f"{name}.safetensors") for name in ("whole", how))
    for name, value in whole.items():
        assert (parts[name] - value).abs().max() <= 1e-5, name


@pytest.mark.slow
def test_heads_that_are_split_over_processes_are_refused(tmp_path):
    """Each process would see a part of a layer's heads and take it for all of them."""
    done = ran(tmp_path, "split")
    assert done.returncode and "HeadwiseError: the heads of a layer are split over processes" in done.stderr
