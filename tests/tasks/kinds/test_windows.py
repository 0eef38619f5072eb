"""Sentences longer than the model: windows, and what must not depend on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kindlaws import Neighbours
from torch import nn

from headwise.heads.gates import gated
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import importance
from headwise.tasks import Constituents, Dependencies, Frames, Rows, Spans, Tag, Task
from headwise.tasks.kinds.windows import laid_out, owners, spans
from headwise.tasks.kinds.wordlevel import words
from headwise.testing import tiny, tiny_tokenizer
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


# -- the windows themselves


@given(st.lists(st.integers(1, 6), min_size=1, max_size=40), st.integers(6, 15))
@settings(max_examples=150, deadline=None)
def test_windows_fit_overlap_and_leave_no_word_out(sizes, room):
    found = spans(sizes, room)
    assert found[0][0] == 0 and found[-1][1] == len(sizes)
    for start, end in found:
        assert start < end and sum(sizes[start:end]) <= room
    for (start, end), (later, last) in zip(found, found[1:]):  # noqa: RUF007
        assert start < later <= end < last
    if sum(sizes) <= room:
        assert len(found) == 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.integers(4, 12))
@settings(max_examples=100, deadline=None)
def test_a_word_is_read_where_its_nearer_end_is_farthest(sizes, room):
    found = spans(sizes, room)
    for word, owner in enumerate(owners(sizes, found)):

        def context(window, word=word):
            start, end = window
            if not start <= word < end:
                return -1
            before = 10**6 if start == 0 else sum(sizes[start:word])
            after = 10**6 if end == len(sizes) else sum(sizes[word + 1 : end])
            return min(before, after)

        assert context(found[owner]) == max(map(context, found)) >= 0


def test_a_row_by_hand():
    ids, word_of = np.arange(10, 18), np.array([-1, 0, 1, 2, 3, 4, 5, -1])
    ids, word_of, window, full = laid_out(ids, word_of, 6)
    assert ids.tolist() == [10, 11, 12, 13, 14, 17, 10, 13, 14, 15, 16, 17]
    assert full.tolist() == [-1, 0, 1, 2, 3, -1, -1, 2, 3, 4, 5, -1]
    assert word_of.tolist() == [-1, 0, 1, 2, -1, -1, -1, -1, 3, 4, 5, -1]
    assert window.tolist() == [0] * 6 + [1] * 6


# -- what does not depend on them


@pytest.mark.parametrize("name", KINDS)
def test_losses_and_answers_are_those_of_one_long_window(name):
    encoder = Neighbours()
    whole, cut = (built(encoder, [task(name)], size) for size in (64, 16))
    for model in (whole, cut):
        model.data = encode(model.tasks[name], "dev", model.tokenizer, model.max_length)
    assert "window" in cut.data.columns and "window" not in whole.data.columns
    batches = [model.data.batch(range(len(ROWS))) for model in (whole, cut)]
    states = [words(model.hidden(batch).states, batch) for model, batch in zip((whole, cut), batches, strict=True)]
    torch.testing.assert_close(states[1], states[0])
    losses = [model(name, batch).loss for model, batch in zip((whole, cut), batches, strict=True)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    assert evaluate(cut, name).predictions == evaluate(whole, name).predictions


def test_nothing_changes_for_rows_that_fit():
    rows = [sentence(size) for size in (3, 9, 12)]
    encoder = tiny("bert")
    long, short = (built(encoder, [task("tag", rows)], size) for size in (64, 14))
    assert evaluate(short, "tag").predictions == evaluate(long, "tag").predictions


@pytest.mark.parametrize("name", KINDS)
def test_a_long_sentence_is_trained_on_and_answered_whole(name):
    model = built(tiny("bert", max_position_embeddings=16), [task(name)], 16)
    before = evaluate(model, name)
    fit(model, Plan(steps=3, batch_size=4, lr=1e-3, evaluate_every=0, checkpoint_every=0), device="cpu")
    after = evaluate(model, name)
    for score in (before, after):
        assert len(score.predictions) == len(ROWS)
        if name in ("tag", "dependencies"):
            assert [len(found) for found in score.predictions] == [len(row["words"]) for row in ROWS]
    if name == "constituents":
        assert max(end for start, end, _ in after.predictions[1]) == 40


def test_every_window_has_its_part_in_the_gradient():
    model = built(tiny("bert", max_position_embeddings=16), [task("tag")], 16)
    data = encode(model.tasks["tag"], "dev", model.tokenizer, 16)
    batch = data.batch([1])
    table = model.encoder.embeddings.word_embeddings.weight
    (slope,) = torch.autograd.grad(model("tag", batch).loss.sum(), table)
    assert all(slope[i].any() for i in batch["input_ids"].unique().tolist())


# -- gates and estimators


def test_gates_per_example_reach_every_window_and_equal_the_hooks_gradient():
    model = built(tiny("bert", max_position_embeddings=16), [task("tag")], 16)
    data = encode(model.tasks["tag"], "dev", model.tokenizer, 16)
    gates = torch.ones(len(ROWS), 2, 4, requires_grad=True)
    with gated(model.encoder, gates):
        model("tag", data.batch(range(len(ROWS)))).loss.sum().backward()
    found = importance(model, "tag", split="dev").scores
    torch.testing.assert_close(found, gates.grad.abs().mean(0))


@pytest.mark.parametrize("by", ["token", "mean_ablation", "magnitude", "confidence"])
def test_estimators_read_every_window(by):
    encoder = tiny("bert", max_position_embeddings=64)
    model = built(encoder, [task("tag")], 16)
    found = importance(model, "tag", by, split="dev").scores
    assert found.isfinite().all() and found.abs().sum() > 0
    fits = [row for row in ROWS if len(row["words"]) <= 14]
    short, long = (importance(built(encoder, [task("tag", fits)], n), "tag", by, split="dev") for n in (16, 64))
    torch.testing.assert_close(short.scores, long.scores)


# -- what does not fit


@pytest.mark.parametrize("max_length", [64, 16])
@pytest.mark.parametrize("name", KINDS)
def test_padding_beyond_the_longest_sentence_changes_nothing(name, max_length):
    model = built(Neighbours(), [task(name)], max_length)
    data = encode(model.tasks[name], "dev", model.tokenizer, max_length)
    losses = [model(name, data.batch([0, 2, 4], grain)).loss for grain in (1, 16)]
    torch.testing.assert_close(losses[1], losses[0])
