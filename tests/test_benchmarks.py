"""The benchmarks' page says what the saved tables say, and no row compares ways that do different work."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.heads.cutting import prune
from headwise.probing.fitting import Labels, Vectors

ROOT = Path(__file__).parent.parent
SAVED = {file.stem: json.loads(file.read_text()) for file in sorted((ROOT / "docs" / "benchmarks").glob("*.json"))}
ROWS = [row for found in SAVED.values() for rows in found["tables"].values() for row in rows]
COMPARED = [row for row in ROWS if row.get("same")]


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def program(name: str):
    return importlib.import_module(name)


@pytest.fixture
def run():
    return program("run")


def test_the_page_is_written_from_the_saved_tables(run):
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert run.page() == text, "run: python benchmarks/run.py --page"
    assert "| training |" in text and "| importance |" in text


@pytest.mark.parametrize(
    "ratio, goal, met",
    [(2.0, "<= 2.25", True), (2.3, "<= 2.25", False), (61, ">= 60", True), (59, "≥ 60", False), (0.9, 1.0, True)],
)
def test_a_goal_is_met_or_not(run, ratio, goal, met):
    assert run.met({"ratio": ratio, "goal": goal}) is met and run.met({"ratio": ratio, "goal": ""}) is None


def test_a_saved_file_keeps_what_was_not_run_again(run, tmp_path):
    file = tmp_path / "cores.json"
    run.saved(file, "cores", {"a": [{"what": "x", "ratio": 1.0, "met": None}], "b": []})
    run.saved(file, "cores", {"b": [{"what": "y", "ratio": 2.0, "met": True}]})
    text = run.markdown(run.json.loads(file.read_text()))
    assert "| a | x | 1 |" in text and "| b | y | 2 |" in text and "met" in text


def test_withdrawn_rows_are_listed_with_their_reason_and_without_a_number(run):
    rows = [{"what": "captum / importance", "withdrawn": "scores differ"}]
    text = run.markdown({"machine": "m", "tables": {"peers": rows}})
    assert "- peers, *captum / importance*: scores differ" in text and "| peers |" not in text


# -- what a row must prove


@pytest.mark.parametrize("row", ROWS, ids=[row["what"] for row in ROWS])
def test_no_saved_row_compares_without_proof(row):
    assert program("comparing").faults(row) == []


@pytest.mark.parametrize("row", COMPARED, ids=[row["what"] for row in COMPARED])
def test_a_saved_comparison_without_its_proof_or_version_is_refused(row):
    faults = program("comparing").faults
    if " / " in row["what"] or "peer" in row:
        assert faults({**row, "same": []})
    if "peer" in row:
        assert faults({k: v for k, v in row.items() if k != "peer"}) and faults({**row, "peer": "other 1.0"})


@pytest.mark.parametrize(
    "row",
    [
        {"what": "captum / importance", "ratio": 1.0},
        {"what": "captum / importance", "ratio": 1.0, "same": ["scores"]},
        {"what": "captum / importance", "ratio": 1.0, "peer": "captum 0.9.0"},
        {"what": "captum / importance", "ratio": 1.0, "peer": "captum 0.9.0", "unchecked": True},
        {"what": "onnxruntime: speed", "ratio": 1.0, "same": ["answers"]},
        {"what": "one way / another", "ratio": 1.0},
        {"what": "one way / another", "withdrawn": ""},
    ],
)
def test_a_row_without_proof_is_refused(row):
    assert program("comparing").faults(row)


def test_a_program_cannot_make_a_row_without_proof():
    comparing = program("comparing")
    with pytest.raises(comparing.UnequalWork, match="without proof"):
        comparing.row("captum / importance", 2.0)
    row = comparing.row("captum / importance", 2.0, same=[comparing.equal("heads", 3, 3)], peer="captum")
    assert row["same"] == ["heads: 3"] and row["peer"].startswith("captum ")


@pytest.mark.parametrize(
    "ours, theirs", [(3, 4), (1.0, float("nan")), (torch.ones(2), torch.ones(3)), (torch.ones(2), torch.zeros(2))]
)
def test_unequal_sides_stop_a_benchmark(ours, theirs):
    comparing = program("comparing")
    with pytest.raises(comparing.UnequalWork):
        comparing.equal("scores", ours, theirs, 1e-3)


def test_the_versions_of_other_software_are_those_installed(run, monkeypatch):
    monkeypatch.setattr(run.subprocess, "run", _writes([{"what": "captum / importance", "ratio": 1.0}]))
    (row,) = run.table_of("peers", "tiny")
    assert "FAILED" in row["skipped"] and "without proof" in row["skipped"]


def _writes(rows):
    """A benchmark that leaves these rows."""

    def done(command, **options):
        Path(command[-1]).write_text(json.dumps(rows))
        return type("Done", (), {"returncode": 0})

    return done


# -- the comparisons themselves


def test_captum_is_timed_only_where_its_scores_are_ours(monkeypatch):
    pytest.importorskip("captum")
    peers, comparing = program("peers"), program("comparing")
    rows = peers.rows_of("tiny")
    assert all("captum" in row["peer"] and len(row["same"]) == 2 for row in rows)
    right = peers.by_captum
    monkeypatch.setattr(peers, "by_captum", lambda *args: 1.1 * right(*args))
    with pytest.raises(comparing.UnequalWork, match="scores"):
        peers.rows_of("tiny")


def test_a_model_that_was_not_cut_is_no_peer_of_one_that_was():
    cutting, comparing = program("cutting"), program("comparing")
    model, inputs = _small(cutting)
    ours = prune(_small(cutting)[0], cutting.mask_of(model, 0.5))
    with pytest.raises(comparing.UnequalWork, match="parameters left"):
        cutting.same_model(ours, model, inputs)
    again = prune(_small(cutting)[0], cutting.mask_of(model, 0.5))
    assert "equal" in cutting.same_model(ours, again, inputs)[1]


def test_the_ceiling_counts_the_products_of_queries_and_keys():
    cutting = program("cutting")
    model, inputs = _small(cutting)
    fused = cutting.operations(model, inputs)
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    assert cutting.operations(model, inputs) == fused
    per_token = 2 * 6 * 12 * 384**2 + 2 * 6 * 2 * 8 * 384  # weights of six layers, and two products with eight words
    assert fused == pytest.approx(8 * per_token, rel=0.01)


def _small(cutting):
    torch.manual_seed(0)
    size = cutting.SIZES["tiny"]
    inputs = {"input_ids": torch.randint(0, 1000, (size.batch, size.length))}
    return cutting.build(size), {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}


def test_a_probe_that_stops_short_of_the_optimum_is_not_timed(monkeypatch):
    probing = program("probing")
    vectors, labels = _separable()
    settings = {
        "newton-cholesky": (np.float64, {"solver": "newton-cholesky"}),
        "lbfgs, tol 1": (np.float64, {"solver": "lbfgs", "tol": 1.0}),
    }
    monkeypatch.setattr(probing, "SETTINGS", settings)
    best = probing.objectives(probing.ours(vectors, labels), vectors, labels)
    same, took = probing.reached_by(vectors, labels, best)
    assert [*same] == [*took] == ["newton-cholesky"]


def _separable() -> tuple[Vectors, Labels]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 120, 5, generator=generator)
    y = (x[0, :, 0] + 0.5 * torch.randn(120, generator=generator) > 0).long().numpy()
    return Vectors(x[:, :80], x[:, 80:], x[:, 80:]), Labels(y[:80], y[80:], y[80:], 2)


@pytest.mark.parametrize("name", ["CKY", "Eisner", "inside-outside (span probabilities)", "Chu-Liu/Edmonds"])
def test_parsers_are_compared_on_the_same_scores(name):
    rows = program("parsing").parser_rows(name, np.array([3, 7, 1, 5] * 6), 1, "cpu")
    assert rows[0]["same"] and " / " in rows[0]["what"]
