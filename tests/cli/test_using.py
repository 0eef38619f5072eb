"""`headwise lab`: what is typed reaches the server, and what cannot be opened is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwise.cli.app import app
from headwise.errors import HeadwiseError
from headwise.testing import toy_language_model


@pytest.fixture
def served(monkeypatch, tmp_path):
    """Runs the verb with a server that only notes what it was given."""
    lm = toy_language_model("llama")
    lm.model.save_pretrained(tmp_path / "lm"), lm.tokenizer.save_pretrained(tmp_path / "lm")
    monkeypatch.chdir(tmp_path)
    given: list = []
    monkeypatch.setattr("headwise.lab.server.serve", lambda *arguments: given.extend(arguments))

    def run(line: str) -> list:
        done = CliRunner().invoke(app, ["lab", *line.split()])
        if done.exception:
            raise done.exception
        return given

    return run


def test_options_reach_the_server(served):
    opened, host, port, browser, _ = served("lm --port 0 --host ::1 --no-browser --exports cuts")
    assert (host, port, browser) == ("::1", 0, False)
    assert opened.folder == Path("cuts") and opened.name == "lm" and not opened.subject.tasks


@pytest.mark.parametrize("line", ["nowhere", "lm --tasks corpus.topic", "lm --scores none.json", "lm --static site"])
def test_what_cannot_be_opened_is_refused(served, line):
    with pytest.raises(HeadwiseError):
        served(line)
