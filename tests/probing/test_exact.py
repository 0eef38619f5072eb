"""Converged probes are scikit-learn's, and none depends on the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plants import clouds
from sklearn.linear_model import LogisticRegression, Ridge

from headwise.errors import HeadwiseError
from headwise.probing import exact
from headwise.probing.exact import logistic, ridge

L2 = [1e-4, 1e-3, 1e-2, 1e-1]


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("reach", [0.3, 3.0])
def test_one_head_alone_equals_scikit_learn(classes, reach):
    x, y = clouds(1, 500, 16, classes, reach=reach)
    found = logistic(x, y[None], L2, classes)
    assert found.settled.all()
    for k, strength in enumerate(L2):
        model = LogisticRegression(C=1 / (strength * len(y)), tol=1e-9, max_iter=5000, solver="newton-cholesky")
        model.fit(x[0].double().numpy(), y.numpy())
        weight, bias = found.weight[0, 0, k].double().numpy(), found.bias[0, 0, k].double().numpy()
        if classes == 2:
            weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
        centred = model.coef_ - (model.coef_.mean(0) if classes > 2 else 0)
        np.testing.assert_allclose(weight - (weight.mean(0) if classes > 2 else 0), centred, atol=1e-3)
        shift = model.intercept_ - (model.intercept_.mean() if classes > 2 else 0)
        np.testing.assert_allclose(bias - (bias.mean() if classes > 2 else 0), shift, atol=2e-3)
        right = (found.at(x)[0, 0, k].argmax(0) == y).double().mean().item()
        assert right == pytest.approx(model.score(x[0].numpy(), y.numpy()), abs=1e-4)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_long_vectors_have_the_optimum_of_scikit_learn(classes):
    x, y = clouds(1, 300, 6, classes)
    x = 50 * x  # layers of decoders are as long: their variance is far above the weakest penalty
    found = logistic(x, y[None], L2, classes)
    assert found.settled.all()
    for k, strength in enumerate(L2):
        model = LogisticRegression(C=1 / (strength * len(y)), tol=1e-9, max_iter=5000, solver="newton-cholesky")
        expected = model.fit(x[0].double().numpy(), y.numpy()).predict_proba(x[0].double().numpy())
        np.testing.assert_allclose(found.at(x)[0, 0, k].softmax(0).T, expected, atol=5e-3)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_probe_in_company_is_the_probe_alone(classes):
    x, y = clouds(5, 200, 8, classes)
    other = y[torch.randperm(200, generator=torch.Generator().manual_seed(1))]
    together = logistic(x, torch.stack([y, other]), L2, classes)
    for head, target, strength in [(0, 0, 0), (3, 1, 2), (4, 0, 3)]:
        alone = logistic(x[head : head + 1], (y, other)[target][None], [L2[strength]], classes)
        torch.testing.assert_close(together.weight[head, target, strength], alone.weight[0, 0, 0], atol=1e-3, rtol=1e-3)


def test_rows_that_count_nothing_are_as_if_absent():
    x, y = clouds(3, 120, 6, 3)
    count = torch.ones(2, 120)
    count[1, 80:] = 0
    folded = logistic(x, y.expand(2, -1), L2, 3, count)
    short = logistic(x[:, :80], y[None, :80], L2, 3)
    torch.testing.assert_close(folded.at(x)[:, 1].argmax(2), short.at(x)[:, 0].argmax(2))
    graded = ridge(x, y.float().expand(2, -1), L2, count)
    torch.testing.assert_close(
        graded.at(x)[:, 1], ridge(x[:, :80], y[None, :80].float(), L2).at(x)[:, 0], atol=1e-4, rtol=1e-4
    )


@given(st.integers(0, 10_000), st.floats(-50, 50))
@settings(max_examples=15, deadline=None)
def test_moving_all_vectors_moves_only_the_bias(seed, shift):
    x, y = clouds(1, 80, 5, 2, seed)
    if len(set(y.tolist())) == 2:
        here, there = (logistic(z.double(), y[None], [1e-2], 2) for z in (x, x + shift))
        torch.testing.assert_close(here.weight, there.weight, atol=1e-3, rtol=1e-3)


def test_ridge_equals_scikit_learn():
    x, y = clouds(3, 300, 10, 5)
    grades = y.double() / 4
    found = ridge(x, grades[None], L2)
    for head in range(3):
        for k, strength in enumerate(L2):
            model = Ridge(alpha=strength * 300).fit(x[head].double().numpy(), grades.numpy())
            np.testing.assert_allclose(found.weight[head, 0, k, 0].numpy(), model.coef_, atol=1e-4)
            assert found.bias[head, 0, k, 0].item() == pytest.approx(model.intercept_, abs=1e-3)


def test_constant_vectors_give_the_most_frequent_class():
    x, y = torch.full((2, 40, 4), 0.3), torch.arange(40) % 4 == 0
    found = logistic(x, y.long()[None], L2, 2)
    assert found.settled.all() and (found.at(x).argmax(3) == 0).all()
    assert found.weight.isfinite().all()


def test_a_class_with_one_row_and_a_class_with_none():
    x, y = clouds(2, 60, 4, 2)
    y = y.clone()
    y[0] = 2
    found = logistic(x, y[None], L2, 4)
    assert found.weight.isfinite().all() and not (found.at(x).argmax(3) == 3).any()


def test_wide_vectors_are_solved_without_their_axes(monkeypatch):
    from headwise.probing import exact

    x, y = clouds(2, 90, 6, 3)
    wanted, graded = logistic(x, y[None], [1e-2], 3), ridge(x, y[None].float(), [1e-2])
    monkeypatch.setattr(exact, "ROTATED", 2)
    torch.testing.assert_close(logistic(x, y[None], [1e-2], 3).weight, wanted.weight, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(ridge(x, y[None].float(), [1e-2]).weight, graded.weight, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "solve", [lambda x, y: logistic(x, y[None], [0.0], 2), lambda x, y: ridge(x, y[None].float(), [0.0])]
)
def test_no_penalty_is_refused(solve):
    with pytest.raises(HeadwiseError, match="l2 0"):
        solve(*clouds(1, 20, 3, 2))


@pytest.mark.parametrize("scale", [1.0, 3e4])
def test_vectors_of_any_size_have_the_optimum_of_scikit_learn(scale):
    """The states of some decoders: a few axes ten thousand times as long as the rest."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 24)), rng.integers(0, 3, 300)
    x[:, 0] += y - 1.0
    x *= np.geomspace(1, scale, 24)
    found = logistic(torch.tensor(x, dtype=torch.float32)[None], torch.tensor(y)[None], [1e-3], 3)
    best = LogisticRegression(C=1 / (1e-3 * 300), solver="newton-cholesky", tol=1e-8).fit(x, y)
    same = (found.at(torch.tensor(x)[None])[0, 0, 0].argmax(0).numpy() == best.predict(x)).mean()
    assert same > 0.98 and found.settled.all()


def nearly_separable(rows, classes, wide, seed):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (rows,), generator=generator)
    centres = 0.35 * torch.randn(classes, wide, generator=generator)
    noise = torch.randn(rows, wide, generator=generator)
    return ((centres[y] + noise) * torch.logspace(0.5, -1, wide))[None], y


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(400, 6, 64), (800, 4, 128), (1000, 3, 200)])
def test_weakly_held_probes_of_nearly_separable_classes_converge(shape, seed):
    """Their losses are far smaller than their scores: rounding must not pass for a hill."""
    x, y = nearly_separable(*shape, seed)
    found = logistic(x, y[None], [1e-6, 1e-5], shape[1])
    assert found.settled.all()
    scores = found.at(x)[0, 0].double()
    loss = torch.nn.functional.cross_entropy(scores[1].T, y) + 0.5e-5 * found.weight[0, 0, 1].double().square().sum()
    best = logistic(x.double(), y[None], [1e-5], shape[1])
    least = torch.nn.functional.cross_entropy(best.at(x)[0, 0, 0].T, y) + 0.5e-5 * best.weight.square().sum()
    assert loss <= least * (1 + 1e-4)


def test_strengths_that_are_done_are_left_out_of_the_products(monkeypatch):
    done, bent = [], exact._Logistic.bent
    monkeypatch.setattr(exact._Logistic, "bent", lambda self, step: (done.append(step.shape[1]), bent(self, step))[1])
    x, y = nearly_separable(600, 6, 32, 0)
    logistic(x, y[None], [1e-5, 1e-3, 1e-1], 6)
    together = sum(done)
    done.clear()
    for strength in (1e-5, 1e-3, 1e-1):
        logistic(x, y[None], [strength], 6)
    assert together == sum(done), "three strengths at once cost what they cost alone"
