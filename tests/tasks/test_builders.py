"""Made tasks: AG-Pair keeps the law of its paper; the ten probes keep theirs, in any language."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.tasks import ag_pair, ag_pair_task
from headwise.tasks.task import Rows, Task

# -- AG-Pair


def news(*counts: int) -> list[dict]:
    rows = [
        {"text": f"{topic}-{i}", "label": f"topic {topic}"} for topic, count in enumerate(counts) for i in range(count)
    ]
    random.Random(0).shuffle(rows)
    return rows


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(8, 30), min_size=3, max_size=5), st.integers(0, 3))
def test_ag_pair_keeps_the_law_of_its_construction(counts, seed):
    assume(sum(counts) % 4 == 0 and 2 * max(counts) <= 1.3 * sum(counts))  # topics are about even, as AG's are
    rows, pairs = news(*counts), ag_pair(news(*counts), seed)
    topic = {row["text"]: row["label"] for row in rows}
    assert len(pairs) == len(rows)
    assert Counter(row["label"] for row in pairs) == {"same": len(rows) // 2, "different": len(rows) // 2}
    assert all((topic[row["text"]] == topic[row["text_b"]]) == (row["label"] == "same") for row in pairs)
    assert all(row["text"] != row["text_b"] for row in pairs)
    assert len({frozenset((row["text"], row["text_b"])) for row in pairs}) == len(pairs)
    for half in (pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]):
        used = Counter(text for row in half for text in (row["text"], row["text_b"]))
        assert set(used.values()) == {1} and len(used) == len(rows)
        assert [row["label"] for row in half] == ["same"] * (len(half) // 2) + ["different"] * (len(half) // 2)


def test_ag_pair_at_the_published_size_mixes_as_the_published_file_does():
    """In the published test set 3822 items are once in each kind of pair, 1889 twice in either kind."""
    pairs = ag_pair(news(1900, 1900, 1900, 1900))
    assert len(pairs) == 7600
    same = Counter(text for row in pairs if row["label"] == "same" for text in (row["text"], row["text_b"]))
    kinds = Counter(same[row["text"]] for row in news(1900, 1900, 1900, 1900))
    assert sum(kinds.values()) == 7600
    assert kinds[0] == kinds[2]
    assert abs(kinds[1] - 3800) < 200


def test_ag_pair_leaves_out_at_most_three_and_is_seeded():
    rows = news(10, 10, 11)
    pairs = ag_pair(rows, seed=3)
    assert len(pairs) == 28
    assert pairs == ag_pair(rows, seed=3) != ag_pair(rows, seed=4)


@pytest.mark.parametrize("counts", [(40, 2), (2, 2)])
def test_topics_that_cannot_be_paired_are_refused(counts):
    with pytest.raises(HeadwiseError, match=r"topics|too few"):
        ag_pair(news(*counts))


def test_ag_pair_task_pairs_each_split_by_itself():
    from headwise.tasks.kinds.classify import Classify

    topics = tuple(f"topic {i}" for i in range(4))
    source = Rows(train=news(8, 8, 8, 8), test=[{**row, "text": f"test {row['text']}"} for row in news(4, 4, 4, 4)])
    task = ag_pair_task(Task("agnews", Classify(topics), source, "accuracy"))
    assert [len(task.rows(split)) for split in ("train", "dev", "test")] == [32, 16, 16]
    assert task.rows("dev") == task.rows("test")
    assert all(row["text"].startswith("test ") for row in task.rows("test"))
