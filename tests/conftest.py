"""Shared by all tests: quiet libraries, one thread per worker, a private cache, and where real data is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings

# A suite started in the background is born deaf to Ctrl-C, and all that it starts would be as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # tiny models: threads cost more than they give, and workers share two cores


# The same cases every time, so that a change is judged by what it changed; a long run looks for new ones.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("searching", deadline=None)
settings.load_profile("searching" if os.environ.get("HEADWISE_SOAK") else "steady")


def pytest_configure(config):
    """Laws hold to the bit on the CPU; an accelerator is for the tests that ask for one (`make test-accelerator`)."""
    if config.option.markexpr != "accelerator":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Caches of a test never reach the user's."""
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def importable(monkeypatch):
    """Workers in other processes find the works of tests."""
    support = str(Path(__file__).parent / "support")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([support, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")


@pytest.fixture
def data_folder() -> Path:
    """The folder of real samples."""
    folder = os.environ.get("HEADWISE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real samples are not here: set HEADWISE_DATA to their folder")
    return Path(folder)


@pytest.fixture(scope="session")
def study() -> dict:
    """A study to show: six layers of twelve heads, four tasks."""
    import fake_study

    return fake_study.make(6, 12, 4)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory):
    """A browser to show pages in."""
    import chromium

    yield from chromium.opened(tmp_path_factory.mktemp("chromium"))


def pytest_terminal_summary(terminalreporter):
    """What tests counted: kills survived, inputs tried."""
    counts = {"kills": 0, "cases": 0}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in getattr(report, "user_properties", ()):
            if name in counts:
                counts[name] += value
    if any(counts.values()):
        terminalreporter.write_line(f"{counts['kills']} kills survived, {counts['cases']} bad inputs tried")
