"""Probing finds what was planted, and nothing where nothing is."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from plants import marked, planted
from scipy.stats import binom

from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.models.multitask import MultiTaskModel
from headwise.probing import probe
from headwise.probing.measure import heat_map
from headwise.tasks import Classify, Regress, Rows, Tag, Task
from headwise.testing import tiny

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
        probe(plant[0], task, tokenizer=plant[1], protocol="sklern", log=said.append)
    with pytest.raises(HeadwiseError, match="no option 'tenacity'"):
        probe(plant[0], task, tokenizer=plant[1], tenacity=3, log=said.append)
    assert not said
    with pytest.raises(HeadwiseError, match="folds"):
        probe(plant[0], task, tokenizer=plant[1], folds=1)


# -- sides


def rows(*texts, label=lambda i: "ab"[i % 2]):
    return [{"text": text, "label": label(i)} for i, text in enumerate(texts)]


def words(prefix, count):
    return [f"{prefix}{i}" for i in range(count)]


def test_word_level_tasks_are_refused():
    rows = [{"words": ["a"], "labels": ["X"]}]
    with pytest.raises(HeadwiseError, match="Classify or Regress"):
        probe(tiny("bert"), Task("t", Tag(), Rows(rows, rows, rows), "tag_accuracy"), tokenizer=planted()[1])


def test_a_terminal_map_has_the_first_layer_at_the_bottom():
    lines = heat_map([[0.5, np.nan], [0.9, 0.7]]).splitlines()
    assert lines[0].startswith("layer 1") and "█" in lines[0] and lines[1].split()[2] == "▁·"
