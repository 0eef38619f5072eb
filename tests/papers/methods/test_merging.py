"""Merging: against values worked out by hand, and a planted head that one task alone needs."""

from __future__ import annotations

import torch

from headwise.heads.gates import Heads
from headwise.papers.methods import merging
from headwise.testing import toy_model

A, B = {"w": torch.tensor([4.0, 1.0, -3.0, 0.5, 0.0])}, {"w": torch.tensor([2.0, -0.1, 5.0, 0.4, 0.0])}


def test_means_and_weights():
    assert merging.mean([A, B])["w"].tolist() == [3.0, 0.44999998807907104, 1.0, 0.44999998807907104, 0.0]
    weights = [{"w": torch.full((5,), 3.0)}, {"w": torch.ones(5)}]
    assert torch.allclose(merging.weighted([A, B], weights)["w"], (3 * A["w"] + B["w"]) / 4)


def test_ties_trims_elects_and_averages_what_agrees():
    """Two of five are kept in each: 4 and -3, 2 and 5; the third has the sign of 5 and is 5, not their mean."""
    assert merging.ties([A, B], kept=0.4)["w"].tolist() == [3.0, 0.0, 5.0, 0.0, 0.0]


def test_a_head_that_one_task_needs_is_that_tasks():
    start = toy_model().encoder
    state = start.state_dict()
    heads = Heads.of(start)
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    vectors = [{name: torch.full_like(tensor, value) for name, tensor in floats.items()} for value in (1.0, -1.0)]
    needed = [torch.ones(heads.shape), torch.ones(heads.shape)]
    needed[1][1, 2] = 1e-9
    needed[1] *= 1 / needed[1].mean()
    merged = merging.by_heads(vectors, needed, start)
    names = {id(p): n for n, p in start.named_parameters()}
    part = heads.sites[1].parts["q"]
    found = merged[names[id(part.module.weight)]]
    assert torch.allclose(found[part.rows[2]], torch.tensor(1.0), atol=1e-3)
    assert found[part.rows[1]].abs().max() < 0.1 and merged["embeddings.word_embeddings.weight"].abs().max() < 1e-6


def test_the_whole_change_of_one_task_is_that_task():
    start, end = toy_model().encoder.state_dict(), toy_model().encoder
    torch.nn.init.normal_(end.embeddings.word_embeddings.weight)
    made = merging.applied(start, merging.changes(end.state_dict(), start))
    assert all(torch.allclose(made[name], value, atol=1e-6) for name, value in end.state_dict().items())
