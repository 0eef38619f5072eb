"""Formats: what is written and read again is the same; what is broken is told with file and line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.tasks.readers import brackets
from headwise.tasks.readers.formats import formats

few = settings(max_examples=25, deadline=None)
SPACES = ("Cc", "Cs", "Zs", "Zl", "Zp")
word = st.text(st.characters(exclude_categories=SPACES, exclude_characters="\ufeff"), min_size=1, max_size=8)
words = st.lists(word, min_size=1, max_size=7)
line = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff"), max_size=20)
anything = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
tag = st.sampled_from(["NN", "VBZ", "DT", "-LRB-", ",", "X"])
entity = st.sampled_from(["PER", "LOC"])


def again(name: str, records: list[dict], file: str = "file.txt", reading: dict | None = None, **writing) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        path = formats[name].write(Path(folder) / file, records, **writing)
        return [record for _, record in formats[name].read(path, **(reading or {}))]


def many(record: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(record, min_size=1, max_size=4)


@st.composite
def entity_tags(draw, size: int) -> list[str]:
    tags: list[str] = []
    while len(tags) < size:
        if draw(st.booleans()):
            label, length = draw(entity), draw(st.integers(1, size - len(tags)))
            tags += [f"B-{label}"] + [f"I-{label}"] * (length - 1)
        else:
            tags.append("O")
    return tags


@st.composite
def node(draw, leaves: list[brackets.Node]) -> brackets.Node:
    """A bracket over some leaves: cut in one to three parts, each a bracket or a leaf."""
    cuts = sorted(draw(st.sets(st.integers(1, len(leaves) - 1), max_size=2))) if len(leaves) > 1 else []
    parts = [leaves[a:b] for a, b in zip([0, *cuts], [*cuts, len(leaves)])]
    done = all(len(part) == 1 for part in parts) or len(parts) == 1
    below = [part if done or len(part) == 1 else [draw(node(part))] for part in parts]
    return brackets.Node(draw(st.sampled_from(["S", "NP", "VP"])), tuple(child for part in below for child in part))


@st.composite
def tree(draw, found: list[str], tags: list[str]) -> str:
    leaves = [brackets.Node(t, (), brackets.escape(w)) for w, t in zip(found, tags)]
    return brackets.write(brackets.Node("TOP", (draw(node(leaves)),)))


@st.composite
def frame(draw, size: int, predicate: int) -> dict:
    cuts = sorted(draw(st.sets(st.integers(0, size), max_size=4)))
    spans = [(a, b) for a, b in zip(cuts[::2], cuts[1::2]) if not a <= predicate < b]
    roles = st.sampled_from(["ARG0", "ARG1", "ARGM-TMP"])
    arguments = [[a, b, draw(roles)] for a, b in spans]
    return {"predicate": predicate, "roleset": "run.01", "arguments": arguments}


@st.composite
def annotated(draw) -> dict:
    """A sentence with everything that CoNLL-2012 holds."""
    found = draw(words.filter(lambda found: all(brackets.unescape(w) == w for w in found)))  # "-LRB-" stands for "("
    tags = [draw(tag) for _ in found]
    predicates = sorted(draw(st.sets(st.integers(0, len(found) - 1), max_size=2)))
    return {
        "words": found,
        "xpos": tags,
        "tree": draw(tree(found, tags)),
        "ner": draw(entity_tags(len(found))),
        "frames": [draw(frame(len(found), at)) for at in predicates],
    }


@st.composite
def question(draw) -> dict:
    context = draw(anything.filter(bool))
    starts = draw(st.lists(st.integers(0, len(context) - 1), max_size=3))
    answers = [context[start : start + draw(st.integers(1, 5))] for start in starts]
    base = {"id": draw(word), "question": draw(anything), "context": context, "title": draw(st.none() | word)}
    return base | {"answers": answers, "starts": starts}


@few
@given(many(st.fixed_dictionaries({"text": line, "label": line})), st.sampled_from([None, ("text", "label")]))
def test_tsv_round_trip(records, header):
    assert again("tsv", records, header=header, reading={"header": header}) == records


@few
@given(many(st.fixed_dictionaries({"text": anything, "label": anything})), st.sampled_from([None, ("label", "text")]))
def test_csv_round_trip(records, header):
    assert again("csv", records, header=header, reading={"header": header}) == records


@few
@given(many(st.fixed_dictionaries({"text": anything, "label": st.integers() | st.none(), "words": st.lists(anything)})))
def test_jsonl_round_trip(records):
    assert again("jsonl", records) == records


@few
@given(
    many(
        st.fixed_dictionaries({"text": anything, "label": st.integers(-5, 5) | st.none(), "words": st.lists(anything)})
    )
)
def test_parquet_round_trip(records):
    assert again("parquet", records) == records


@few
@given(many(st.fixed_dictionaries({"text": line, "label": st.just("pos")})))
def test_lines_round_trip_with_empty_texts(records):
    assert again("lines", records, "all.pos") == records


@few
@given(many(st.fixed_dictionaries({"label": st.sampled_from(["DESC", "NUM"]), "text": line})))
def test_lines_with_a_pattern_round_trip(records):
    reading = {"pattern": r"(?P<label>[A-Z]+):\S+ (?P<text>.*)"}
    assert again("lines", records, template="{label}:x {text}", reading=reading) == records


@few
@given(st.lists(st.tuples(st.sampled_from(["neg", "pos"]), line), min_size=1, max_size=5))
def test_folders_round_trip(texts):
    records = [{"id": f"{i:03d}", "text": text, "label": label} for i, (label, text) in enumerate(texts)]
    assert again("folders", records, "imdb") == sorted(records, key=lambda record: (record["label"], record["id"]))


@few
@given(many(question()))
def test_squad_round_trip(records):
    assert again("squad", records) == records


@few
@given(
    many(words.flatmap(lambda found: st.tuples(st.just(found), entity_tags(len(found))))), st.sampled_from(["", "en:"])
)
def test_columns_round_trip(sentences, prefix):
    records = [{"words": found, "labels": labels} for found, labels in sentences]
    reading = {"separator": "\t", "prefix": prefix}
    assert again("columns", records, prefix=prefix, reading=reading) == records


@few
@given(many(annotated()))
def test_conll2012_round_trip(records):
    assert again("conll2012", records) == records


@few
@given(many(annotated()))
def test_trees_round_trip(sentences):
    records = [{name: sentence[name] for name in ("words", "xpos", "tree")} for sentence in sentences]
    assert again("trees", records) == records


BROKEN = [
    ("tsv", "a\tb\nx\ty\nonly one\n", ":3: 1 columns; expected 2 (a, b)"),
    ("tsv", "a\ta\nx\ty\n", ":1: column names"),
    ("csv", 'a,b\n"x,y\n', ":2: unexpected end of data"),
    ("csv", "a,b\nx,y,z\n", ":2: 3 columns; expected 2"),
    ("jsonl", '{"a": 1}\n{"a": \n', ":2: "),
    ("jsonl", "[1]\n", ":1: a list"),
    ("jsonl", '{"a": "\\ud83d\\ude00"}\n{"a": "\\ud800"}\n', ":2: "),  # half of a pair
    ("squad", '{"data": [], "x": "\\ud800"}', "surrogates"),
    ("squad", '{"data": [{"paragraphs": [{"qas": []}]}, {}]}', "KeyError"),
    ("squad", "{", "JSONDecodeError"),
    ("conllu", "1\tword\n", ":1: 2 columns"),
    ("conllu", "1\tw" + "\t_" * 4 + "\tx\troot\t_\t_\n", ":1: head 'x'"),
    ("conllu", "\n2\tw" + "\t_" * 4 + "\t0\troot\t_\t_\n", ":2: word number 2; expected 1"),
    ("columns", "EU B-ORG\nrejects\n", ":2: 1 column"),
    ("conll2012", "#begin\nd 0 0 word NN (TOP* - - - - * -\nd 0 1 word NN *)\n", ":2: lines of [6, 12] columns"),
    ("conll2012", "d 0 0 word NN (TOP(S*) - - - - * -\n", ":1: line 1: a bracket opened here is never closed"),
    ("conll2012", "d 0 0 run VB (TOP*) run 01 - - * -\n", ":1: 1 predicates and 0 columns of arguments"),
    ("conll2012", "d 0 0 run VB (TOP*) run 01 - - * (V*)) -\n", "closes a bracket that is not open"),
    ("trees", "(S (NP (NN dog)))\n(S (VP (VB bark))\n", ":2: a bracket opened here is never closed"),
    ("trees", "(S (NN dog)))\n", ":1: ')' outside of any bracket"),
    ("trees", "(S (NN dog) bark)\n", ":1: bare words in the bracket ['S']"),
    ("trees", "(" * 400, "nested more than"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_broken_files_are_told_with_their_place(tmp_path, name, content, message):
    path = tmp_path / "broken.txt"
    path.write_text(content)
    with pytest.raises(HeadwiseError) as error:
        list(formats[name].read(path))
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["tsv", "csv", "jsonl", "parquet", "lines", "squad", "conllu", "columns", "trees"])
def test_a_missing_file_and_a_directory_are_told(tmp_path, name):
    with pytest.raises(HeadwiseError, match="no file"):
        list(formats[name].read(tmp_path / "absent"))
    with pytest.raises(HeadwiseError, match="is a directory"):
        list(formats[name].read(tmp_path))


def test_a_wrong_encoding_is_told_with_its_line(tmp_path):
    path = tmp_path / "latin.tsv"
    path.write_bytes("text\tlabel\nbien\t1\ncafé\t0\n".encode("latin-1"))
    with pytest.raises(HeadwiseError, match=r"latin\.tsv:3: byte 0xe9 is not utf-8"):
        list(formats["tsv"].read(path))
    assert [record["text"] for _, record in formats["tsv"].read(path, encoding="latin-1")] == ["bien", "café"]


def test_something_else_named_parquet_is_told(tmp_path):
    (tmp_path / "x.parquet").write_text("not parquet")
    with pytest.raises(HeadwiseError, match="not readable as parquet"):
        formats["parquet"].read(tmp_path / "x.parquet")


@pytest.mark.parametrize(("name", "record"), [("tsv", {"a": "x\ty"}), ("columns", {"words": ["a b"], "labels": ["O"]})])
def test_what_a_format_cannot_hold_is_not_written(tmp_path, name, record):
    with pytest.raises(HeadwiseError):
        formats[name].write(tmp_path / "file", [record])
    assert not (tmp_path / "file").exists()
