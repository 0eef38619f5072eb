"""Evaluation: K lesions in one pass are K evaluations under gates, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.heads.modules import evaluating
from headwise.measuring.evaluate import Score, chance, difference, evaluate, sentence_vectors
from headwise.models.multitask import MultiTaskModel
from headwise.papers.specialization.mtdnn import SAN
from headwise.tasks.metrics import metrics
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan


@pytest.fixture(scope="module")
def model() -> MultiTaskModel:
    """Half trained, so that lesions tell."""
    made = toy_model()
    fit(made, Plan(steps=40, lr=3e-3, batch_size=16, evaluate_every=0))
    return made


def lesions(number: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(number, 2, 4, generator=generator) > 0.5).float()


def test_lesions_in_one_pass_equal_separate_gated_evaluations(model):
    together = evaluate(model, "toy0", lesions())
    for gate, score in zip(lesions(), together):
        with gated(model.encoder, gate):
            alone = evaluate(model, "toy0")
        assert score.predictions == alone.predictions and score.value == alone.value
    assert len({tuple(score.predictions) for score in together}) > 1


def test_one_lesion_is_the_first_of_several(model):
    alone = evaluate(model, "toy0", lesions()[0])
    assert isinstance(alone, Score) and alone.predictions == evaluate(model, "toy0", lesions())[0].predictions


def test_data_of_other_rows_is_refused(model):
    for data in (
        model.encode("toy0", "train", 8),
        model.encode("toy0", "dev", chosen=range(8)),
        model.encode("toy1", "dev", 8),
    ):
        with pytest.raises(HeadwiseError, match="data encoded from"):
            evaluate(model, "toy0", limit=8, data=data)
    data = model.encode("toy0", "dev", 8)
    assert evaluate(model, "toy0", limit=8, data=data).value == evaluate(model, "toy0", limit=8).value


def test_rows_given_once_can_be_read_again():
    rows = [{"text": "good", "label": "yes"}, {"text": "bad", "label": "no"}]
    once = Rows(train=iter(rows), test=(row for row in rows))
    assert once.read("train") == once.read("train") == once.read("test") == once.read("test") == rows


def test_an_open_gate_is_no_gate(model):
    (open_,) = evaluate(model, "toy0", torch.ones(1, 2, 4))
    assert open_.predictions == evaluate(model, "toy0").predictions


@pytest.mark.parametrize("tokens", [7, 64, 10_000])
def test_predictions_do_not_depend_on_how_the_data_is_cut(model, tokens):
    assert evaluate(model, "toy1", tokens=tokens).predictions == evaluate(model, "toy1").predictions


def test_predictions_are_in_the_order_of_the_rows(model):
    score = evaluate(model, "toy0")
    task = model.tasks["toy0"]
    assert score.golds == task.kind.gold(task.rows("dev")) and score.examples == 48
    assert score.value == np.mean([p == g for p, g in zip(score.predictions, score.golds)])
    assert score.value == metrics["accuracy"].value(score.counts.sum(0))
    low, high = score.interval()
    assert low <= score.value <= high


def test_a_limit_is_a_seeded_sample(model):
    score = evaluate(model, "toy0", limit=10)
    assert score.examples == 10 and score.predictions == evaluate(model, "toy0", limit=10).predictions


def test_nothing_is_left_behind(model):
    """Modes, gradients, random streams and hooks."""
    model.train()
    model.encoder.eval()
    random = torch.get_rng_state()
    evaluate(model, "toy0", lesions(2))
    assert model.training and not model.encoder.training and model.heads["toy0"].training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.encoder.modules())
    with pytest.raises(RuntimeError), evaluating(model):
        raise RuntimeError
    assert model.training and not model.encoder.training
    model.train()


def test_other_metrics_of_the_same_predictions(model):
    score = evaluate(model, "toy0")
    assert score.on("mcc").value == metrics["mcc"](score.predictions, score.golds)
    assert str(score).startswith("toy0: accuracy ")


def test_scores_that_are_no_numbers_are_no_answers():
    """The largest of several NaN is the first class."""
    broken = toy_model()
    next(broken.encoder.parameters()).data.fill_(torch.nan)
    with pytest.raises(HeadwiseError, match="scores of 'toy0' that are NaN"):
        evaluate(broken, "toy0")


def test_a_constant_answer_is_noticed():
    made = toy_model()
    with torch.no_grad():
        made.heads["toy0"].out.bias.copy_(torch.tensor([100.0, 0.0]))
    assert evaluate(made, "toy0").collapsed and not evaluate(made, "toy1").collapsed


def test_chance_is_the_commonest_class():
    assert chance([0, 1, 1, 2]) == 0.5
    with pytest.raises(HeadwiseError):
        chance([])


def test_bad_input_is_told(model):
    with pytest.raises(HeadwiseError, match="toy0"):
        evaluate(model, "toy9")
    with pytest.raises(HeadwiseError, match="gates of shape"):
        evaluate(model, "toy0", torch.ones(3, 4))
    with pytest.raises(HeadwiseError, match="has no test rows"):
        evaluate(model, "toy0", split="test")


def test_a_model_with_a_pair_task_is_evaluated_alike_under_lesions():
    """Heads that read every token, not the pooled vector alone."""
    rows = [{"text": f"w{i} w{i + 1}", "text_b": f"w{i + 2}", "label": "ab"[i % 2]} for i in range(12)]
    task = Task("pair", SAN(("a", "b")), Rows(rows, rows), "accuracy")
    made = MultiTaskModel(tiny("bert"), toy_model().tokenizer, [task])
    for gate, score in zip(lesions(2), evaluate(made, "pair", lesions(2))):
        with gated(made.encoder, gate):
            assert score.predictions == evaluate(made, "pair").predictions


# -- two models on the same examples


def scored(metric, predictions, golds):
    return Score("t", metric, metrics[metric](predictions, golds), list(predictions), list(golds))


def two_models(seed, gain=0.0, n=200, metric="accuracy"):
    """A model and another that is wrong less often by ``gain``, each on examples of its own."""
    generator = np.random.default_rng(seed)
    golds = generator.integers(2, size=n)
    wrong = generator.random((2, n)) < np.array([[0.3 - gain], [0.3]])
    return [scored(metric, np.where(w, 1 - golds, golds).tolist(), golds.tolist()) for w in wrong]


def test_ten_answers_mended_and_none_spoiled_are_ten_coins_on_one_side():
    golds = [1] * 40
    before, after = scored("accuracy", [0] * 10 + [1] * 30, golds), scored("accuracy", golds, golds)
    found = difference(after, before)
    assert (found.value, found.p) == (pytest.approx(0.25), pytest.approx(2 / 2**10)) and found.low > 0


@pytest.mark.parametrize("metric", ["accuracy", "f1", "mcc", "macro_f1"])
def test_models_that_answer_alike_do_not_differ(metric):
    after, _ = two_models(0, metric=metric)
    found = difference(after, after)
    assert (found.value, found.p) == (0, 1)
    assert found.low == pytest.approx(-found.high) and 0 < found.high < 0.03, "rows that were not seen may differ"


@pytest.mark.parametrize("metric", ["accuracy", "f1", "mcc"])
def test_a_difference_turned_around_is_as_sure(metric):
    after, before = two_models(3, 0.2, metric=metric)
    one, other = difference(after, before), difference(before, after)
    assert one.p == pytest.approx(other.p, abs=1e-12) and one.value == -other.value and one.p < 0.05


@pytest.mark.parametrize(("metric", "cases"), [("accuracy", 200), ("f1", 100)])
def test_models_that_are_as_good_rarely_differ(metric, cases):
    alike = [difference(*two_models(seed, n=80, metric=metric)).p < 0.05 for seed in range(cases)]
    apart = [difference(*two_models(seed, 0.25, n=80, metric=metric)).p < 0.05 for seed in range(20)]
    assert np.mean(alike) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / cases) and np.mean(apart) > 0.8


@pytest.mark.parametrize("metric", ["mcc", "macro_f1"])
def test_a_class_that_one_model_alone_names_counts_for_both(metric):
    golds = [0, 1] * 20
    before, after = scored(metric, golds, golds), scored(metric, [2, *golds[1:]], golds)
    found = difference(after, before)
    assert found.value == pytest.approx(after.value - before.value)
    assert found.p == 1, "one answer that differs may as well be the other model's"


def test_a_vector_is_what_the_output_head_reads_in_the_order_of_the_texts():
    model = toy_model()
    texts = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w1", "w2"]
    found = sentence_vectors(model, texts)
    assert found.shape == (4, model.width) and found.dtype == np.float32
    with evaluating(model), torch.no_grad():
        for text, vector in zip(texts, found):
            alone = model.hidden(dict(model.tokenizer([text], return_tensors="pt")))
            np.testing.assert_allclose(vector, alone.pooled[0].float().numpy(), atol=1e-5)


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
import os, pytest, sys, warnings, torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from headwise.atlas.measure import roles
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, captured, gated
from headwise.scoring.importance import importance
from headwise.testing import tiny_batch, tiny_tokenizer

torch.set_num_threads(1)
warnings.simplefilter("ignore")
how, folder, *families = sys.argv[1:]
found = {}
if how != "whole":
    dist.init_process_group("gloo")
for family in families:
    plan = {"tp_plan": "auto"} if how == "split" else {}
    precision = torch.float32 if family == "mixtral" else torch.float64  # its experts know no float64
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/{family}", **plan, dtype=precision).eval()
    if how == "dealt":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (2,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
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
    if how == "split":  # one rank does not see all maps
        with pytest.raises(HeadwiseError, match="tensor parallelism"):
            roles(model, tiny_tokenizer(), ["a text", "another"])
if os.environ.get("RANK", "0") == "0":
    save_file({name: value.detach().contiguous() for name, value in found.items()}, f"{folder}/{how}.safetensors")
if how != "whole":
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_heads_on_two_processes_are_gated_captured_and_scored_as_on_one(tmp_path):
    """By transformers' own plans a rank has half of each layer's heads, and what is measured comes back whole.

    Dealt out by FSDP2, it has half of each layer's weights.
    """
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
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    for how, launch in {"whole": [], "split": two, "dealt": two}.items():
        command = [sys.executable, *launch, tmp_path / "tensor.py", how, tmp_path, *families]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    whole, *parts = (load_file(tmp_path / f"{how}.safetensors") for how in ("whole", "split", "dealt"))
    assert len(whole) == 8 * len(families)
    for part in parts:
        assert whole.keys() == part.keys()
        for name, value in whole.items():
            rounding = 1e-5 if name.startswith("mixtral") else 1e-6
            assert (part[name] - value).abs().max() <= rounding * max(1, value.abs().max()), name
