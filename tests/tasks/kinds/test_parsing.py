"""Decoders against enumeration: every tree up to six words, sums over all of them, batches against one by one."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.tasks.kinds.parsing import chu_liu_edmonds, cky, eisner, inside, marginals

# -- enumeration


def is_tree(heads: tuple[int, ...]) -> bool:
    if heads.count(0) != 1:
        return False
    for word in range(1, len(heads) + 1):
        at = word
        for _ in heads:
            at = heads[at - 1] if at else 0
        if at:
            return False
    return True


def crosses(heads: tuple[int, ...]) -> bool:
    arcs = [(min(arc), max(arc)) for arc in enumerate(heads, 1)]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


@cache
def all_trees(words: int, projective: bool) -> torch.Tensor:
    found = [h for h in itertools.product(range(words + 1), repeat=words) if is_tree(h)]
    return torch.tensor([h for h in found if not (projective and crosses(h))])


@cache
def binary_trees(start: int, end: int) -> tuple[frozenset, ...]:
    if end - start == 1:
        return (frozenset({(start, end)}),)
    return tuple(
        left | right | {(start, end)}
        for split in range(start + 1, end)
        for left in binary_trees(start, split)
        for right in binary_trees(split, end)
    )


@cache
def bracket_masks(words: int) -> torch.Tensor:
    masks = torch.zeros(len(binary_trees(0, words)), words + 1, words + 1)
    for mask, tree in zip(masks, binary_trees(0, words)):
        for start, end in tree:
            mask[start, end] = 1
    return masks


def tree_scores(scores: torch.Tensor, trees: torch.Tensor) -> torch.Tensor:
    return scores[..., torch.arange(trees.shape[1]), trees].sum(-1)


PARSERS = [(eisner, True), (chu_liu_edmonds, False)]


def test_counts_of_trees_are_the_known_ones():
    assert [len(all_trees(n, False)) for n in range(1, 7)] == [n ** (n - 1) for n in range(1, 7)]  # Cayley
    assert [len(all_trees(n, True)) for n in range(1, 7)] == [1, 2, 7, 30, 143, 728]  # C(3n - 2, n - 1) / n
    assert [len(binary_trees(0, n)) for n in range(1, 7)] == [1, 1, 2, 5, 14, 42]  # Catalan


# -- dependencies


@pytest.mark.parametrize("words", range(1, 7))
@pytest.mark.parametrize(("parser", "projective"), PARSERS)
def test_the_best_of_all_trees(parser, projective, words):
    scores = torch.randn(40, words, words + 1, generator=torch.Generator().manual_seed(words))
    trees = all_trees(words, projective)
    best = tree_scores(scores, trees).argmax(1)
    assert parser(scores, torch.full((40,), words)).equal(trees[best])


@pytest.mark.parametrize(("parser", "projective"), PARSERS)
@given(data=st.data(), words=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_ties_still_give_a_best_tree(parser, projective, data, words):
    cells = data.draw(st.lists(st.integers(-2, 2), min_size=words * (words + 1), max_size=words * (words + 1)))
    scores = torch.tensor(cells, dtype=torch.float).view(1, words, words + 1)
    heads = parser(scores, torch.tensor([words]))
    assert is_tree(tuple(heads[0].tolist()))
    assert not (projective and crosses(tuple(heads[0].tolist())))
    assert tree_scores(scores, heads).item() == tree_scores(scores, all_trees(words, projective)).max()


@pytest.mark.parametrize("parser", [eisner, chu_liu_edmonds])
def test_dependencies_do_not_see_padding(parser):
    generator = torch.Generator().manual_seed(1)
    scores, lengths = torch.randn(30, 12, 13, generator=generator) * 3, torch.randint(1, 13, (30,), generator=generator)
    together = parser(scores, lengths)
    for row, heads, n in zip(scores, together, lengths.tolist()):
        assert heads[:n].equal(parser(row[None, :n, : n + 1], torch.tensor([n]))[0])
        assert not heads[n:].any()


def test_chu_liu_edmonds_is_never_worse_than_eisner():
    scores, lengths = torch.randn(20, 15, 16, generator=torch.Generator().manual_seed(2)), torch.full((20,), 15)
    free, flat = chu_liu_edmonds(scores, lengths), eisner(scores, lengths)
    worth = [scores.gather(2, heads[..., None]).sum((1, 2)) for heads in (free, flat)]
    assert (worth[0] >= worth[1] - 1e-4).all()
    assert all(is_tree(tuple(heads)) for heads in free.tolist())


def test_one_root_even_where_many_would_be_better():
    scores = torch.zeros(1, 4, 5)
    scores[..., 0] = 100
    for parser in (eisner, chu_liu_edmonds):
        assert (parser(scores, torch.tensor([4])) == 0).sum() == 1


# -- constituents


@pytest.mark.parametrize("words", range(1, 7))
def test_cky_is_the_best_of_all_binary_trees(words):
    scores = torch.randn(40, words + 1, words + 1, generator=torch.Generator().manual_seed(words))
    masks = bracket_masks(words)
    best = torch.einsum("bij,tij->bt", scores, masks).argmax(1)
    assert cky(scores, torch.full((40,), words)).float().equal(masks[best])


@given(data=st.data(), words=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_cky_with_ties_gives_a_best_tree(data, words):
    cells = data.draw(st.lists(st.integers(0, 2), min_size=(words + 1) ** 2, max_size=(words + 1) ** 2))
    scores = torch.tensor(cells, dtype=torch.float).view(1, words + 1, words + 1)
    found = cky(scores, torch.tensor([words]))
    assert {tuple(span) for span in found[0].nonzero().tolist()} in binary_trees(0, words)
    assert (scores * found).sum() == torch.einsum("bij,tij->bt", scores, bracket_masks(words)).max()


@pytest.mark.parametrize("words", range(1, 7))
def test_inside_sums_all_trees_and_marginals_are_their_shares(words):
    scores = torch.randn(8, words + 1, words + 1, generator=torch.Generator().manual_seed(words)) * 2
    lengths, masks = torch.full((8,), words), bracket_masks(words)
    every = torch.einsum("bij,tij->bt", scores, masks)
    torch.testing.assert_close(inside(scores, lengths), every.logsumexp(1))
    torch.testing.assert_close(
        marginals(scores, lengths), torch.einsum("bt,tij->bij", every.softmax(1), masks), atol=1e-5, rtol=1e-4
    )


def test_marginals_are_the_gradient_of_inside():
    scores = torch.randn(2, 6, 6, dtype=torch.double, generator=torch.Generator().manual_seed(0)).requires_grad_()
    lengths = torch.tensor([5, 3])
    assert torch.autograd.gradcheck(lambda s: inside(s, lengths), scores)
    (slope,) = torch.autograd.grad(inside(scores, lengths).sum(), scores)
    torch.testing.assert_close(marginals(scores, lengths), slope.float())
    torch.testing.assert_close(slope.sum((1, 2)), 2.0 * lengths.double() - 1)  # every tree has 2n - 1 brackets


@pytest.mark.parametrize("function", [cky, marginals])
def test_constituents_do_not_see_padding(function):
    generator = torch.Generator().manual_seed(3)
    scores, lengths = torch.randn(30, 11, 11, generator=generator), torch.randint(1, 11, (30,), generator=generator)
    together = function(scores, lengths).float()
    for row, found, n in zip(scores, together, lengths.tolist()):
        alone = function(row[None, : n + 1, : n + 1], torch.tensor([n]))[0].float()
        torch.testing.assert_close(found[: n + 1, : n + 1], alone, atol=1e-5, rtol=1e-4)
        assert found.sum() == pytest.approx(2 * n - 1, abs=1e-3)


def test_decoders_work_where_gradients_are_off():
    scores, lengths = torch.randn(2, 5, 6), torch.tensor([5, 2])
    with torch.inference_mode():
        inner, count = scores * 1, lengths * 1
        assert eisner(inner, count).equal(eisner(scores, lengths))
        assert chu_liu_edmonds(inner, count).equal(chu_liu_edmonds(scores, lengths))
        assert cky(inner.mT @ inner, count).any()
    assert torch.is_grad_enabled()
