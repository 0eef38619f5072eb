"""Laws of roles: a head that plays a role scores 1, its control does not, and both weigh the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.atlas.texts import Text, batched, repeated
from headwise.atlas.weightings import CONTENT, POSITION, REPEATED, relations, weightings
from headwise.testing import tiny_tokenizer

WORDS = ["the", "cat", "saw", "a", "dog", "and", "ran"]


def text(words: list[int], heads: list[int], marks: list[bool] | None = None) -> Text:
    """A text of one or two sub-words a word, between two special tokens; the relation of every word is 0."""
    word = np.array([-1, *words, -1])
    size = len(word)
    head = np.array([-2, *(heads[w] if heads[w] >= 0 else -2 for w in words), -2])
    relation = np.where(head >= 0, 0, -1)
    mark = np.array([False, *(marks or [False] * len(words)), False])
    special = np.array([True, *[False] * len(words), True])
    return Text(np.arange(size) + 3, special, word, mark, head, relation, np.full(size, -1))


TEXTS = [text([0, 0, 1, 2, 3], [1, -1, 1, 2], [False, False, False, False, True]), text([0, 1, 1, 2], [-1, 0, 1])]
ROLES = {**POSITION, **CONTENT, **relations(["nsubj"])}


@pytest.fixture(params=[False, True], ids=["both ways", "causal"])
def tokens(request):
    [batch] = batched(TEXTS, 0, request.param, "cpu")
    return batch


@pytest.mark.parametrize("name", ROLES)
def test_role_and_control_have_the_same_sum_and_stay_among_what_is_visible(tokens, name):
    weights, controls = weightings(tokens, [ROLES[name]])
    torch.testing.assert_close(weights.sum((2, 3)), controls.sum((2, 3)))
    hidden = ~tokens.visible_BTT[:, None]
    assert not (weights * hidden).any() and not (controls * hidden).any()
    assert (weights >= 0).all() and (controls >= 0).all()


@pytest.mark.parametrize("name", ROLES)
def test_a_head_that_looks_at_targets_alone_scores_one(tokens, name):
    role = ROLES[name]
    weights, _ = weightings(tokens, [role])
    targets = (role.targets(tokens) & tokens.visible_BTT).float()
    perfect = targets / targets.sum(-1, keepdim=True).clamp_min(1)
    score = (weights[:, 0] * perfect).sum((1, 2))
    asked = weights.sum((1, 2, 3)) > 0
    torch.testing.assert_close(score[asked], torch.ones(int(asked.sum())))


@pytest.mark.parametrize("name", [name for name, role in ROLES.items() if role.control == "distance"])
def test_attention_by_distance_alone_gains_nothing_in_roles_of_content(name):
    rng = np.random.default_rng(0)
    words = np.repeat(np.arange(20), rng.integers(1, 3, 20)).tolist()
    heads = [int(rng.choice([w for w in range(20) if w != word])) for word in range(20)]
    long = text(words, heads, [word in (4, 9, 19) for word in words])
    long.ids[1:-1] = rng.integers(3, 9, len(words))  # every token some times
    [batch] = batched([long, long], 0, False, "cpu")
    weights, controls = weightings(batch, [ROLES[name]])
    distances = batch.distance_TT[weights[0, 0] > 0].unique()
    covered = [d for d in distances.tolist() if (controls[0, 0] * (batch.distance_TT == d)).sum() > 0]
    assert covered
    if len(covered) == len(distances):
        blind = torch.rand(200, generator=torch.Generator().manual_seed(1))[batch.distance_TT + 99]
        torch.testing.assert_close((weights * blind).sum((2, 3)), (controls * blind).sum((2, 3)))
    for d in covered if len(covered) == len(distances) else ():
        at = (batch.distance_TT == d).float()
        torch.testing.assert_close((weights * at).sum((2, 3)), (controls * at).sum((2, 3)))


@pytest.mark.parametrize("name", [name for name, role in ROLES.items() if role.control == "distance"])
def test_a_sink_in_place_of_a_word_gains_nothing_in_roles_of_content(name):
    bare = [replace(each, special=np.zeros(len(each.ids), bool)) for each in TEXTS]  # no special token begins a text
    bare = [replace(each, word=np.maximum.accumulate(each.word + 1)) for each in bare]
    [batch] = batched(bare, 0, True, "cpu")
    weights, controls = weightings(batch, [ROLES[name]])
    assert not weights[..., 0].any() and not controls[..., 0].any()


def test_induction_is_one_behind_a_duplicate():
    [batch] = batched(repeated(tiny_tokenizer(WORDS), 6, 64), 0, True, "cpu")
    duplicate, induction = (REPEATED[name].targets(batch) for name in ("duplicate", "induction"))
    assert torch.equal(duplicate.roll(1, 2)[..., 1:], induction[..., 1:])
    assert duplicate.any((1, 2)).all()


def test_every_text_of_repeats_has_a_control():
    [batch] = batched(repeated(tiny_tokenizer(WORDS), 8, 64), 0, True, "cpu", tokens=10_000)
    weights, _ = weightings(batch, list(REPEATED.values()))
    assert (weights.sum((2, 3)) > 0).float().mean() > 0.7
