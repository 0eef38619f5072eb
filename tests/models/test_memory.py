"""A budget of examples halves until the work fits."""

from __future__ import annotations

import warnings

import pytest
import torch

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.models.memory import Budget
from headwise.models.processes import Team


def test_a_budget_halves_until_the_work_fits_and_stays_there():
    budget, seen = Budget(1000), []

    def work(tokens: int) -> str:
        seen.append(tokens)
        if tokens > 300:
            raise torch.OutOfMemoryError
        return "done"

    with pytest.warns(HeadwiseWarning, match="250 tokens"):
        assert budget.fit(work) == "done"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert budget.fit(work) == "done"
    assert seen == [1000, 500, 250, 250]


def test_what_never_fits_raises():
    def work(tokens: int) -> None:
        raise torch.OutOfMemoryError("full")

    with pytest.warns(HeadwiseWarning), pytest.raises(torch.OutOfMemoryError, match="full"):
        Budget(1000).fit(work)


def test_one_process_of_several_does_not_cut_alone():
    """Where forwards take part in those of other processes, these would wait for one that never comes."""
    seen = []

    def work(tokens: int) -> None:
        seen.append(tokens)
        raise torch.OutOfMemoryError

    with pytest.raises(HeadwiseError, match="process 1 of 2 is out of memory"):
        Budget(1000, Team(1, 2, bound=True)).fit(work)
    assert seen == [1000]
