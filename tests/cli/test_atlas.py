"""`headwise roles`: a table, data and files that agree, and what is refused before any work."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

from headwise.cli import app
from headwise.errors import HeadwiseError
from headwise.testing import playground


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(playground(tmp_path))
    (tmp_path / "texts.txt").write_text("\n".join(f"the film number {n} is fine" for n in range(30)))
    return lambda line: CliRunner().invoke(app, ["roles", "bert-tiny", *line.split()], catch_exceptions=False)


def test_table_data_and_files_agree(run, tmp_path):
    shown = run("--texts texts.txt --role previous --top 2 --out out")
    assert shown.exit_code == 0 and "previous" in shown.output and "next" not in shown.output
    rows = json.loads(run("--texts texts.txt --role previous --top 2 --json").output)
    assert [row["role"] for row in rows] == ["previous", "previous"] and rows[0]["texts"] == 30
    with (tmp_path / "out" / "roles.csv").open() as file:
        written = {(row["role"], f"{row['layer']}.{row['head']}"): float(row["score"]) for row in csv.DictReader(file)}
    for row in rows:
        assert written["previous", row["head"]] == pytest.approx(row["score"])
    assert set(json.loads((tmp_path / "out" / "roles.json").read_text())["names"]) >= {"previous", "induction"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--texts texts.txt --task corpus.dep", "one of them"),
        ("--texts nothing.txt", "no file nothing.txt"),
        ("--texts texts.txt --role previuos", "unknown role 'previuos'"),
    ],
)
def test_what_makes_no_sense_is_refused(run, line, why):
    with pytest.raises(HeadwiseError, match=why):
        run(line)
