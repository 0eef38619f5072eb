"""Claims on heads: planted stem cells are found, chance is not, and the numbers are what they are said to be."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.heads.attention import eager
from headwise.papers.stem_cell.claims import Claims, dealt, pearson, selectivity, shifts
from headwise.papers.stem_cell.stages import Profile, changes, profile, untrained
from headwise.probing.parameterfree import Unlearnt
from headwise.tasks import Dependencies, Rows, Tag, Task
from headwise.testing import tiny, tiny_tokenizer

TASKS = ("pos", "ner", "dep", "con", "srl")


def drawn(rng: np.random.Generator, chance: np.ndarray, runs: int = 3) -> Claims:
    """Each task's claims drawn from the same chances per head (L, H), tasks apart, runs nearly alike."""
    gates = {}
    for task in TASKS:
        own = rng.random(chance.shape) < chance
        flipped = rng.random((runs, *chance.shape)) < 0.02
        gates[task] = (own ^ flipped).astype(float)
    return Claims.of(gates)


def by_layer(low: float = 0.05, high: float = 0.8) -> np.ndarray:
    """Tasks that all like the middle layers, and no head of them more than another."""
    liking = np.full((12, 12), low)
    liking[4:8] = high
    return liking


def at_least(chances: np.ndarray, needed: int) -> float:
    """P(at least so many of independent events)."""
    counts = np.array([1.0])
    for chance in chances:
        counts = np.convolve(counts, [1 - chance, chance])
    return float(counts[needed:].sum())


# -- stem cells


def test_planted_stem_cells_are_found():
    rng = np.random.default_rng(0)
    chance = np.full((12, 12), 0.1)
    stem = np.zeros((12, 12), bool)
    stem[rng.integers(12, size=10), rng.integers(12, size=10)] = True
    chance[stem] = 1.0
    found = drawn(rng, chance).stem_cells(most=4)
    assert np.array_equal(found.heads, stem)
    assert found.count == stem.sum() > 5 * found.chance["layers"]
    assert max(found.p.values()) < 0.001
    assert "4 or more of 5 tasks" in str(found)


def test_within_layers_chance_is_calibrated_and_over_all_it_is_not():
    """Tasks that share a liking for layers only: dealing over all heads takes that for stem cells."""
    p = {"layers": [], "all": []}
    for seed in range(120):
        found = drawn(np.random.default_rng(seed), by_layer()).stem_cells(resamples=199, seed=seed)
        for how, value in found.p.items():
            p[how].append(value)
    assert np.mean(np.array(p["layers"]) <= 0.05) <= 0.10
    assert 0.35 < np.mean(p["layers"]) < 0.75, "counts are few, so p leans to the safe side"
    assert np.mean(np.array(p["all"]) <= 0.05) > 0.9


def test_over_all_chance_is_calibrated_where_layers_are_alike():
    rates = [
        drawn(np.random.default_rng(seed), np.full((6, 8), 0.4)).stem_cells(resamples=199, seed=seed).p["all"]
        for seed in range(120)
    ]
    assert np.mean(np.array(rates) <= 0.05) <= 0.10 and 0.35 < np.mean(rates) < 0.75


@pytest.mark.parametrize("how", ["layers", "all"])
def test_mean_chance_equals_its_closed_form(how):
    claims = drawn(np.random.default_rng(1), by_layer())
    claimed = claims.claimed()
    shares = claimed.mean(2) if how == "layers" else np.repeat(claimed.mean((1, 2))[:, None], 12, 1)
    exact = sum(12 * at_least(shares[:, layer], 3) for layer in range(12))
    found = claims.stem_cells(resamples=4000).chance[how]
    assert found == pytest.approx(exact, rel=0.02)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_dealing_keeps_every_tasks_numbers(seed):
    rng = np.random.default_rng(seed)
    claimed = rng.random((3, 4, 5)) < rng.random((3, 4, 1))
    within, over = (dealt(claimed, how, 7, rng) for how in ("layers", "all"))
    assert (within.sum(-1) == claimed.sum(-1)).all() and (over.sum((2, 3)) == claimed.sum((1, 2))).all()
    assert within.shape == over.shape == (7, 3, 4, 5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_nothing_is_dealt_to_heads_that_were_cut(seed):
    rng = np.random.default_rng(seed)
    alive = rng.random((4, 5)) < 0.6
    claimed = (rng.random((3, 4, 5)) < 0.5) & alive
    for how in ("layers", "all"):
        found = dealt(claimed, how, 7, rng, alive)
        assert not found[..., ~alive].any() and (found.sum((2, 3)) == claimed.sum((1, 2))).all()
        assert how == "all" or (found.sum(-1) == claimed.sum(-1)).all()


def test_chance_is_calibrated_in_a_cut_model():
    alive = np.repeat([[True] * 6 + [False] * 6], 4, 0)
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        gates = np.zeros((5, 1, 4, 12))
        for task in range(5):
            for layer in range(4):
                gates[task, 0, layer, rng.choice(6, 3, replace=False)] = 1
        found.append(Claims.of(dict(zip("abcde", gates)), alive).stem_cells(resamples=199).p["layers"])
    assert np.mean(np.array(found) <= 0.05) <= 0.12
    with pytest.raises(HeadwiseError, match="with all open gates"):
        Claims.of(dict(zip("abcde", gates)), ~alive)


# -- who claims what


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_asking_for_more_runs_claims_fewer_heads(seed, runs):
    gates = np.random.default_rng(seed).random((runs, 2, 3, 4)).round(1).clip(0.3) - 0.3
    claims = Claims.of({"a": gates[:, 0], "b": gates[:, 1]})
    by_runs = [claims.claimed(n) for n in range(1, runs + 1)]
    assert all((more <= fewer).all() for fewer, more in pairwise(by_runs))
    assert np.array_equal(claims.claimed(), by_runs[runs // 2])
    assert np.array_equal(claims.per_head(1), by_runs[0].sum(0))


def test_overlap_over_runs():
    gates = np.zeros((3, 2, 3))
    gates[:, 0, 0] = 1  # all three
    gates[0, 0, 1] = 0.25  # the first, a little
    gates[1:, 1, 2] = 1  # the last two
    found = Claims.of({"pos": gates, "ner": 1 - gates}).overlap("pos")
    assert found.open.tolist() == [2, 2, 2] and (found.all, found.any) == (1, 3)
    assert found.rgb.shape == (2, 3, 3) and not found.rgb[0, 0].any() and (found.rgb[1, 0] == 1).all()
    assert found.rgb[0, 1].tolist() == [0.75, 1, 1] and found.rgb[1, 2].tolist() == [1, 0, 0]
    assert found.r == pytest.approx(np.corrcoef(gates.reshape(3, -1)))
    assert str(found) == "pos: 2/2/2 heads open, 1 in all runs, 3 in any"


def test_average_takes_in_all_tasks_and_runs():
    """The released figure of "15 models" shows the last task alone."""
    claims = drawn(np.random.default_rng(2), np.full((4, 4), 0.5))
    one_by_one = [claims.gates[run, task] for run in range(3) for task in range(5)]
    assert claims.average() == pytest.approx(sum(one_by_one) / 15)


# -- correlation


def noisy(rng: np.random.Generator, truth: np.ndarray, runs: int = 3, noise: float = 0.5) -> np.ndarray:
    return (0.5 + 0.1 * (truth + noise * rng.standard_normal((runs, *truth.shape)))).clip(0, 1)


def test_correlation_of_tasks_with_their_reliability():
    rng = np.random.default_rng(0)
    shared, own = rng.standard_normal((2, 24, 16))
    claims = Claims.of({"a": noisy(rng, shared), "b": noisy(rng, shared), "c": noisy(rng, own)})
    pairs, average, released = (claims.correlation(how) for how in ("pairwise", "average", "released"))
    means = claims.gates.mean(0).reshape(3, -1)
    for found in (pairs, average, released):
        assert found == pytest.approx(found.T)
        assert found[np.triu_indices(3, 1)] == pytest.approx(np.corrcoef(means)[np.triu_indices(3, 1)])
    assert abs(pairs[0, 2]) < 0.15
    assert np.diag(pairs) == pytest.approx(np.full(3, 1 / 1.25), abs=0.04), "truth 1, noise 0.25"
    assert average[0, 0] == pytest.approx(average[0, 1], abs=0.03), "two tasks of one truth reach the reliability"
    assert pairs[0, 0] < pairs[0, 1] - 0.05, "single runs are less reliable than the averages compared"


def test_released_reliability_is_the_multiple_correlation():
    runs = np.random.default_rng(3).random((3, 5, 4)) + np.linspace(0, 3, 20).reshape(5, 4)
    r = np.corrcoef(runs.reshape(3, -1))
    squared = r[2, :2] @ np.linalg.inv(r[:2, :2]) @ r[:2, 2]
    adjusted = 1 - (1 - squared) * 19 / 17
    assert Claims.of({"a": runs / 4}).correlation("released")[0, 0] == pytest.approx(adjusted**0.5)


def test_reliability_where_there_is_none():
    rng = np.random.default_rng(0)
    flat = np.ones((3, 4, 4))
    found = Claims.of({"flat": flat, "noise": rng.random((3, 4, 4))}).correlation("released")
    assert np.isnan(found[0]).all() and 0 <= found[1, 1] < 0.6
    assert np.isnan(Claims.of({"one": rng.random((1, 4, 4))}).correlation()[0, 0])
    assert np.isnan(pearson(np.zeros((2, 3)))).all()


# -- profiles


def test_specialists_made_by_single_training_are_unmade_by_joint_training():
    rng = np.random.default_rng(0)
    static = 0.4 + 0.1 * rng.random((8, 6, 6))
    single, joint = static.copy(), static + 0.01 * rng.random((8, 6, 6))
    for label in range(8):
        single[label].flat[label] += 0.4
    found = shifts({"pretrained": static, "single": single, "joint": joint})
    assert list(found) == [("pretrained", "single"), ("pretrained", "joint"), ("single", "joint")]
    up, down = found["pretrained", "single"], found["single", "joint"]
    assert (up.best > 0.2).all() and (down.best < -0.2).all() and up.gain().p < 0.01 < 0.99 < down.gain().p
    assert up.gain().low > 0.2 and up.gain().value == pytest.approx(up.best.mean())
    special = np.arange(36).reshape(6, 6) < 8
    assert (up.selective[special] > 0.2).all() and up.selective[~special] == pytest.approx(0)
    assert (down.selective[special] < -0.2).all()
    assert up.kept[special].mean() < 0.8 < up.kept[~special].mean()
    assert up.moved.sum() >= 6 and not found["pretrained", "joint"].best.max() > 0.02


def test_nothing_changes_where_nothing_changed():
    profile = np.random.default_rng(0).random((5, 3, 4))
    same = shifts({"a": profile, "b": profile})["a", "b"]
    assert not same.best.any() and not same.moved.any() and not same.selective.any()
    assert same.kept == pytest.approx(1)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_selectivity_is_a_share_and_has_no_scale(seed, scale):
    profile = np.random.default_rng(seed).random((4, 2, 3))
    found = selectivity(profile)
    assert (found >= 0).all() and (found <= 1).all() and selectivity(scale * profile) == pytest.approx(found)
    assert selectivity(np.eye(4)[:, :, None]).ravel() == pytest.approx(1) and not selectivity(np.ones((4, 1, 1))).any()


# -- what is refused


def test_bad_input():
    gates = np.ones((3, 2, 2))
    for bad in ({}, {"a": gates[0]}, {"a": gates, "b": gates[:2]}, {"a": 2 * gates}, {"a": gates * np.nan}):
        with pytest.raises(HeadwiseError):
            Claims.of(bad)
    claims = Claims.of({"a": gates, "b": gates})
    for call in (
        lambda: claims.claimed(4),
        lambda: claims.overlap("c"),
        lambda: claims.correlation("alpha"),
        lambda: claims.stem_cells(most=3),
        lambda: Claims.of({"a": gates}).stem_cells(),
        lambda: Claims.of({"a": gates[:2]}).overlap("a").rgb,
        lambda: dealt(claims.claimed(), "rows", 2, np.random.default_rng(0)),
        lambda: shifts({"a": gates}),
        lambda: shifts({"a": gates, "b": gates[:, :1]}),
        lambda: shifts({"a": gates, "b": gates * np.nan}),
        lambda: selectivity(gates[:1]),
    ):
        with pytest.raises(HeadwiseError):
            call()


# -- what heads are good for, stage by stage

WORDS = ["the", "dog", "barks", "a", "cat", "sleeps"]
TOKENIZER = tiny_tokenizer(WORDS)
TAGS = [{"words": WORDS[:3], "labels": ["D", "N", "V"]}, {"words": WORDS[3:], "labels": ["D", "N", "V"]}]
ARCS = [{"words": WORDS[:3], "heads": [2, 3, 0], "labels": ["det", "nsubj", "root"]}]
OWN_TASKS = [
    Task("pos", Tag(), Rows(TAGS, TAGS, TAGS), "tag_accuracy"),
    Task("dep", Dependencies(), Rows(ARCS, ARCS, ARCS), "las"),
]


def found(task: str, labels: tuple[str, ...], scores: np.ndarray, counts=None) -> Unlearnt:
    counts = np.full(len(labels), 5) if counts is None else np.array(counts)
    return Unlearnt(task, "attention", labels, counts, scores, {})


def test_a_profile_has_a_map_for_every_label_of_every_task():
    both = profile(tiny("bert"), OWN_TASKS, tokenizer=TOKENIZER)
    assert both.scores.shape == (6, 2, 4) and both.tasks == ("pos",) * 3 + ("dep",) * 3
    assert both.labels == ("D", "N", "V", "det", "nsubj", "root")
    alone = profile(tiny("bert"), OWN_TASKS[1:], tokenizer=TOKENIZER)
    np.testing.assert_array_equal(both.of_task("dep").scores, alone.scores)
    for k, (best, layer) in enumerate(zip(both.best, both.layer)):
        assert best == both.scores[k].max() and best in both.scores[k, layer]


def test_labels_never_asked_for_are_left_out():
    scores = np.full((2, 1, 2), np.nan)
    scores[0] = 0.5
    kept = Profile.of([found("t", ("a", "b"), scores, [3, 0])])
    assert kept.labels == ("a",) and kept.counts.tolist() == [3]
    with pytest.raises(HeadwiseError, match="no probe"):
        Profile.of([])


def test_a_planted_change_is_seen_in_its_label_and_head():
    before = np.full((3, 2, 2), 0.2)
    before[0, 0, 0] = before[1, 1, 0] = before[2, 1, 1] = 0.6
    after = before.copy()
    after[1, 0, 1] = 0.9  # label 1 has a better head now, another one
    stages = {"pretrained": before, "single": after}
    stages = {name: Profile.of([found("t", ("a", "b", "c"), scores)]) for name, scores in stages.items()}
    shift = changes(stages)["pretrained", "single"]
    np.testing.assert_allclose(shift.best, [0, 0.3, 0])
    assert shift.moved.tolist() == [False, True, False]
    assert shift.selective[0, 1] > 0 and shift.selective[1, 0] == 0


def test_stages_are_compared_on_the_labels_they_share_whatever_their_order():
    a, b = np.random.default_rng(0).random((2, 3, 2, 2))
    one = Profile.of([found("t", ("x", "y", "z"), a)])
    other = Profile.of([found("t", ("z", "w", "x"), b)])
    shift = changes({"one": one, "other": other})["one", "other"]
    np.testing.assert_array_equal(shift.before, a[[0, 2]])
    np.testing.assert_array_equal(shift.after, b[[2, 0]])
    with pytest.raises(HeadwiseError, match="no label in common"):
        changes({"one": one, "other": Profile.of([found("u", ("x",), a[:1])])})


def test_the_control_has_the_shape_and_nothing_of_the_weights():
    model = tiny("bert")
    state = torch.random.get_rng_state()
    control, again, other = untrained(model), untrained(model), untrained(model, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state) and not control.training
    shapes = [{name: p.shape for name, p in m.named_parameters()} for m in (model, control)]
    assert shapes[0] == shapes[1]
    weight = [m.embeddings.word_embeddings.weight for m in (model, control, again, other)]
    assert torch.equal(weight[1], weight[2])
    assert not torch.equal(weight[1], weight[0]) and not torch.equal(weight[1], weight[3])


def test_the_control_may_run_another_kernel_than_the_model():
    model = tiny("bert")
    kernel = model.config._attn_implementation
    with eager(untrained(model)):
        assert model.config._attn_implementation == kernel != "eager"
