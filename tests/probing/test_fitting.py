"""Fitting probes: strengths, memory and classes with few rows."""

from __future__ import annotations

import pytest
import torch
from plants import clouds, marked, planted

from headwise.probing import probe
from headwise.probing.fitting import Labels, Vectors, fit
from headwise.tasks import Classify, Rows, Task
from headwise.testing import tiny, tiny_tokenizer

HEAD = (1, 2)


@pytest.fixture(scope="module")
def plant():
    return planted(*HEAD)


def test_little_memory_changes_nothing(plant, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    task = marked(120)
    for protocol in ("sklearn", "anatomy", "control", "mdl"):
        whole = probe(plant[0], task, tokenizer=plant[1], protocol=protocol)
        small = probe(plant[0], task, tokenizer=plant[1], protocol=protocol, memory=20_000)
        assert list(tmp_path.rglob("*.safetensors"))
        assert (whole.about["features"]["train"]["kept"], small.about["features"]["train"]["kept"]) == ("cpu", "disk")
        assert torch.equal(whole.accuracy, small.accuracy) and torch.equal(whole.dev, small.dev)


@pytest.mark.parametrize("protocol", ["control", "mdl"])
@pytest.mark.parametrize("classes", [2, 3])
def test_strengths_fitted_one_by_one_say_the_same_beside_the_score(protocol, classes):
    x, y = clouds(4, 120, 6, classes, reach=0.3)
    vectors, answers = Vectors(x[:, :60], x[:, 60:90], x[:, 90:]), y.numpy()
    labels = Labels(answers[:60], answers[60:90], answers[90:], classes)
    whole, small = fit(protocol, vectors, labels), fit(protocol, vectors, labels, memory=1)
    for name, expected in whole.more.items():
        torch.testing.assert_close(small.more[name], expected, rtol=1e-3, atol=1e-6)


def rows(*texts, label=lambda i: "ab"[i % 2]):
    return [{"text": text, "label": label(i)} for i, text in enumerate(texts)]


def words(prefix, count):
    return [f"{prefix}{i}" for i in range(count)]


def test_a_class_with_one_row_is_probed_and_noted():
    train = [*rows(*words("w", 12)), {"text": "w1 w2", "label": "c"}]
    sides = Rows(train, rows("w1 w3", "w2 w4"), rows("w5 w1", "w6 w2"))
    task = Task("t", Classify(("a", "b", "c", "d")), sides, "accuracy")
    found = probe(tiny("bert"), task, tokenizer=tiny_tokenizer(words("w", 12)))
    assert "one training row: c" in str(found) and "no training row: d" in str(found)
    assert found.accuracy.isfinite().all()


def test_vectors_that_are_all_the_same_are_read_at_the_most_frequent_class():
    model = tiny("bert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.value.weight.zero_()
    found = probe(model, marked(60), tokenizer=planted()[1])
    assert len(found.accuracy.unique()) == 1
