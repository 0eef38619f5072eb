"""Laws of masks: exact size, nested, disjoint, seeded, floors kept, groups whole."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.heads.selection import (
    bottom,
    budget,
    close_groups,
    matched_heads,
    overlap,
    per_layer,
    random_heads,
    relabelled,
    ties,
    top,
)
from headwise.scoring.importance import Importance

fractions = st.floats(0, 1)


@st.composite
def score_maps(draw: st.DrawFn) -> torch.Tensor:
    """Small maps with many ties."""
    layers, heads = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    values = draw(st.lists(st.integers(-3, 3), min_size=layers * heads, max_size=layers * heads))
    return torch.tensor(values, dtype=torch.float64).view(layers, heads)


@given(score_maps(), fractions, fractions)
@settings(max_examples=60, deadline=None)
def test_a_larger_fraction_contains_the_smaller(scores, a, b):
    small, large = top(scores, min(a, b)), top(scores, max(a, b))
    assert not (small & ~large).any()


@given(score_maps(), fractions)
@settings(max_examples=60, deadline=None)
def test_the_size_is_exact_and_the_best_are_in(scores, fraction):
    mask = top(scores, fraction)
    assert mask.sum() == budget(fraction, scores.numel())
    if mask.any() and not mask.all():
        assert scores[mask].min() >= scores[~mask].max()


@given(score_maps(), fractions)
@settings(max_examples=60, deadline=None)
def test_top_and_bottom_never_meet_within_the_whole(scores, fraction):
    assert not (top(scores, fraction) & bottom(scores, 1 - fraction)).any()


@given(score_maps(), fractions, st.floats(1e-3, 1e3))
@settings(max_examples=60, deadline=None)
def test_positive_scaling_changes_nothing(scores, fraction, factor):
    assert torch.equal(top(scores, fraction), top(scores * factor, fraction))


@given(score_maps(), st.integers(0, 3), fractions, st.sampled_from([top, bottom]))
@settings(max_examples=60, deadline=None)
def test_the_floor_of_each_layer_is_kept_or_the_call_refused(scores, keep, fraction, select):
    layers, heads = scores.shape
    if keep > heads or budget(fraction, scores.numel()) > layers * (heads - keep):
        with pytest.raises(HeadwiseError):
            select(scores, fraction, keep_per_layer=keep)
        return
    mask = select(scores, fraction, keep_per_layer=keep)
    assert mask.sum() == budget(fraction, scores.numel())
    assert (per_layer(~mask) >= keep).all()


@pytest.mark.parametrize(
    ("fraction", "heads", "count"), [(0.3, 144, 43), (0.3, 384, 115), (0.3, 72, 21), (0.29, 100, 29)]
)
def test_budgets_of_the_paper_and_a_float_trap(fraction, heads, count):
    assert budget(fraction, heads) == count


def test_percents_taken_for_shares_are_told():
    with pytest.raises(HeadwiseError, match=r"Try: 0\.012 for 1\.2 %"):
        budget(1.2, 10)
    assert budget(1.0, 10) == 10


def test_ties_go_to_the_lower_layer_then_the_lower_head():
    assert top(torch.ones(2, 3), 0.5).tolist() == [[True] * 3, [False] * 3]
    assert bottom(torch.ones(2, 3), 0.5).tolist() == [[False] * 3, [True] * 3]


def test_cut_heads_are_never_selected_but_count_in_the_fraction():
    scores = torch.tensor([[math.nan, 1.0, 2.0, 3.0], [math.nan, 4.0, 5.0, 6.0]])
    assert top(scores, 0.5).tolist() == [[False, False, False, True], [False, True, True, True]]
    assert bottom(scores, 0.25).tolist() == [[False, True, True, False], [False] * 4]
    with pytest.raises(HeadwiseError, match=r"at most the 6 free ones. Try: 0\.75"):
        top(scores, 0.9)


def test_infinite_scores_are_scores():
    assert top(torch.tensor([[-math.inf, 0.0], [math.inf, 1.0]]), 0.75).tolist() == [[False, True], [True, True]]


def test_the_floor_counts_living_heads_only():
    scores = torch.tensor([[math.nan, 9.0, 8.0], [1.0, 2.0, 3.0]])
    assert top(scores, 0.5, keep_per_layer=1).tolist() == [[False, True, False], [False, True, True]]


def test_random_controls_are_seeded_nested_and_keep_what_they_must():
    draw = random_heads((12, 12), 0.3, seed=7, keep_per_layer=1)
    assert torch.equal(draw, random_heads((12, 12), 0.3, seed=7, keep_per_layer=1))
    assert not torch.equal(draw, random_heads((12, 12), 0.3, seed=8, keep_per_layer=1))
    assert draw.sum() == 43
    assert not (draw & ~random_heads((12, 12), 0.6, seed=7, keep_per_layer=1)).any()
    assert random_heads((2, 3), 1.0, seed=0).all()  # no floor unless asked for
    alive = torch.rand(12, 12) < 0.7
    assert not (random_heads((12, 12), 0.3, seed=7, alive=alive) & ~alive).any()


def test_random_controls_reach_every_head_evenly():
    hits = sum(random_heads((4, 4), 0.25, seed=s).double() for s in range(800))
    assert hits.sum() == 800 * 4
    assert (hits - 200).abs().max() < 5 * math.sqrt(800 * 0.25 * 0.75)


@given(score_maps(), fractions)
@settings(max_examples=40, deadline=None)
def test_closing_groups_brackets_the_mask(scores, fraction):
    mask = top(scores, fraction)
    heads = mask.shape[1]
    for kv in (k for k in range(1, heads + 1) if heads % k == 0):
        inner, lost = close_groups(mask, kv, "all")
        outer, gained = close_groups(mask, kv, "any")
        assert not (inner & ~mask).any() and not (mask & ~outer).any()
        assert torch.equal(inner | lost, mask) and torch.equal(outer ^ gained, mask)
        for closed in (inner, outer):
            assert torch.equal(close_groups(closed, kv)[0], closed)
    assert torch.equal(close_groups(mask, heads)[0], mask)


def test_relabelling_keeps_the_sizes_of_tasks_and_the_tasks_of_heads():
    masks = torch.stack([random_heads((6, 8), 0.3, seed=s) for s in range(4)])
    dealt = torch.stack([relabelled(masks, seed) for seed in range(80)])
    assert (dealt.sum((2, 3)) == masks.sum((1, 2))).all()
    assert (dealt.sum(1) == masks.sum(0)).all()
    assert torch.equal(dealt[3], relabelled(masks, 3)) and not torch.equal(dealt[3], masks)
    chance = masks.sum(0) / 4  # tasks are of equal size, so a head goes to each as often
    assert (dealt.double().mean(0) - chance).abs().max() < 5 * 0.5 / math.sqrt(80)


def test_two_tasks_are_enough_to_relabel():
    masks = torch.stack([random_heads((6, 8), 0.3, seed=s) for s in range(2)])
    assert (relabelled(masks, 0).sum(0) == masks.sum(0)).all()


def test_overlap_of_single_heads():
    a, b = torch.tensor([[True, False]]), torch.tensor([[False, True]])
    assert overlap({"a": a, "b": b, "none": ~(a | b)}).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_overlap_is_shared_heads_over_k():
    a = torch.tensor([[True, True, False, False]])
    b = torch.tensor([[True, False, True, False]])
    assert overlap({"a": a, "b": b, "c": ~a}).tolist() == [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: top(torch.ones(2, 3), 1.2),
        lambda: top(torch.ones(2, 3), -0.1),
        lambda: top(torch.ones(2, 3), math.nan),
        lambda: top(torch.ones(6), 0.3),
        lambda: top(torch.ones(0, 3), 0.3),
        lambda: top(torch.full((2, 3), math.nan), 0.3),
        lambda: top(torch.ones(2, 3), 0.3, keep_per_layer=4),
        lambda: close_groups(torch.ones(2, 3).bool(), 2),
        lambda: close_groups(torch.ones(2, 3).bool(), 3, how="some"),
        lambda: relabelled(torch.ones(2, 3), 0),
        lambda: overlap({"a": torch.ones(2, 3), "b": torch.ones(3, 2)}),
        lambda: random_heads((2, 3), 0.3, seed=0, alive=torch.ones(3, 2)),
    ],
)
def test_wrong_calls_are_refused(call):
    with pytest.raises(HeadwiseError):
        call()


def test_what_is_no_tensor_is_told_where_its_scores_are():
    found = Importance("t", "gradient", torch.ones(2, 4), torch.zeros(2, 4), 1, torch.ones(2, 2, 4))
    with pytest.raises(HeadwiseError, match=r"Importance.*\.scores"):
        top(found, 0.5)


def test_ties_at_the_cut_are_counted():
    scores = torch.tensor([[0.9, 0.5, 0.5], [0.5, 0.1, math.nan]])
    assert ties(scores, 1 / 6) == 0 and ties(scores, 2 / 6) == ties(scores, 3 / 6) == 3 and ties(scores, 4 / 6) == 0
    assert ties(torch.zeros(6, 12), 0.3) == 72 and ties(torch.zeros(6, 12), 1.0) == ties(torch.zeros(6, 12), 0.0) == 0


def test_matched_heads_have_the_layers_of_the_mask_and_nothing_else():
    mask, alive = random_heads((4, 6), 0.3, seed=0), torch.ones(4, 6, dtype=torch.bool)
    alive[2, :3] = False
    mask &= alive
    drawn = torch.stack([matched_heads(mask, seed, alive) for seed in range(200)])
    assert (drawn.sum(-1) == mask.sum(-1)).all() and not (drawn & ~alive).any()
    often = drawn.float().mean(0)
    expected = (mask.sum(-1) / alive.sum(-1))[:, None] * alive
    assert (often - expected).abs().max() < 0.15
    assert (matched_heads(mask, 3, alive) == matched_heads(mask, 3, alive)).all()
