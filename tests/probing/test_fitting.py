"""Fitting probes: strengths, memory and classes with few rows."""

from __future__ import annotations

import pytest
import torch
from plants import clouds, marked, planted

from headwise.errors import HeadwiseError
from headwise.probing import probe
from headwise.probing.fitting import Labels, Vectors, fit
from headwise.probing.measure import best_head
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


# -- every protocol finds the planted head and chooses by its own rule


@pytest.mark.parametrize("protocol", ["sklearn", "anatomy", "mdl"])
def test_every_protocol_finds_the_plant(plant, protocol):
    found = probe(plant[0], marked(), tokenizer=plant[1], protocol=protocol)
    assert found.ranking()[0] == HEAD and found.accuracy[HEAD] > 0.9
    if protocol == "mdl":
        assert found.more["compression"][HEAD] > 5
        rest = found.more["compression"].flatten().sort().values[:-1]
        assert (rest < 1.1).all()


@pytest.mark.parametrize("protocol", ["sklearn", "anatomy"])
def test_folds_choose_as_well(plant, protocol):
    found = probe(plant[0], marked(300), tokenizer=plant[1], protocol=protocol, folds=3)
    assert found.ranking()[0] == HEAD and found.dev[HEAD] > 0.9 and found.about["options"]["folds"] == 3


def test_heads_are_chosen_on_dev_unless_the_test_side_is_asked_for(plant):
    task = marked(120)
    dev = probe(plant[0], task, tokenizer=plant[1])
    test = probe(plant[0], task, tokenizer=plant[1], select_on="test")
    assert torch.equal(dev.accuracy, test.accuracy)
    assert dev.to_record()["select_on"] == "dev" and test.to_record()["select_on"] == "test"
    assert dev.scores is dev.dev and test.scores is test.accuracy
    for found in (dev, test):
        found.accuracy[0, 1] = found.dev[1, 0] = 2.0  # better than all else, each on one side
        layer, head, score = best_head(found.to_record())
        assert (layer, head) == found.best(1)[0] and score == found.accuracy[layer, head]
    assert dev.best(1) == [(1, 0)] and test.best(1) == [(0, 1)]
    with pytest.raises(HeadwiseError, match="side to select on"):
        probe(plant[0], task, tokenizer=plant[1], select_on="train")
