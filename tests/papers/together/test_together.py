"""Predicted gains: planted signals are found, noise is not, and nothing held out is used."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.experiments.jobs import in_order, perform
from headwise.io.records import Results
from headwise.papers.pages import pages
from headwise.papers.recipe import Scale
from headwise.papers.together import recipe
from headwise.papers.together.prediction import (
    BASELINES,
    OURS,
    Model,
    ceiling,
    correlated,
    held_out,
    predicted,
    signals_of,
)
from headwise.papers.together.tables import Records

TASKS = tuple("abcdefgh")


def model(name: str, seed: int, planted: float = 1.0) -> Model:
    """Gains that the first signal of ours predicts with the given weight, beside noise."""
    generator = np.random.default_rng(seed)
    shape = (len(TASKS), len(TASKS))
    signals = {each: generator.normal(size=shape) for each in (*OURS, *BASELINES)}
    gain = planted * signals[OURS[0]] + 0.3 * generator.normal(size=shape)
    np.fill_diagonal(gain, np.nan)
    return Model(name, TASKS, gain, np.zeros(shape), signals)


def test_a_planted_signal_predicts_and_noise_does_not():
    made = [model(name, seed) for seed, name in enumerate("xyz")]
    for leave in ("model", "task"):
        ours, other = (held_out(made, names, leave, draws=200) for names in (OURS, BASELINES))
        assert ours["r"] > 0.8 and ours["low"] > 0.5 and other["low"] < 0 < other["high"] + 0.2
    r, p = correlated(made[0], OURS[0], draws=200)
    assert r > 0.8 and p < 0.01 and correlated(made[0], BASELINES[0], draws=200)[1] > 0.01


def test_noise_alone_is_a_null():
    made = [model(name, seed + 10, planted=0.0) for seed, name in enumerate("xyz")]
    found = held_out(made, OURS, "model", draws=200)
    assert found["low"] < 0 < found["high"]


def test_pairs_that_were_not_trained_are_not_counted():
    made = [model(name, seed) for seed, name in enumerate("xyz")]
    gain = made[0].gain.copy()
    gain[4:, 4:] = np.nan
    part = Model("x", TASKS, gain, made[0].noise, made[0].signals)
    assert part.apart.shape[1] == len(TASKS) * 7 - 12
    r, p = correlated(part, OURS[0], draws=200)
    assert r > 0.8 and p < 0.01
    for leave in ("model", "task"):
        found = held_out([part, *made[1:]], OURS, leave, draws=50)
        assert found["r"] > 0.8 and np.isfinite([found["low"], found["high"]]).all()


def test_what_is_held_out_is_not_used():
    made = [model(name, seed) for seed, name in enumerate("xyz")]
    before = predicted(made, OURS, "model")[0]
    changed = Model("x", TASKS, made[0].gain[::-1, ::-1].copy(), made[0].noise, made[0].signals)
    assert np.allclose(predicted([changed, *made[1:]], OURS, "model")[0], before)
    first = made[0].gain.copy()
    first[0], first[:, 0] = first[0][::-1], first[:, 0][::-1]  # other gains of task a, the same mean and spread
    np.fill_diagonal(first, np.nan)
    if np.isclose(np.nanmean(first), np.nanmean(made[0].gain)):
        again = predicted([Model("x", TASKS, first, made[0].noise, made[0].signals), *made[1:]], OURS, "task")[0]
        own = made[0].apart[0] == 0
        assert np.allclose(again[own], predicted(made, OURS, "task")[0][own])


def test_halves_that_agree_leave_room_and_noise_none():
    generator = np.random.default_rng(0)
    gain = generator.normal(size=(1, 50))
    assert ceiling(gain + 0.01 * generator.normal(size=(4, 50))) > 0.95
    assert ceiling(generator.normal(size=(4, 50))) < 0.5
    assert np.isnan(ceiling(gain))


def test_signals_skip_absent_heads():
    generator = np.random.default_rng(0)
    arrays = {name: generator.normal(size=(3, 2, 2)) for name in ("scores", "signed")}
    arrays |= {"heads": generator.normal(size=(3, 3, 2, 2)), "whole": np.eye(3), "texts": generator.normal(size=(3, 5))}
    result = {"tasks": list("abc"), "rows": dict.fromkeys("abc", 7), "classes": {"a": 2, "b": 2, "c": 3}}
    result["alive"] = [[True, True], [True, False]]
    before = signals_of(arrays, result)
    for name in ("scores", "signed", "heads"):
        arrays[name][..., 1, 1] = np.nan
    after = signals_of(arrays, result)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert after["head overlap"].shape == (3, 3) and after["same number of classes"][0, 1] == 1


def test_gains_are_joint_less_alone(tmp_path):
    results = Results(tmp_path)
    for tasks, values in ((("a",), (0.5,)), (("b",), (0.7,)), (("a", "b"), (0.6, 0.65))):
        scores = {task: {"value": value} for task, value in zip(tasks, values)}
        results.save("together.trained", {"model": "m", "plan": {"seed": 0}, "t": tasks}, {"scores": scores})
    arrays = {"scores": np.ones((2, 1, 1))}
    results.save("together.signals", {"model": "m", "plan": {"seed": 0}}, {"tasks": ["a", "b"]}, arrays)
    tasks, gains = Records(results).gains("m")
    assert tasks == ("a", "b")
    np.testing.assert_allclose(gains[0], [[np.nan, 10], [-5, np.nan]])


@pytest.mark.slow
def test_smoke_runs_whole(tmp_path):
    for job in in_order(recipe.jobs(Scale("smoke"))):
        perform(job, tmp_path, "cpu")
    page = pages(recipe, Results(tmp_path / "records"), tmp_path / "page").with_suffix(".md")
    words = page.read_text()
    assert "Predicted gains of unseen models and tasks" in words and "What tasks gain from each other" in words
