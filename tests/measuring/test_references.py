"""Laws of what closed heads return."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import captured
from headwise.measuring import references
from headwise.measuring.evaluate import evaluate
from headwise.measuring.references import lesion_losses, matched_tokens
from headwise.models.multitask import MultiTaskModel
from headwise.scoring.importance import importance
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, tiny_tokenizer, toy_model


@pytest.fixture(scope="module")
def model():
    return toy_model(2, rows=24).double().eval()


def outputs(model, data, items):
    with torch.no_grad(), captured(model.encoder, torch.clone) as layers:
        model("toy0", data.batch(items))
    return torch.stack(layers, 2)


def test_the_mean_is_over_real_tokens(model):
    data = model.encode("toy0", "train")
    alone = torch.cat([outputs(model, data, [item])[0] for item in range(len(data))])  # tokens of all examples
    for tokens in (30, 4096):
        torch.testing.assert_close(references.mean(model, "toy0", tokens=tokens), alone.mean(0))


def test_resampled_outputs_are_those_of_another_example_in_any_batches(model):
    data = model.encode("toy0", "dev")
    donors = references.resample(model, "toy0", data)
    together = donors(range(len(data)), data.batch(range(len(data))))
    given = [outputs(model, data, [item])[0] for item in range(len(data))]
    for item, length in enumerate(data.lengths):
        mine = together[item, :length]
        torch.testing.assert_close(donors([item], data.batch([item]))[0], mine)
        donor = [z for number, z in enumerate(given) if number != item and torch.allclose(z[0], mine[0])]
        assert donor and torch.allclose(donor[0][: len(mine)], mine[: len(donor[0])])


def test_tokens_are_matched_by_their_number_on_whichever_side_is_padding():
    own = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3]])
    donor = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]).bool()
    assert matched_tokens(own, donor)[0, 1:].tolist() == [0, 1, 2]
    assert matched_tokens(own, donor)[1].tolist() == [3, 4, 3, 4]


def test_the_optimal_constant_is_no_worse_than_zero_and_the_mean_for_any_head(model):
    data = model.encode("toy0", "train", limit=16)
    constants = [None, references.mean(model, "toy0", data=data), references.optimal(model, "toy0", data=data)]
    zero, mean, optimal = (lesion_losses(model, "toy0", data, r, model.attention) for r in constants)
    assert (optimal <= mean + 1e-12).all() and (optimal <= zero + 1e-12).all()
    assert (optimal < torch.minimum(mean, zero) - 1e-6).any(), "something was learned"
    assert all(p.requires_grad for p in model.parameters())


def test_closing_with_its_own_mean_is_gentler_than_with_a_far_constant(model):
    gates = torch.stack([torch.ones(2, 4), torch.zeros(2, 4)])
    for close in references.CLOSE:
        whole, closed = evaluate(model, "toy0", gates, close)
        assert whole.predictions == evaluate(model, "toy0").predictions
        assert closed.examples == whole.examples
    constant = torch.randn(2, 4, model.attention.head_dim)
    with pytest.raises(HeadwiseError, match="unknown reference"):
        evaluate(model, "toy0", gates, "nothing")
    assert evaluate(model, "toy0", gates, constant)[0].predictions == whole.predictions


def test_lesions_with_a_reference_do_not_depend_on_the_batches(model):
    gates = torch.zeros(1, 2, 4)
    for close in ("mean", "resample"):
        whole = evaluate(model, "toy0", gates, close)[0].predictions
        assert evaluate(model, "toy0", gates, close, tokens=30)[0].predictions == whole


# -- twins

WORDS = [f"w{i}" for i in range(8)]


def twins(rows):
    task = Task("t", Classify(("a", "b")), Rows(train=rows, dev=rows), "accuracy")
    return MultiTaskModel(tiny("bert"), tiny_tokenizer(WORDS), [task]).double().eval()


def test_attribution_patching_is_exact_to_first_order():
    rows = [{"text": f"w{i} w1 w2", "label": "ab"[i % 2], "twin": {"text": f"w{i} w3 w2"}} for i in range(6)]
    model = twins(rows)
    data, reference = model.encode("t", "train"), references.twin(model, "t")
    batch, step = data.batch(range(6)), 1e-5
    r, z = reference(range(6), batch), None
    with captured(model.encoder, torch.clone) as layers:
        whole = model("t", batch).loss
    z = torch.stack(layers, 2)
    assert not torch.allclose(r, z)
    slopes = torch.zeros(6, 2, 4, dtype=torch.float64)
    for layer in range(2):
        for head in range(4):
            gates = torch.ones(2, 4, dtype=torch.float64)
            gates[layer, head] -= step
            with torch.no_grad(), model.gated(gates, r):
                slopes[:, layer, head] = (model("t", batch).loss - whole) / step
    result = importance(model, "t", reference="twin", data=data)
    torch.testing.assert_close(result.signed.double(), slopes.mean(0), rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(result.scores.double(), slopes.abs().mean(0), rtol=1e-3, atol=1e-7)


def test_a_twin_like_its_example_changes_nothing():
    rows = [{"text": f"w{i} w1", "label": "ab"[i % 2], "twin": {"label": "a"}} for i in range(6)]
    assert importance(twins(rows), "t", reference="twin").scores.abs().max() == 0


def test_twins_of_other_lengths_are_refused():
    rows = [{"text": "w1 w2", "label": "ab"[i % 2], "twin": {"text": "w1"}} for i in range(4)]
    with pytest.raises(HeadwiseError, match="has 4 tokens, its twin 3"):
        importance(twins(rows), "t", reference="twin")
    rows[0].pop("twin")
    with pytest.raises(HeadwiseError, match="row 0 of 't' has no twin"):
        importance(twins(rows), "t", reference="twin")
