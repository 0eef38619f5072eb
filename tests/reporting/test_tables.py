"""Laws of the tables: every number arrives, in every form, and markup of one form never leaks into another."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.io.text import read_cell
from headwise.reporting.tables import cells, comma_separated, latex, markdown, of

TABLE = {
    "title": "D of 50 % & more",
    "note": "α = 0.3",
    "columns": ["task_name", "D"],
    "rows": [["a|b", 7.24], ["<c>", None]],
    "published": [["a|b", 7.0], ["<c>", 5.26]],
}


def test_markdown_keeps_rows_and_escapes():
    lines = markdown(TABLE).splitlines()
    assert lines == [
        "| task_name | D |",
        "|---|---:|",
        "| a\\|b | 7.24 (7.00) |",
        "| &lt;c> | – (5.26) |",
    ]


def test_a_formula_does_not_read_as_a_link():
    assert r"C[N+]\(=O)[O-]" in markdown({"columns": ["smiles"], "rows": [["C[N+](=O)[O-]"]]})


def test_latex_is_booktabs_and_escapes():
    text = latex(TABLE)
    assert r"\caption{D of 50 \% \& more. $\alpha$ = 0.3.}" in text
    assert r"task\_name & D \\" in text and r"a|b & 7.24 (7.00) \\" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert r"\begin{tabular}{lr}" in text


def test_csv_has_published_numbers_in_a_column_of_their_own():
    assert list(csv.reader(io.StringIO(comma_separated(TABLE)))) == [
        ["task_name", "D", "D (published)"],
        ["a|b", "7.24", "7.0"],
        ["<c>", "", "5.26"],
    ]


CELLS = st.text(max_size=8) | st.text(st.sampled_from("'=+-@\t\n\r1.e"), max_size=8)


@given(st.lists(st.tuples(CELLS, st.floats(-1e6, 1e6)), min_size=1, max_size=5))
def test_csv_loses_nothing_and_runs_nothing(rows):
    table = {"columns": ["name", "value"], "rows": [list(row) for row in rows]}
    back = list(csv.reader(io.StringIO(comma_separated(table), newline="")))[1:]
    assert [(read_cell(name), float(value)) for name, value in back] == rows
    for name, _ in back:
        number = name[:1] in "+-" and name[1:].strip("0123456789.e+-") == ""
        assert number or not name.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


FORMULAS = ['=HYPERLINK("http://x", "y")', "@SUM(A1)", "+1+1", "-1+1", "\t=1", "\r=1", "'=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_a_spreadsheet_would_run_is_text(text):
    written = comma_separated({"columns": [text, "D"], "rows": [[text, -0.5], ["-0.5", "+ dropout off"]]})
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert rows == [[f"'{text}", "D"], [f"'{text}", "-0.5"], ["-0.5", "'+ dropout off"]]
    assert [read_cell(cell) for cell in rows[1]] == [text, "-0.5"]


@pytest.mark.parametrize("text", ["a\nb", "[1ex] wide", "* first", "a\r\n\r\nb", "a\u2028b", "]"])
def test_latex_rows_are_one_line_and_no_options_of_the_line_before(text):
    table = latex({"title": text, "note": text, "columns": [text, "x"], "rows": [[text, text], [text, 1.0]]})
    rows = [line.strip() for line in table.splitlines() if line.endswith("\\\\")]
    assert len(rows) == 3 and len(table.splitlines()) == 12
    assert not any(row.startswith(("[", "*")) for row in rows)
    assert not re.search(r"(\\\\|rule)\s*[\[*]", table)


@given(st.text(st.sampled_from("\\&%$#_{}~^<>a"), min_size=1, max_size=12))
def test_latex_leaves_no_bare_special_character(text):
    row = latex({"columns": ["x"], "rows": [[text]]}).split("\\midrule\n")[1].split("\\\\\n")[0]
    for command in (
        r"\textbackslash{}",
        r"\textasciitilde{}",
        r"\textasciicircum{}",
        r"\textless{}",
        r"\textgreater{}",
    ):
        row = row.replace(command, "")
    for character in "&%$#_{}":
        row = row.replace("\\" + character, "")
    assert not set(row) & set("\\&%$#_{}~^<>")


def test_a_study_gives_its_tables_and_its_numbers(study):
    titles = [table["title"] for table in of(study, fraction=0.21)]
    assert [title.split(",")[0] for title in titles] == [
        "Performance under lesions",
        "Relative performance under lesions",
        "Change under lesions",
        "Dissociation per task",
        "Dissociation per pair",
        "IAT against plain training",
        "Pruning heads",
        "Pruning 20% of heads",
        "Dissociation per task",
    ]
    lesions = next(table for table in of(study, fraction=0.21) if table["title"].startswith("Performance"))
    assert lesions["title"].endswith("α = 0.2")
    performance = study["dissociation"]["performance"][2][1]
    assert lesions["columns"][-1] == "random" and "20 random head sets" in lesions["note"]
    assert lesions["rows"][1][1:] == pytest.approx([*performance[:5], performance[5:].mean()])


def test_every_p_has_its_null_and_older_studies_only_that_over_rows(study):
    def note(part):
        return next(t for t in of(study | {"dissociation": part}) if t["title"].startswith("Dissociation per pair"))

    tested, older = study["dissociation"], study["dissociation"] | {"null": None}
    assert note(tested)["columns"][-3:] == ["p", "p (layers matched)", "p (rows)"]
    assert note(older)["columns"][-1] == "p (rows)" and "random" not in note(older)["note"]


def test_d_in_the_table_follows_from_the_relative_performances(study):
    tables = of(study)
    ratios = next(t for t in tables if t["title"].startswith("Relative"))["rows"]
    d = next(t for t in tables if t["title"].startswith("Dissociation per task, "))["rows"]
    own = [row[2 + i] for i, row in enumerate(ratios)]
    others = [sum(row[2 : 2 + len(ratios)]) - own[i] for i, row in enumerate(ratios)]
    assert [row[1] for row in d[:-1]] == pytest.approx([o / (len(ratios) - 1) - s for o, s in zip(others, own)])


def test_rows_of_another_length_are_refused():
    with pytest.raises(HeadwiseError, match="another length"):
        markdown({"columns": ["a", "b"], "rows": [[1]]})


def test_a_small_chance_is_not_shown_as_none():
    table = {"columns": ["p", "p (Holm)", "points"], "rows": [[0.0004, 0.02, 0.0004], [0.0, None, 0.5]]}
    assert cells(table) == [["< 0.001", "0.020", "0.000"], ["< 0.001", "–", "0.500"]]
    assert "0.0004,0.02,0.0004" in comma_separated(table), "csv has the number itself"
    assert "&lt; 0.001" in markdown(table) and r"\textless{} 0.001" in latex(table)
