"""Batches: every item once, nothing changed by padding, tokenised once per content, any place gone back to."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.io.files import cache_folder
from headwise.models.batching import GRAIN, Encoded, Order, Stream, batches, encode, sample
from headwise.tasks.columns import Ragged
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.kinds.wordlevel import encode_words
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny_tokenizer, toy_model, toy_tasks
from headwise.training.loop import fit
from headwise.training.plan import Plan

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=300).map(np.asarray)
WORDS = [f"w{i}" for i in range(20)]


@given(lengths, st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=40)
def test_an_epoch_is_every_item_once_in_batches_of_a_size(sizes, size, seed):
    made = Order(sizes, size).epoch([seed])
    assert sorted(np.concatenate(made)) == list(range(len(sizes)))
    assert all(1 <= len(batch) <= size for batch in made)


@given(lengths, st.integers(1, 400))
@settings(max_examples=40)
def test_a_token_budget_holds_unless_one_item_is_over_it(sizes, tokens):
    for made in (Order(sizes, tokens=tokens).epoch([0]), Order(sizes, tokens=tokens).plain()):
        assert sorted(np.concatenate(made)) == list(range(len(sizes)))
        assert all(len(batch) == 1 or len(batch) * sizes[batch].max() <= tokens for batch in made)


def test_a_token_budget_makes_few_shapes():
    """A recorded pass is worth its recording when its shape comes back: a width says how many rows go with it."""
    sizes = np.random.default_rng(0).geometric(0.05, 3000).clip(3, 120)
    order = Order(sizes, tokens=1600)
    shapes = Counter()
    for epoch in range(3):
        for batch in order.epoch([epoch]):
            width = -(-sizes[batch].max() // GRAIN) * GRAIN
            shapes[len(batch), width] += 1
            assert len(batch) <= 1600 // width
    whole = {shape: n for shape, n in shapes.items() if shape[0] == 1600 // shape[1]}
    assert len(whole) <= 120 // GRAIN + 1 and sum(whole.values()) > 0.97 * shapes.total()


def test_the_order_is_the_seeds_and_batches_hold_like_lengths():
    sizes = np.random.default_rng(0).integers(1, 100, 2000)
    one, same, other = (Order(sizes, 16).epoch(seed) for seed in ([0], [0], [1]))
    assert all(np.array_equal(a, b) for a, b in zip(one, same))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other))
    padded = sum(len(batch) * sizes[batch].max() for batch in one)
    assert padded < 1.1 * sizes.sum()  # random batches would pad by more than half
    longest = [sizes[batch].max() for batch in one]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)


def test_evaluation_takes_the_longest_first():
    sizes = np.random.default_rng(0).integers(1, 100, 300)
    made = Order(sizes, tokens=400).plain()
    longest = [sizes[batch].max() for batch in made]
    assert longest == sorted(longest, reverse=True)


@given(st.integers(1, 30), st.integers(0, 40))
@settings(max_examples=40)
def test_a_stream_goes_on_from_any_place(items, steps):
    sizes = np.arange(1, items + 1)
    data = Encoded({"input_ids": Ragged.of([[1] * n for n in sizes])}, 0, items)
    one, other = (Stream(data, Order(sizes, 4), (0, 1)) for _ in range(2))
    for _ in range(steps):
        one.next()
    other.load_state(one.state())
    assert all(np.array_equal(one.next(), other.next()) for _ in range(2 * len(one) + 1))


def test_padding_is_filled_and_masked():
    columns = {"input_ids": Ragged.of([[5, 6, 7], [8]]), "token_type_ids": Ragged.of([[0, 1, 1], [0]])}
    data = Encoded(columns | {"labels": Ragged.of([[2, 3], [4]]), "label": np.array([1, 0])}, pad=9, rows=2)
    batch = data.batch([1, 0])
    assert batch["input_ids"].tolist() == [[8, 9, 9], [5, 6, 7]]
    assert batch["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0], [0, 1, 1]]
    assert batch["labels"].tolist() == [[4, -1], [2, 3]]
    assert batch["label"].tolist() == [0, 1]


def test_words_have_a_mask_and_windows_places_in_steps_of_the_grain():
    """Never beyond the longest: an encoder has no positions for more."""
    columns = encode_words([{"words": ["w1"] * size} for size in (3, 18, 40)], tiny_tokenizer(WORDS), max_length=20)
    data = Encoded(columns, 0, 3)
    for items, grain, words, windows in [
        ([0], 1, 3, (1, 5)),
        ([0], 4, 4, (1, 8)),
        ([1, 0], 16, 32, (1, 20)),
        ([0, 2], 16, 40, (4, 20)),
    ]:
        batch = data.batch(items, grain)
        assert batch["word_mask"].sum(1).tolist() == [(3, 18, 40)[i] for i in items]
        assert batch["word_mask"].shape[1] == words and tuple(batch["window"].shape[1:]) == windows
        for row, i in zip(batch["window"], items, strict=True):
            assert row[row >= 0].tolist() == list(range(data.lengths[i]))  # every sub-word in one window


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "gpt2", "llama"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_padded_batch_gives_what_its_items_give_one_by_one(family, pooling):
    model = toy_model(1, family, pooling=pooling).eval()
    data = encode(model.tasks["toy0"], "dev", model.tokenizer)
    with torch.no_grad():
        together = model("toy0", data.batch(range(12)))
        alone = [model("toy0", data.batch([i])) for i in range(12)]
    assert torch.allclose(together.loss, torch.cat([out.loss for out in alone]), atol=1e-5)
    assert torch.allclose(together.scores, torch.cat([out.scores for out in alone]), atol=1e-5)


@dataclass(frozen=True)
class Counted(Classify):
    """Counts how often it tokenises."""

    def encode(self, rows, tokenizer, max_length):
        CALLS.append(len(rows))
        return super().encode(rows, tokenizer, max_length)


CALLS: list[int] = []


def task_of(rows: list[dict]) -> Task:
    return Task("t", Counted(("a", "b")), Rows(train=rows), "accuracy")


def test_the_same_content_is_tokenised_once_and_other_content_anew():
    CALLS.clear()
    tokenizer = tiny_tokenizer(WORDS)
    rows = [{"text": f"w{i} w{i + 1}", "label": "ab"[i % 2]} for i in range(7)]
    first = encode(task_of(rows), "train", tokenizer)
    again = encode(task_of([dict(row) for row in rows]), "train", tiny_tokenizer(WORDS))
    assert CALLS == [7]
    one, other = first.batch(range(7)), again.batch(range(7))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    encode(task_of(rows[:-1]), "train", tokenizer)
    encode(task_of(rows), "train", tokenizer, max_length=3)
    encode(task_of(rows), "train", tiny_tokenizer(WORDS[:-1]))
    encode(task_of(rows), "train", tokenizer, limit=4)
    assert CALLS == [7, 6, 7, 7, 4]


def test_no_flipped_bit_of_a_token_cache_is_believed(tmp_path, monkeypatch):
    """A flipped bit in the labels turns [0, 1] into [1, 1] and leaves a readable file."""
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    CALLS.clear()
    tokenizer = tiny_tokenizer(WORDS)
    rows = [{"text": f"w{i} w{i + 1}", "label": "ab"[i % 2]} for i in range(5)]
    right = encode(task_of(rows), "train", tokenizer).batch(range(5))
    [file] = cache_folder("tokens").glob("*.safetensors")
    whole = file.read_bytes()
    for place in range(8, len(whole), 5):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            seen = encode(task_of(rows), "train", tokenizer).batch(range(5))
        assert all(torch.equal(seen[name], right[name]) for name in right), place


def test_two_tokenizers_of_one_kind_do_not_share_a_cache(tmp_path):
    from transformers import EsmTokenizer

    files = []
    for letters in ("LAGV", "VGAL"):
        files.append(tmp_path / letters)
        files[-1].write_text("\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *letters, "<mask>"]))
    rows = [{"text": "LA", "label": "a"}, {"text": "GV", "label": "b"}]
    one, other = (encode(task_of(rows), "train", EsmTokenizer(str(file))).batch([0]) for file in files)
    assert one["input_ids"].tolist() != other["input_ids"].tolist()


def test_a_tokenizer_that_says_nothing_of_itself_is_not_cached():
    class Own:
        pad_token_id = 0

        def __call__(self, texts, *others, **how):
            return tiny_tokenizer(WORDS)(texts, *others, **how)

    CALLS.clear()
    rows = [{"text": "w1 w2", "label": "a"}, {"text": "w3", "label": "b"}]
    for _ in range(2):
        encode(task_of(rows), "train", Own())
    assert CALLS == [2, 2]


def test_the_side_a_tokenizer_cuts_is_part_of_what_it_does():
    rows, tokenizer = [{"text": "w1 w2 w3 w4", "label": "a"}], tiny_tokenizer(WORDS)
    ids = []
    for tokenizer.truncation_side in ("right", "left"):
        with pytest.warns(
            HeadwiseWarning, match=r"were truncated; use a larger max_length \(--max-length in training\)"
        ):
            ids.append(encode(task_of(rows), "train", tokenizer, max_length=4).columns["input_ids"][0].tolist())
    assert ids[0][1:-1] == tokenizer.convert_tokens_to_ids(["w1", "w2"])
    assert ids[1][1:-1] == tokenizer.convert_tokens_to_ids(["w3", "w4"])


KIND = """
from dataclasses import dataclass
from headwise.tasks.kinds.classify import Classify

def changed(text):
    return {change}

@dataclass(frozen=True)
class Mine(Classify):
    def encode(self, rows, tokenizer, max_length):
        return super().encode([{{**row, "text": changed(row["text"])}} for row in rows], tokenizer, max_length)
"""


def first_ids(kind: type[Classify]) -> list[int]:
    task = Task("t", kind(("a", "b")), Rows(train=[{"text": "w1 w2", "label": "a"}]), "accuracy")
    return encode(task, "train", tiny_tokenizer(WORDS)).columns["input_ids"][0].tolist()


def test_ones_own_kind_is_known_by_its_code(tmp_path, monkeypatch):
    """The second run of a script whose kind was edited in between."""
    monkeypatch.syspath_prepend(tmp_path)
    ids = []
    for change in ("text", "text[::-1].replace('2w', 'w2').replace('1w', 'w1')"):
        (tmp_path / "ownkind.py").write_text(KIND.format(change=change))
        monkeypatch.delitem(sys.modules, "ownkind", raising=False)
        ids.append(first_ids(importlib.import_module("ownkind").Mine))
    assert ids[1][1:-1] == ids[0][1:-1][::-1]


def test_ones_own_kind_whose_code_no_module_tells_is_not_kept():
    def made(step):
        @dataclass(frozen=True)
        class Local(Classify):
            def encode(self, rows, tokenizer, max_length):
                turned = [{**row, "text": " ".join(row["text"].split()[::step])} for row in rows]
                return super().encode(turned, tokenizer, max_length)

        return Local

    assert first_ids(made(1))[1:-1] == first_ids(made(-1))[1:-1][::-1]


def test_a_broken_cache_file_is_told_and_made_again():
    tokenizer, rows = tiny_tokenizer(WORDS), [{"text": "w1 w9 w3", "label": "a"}]
    first = encode(task_of(rows), "train", tokenizer)
    newest = max(cache_folder("tokens").glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:20])
    with pytest.warns(HeadwiseWarning, match=newest.name):
        again = encode(task_of(rows), "train", tokenizer)
    assert torch.equal(first.batch([0])["input_ids"], again.batch([0])["input_ids"])


def test_a_sample_is_seeded_and_in_order():
    rows = [{"n": i} for i in range(50)]
    one = sample(rows, 10)
    assert one == sample(rows, 10) != sample(rows, 10, seed=1)
    assert [row["n"] for row in one] == sorted({row["n"] for row in one})
    assert sample(rows, 50) == sample(rows, None) == rows


def test_all_items_come_once_with_their_numbers():
    model = toy_model(1)
    data = encode(model.tasks["toy0"], "train", model.tokenizer)
    seen = np.concatenate([items for items, _ in batches(data, tokens=100)])
    assert sorted(seen) == list(range(96))


def test_pictures_count_as_their_patches():
    """A budget of tokens bounds the number of pictures in a batch."""
    data = Encoded({"pixel_values": np.zeros((10, 3, 64, 64), np.float16), "label": np.zeros(10, int)}, 0, 10)
    assert data.lengths.tolist() == [16] * 10
    assert [len(items) for items in Order(data.lengths, tokens=64).plain()] == [4, 4, 2]


def test_a_task_with_no_training_data_is_named():
    task = toy_tasks(1)[0]
    model = toy_model(1)
    model.tasks["toy0"] = Task("toy0", task.kind, Rows(dev=task.rows("dev")), "accuracy")
    with pytest.raises(HeadwiseError, match="'toy0' has no train rows"):
        fit(model, Plan(steps=1))
    with pytest.raises(HeadwiseError, match="no training items"):
        Stream(Encoded({"input_ids": Ragged.of([])}, 0, 0), Order(np.empty(0, int)), (0,))


def test_rows_that_are_cut_are_counted_and_told():
    rows = [{"text": " ".join(["w1"] * n), "label": "a"} for n in (3, 30, 40)]
    task = Task("long", Classify(("a", "b")), Rows(train=rows), "accuracy")
    with pytest.warns(HeadwiseWarning, match="2 of 3 rows of long/train are longer than 16 tokens"):
        data = encode(task, "train", tiny_tokenizer(["w1"]), max_length=16)
    assert data.lengths.max() == 16
    with pytest.warns(HeadwiseWarning, match="2 of 3 rows"):  # also when read from the cache
        encode(task, "train", tiny_tokenizer(["w1"]), max_length=16)


@pytest.mark.parametrize("limit", [0, -3])
def test_a_sample_has_a_row_or_more(limit):
    with pytest.raises(HeadwiseError, match=f"a sample of {limit} rows; expected 1 or more"):
        sample([{"text": "a"}, {"text": "b"}], limit)
