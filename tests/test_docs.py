"""README and docs keep their word: every code block and every command in them is run.

A block with ``<!-- not run: why -->`` above it is left out, and there are few of those. ``<!-- file: name -->`` writes
the block to that file, ``<!-- fails -->`` says that each of its commands ends with a message and exit code 2. Each page
is run in a folder of its own that holds what `headwise.testing.playground` makes, in one namespace, from top to bottom.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from headwise import cli
from headwise.experiments.jobs import works
from headwise.registry import load_plugins
from headwise.scoring.importance import estimators
from headwise.testing import playground, toy_language_model
from headwise.training.methods import methods

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "verbs").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
VERBS = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
RUNNABLE = ("python", "sh")
LEFT_OUT = 10  # no more than this


class Block(NamedTuple):
    line: int
    note: str  # what the comment above it says
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.finditer(
        r"(?:^<!-- (?P<note>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", page.read_text(), re.M | re.S
    )
    text = page.read_text()
    return [Block(text[: m.start()].count("\n") + 1, m["note"] or "", m["language"], m["text"]) for m in found]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A playground to stand in; what a page registers is forgotten after it."""
    monkeypatch.chdir(playground(tmp_path))
    load_plugins()  # once in a process: what they add must outlast the page
    for registry in (estimators, methods, works):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_runs_from_top_to_bottom(page, place, monkeypatch, capsys):
    names: dict = {"__name__": "__main__"}
    for block in blocks(page):
        where = f"{name_of(page)}:{block.line}"
        if block.note.startswith("file: "):
            (place / block.note.removeprefix("file: ")).write_text(block.text)
        if block.note.startswith("not run: "):
            continue
        if block.language == "python":
            exec(compile(block.text, where, "exec"), names)
        elif block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                run_line(line, block.note == "fails", where, monkeypatch, capsys)
        elif block.language in ("toml", "json"):
            (tomllib if block.language == "toml" else json).loads(block.text)
        else:
            assert block.language == "text", f"{where}: a block of {block.language or 'no language'}"


def run_line(line: str, fails: bool, where: str, monkeypatch, capsys) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), f"{where}: no target {words[1]}"
    elif words[:2] == ["pip", "install"]:
        check_extras(line, where)
    else:
        assert words[0] == "headwise", f"{where}: {line}"
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) if fails else open_end() as stopped:
            cli.main()
        said = capsys.readouterr()
        if fails:
            assert stopped.value.code == 2 and said.err.startswith("headwise: "), f"{where}: {line}"
        else:
            assert said.out, f"{where}: {line} says nothing"


class open_end:
    def __enter__(self):
        return None

    def __exit__(self, kind, error, trace):
        assert not isinstance(error, SystemExit) or not error.code, f"ended with {error.code}"
        return isinstance(error, SystemExit)


def check_extras(line: str, where: str) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"\[([\w,]+)\]", line):
        for extra in extras.split(","):
            assert extra in known, f"{where}: no extra {extra}"


def test_few_blocks_are_left_out_and_each_says_why():
    left = [(name_of(p), b.note) for p in PAGES for b in blocks(p) if b.note.startswith("not run")]
    assert len(left) <= LEFT_OUT, left
    assert all(re.fullmatch(r"not run: \w.{9,}", note) for _, note in left), left


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_and_no_verb_escapes(page):
    text = page.read_text()
    assert len(re.findall(r"^ *(?:```|~~~)", text, re.M)) == 2 * len(blocks(page)), "a fence that is no block"
    named = set(re.findall(r"`headwise (\w+)", text))
    assert named <= VERBS, named - VERBS


def test_every_estimator_is_explained():
    text = (ROOT / "docs" / "concepts.md").read_text()
    assert [name for name in estimators if f"`{name}`" not in text] == []


def test_every_extra_is_listed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "README.md").read_text(), re.M))
    assert listed == set(extras) - {"test", "check", "docs"}


def test_notes_are_known():
    for page in PAGES:
        for block in blocks(page):
            assert re.fullmatch(r"|not run: .+|file: [\w.]+|fails", block.note), f"{name_of(page)}:{block.line}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), f"{name_of(page)}: {target}"
            assert not anchor or anchor in anchors(file), f"{name_of(page)}: {target}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


# -- what the pages say of the command line


def options_of(verb: str) -> set[str]:
    import typer.main

    command = typer.main.get_command(cli.app)
    return {option for parameter in command.commands[verb].params for option in parameter.opts} | {"--help"}


def test_every_verb_has_a_page_and_a_row():
    assert {page.stem for page in (ROOT / "docs" / "verbs").glob("*.md")} == VERBS
    rows = re.findall(r"^\| \[`(\w+)`\]\(docs/verbs/(\w+)\.md\)", (ROOT / "README.md").read_text(), re.M)
    assert sorted(rows) == sorted((verb, verb) for verb in VERBS)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verbs_page_names_only_its_options(verb):
    text = (ROOT / "docs" / "verbs" / f"{verb}.md").read_text()
    described = set(re.findall(r"^\| `(--[a-z-]+)", text, re.M))
    assert described <= options_of(verb)
    assert f"headwise {verb}" in text


# -- the reference


def test_the_reference_is_up_to_date():
    made = runpy.run_path(str(ROOT / "docs" / "make_api.py"))["reference"]()
    assert made == (ROOT / "docs" / "api.md").read_text(), "run: python docs/make_api.py"


# -- notebooks and short files


def cells_of(notebook: Path) -> list[dict]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


EXECUTED = [notebook for notebook in NOTEBOOKS if "headwise" in json.loads(notebook.read_text())["metadata"]]


@pytest.mark.parametrize("notebook", EXECUTED, ids=name_of)
def test_the_outputs_of_a_notebook_are_those_of_its_code(notebook):
    content, program = json.loads(notebook.read_text()), runpy.run_path(str(ROOT / "examples" / "execute.py"))
    assert content["nbformat"] == 4 and content["cells"][0]["cell_type"] == "markdown"
    ran = f"run: python examples/execute.py {name_of(notebook)}"
    assert content["metadata"]["headwise"]["code"] == program["code_hash"](content), ran
    shown = [kind for cell in cells_of(notebook) for out in cell["outputs"] for kind in out.get("data", {})]
    assert shown.count("image/png") >= 2 and "error" not in shown
    assert [cell["execution_count"] for cell in cells_of(notebook)] == list(range(1, len(cells_of(notebook)) + 1))


SMALL = {
    "which_heads_does_each_task_live_on": """
MODEL, TASKS = "bert-tiny", ["corpus.dep", "corpus.bigram_shift"]
ROWS, EXAMPLES, DEV, RANDOM = 16, 8, 8, 10
""",
    "cut_a_third_of_the_heads": """
MODEL, TASK = "llama-tiny", "corpus.sentiment@prompt"
EXAMPLES, DEV, RANDOM = 4, 4, 1
""",
}  # what a notebook's cell of parameters is replaced by, to run the rest in seconds


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_a_notebook_runs_from_top_to_bottom_on_a_tiny_model(notebook, place):
    pytest.importorskip("matplotlib")
    run_cell = runpy.run_path(str(ROOT / "examples" / "execute.py"))["run_cell"]
    lm = toy_language_model(dtype=torch.float32)
    lm.model.save_pretrained("llama-tiny")
    lm.tokenizer.save_pretrained("llama-tiny")
    names: dict = {"__name__": "__main__"}
    for number, cell in enumerate(cells_of(notebook)):
        if cell["metadata"].get("tags") == ["parameters"]:
            cell["source"] = [SMALL[notebook.stem]]
        run_cell(cell, names, f"{notebook.name} cell {number}")


def test_there_are_two_notebooks():
    assert {notebook.stem for notebook in NOTEBOOKS} == set(SMALL) and EXECUTED == NOTEBOOKS


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 60


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
