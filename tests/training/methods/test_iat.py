"""Important-head training: what is held is held to the bit, what may move moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.heads.gates import Heads
from headwise.heads.selection import random_heads
from headwise.testing import tiny, toy_model
from headwise.training.loop import Run, fit
from headwise.training.methods import iat
from headwise.training.methods.iat import IAT, HeldHeads, half_of
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

BASE = Plan(steps=60, lr=3e-3, batch_size=16, evaluate_every=0)
PLANS = {
    "plain": BASE,
    "decay": BASE.with_(weight_decay=0.1),
    "clip": BASE.with_(clip=0.1),
    "accumulate": BASE.with_(accumulate=2),
    "bf16": BASE.with_(precision="bf16"),
    "constant": BASE.with_(schedule="constant", warmup=0.0),
}
HEADS = {"toy0": [(0, 1), (1, 2)], "toy1": [(0, 1), (1, 3)]}


def masks() -> dict[str, torch.Tensor]:
    out = {}
    for task, chosen in HEADS.items():
        out[task] = torch.zeros(2, 4, dtype=torch.bool)
        for layer, head in chosen:
            out[task][layer, head] = True
    return out


class Watched(IAT):
    """Keeps the q, k, v rows and moments of every head before the held phase and at the end."""

    def before_step(self, run):
        super().before_step(run)
        if run.step == self.first:
            self.before = snapshot(run)

    def finish(self, run):
        self.after = snapshot(run)
        super().finish(run)


def snapshot(run: Run) -> dict[tuple, list[torch.Tensor]]:
    heads = Heads.of(run.model.encoder)
    rows = {}
    for site in heads.sites:
        for name in "qkv":
            part = site.parts[name]
            for head, places in enumerate(part.rows):
                rows[site.layer, head, name] = [
                    tensor.data.index_select(axis, places).clone()
                    for parameter, axis in ((part.module.weight, part.axis), (part.module.bias, 0))
                    for tensor in (parameter, *_moments(run, parameter))
                ]
    return rows


def _moments(run: Run, parameter: torch.Tensor) -> list[torch.Tensor]:
    state = run.optimizer.state[parameter]
    return [state["exp_avg"], state["exp_avg_sq"]]


def moved(method: Watched) -> set[tuple[int, int]]:
    return {
        key[:2]
        for key in method.before
        if any(not torch.equal(a, b) for a, b in zip(method.before[key], method.after[key]))
    }


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_unchosen_heads_are_bit_identical_after_fifty_steps(plan, family):
    method = Watched(delta=50 / 60, choose=masks())
    fit(toy_model(family=family, pooling="cls" if family == "bert" else "last"), plan, method)
    assert moved(method) == {(0, 1), (1, 2), (1, 3)}


def test_each_task_moves_its_own_heads_only():
    method = Watched(delta=50 / 60, choose=masks())
    fit(toy_model(), BASE.with_(sampling="fixed", order=("toy0",)), method)
    assert moved(method) == set(HEADS["toy0"])


def test_held_from_the_first_step_other_heads_have_no_moments():
    """The first step makes the moments, so there are none yet to put back."""

    class Look(IAT):
        def finish(self, run):
            self.after = snapshot(run)
            super().finish(run)

    method = Look(delta=1.0, choose=masks())
    fit(toy_model(), BASE.with_(steps=3, sampling="fixed", order=("toy0",)), method)
    moments = {key: [*tensors[1:3], *tensors[4:6]] for key, tensors in method.after.items()}  # of weight and bias
    assert {key[:2] for key, found in moments.items() if any(m.any() for m in found)} == set(HEADS["toy0"])


def test_a_mixed_window_frees_the_heads_of_its_tasks():
    """Gradients are masked per micro-batch: a head of one task gets nothing from the other's batch."""
    plan = BASE.with_(accumulate=2, window="mixed", sampling="round_robin")
    method = Watched(delta=50 / 60, choose=masks())
    fit(toy_model(), plan, method)
    assert moved(method) == {(0, 1), (1, 2), (1, 3)}


@pytest.mark.parametrize(
    ("plan", "delta"), [(plan, 50 / 60) for plan in PLANS.values()] + [(BASE, 1.0)], ids=[*PLANS, "from the first step"]
)
def test_the_accelerators_way_of_holding_gives_the_same_bits(plan, delta, monkeypatch):
    """Whole tensors saved and blended back, or rows copied; gradients masked where nothing comes of them, or not."""
    rows, whole, masked = toy_model(), toy_model(), toy_model()
    settings = {"delta": delta, "choose": masks()}
    fit(rows, plan, IAT(**settings))

    class Masked(IAT):
        def _hold(self, run):
            super()._hold(run)
            self.held.detach()
            self.held.attach()

    fit(masked, plan, Masked(**settings))
    monkeypatch.setattr(iat, "_together", lambda held: True)
    fit(whole, plan, IAT(**settings))
    for other in (whole, masked):
        assert all(torch.equal(a, b) for a, b in zip(rows.state_dict().values(), other.state_dict().values()))


def test_the_accelerators_way_is_taken_on_an_accelerator_alone():
    def rows(is_cuda: bool) -> SimpleNamespace:
        return SimpleNamespace(parameter=SimpleNamespace(is_cuda=is_cuda))

    assert [iat._together(held) for held in ([], [rows(False)], [rows(True)])] == [False, False, True]


def test_the_accelerators_way_lists_tensors_anew_only_when_there_are_others(monkeypatch):
    listed: list[frozenset[str]] = []

    class Look(iat._WholeTensors):
        def _listed(self, held, optimizer, tasks):
            listed.append(tasks)
            return super()._listed(held, optimizer, tasks)

    monkeypatch.setattr(iat, "_together", lambda held: True)
    monkeypatch.setattr(iat, "_WholeTensors", Look)
    fit(toy_model(), BASE.with_(steps=8, sampling="fixed", order=("toy0", "toy1")), IAT(delta=1.0, choose=masks()))
    assert listed == [{"toy0"}, {"toy1"}, {"toy0"}]  # the first step had no moments yet


@pytest.mark.parametrize(
    ("settings", "freeze", "masked"),
    [
        ({}, "update", False),
        ({}, "grad", True),
        ({"clip": 1.0}, "update", True),
        ({"window": "mixed"}, "update", False),
        ({"accumulate": 2}, "update", False),
        ({"accumulate": 2, "window": "mixed"}, "update", True),
    ],
)
def test_gradients_are_masked_only_where_something_comes_of_them(settings, freeze, masked, monkeypatch):
    attached: list[HeldHeads] = []
    monkeypatch.setattr(HeldHeads, "attach", lambda held: attached.append(held))
    fit(toy_model(), BASE.with_(steps=2, **settings), IAT(delta=1.0, choose=masks(), freeze=freeze))
    assert bool(attached) == masked


def test_the_published_freeze_lets_heads_drift():
    method = Watched(delta=50 / 60, choose=masks(), freeze="grad")
    fit(toy_model(), BASE, method)
    assert moved(method) == {(layer, head) for layer in range(2) for head in range(4)}


def test_the_published_freeze_leaves_a_gradient_to_the_tasks_own_heads_alone():
    reached: dict[str, set[tuple[int, int]]] = {task: set() for task in HEADS}

    class Look(IAT):
        def before_update(self, run, tasks):
            super().before_update(run, tasks)
            for site in self.heads.sites:
                part = site.parts["v"]
                grad = part.module.weight.grad
                reached[tasks[0]] |= {
                    (site.layer, head)
                    for head, rows in enumerate(part.rows)
                    if grad.index_select(part.axis, rows).any()
                }

    fit(toy_model(), BASE.with_(steps=8), Look(delta=1.0, choose=masks(), freeze="grad"))
    assert reached == {task: set(chosen) for task, chosen in HEADS.items()}


def test_in_a_mixed_window_a_head_learns_from_its_own_tasks_alone():
    plan = BASE.with_(steps=1, accumulate=2, window="mixed", sampling="round_robin")

    def gradient(silent: str, layer: int, head: int) -> torch.Tensor:
        class Look(IAT):
            def loss(self, run, task, batch):
                return super().loss(run, task, batch) * (task != silent)

            def before_update(self, run, tasks):
                part = self.heads.sites[layer].parts["v"]
                kept.append(part.module.weight.grad.index_select(part.axis, part.rows[head]).clone())

        kept: list[torch.Tensor] = []
        fit(toy_model(), plan, Look(delta=1.0, choose=masks()))
        return kept[0]

    own, shared = (1, 2), (0, 1)  # a head of toy0, and one of both tasks
    assert torch.equal(gradient("toy1", *own), gradient("", *own)) and gradient("", *own).any()
    assert not torch.equal(gradient("toy1", *shared), gradient("", *shared))


def test_heads_are_chosen_anew_every_so_many_steps():
    steps = []

    class Look(IAT):
        def _hold(self, run):
            steps.append(run.step)
            super()._hold(run)

    fit(toy_model(), BASE.with_(steps=20), Look(delta=0.5, choose=masks(), refresh=3))
    assert steps == [10, 13, 16, 19]


def test_the_defaults_are_the_papers():
    said = IAT().describe()
    assert (said["alpha"], said["delta"], said["examples"]) == (0.3, 0.1, 10_000)
    assert (said["freeze"], said["params"], said["by"], said["refresh"]) == ("update", "qkv", "gradient", None)


@pytest.mark.parametrize("settings", [{"alpha": 1.0}, {"delta": 0.0}])
def test_the_limits_are_plain_training(settings):
    plain, limit = toy_model(), toy_model()
    fit(plain, BASE.with_(steps=20))
    method = IAT(**settings)
    fit(limit, BASE.with_(steps=20), method)
    assert not method.masks, "where none is held, no heads are measured"
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), limit.state_dict().values()))


@pytest.mark.parametrize("settings", [{"clip": 0.5}, {"accumulate": 2, "window": "mixed"}, {}], ids=str)
@pytest.mark.parametrize("freeze", ["update", "grad"])
def test_on_a_frozen_encoder_nothing_is_left_to_hold(settings, freeze):
    plain, held, plan = toy_model(), toy_model(), BASE.with_(steps=8, train="heads", **settings)
    fit(plain, plan)
    fit(held, plan, IAT(delta=0.5, examples=8, freeze=freeze))
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), held.state_dict().values()))


def test_choosing_heads_disturbs_nothing():
    """Gradients, modes, random streams and data order are as if no importance had been measured."""

    class Measured(IAT):
        def _hold(self, run):
            pass

    plain, measured = toy_model(), toy_model()
    fit(plain, BASE.with_(steps=20))
    method = Measured(delta=0.5)
    fit(measured, BASE.with_(steps=20), method)
    assert set(method.masks) == {"toy0", "toy1"}
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), measured.state_dict().values()))


def test_a_run_with_other_given_masks_is_another_run(tmp_path):
    plan, others = BASE.with_(steps=4), {task: ~mask for task, mask in masks().items()}
    fit(toy_model(), plan, IAT(delta=1.0, choose=masks()), out=tmp_path)
    with pytest.raises(HeadwiseError, match="another run"):
        fit(toy_model(), plan, IAT(delta=1.0, choose=others), out=tmp_path)
    assert fit(toy_model(), plan, IAT(delta=1.0, choose=masks()), out=tmp_path).steps == 4
    assert IAT().describe()["choose"] == "top"  # the names of records hang on it


def test_resume_inside_the_held_phase_is_exact(tmp_path):
    plan = BASE.with_(steps=30, checkpoint_every=5)
    whole = toy_model()
    fit(whole, plan, IAT(delta=0.5))

    class Crash(IAT):
        def before_batch(self, run, task):
            if run.step == 22:
                raise RuntimeError("crash")
            super().before_batch(run, task)

    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, Crash(delta=0.5), out=tmp_path)
    resumed = toy_model()
    fit(resumed, plan, IAT(delta=0.5), out=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values()))


@pytest.mark.parametrize(
    ("choose", "places"), [("top", {"toy0": [6, 7], "toy1": [0, 1]}), ("bottom", {"toy0": [0, 1], "toy1": [6, 7]})]
)
def test_the_most_or_the_least_important_heads_are_chosen(choose, places, monkeypatch):
    rising = torch.arange(8.0).view(2, 4)
    planted = {"toy0": rising, "toy1": -rising}
    monkeypatch.setattr(iat, "importance", lambda model, task, *_, **__: SimpleNamespace(scores=planted[task]))
    method = IAT(alpha=0.25, delta=0.5, choose=choose)
    fit(toy_model(), BASE.with_(steps=2), method)
    assert {task: mask.flatten().nonzero().flatten().tolist() for task, mask in method.masks.items()} == places


def test_random_heads_are_told_by_the_seed_and_the_tasks_place(monkeypatch):
    """They can be drawn again from a record, and nothing is measured for them."""
    monkeypatch.delattr(iat, "importance")
    for seed in (0, 7):
        method = IAT(alpha=0.5, delta=0.5, choose="random")
        fit(toy_model(), BASE.with_(steps=2, seed=seed), method)
        drawn = [random_heads((2, 4), 0.5, seed=10_000_019 + 1000 * seed + place) for place in range(2)]
        assert all(torch.equal(method.masks[f"toy{place}"], mask) for place, mask in enumerate(drawn))
        assert not torch.equal(*drawn)


def test_random_heads_are_among_the_living():
    model, method = toy_model(), IAT(alpha=0.5, delta=0.5, choose="random")
    prune(model.encoder, torch.tensor([[True, True, False, False], [False, False, True, True]]))
    fit(model, BASE.with_(steps=2), method)
    alive = Heads.of(model.encoder).alive
    assert all(torch.equal(mask, alive) for mask in method.masks.values())


def test_tickets_are_chosen_before_the_first_step():
    early = IAT.ticket_share(alpha=0.25)
    fit(toy_model(), BASE.with_(steps=4), early)
    assert early.first == 0 and all(int(mask.sum()) == 2 for mask in early.masks.values()) and len(early.masks) == 2


def test_refresh_chooses_anew():
    seen = []

    class Count(IAT):
        def _hold(self, run):
            seen.append(1)
            super()._hold(run)

    fit(toy_model(), BASE.with_(steps=20), Count(delta=0.5, refresh=3))
    assert len(seen) == 4


def test_groups_move_with_any_of_their_heads():
    model = tiny("llama")
    heads = Heads.of(model)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0, 3] = True
    held = HeldHeads(heads, {"t": mask}, "qkvo")
    free = {id(rows.parameter): rows.free["t"] for rows in held.rows}
    attention = heads.sites[0].attention
    assert free[id(attention.q_proj.weight)].view(4, 6).all(1).tolist() == [False, False, False, True]
    assert free[id(attention.k_proj.weight)].view(2, 6).all(1).tolist() == [False, True]
    assert free[id(attention.o_proj.weight)].view(4, 6).all(1).tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    "bad", [{"alpha": 1.1}, {"delta": -0.1}, {"choose": "best"}, {"freeze": "hard"}, {"params": "v"}]
)
def test_bad_settings(bad):
    with pytest.raises(HeadwiseError):
        IAT(**bad)


@pytest.mark.parametrize(
    "sizes", [{"toy0": (2, 4)}, {"toy0": (3, 4), "toy1": (3, 4)}, {"toy0": (2, 4), "toy1": (2, 3)}]
)
def test_given_masks_that_do_not_fit_are_told_before_training(sizes):
    model, masks = toy_model(), {task: torch.ones(size).bool() for task, size in sizes.items()}
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(HeadwiseError, match="mask"):
        fit(model, BASE.with_(steps=4), IAT(delta=0.5, choose=masks))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_shared_layers_are_refused():
    with pytest.raises(HeadwiseError, match="share one set of weights"):
        fit(toy_model(family="albert"), BASE.with_(steps=1), IAT())


def test_method_hooks_are_no_ops():
    assert Method().describe() == {"method": "plain"} and Method().state() == {}


def test_alpha_is_the_fewest_heads_with_half_of_the_importance():
    assert half_of(torch.tensor([[6.0, 1.0], [2.0, 1.0]])) == 0.25
    assert half_of(torch.tensor([[1.0, 1.0], [1.0, float("nan")]])) == pytest.approx(2 / 3)


def test_heads_are_held_once_their_selection_has_settled():
    """Given heads agree at once, so they are held at the second look, a twentieth after half; never before half."""
    held_from = []

    class Watched(IAT):
        def before_update(self, run, tasks):
            if self.masks and not held_from:
                held_from.append(run.step)
            super().before_update(run, tasks)

    model = toy_model()
    plan = Plan(steps=40, lr=1e-3, batch_size=16, evaluate_every=0)
    fit(model, plan, Watched(alpha="half", delta="settled", examples=16))
    assert held_from and 22 <= held_from[0] <= 38
    given = {task: torch.ones(2, 4, dtype=torch.bool) for task in model.tasks}
    held_from.clear()
    fit(toy_model(), plan, Watched(delta="settled", choose=given))
    assert held_from == [22]
