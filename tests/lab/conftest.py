"""A small trained model and a lab that serves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from labs import Lab, opened_toy

from headwise.lab.opening import Opened


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return opened_toy(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="session")
def gates(opened: Opened) -> list[list[float]]:
    layers, heads = opened.subject.attention.shape
    return [[0.0, 0.5, *[1.0] * (heads - 2)], *[[1.0] * heads] * (layers - 1)]


@pytest.fixture(scope="session")
def lab(opened: Opened) -> Iterator[Lab]:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    running = Lab(opened)
    yield running
    running.close()
