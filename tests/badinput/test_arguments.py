"""Whatever is typed, the command line answers, or says in one line what is wrong."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spoiling import STUDY

# Loaded before training is taken away below, or they would keep what stands in for it.
from headwise.cli import main
from headwise.testing import playground

NUMBERS = [
    pytest.param(60, id="few"),
    pytest.param(int(os.environ.get("HEADWISE_CASES", 3000)), id="many", marks=pytest.mark.soak),
]
VERBS = (
    "heads",
    "tasks",
    "report",
    "ls",
    "prune",
    "sweep",
    "importance",
    "dissociate",
    "train",
    "study",
    "recipe",
    "head",
    "probe",
)
WORDS = (
    *(
        "",
        "-",
        "--",
        "--json",
        "--out",
        "-o",
        "out",
        "x",
        "0",
        "-1",
        "nan",
        "inf",
        "1e999",
        "é",
        "😀",
        " ",
        "\n",
        "\t",
        "*",
        "..",
        "/",
    ),
    *(
        "--task",
        "--tasks",
        "--model",
        "bert-tiny",
        "reviews.csv",
        "mine=reviews.csv:text,label",
        "mine=",
        "=",
        ":",
        "a=b:c",
    ),
    *(
        "mine=/:text,label",
        "--data",
        "--where",
        "kind=x",
        "--export",
        "all.csv",
        "all.xyz",
        "--form",
        "--mask",
        "mask.json",
    ),
    *(
        "--plan",
        "plan.toml",
        "grid.toml",
        "--list",
        "--seed",
        "9" * 30,
        "7" * 5000,
        "--size",
        "smoke",
        "--device",
        "nothing",
    ),
    *(
        "corpus.sentiment",
        "corpus.",
        "ud.x.pos",
        "ud...pos",
        "probing.x.y",
        "list",
        "show",
        "--stack",
        "runs",
        "study.json",
        "--by",
    ),
    *(
        "--alpha",
        "--steps",
        "--lr",
        "--unknown",
        "gradient",
        "[red]",
        "$HOME",
        "`id`",
        "../../x",
        "a" * 300,
        "specialization",
    ),
)
word = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(WORDS),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=6),
)


@st.composite
def commands(draw) -> list[str]:
    """A verb and words that may or may not belong to it; sweeps and recipes are listed, never run."""
    verb = draw(st.one_of(st.sampled_from(VERBS), word))
    rest = draw(st.lists(word, max_size=6))
    return [verb, *rest, *(["--list"] if verb in ("sweep", "recipe") else [])]


def typed(words: list[str]) -> tuple[int, str, str]:
    """The exit code and what was said."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["headwise", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main()
        return 0, out.getvalue(), err.getvalue()
    except SystemExit as stop:
        return int(stop.code or 0), out.getvalue(), err.getvalue()
    finally:
        sys.argv = before


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a little of everything, and nothing that takes long: training is not what is tested here."""
    monkeypatch.chdir(playground(tmp_path))
    (tmp_path / "study.json").write_bytes(STUDY)
    (tmp_path / "mask.json").write_text("[[true, false]]")
    (tmp_path / "plan.toml").write_text("steps = 1\n")
    (tmp_path / "grid.toml").write_text('work = "lesions"\n[config]\nof = "x"\n[grid]\nseed = [0, 1]\n')
    monkeypatch.setattr(
        "headwise.training.loop.fit", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt("no training"))
    )
    return tmp_path


@pytest.mark.parametrize("number", NUMBERS)
def test_anything_typed_is_answered_or_refused_in_one_line(place, number, record_property):
    cases = 0

    @settings(max_examples=number, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(commands())
    def one(words: list[str]) -> None:
        nonlocal cases
        cases += 1
        code, _, err = typed(words)
        assert "Traceback" not in err and code in (0, 1, 2, 130)
        if code:
            said = [line for line in err.splitlines() if line.startswith("headwise: ") and "note:" not in line]
            assert said, f"{words}: exit {code} without a word: {err[-500:]}"
        if code == 1:  # a failure of the world around, not of the input
            assert "Error: [Errno" in err, f"{words}: {err[-500:]}"

    one()
    record_property("cases", cases)


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "a/b", "..", "x" * 300, "none", "mean", "random 1"])
def test_a_task_is_not_named_after_a_path_or_a_row(place, name):
    code, _, err = typed(["study", "--model", "bert-tiny", "--task", f"{name}=reviews.csv:text,label"])
    assert code == 2 and "name" in err, err


def test_the_playground_is_what_the_words_need(place):
    assert typed(["tasks", "--json"])[0] == 0
    assert json.loads(typed(["heads", "bert-tiny", "--json"])[1])[0]["layers"] == 2
    assert typed(["report", "study.json"])[0] == 0
