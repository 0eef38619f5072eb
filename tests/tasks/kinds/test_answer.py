"""Answers in texts: windows, letters and sub-words, the best span."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kindlaws import batch_of, byte_level, check_one_by_one, letters, overfit

from headwise.errors import HeadwiseError
from headwise.tasks.kinds.answer import Answer, Ends, Found
from headwise.tasks.task import Kind


def question(context: str, answer: str, asked: str = "the dog sees a cat") -> dict:
    return {"id": "1", "question": asked, "context": context, "answers": [answer], "starts": [context.index(answer)]}


ROWS = [
    question("the dog sees a cat .", "a cat"),
    question("Max barks", "Max"),
    question("a dog , an old dog , barks at the cat", "an old dog"),
    question("the cat sees Rex . Rex sees the cat .", "Rex sees"),
    question("dogs bark", "dogs bark", asked="?"),
    question("a b c d e f g h i j k l m n o p q r s t u v w x y z", "y z"),
    question("it's 2.5 (about)", "2.5"),
    question("the end", "end"),
]
KIND = Answer(dropout=0)


def perfect(batch) -> Ends:
    size = batch["input_ids"].shape[1]
    return Ends(*(50 * torch.nn.functional.one_hot(batch[side], size).float() for side in ("start", "end")))


def test_batches_equal_one_by_one():
    assert isinstance(KIND, Kind)
    check_one_by_one(KIND, ROWS)


@pytest.mark.parametrize("metric", ["em", "answer_f1"])
def test_learns_its_training_rows_by_heart(metric):
    assert overfit(KIND, ROWS, metric) == 1


@pytest.mark.parametrize("tokenizer", [letters(), byte_level()], ids=["wordpiece", "bytes"])
@pytest.mark.parametrize("max_length", [24, 40, 200])
def test_gold_ends_have_no_loss_and_give_the_answer_through_any_window(tokenizer, max_length):
    kind = Answer(stride=12)
    batch = batch_of(kind, ROWS, max_length, tokenizer)
    scores = perfect(batch)
    assert kind.loss(scores, batch).max() < 1e-6
    assert batch["input_ids"].shape[1] <= max_length
    assert kind.merge(kind.decode(scores, batch), ROWS) == [row["answers"][0] for row in ROWS]
    if max_length == 24:
        assert len(batch["row"]) > len(ROWS)
    assert sorted(set(batch["row"].tolist())) == list(range(len(ROWS)))


@given(st.lists(st.text(alphabet="abc .'é", min_size=1, max_size=5), min_size=1, max_size=30), st.data())
@settings(max_examples=60, deadline=None)
def test_windows_cover_every_answer_with_letters_of_the_context(pieces, data):
    context = " ".join(pieces)
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, min(len(context), start + 4)))
    answer = context[start:end]
    row = {"question": "a b", "context": context, "answers": [answer], "starts": [start]}
    kind = Answer(stride=10)
    kind.check(row)
    batch = batch_of(kind, [row], max_length=28)
    held = batch["end"] > 0
    if answer.strip() == answer and not set(answer) & set("é"):
        assert held.any()  # some window holds the answer whole
    for i in held.nonzero()[:, 0].tolist():
        first, last = batch["offsets"][i, batch["start"][i], 0], batch["offsets"][i, batch["end"][i], 1]
        assert first <= start or not context[start:first].strip()
        assert end <= last or not context[last:end].strip()


def test_the_best_span_is_ordered_short_and_in_the_context():
    kind = Answer(longest_answer=3)
    batch = batch_of(kind, [ROWS[2]])
    size = batch["input_ids"].shape[1]
    for seed in range(20):
        scores = Ends(*torch.randn(2, 1, size, generator=torch.Generator().manual_seed(seed)).unbind(0))
        places = (batch["offsets"][0, :, 0] >= 0).nonzero()[:, 0].tolist()
        best = max((scores.start[0, i] + scores.end[0, j], i, j) for i in places for j in places if i <= j < i + 3)
        (found,) = kind.decode(scores, batch)
        assert found.score == pytest.approx(best[0].item())
        letters_of = batch["offsets"][0].tolist()
        assert (found.start, found.end) == (letters_of[best[1]][0], letters_of[best[2]][1])


def test_merge_takes_the_surest_window():
    found = [Found(0, 1.0, 0, 3), Found(1, 0.0, 0, 1), Found(0, 2.0, 4, 7), Found(1, -torch.inf, -1, -1)]
    rows = [{"context": "the dog"}, {"context": "xy"}, {"context": "never seen"}]
    assert KIND.merge(found, rows) == ["dog", "x", ""]


def test_long_questions_are_cut_and_counted():
    row = question("the cat", "cat", asked="dog " * 50)
    batch = batch_of(Answer(longest_question=8), [row], max_length=64)
    assert batch["cut"].tolist() == [42]
    assert batch["input_ids"].shape[1] == 8 + 2 + 3
    with pytest.raises(HeadwiseError, match="max_length"):
        batch_of(KIND, [row], max_length=5)


@pytest.mark.parametrize(
    "change",
    [
        {"answers": []},
        {"answers": [""], "starts": [0]},
        {"starts": [3]},
        {"starts": [-1]},
        {"starts": [99]},
        {"question": None},
    ],
)
def test_answers_that_do_not_stand_in_the_text_are_refused(change):
    KIND.check(ROWS[0])
    with pytest.raises(HeadwiseError):
        KIND.check(ROWS[0] | change)


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["squad_v11/dev", "mlqa_es/dev", "xquad_es/test"])
def test_real_answers_survive_windows(data_folder, name):
    from pyarrow import parquet

    rows = parquet.read_table(data_folder / f"{name}.parquet").slice(0, 60).to_pylist()
    rows = [row | {"starts": row["answer_starts"]} for row in rows]
    kind = Answer()
    batch = batch_of(kind, rows, 384, byte_level())
    for row, found in zip(rows, kind.merge(kind.decode(perfect(batch), batch), rows)):
        if len(row["answers"][0].encode()) <= kind.longest_answer:
            assert found == row["answers"][0]
