"""Every protocol finds the planted head and chooses by its own rule."""

from __future__ import annotations

import pytest
import torch
from plants import marked, planted

from headwise.errors import HeadwiseError
from headwise.probing import probe
from headwise.probing.measure import best_head

HEAD = (1, 2)


@pytest.fixture(scope="module")
def plant():
    return planted(*HEAD)


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
