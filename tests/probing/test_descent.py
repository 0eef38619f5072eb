"""Early-stopped probes trained together are the probes trained one by one."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from plants import clouds
from torch import nn

from headwise.errors import HeadwiseError
from headwise.probing.descent import GRADED, Classes, Grades, Rule, descend, expected_grade, pearson, soft_labels

L2 = [1e-5, 1e-2, 1e-1]


def one_by_one(x, y, dev_x, score, outputs, l2, rule, loss):
    """The plain loop: one linear layer, one optimizer, a look every few epochs, the best copy kept."""
    shuffle = np.random.RandomState(rule.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rule.seed)
        model = nn.Linear(x.shape[1], outputs)
    model.to(x.dtype)
    kinds = {"rmsprop": torch.optim.RMSprop, "adam": torch.optim.Adam}
    optimizer = kinds[rule.optimizer](model.parameters(), lr=rule.lr, weight_decay=l2)
    best, kept, misses, epoch, stopped = -1.0, model, 0, 0, False
    while not stopped and epoch <= rule.max_epochs:
        for _ in range(rule.every):
            for items in torch.from_numpy(shuffle.permutation(len(x))).split(rule.batch):
                optimizer.zero_grad()
                loss(model(x[items]), y[items]).backward()
                optimizer.step()
        epoch += rule.every
        with torch.no_grad():
            found = score(model(dev_x))
        if found > best:
            best, kept = found, copy.deepcopy(model)
        else:
            stopped = misses >= rule.tenacity
            misses += 1
    return kept.weight.detach(), best, epoch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classes_equal_the_plain_loop(dtype):
    x, y = clouds(3, 260, 6, 3)
    x = x.to(dtype)
    train, dev, rule = x[:, :200], x[:, 200:], Rule(batch=64, max_epochs=40, seed=5)
    found = descend(train, dev, Classes(y[:200], y[200:], 3), L2, rule)
    for head in range(3):
        for k, strength in enumerate(L2):
            score = lambda scores: (scores.argmax(1) == y[200:]).double().mean().item()  # noqa: E731
            alone = one_by_one(train[head], y[:200], dev[head], score, 3, strength, rule, nn.functional.cross_entropy)
            torch.testing.assert_close(found.weight[head, k], alone[0], atol=1e-5, rtol=1e-4)
            assert (found.score[head, k].item(), found.epochs[head, k].item()) == (alone[1], alone[2])


def test_grades_equal_the_plain_loop():
    x, y = clouds(2, 120, 5, 5)
    grades = (y + 1).float() / 5
    train, dev, rule = x[:, :90].double(), x[:, 90:].double(), Rule("adam", 1e-3, 16, 5, 1, 40)
    found = descend(train, dev, Grades(grades[:90], grades[90:]), [0.0], rule)

    def loss(scores, wanted):
        return nn.functional.mse_loss(scores.softmax(1), wanted)

    for head in range(2):
        score = lambda scores: pearson(expected_grade(scores.T), grades[90:]).item()  # noqa: E731
        target = soft_labels(grades[:90]).T.double()
        weight, best, epoch = one_by_one(train[head], target, dev[head], score, 5, 0.0, rule, loss)
        torch.testing.assert_close(found.weight[head, 0], weight, atol=1e-8, rtol=1e-6)
        assert found.score[head, 0].item() == pytest.approx(best, abs=1e-9) and found.epochs[head, 0] == epoch


def test_batched_early_stopping_equals_each_alone_exactly():
    x, y = clouds(8, 300, 6, 2, reach=0.5)
    train, dev, rule = x[:, :220], x[:, 220:], Rule(batch=50, max_epochs=60)
    target = Classes(y[:220], y[220:], 2)
    together = descend(train, dev, target, L2, rule)
    assert len(together.epochs.unique()) > 2  # they do stop at different times
    for head in range(8):
        for k, strength in enumerate(L2):
            alone = descend(train[head : head + 1], dev[head : head + 1], target, [strength], rule)
            assert together.epochs[head, k] == alone.epochs[0, 0]
            assert together.score[head, k] == alone.score[0, 0]
            torch.testing.assert_close(together.weight[head, k], alone.weight[0, 0], atol=1e-6, rtol=1e-5)


def test_a_seed_is_a_result():
    x, y = clouds(2, 100, 4, 2)
    first, again, other = (
        descend(x[:, :80], x[:, 80:], Classes(y[:80], y[80:], 2), L2, Rule(batch=16, max_epochs=6, seed=s))
        for s in (1, 1, 2)
    )
    assert torch.equal(first.weight, again.weight) and not torch.equal(first.weight, other.weight)


def test_soft_labels_share_a_grade_between_its_neighbours():
    found = soft_labels(torch.tensor([0.2, 0.5, 1.0, 0.1]))
    wanted = torch.tensor([[1, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 0, 1], [0.5, 0, 0, 0, 0]]).T
    torch.testing.assert_close(found, wanted.float())
    grades = torch.linspace(0.2, 1, 9)
    points = torch.arange(1, 6)[:, None] / 5
    torch.testing.assert_close((soft_labels(grades) * points).sum(0), grades)


def test_pearson_is_numpys_and_zero_for_a_constant():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(30, generator=generator), torch.randn(30, generator=generator)
    assert pearson(a, b).item() == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert pearson(torch.ones(30), b) == 0


def test_rules_are_checked():
    with pytest.raises(HeadwiseError, match="optimizer"):
        Rule("sgd")
    with pytest.raises(HeadwiseError, match="must be above 0"):
        Rule(batch=0)
    assert (GRADED.optimizer, GRADED.batch, GRADED.every) == ("adam", 64, 50)
