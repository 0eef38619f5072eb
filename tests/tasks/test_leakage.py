"""Leakage: planted overlaps are found, all of them and no others; parallel items stay on one side."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.tasks import get, split_by_item
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.leakage import Overlap, leakage
from headwise.tasks.readers.shape import normalized
from headwise.tasks.task import Rows, Task


def task(name: str, items: bool = False, **splits: list) -> Task:
    def row(text, split: str, i: int) -> dict:
        texts = {"text": text} if isinstance(text, str) else {"text": text[0], "text_b": text[1]}
        return {**texts, "label": "x", **({"item": f"set/{split}/{i}"} if items else {})}

    parts = {split: [row(text, split, i) for i, text in enumerate(texts)] for split, texts in splits.items()}
    return Task(name, Classify(("x", "y")), Rows(**parts), "accuracy")


def found(*tasks: Task) -> dict[tuple, int]:
    return {(o.seen, o.held, o.field): o.rows for o in leakage(tasks).overlaps}


@pytest.mark.parametrize(
    ("one", "other"),
    [("Don't STOP !", "do n't stop"), ("a  b\u00a0c", "A b c."), ("ﬁne", "fine"), ("El NIÑO", "el niño")],
)
def test_ways_to_write_one_text_are_one_text(one, other):
    assert normalized(one) == normalized(other)


def test_planted_overlaps_are_found_and_no_others():
    first = task("first", train=["A cat sat.", "dogs bark", "only here"], dev=["a cat sat"])
    second = task("second", train=["nothing"], dev=["Dogs bark!", "new"], test=["a cat sat .", ""])
    assert found(first, second) == {
        ("first/train", "first/dev", "text"): 1,
        ("first/train", "second/dev", "text"): 1,
        ("first/train", "second/test", "text"): 1,
        ("second/test", "first/dev", "text"): 1,  # all of first/dev, so told from its side
    }
    report = leakage([first, second])
    assert [o.leak for o in report.overlaps] == [True, True, True, False]
    assert "LEAK   1 of 1 (100.0%) text of first/dev in first/train: 'a cat sat'" in str(report)
    assert report.to_record()[0]["leak"] is True
    assert len(report.leaks) == 3


def test_splits_that_a_study_does_not_use_are_kept_apart():
    """It trains on train and measures on dev, or on test where that serves as dev."""
    first = task("first", train=["a", "b"], dev=["a", "c"], test=["b", "c", "d"])
    second = task("second", train=["e"], test=["b", "c"])
    found = leakage([first, second])
    trust = found.to_trust()
    lists = [trust[name] for name in ("leakage", "shared", "unused")]
    assert [len(lines) for lines in lists] == [2, 1, 3]
    assert sorted(line for lines in lists for line in lines) == sorted(map(str, found.overlaps))
    for lines, used in zip(lists, (True, True, False)):
        assert all(("first/test" in line) != used for line in lines)
    assert all(str(Overlap(**trust["worst_overlap"][name])) == trust[name][0] for name in trust["worst_overlap"])


def test_pairs_are_compared_by_text_and_as_a_whole():
    train = task("train", train=[("a b", "c d"), ("e f", "g h")])
    held = task("held", dev=[("a b", "c d"), ("g h", "x y"), ("c d", "a b")])
    assert found(train, held) == {
        ("train/train", "held/dev", "text"): 3,
        ("train/train", "held/dev", "text_b"): 2,
        ("train/train", "held/dev", "pair"): 1,
    }


def test_nothing_shared_is_said():
    assert str(leakage([task("a", train=["x"]), task("b", dev=["y"])])) == "no text is shared"


def test_training_sets_may_share_what_they_like():
    assert found(task("a", train=["x"]), task("b", train=["x"])) == {}


def test_one_item_in_two_languages_is_found():
    english = task("english", items=True, train=["one", "two"], test=["three"])
    spanish = Task(
        "spanish", english.kind, Rows(dev=[{"text": "uno", "label": "x", "item": "set/train/0"}]), "accuracy", "es"
    )
    assert found(english, spanish) == {("english/train", "spanish/dev", "item"): 1}


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 40), st.integers(0, 40), st.integers(0, 3))
def test_parallel_items_stay_on_one_side_in_every_language(size, offset, seed):
    english = task("en", items=True, test=[f"text {i}" for i in range(size)])
    spanish = task("es", items=True, test=[f"texto {i}" for i in range(min(size, offset + 1))])
    parts = split_by_item([english, spanish], seed)
    side: dict[str, set[str]] = {}
    for part in parts:
        for split in ("train", "dev", "test"):
            for row in part.source.read(split):
                side.setdefault(row["item"], set()).add(split)
    assert len(side) == size
    assert all(len(splits) == 1 for splits in side.values())
    assert not leakage(parts).leaks
    assert sum(len(parts[1].source.read(split)) for split in ("train", "dev", "test")) == min(size, offset + 1)


def test_tasks_without_items_cannot_be_split_by_them():
    with pytest.raises(HeadwiseError, match="rows without an item"):
        split_by_item([task("a", test=["x"])])


@pytest.mark.realdata
@pytest.mark.filterwarnings("ignore::headwise.errors.HeadwiseWarning")
def test_the_known_overlaps_of_the_real_samples(data_folder):
    def real(*names: str) -> dict[tuple, int]:
        return found(*(get(name, data_folder) for name in names))

    assert real("sst2", "mr")["mr/train", "sst2/dev", "text"] == 582
    questions = real("squad_v11", "xquad_en", "qnli")
    assert questions["squad_v11/dev", "xquad_en/test", "question"] == 1190
    assert questions["squad_v11/dev", "qnli/dev", "text"] == 5463


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("one", "other", "split", "size"),
    [
        ("xnli_en", "xnli_es", "dev", 2490),
        ("xnli_en", "xnli_es", "test", 5010),
        ("pawsx_en", "pawsx_es", "dev", 2000),
        ("xquad_en", "xquad_es", "test", 1190),
        ("stsb", "stsb_es", "dev", 1500),
        ("mlqa_en", "mlqa_es", "dev", 500),
    ],
)
def test_parallel_sets_hold_the_same_items(data_folder, one, other, split, size):
    first, second = (get(name, data_folder).rows(split) for name in (one, other))
    assert len({row["item"] for row in first} & {row["item"] for row in second}) == size
    if "answers" not in first[0]:
        by_item = {row["item"]: row["label"] for row in first}
        assert sum(by_item[row["item"]] == row["label"] for row in second) > 0.99 * size


@pytest.mark.realdata
def test_real_languages_split_together(data_folder):
    parts = split_by_item([get("xquad_en", data_folder), get("xquad_es", data_folder)])
    items = [{split: {row["item"] for row in part.rows(split)} for split in ("train", "dev", "test")} for part in parts]
    assert items[0] == items[1]
    assert len(items[0]["train"]) == 952
