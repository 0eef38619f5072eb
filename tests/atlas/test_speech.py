"""Alignment: order is order, a warped path finds planted onsets, and heads are written where others read them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from headwise.atlas import speech
from headwise.atlas.speech import Aligned, Clip, alignment, best_heads, in_order, monotonic, onset_errors, word_onsets
from headwise.errors import HeadwiseError
from headwise.testing import tiny

STARTS = np.array([2, 9, 14, 30])  # frames at which four tokens begin


def maps(seed: int, follows: bool) -> np.ndarray:
    """Three layers of four heads; heads 0.1 and 2.3 follow the speech, the others look anywhere."""
    rng = np.random.default_rng(seed)
    found = rng.dirichlet(np.ones(40) * 0.2, (3, 4, 4))
    ends = [*STARTS[1:], 40]
    for layer, head in ((0, 1), (2, 3)) if follows else ():
        for token, (start, end) in enumerate(zip(STARTS, ends)):
            found[layer, head, token] = 0.001
            found[layer, head, token, start:end] += 1 / (end - start)
    return found


@pytest.fixture
def planted(monkeypatch):
    """Maps in place of a model: clips with the wrong sound (that of another clip) are not followed."""

    def aligned(model, processor, clips):
        for clip in clips:
            own = clip.text == f"clip {clip.sound[0]:.0f} has words"
            yield Aligned(maps(int(clip.sound[0]) + 100 * (not own), own), np.array([0, 1, 2, 3]))

    monkeypatch.setattr(speech, "_aligned", aligned)
    model = tiny("whisper", auto="AutoModelForSpeechSeq2Seq", decoder_layers=3)
    onsets = STARTS * speech.FRAME / speech.RATE
    clips = [Clip(np.full(40 * speech.FRAME, float(i)), f"clip {i} has words", onsets) for i in range(24)]
    return model, clips


def test_planted_heads_align_and_the_sound_of_another_clip_does_not(planted):
    model, clips = planted
    found = alignment(model, None, clips)
    assert monotonic(found) == [(0, 1), (2, 3)]
    assert found.holds()[0].sum() == 2 and found.score[0, 0, 1] == 1 and found.control[0, 0, 1] < 0.7


def test_onsets_of_aligning_heads_are_those_planted(planted):
    model, clips = planted
    errors = onset_errors(model, None, clips[:6])
    assert best_heads(errors, (3, 4)) == [(0, 1), (2, 3)]
    both, other = onset_errors(model, None, clips[6:10], [[(0, 1), (2, 3)], [(1, 0), (1, 1)]]).mean(0)
    assert both <= 2 * speech.FRAME / speech.RATE < other
    np.testing.assert_allclose(word_onsets(model, None, clips[0], [(0, 1)]), clips[0].onsets, atol=0.041)


def test_heads_are_written_and_saved(planted, tmp_path):
    from transformers import GenerationConfig

    model, clips = planted
    model.generation_config = GenerationConfig()  # a file of its own, as released checkpoints have
    with pytest.raises(HeadwiseError, match="no alignment heads"):
        word_onsets(model, None, clips[0])
    speech.write_heads(model, [(0, 1), (2, 3)])
    model.generation_config.save_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).alignment_heads == [[0, 1], [2, 3]]
    assert len(word_onsets(model, None, clips[0])) == 4
    with pytest.raises(HeadwiseError, match=r"head 7\.0"):
        speech.write_heads(model, [(7, 0)])


def test_order_is_kendalls_tau_of_peaks():
    rows = np.eye(5)[None, None]
    assert in_order(rows)[0, 0] == pytest.approx(1) and in_order(rows[..., ::-1])[0, 0] == pytest.approx(0)


def test_a_real_forward_gives_rows_of_the_text_and_frames_of_the_sound():
    """Through a tiny Whisper and a processor of its shape: one row for each token of the text, whole distributions."""
    model = tiny("whisper", auto="AutoModelForSpeechSeq2Seq")
    spell = lambda text, **_: SimpleNamespace(input_ids=[5 + len(word) for word in text.split()] if text else [1, 3, 2])  # noqa: E731
    tokenizer = type(
        "Spelling",
        (),
        {"eos_token_id": 2, "decode": lambda self, ids: f" {ids[0]}", "__call__": lambda self, *a, **k: spell(*a, **k)},
    )()
    features = lambda sound, **_: SimpleNamespace(input_features=__import__("torch").ones(1, 8, 32))  # noqa: E731
    processor = SimpleNamespace(tokenizer=tokenizer, feature_extractor=features)
    [seen] = speech._aligned(model, processor, [Clip(np.zeros(9 * speech.FRAME), "a few words")])
    assert seen.maps_LHTF.shape == (3, 4, 3, 9) and seen.word_T.tolist() == [0, 1, 2]
    [long] = speech._aligned(model, processor, [Clip(np.zeros(99 * speech.FRAME), "a few words")])
    np.testing.assert_allclose(long.maps_LHTF.sum(-1), 1, atol=1e-5)
    assert model.config._attn_implementation != "eager"


def test_clips_without_what_is_asked_are_refused(planted):
    model, clips = planted
    with pytest.raises(HeadwiseError, match="two or more"):
        alignment(model, None, clips[:1])
    with pytest.raises(HeadwiseError, match="without onsets"):
        onset_errors(model, None, [Clip(clips[0].sound, clips[0].text)])
