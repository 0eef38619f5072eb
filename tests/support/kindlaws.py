"""What every kind must obey, and the tiny tokenizers and free encoder states to show it with."""

from __future__ import annotations

import string
from functools import cache
from types import SimpleNamespace

import torch
from tokenizers import pre_tokenizers
from torch import nn
from transformers import BertTokenizer, RobertaTokenizer

from headwise.models.batching import Encoded
from headwise.tasks.metrics import metrics
from headwise.tasks.task import Hidden, Kind

WIDTH = 32
REACH = 3  # of the encoder that sees its neighbours only


@cache
def letters() -> BertTokenizer:
    """A WordPiece tokenizer that spells every word letter by letter, but for a few it knows."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    known = ["the", "dog", "dogs", "bark", "barks", "cat", "sees", "a", "."]
    alphabet = [c for c in string.ascii_lowercase + string.digits + string.punctuation if c not in known]
    tokens = marks + known + alphabet + [f"##{c}" for c in string.ascii_lowercase + string.digits]
    return BertTokenizer(vocab={token: i for i, token in enumerate(tokens)})


@cache
def byte_level() -> RobertaTokenizer:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    return RobertaTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[])


class Neighbours(nn.Module):
    """An encoder that sees ``REACH`` tokens to either side and knows no positions."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.table = nn.Embedding(64, width)
        self.mix = nn.Conv1d(width, width, 2 * REACH + 1, padding=REACH)
        self.config = SimpleNamespace(hidden_size=width)

    def forward(self, input_ids, attention_mask):
        states = self.table(input_ids) * attention_mask[..., None]
        return SimpleNamespace(last_hidden_state=torch.tanh(self.mix(states.mT).mT))


def batch_of(kind: Kind, rows: list[dict], max_length: int = 64, tokenizer=None) -> dict[str, torch.Tensor]:
    """All rows as one batch, as the batcher makes it."""
    data = Encoded(kind.encode(rows, tokenizer or letters(), max_length), pad=0, rows=len(rows))
    return data.batch(range(len(data)))


def random_hidden(batch: dict[str, torch.Tensor], seed: int = 0) -> Hidden:
    size = batch["input_ids"].shape
    generator = torch.Generator().manual_seed(seed)
    return Hidden(
        torch.randn(*size, WIDTH, generator=generator).requires_grad_(),
        torch.randn(size[0], WIDTH, generator=generator).requires_grad_(),
    )


def stirred_head(kind: Kind, seed: int = 0) -> torch.nn.Module:
    """An output head with no parameter left at zero."""
    torch.manual_seed(seed)
    head = kind.head(WIDTH)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return head


def predictions_of(kind: Kind, scores, batch, rows: list[dict]) -> list:
    found = kind.decode(scores, batch)
    return kind.merge(found, rows) if hasattr(kind, "merge") else found


def overfit(kind: Kind, rows: list[dict], metric: str, steps: int = 60, lr: float = 0.02) -> float:
    """The metric on the training rows after training head and free states; 1 if the loss and decoder agree."""
    batch = batch_of(kind, rows)
    hidden, head = random_hidden(batch), stirred_head(kind)
    optimizer = torch.optim.Adam([*hidden, *head.parameters()], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = kind.loss(head(hidden, batch), batch)
        assert loss.shape == (len(batch["input_ids"]),)
        loss.mean().backward()
        optimizer.step()
    head.eval()
    with torch.inference_mode():
        scores = head(hidden, batch)
        return metrics[metric](predictions_of(kind, scores, batch, rows), kind.gold(rows))


def check_one_by_one(kind: Kind, rows: list[dict]) -> None:
    """A batch gives each example the loss and the answer it has alone, so padding changes nothing."""
    batch = batch_of(kind, rows)
    hidden, head = random_hidden(batch), stirred_head(kind).eval()
    scores = head(hidden, batch)
    loss, answers = kind.loss(scores, batch), kind.decode(scores, batch)
    for i in range(len(loss)):
        size = int(batch["attention_mask"][i].sum())
        alone = {name: _trimmed(tensor[i : i + 1]) for name, tensor in batch.items()}
        if "word_mask" in batch:
            alone["word_mask"] = batch["word_mask"][i : i + 1, : int(batch["word_mask"][i].sum())]
        states = Hidden(hidden.states[i : i + 1, :size], hidden.pooled[i : i + 1])
        alone |= {"input_ids": batch["input_ids"][i : i + 1, :size], "word_of": alone.get("word_of")}
        if alone["word_of"] is not None:
            alone["word_of"] = batch["word_of"][i : i + 1, :size]
        if "offsets" in batch:
            alone["offsets"] = batch["offsets"][i : i + 1, :size]
        alone["attention_mask"] = batch["attention_mask"][i : i + 1, :size]
        scores = head(states, alone)
        torch.testing.assert_close(kind.loss(scores, alone)[0], loss[i], rtol=1e-4, atol=1e-5)
        assert same(kind.decode(scores, alone)[0], answers[i])


def same(a, b) -> bool:
    if isinstance(a, float):
        return abs(a - b) < 1e-4
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def _trimmed(tensor: torch.Tensor) -> torch.Tensor:
    """Without the places of axis 1 that are all filling."""
    if tensor.dim() < 2:
        return tensor
    full = (tensor >= 0).flatten(2).any(2) if tensor.dim() > 2 else tensor >= 0
    return tensor[:, : int(full.sum())]
