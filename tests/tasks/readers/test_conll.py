"""CoNLL files: columns, CoNLL-U, spans as BIO tags."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.tasks.metrics import bio_spans
from headwise.tasks.readers.conll import bio
from headwise.tasks.readers.formats import formats

few = settings(max_examples=25, deadline=None)


SPACES = ("Cc", "Cs", "Zs", "Zl", "Zp")


word = st.text(st.characters(exclude_categories=SPACES, exclude_characters="\ufeff"), min_size=1, max_size=8)


words = st.lists(word, min_size=1, max_size=7)


line = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff"), max_size=20)


entity = st.sampled_from(["PER", "LOC"])


def again(name: str, records: list[dict], file: str = "file.txt", reading: dict | None = None, **writing) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        path = formats[name].write(Path(folder) / file, records, **writing)
        return [record for _, record in formats[name].read(path, **(reading or {}))]


def many(record: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(record, min_size=1, max_size=4)


@st.composite
def heads(draw, size: int) -> list[int]:
    order = draw(st.permutations(range(1, size + 1)))
    found = {order[0]: 0} | {order[i]: order[draw(st.integers(0, i - 1))] for i in range(1, size)}
    return [found[i] for i in range(1, size + 1)]


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
def parsed(draw) -> dict:
    """A sentence of CoNLL-U."""
    found = draw(words)
    per_word = {name: [draw(word) for _ in found] for name in ("lemmas", "upos", "xpos", "feats", "deprels")}
    given_heads = draw(heads(len(found)))
    return {"words": found, "heads": given_heads, "sent_id": draw(word), "text": draw(line), **per_word}


@few
@given(many(parsed()))
def test_conllu_round_trip(records):
    assert again("conllu", records) == records


@few
@given(st.integers(0, 8).flatmap(entity_tags))
def test_bio_tags_and_spans_say_the_same(tags):
    back = ["O"] * len(tags)
    for start, end, label in bio_spans(tags):
        back[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
    assert back == tags == bio(tags)


def test_conllu_passes_over_ranges_and_empty_nodes(tmp_path):
    cells = "\t_" * 3
    rows = [
        "1-2\tdel" + "\t_" * 8,
        f"1\tde{cells}\t_\t2\tcase\t_\t_",
        f"2\tel{cells}\t_\t0\troot\t_\t_",
        "2.1\tx" + "\t_" * 8,
    ]
    (tmp_path / "a.conllu").write_text("# sent_id = s1\n" + "\n".join(rows) + "\n\n")
    [(start, record)] = formats["conllu"].read(tmp_path / "a.conllu")
    assert start == 1
    assert (record["words"], record["heads"], record["sent_id"]) == (["de", "el"], [2, 0], "s1")
