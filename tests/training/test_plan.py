"""A plan is the same as a Python value, as a file and as a set of changes; what is wrong with it is said."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.training.plan import CHOICES, Plan
from headwise.training.sampling import samplers

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
