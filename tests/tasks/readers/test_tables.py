"""Large tables as columns say the same as row by row, and leave to the row readers whatever is out of the ordinary."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from headwise.errors import HeadwiseError
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.lookup import describe, statistics
from headwise.tasks.own_files import own
from headwise.tasks.readers import tables
from headwise.tasks.readers.shape import normalized
from headwise.tasks.readers.tables import TextTable, _groups
from headwise.testing import tiny_tokenizer

PIECES = ("fine", "Fine", "film,", "«très»", "ﬁne", "don’t", '"so"', "it\nended", "ß", "!", "電影", "long " * 9)


def texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(["a", *draw.choices(PIECES, k=draw.randint(1, 5))]) for _ in range(count)]


def written(path, form: str, count: int = 300, label=lambda i: ("bad", "good")[i % 2], pair: bool = False):
    """A file of texts with labels, and maybe a second text; tab-separated values have no quotes and line breaks."""
    records = [{"text": text, "label": label(i)} for i, text in enumerate(texts(count, 1))]
    records = [{**r, "other": r["text"][::-1]} for r in records] if pair else records
    file = path / f"mine.{form}"
    if form == "jsonl":
        file.write_text("".join(f"{json.dumps(r)}\n" for r in records), encoding="utf-8")
        return file
    if form == "tsv":
        records = [{k: str(v).replace("\n", " ") for k, v in r.items()} for r in records]
    quoting = csv.QUOTE_NONE if form == "tsv" else csv.QUOTE_MINIMAL
    with file.open("w", newline="", encoding="utf-8") as opened:
        marks = {"quotechar": None} if form == "tsv" else {}
        writer = csv.DictWriter(opened, list(records[0]), delimiter=",\t"[form == "tsv"], quoting=quoting, **marks)
        writer.writeheader()
        writer.writerows(records)
    return file


@pytest.fixture
def small(monkeypatch):
    """Every file counts as large, or none."""
    return lambda as_columns: monkeypatch.setattr(tables, "LARGE", 0 if as_columns else 10**12)


CASES = {
    "csv": {},
    "tsv": {},
    "jsonl": {},
    "grades": {"label": lambda i: i % 7 + 0.5},
    "stars": {"label": lambda i: i % 5},
    "pairs": {"pair": True},
}


@pytest.mark.parametrize("case", CASES)
def test_columns_and_rows_say_the_same(case, small, tmp_path):
    for form in [case] if case in ("csv", "tsv", "jsonl") else ["csv", "jsonl"]:
        columns = "text,other,label" if case == "pairs" else "text,label"
        spec = f"mine={written(tmp_path, form, **CASES[case])}:{columns}"
        small(True)
        fast = own(spec)
        assert all(isinstance(fast.rows(split), TextTable) for split in ("train", "dev", "test")) or case == "pairs"
        small(False)
        slow = own(spec)
        assert type(slow.rows("train")) is list and (fast.kind, fast.metric) == (slow.kind, slow.metric)
        for split in ("train", "dev", "test"):
            assert list(fast.rows(split)) == slow.rows(split) and fast.rows(split)[1:3] == slow.rows(split)[1:3]
        assert statistics(fast) == statistics(slow) and describe(fast) == describe(slow)


def test_a_table_behaves_as_its_list(small, tmp_path):
    small(True)
    rows = own(f"mine={written(tmp_path, 'csv')}:text,label").rows("train")
    listed = list(rows)
    assert rows == listed and rows[-1] == listed[-1] and rows[::7] == listed[::7] and len(rows) == len(listed)
    assert rows.label_counts().total() == len(rows) and len(rows.distinct()) == 2
    with pytest.raises(IndexError):
        rows[len(rows)]
    coded = Classify(("bad", "good")).encode(rows, tiny_tokenizer(["a"]), 16)
    assert len(coded["label"]) == len(rows)


def test_the_same_texts_are_those_that_are_the_same_when_normalized():
    given = texts(2000, 3)
    found = _groups(pa.array(given)).tolist()
    numbers: dict[str, int] = {}
    assert found == [numbers.setdefault(normalized(text), len(numbers)) for text in given]
    assert _groups(pa.array(["b", *given, "b"]).slice(1, len(given))).tolist() == found  # of a part of an array


@pytest.mark.parametrize(
    "content, said",
    [
        ("text,label\nfine,good\nbad\n", r"mine.csv:3: 1 columns"),
        ('text,label\n"fine"x,good\nbad,bad\n', r"mine.csv:2: ',' expected after '\"'"),
        ("text,label\nfine,\nbad,bad\n", r"mine.csv:2: label ''"),
        ("text,label\n,good\nbad,bad\n", r"mine.csv:2: no text"),
        ("text,text\nfine,good\n", "each column once"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(content, said, small, tmp_path):
    small(True)
    (tmp_path / "mine.csv").write_text(content)
    with pytest.raises(HeadwiseError, match=said):
        own(f"mine={tmp_path}/mine.csv:text,label")


@pytest.mark.parametrize(
    "content",
    [b'text,label\na "b" c,x\nd,y\n', b"text,label\na\rb,x\nc,y\nd,x\n", b"text,label\r\na,x\r\nb,y\r\n"],
)
def test_quotes_and_line_ends_that_arrow_may_read_otherwise(content, small, tmp_path):
    (tmp_path / "mine.csv").write_bytes(content)
    read = []
    for as_columns in (True, False):
        small(as_columns)
        try:
            task = own(f"mine={tmp_path}/mine.csv:text,label")
            read.append([list(task.source.read("all"))])
        except HeadwiseError as error:
            read.append(str(error))
    assert read[0] == read[1]


def test_numbers_of_rows_are_those_of_the_whole_table():
    column, codes = pa.array(["a", "b", "c", "d"]), np.array([0, 1, 0, 1], np.int32)
    part = TextTable({"text": column}, codes, ("x", "y")).taken(np.array([1, 3])).taken(np.array([1]))
    assert list(part) == [{"text": "d", "text_b": None, "label": "y"}] and part.lengths().tolist() == [1]


def test_a_large_table_is_read_without_pandas(tmp_path):
    """Importing it takes more memory than the columns of a million rows."""
    file = tmp_path / "big.csv"
    file.write_text("text,label\n" + "".join(f"a fine film {i},{['bad', 'good'][i % 2]}\n" for i in range(200_000)))
    code = f"import sys; from headwise.tasks import own; t = own('big={file}:text,label'); t.rows('dev')[:5]; "
    code += "assert type(t.rows('dev')).__name__ == 'TextTable'; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
