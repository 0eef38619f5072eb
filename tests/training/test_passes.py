"""Recorded passes change the speed of training and nothing else."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from headwise import tasks as catalog
from headwise.errors import HeadwiseWarning
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.papers.specialization.released import ReleasedIAT
from headwise.tasks import Rows, Task
from headwise.testing import no_dropout, tiny, tiny_tokenizer, toy_model
from headwise.training import passes
from headwise.training.loop import Run, fit
from headwise.training.methods.conflict import Conflict
from headwise.training.methods.iat import IAT
from headwise.training.methods.l0 import L0
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

PLANS = {
    "plain": Plan(steps=30, lr=1e-3, batch_size=8, evaluate_every=0),
    "decay": Plan(steps=30, lr=1e-3, batch_size=8, evaluate_every=0, weight_decay=0.1, clip=0.5),
    "mixed": Plan(steps=20, lr=1e-3, batch_size=8, accumulate=2, window="mixed", evaluate_every=0),
    "balanced": Plan(steps=30, lr=1e-3, batch_size=8, balance="moving_average", evaluate_every=0),
    "bf16": Plan(steps=30, lr=1e-3, batch_size=8, evaluate_every=0, precision="bf16"),
}
PLANS["bf16, clipped"] = PLANS["bf16"].with_(clip=0.5)
PLANS["bf16, mixed"] = PLANS["mixed"].with_(precision="bf16")


def words_model():
    """A tag for each word, and a tree over them."""
    found = [catalog.get(name) for name in ("corpus.pos", "corpus.con")]
    tasks = [Task(task.name, task.kind, Rows(task.rows("train")[:48]), task.metric) for task in found]
    words = dict.fromkeys(word for row in tasks[0].rows("train") for word in row["words"])
    torch.manual_seed(0)
    return MultiTaskModel(tiny("bert"), tiny_tokenizer(list(words)[:50]), tasks, max_length=64)


made: list[Faked] = []


class Faked:
    """Runs the pass anew at every replay, but as a graph: from and to the places, and in the mode, of its making."""

    def __init__(self, owner, task, batch, scale):
        self.owner, self.task, self.scale = owner, task, scale
        self.batch, self.factor = {n: v.clone() for n, v in batch.items()}, torch.ones(())
        self.grads, self.mode = {p: p.grad for p in owner._moved[task]}, owner.run.wrapped.training
        made.append(self)
        self.replays = 0

    def replay(self, batch, factor):
        self.replays += 1
        for name, value in batch.items():
            self.batch[name].copy_(value)
        model, mode, now = self.owner.run.wrapped, self.owner.run.wrapped.training, {p: p.grad for p in self.grads}
        model.train(self.mode)
        _give(self.grads)
        loss = self.owner._joined(self.task, self.batch, self.scale, self.factor.fill_(factor)).clone()
        _give(now)
        model.train(mode)
        return loss


def _give(grads):
    for parameter, grad in grads.items():
        parameter.grad = grad


@pytest.fixture
def recorded(monkeypatch):
    """Replays on the CPU: the bookkeeping of an accelerator without one."""

    def init(self, run):
        before(self, run)
        self.replays, self.grain = passes._plain_loss(run.method), passes.GRAIN

    before = passes.Passes.__init__
    monkeypatch.setattr(passes.Passes, "__init__", init)
    monkeypatch.setattr(passes, "_Recording", Faked)
    made.clear()
    return made


def _mean(matrix):
    return matrix.mean(0)


METHODS = {
    "plain": Method,
    "iat": lambda: IAT(delta=0.5, examples=16),
    "masked gradients": lambda: IAT(delta=0.5, examples=16, freeze="grad"),
    "gradients taken away": lambda: Conflict(_mean),
    "gradients left over, dropout off and on": lambda: ReleasedIAT(delta=0.8, examples=16),
    "gates": lambda: L0(weight=0.1, lr=0.1),
    "gates per task, some to be closed": lambda: L0(shared=False, target=0.5, lr=0.1),
}
CASES = [(p, m) for p in PLANS for m in ("plain", "iat")] + [
    ("round", "gradients taken away"),
    ("plain", list(METHODS)[4]),
    ("bf16", "masked gradients"),
    ("decay", "gates"),
    ("mixed", "gates"),
    ("mixed", list(METHODS)[6]),
]
PLANS["round"] = PLANS["mixed"].with_(sampling="round_robin")


def _check_same_bits(make, plan, method, monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(passes.Passes, "begin", lambda self, tasks: None)
        m.setattr(passes.Passes, "_replayed", passes.Passes._pass)
        one, how = make(), method()
        fit(one, plan, how)
    two, again = make(), method()
    fit(two, plan, again)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    for name, value in how.state().items():
        assert torch.equal(value, again.state()[name]), name


@pytest.mark.parametrize(("plan", "method"), [(PLANS[p], METHODS[m]) for p, m in CASES], ids=map("-".join, CASES))
def test_fixed_gradients_train_the_same_bits(plan, method, recorded, monkeypatch):
    """Also where weights decay: a parameter that a task does not reach stays out of its step."""
    _check_same_bits(toy_model, plan, method, monkeypatch)
    assert sum(r.replays for r in recorded) > 5


def test_a_weight_with_two_uses_keeps_the_gradients_of_both(recorded, monkeypatch):
    """A linear layer that shares its weight with an embedding."""

    def tied():
        model = toy_model()
        words = model.encoder.embeddings.word_embeddings
        mix = torch.nn.Linear(*reversed(words.weight.shape), bias=False)
        mix.weight = words.weight
        model.encoder.pooler, model.encoder.mix = None, mix
        model.encoder.register_forward_hook(_mixed)
        return model

    _check_same_bits(tied, PLANS["bf16"], Method, monkeypatch)


def _mixed(encoder, _, out):
    out.last_hidden_state = out.last_hidden_state + encoder.mix(out.last_hidden_state).mean(-1, keepdim=True)
    return out


def test_word_level_tasks_are_replayed(recorded, monkeypatch):
    _check_same_bits(words_model, PLANS["decay"].with_(steps=30), Method, monkeypatch)
    replays = {task: sum(r.replays for r in recorded if r.task == task) for task in words_model().tasks}
    assert min(replays.values()) >= 3, replays


@pytest.mark.parametrize("shape", [{"use_heads": torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0]]) > 0}, {"layer": 1}])
def test_models_that_read_heads_or_a_layer_are_replayed(shape, recorded, monkeypatch):
    _check_same_bits(lambda: toy_model(**shape), PLANS["plain"], Method, monkeypatch)
    assert {r.task for r in recorded} == {"toy0", "toy1"}


def test_new_masks_are_recorded_anew(recorded):
    method = IAT(delta=0.9, examples=16, refresh=8, choose="random")
    fit(toy_model(), PLANS["decay"], method)
    assert method.version > 1 and len({id(r) for r in recorded}) > len({r.task for r in recorded})


def test_a_method_with_a_loss_of_its_own_is_not_recorded(recorded):
    class Own(Method):
        def loss(self, run, task, batch):
            return super().loss(run, task, batch) * 2

    fit(toy_model(), PLANS["plain"], Own())
    assert not recorded


def test_what_cannot_be_recorded_is_trained_as_it_is(recorded, monkeypatch):
    def refuse(*args):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(passes, "_Recording", refuse)
    with pytest.warns(UserWarning, match="without CUDA graphs: operation not permitted"):
        fit(toy_model(), PLANS["plain"])


def _wait(module, inputs, output):
    output.detach().sum().item()


def test_what_waits_for_the_device_is_not_even_tried(recorded):
    """Encoders may, as they do not when they are recorded."""
    model = toy_model()
    model.encoder.embeddings.register_forward_hook(_wait)
    fit(model, PLANS["plain"])
    assert {r.task for r in recorded} == {"toy0", "toy1"}
    recorded.clear()
    model.head("toy0").register_forward_hook(_wait)
    with pytest.warns(HeadwiseWarning, match="toy0 is trained without CUDA graphs: _local_scalar_dense synchronizes"):
        fit(model, PLANS["plain"])
    assert {r.task for r in recorded} == {"toy1"}


MOVE = partial(torch.Tensor.to, device="meta")


@pytest.mark.parametrize("wait", [lambda x: x[x > 0], torch.nonzero, torch.Tensor.item, torch.unique, MOVE])
def test_what_waits(wait):
    with passes._watched(torch.nn.Identity()) as watch:
        torch.arange(4.0)[torch.tensor([0, 2])].argsort().cumsum(0)
        assert not watch.seen
        wait(torch.ones(1))
    assert watch.seen


class Copies(TorchDispatchMode):
    """Counts the copies to a device that are made."""

    made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        copied = func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu"
        self.made += copied and kwargs.get("device") == torch.device("meta")
        return func(*args, **(kwargs or {}))


def test_what_is_copied_to_the_device_is_copied_once_for_what_is_in_it():
    constants = passes._Constants()
    table = torch.arange(6).view(2, 3)
    with Copies() as copies:
        for same in (table, table.clone(), table.t().contiguous().t()):
            with constants:
                found = same.to("meta")
            assert (found.shape, found.dtype, copies.made) == (table.shape, table.dtype, 1)
        with constants:
            others = [table + 1, table.view(6), table.float(), table.bool(), table.to(torch.bfloat16), torch.tensor(1)]
            others.append(torch.nn.Parameter(torch.ones(3)))
            for number, other in enumerate(others, 2):
                found = other.to("meta")
                assert (found.shape, found.dtype, copies.made) == (other.shape, other.dtype, number)
            assert table.to("meta", torch.int32).dtype == torch.int32


def test_tensors_made_on_the_device_from_numbers_are_copies_as_well():
    """Masks of eager attention have one."""
    with Copies() as copies, passes._Constants():
        for dtype in (torch.float32, torch.bfloat16):
            makers = (torch.tensor, torch.as_tensor, torch.tensor)
            found = [make([0.0, 1.5], device="meta", dtype=dtype) for make in makers]
            assert {(one.device.type, one.dtype, one.shape) for one in found} == {("meta", dtype, (2,))}
        assert copies.made == 2
        assert torch.tensor(1.5).item() == 1.5 and torch.tensor(1.5, device="cpu").dtype == torch.float32
    assert copies.made == 2


def test_what_is_kept_of_copies_is_nobodys_to_write_to(monkeypatch):
    monkeypatch.setattr(passes, "_moves", lambda func, args, kwargs: func is torch.ops.aten._to_copy.default)
    constants, table = passes._Constants(), torch.arange(4.0)
    with constants:
        first = torch.ops.aten._to_copy.default(table, device=torch.device("cpu"))
        first.zero_()
        assert torch.ops.aten._to_copy.default(table, device=torch.device("cpu")).tolist() == table.tolist()


def test_copies_that_only_a_recording_makes_are_fetched_after_it():
    constants, table = passes._Constants(), torch.arange(6.0)
    with Copies() as copies:
        with constants.recorded():
            empty = table.to("meta", torch.bfloat16)
        assert (empty.shape, empty.dtype, copies.made) == (table.shape, torch.bfloat16, 0)
        table += 1  # what is fetched is what was asked for
        assert constants.fetch() and copies.made == 1 and not constants.fetch()
        with constants:
            (table - 1).to("meta", torch.bfloat16)
            assert copies.made == 1
            table.to("meta", torch.bfloat16)
            assert copies.made == 2


def test_copies_inside_of_scripted_functions_are_seen():
    """DeBERTa's table of log-spaced distances makes one."""
    places = torch.arange(6, device="meta")
    with Copies() as copies:
        for _ in range(3):
            with passes._Constants() as constants:
                make_log_bucket_position(places[:, None] - places, 256, 512)
            assert len(constants._kept) == 1
        with constants:
            make_log_bucket_position(places[:, None] - places, 256, 512)
    assert copies.made == 3


def test_widths_come_in_steps_and_never_beyond_the_longest():
    model = toy_model()
    data = encode(model.tasks["toy0"], "train", model.tokenizer)
    longest = int(data.lengths.max())
    for items in (np.array([0]), np.arange(5), np.array([int(data.lengths.argmax())])):
        wide, narrow = data.batch(items, 4), data.batch(items)
        width = wide["input_ids"].shape[1]
        assert width == min(-(-narrow["input_ids"].shape[1] // 4) * 4, longest)
        assert torch.equal(wide["attention_mask"].sum(1), narrow["attention_mask"].sum(1))


def replays_seen(monkeypatch):
    """A list that every replay adds its recording to."""
    seen = []

    class Counted(passes._Recording):
        def replay(self, *args):
            seen.append(self)
            return super().replay(*args)

    monkeypatch.setattr(passes, "_Recording", Counted)
    return seen


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
def test_tasks_that_wait_for_the_device_train_on_an_accelerator():
    model = toy_model()  # with dropout, which a recording that breaks off would spoil
    model.head("toy0").register_forward_hook(_wait)
    with pytest.warns(HeadwiseWarning, match="toy0 is trained without CUDA graphs"):
        fit(model, PLANS["plain"])
    assert all(value.isfinite().all() for value in model.state_dict().values())


def _tables_made_on_the_host(module, inputs, output):
    tables = torch.arange(output.shape[-1]).float()
    return output + tables.to(output.device) * 1e-3


def _other_tables_when_recorded(module, inputs, output):
    own = torch.arange(output.shape[-1]) + 1 if torch.cuda.is_current_stream_capturing() else None
    return _tables_made_on_the_host(module, inputs, output) + (0 if own is None else own.to(output.device) * 0)


def _tables_drawn_anew(module, inputs, output):
    return output + torch.randn(output.shape[-1]).to(output.device) * 1e-3


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
@pytest.mark.parametrize("of", [_tables_made_on_the_host, _other_tables_when_recorded, "deberta-v2", "mpnet"])
def test_encoders_that_copy_tables_to_the_device_are_replayed(of, monkeypatch):
    def make():
        toy = toy_model()
        if callable(of):
            toy.encoder.embeddings.register_forward_hook(of)
            return no_dropout(toy)
        buckets = {"position_buckets": 8} if of == "deberta-v2" else {}
        return no_dropout(MultiTaskModel(tiny(of, **buckets), toy.tokenizer, list(toy.tasks.values())))

    seen = replays_seen(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HeadwiseWarning)
        one = fit(make(), PLANS["plain"])
    assert len(seen) > 5
    monkeypatch.setattr(passes, "_plain_loss", lambda method: False)
    two = fit(make(), PLANS["plain"])
    for task, losses in one.losses.items():
        assert np.allclose(losses, two.losses[task], rtol=1e-3), task


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
def test_an_encoder_whose_tables_change_is_trained_without_replay(monkeypatch):
    toy = toy_model()
    toy.encoder.embeddings.register_forward_hook(_tables_drawn_anew)
    seen = replays_seen(monkeypatch)
    with pytest.warns(HeadwiseWarning, match="without CUDA graphs: it copies different data to the device each time"):
        trained = fit(no_dropout(toy), PLANS["plain"])
    assert not seen and all(np.isfinite(losses).all() for losses in trained.losses.values())


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
def test_word_level_tasks_replay_on_an_accelerator(monkeypatch):
    replayed = set()

    class Counted(passes._Recording):
        def __init__(self, owner, task, *more):
            super().__init__(owner, task, *more)
            replayed.add(task)

    monkeypatch.setattr(passes, "_Recording", Counted)
    one = fit(no_dropout(words_model()), PLANS["decay"])
    assert replayed == set(one.losses)
    monkeypatch.setattr(passes, "_plain_loss", lambda method: False)
    two = fit(no_dropout(words_model()), PLANS["decay"])
    for task, losses in one.losses.items():
        assert np.allclose(losses, two.losses[task], rtol=1e-3), task


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replay_on_an_accelerator_trains_like_no_replay(precision, monkeypatch):
    plan = PLANS["decay"].with_(precision=precision)
    one, two = no_dropout(toy_model()), no_dropout(toy_model())
    run = Run(one, plan, Method(), None)
    assert run.passes.replays
    fit(two, plan)
    with monkeypatch.context() as m:
        m.setattr(passes, "_plain_loss", lambda method: False)
        fit(one, plan)
    for name, value in one.state_dict().items():
        if "key.bias" not in name:  # its true gradient is 0, and Adam blows up the rounding noise
            assert torch.allclose(value, two.state_dict()[name], atol=1e-4 if precision == "fp32" else 2e-2), name


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
def test_gates_replay_on_an_accelerator(monkeypatch):
    """The noise of replayed gates goes on from draw to draw, as it does without replay."""
    seen = replays_seen(monkeypatch)
    plan, found = PLANS["decay"].with_(steps=60), []
    for replays in (True, False):
        monkeypatch.setattr(passes, "_plain_loss", lambda method, replays=replays: replays)
        method = L0(weight=0.05, lr=0.05)
        torch.manual_seed(0)
        losses = fit(no_dropout(toy_model()), plan, method).losses
        found.append((method.gates.log_a.detach().cpu(), losses))
        assert bool(seen) == replays or not replays
    assert len(seen) > 20
    (one, first), (two, second) = found
    assert (one - two).abs().max() < 0.05 and (one - one.mean()).abs().max() > 0.05
    assert np.allclose(first["toy0"], second["toy0"], rtol=0.05)


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_masked_gradients_replay_on_an_accelerator(precision, monkeypatch):
    """Without momentum and decay, rows whose gradients are masked stay as they are, to the bit."""
    seen = replays_seen(monkeypatch)
    model, mask = toy_model(), torch.tensor([[True, False, False, True]] * 2)
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    plan = Plan(steps=40, lr=0.05, batch_size=8, evaluate_every=0, precision=precision, optimizer="sgd", beta1=0.0)
    fit(model, plan, IAT(delta=1.0, choose=dict.fromkeys(model.tasks, mask), freeze="grad"))
    after, size = model.encoder.state_dict(), before["embeddings.word_embeddings.weight"].shape[1] // 4
    for layer in range(2):
        name = f"encoder.layer.{layer}.attention.self.query.weight"
        moved = (after[name].cpu() != before[name].cpu()).view(4, size, -1).any((1, 2))
        assert moved.tolist() == mask[layer].tolist()
    assert len(seen) > 10
