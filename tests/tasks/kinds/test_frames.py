"""Predicates and arguments."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from kindlaws import WIDTH, batch_of, check_one_by_one, overfit, random_hidden, stirred_head

from headwise.errors import HeadwiseError
from headwise.tasks.kinds.frames import Frames, Roles, SpanLinear
from headwise.tasks.metrics import metrics
from headwise.tasks.task import Kind


def frame(predicate, *arguments):
    return {"predicate": predicate, "arguments": [list(argument) for argument in arguments]}


ROWS = [
    {"words": ["the", "dog", "barks"], "frames": [frame(2, (0, 2, "A0"), (2, 3, "V"))]},
    {"words": ["bark"], "frames": [frame(0)]},
    {
        "words": ["a", "cat", "sees", "Rex", "bark"],
        "frames": [frame(2, (0, 2, "A0"), (3, 5, "A1")), frame(4, (3, 4, "A0"))],
    },
    {"words": ["dogs", "bark"], "frames": [frame(1, (0, 1, "A0"))]},
    {"words": ["the", "cat"], "frames": []},
    {"words": ["see", "the", "old", "cat", "now"], "frames": [frame(0, (1, 4, "A1"), (4, 5, "TMP"))]},
    {"words": ["Rex", "sees", "Max"], "frames": [frame(1, (0, 1, "A0"), (2, 3, "A1"))]},
    {"words": ["Max", "barks", "now"], "frames": [frame(1, (0, 1, "A0"), (2, 3, "TMP"))]},
]
FOUND, GIVEN = (Frames(dropout=0, given=given).ready(ROWS) for given in (False, True))


@pytest.mark.parametrize(("kind", "metric"), [(FOUND, "srl_f1"), (GIVEN, "srl_f1_given")], ids=["found", "given"])
class TestBoth:
    def test_batches_equal_one_by_one(self, kind, metric):
        assert isinstance(kind, Kind)
        check_one_by_one(kind, ROWS)

    def test_learns_its_training_rows_by_heart(self, kind, metric):
        assert overfit(kind, ROWS, metric, lr=0.005) == 1


def all_pairs(batch) -> Roles:
    """Every predicate and every span, with scores that know the gold arguments."""
    size = int(batch["word_of"].max()) + 1
    spans = torch.tensor([(s, e) for s in range(size) for e in range(s + 1, size + 1)])
    count = batch["word_of"].amax(1, keepdim=True) + 1
    start, end = spans.T.expand(len(count), 2, -1).unbind(1)
    beyond = end > count
    word = torch.arange(size).expand(len(count), -1)
    roles = torch.zeros(len(count), size, len(spans), len(FOUND.labels) + 1)
    roles[..., 1:] = -50
    for i, arguments in enumerate(batch["arguments"].tolist()):
        for predicate, s, e, role in arguments:
            if predicate >= 0:
                roles[i, predicate, spans.tolist().index([s, e]), 1 + role] = 50
    span_rank, word_rank = torch.full((len(count), size, size), -50.0), torch.full((len(count), size), -50.0)
    for i, (arguments, predicates) in enumerate(zip(batch["arguments"].tolist(), batch["predicates"].tolist())):
        for _, s, e, _ in (a for a in arguments if a[0] >= 0):
            span_rank[i, s, e - s - 1] = 50
        for predicate in (p for p in predicates if p >= 0):
            word_rank[i, predicate] = 50
    kept = word.masked_fill(word >= count, -1), start.masked_fill(beyond, -1), end.masked_fill(beyond, -1)
    return Roles(roles, *kept, span_rank, word_rank)


def test_gold_arguments_have_no_loss_and_decode_to_themselves():
    batch = batch_of(FOUND, ROWS)
    scores = all_pairs(batch)
    assert FOUND.loss(scores, batch).max() < 1e-6
    found, gold = FOUND.decode(scores, batch), FOUND.gold(ROWS)
    assert [[f for f in row if f[3] != "V"] for row in found] == [[f for f in row if f[3] != "V"] for row in gold]
    assert metrics["srl_f1"](found, gold) == 1


def test_the_verb_marks_the_predicate_and_is_not_learnt():
    assert FOUND.labels == ("A0", "A1", "TMP")
    assert FOUND.gold(ROWS[:2]) == [[(2, 0, 2, "A0"), (2, 2, 3, "V")], [(0, 0, 1, "V")]]


def test_arguments_of_one_predicate_do_not_overlap_those_of_two_may():
    batch = batch_of(FOUND, [ROWS[2]])
    scores = all_pairs(batch)
    scores.roles[..., 1] += 60  # everything is a little an A0 now
    for row in FOUND.decode(scores, batch):
        by_predicate = {}
        for predicate, start, end, role in row:
            if role != "V":
                by_predicate.setdefault(predicate, []).append((start, end))
        assert len(by_predicate) == 5
        for spans in by_predicate.values():
            ordered = sorted(spans)
            assert all(a[1] <= b[0] for a, b in pairwise(ordered))


def test_spans_from_running_sums_equal_spans_written_out():
    torch.manual_seed(0)
    layer, states = SpanLinear(WIDTH, 7, widest=4, width_size=3), torch.randn(1, 6, WIDTH)
    start, end = torch.tensor([[0, 2, 5]]), torch.tensor([[4, 3, 6]])
    weight = torch.cat([layer.first.weight, layer.last.weight, layer.width[1].weight, layer.whole.weight], 1)
    for i, (s, e) in enumerate(zip(start[0].tolist(), end[0].tolist())):
        width = layer.width[0].weight[e - s - 1]
        span = torch.cat([states[0, s], states[0, e - 1], width, states[0, s:e].sum(0) / 4])
        torch.testing.assert_close(layer(states, start, end)[0, i], weight @ span + layer.first.bias)


def test_the_head_keeps_its_share_of_spans_and_words_and_none_too_wide():
    kind = Frames(("A0",), widest=2, dropout=0)
    batch = batch_of(kind, [{"words": ["dog"] * 5, "frames": []}, {"words": ["cat"], "frames": []}])
    scores = stirred_head(kind)(random_hidden(batch), batch)
    assert (scores.start >= 0).sum(1).tolist() == [4, 1]  # 0.8 of the words, rounded up
    assert (scores.predicate >= 0).sum(1).tolist() == [2, 1]  # 0.4 of them
    assert (scores.end - scores.start).max() <= 2
    assert (scores.end[0] <= 5).all()
    assert kind.loss(scores, batch).isfinite().all()


def test_what_is_not_kept_still_learns():
    kind = Frames(("A0", "A1", "TMP"), dropout=0, argument_ratio=0.1)
    batch = batch_of(kind, ROWS[2:3])
    scores = stirred_head(kind)(random_hidden(batch), batch)
    (slope,) = torch.autograd.grad(kind.loss(scores, batch).sum(), scores.span_rank)
    gold = {(s, e) for _, s, e, _ in batch["arguments"][0].tolist()} - {
        (int(scores.start[0, 0]), int(scores.end[0, 0]))
    }
    assert gold
    assert all(slope[0, s, e - s - 1] < 0 for s, e in gold)  # a lower loss lies where gold spans rank higher


def test_given_predicates_are_the_only_ones():
    batch = batch_of(GIVEN, ROWS)
    head = stirred_head(GIVEN).eval()
    for frames, row in zip(GIVEN.decode(head(random_hidden(batch), batch), batch), ROWS):
        assert {f[0] for f in frames} <= {f["predicate"] for f in row["frames"]}


def test_a_batch_without_predicates_teaches_only_the_ranking():
    batch = batch_of(GIVEN, [ROWS[4]])
    head = stirred_head(GIVEN)
    scores = head(random_hidden(batch), batch)
    GIVEN.loss(scores, batch).sum().backward()
    assert not any(parameter.grad.any() for parameter in head.role.parameters() if parameter.grad is not None)
    assert all(parameter.grad.isfinite().all() for parameter in head.rank_span.parameters())
    assert GIVEN.decode(scores, batch) == [[]]


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (None, "frames None"),
        ([frame(9)], "predicate 9"),
        ([frame(0, (1, 1, "A0"))], "A0 over"),
        ([frame(0, (0, 3, "A0"))], "inside"),
        ([{"predicate": 0}], "predicate and arguments"),
        (["bark"], "predicate and arguments"),
        ([frame("bark")], "predicate bark"),
        ([frame(0, (0, 1))], "end and role"),
        ([frame(0, ("0", 1, "A0"))], "end and role"),
    ],
)
def test_frames_that_do_not_fit_are_refused(frames, message):
    with pytest.raises(HeadwiseError, match=message):
        Frames().check({"words": ["dog", "bark"], "frames": frames})


def test_unseen_roles_are_told_and_given_ones_are_the_law():
    row = {"words": ["dogs", "bark"], "frames": [frame(1, (0, 1, "A9"))]}
    with pytest.warns(UserWarning, match=r"A9 \(1\)"):
        batch = batch_of(FOUND, [row])
    scores = all_pairs(batch)
    other = scores._replace(roles=scores.roles.clone())
    other.roles[0, 1, 0, 1:] = 9  # the pair of the unseen role
    torch.testing.assert_close(FOUND.loss(other, batch), FOUND.loss(scores, batch))
    with pytest.raises(HeadwiseError, match="unknown label"):
        Frames(("A0",)).check(row)
