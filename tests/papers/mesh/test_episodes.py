"""Episodes: disjoint, stratified, a function of the seed and their number; what cannot be drawn is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise import tasks
from headwise.errors import HeadwiseError
from headwise.models.batching import Encoded, Order, encode
from headwise.papers.mesh.episodes import Draw, Episodes
from headwise.tasks.columns import Ragged
from headwise.testing import tiny_tokenizer


def classes(labels: list[int]) -> Encoded:
    ids = Ragged.of([[1, 2, 3]] * len(labels))
    return Encoded({"input_ids": ids, "label": np.array(labels, np.int64)}, pad=0, rows=len(labels))


def stream(data: Encoded, size: int = 8, support: int = 4, seed: int = 0) -> Episodes:
    return Episodes("pair", data, Order(data.lengths, size), (seed, 2, 0), support)


label_lists = st.lists(st.integers(0, 2), min_size=12, max_size=60)


@given(label_lists, st.integers(0, 5), st.integers(3, 6), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_support_and_query_never_share_a_row_and_every_class_is_there(labels, seed, support, query):
    drawn = stream(classes(labels), support + query, support, seed)
    for _ in range(5):
        items = drawn.next()
        first, rest = drawn.parts
        assert len(first) == support and len(rest) == query and np.array_equal(items, np.concatenate([first, rest]))
        assert len(set(items.tolist())) == support + query
        assert {labels[i] for i in first} == set(labels)
        counts = np.bincount([labels[i] for i in first], minlength=3)
        free = [n for n, total in zip(counts, np.bincount(labels, minlength=3)) if 0 < n < total]
        assert not free or max(free) - min(free) <= 1  # as even as the rows allow


def test_episodes_are_a_function_of_seed_and_number():
    data = classes([0, 1] * 20)
    one, two, other = stream(data), stream(data), stream(data, seed=1)
    first = [one.next() for _ in range(12)]
    assert all(np.array_equal(a, two.next()) for a in first)
    assert not all(np.array_equal(a, other.next()) for a in first)
    again = stream(data)
    again.load_state({"epoch": 1, "position": 2})
    assert len(again) == 5 and np.array_equal(again.next(), first[7])
    assert again.state() == {"epoch": 1, "position": 3}


@given(st.lists(st.lists(st.integers(-1, 4), min_size=1, max_size=4), min_size=8, max_size=30), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_tags_are_covered_where_the_support_has_room(tags, seed):
    data = Encoded({"input_ids": Ragged.of(tags), "labels": Ragged.of(tags)}, pad=0, rows=len(tags))
    first, rest = Draw("tags", data)(np.random.default_rng(seed), 6, 2)
    known = {tag for row in tags for tag in row if tag >= 0}
    assert len(set(first) | set(rest)) == 8
    assert {tag for i in first for tag in tags[i] if tag >= 0} == known  # five tags, six rows


def test_windows_of_a_row_stay_on_one_side():
    rows = np.repeat(np.arange(12), 3)
    data = Encoded({"input_ids": Ragged.of([[1, 2]] * 36), "row": rows}, pad=0, rows=12)
    drawn = stream(data, 6, 3)
    for _ in range(6):
        drawn.next()
        first, rest = (rows[part] for part in drawn.parts)
        assert len(set(first)) == len(set(rest)) == 3 and not set(first) & set(rest)
        assert len(drawn.parts[0]) == 9


@pytest.mark.parametrize("name", ["entailment", "ner", "pos", "similarity", "qa", "dep", "con", "srl"])
def test_every_kind_of_task_has_episodes(name):
    from headwise.tasks.corpus import tasks as corpus

    task = corpus("es", size={"train": 40, "dev": 4})[f"corpus.{name}.es"].ready()
    data = encode(task, "train", tiny_tokenizer(), 48)
    drawn = stream(data, 16, 8)
    drawn.next()
    assert all(len(part) >= 8 for part in drawn.parts)
    assert not set(drawn.parts[0]) & set(drawn.parts[1])


def test_too_few_rows_or_classes_are_refused():
    with pytest.raises(HeadwiseError, match=r"7 training rows; expected 8 or more: 4 support and 4 query"):
        stream(classes([0, 1] * 3 + [0]))
    with pytest.raises(HeadwiseError, match=r"support set of 2 for the 3 classes .* support = 3"):
        stream(classes([0, 1, 2] * 8), support=2)
    with pytest.raises(HeadwiseError, match="query"):
        stream(classes([0, 1] * 8), size=4, support=4)
    assert tasks.get("corpus.topic").kind.labels
