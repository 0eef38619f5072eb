"""Several processes measure what one does: parts dealt out, sums joined, memory agreed on, an end that all notice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from headwise.atlas.result import named_records
from headwise.io.files import read_json
from headwise.models.device import weight_bytes
from headwise.models.processes import Team
from headwise.testing import playground

SCRIPT = """
import os, sys, warnings, torch
import torch.distributed as dist
from safetensors.torch import save_file
from headwise.atlas import measure
from headwise.measuring import evaluate as measuring
from headwise.models import processes
from headwise.probing.features import Reader
from headwise.scoring import gradient
from headwise.scoring.importance import importance
from headwise.testing import causal_tokenizer, tiny, toy_language_model, toy_model

torch.set_num_threads(1)
how, out = sys.argv[1:]
warnings.simplefilter("ignore")
processes.join()
rank = dist.get_rank() if dist.is_initialized() else 0
model, kept = toy_model().eval(), {}

def measured(model, task, name, lesions):
    for by in ("gradient", "token", "batch", "weight", "ablation", "mean_ablation", "fisher", "confidence"):
        if (name != "prompts" or by in ("gradient", "token", "ablation")) and (how != "fsdp" or by != "confidence"):
            found = importance(model, task, by, tokens=64, examples=90, log=lambda line: None)
            kept[f"{name}.{by}"], kept[f"{name}.{by}.stderr"] = found.scores.double(), found.stderr.double()
            kept[f"{name}.{by}.half"] = torch.tensor([found.split_half(), found.examples], dtype=torch.float64)
    for number, score in enumerate(measuring.evaluate(model, task, lesions, tokens=64)):
        kept[f"{name}.lesion{number}"] = torch.tensor([float(p == g) for p, g in zip(score.predictions, score.golds)])

def described(name, model, tokenizer, by, **settings):
    texts = [" ".join(f"w{i * k % 20}" for k in range(2, 5 + i % 7)) for i in range(1, 24)]
    found = measure.roles(model, tokenizer, texts, by=by, tokens=64, **settings)
    for field in ("texts", "score", "control", "stderr", "p", "untrained", "shuffled"):
        kept[f"roles.{name}.{field}"] = torch.from_numpy(getattr(found, field)).double().nan_to_num(-9)
    if dist.is_initialized():
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, str(found.to_record()))
        assert len(set(every)) == 1, "all have the same"

def dealt(model, layers):
    if how == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (2,))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model

def repeating(input_ids, **named):  # a model that copies, or retrieval has no scores
    answer = type(lm).forward(lm, input_ids=input_ids, **named)
    answer.logits = torch.nn.functional.one_hot(input_ids.roll(-1, 1), 64).float()
    return answer

lesions = (torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(0)) > 0.3).float()
if how == "killed" and rank == 1:  # in the middle, while the others measure
    before, calls = gradient.head_gradients, []
    def dying(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            os._exit(9)
        return before(*args, **kwargs)
    gradient.head_gradients = dying
if how == "full" and rank == 1:  # memory for half as much, on one of the two
    before = gradient.head_gradients
    def full(sample, batch, *rest, **named):
        if sample.tokens > 32:
            raise torch.OutOfMemoryError
        return before(sample, batch, *rest, **named)
    gradient.head_gradients, of_texts = full, measure._of_texts
    def filled(*args):
        if args[-1] > 32:
            raise torch.OutOfMemoryError
        return of_texts(*args)
    measure._of_texts = filled
dealt(model.encoder, model.encoder.encoder.layer)
measured(model, "toy0", "toy", lesions)
described("toy", model, None, "attention", repeats=0, untrained=True, shuffled=True)
if how in ("one", "two", "fsdp"):
    numbers = causal_tokenizer("one two three four five six seven eight nine ten eleven twelve".split())
    lm = tiny("llama", dtype=torch.float64, auto="AutoModelForCausalLM")
    dealt(lm, lm.model.layers)
    for by in ("attention", "writing", "functions", "languages"):
        described(by, lm, numbers, by, repeats=7)
    lm.forward = repeating
    described("copying", lm, numbers, "copying")
    assert all(kept[f"roles.{by}.score"].ne(-9).any() for by in measure.WAYS)
if how in ("one", "two"):
    measured(toy_language_model(rows=9), "several", "prompts", lesions)
    batches = [model.encode("toy1", "train").batch(range(i, i + 7)) for i in range(0, 35, 7)]
    inputs = ("input_ids", "attention_mask")
    squares = lambda m, b: m(**{n: b[n] for n in inputs}).last_hidden_state.square().sum((1, 2))
    own = importance(model.encoder, batches, loss=squares)
    kept["own"] = own.scores.double()
    rows = [{"text": " ".join(["word"] * (1 + i % 5))} for i in range(11)]
    features = Reader.of(model, at="mean", tokens=20).read(rows)
    kept["heads"], kept["layers"] = features.heads, features.layers
if rank == 0:
    save_file({k: v.contiguous() for k, v in kept.items()}, out)
processes.leave()
"""


def ran(folder: Path, how: str, number: int) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(SCRIPT)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HEADWISE_CACHE": str(folder)}
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={number}"] if number > 1 else []
    command = [sys.executable, *launch, str(folder / "job.py"), how, str(folder / f"{how}.safetensors")]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=150)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    done = ran(folder, "one", 1)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(folder / "one.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(("how", "number"), [("two", 2), ("two", 4), ("full", 2), ("fsdp", 2)])
def test_several_processes_measure_what_one_does(one, tmp_path, how, number):
    done = ran(tmp_path, how, number)
    assert done.returncode == 0, done.stderr[-3000:]
    found = load_file(tmp_path / f"{how}.safetensors")
    assert found.keys() == one.keys() or how != "two"
    for name, value in found.items():
        if not (how == "full" and ("half" in name or ".batch" in name)):  # other batches fill other blocks
            rounding = 1e-3 if name.endswith(".p") else 1e-6  # a p-value of small differences of scores in float32
            assert (value - one[name]).abs().max() <= rounding, name


@pytest.mark.slow
def test_a_process_that_is_killed_ends_all_with_one_message(tmp_path):
    done = ran(tmp_path, "killed", 2)
    assert done.returncode and not (tmp_path / "killed.safetensors").exists()
    ours = [line for line in done.stderr.splitlines() if "HeadwiseError" in line and "lost another one" in line]
    assert len(ours) <= 2


COMMAND = """
import os, sys
from headwise.cli import main
from headwise.scoring import gradient

before, seen = gradient.head_gradients, []
def dying(sample, *args, **kwargs):
    seen.append(sample.task)
    if sample.task == "news" and os.environ["DIES"] == os.environ.get("RANK"):
        os._exit(9)
    return before(sample, *args, **kwargs)
gradient.head_gradients = dying
try:
    main()
finally:
    print("measured", *dict.fromkeys(seen), file=sys.stderr)
"""


@pytest.mark.slow
def test_a_command_whose_process_was_killed_resumes_with_what_is_missing(tmp_path):
    """Of two tasks the first is in the file when a process dies in the second; the same command measures that one."""
    playground(tmp_path)
    (tmp_path / "job.py").write_text(COMMAND)
    own = ["--task", "reviews=reviews.csv:text,label", "--task", "news=news.csv:text,label"]
    train = ["train", "--model", "bert-tiny", *own, "--epochs", "1", "--out", "run"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HEADWISE_CACHE": str(tmp_path / "cache")}
    named = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    subprocess.run([sys.executable, "-m", "headwise", *train], env=env, check=True, **named)
    measure = ["importance", "run/model", *own, "--out", "scores.safetensors"]
    two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "job.py", *measure]
    killed = subprocess.run(two, env=env | {"DIES": "1"}, **named)
    assert killed.returncode and set(load_file(tmp_path / "scores.safetensors")) == {"reviews"}
    again = subprocess.run(two, env=env | {"DIES": "none"}, **named)
    assert again.returncode == 0, again.stderr[-3000:]
    assert again.stderr.count("measured news") == 2 and "measured reviews" not in again.stderr
    assert again.stdout.count("found in scores.safetensors") == 1
    found = load_file(tmp_path / "scores.safetensors")
    alone = [sys.executable, "-m", "headwise", *measure[:-1], "alone.safetensors"]
    subprocess.run(alone, env=env, check=True, **named)
    for task, value in load_file(tmp_path / "alone.safetensors").items():
        assert (value - found[task]).abs().max() <= 1e-6, task


ROLES = """
import sys
from headwise.cli import atlas, main

before = atlas._write
def written(*args):
    print("written once", file=sys.stderr)
    before(*args)
atlas._write = written
main()
"""


@pytest.mark.slow
def test_the_first_of_several_processes_prints_and_writes_roles(tmp_path):
    playground(tmp_path)
    (tmp_path / "job.py").write_text(ROLES)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HEADWISE_CACHE": str(tmp_path / "cache")}
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    said = {}
    for name, launch in {"one": [], "two": two}.items():
        command = [sys.executable, *launch, "job.py", "roles", "bert-tiny", "--examples", "48", "--out", name]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr.count("written once") == 1
        said[name] = done.stdout.replace(f"{name}/", "")
    assert said["one"] and said["two"] == said["one"]
    one, two = (named_records(read_json(tmp_path / name / "roles.json")) for name in ("one", "two"))
    assert np.allclose(one[0].score, two[0].score, rtol=0, atol=1e-6, equal_nan=True)
    assert {path.name for path in (tmp_path / "two").iterdir()} == {path.name for path in (tmp_path / "one").iterdir()}


LIMITED = """
import sys, warnings, torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from headwise.scoring.importance import importance

warnings.simplefilter("ignore")
torch.set_num_threads(1)
folder, how = sys.argv[1:]
places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "lm_head": "cpu", "model.rotary_emb": "cpu"}
places |= {f"model.layers.{n}": "disk" for n in range(24)}
given = {"device_map": places, "offload_folder": f"{folder}/disk"} if how == "disk" else {}
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **given).eval()
batch = {"input_ids": torch.arange(3, 35).view(2, 16)}
loss = lambda m, b: m(**b, use_cache=False).logits.log_softmax(-1)[:, :, 3].sum(1)
save_file({"scores": importance(model, [batch], loss=loss).scores}, f"{folder}/{how}.scores")
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of 650 MB of memory: what Python, torch and transformers take, and some 250 MB."""
    old = Path("/sys/fs/cgroup/memory")
    folder = (old if old.is_dir() else old.parent) / f"headwise{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")).write_text("650000000")
    except OSError:
        pytest.skip("needs to make control groups: root on Linux")
    yield folder
    folder.rmdir()


@pytest.mark.slow
def test_a_model_on_disk_is_scored_in_less_memory_than_it_has_weights(tmp_path, group):
    """Of 800 MB of weights: read whole the process is killed, from disk it has the same importance."""
    torch.manual_seed(0)
    small = {"num_hidden_layers": 24, "hidden_size": 704, "intermediate_size": 2816, "vocab_size": 64}
    config = AutoConfig.for_model("llama", **small, num_attention_heads=8, num_key_value_heads=8)
    model = AutoModelForCausalLM.from_config(config)
    assert weight_bytes(model) > 750_000_000
    model.bfloat16().save_pretrained(tmp_path, max_shard_size="80MB")  # read as float32, it cannot stay a mapped file
    (tmp_path / "job.py").write_text(LIMITED)

    def run(how: str, limit: bool) -> int:
        enter = [f"echo $$ > {group}/cgroup.procs && exec"] if limit else ["exec"]
        words = [*enter, sys.executable, str(tmp_path / "job.py"), str(tmp_path), how]
        done = subprocess.run(["sh", "-c", " ".join(words)], env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=500)
        return done.returncode

    assert run("whole", True) != 0, "or the limit shows nothing"
    assert run("whole", False) == 0 and run("disk", True) == 0
    whole, disk = (load_file(tmp_path / f"{how}.scores")["scores"] for how in ("whole", "disk"))
    assert torch.allclose(whole, disk, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", range(7))
def test_every_part_counts_once_and_all_take_as_many_turns(count, size):
    shares = [list(Team(rank, size).share(range(count))) for rank in range(size)]
    assert sorted(part for share in shares for part, counts in share if counts) == list(range(count))
    assert len({len(share) for share in shares}) == 1
