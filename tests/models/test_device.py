"""Devices are checked before they are used; a budget of tokens halves until the work fits."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.models.device import Budget, Live, default_device, free_bytes, in_words, of_rows, weight_bytes
from headwise.models.processes import Team
from headwise.testing import toy_model
from headwise.training.loop import fit
from headwise.training.plan import Plan


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

    with pytest.raises(HeadwiseError, match="process 1 of 2 ran out of memory"):
        Budget(1000, Team(1, 2, bound=True)).fit(work)
    assert seen == [1000]


@pytest.mark.parametrize("asked", ["gpu9", "cuda:99", "meta", "CPU"])
def test_a_device_that_is_not_there_is_refused(asked):
    with pytest.raises(HeadwiseError, match=f"no device '{asked}' here; expected one of: cpu"):
        default_device(asked)
    with pytest.raises(HeadwiseError, match="no device"):
        fit(toy_model(), Plan(steps=1), device=asked)


def test_devices_that_are_there_are_named_and_taken(monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    assert [str(default_device(asked)) for asked in (None, "cpu", "cuda", "cuda:1")] == [
        "cuda",
        "cpu",
        "cuda",
        "cuda:1",
    ]
    with pytest.raises(HeadwiseError, match="one of: cpu, cuda, cuda:0, cuda:1"):
        default_device("cuda:2")


CPU = torch.device("cpu")


def test_live_counts_what_is_held_at_one_time():
    with Live() as live:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b.view(10, 100) * 2
        c.add_(1)
    assert live.peak == 8000 and live.now == 8000, "views and results in place take nothing"


def test_live_counts_backwards_too():
    weight = torch.randn(100, 100, requires_grad=True)
    with Live() as live:
        (weight * 2).square().sum().backward()
    assert live.peak >= 3 * weight.nbytes and live.now == weight.nbytes, "the gradient stays"


def test_the_memory_of_all_rows_is_that_of_one_and_of_each_more():
    weight = torch.randn(50, 50)
    work = lambda rows: (torch.ones(rows, 7, 50) @ weight).relu().sum()  # noqa: E731
    with Live() as live:
        work(9)
    assert of_rows(work, CPU)(9) == pytest.approx(live.peak, rel=0.05)


def test_a_limit_on_the_process_is_what_is_free():
    """As set by ulimit, or by the shell of a batch system."""
    code = (
        "import resource, torch; from headwise.models.device import free_bytes;"
        "resource.setrlimit(resource.RLIMIT_DATA, (3 * 10**9, 3 * 10**9)); print(free_bytes(torch.device('cpu')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 1e9 < int(done.stdout) < 3e9


def test_words_and_weights():
    assert in_words(16_060_522_496) == "16.1 GB" and in_words(3_000_000) == "3 MB"
    assert weight_bytes(torch.nn.Linear(10, 10)) == 440 and free_bytes(CPU) > 0
