"""Word-level tasks: words, sub-words, labels, and words dropped in training."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kindlaws import Neighbours, byte_level, letters
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from headwise import tasks as catalog
from headwise.errors import HeadwiseError
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import Encoded, encode
from headwise.models.multitask import MultiTaskModel
from headwise.tasks import Constituents, Dependencies, Frames, Rows, Spans, Tag, Task
from headwise.tasks.kinds.windows import parts
from headwise.tasks.kinds.wordlevel import (
    Biaffine,
    Projection,
    cross_entropy,
    drop_words,
    encode_words,
    marked,
    masked_mean,
)
from headwise.testing import tiny, tiny_tokenizer
from headwise.training import passes
from headwise.training.loop import fit
from headwise.training.plan import Plan


def sentence(size: int, seed: int = 0) -> dict:
    """A row with gold for every kind: the words hang in a row and branch to the right."""
    rng = np.random.default_rng([size, seed])
    tokens = [f"w{i}" for i in rng.integers(0, 20, size)]
    tags = [f"T{int(word[1:]) % 3}" for word in tokens]
    tree = " ".join(f"(S (X {word})" for word in tokens) + ")" * size
    return {
        "words": tokens,
        "labels": [f"B-{tag}" if tag != "T0" else "O" for tag in tags],
        "heads": list(range(size)),
        "tree": tree,
        "frames": [{"predicate": size - 1, "arguments": [[0, min(2, size), "A0"]]}],
    }


ROWS = [sentence(size) for size in (3, 40, 12, 25, 9)]


KINDS = {
    "tag": (Tag(dropout=0), "tag_accuracy"),
    "spans": (Spans(dropout=0), "span_f1"),
    "dependencies": (Dependencies(dropout=0, arc_size=12, label_size=6), "las"),
    "constituents": (Constituents(dropout=0, span_size=12, label_size=6), "bracket_f1"),
    "frames": (Frames(dropout=0, size=12), "srl_f1"),
}


def task(name: str, rows=ROWS) -> Task:
    kind, metric = KINDS[name]
    return Task(name, kind, Rows(rows, rows, rows), metric)


def built(encoder: nn.Module, tasks, max_length: int, seed: int = 0) -> MultiTaskModel:
    torch.manual_seed(seed)
    model = MultiTaskModel(encoder, tiny_tokenizer([f"w{i}" for i in range(20)]), tasks, max_length=max_length)
    for parameter in model.heads.parameters():  # biaffine scores start at zero
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval()


@given(st.lists(st.lists(st.text(max_size=6), min_size=1, max_size=12), min_size=1, max_size=3), st.integers(5, 20))
@settings(max_examples=80, deadline=None)
@pytest.mark.parametrize("tokenizer", [letters(), byte_level()], ids=["wordpiece", "bytes"])
def test_every_word_stands_once_and_every_window_fits(tokenizer, sentences, max_length):
    columns = encode_words([{"words": words} for words in sentences], tokenizer, max_length)
    for i, given_words in enumerate(sentences):
        word_of, ids = columns["word_of"][i], columns["input_ids"][i]
        inner = word_of[word_of >= 0].tolist()
        assert inner == sorted(inner) and set(inner) == set(range(len(given_words)))
        if "window" not in columns:
            assert len(ids) <= max_length
            continue
        number, full = columns["window"][i], columns["window_word"][i]
        assert (full[word_of >= 0] == word_of[word_of >= 0]).all()
        for window in range(number.max() + 1):
            here = number == window
            assert here.sum() <= max_length
            assert ids[here][0] == ids[0] and ids[here][-1] == ids[-1]  # special tokens of its own
        for word in range(len(given_words)):
            assert len(set(number[word_of == word].tolist())) == 1  # sub-words stay together


def test_a_word_too_long_for_any_window_keeps_what_fits():
    columns = encode_words([{"words": ["the", "abcdefgh", "dog"]}], letters(), 5)
    assert columns["window_word"][0].tolist() == [-1, 0, -1, -1, 1, 1, 1, -1, -1, 2, -1]
    with pytest.raises(HeadwiseError, match="room for a word"):
        encode_words([{"words": ["dog", "cat"]}], letters(), 2)


def test_rows_that_fit_have_no_windows():
    columns = encode_words([{"words": ["the", "dog"]}], letters(), 4)
    assert set(columns) == {"input_ids", "word_of"}
    batch = {"attention_mask": torch.tensor([[1, 1, 0]])}
    ((place, part),) = parts(batch, None)
    assert place.tolist() == [[0, 1, -1]] and part["attention_mask"] is batch["attention_mask"]


STRANGE = {
    "tag": {"labels": ["B-Q", "O", "O"]},
    "spans": {"labels": ["B-Q", "O", "O"]},
    "dependencies": {"heads": [0, 1, 2], "labels": ["Q", "O", "O"]},
    "constituents": {"tree": "(Q (Q (X w1)) (S (X w2)) (X w3))"},
    "frames": {"frames": [{"predicate": 0, "arguments": [[1, 2, "Q"]]}]},
}


@pytest.mark.parametrize("name", KINDS)
def test_labels_unseen_in_training_are_told_and_counted_as_errors(name):
    kind, metric = KINDS[name]
    rows = [sentence(size) for size in (3, 9, 12)]
    test = [{**sentence(3), "words": ["w1", "w2", "w3"], **STRANGE[name]}]
    model = built(tiny("bert"), [Task(name, kind, Rows(rows, test, test), metric)], 64)
    with pytest.warns(UserWarning, match=r"not seen in training.*Q"):
        found = evaluate(model, name)
    assert 0 <= found.value < 1
    assert "Q" not in str(found.predictions) and "Q" in str(found.golds)
    with pytest.warns(UserWarning, match="not seen in training"):
        loss = model(name, _batch(model, name)).loss
    assert loss.isfinite().all()


def _batch(model: MultiTaskModel, name: str) -> dict[str, torch.Tensor]:
    kind = model.tasks[name].kind
    return Encoded(kind.encode(model.tasks[name].rows("dev"), model.tokenizer, 64), pad=0, rows=1).batch([0])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tag", {"labels": ["O"]}, "1 labels for 3 words"),
        ("spans", {"labels": ["O", "O", "PER"]}, "B- or I-"),
        ("dependencies", {"heads": [0, 1, 9]}, "head 9"),
        ("constituents", {"tree": "(S (X w1) (X w2))"}, "over"),
        ("frames", {"frames": [{"predicate": 3, "arguments": []}]}, "predicate 3"),
    ],
)
def test_rows_that_do_not_fit_their_words_are_named(name, change, message):
    kind, metric = KINDS[name]
    rows = [sentence(4), {**sentence(3), "words": ["w1", "w2", "w3"], **change}]
    with pytest.raises(HeadwiseError, match=message) as told:
        Task("mine", kind, Rows(rows), metric).rows("train")
    assert "mine/train row 1" in str(told.value)


def test_dropped_words_are_unknown_and_special_tokens_stay():
    tokenizer = tiny_tokenizer([f"w{i}" for i in range(20)])
    data = Encoded(Tag(("O",)).encode([{"words": ["w1"] * 40, "labels": ["O"] * 40}], tokenizer, 16), pad=0, rows=1)
    batch = data.batch([0])
    assert drop_words(batch, 0.0, tokenizer) is batch
    every = drop_words(batch, 1.0, tokenizer)["input_ids"]
    inner = batch["window_word"] >= 0
    assert (every[inner] == tokenizer.unk_token_id).all() and torch.equal(every[~inner], batch["input_ids"][~inner])
    torch.manual_seed(0)
    share = (drop_words(batch, 0.3, tokenizer)["input_ids"][inner] == tokenizer.unk_token_id).float().mean()
    assert 0.1 < share < 0.5
    texts = {"input_ids": torch.ones(2, 3)}
    assert drop_words(texts, 1.0, tokenizer) is texts


def test_words_are_dropped_in_training_alone():
    seen = []

    class Watched(Neighbours):
        def forward(self, input_ids, attention_mask):
            seen.append((self.training, input_ids))
            return super().forward(input_ids, attention_mask)

    model = built(Watched(), [task("tag", [sentence(9)])], 64)
    plan = Plan(steps=2, word_dropout=1.0, evaluate_every=1, checkpoint_every=0, batch_size=1)
    fit(model, plan, device="cpu")
    unknown = model.tokenizer.unk_token_id
    assert {bool((ids[:, 1:-1] == unknown).all()) for training, ids in seen if training} == {True}
    assert {bool((ids == unknown).any()) for training, ids in seen if not training} == {False}


def test_scores_are_the_formula_for_every_pair():
    torch.manual_seed(0)
    form = Biaffine(3, 4, 2)
    assert form(torch.randn(1, 2, 3), torch.randn(1, 5, 4)).abs().max() == 0, "no pair is preferred at first"
    torch.nn.init.normal_(form.weight)
    left, right = torch.randn(2, 3, 3), torch.randn(2, 5, 4)
    scores = form(left, right)
    assert scores.shape == (2, 3, 5, 2)
    U, a, b, c = form.weight[:, :-1, :-1], form.weight[:, :-1, -1], form.weight[:, -1, :-1], form.weight[:, -1, -1]
    for example in range(2):
        for i in range(3):
            for j in range(5):
                x, y = left[example, i], right[example, j]
                torch.testing.assert_close(
                    scores[example, i, j], torch.stack([x @ u @ y for u in U]) + a @ x + b @ y + c
                )


def test_dropout_takes_the_same_units_at_every_position():
    torch.manual_seed(0)
    layer = Projection(8, 64, 0.5).train()
    dropped = layer(torch.randn(2, 7, 8)) == 0
    assert dropped.any() and (dropped == dropped[:, :1]).all()
    assert not (layer.eval()(torch.randn(2, 7, 8)) == 0).any()


def test_the_mean_is_over_valid_places_and_zero_where_there_are_none():
    values, mask = torch.tensor([[1.0, 2.0, 9.0], [5.0, 5.0, 5.0]]), torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert masked_mean(values, mask).tolist() == [1.5, 0.0]


def test_negative_places_are_marked_nowhere():
    row = marked(torch.tensor([[0, 3, -1]]), torch.tensor([[5, 6, 7]]), 4)
    assert row.tolist() == [[5, 0, 0, 6]]


def test_places_without_a_target_have_no_loss_and_no_gradient():
    scores = torch.randn(2, 3, 4, requires_grad=True)
    loss = cross_entropy(scores, torch.tensor([[1, -1, 2], [-1, -1, -1]]))
    assert loss.shape == (2, 3) and (loss[0, 1], loss[1].sum()) == (0, 0) and loss[0, 0] > 0
    loss.sum().backward()
    assert scores.grad[1].abs().sum() == 0


RECORDED_KINDS = {name: (f"corpus.{name}", None) for name in ("pos", "ner", "dep", "con", "srl", "qa")}
RECORDED_KINDS |= {
    "spans": ("corpus.ner", Spans()),
    "span scorer": ("corpus.con", Constituents(training="span")),
    "predicates given": ("corpus.srl", Frames(given=True)),
}
CASES = [(name, 64) for name in RECORDED_KINDS] + [("pos", 12), ("con", 12)]  # 12: most rows in windows
ITEMS = 6


@cache
def rows_of(name: str) -> list[dict]:
    return catalog.get(name).rows("train")[:120]


def built_of_recorded(name: str, max_length: int) -> tuple[MultiTaskModel, Encoded]:
    known, kind = RECORDED_KINDS[name]
    task = catalog.get(known)
    task = Task(name, kind or task.kind, Rows(rows_of(known)), task.metric)
    torch.manual_seed(0)
    model = MultiTaskModel(Neighbours(), tiny_tokenizer([f"w{i}" for i in range(9)]), [task], max_length=max_length)
    for parameter in model.heads.parameters():  # biaffine scores start at zero
        parameter.data += 0.1 * torch.randn_like(parameter)
    data = encode(model.tasks[name], "train", model.tokenizer, max_length)
    return model.eval(), data


def slopes(model: MultiTaskModel, name: str, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The losses of a batch and the gradient of their sum."""
    loss = model(name, batch).loss
    reached = [p for p in model.parameters() if p.requires_grad]
    return [loss, *torch.autograd.grad(loss.sum(), reached, allow_unused=True, materialize_grads=True)]


def shapes(batch: dict[str, torch.Tensor]) -> tuple:
    return tuple((name, *value.shape) for name, value in sorted(batch.items()))


@pytest.mark.parametrize(("name", "max_length"), CASES)
def test_training_waits_for_nothing(name, max_length):
    model, data = built_of_recorded(name, max_length)
    assert ("window" in data.columns) == (max_length == 12)
    batch = data.batch(range(ITEMS), 16)
    with passes._watched(model.encoder) as watch:
        model.train()(name, batch).loss.sum().backward()
    assert not watch.seen


@pytest.mark.parametrize(("name", "max_length"), CASES)
def test_nothing_moves_between_devices(name, max_length):
    """Shapes alone, on a device that has no values: there, reading one fails."""
    model, data = built_of_recorded(name, max_length)
    batch = {column: value.to("meta") for column, value in data.batch(range(ITEMS), 16).items()}
    model.to("meta")
    with passes._watched(torch.nn.Identity()) as watch:
        model(name, batch).loss.sum().backward()
    assert not watch.seen


@pytest.mark.parametrize(("name", "max_length"), CASES)
def test_a_pass_traced_on_one_batch_is_right_for_others_of_its_shape(name, max_length):
    model, data = built_of_recorded(name, max_length)
    order = np.argsort(data.lengths, kind="stable")
    found: dict[tuple, list[dict]] = {}
    for start in range(0, len(order) - ITEMS, ITEMS):
        batch = data.batch(order[start : start + ITEMS], 16)
        found.setdefault(shapes(batch), []).append(batch)
    one, *others = max(found.values(), key=len)
    assert others
    traced = make_fx(lambda batch: slopes(model, name, batch))(one)
    for other in others[:3]:
        for mine, right in zip(traced(other), slopes(model, name, other), strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "max_length"), CASES)
def test_wider_padding_changes_no_loss_and_no_gradient(name, max_length):
    model, data = built_of_recorded(name, max_length)
    short = np.argsort(data.lengths, kind="stable")[:ITEMS]
    narrow, wide = data.batch(short), data.batch(short, 16)
    grown = {column for column in narrow if narrow[column].shape != wide[column].shape}
    assert grown >= {"input_ids", "attention_mask"} | ({"word_mask"} & set(narrow))
    for right, mine in zip(slopes(model, name, narrow), slopes(model, name, wide), strict=True):
        assert (mine - right).abs().max() <= 1e-6 * right.abs().max().clamp(min=1)
