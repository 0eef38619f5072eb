"""TOML: what is written is read back; mistakes name the file and show a line."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.io.text import FORMULAS, csv_text, read_cell, read_toml, to_toml

scalars = st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
names = st.text("abcdefgh_", min_size=1, max_size=6)


@given(values=st.dictionaries(names, scalars | st.lists(scalars, max_size=3), max_size=4), table=st.booleans())
def test_what_is_written_is_read_back(tmp_path_factory, values, table):
    path = tmp_path_factory.mktemp("toml") / "values.toml"
    values = {**values, "table": dict(values)} if table else values
    path.write_bytes(to_toml({**values, "nothing": None}).encode())
    assert read_toml(path, "plan", "lr = 1") == values


@pytest.mark.parametrize(("text", "words"), [(None, "no plan at"), ("lr = = 1", "not TOML.*lines such as: lr = 1")])
def test_mistakes_are_named(tmp_path, text, words):
    path = tmp_path / "plan.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(HeadwiseError, match=words):
        read_toml(path, "plan", "lr = 1")


texts = st.text(st.sampled_from("=+-@'\t a1.e\",;"), max_size=6)


@given(st.lists(texts, min_size=1, max_size=4))
def test_cells_come_back_and_none_runs(cells):
    row = next(csv.reader(io.StringIO(csv_text([cells]), newline="")))
    assert [read_cell(cell) for cell in row] == cells
    numbers = [cell for cell in row if cell.startswith(FORMULAS)]
    assert all(float(cell) is not None for cell in numbers), "what starts like a formula is a number"


@pytest.mark.parametrize("value", ["-0.5", "+3", "1e-5", -0.5, 7])
def test_numbers_stay_numbers(value):
    assert csv_text([[value]]) == f"{value}\r\n"
