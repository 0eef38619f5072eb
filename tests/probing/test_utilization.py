"""The best heads against layers, over n, and in fine-tuning."""

from __future__ import annotations

import pytest
import torch
from plants import marked, planted

from headwise.errors import HeadwiseError
from headwise.probing import effect_of_n, fine_tune, probe, table, utilize
from headwise.probing.utilization import TUNING


@pytest.fixture(scope="module")
def found():
    model, tokenizer = planted(0, 2)
    return probe(model, marked(200), tokenizer=tokenizer)


def test_top_heads_are_judged_with_what_dev_chose(found):
    use = utilize(found, 2)
    assert use.heads[0] == (0, 2) and use.layer == found.best_layer() and use.select_on == "dev"
    assert use.scores["last"].value == pytest.approx(found.layers[-1].item(), abs=1e-6)
    assert use.scores["best"].value == pytest.approx(found.layers[found.best_layer()].item(), abs=1e-6)
    assert use.scores["top"].value > 0.9 and use.scores["top"].low <= use.scores["top"].value <= use.scores["top"].high
    assert use.gain() == pytest.approx(use.scores["top"].value / use.scores["last"].value - 1)
    assert use.gain("last") == 0
    assert "better than the best layer on" in table([use, use]) and use.to_record()["n"] == 2


def test_one_head_together_is_that_head(found):
    curve = effect_of_n(found, [1, 3, 8])
    layer, head = found.best(1)[0]
    assert curve.test[0] == pytest.approx(found.accuracy[layer, head].item(), abs=1e-6)
    assert curve.dev[0] == pytest.approx(found.dev[layer, head].item(), abs=1e-6) and len(curve.test) == 3
    assert effect_of_n(found).sizes == (1, 2, 3, 5, 8) and "8:" in str(curve)
    with pytest.raises(HeadwiseError, match="1 to 8"):
        effect_of_n(found, [9])


def test_fine_tuning_trains_the_classifier_and_leaves_the_probed_model(found):
    encoder = found.bench.reader.encoder
    before = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    tuned = fine_tune(found, 2, seeds=(0, 1), plan=TUNING.with_(epochs=1, lr=3e-3), keep=True, device="cpu")
    assert all(torch.equal(weight, before[name]) for name, weight in encoder.state_dict().items())
    assert {name: len(scores) for name, scores in tuned.scores.items()} == {"last": 2, "best": 2, "top": 2}
    last, best, top = tuned.models
    assert (
        best.layer == found.best_layer() + 1 and top.use_heads.sum() == 2 and top.use_heads[0, 2] and last.layer is None
    )
    for model in tuned.models:
        head = model.heads["marker"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            fresh = type(head)(model.width, 2, inner=True)
        for name, weight in head.named_parameters():
            assert not torch.allclose(weight, fresh.get_parameter(name), atol=1e-4), f"{name} was not trained"
    assert tuned.median("top") > 0.9 and tuned.split == "test" and "top 2 heads" in str(tuned)
    assert tuned.to_record()["medians"]["top"] == tuned.median("top")


def test_inputs_are_checked(found):
    with pytest.raises(HeadwiseError, match="input of the classifier"):
        fine_tune(found, inputs=("first",))
    with pytest.raises(HeadwiseError, match="seeds"):
        fine_tune(found, seeds=())
