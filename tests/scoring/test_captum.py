"""The estimators of captum find planted heads."""

from __future__ import annotations

import pytest
import torch

from headwise.heads.selection import top
from headwise.scoring.importance import importance
from headwise.testing import planted, toy_model

CAPTUM = ("integrated_gradients", "attribution", "shapley")


@pytest.fixture(scope="module")
def plant():
    return planted(seed=0)


@pytest.fixture(scope="module")
def model():
    made = toy_model(2, rows=40).double()
    return made.eval()


@pytest.mark.parametrize("by", CAPTUM)
def test_captum_estimators(plant, by):
    pytest.importorskip("captum")
    model, masks = plant
    for task, mask in masks.items():
        assert torch.equal(top(importance(model, task, by, examples=64).scores, 1 / 8), mask)
