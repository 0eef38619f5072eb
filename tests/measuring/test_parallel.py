"""Importance and lesions of a model that lies on two processes in parts are those of the whole model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

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
@pytest.mark.parametrize("how", ["fsdp", "tensor", "split"])
def test_a_model_in_parts_has_the_scores_of_the_whole(tmp_path, how):
    for name in ("whole", how):
        done = ran(tmp_path, name)
        assert done.returncode == 0, done.stderr[-3000:]
    whole, parts = (load_file(tmp_path / f"{name}.safetensors") for name in ("whole", how))
    for name, value in whole.items():
        assert (parts[name] - value).abs().max() <= 1e-5, name


TENSOR = """
import os, sys, warnings, torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from headwise.heads.gates import Heads, captured, gated
from headwise.scoring.importance import importance
from headwise.testing import tiny_batch

torch.set_num_threads(1)
warnings.simplefilter("ignore")
how, folder, *families = sys.argv[1:]
found = {}
if how == "split":
    dist.init_process_group("gloo")
for family in families:
    plan = {"tp_plan": "auto"} if how == "split" else {}
    precision = torch.float32 if family == "mixtral" else torch.float64  # its experts know no float64
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/{family}", **plan, dtype=precision).eval()
    heads, batch = Heads.of(model), tiny_batch(model, 4, 9)
    assert bool(heads.share) == (how == "split") and heads.alive.all()
    loss = lambda m, b: m(**b).logits.log_softmax(-1)[:, :, 3].sum(1)
    for by in ("gradient", "token", "ablation", "magnitude"):
        found[f"{family}.{by}"] = importance(model, [batch], by=by, loss=loss, log=lambda line: None).scores.double()
    gates = torch.linspace(0.1, 1, heads.alive.numel(), dtype=torch.float64).view(heads.shape).requires_grad_()
    constant = torch.full((*heads.shape, heads.head_dim), 0.3, dtype=torch.float64, requires_grad=True)
    with gated(model, gates, constant):
        found[f"{family}.losses"] = loss(model, batch)
        found[f"{family}.losses"].sum().backward()
    found |= {f"{family}.gates": gates.grad, f"{family}.constant": constant.grad}
    with torch.no_grad(), captured(model, lambda z: z.mean(1)) as kept:
        model(**batch)
    found[f"{family}.captured"] = torch.stack(kept)
if os.environ.get("RANK", "0") == "0":
    save_file({name: value.detach().contiguous() for name, value in found.items()}, f"{folder}/{how}.safetensors")
if how == "split":
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_heads_on_two_processes_are_gated_captured_and_scored_as_on_one(tmp_path):
    """By transformers' own plans: a rank has half of each layer's heads, and what is measured comes back whole."""
    small = {"num_key_value_heads": 2, "head_dim": 8, "hidden_size": 24, "intermediate_size": 32, "vocab_size": 64}
    small |= {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
    own = {"mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2}, "gemma3_text": {"sliding_window": 16}}
    families = ("llama", "qwen3", "gemma3_text", "mixtral")
    for family in families:
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **small, **own.get(family, {}))
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / family)
    (tmp_path / "tensor.py").write_text(TENSOR)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for how, launch in {
        "whole": [],
        "split": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
    }.items():
        command = [sys.executable, *launch, tmp_path / "tensor.py", how, tmp_path, *families]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    whole, split = (load_file(tmp_path / f"{how}.safetensors") for how in ("whole", "split"))
    assert whole.keys() == split.keys() and len(whole) == 8 * len(families)
    for name, value in whole.items():
        rounding = 1e-5 if name.startswith("mixtral") else 1e-6
        assert (split[name] - value).abs().max() <= rounding * max(1, value.abs().max()), name
