"""The biaffine form is its formula, and the helpers around it mask what they should."""

from __future__ import annotations

import torch

from headwise.tasks.kinds.biaffine import Biaffine, Projection, cross_entropy, marked, masked_mean


def test_scores_are_the_formula_for_every_pair():
    torch.manual_seed(0)
    form = Biaffine(3, 4, 2)
    assert form(torch.randn(1, 2, 3), torch.randn(1, 5, 4)).abs().max() == 0, "no pair is preferred at first"
    torch.nn.init.normal_(form.weight)
    left, right = torch.randn(2, 3, 3), torch.randn(2, 5, 4)
    scores = form(left, right)
    assert scores.shape == (2, 3, 5, 2)
    U, a, b, c = form.weight[:, :-1, :-1], form.weight[:, :-1, -1], form.weight[:, -1, :-1], form.weight[:, -1, -1]
    for example in range(2):
        for i in range(3):
            for j in range(5):
                x, y = left[example, i], right[example, j]
                torch.testing.assert_close(
                    scores[example, i, j], torch.stack([x @ u @ y for u in U]) + a @ x + b @ y + c
                )


def test_dropout_takes_the_same_units_at_every_position():
    torch.manual_seed(0)
    layer = Projection(8, 64, 0.5).train()
    dropped = layer(torch.randn(2, 7, 8)) == 0
    assert dropped.any() and (dropped == dropped[:, :1]).all()
    assert not (layer.eval()(torch.randn(2, 7, 8)) == 0).any()


def test_the_mean_is_over_valid_places_and_zero_where_there_are_none():
    values, mask = torch.tensor([[1.0, 2.0, 9.0], [5.0, 5.0, 5.0]]), torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert masked_mean(values, mask).tolist() == [1.5, 0.0]


def test_negative_places_are_marked_nowhere():
    row = marked(torch.tensor([[0, 3, -1]]), torch.tensor([[5, 6, 7]]), 4)
    assert row.tolist() == [[5, 0, 0, 6]]


def test_places_without_a_target_have_no_loss_and_no_gradient():
    scores = torch.randn(2, 3, 4, requires_grad=True)
    loss = cross_entropy(scores, torch.tensor([[1, -1, 2], [-1, -1, -1]]))
    assert loss.shape == (2, 3) and (loss[0, 1], loss[1].sum()) == (0, 0) and loss[0, 0] > 0
    loss.sum().backward()
    assert scores.grad[1].abs().sum() == 0
