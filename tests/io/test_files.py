"""Nothing half written, and the same content under the same name."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.io.files import (
    digest,
    finite,
    folder,
    locked,
    read_arrays,
    read_json,
    require_replaceable,
    write,
    write_arrays,
    write_json,
)
from headwise.io.text import FORMULAS, csv_text, read_cell, read_toml, to_toml

texts = st.text(max_size=8) | st.sampled_from(
    ["[\n 1,\n 2\n]", ",\n  ", "[1, 2]", "]\n", "a,\nb"]
)  # as JSON breaks lines
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(plain_values)
def test_json_round_trip(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "a.json"
    write_json(path, value)
    assert read_json(path) == value


@given(plain_values)
def test_finite_changes_nothing_but_what_is_no_number(value):
    cut = finite([value, float("nan"), {"a": (np.float32("inf"), 0.1)}])
    assert json.loads(json.dumps(cut, allow_nan=False)) == cut
    assert cut[1:] == [None, {"a": [None, 0.1]}]
    assert "inf" in repr(value) or cut[0] == value


@given(plain_values, plain_values)
def test_a_hash_is_of_the_content(a, b):
    assert digest(a) == digest(a)
    assert (digest(a) == digest(b)) == (repr(a) == repr(b)) or a == b


def test_a_hash_sees_values_order_and_type():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert len({digest(x) for x in ([1, 2], [2, 1], {"1": 2}, "12", 12, np.array([1, 2]), np.array([1.0, 2.0]))}) == 7
    with pytest.raises(HeadwiseError, match="cannot be stored"):
        digest(object())


def test_what_stands_beside_arrays_is_checked_with_them(tmp_path):
    path = write_arrays(tmp_path / "x.safetensors", {"a": np.arange(3)}, {"stderr": "[0.125]"})
    assert read_arrays(path)[1] == {"stderr": "[0.125]"}
    path.write_bytes(path.read_bytes().replace(b"0.125", b"0.025"))
    with pytest.raises(HeadwiseError, match="modified after it was written"):
        read_arrays(path)


def test_arrays_round_trip(tmp_path):
    arrays = {"a": np.arange(6).reshape(2, 3)[:, ::2], "b": np.ones(0, np.float32)}
    write_arrays(tmp_path / "x.safetensors", arrays, {"by": "me"})
    found, about = read_arrays(tmp_path / "x.safetensors")
    assert all(np.array_equal(arrays[k], found[k]) for k in arrays) and about == {"by": "me"}


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff" * 100])
def test_foreign_files_are_refused_in_one_line(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(HeadwiseError):
        read_arrays(tmp_path / "x")
    with pytest.raises(HeadwiseError):
        read_json(tmp_path / "x")
    with pytest.raises(HeadwiseError, match="no file"):
        read_json(tmp_path / "absent")


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(ZeroDivisionError), folder(tmp_path / "a") as scratch:
        (scratch / "half").write_text("x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with folder(tmp_path / "a") as scratch:
        (scratch / "whole").write_text("x")
    with pytest.raises(HeadwiseError, match="already exists"), folder(tmp_path / "a"):
        pass
    with folder(tmp_path / "a", replace=True) as scratch:
        (scratch / "new").write_text("y")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["new"] and len(list(tmp_path.iterdir())) == 1


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_fields_of_three_levels_are_lines_and_what_is_deeper_is_in_them(tmp_path):
    deep = {"b": {"c": {"d": {"low": -1e-05, "high": None}}}, "rows": [[1, 2.5], [3, None]]}
    path = write_json(tmp_path / "a.json", {"a": deep, "words": ["ä", "[b]"], "none": [], "nothing": {}})
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[:4] == ["{", ' "a": {', '  "b": {', '   "c": {"d":{"low":-1e-05,"high":null}}']
    assert lines[4:9] == ["  },", '  "rows": [', "   [1,2.5],", "   [3,null]", "  ]"]
    assert lines[9:-3] == [" },", ' "words": ["ä","[b]"],']
    assert lines[-3:] == [' "none": [],', ' "nothing": {}', "}"]


# -- links


@pytest.mark.parametrize("before", ["full", "empty", "dangling"])
def test_a_folder_that_is_a_link_is_replaced_where_it_leads(tmp_path, before):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").mkdir()
    target, link = tmp_path / "disk/model", tmp_path / "out/model"
    if before != "dangling":
        target.mkdir()
    if before == "full":
        (target / "old").write_text("old")
    link.symlink_to(target)
    require_replaceable(link)
    with folder(link, replace=True) as scratch:
        (scratch / "new").write_text("new")
    assert link.is_symlink() and [file.name for file in target.iterdir()] == ["new"]
    assert not [file for place in ("disk", "out") for file in (tmp_path / place).iterdir() if file.name != "model"]


@pytest.mark.parametrize("link", [False, True])
def test_a_file_where_a_folder_is_to_be_is_refused(tmp_path, link):
    (tmp_path / "file").write_text("mine")
    if link:
        (tmp_path / "model").symlink_to(tmp_path / "file")
    with pytest.raises(HeadwiseError, match="is a file"):
        require_replaceable(tmp_path / ("model" if link else "file"))


# -- locks


@pytest.fixture
def lockless(monkeypatch, tmp_path):
    """The file system of ``tmp_path / "share"`` has no locks, nor has the temporary folder where it is asked for."""
    flock, without = fcntl.flock, ["share"]

    def refusing(descriptor, operation):
        place = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if any(f"{tmp_path}/{name}" in place for name in without):
            raise OSError(number, os.strerror(number))
        return flock(descriptor, operation)

    (tmp_path / "share").mkdir()
    (tmp_path / "local").mkdir()
    monkeypatch.setattr("fcntl.flock", refusing)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "local"))
    number = errno.ENOLCK

    def choose(code, *more):
        nonlocal number
        number = code
        without.extend(more)

    return choose


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_without_file_locks_processes_of_one_machine_still_wait_for_each_other(tmp_path, lockless, code):
    lockless(code)
    for path in (tmp_path / "share", tmp_path / "share/a.lock"):
        with pytest.warns(HeadwiseWarning, match="cannot be locked on its file system"), locked(path):
            with pytest.raises(BlockingIOError), locked(path, wait=False):
                pass
            with pytest.warns(HeadwiseWarning), locked(tmp_path / "share/other", wait=False):
                pass
        with pytest.warns(HeadwiseWarning), locked(path, wait=False):
            pass


def test_without_any_file_locks_an_error_says_what_to_do(tmp_path, lockless):
    lockless(errno.ENOLCK, "local")
    with pytest.raises(HeadwiseError, match=r"no file locks.*TMPDIR"), locked(tmp_path / "share/a.lock"):
        pass


def test_other_failures_of_locks_are_not_hidden(tmp_path, lockless):
    lockless(errno.EIO)
    with pytest.raises(OSError, match="Input/output"), locked(tmp_path / "share/a.lock"):
        pass


# -- toml: what is written is read back; mistakes name the file and show a line

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


cells = st.text(st.sampled_from("=+-@'\t a1.e\",;"), max_size=6)


@given(st.lists(cells, min_size=1, max_size=4))
def test_cells_come_back_and_none_runs(cells):
    row = next(csv.reader(io.StringIO(csv_text([cells]), newline="")))
    assert [read_cell(cell) for cell in row] == cells
    numbers = [cell for cell in row if cell.startswith(FORMULAS)]
    assert all(float(cell) is not None for cell in numbers), "what starts like a formula is a number"


@pytest.mark.parametrize("value", ["-0.5", "+3", "1e-5", -0.5, 7])
def test_numbers_stay_numbers(value):
    assert csv_text([[value]]) == f"{value}\r\n"
