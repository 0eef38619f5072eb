"""`headwise roles`: a table, data and files that agree, and what is refused before any work."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from headwise.atlas.result import from_record
from headwise.cli import app
from headwise.errors import HeadwiseError
from headwise.io.files import write_arrays
from headwise.testing import playground, tiny, tiny_tokenizer


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
    roles = from_record(json.loads((tmp_path / "out" / "roles.json").read_text())["bert-tiny"])
    assert (
        set(roles.names) >= {"previous", "induction", "focus"}
        and roles.top("previous", 2)[0]["head"] == rows[0]["head"]
    )


def test_two_models_make_one_page_with_what_tasks_need(run, tmp_path):
    """Of two random models, one beside the other; the scores are those of a file of `headwise importance`."""
    tiny("bert", seed=1).save_pretrained(tmp_path / "tuned")
    tiny_tokenizer(["the", "film", "number", "is", "fine"]).save_pretrained(tmp_path / "tuned")
    write_arrays(tmp_path / "scores.safetensors", {"sst2": np.arange(8.0).reshape(2, 4)}, {"by": "gradient"})
    (tmp_path / "probes.json").write_text(json.dumps({"tense": {"accuracy": np.arange(8.0).reshape(2, 4).tolist()}}))
    known = "--needs scores.safetensors --encodes probes.json"
    shown = run(f"--texts texts.txt --against tuned {known} --page atlas.html --out out")
    assert "tuned" in shown.output and "atlas.html" in shown.output.replace("\n", "")
    record = json.loads((tmp_path / "out" / "atlas.json").read_text())
    assert [model["name"] for model in record["models"]] == ["bert-tiny", "tuned"]
    assert record["models"][0]["heads"][-1]["encodes"] == {"tense": 7.0}
    assert record["models"][0]["heads"][-1]["needed"] == ["sst2"] and record["models"][1]["tasks"] == []
    assert "bert-tiny" in (tmp_path / "atlas.html").read_text()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--texts texts.txt --task corpus.dep", "one of them"),
        ("--texts nothing.txt", "no file nothing.txt"),
        ("--texts texts.txt --encodes nothing", "no probes.json in nothing"),
        ("--texts texts.txt --role previuos", "unknown role 'previuos'"),
        ("--texts texts.txt --by atention", "unknown way to measure roles 'atention'"),
    ],
)
def test_what_makes_no_sense_is_refused(run, line, why):
    with pytest.raises(HeadwiseError, match=why):
        run(line)


def test_a_task_may_be_a_file(run):
    rows = json.loads(run("--task reviews=reviews.csv:text,label --examples 30 --role previous --json").output)
    assert rows[0]["texts"] == 30
