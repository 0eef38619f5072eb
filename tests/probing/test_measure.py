"""Probing finds what was planted, and nothing where nothing is."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from plants import clouds, marked, planted
from scipy.stats import binom

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.heads.cutting import prune
from headwise.models.multitask import MultiTaskModel
from headwise.probing import probe
from headwise.probing.fitting import Labels, Vectors, fit
from headwise.probing.measure import best_head
from headwise.probing.splits import splits
from headwise.tasks import Classify, Regress, Rows, Tag, Task
from headwise.testing import tiny, tiny_tokenizer, toy_tasks

HEAD = (1, 2)


@pytest.fixture(scope="module")
def plant():
    return planted(*HEAD)


def test_the_planted_head_is_found_and_the_others_are_at_chance(plant):
    found = probe(plant[0], marked(), tokenizer=plant[1], protocol="control")
    assert found.ranking()[0] == HEAD and found.accuracy[HEAD] > 0.97
    low, high = (v / 200 for v in binom.interval(0.9995, 200, 0.5))
    others = torch.ones(2, 4, dtype=torch.bool)
    others[HEAD] = False
    assert ((found.accuracy[others] > low) & (found.accuracy[others] < high)).all()
    assert found.more["selectivity"][HEAD] > 0.4
    assert (found.more["selectivity"][others].abs() < 0.2).all()
    assert low < found.more["control"].min() and found.more["control"].max() < high  # shuffled labels are at chance
    assert found.layers[0] < high and found.layers[1] > 0.97  # it reaches the last layer's output through W_O


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


def test_labels_that_say_nothing_are_read_at_chance(plant):
    found = probe(plant[0], marked(shuffled=True), tokenizer=plant[1])
    assert found.accuracy.max() < binom.interval(0.9999, 200, 0.5)[1] / 200


def test_grades_are_read_by_pearson(plant):
    rows = {
        side: [row | {"label": 4.0 if row["label"] == "yes" else 1.0} for row in marked(300).rows(side)]
        for side in ("train", "dev", "test")
    }
    task = Task("graded", Regress(), Rows(**rows), "pearson")
    for protocol, options in (("sklearn", {}), ("anatomy", {"every": 10})):
        found = probe(plant[0], task, tokenizer=plant[1], protocol=protocol, **options)
        assert found.metric == "pearson" and found.chance == 0
        assert found.ranking()[0] == HEAD and found.accuracy[HEAD] > 0.9
    with pytest.raises(HeadwiseError, match="classes"):
        probe(plant[0], task, tokenizer=plant[1], protocol="mdl")


def test_pairs_are_probed_apart_or_together(plant):
    rows = marked(200).rows("train") + marked(200).rows("dev")
    made = [{"text": a["text"], "text_b": b["text"], "label": str(a["label"] == b["label"])} for a, b in pairwise(rows)]
    task = Task("pairs", Classify(("False", "True")), Rows(made[:150], made[150:200], made[200:]), "accuracy")
    apart = probe(plant[0], task, tokenizer=plant[1])
    assert apart.ranking()[0] == HEAD and apart.accuracy[HEAD] > 0.9 and apart.about["pair"] == "apart"
    assert probe(plant[0], task, tokenizer=plant[1], pair="together").about["pair"] == "together"


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


def test_a_multi_task_model_is_its_encoder(plant):
    task = marked(120)
    whole = probe(MultiTaskModel(plant[0], plant[1], [task]), "marker")
    assert torch.equal(whole.accuracy, probe(plant[0], task, tokenizer=plant[1]).accuracy)


def test_cut_heads_have_no_score():
    model, tokenizer = planted(*HEAD)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[0, 1] = True
    prune(model, mask)
    found = probe(model, marked(120), tokenizer=tokenizer)
    assert found.accuracy.isnan().tolist() == mask.tolist()
    assert len(found.ranking()) == 7 and "·" in str(found)
    with pytest.raises(HeadwiseError, match="1 to 7"):
        found.top(8)


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


def test_the_record_is_json_and_the_text_a_map(plant):
    found = probe(plant[0], marked(120), tokenizer=plant[1], protocol="control", l2=(1e-3, 1e-2))
    record = json.loads(json.dumps(found.to_record()))
    assert record["protocol"] == "control" and len(record["accuracy"]) == 2 and len(record["layers"]) == 2
    assert record["options"] == {"l2": [1e-3, 1e-2], "seed": 0}
    assert {strength for layer in record["l2"] for strength in layer} <= {1e-3, 1e-2}
    lines = str(found).splitlines()
    assert lines[1].startswith("layer 1") and lines[2].startswith("layer 0") and "█" in lines[1]
    assert f"best head {HEAD[0]}.{HEAD[1]}: " in str(found)


@pytest.mark.parametrize(("protocol", "names"), [("control", ("control", "selectivity")), ("mdl", ("code",))])
def test_what_a_protocol_adds_is_printed(plant, protocol, names):
    found = probe(plant[0], marked(120), tokenizer=plant[1], protocol=protocol, l2=(1e-3, 1e-2))
    for name in names:
        value = found.more[name][found.best(1)[0]]
        assert (f"{name} {value:.0f} bits" if name == "code" else f"{name} {value:.3f}") in str(found)


def test_the_best_n(plant):
    found = probe(plant[0], marked(120), tokenizer=plant[1])
    assert found.best(3)[0] == HEAD and found.mask(3).sum() == 3 and found.mask(3)[HEAD]
    for n in (0, 9):
        with pytest.raises(HeadwiseError, match="1 to 8"):
            found.best(n)


def test_names_and_options_are_checked_before_a_sentence_is_read(plant):
    task, said = marked(60), []
    with pytest.raises(HeadwiseError, match="protocol"):
        probe(plant[0], task, tokenizer=plant[1], protocol="sklern", say=said.append)
    with pytest.raises(HeadwiseError, match="no option 'tenacity'"):
        probe(plant[0], task, tokenizer=plant[1], tenacity=3, say=said.append)
    assert not said
    with pytest.raises(HeadwiseError, match="folds"):
        probe(plant[0], task, tokenizer=plant[1], folds=1)


# -- sides


def rows(*texts, label=lambda i: "ab"[i % 2]):
    return [{"text": text, "label": label(i)} for i, text in enumerate(texts)]


def words(prefix, count):
    return [f"{prefix}{i}" for i in range(count)]


TASK = Task(
    "t", Classify(("a", "b")), Rows(rows(*words("x", 20)), rows(*words("y", 6)), rows(*words("z", 6))), "accuracy"
)


def leaky():
    train = rows(*words("x", 20), "Y1 !", "z 2", "z3")
    return replace(TASK, source=Rows(train, rows(*words("y", 6), "z0"), rows(*words("z", 6))), _read={})


def test_sides_never_share_a_sentence():
    with pytest.warns(HeadwiseWarning, match="dropped"):
        found = splits(leaky())
    assert found.sizes == {"train": 20, "dev": 6, "test": 6}
    assert len(found.notes) == 2 and "3 of 23 train rows" in " ".join(found.notes)
    with pytest.raises(HeadwiseError, match="share no text"):
        splits(leaky(), shared="refuse")
    with pytest.warns(HeadwiseWarning, match="kept"):
        assert splits(leaky(), shared="keep").sizes["train"] == 23


def test_without_test_rows_dev_judges_and_training_rows_choose():
    found = splits(toy_tasks(1)[0])
    assert found.sizes == {"train": 86, "dev": 10, "test": 48} and "dev judges" in found.notes[0]
    assert splits(toy_tasks(1)[0]).key == found.key != splits(toy_tasks(1)[0], seed=1).key
    with pytest.raises(HeadwiseError, match="dev or test"):
        splits(replace(TASK, source=Rows(TASK.rows("train")), _read={}))


def test_a_limit_keeps_a_fifth_on_the_other_sides():
    assert splits(TASK, limit=10).sizes == {"train": 10, "dev": 2, "test": 2}


@pytest.mark.parametrize(
    ("kind", "train", "told"),
    [
        (Classify(("a", "b")), rows(*words("x", 6), label=lambda i: "a"), "one class"),
        (Classify(tuple("abcdefghij")), rows(*words("x", 6)), "10 classes for 6"),
        (Regress(), rows(*words("x", 6), label=lambda i: 2.0), "all the same"),
    ],
)
def test_what_cannot_be_probed_is_refused(kind, train, told):
    held = rows(*words("y", 3), label=(lambda i: float(i)) if isinstance(kind, Regress) else lambda i: "ab"[i % 2])
    task = Task("t", kind, Rows(train, held, [r | {"text": r["text"] + "z"} for r in held]), "accuracy")
    with pytest.raises(HeadwiseError, match=told):
        splits(task)


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


def test_word_level_tasks_are_refused():
    rows = [{"words": ["a"], "labels": ["X"]}]
    with pytest.raises(HeadwiseError, match="Classify or Regress"):
        probe(tiny("bert"), Task("t", Tag(), Rows(rows, rows, rows), "tag_accuracy"), tokenizer=planted()[1])
