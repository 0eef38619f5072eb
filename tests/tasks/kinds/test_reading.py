"""How prompts become tokens: the conventions of lm-evaluation-harness, each an option, and what cannot be read."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.tasks.kinds.reading import Pair, Reading
from headwise.testing import tiny_tokenizer, toy_language_model

WORDS = [f"w{i}" for i in range(20)]


@pytest.fixture(scope="module")
def tokenizer():
    return toy_language_model("llama").tokenizer


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_an_empty_prompt_is_bos_or_else_eos_or_a_text(tokenizer):
    one = ids(tokenizer, "w1")
    assert Reading().pair("", "w1", tokenizer) == Pair([tokenizer.bos_token_id], one, [])
    assert Reading(empty="eos").pair("", "w1", tokenizer) == Pair([tokenizer.eos_token_id], one, [])
    assert Reading(empty="w2").pair("", "w1", tokenizer) == Pair(ids(tokenizer, "w2"), one, [])
    assert Reading().pair("", "[CLS] w1", tokenizer) == Pair([tokenizer.bos_token_id], one, [])  # BOS once
    bare = tiny_tokenizer(WORDS)
    with pytest.raises(HeadwiseError, match="without BOS and EOS"):
        Reading().pair("", "w1", bare)


class Letters:
    """A tokenizer that tells every letter, so that spaces show."""

    bos_token_id, eos_token_id, chat_template = 0, 1, None

    def encode(self, text, add_special_tokens=True, **_):
        return [ord(letter) for letter in text]

    def decode(self, token):
        return "\0"


def texts(pair: Pair) -> tuple[str, str]:
    return "".join(map(chr, pair.prompt)), "".join(map(chr, pair.continuation))


def test_a_continuation_is_a_space_and_the_choice_and_takes_white_space_of_the_prompt():
    assert texts(Reading().pair("a", "b", Letters())) == ("a", " b")
    assert texts(Reading().pair("a \n", "b", Letters())) == ("a", " \n b")
    assert texts(Reading(delimiter="").pair("a", "b", Letters())) == ("a", "b")
    assert texts(Reading(joint=False).pair("a", "b", Letters())) == ("a", " b")


class Merging(Letters):
    """A tokenizer that joins two letters: what is encoded together differs from what is encoded apart."""

    def encode(self, text, add_special_tokens=True, **_):
        return [ord(c) for c in text.replace("ab", "X")]


def test_prompt_and_continuation_are_encoded_together_and_cut_at_the_prompts_length():
    assert texts(Reading(delimiter="").pair("ca", "bd", Merging())) == ("ca", "d")
    assert texts(Reading(delimiter="", joint=False).pair("ca", "bd", Merging())) == ("ca", "bd")
    with pytest.raises(HeadwiseError, match="has no tokens"):
        Reading(delimiter="").encode([(["ca"], ["b"])], Merging(), 9)


def test_what_choices_share_is_packed_once():
    columns, cut = Reading(delimiter="").encode([(["ab", "ab"], ["cde", "cdf"])], Letters(), 9)
    assert "".join(map(chr, columns["input_ids"][0])) == "abcdef"
    assert columns["part"][0].tolist() == [0, 0, 0, 0, 1, 2]
    assert columns["target"][0].tolist() == [0, 0, 1, 1, 1, 1]
    assert columns["tokens"][0].tolist() == [3, 3] and cut.tolist() == [0]


def test_equal_choices_keep_their_last_token():
    columns, _ = Reading(delimiter="").encode([(["ab", "ab"], ["c", "c"])], Letters(), 9)
    assert columns["part"][0].tolist() == [0, 0, 1, 2]


def test_prompts_of_their_own_share_what_they_begin_with():
    columns, _ = Reading(delimiter="").encode([(["ab", "ac"], ["d", "d"])], Letters(), 9)
    assert "".join(map(chr, columns["input_ids"][0])) == "abdcd"
    assert columns["part"][0].tolist() == [0, 1, 1, 2, 2]
    assert columns["target"][0].tolist() == [0, 0, 1, 0, 1]


def test_what_is_too_long_is_refused_or_cut_on_the_left():
    rows = [(["abcdef"], ["gh"])]
    with pytest.raises(HeadwiseError, match="a prompt and choice of 7 tokens; expected 5 at most"):
        Reading(delimiter="").encode(rows, Letters(), 5)
    columns, cut = Reading(delimiter="", long="left").encode(rows, Letters(), 5)
    assert "".join(map(chr, columns["input_ids"][0])) == "cdefgh" and cut.tolist() == [2]
    with pytest.raises(HeadwiseError, match="tokens; expected"):
        Reading(delimiter="", long="left").encode([(["ab"], ["cdefgh"])], Letters(), 3)


def test_masked_models_mask_the_continuation_alone():
    tokenizer = tiny_tokenizer(WORDS)
    reading = Reading(form="masked")
    pair = reading.pair("w1 w2", "w3", tokenizer)
    assert pair == Pair([1, *ids(tokenizer, "w1 w2")], ids(tokenizer, "w3"), [2])
    whole = reading.pair("", "w1 w2", tokenizer)
    assert whole == Pair([1], ids(tokenizer, "w1 w2"), [2])


def test_chat_puts_prompts_into_the_template(tokenizer):
    reading = Reading(chat=True)
    with pytest.raises(HeadwiseError, match="without a chat template"):
        reading.encode([(["w1"], ["w2"])], tokenizer, 9)
    tokenizer.chat_template = "{{ bos_token }} w5 {{ messages[0]['content'] }} w6 "
    pair = reading.pair("w1", "w2", tokenizer)
    tokenizer.chat_template = None
    assert pair == Pair([tokenizer.bos_token_id, *ids(tokenizer, "w5 w1 w6")], ids(tokenizer, "w2"), [])


def test_options_are_checked_and_described():
    assert Reading(delimiter="", form="masked").describe() == {"form": "masked", "delimiter": ""}
    for wrong in ({"form": "casual"}, {"long": "right"}):
        with pytest.raises(HeadwiseError, match="unknown"):
            Reading(**wrong)
    with pytest.raises(HeadwiseError, match="without a mask token"):
        Reading(form="masked").encode([(["a"], ["b"])], Letters(), 9)


def test_counts_are_those_of_tokens(tokenizer):
    columns, _ = Reading().encode([(["w1"] * 3, ["w2", "w3 w4", "w5 w6 w7"])], tokenizer, 20)
    assert columns["tokens"][0].tolist() == [1, 2, 3]
    assert np.bincount(columns["part"][0]).tolist() == [1, 1, 2, 3]
