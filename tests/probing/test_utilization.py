"""The best heads against layers, over n, and in fine-tuning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from plants import clouds, marked, planted

from headwise.errors import HeadwiseError
from headwise.probing import Reader, effect_of_n, fine_tune, probe, table, utilize
from headwise.probing.fitting import Labels, Vectors, fit
from headwise.probing.utilization import TUNING, Controls, controls


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


@pytest.mark.parametrize("protocol", ["sklearn", "control", "mdl"])
def test_scale_and_offset_of_features_do_not_matter(protocol):
    x, y = clouds(3, 240, 4, 3)
    scale, offset = torch.tensor([1e-3, 1.0, 1e3])[:, None, None], torch.randn(3, 1, 4)
    labels = Labels(*(part.numpy() for part in y.split(80)), classes=3)
    same = [fit(protocol, Vectors(*each.split(80, dim=1)), labels) for each in (x, scale * (x + offset))]
    assert torch.equal(same[0].predictions, same[1].predictions) and torch.equal(same[0].l2, same[1].l2)
    raw = [fit(protocol, Vectors(*each.split(80, dim=1)), labels, standardize=False) for each in (x, scale * x)]
    assert not torch.equal(raw[0].predictions, raw[1].predictions)


def test_standardizing_uses_the_training_rows_alone():
    x = torch.randn(2, 30, 5) * 3 + 7
    x[..., 2] = 0.1  # a constant, which rounding may not blow up
    found = Vectors(x[:, :10], x[:, 10:20], x[:, 20:]).standardized()
    other = Vectors(x[:, :10], torch.full((2, 4, 5), 1e6), x[:, 20:]).standardized()
    assert torch.equal(found.train, other.train) and torch.equal(found.test, other.test)
    varying = [0, 1, 3, 4]
    assert found.train[..., varying].mean(1).abs().max() < 1e-5
    assert (found.train[..., varying].std(1, correction=0) - 1).abs().max() < 1e-4
    assert (found.train[..., 2] == 0).all() and (found.test[..., 2] == 0).all()


def test_the_planted_head_beats_random_ones():
    model, tokenizer = planted()
    found = controls(probe(model, marked(), tokenizer=tokenizer), n=1, draws=12)
    assert found.top > 0.9 and found.p() < 0.4  # a draw of one in eight heads is the planted one now and then
    without = [score for score in found.random if score < 0.9]
    assert len(without) >= 6 and max(without) < found.top
    assert len(found.mixed) == 12 and 0 <= found.mean_last <= 1


def test_labels_that_mean_nothing_give_no_winner():
    model, tokenizer = planted()
    found = controls(probe(model, marked(200, shuffled=True), tokenizer=tokenizer), n=2, draws=10)
    assert abs(found.top - np.mean(found.random)) < 0.15
    with pytest.raises(HeadwiseError, match="0 draws"):
        controls(probe(model, marked(60), tokenizer=tokenizer), draws=0)


def test_means_that_were_kept_are_not_read_again(monkeypatch):
    model, tokenizer = planted()
    again, kept = (probe(model, marked(120), tokenizer=tokenizer, means=means) for means in (False, True))
    read = controls(again, n=1, draws=2)
    monkeypatch.setattr(Reader, "read", lambda *given, **options: pytest.fail("texts were read again"))
    assert controls(kept, n=1, draws=2) == read


def test_p_counts_the_chosen_heads_among_the_draws():
    scores = {"n": 2, "top": 0.8, "best_layer": 0.7, "mean_last": 0.6, "mean_best": 0.6}
    found = Controls("t", "accuracy", random=(0.5, 0.8, 0.9), mixed=(0.1, 0.2, 0.3), **scores)
    assert found.p() == 0.75 and found.p("mixed") == 0.25
    assert found.to_record()["p_mixed"] == 0.25 and "p = 0.750" in str(found)
