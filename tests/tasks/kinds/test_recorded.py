"""What recording a pass asks of word-level kinds: it waits for nothing, shapes say it all, and padding is not seen."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from kindlaws import Neighbours
from torch.fx.experimental.proxy_tensor import make_fx

from headwise import tasks as catalog
from headwise.models.batching import Encoded, encode
from headwise.models.multitask import MultiTaskModel
from headwise.tasks import Constituents, Frames, Rows, Spans, Task
from headwise.testing import tiny_tokenizer
from headwise.training import passes

KINDS = {name: (f"corpus.{name}", None) for name in ("pos", "ner", "dep", "con", "srl", "qa")}
KINDS |= {
    "spans": ("corpus.ner", Spans()),
    "span scorer": ("corpus.con", Constituents(training="span")),
    "predicates given": ("corpus.srl", Frames(given=True)),
}
CASES = [(name, 64) for name in KINDS] + [("pos", 12), ("con", 12)]  # 12: most rows in windows
ITEMS = 6


@cache
def rows_of(name: str) -> list[dict]:
    return catalog.get(name).rows("train")[:120]


def built(name: str, max_length: int) -> tuple[MultiTaskModel, Encoded]:
    known, kind = KINDS[name]
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
    model, data = built(name, max_length)
    assert ("window" in data.columns) == (max_length == 12)
    batch = data.batch(range(ITEMS), 16)
    with passes._watched(model.encoder) as watch:
        model.train()(name, batch).loss.sum().backward()
    assert not watch.seen


@pytest.mark.parametrize(("name", "max_length"), CASES)
def test_nothing_moves_between_devices(name, max_length):
    """Shapes alone, on a device that has no values: there, reading one fails."""
    model, data = built(name, max_length)
    batch = {column: value.to("meta") for column, value in data.batch(range(ITEMS), 16).items()}
    model.to("meta")
    with passes._watched(torch.nn.Identity()) as watch:
        model(name, batch).loss.sum().backward()
    assert not watch.seen


@pytest.mark.parametrize(("name", "max_length"), CASES)
def test_a_pass_traced_on_one_batch_is_right_for_others_of_its_shape(name, max_length):
    model, data = built(name, max_length)
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
    model, data = built(name, max_length)
    short = np.argsort(data.lengths, kind="stable")[:ITEMS]
    narrow, wide = data.batch(short), data.batch(short, 16)
    grown = {column for column in narrow if narrow[column].shape != wide[column].shape}
    assert grown >= {"input_ids", "attention_mask"} | ({"word_mask"} & set(narrow))
    for right, mine in zip(slopes(model, name, narrow), slopes(model, name, wide), strict=True):
        assert (mine - right).abs().max() <= 1e-6 * right.abs().max().clamp(min=1)
