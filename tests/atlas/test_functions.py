"""Patching only the last token on a cache is patching a whole forward; prompts and their shuffled twins share words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headwise.atlas.functions import _mean_outputs, _patched, function_vectors, prompts
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, touched
from headwise.testing import no_dropout, tiny, tiny_tokenizer

PAIRS = [(f"x{i}", f"y{i}") for i in range(9)]
WORDS = ["Q:", "A:", *[word for pair in PAIRS for word in pair]]


def tokens():
    tokenizer = tiny_tokenizer(WORDS)
    tokenizer.backend_tokenizer.post_processor = None
    return tokenizer


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_a_patched_last_token_is_what_a_whole_forward_gives(family):
    model, tokenizer = no_dropout(tiny(family, auto="AutoModelForCausalLM")), tokens()
    heads = Heads.of(model)
    some = prompts(tokenizer, PAIRS, 3, shuffled=False)
    [test] = prompts(tokenizer, PAIRS, 1, shuffled=True, seed=1)
    with torch.no_grad():
        mean = _mean_outputs(model, heads, some)
        found = _patched(model, heads, test, [mean, 0 * mean])
        for m, (layer, head) in [(0, (0, 1)), (0, (1, 3)), (1, (1, 0))]:

            def touch(at, z, layer=layer, head=head, factor=1 - m):
                z = z.clone()
                if at == layer:
                    z[:, -1, head] = factor * mean[layer, head]
                return z

            with touched(model, touch, heads):
                logits = model(input_ids=torch.from_numpy(test.ids)[None]).logits[0, -1]
            assert found[m, layer, head] == pytest.approx(logits.softmax(-1)[test.answer].item(), abs=1e-6)


def test_shuffled_prompts_have_the_same_words_and_no_true_pair():
    tokenizer = tokens()
    for true, false in zip(prompts(tokenizer, PAIRS, 4, False), prompts(tokenizer, PAIRS, 4, True)):
        assert sorted(true.ids) == sorted(false.ids) and true.answer == false.answer
        words = tokenizer.convert_ids_to_tokens(false.ids.tolist())
        asked = words[-2]
        assert tokenizer.convert_ids_to_tokens(int(false.answer)) == asked.replace("x", "y")
        pairs = list(zip(words[1:-2:4], words[3::4]))
        assert pairs and not any(x.replace("x", "y") == y for x, y in pairs)


def test_every_task_is_a_role_and_all_together_one():
    model = no_dropout(tiny("llama", auto="AutoModelForCausalLM"))
    found = function_vectors(model, tokens(), {"one": PAIRS, "two": PAIRS[::-1]}, count=3)
    assert found.names == ("function", "one", "two") and found.texts.tolist() == [6, 3, 3]
    np.testing.assert_allclose(found.score[0], found.score[1:].mean(0))
    assert np.isfinite(found.score).all() and (found.score >= 0).all()


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(HeadwiseError, match="no next token"):
        function_vectors(tiny("llama"), tokens())
    with pytest.raises(HeadwiseError, match="more than the 5 examples"):
        prompts(tokens(), PAIRS[:4], 1, False)
