"""The documentation builds as a site without warnings, with a search index, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOADED = r"""<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'> ]+)"""  # from another host
NEEDED = ("sphinx", "myst_parser", "furo")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", ROOT / "docs", out]
    done = subprocess.run([*map(str, command), "-d", f"{out}/.doctrees"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_built(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()


def test_the_search_finds_words_of_the_pages(site):
    index = (site / "searchindex.js").read_text()
    for word in ("dissoci", "import", "lesion"):  # stems
        assert f'"{word}' in index or f"{word}:" in index or f",{word}" in index


def test_pages_load_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(LOADED, page.read_text())
        assert loaded == [], page.name
