"""Memory of importance, estimated from a row or two: what it is in truth, what is refused, what is cut."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.models.memory import Live
from headwise.scoring import room
from headwise.scoring.importance import importance
from headwise.testing import tiny, tiny_batch


@pytest.fixture
def large(monkeypatch):
    """A model that counts as large, with batches of eight rows."""
    monkeypatch.setattr(room, "LARGE", 0)
    model = tiny("llama", auto="AutoModelForCausalLM", num_hidden_layers=4)
    batches = [
        {**tiny_batch(model, 8, 12, seed), "labels": tiny_batch(model, 8, 12, seed)["input_ids"]} for seed in (0, 1)
    ]
    return model, batches


def measured(model, batches, free, monkeypatch) -> list[str]:
    monkeypatch.setattr(room, "free_bytes", lambda device: free)
    lines: list[str] = []
    importance(model, batches, log=lines.append)
    return lines


def test_the_estimate_is_what_importance_takes(large, monkeypatch):
    model, batches = large
    line = measured(model, batches, 1e12, monkeypatch)[0]
    with Live() as live:
        importance(model, batches[:1], log=lambda line: None)
    monkeypatch.setattr(room, "LARGE", 1e12)
    with Live() as live:
        importance(model, batches, log=lambda line: None)
    estimate = float(line.split()[1])
    assert line.startswith("gradient: ") and "MB beside" in line and "for 96 tokens" in line
    assert estimate == pytest.approx(live.peak / 1e6, rel=0.1, abs=0.6)


def test_what_cannot_fit_is_refused_with_what_would(large, monkeypatch):
    with pytest.raises(HeadwiseError, match=r"importance needs .* are free.*gradient_checkpointing_enable"):
        measured(*large, 1000, monkeypatch)


def test_a_task_goes_on_in_batches_that_fit(monkeypatch):
    from headwise.testing import toy_model

    model = toy_model(1)
    whole = importance(model, "toy0", tokens=512).scores
    monkeypatch.setattr(room, "LARGE", 0)
    lines: list[str] = []
    monkeypatch.setattr(room, "free_bytes", lambda device: 400_000)
    found = importance(model, "toy0", tokens=512, log=lines.append)
    assert "in batches of" in lines[1] and torch.allclose(found.scores, whole, atol=1e-6)
