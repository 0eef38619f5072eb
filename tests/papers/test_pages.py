"""The page of a recipe: what it says first, and one file for each table and figure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.errors import HeadwiseError
from headwise.io.records import Results
from headwise.papers.message import Claim, drawn, in_short, row
from headwise.papers.pages import UNKNOWN, file_name, known, pages, provenance
from headwise.papers.recipe import Part

LONG = "A factor per head and task, faster: direct comparisons"


def written(tmp_path, *titles, figures=()):
    """The files of a page whose tables have these titles."""
    results = Results(tmp_path / "records")
    results.save("kind", {"a": 1}, {})
    parts = [Part(title, tables=[{"title": title, "columns": ["x"], "rows": [[1]]}]) for title in titles]
    parts += [Part(name, figures={name: lambda: pytest.fail("drawn")}) for name in figures]
    recipe = SimpleNamespace(name="mine", title="Mine", paper="", parts=lambda results: parts)
    pages(recipe, results, tmp_path / "out", tables_out=tmp_path / "tables")
    assert sorted(path.stem for path in (tmp_path / "tables").glob("*.tex")) == sorted(
        path.stem for path in (tmp_path / "tables").glob("*.csv")
    )
    return sorted(path.name for path in (tmp_path / "tables").glob("*.csv"))


def test_long_titles_that_differ_at_their_end_are_files_of_their_own(tmp_path):
    titles = [f"{LONG}, {model}" for model in ("minilm-l6", "minilm-l12", "gte-small")]
    assert len(written(tmp_path, *titles)) == 3
    longer = [f"{'word ' * 40}{end}" for end in "ab"]
    names = {file_name(title) for title in longer}
    assert len(names) == 2 and max(map(len, names)) <= 100


def test_names_of_files_are_ascii(tmp_path):
    assert written(tmp_path, "IAT by δ with α = 0.5, café", "模型 a", "模型 b") == sorted(
        ["iat-by-delta-with-alpha-0-5-cafe.csv", "a.csv", "b.csv"]
    )
    assert file_name("模型").isascii() and file_name("模型") != file_name("结果")


@pytest.mark.parametrize("titles", [("D, minilm", "D: minilm"), ("D", "d"), ("D", "D")])
def test_two_tables_of_one_file_are_an_error(tmp_path, titles):
    with pytest.raises(HeadwiseError, match="would be one file"):
        written(tmp_path, *titles)
    assert not (tmp_path / "out").exists() and not (tmp_path / "tables").exists()


def test_a_file_begins_with_its_model():
    models = ["minilm-l12", "minilm-l6", "bert"]
    assert file_name("D of pairs, minilm-l6, frozen", models) == "minilm-l6-d-of-pairs-frozen"
    assert file_name("layers bert", models) == "bert-layers"
    assert file_name("layers of albert", models) == "layers-of-albert"


def test_two_figures_of_one_file_are_an_error(tmp_path):
    with pytest.raises(HeadwiseError, match="would be one file"):
        written(tmp_path, figures=("layers a", "layers-a"))


RECORDS = Path(__file__).parents[2] / "results"


def rows(config: dict, tmp_path: Path) -> dict[str, list[list[str]]]:
    results = Results(tmp_path)
    results.save("train", config, {})
    return {t["title"]: t["rows"] for t in provenance(results).tables}


def test_a_sample_is_named_and_another_copy_is_not(tmp_path):
    mine = known()["data"]["qnli"]
    found = rows({"tasks": {"qnli": mine["hashes"][0]}, "model": "m", "weights": "0"}, tmp_path / "a")
    assert found["Data"] == [["qnli", mine["source"], mine["rows"]]] and "not GLUE's" in mine["rows"]
    assert found["Weights"] == [["m", UNKNOWN, UNKNOWN]]
    assert rows({"tasks": {"qnli": "another"}}, tmp_path / "b")["Data"] == [["qnli", UNKNOWN, UNKNOWN]]


def test_data_deep_in_a_config_count(tmp_path):
    found = rows({"training": {"tasks": {"a": "1"}, "model": "m", "weights": "2"}, "task": "b", "data": "3"}, tmp_path)
    assert [row[0] for row in found["Data"]] == ["a", "b"] and found["Weights"][0][0] == "m"


def test_a_model_measured_as_it_is_counts_with_its_tasks(tmp_path):
    found = rows({"model": "m", "of": {"model": "1", "data": {"sst2": "2"}}}, tmp_path)
    assert found["Data"][0][0] == "sst2" and found["Weights"][0][0] == "m"


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.parquet")), ids=lambda path: path.stem)
def test_all_published_records_are_described(path):
    for made in provenance(Results(path)).tables:
        assert not [row for row in made["rows"] if UNKNOWN in row], made["title"]


# -- what a page says first: numbers with intervals, in a table and in a figure, or nothing


def test_rows_hold_means_with_students_interval():
    (found,) = row("trained", "measured", [1.0, 2.0, 3.0, None, float("nan")], "seeds")
    assert found.value == 2.0 and found.n == "3 seeds"
    assert found.low == pytest.approx(2 - 4.303 / 3**0.5, abs=1e-3) and found.high == pytest.approx(4 - found.low)
    assert row("nothing", "measured", []) == [] and row("one", "measured", [1.0])[0].low is None


def test_claims_without_numbers_are_not_said():
    kept = Claim("Heads differ.", "D", row("trained", "measured", [1.0, 2.0]))
    part = in_short([Claim("Nothing was run.", "D", []), None, kept])
    assert part.text == "1. Heads differ." and len(part.tables[0]["rows"]) == 1
    assert not in_short([None]).tables and not in_short([]).figures


def test_every_claim_has_a_panel_with_a_named_axis():
    pytest.importorskip("matplotlib")
    rows = [
        *row("ours", "measured", [1.0, 2.0]),
        *row("plain", "baseline", [0.5]),
        *row("random", "control", [0.1, 0.2]),
    ]
    figure = drawn([Claim("One.", "points", rows), Claim("Two.", "D, percent", rows[:1], None)])
    assert [axis.get_xlabel() for axis in figure.axes] == ["points", "D, percent"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["ours", "plain", "random"]
