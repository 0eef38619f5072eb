"""What heads are good for, stage by stage."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.attention import eager
from headwise.papers.stem_cell.stages import Profile, changes, profile, untrained
from headwise.probing.parameterfree import Unlearnt
from headwise.tasks import Dependencies, Rows, Tag, Task
from headwise.testing import tiny, tiny_tokenizer

WORDS = ["the", "dog", "barks", "a", "cat", "sleeps"]
TOKENIZER = tiny_tokenizer(WORDS)
TAGS = [{"words": WORDS[:3], "labels": ["D", "N", "V"]}, {"words": WORDS[3:], "labels": ["D", "N", "V"]}]
ARCS = [{"words": WORDS[:3], "heads": [2, 3, 0], "labels": ["det", "nsubj", "root"]}]
TASKS = [
    Task("pos", Tag(), Rows(TAGS, TAGS, TAGS), "tag_accuracy"),
    Task("dep", Dependencies(), Rows(ARCS, ARCS, ARCS), "las"),
]


def found(task: str, labels: tuple[str, ...], scores: np.ndarray, counts=None) -> Unlearnt:
    counts = np.full(len(labels), 5) if counts is None else np.array(counts)
    return Unlearnt(task, "attention", labels, counts, scores, {})


def test_a_profile_has_a_map_for_every_label_of_every_task():
    both = profile(tiny("bert"), TASKS, tokenizer=TOKENIZER)
    assert both.scores.shape == (6, 2, 4) and both.tasks == ("pos",) * 3 + ("dep",) * 3
    assert both.labels == ("D", "N", "V", "det", "nsubj", "root")
    alone = profile(tiny("bert"), TASKS[1:], tokenizer=TOKENIZER)
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
