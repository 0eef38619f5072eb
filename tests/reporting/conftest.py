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
    if not (chromium.BROWSER and chromium.DRIVER):
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    window = chromium.Chromium(tmp_path_factory.mktemp("chromium"))
    yield window
    window.close()
