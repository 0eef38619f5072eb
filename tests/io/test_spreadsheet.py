"""Cells never run as formulas in a spreadsheet and come back as they were."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.io.spreadsheet import FORMULAS, csv_text, read_cell

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
