"""A plan is the same as a Python value, as a file and as a set of changes; what is wrong with it is said."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from headwise.errors import HeadwiseError
from headwise.testing import toy_model, toy_tasks
from headwise.training.loop import Run
from headwise.training.methods.method import Method
from headwise.training.plan import CHOICES, Plan, samplers, schedule

NAMES = ["a", "b", "c"]
COUNTS = [400, 90, 10]
counts = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def drawn(plan: Plan, epoch: int = 0, epochs: int = 1, rounds: int = 40) -> np.ndarray:
    """How often each task came, over many seeds."""
    total = np.zeros(len(COUNTS), int)
    for seed in range(rounds):
        total += np.bincount(schedule(NAMES, COUNTS, epoch, epochs, plan.with_(seed=seed)), minlength=len(COUNTS))
    return total


def follows(observed: np.ndarray, exponent: float) -> bool:
    weights = np.asarray(COUNTS, float) ** exponent
    return chisquare(observed, observed.sum() * weights / weights.sum()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("plan", "exponent"),
    [
        (Plan(sampling="square_root"), 0.5),
        (Plan(sampling="temperature"), 0.8),
        (Plan(sampling="temperature", temperature=0.3), 0.3),
        (Plan(sampling="uniform"), 0.0),
    ],
)
def test_tasks_are_drawn_in_proportion_to_a_power_of_their_size(plan, exponent):
    observed = drawn(plan)
    assert follows(observed, exponent)
    assert not follows(observed, exponent + 0.2)  # the test can tell


@pytest.mark.parametrize(("epoch", "epochs", "exponent"), [(0, 5, 1.0), (2, 5, 0.6), (4, 5, 0.2), (0, 1, 1.0)])
def test_annealing_falls_from_one_to_a_fifth(epoch, epochs, exponent):
    """Eq. 8 counts epochs from 1; for a single epoch, where its fraction is 0/0, the exponent is that of the first."""
    observed = drawn(Plan(sampling="annealed"), epoch, epochs)
    assert follows(observed, exponent)
    assert not follows(observed, exponent - 0.2)


@given(counts, st.integers(0, 3))
@settings(max_examples=30)
def test_proportional_is_the_exact_multiset(sizes, epoch):
    names = [f"t{i}" for i in range(len(sizes))]
    found = schedule(names, sizes, epoch, 4, Plan(sampling="proportional"))
    assert np.bincount(found, minlength=len(sizes)).tolist() == sizes


@given(counts)
@settings(max_examples=30)
def test_round_robin_takes_turns(sizes):
    names = [f"t{i}" for i in range(len(sizes))]
    found = schedule(names, sizes, 0, 1, Plan(sampling="round_robin"))
    assert found.tolist() == [i % len(sizes) for i in range(sum(sizes))]


@pytest.mark.parametrize("name", [*samplers])
@given(sizes=counts)
@settings(max_examples=10)
def test_an_epoch_has_as_many_batches_as_the_tasks_and_its_own_seeded_order(name, sizes):
    names = [f"t{i}" for i in range(len(sizes))]
    plan = Plan(sampling=name)
    one, same = (schedule(names, sizes, 1, 3, plan) for _ in range(2))
    assert len(one) == sum(sizes) and one.min() >= 0 and one.max() < len(sizes)
    assert np.array_equal(one, same)


@pytest.mark.parametrize("name", ["proportional", "annealed", "square_root", "temperature", "uniform"])
def test_epochs_and_seeds_differ(name):
    plan = Plan(sampling=name)
    first = schedule(NAMES, COUNTS, 0, 3, plan)
    assert not np.array_equal(first, schedule(NAMES, COUNTS, 1, 3, plan))
    assert not np.array_equal(first, schedule(NAMES, COUNTS, 0, 3, plan.with_(seed=1)))


def test_fixed_is_the_given_cycle():
    found = schedule(NAMES, [3, 2, 2], 0, 1, Plan(sampling="fixed", order=("c", "a", "a")))
    assert found.tolist() == [2, 0, 0, 2, 0, 0, 2]
    for order in ((), ("a", "z")):
        with pytest.raises(HeadwiseError, match=r'a cycle of the tasks a, b, c.*\["a", "b"\].* --order a --order b'):
            schedule(NAMES, COUNTS, 0, 1, Plan(sampling="fixed", order=order))


def run_of(plan: Plan, sizes: tuple[int, ...]) -> Run:
    model = toy_model(len(sizes))
    for task, size in zip(toy_tasks(len(sizes), 200), sizes):
        model.tasks[task.name]._read["train"] = task.rows("train")[:size]
    return Run(model, plan, Method(), None)


@pytest.mark.parametrize("changes", [{}, {"accumulate": 3, "window": "mixed"}, {"tokens": 60}])
def test_a_proportional_epoch_sees_every_example_of_every_task_exactly_once(changes):
    run = run_of(Plan(batch_size=16, **changes), (70, 33, 5))
    seen: dict[str, list[int]] = {name: [] for name in run.names}
    batches = [task for step in range(2 * run.epoch_steps) for task in run.tasks_of_step(step)]
    for task in batches[: sum(run.units)]:
        seen[task] += run.streams[task].next().tolist()
    assert {name: sorted(items) for name, items in seen.items()} == {
        name: list(range(len(run.data[name]))) for name in run.names
    }


@pytest.mark.parametrize("window", ["same", "mixed"])
@pytest.mark.parametrize("length", [{"epochs": 5}, {"steps": 23}, {"epochs": 0.3}], ids=str)
def test_the_last_batch_is_drawn_in_the_last_epoch(window, length, monkeypatch):
    """Or annealing would go on past its end."""
    seen = []
    run = run_of(Plan(batch_size=16, accumulate=4, window=window, **length), (30, 70))
    monkeypatch.setattr("headwise.training.loop.schedule", lambda n, u, e, es, p: seen.append((e, es)) or [0] * sum(u))
    run.tasks_of_step(run.total - 1)
    assert seen[-1][0] == seen[-1][1] - 1


def test_within_a_task_no_example_comes_back_before_all_have_come():
    """Whatever the sampling: a task's stream deals its examples out, shuffles, and deals again."""
    run = run_of(Plan(batch_size=8, sampling="uniform"), (40, 16))
    dealt = [run.streams["toy1"].next() for _ in range(6)]
    for i in range(0, 6, 2):
        assert sorted(np.concatenate(dealt[i : i + 2])) == list(range(16))
    assert not np.array_equal(np.concatenate(dealt[:2]), np.concatenate(dealt[2:4]))


def test_a_window_of_one_task_stays_with_it():
    run = run_of(Plan(batch_size=8, accumulate=3), (40, 16))
    assert all(len(set(run.tasks_of_step(step))) == 1 for step in range(run.total))


def test_balance_weighs_a_task_by_the_mean_loss_over_its_own():
    """Up to a common factor the published Σ_k L_k / L_t; equal losses weigh 1; without losses yet, 1."""
    run = run_of(Plan(balance="moving_average"), (32, 32))
    assert run.weight("toy0") == 1.0
    run.recent["toy0"].extend([9.0, 1.0, 1.0, 2.0, 2.0, 4.0])  # the last five: mean 2
    run.recent["toy1"].extend([8.0])
    assert run.weight("toy0") == (2 + 8) / 2 / 2 and run.weight("toy1") == (2 + 8) / 8 / 2
    run.recent["toy1"].extend([0.5] * 5)
    run.recent["toy0"].extend([0.5] * 5)
    assert run.weight("toy0") == run.weight("toy1") == 1.0


@pytest.mark.parametrize("cycle", [("a", "b", "b"), ("a",) * 6 + ("b",), None])
def test_cycles_go_on_from_epoch_to_epoch(cycle):
    """Epochs shorter than a cycle would else never reach its end."""
    names, units = ["a", "b"] if cycle else NAMES, [1, 2] if cycle else [1, 1, 2]
    plan = Plan(sampling="fixed", order=cycle) if cycle else Plan(sampling="round_robin")
    whole = np.concatenate([schedule(names, units, epoch, 70, plan) for epoch in range(70)])
    turn = [names.index(name) for name in cycle or names]
    assert (whole == np.resize(turn, len(whole))).all()


finite = st.floats(0, 1e6, allow_nan=False)
positive = st.integers(1, 10**9)
share = st.floats(0, 1)
VALUES = {
    "epochs": st.floats(1e-6, 1e4),
    "lr": finite,
    "weight_decay": finite,
    "temperature": finite,
    "warmup": share,
    "word_dropout": share,
    "beta1": st.floats(0, 0.999),
    "beta2": st.floats(0, 0.999),
    "batch_size": positive,
    "accumulate": positive,
    "seed": st.integers(0, 2**63),
    "order": st.lists(st.text(), max_size=3).map(tuple),
    "sampling": st.sampled_from([*samplers, "fixed"]),
    **{name: st.none() | finite for name in ("head_lr", "clip")},
    **{name: st.none() | positive for name in ("steps", "tokens", "max_examples", "max_dev", "patience")},
    **{name: st.none() | st.integers(0, 10**6) for name in ("evaluate_every", "checkpoint_every")},
    **{name: st.sampled_from(allowed) for name, allowed in CHOICES.items()},
}


def test_every_field_is_drawn():
    assert set(VALUES) == {field.name for field in fields(Plan)}


@given(st.builds(Plan, **VALUES))
@settings(max_examples=60)
def test_a_file_gives_the_plan_back(tmp_path_factory, plan):
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_bytes(plan.to_toml().encode())
    assert Plan.read(path) == plan


@given(st.builds(Plan, **VALUES))
@settings(max_examples=30)
def test_changes_are_a_plan_made_anew(plan):
    changes = {field.name: getattr(plan, field.name) for field in fields(plan)}
    assert Plan().with_(**changes) == plan
    assert plan.with_() == plan and hash(plan.with_()) == hash(plan)


def test_the_defaults_are_the_papers():
    plan = Plan()
    assert (plan.lr, plan.beta1, plan.beta2, plan.warmup, plan.epochs, plan.batch_size) == (
        2e-5,
        0.9,
        0.999,
        0.1,
        5,
        32,
    )


@pytest.mark.parametrize(("typed", "meant"), [("epohcs", "epochs"), ("seeds", "seed"), ("warm_up", "warmup")])
def test_an_unknown_field_is_refused_with_the_nearest(tmp_path, typed, meant):
    path = tmp_path / "plan.toml"
    path.write_text(f"{typed} = 3")
    with pytest.raises(HeadwiseError, match=rf"plan\.toml: unknown field of a plan.*Try: {meant}"):
        Plan.read(path)
    with pytest.raises(HeadwiseError, match=f"Try: {meant}"):
        Plan().with_(**{typed: 3})


WRONG = [
    {"lr": "high"},
    {"lr": None},
    {"lr": float("nan")},
    {"lr": float("inf")},
    {"lr": -1e-5},
    {"epochs": 0},
    {"epochs": [1]},
    {"steps": 1.5},
    {"steps": True},
    {"steps": 0},
    {"batch_size": "32"},
    {"beta1": 1.0},
    {"warmup": 1.1},
    {"seed": -1},
    {"patience": 0},
    {"evaluate_every": -1},
    {"order": "toy0"},
    {"order": [1, 2]},
    {"sampling": "proportinal"},
    {"sampling": 3},
    {"precision": "fp16"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_values_are_told_by_name(wrong):
    (name,) = wrong
    with pytest.raises(HeadwiseError, match=name):
        Plan(**wrong)
    with pytest.raises(HeadwiseError, match=name):
        Plan().with_(**wrong)


@pytest.mark.parametrize("text", ["lr = ", "lr 3", 'lr = "a\nb"', "\x00"])
def test_what_is_no_toml_is_told(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(HeadwiseError, match="TOML"):
        Plan.read(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(HeadwiseError, match="no plan at"):
        Plan.read(tmp_path / "none.toml")
    with pytest.raises(HeadwiseError, match="TOML"):
        Plan.read(tmp_path)


def test_a_sampler_from_outside_can_be_planned(monkeypatch):
    monkeypatch.setitem(samplers._entries, "mine", lambda counts, *_: [0] * sum(counts))
    assert Plan(sampling="mine").sampling == "mine"
