"""Choices, grades, continuations and answers: scores, losses, answers and what is no row."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.tasks.kinds.choice import Choice, Grade, Likelihoods, Pick
from headwise.tasks.kinds.generation import Continuation, Generation, Reached
from headwise.tasks.metrics import metrics

TOTAL = torch.tensor([[-2.0, -3.0, 0.0], [-4.0, -1.0, -2.0]])
BATCH = {
    "tokens": torch.tensor([[1, 3, -1], [2, 1, 4]]),
    "chars": torch.tensor([[4, 3, -1], [2, 1, 8]]),
    "label": torch.tensor([0, 2]),
}


@pytest.mark.parametrize(
    ("score", "rows", "picks"),
    [
        ("sum", [[-2, -3], [-4, -1, -2]], [0, 1]),
        ("token", [[-2, -1], [-2, -1, -0.5]], [1, 2]),
        ("char", [[-0.5, -1], [-2, -1, -0.25]], [0, 2]),
    ],
)
def test_tokens_add_up_as_asked(score, rows, picks):
    found = Choice(score=score).decode(Likelihoods(TOTAL), BATCH)
    assert [int(pick) for pick in found] == picks
    for pick, row in zip(found, rows):
        assert list(pick.scores) == pytest.approx(row)


def test_losses_are_what_they_are_called():
    found = Likelihoods(TOTAL)
    assert Choice().loss(found, BATCH).tolist() == pytest.approx([-1.0, 1.0])
    assert Choice(loss_of="nll").loss(found, BATCH).tolist() == pytest.approx([2.0, 2.0])
    log_softmax = [torch.tensor([-2.0, -3]).log_softmax(0)[0], torch.tensor([-4.0, -1, -2]).log_softmax(0)[2]]
    assert Choice(loss_of="choices").loss(found, BATCH).tolist() == pytest.approx([-float(v) for v in log_softmax])


def test_the_margin_of_a_pick_is_over_the_best_wrong_choice():
    pick = Pick.of([-1.0, -3.0, -2.0])
    assert pick == 0 and pick.margin(0) == 1.0 and pick.margin(1) == -2.0
    assert metrics["margin"]([pick, pick], [0, 1]) == -0.5
    assert metrics["accuracy"]([pick, pick], [0, 1]) == 0.5
    expected = torch.tensor([-1.0, -3.0, -2.0]).softmax(0)
    assert metrics["choice_probability"]([pick], [1]) == pytest.approx(float(expected[1]))


def test_bias_is_the_log_of_the_mean_probability_without_content():
    kind = Choice(("a", "b")).with_bias(torch.tensor([[0.0, 0.0], [1.0, -1.0]]))
    mean = (torch.tensor([0.5, 0.5]) + torch.tensor([1.0, -1.0]).softmax(0)) / 2
    assert kind.bias == pytest.approx(mean.log().tolist(), abs=1e-5)
    two = {"tokens": torch.ones(1, 2), "label": torch.tensor([0])}
    assert kind.scores_of(Likelihoods(torch.zeros(1, 2)), two).tolist()[0] == pytest.approx([-b for b in kind.bias])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "choices": ["b"], "label": 0}, "two texts or more"),
        ({"prompt": "a", "choices": ["b", 3], "label": 0}, "two texts or more"),
        ({"prompt": None, "choices": ["b", "c"], "label": 0}, "a text, which may be empty"),
        ({"prompt": ["a"], "choices": ["b", "c"], "label": 0}, "1 prompts for 2 choices"),
        ({"prompt": "a", "choices": ["b", "c"], "label": 2}, "0 to 1"),
        ({"prompt": "a", "choices": ["b", "c"], "label": True}, "the number of the right choice"),
        ({"prompt": "a", "choices": ["b", "c"], "label": "d"}, "unknown label"),
    ],
)
def test_what_is_no_choice_is_refused(row, message):
    with pytest.raises(HeadwiseError, match=message):
        Choice(("x", "y")).check(row)
    assert Choice(("x", "y")).gold([{"prompt": "a", "choices": ["b", "c"], "label": "y"}]) == [1]


def test_options_are_checked():
    for wrong in ({"score": "mean"}, {"loss_of": "hinge"}):
        with pytest.raises(HeadwiseError, match="unknown"):
            Choice(**wrong)
    with pytest.raises(HeadwiseError, match="unknown"):
        Continuation(score="char")


def test_a_grade_is_the_mean_over_choices_that_are_numbers():
    kind = Grade(("0", "1", "2"), ("0", "1", "2"), values=(0.0, 1.0, 2.0), loss_of="choices")
    batch = {"tokens": torch.ones(1, 3), "chars": torch.ones(1, 3), "label": torch.tensor([1])}
    total = torch.tensor([[-1.0, -2.0, -3.0]])
    weights = total.softmax(-1)[0]
    assert kind.decode(Likelihoods(total), batch)[0] == pytest.approx(float(weights[1] + 2 * weights[2]))
    assert kind.gold([{"prompt": "a", "label": 1.4}]) == [1.4]
    with pytest.raises(HeadwiseError, match=r"a number from 0\.0 to 2\.0"):
        kind.check({"prompt": "a", "label": 2.5})


def test_continuations_are_judged_by_match_and_by_probability():
    batch = {"tokens": torch.tensor([[2], [1]])}
    found = Likelihoods(torch.tensor([[-2.0], [-1.0]]), torch.tensor([[True], [False]]))
    told = Continuation().decode(found, batch)
    assert told == [Reached(True, -2.0, 2), Reached(False, -1.0, 1)]
    assert Continuation().loss(found, batch).tolist() == [2.0, 1.0]
    assert Continuation("token").loss(found, batch).tolist() == [1.0, 1.0]
    assert metrics["continuation_match"](told, ["a b", "c"]) == 0.5
    assert metrics["token_probability"](told, ["a b", "c"]) == pytest.approx(float(torch.tensor(-1.0).exp()))
    with pytest.raises(HeadwiseError, match="target"):
        Continuation().check({"prompt": "a", "target": " "})


def test_an_answer_ends_where_a_stop_text_begins():
    kind = Generation(stop=("\n", "."))
    assert kind.ended("Lima.") and kind.ended(" a\nb") and not kind.ended("\n a")
    assert kind._cut("Lima. It is") == "Lima"
    with pytest.raises(HeadwiseError, match="one text or more"):
        kind.check({"prompt": "a", "answers": []})
