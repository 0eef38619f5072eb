"""What tensors take at one time, what batches take by their rows, and what is left under limits."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from headwise.models.memory import Live, free_bytes, in_words, of_rows, weight_bytes

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
        "import resource, torch; from headwise.models.memory import free_bytes;"
        "resource.setrlimit(resource.RLIMIT_DATA, (3 * 10**9, 3 * 10**9)); print(free_bytes(torch.device('cpu')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 1e9 < int(done.stdout) < 3e9


def test_words_and_weights():
    assert in_words(16_060_522_496) == "16.1 GB" and in_words(3_000_000) == "3 MB"
    assert weight_bytes(torch.nn.Linear(10, 10)) == 440 and free_bytes(CPU) > 0
