"""Studies to show and a browser to show them in."""

from __future__ import annotations

from collections.abc import Iterator

import chromium
import fake_study
import pytest


@pytest.fixture(scope="session")
def study() -> dict:
    return fake_study.make(6, 12, 4)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    yield from chromium.opened(tmp_path_factory.mktemp("chromium"))
