"""Recordings as tensors for speech models, and what is said in them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from headwise.errors import HeadwiseError
from headwise.measuring.evaluate import evaluate
from headwise.models.opening import open_subject
from headwise.scoring.importance import importance
from headwise.tasks import own
from headwise.tasks.kinds.sound import Sound, Transcript, read_sound
from headwise.testing import playground, speech_playground


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return speech_playground(tmp_path_factory.mktemp("speech"))


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 2])
def test_any_wav_is_one_channel_from_minus_one_to_one_at_the_rate_asked_for(tmp_path, dtype, channels):
    wave = np.sin(2 * np.pi * 50 * np.arange(8000) / 8000)
    own_range = {np.int16: (0, 2**15 - 1), np.int32: (0, 2**31 - 1), np.uint8: (128, 127), np.float32: (0, 1)}
    middle, most = own_range[dtype]
    stored = (middle + most * wave).astype(dtype)
    wavfile.write(tmp_path / "a.wav", 8000, np.stack([stored] * channels, 1) if channels > 1 else stored)
    same, faster = read_sound(tmp_path / "a.wav", 8000), read_sound(tmp_path / "a.wav", 16000)
    assert np.abs(same - wave).max() < 0.02 and len(faster) == 2 * len(same)
    assert np.abs(faster[1000:-1000:2] - wave[500:-500]).max() < 0.02


def test_bad_recordings_are_refused(tmp_path, place):
    (tmp_path / "broken.wav").write_bytes(b"not a recording")
    wavfile.write(tmp_path / "empty.wav", 16000, np.zeros(0, np.int16))
    for name, says in (("none", "no file"), ("broken", "not a readable recording"), ("empty", "without any sound")):
        with pytest.raises(HeadwiseError, match=says):
            read_sound(tmp_path / f"{name}.wav", 16000)
    wavfile.write(tmp_path / "long.wav", 16000, np.zeros(40000, np.int16))
    said = open_subject(place / "whisper-tiny", [own(f"clips={place}/clips.csv:path,text")])
    with pytest.raises(HeadwiseError, match=r"of 2 s; expected 1 s or less"):
        Transcript().encode([{"path": str(tmp_path / "long.wav"), "text": "a"}], said.tokenizer, 16)
    with pytest.raises(HeadwiseError, match="what is said"):
        Transcript().check({"path": "a.wav", "text": " "})
    with pytest.raises(HeadwiseError, match="a recording's file"):
        Sound(("a", "b")).check({"label": "a"})


def test_a_classifier_of_recordings_answers_as_in_transformers(place):
    task = own(f"tones={place}/tones")
    subject = open_subject(place / "tone-model", [task])
    score, rows = evaluate(subject, "tones"), subject.tasks["tones"].rows("dev")
    for row, found in zip(rows, score.predictions, strict=True):
        rate, sound = wavfile.read(row["path"])
        heard = subject.tokenizer(sound / 32767, sampling_rate=rate, return_tensors="pt")
        assert int(subject.model(heard.input_values.float()).logits.argmax()) == found
    assert importance(subject, "tones", examples=4).scores.shape == (2, 4)


def test_transcripts_have_the_likelihoods_of_their_words(place):
    subject = open_subject(place / "whisper-tiny", [own(f"clips={place}/clips.csv:path,text")])
    assert subject.attention.stack == "encoder+decoder+cross" and subject.attention.num_layers == 8
    score, rows = evaluate(subject, "clips"), subject.tasks["clips"].rows("dev")
    processor = subject.tokenizer
    for row, found in zip(rows, score.predictions, strict=True):
        sound = read_sound(place / row["path"], 16000)
        heard = processor.feature_extractor(sound, sampling_rate=16000, return_tensors="pt").input_features
        ids = torch.tensor([processor.tokenizer(row["text"]).input_ids])
        logits = subject.model(heard, decoder_input_ids=ids[:, :-1]).logits[0].detach()
        chosen = logits.log_softmax(-1)[torch.arange(ids.shape[1] - 1), ids[0, 1:]]
        text = slice(1, -1)  # not <|notimestamps|> and not <|endoftext|>
        assert found.total == pytest.approx(chosen[text].sum().item(), abs=1e-4)
        assert found.tokens == len(chosen[text])
    scores = importance(subject, "clips", examples=4)
    assert scores.scores.shape == (8, 4) and bool((scores.scores[2:] > 0).any())
    closed = torch.ones(1, 8, 4)
    closed[0, 3] = 0
    assert evaluate(subject, "clips", closed, "mean")[0].value != score.value


def test_a_model_that_does_not_hear_is_refused(place, tmp_path):
    playground(tmp_path)
    with pytest.raises(HeadwiseError, match="which has no output head for a task"):
        open_subject(tmp_path / "bert-tiny", [own(f"tones={place}/tones")])
    with pytest.raises(HeadwiseError, match="of kind Classify for Wav2Vec2ForSequenceClassification"):
        open_subject(place / "tone-model", [own(f"reviews={tmp_path}/reviews.csv:text,label")])
