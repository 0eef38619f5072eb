"""Any model, any loss: importance over batches of one's own equals a loop of one example at a time."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, gated
from headwise.scoring.importance import importance
from headwise.scoring.sample import Meter
from headwise.testing import no_dropout, tiny, tiny_batch, toy_model


def test_an_estimate_before_and_the_time_left_after():
    lines, now = [], [0.0]
    meter = Meter("shapley", lines.append, lambda: now[0])
    meter.start(forwards=100, examples=32, seconds=2.0)
    assert lines == ["shapley: 100 forwards of 32 examples, about 3 min"]
    now[0] = 50.0
    meter.tick(32 * 25)
    assert lines[1] == "shapley: 25 %, about 2 min left"
    meter.tick(32)
    assert len(lines) == 2, "no more than a line in a while"


def test_a_short_one_says_nothing():
    lines: list[str] = []
    meter = Meter("ablation", lines.append)
    meter.start(100, 32, 0.01)
    meter.tick(3200)
    assert lines == []


def test_estimators_of_many_forwards_count_all_of_them(monkeypatch):
    model, counts = toy_model(1, rows=20), []
    monkeypatch.setattr(Meter, "tick", lambda self, examples: counts.append(examples))
    importance(model, "toy0", "ablation", tokens=60)
    assert sum(counts) - counts[0] == 9 * 20, "one forward to measure its time, then the model and eight lesions"


CLASSES = {
    "SequenceClassification": ("bert", "gpt2", "llama"),
    "TokenClassification": ("bert", "roberta"),
    "QuestionAnswering": ("bert", "distilbert"),
    "MaskedLM": ("bert", "roberta"),
    "CausalLM": ("gpt2", "llama", "gpt_neox", "qwen3"),
    "Seq2SeqLM": ("t5", "bart"),
    "ImageClassification": ("vit",),
    "MultipleChoice": ("bert",),
    "SpeechSeq2Seq": ("whisper",),
}
CASES = [(purpose, family) for purpose, families in CLASSES.items() for family in families]


def build(purpose, family, size=4):
    base = tiny(family)
    config = base.config
    config.num_labels = 2 if purpose == "QuestionAnswering" else 3
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    config.decoder_start_token_id = getattr(config, "decoder_start_token_id", None) or 0
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{purpose}").from_config(config)
    batch = {k: v for k, v in tiny_batch(base, size).items() if not k.startswith("decoder")}
    generator = torch.Generator().manual_seed(1)

    def draw(high, *shape):
        return torch.randint(1, high, shape, generator=generator)

    length = next(iter(batch.values())).shape[-1]
    mask = batch.get("attention_mask", torch.ones(size, length, dtype=torch.long))
    if purpose in ("SequenceClassification", "ImageClassification", "MultipleChoice"):
        batch["labels"] = draw(3, size)
        if purpose == "MultipleChoice":
            batch = {k: v if k == "labels" else torch.stack([v, v.flip(0)], 1) for k, v in batch.items()}
            batch["labels"] = batch["labels"] % 2
    elif purpose == "QuestionAnswering":
        batch |= {"start_positions": draw(3, size), "end_positions": draw(3, size)}
    elif purpose in ("Seq2SeqLM", "SpeechSeq2Seq"):
        batch["labels"] = draw(20, size, 5)
        batch["labels"][1, 3:] = -100
    else:
        labels = draw(3 if purpose == "TokenClassification" else 20, *mask.shape)
        batch["labels"] = labels.masked_fill((mask == 0) | (torch.rand(mask.shape, generator=generator) < 0.3), -100)
    return no_dropout(model).double().eval(), {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}


@pytest.mark.parametrize(("purpose", "family"), CASES)
def test_importance_of_the_own_loss_equals_a_loop_over_examples(purpose, family):
    model, batch = build(purpose, family)
    stack = "decoder" if purpose in ("Seq2SeqLM", "SpeechSeq2Seq") else None
    heads, rows, asked = Heads.of(model, stack=stack), [], [p.requires_grad for p in model.parameters()]
    for i in range(4):
        gates = torch.ones(heads.shape, dtype=torch.float64, requires_grad=True)
        with gated(model, gates, heads=heads):
            loss = model(**{k: v[i : i + 1] for k, v in batch.items()}).loss
            rows.append(torch.autograd.grad(loss, gates)[0])
    expected = torch.stack(rows)
    result = importance(model, [batch], stack=stack)
    torch.testing.assert_close(result.scores.double(), expected.abs().mean(0), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(result.signed.double(), -expected.mean(0), rtol=1e-6, atol=1e-9)
    assert result.examples == 4 and asked == [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_padding_on_either_side_of_a_language_model_changes_nothing(family):
    model, _ = build("CausalLM", family)
    ids = torch.randint(1, 20, (3, 6), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    labels = ids.clone()
    whole = importance(model, [{"input_ids": ids, "attention_mask": mask, "labels": labels}])
    for side in ((3, 0), (0, 3)):
        padded = {"input_ids": F.pad(ids, side), "attention_mask": F.pad(mask, side)}
        padded["labels"] = F.pad(labels, side, value=-100)
        padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp_min(0)
        padded["labels"][:, side[0]] = -100  # its logit is read at the padding
        plain = importance(model, [{"input_ids": ids, "labels": labels.index_fill(1, torch.tensor([0]), -100)}])
        torch.testing.assert_close(importance(model, [padded]).scores, plain.scores, rtol=1e-5, atol=1e-8)
    assert whole.examples == 3


def test_half_precision_keeps_the_order_of_the_best_heads():
    model, batch = build("CausalLM", "llama", size=16)
    exact = importance(model, [batch]).scores.flatten()
    half = importance(model.float().bfloat16(), [batch]).scores.flatten()
    assert torch.corrcoef(torch.stack([exact, half]))[0, 1] > 0.98


# -- losses and models of one's own


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Custom(nn.Module):
    """A classifier in plain torch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(10, 8), nn.Linear(8, 2)
        self.layers = nn.ModuleList([Attention(), Attention()])

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.out(x.mean(1))


def test_a_model_in_plain_torch_with_a_loss_and_a_loader():
    model = Custom().double()
    data = [{"ids": torch.randint(0, 10, (5,)), "y": torch.tensor(i % 2)} for i in range(12)]
    loader = DataLoader(data, batch_size=5)

    def loss(model, batch):
        return F.cross_entropy(model(batch["ids"]), batch["y"], reduction="none")

    heads, rows = Heads.of(model, sample={"ids": data[0]["ids"][None]}), []
    for row in data:
        gates = torch.ones(heads.shape, dtype=torch.float64, requires_grad=True)
        with gated(model, gates, heads=heads):
            one = {k: v[None] for k, v in row.items()}
            rows.append(torch.autograd.grad(loss(model, one).sum(), gates)[0])
    expected = torch.stack(rows)
    for by in ("gradient", "taylor", "ablation", "mean_ablation", "token", "batch", "magnitude", "causal_gating"):
        options = {"steps": 5} if by == "causal_gating" else {}
        result = importance(model, loader, by, loss=loss, **options)
        assert result.examples == 12 and result.scores.shape == (2, 2) and result.scores.isfinite().all()
    torch.testing.assert_close(
        importance(model, loader, loss=loss).scores.double(), expected.abs().mean(0), rtol=1e-6, atol=1e-12
    )
    assert importance(model, iter(loader), loss=loss, examples=6).examples == 10, "whole batches"


def test_references_of_batches():
    model, batch = build("CausalLM", "llama")
    zero = importance(model, [batch], reference="zero")
    same = importance(model, [batch], reference=[batch])
    assert zero.scores.min() > 0 and same.scores.abs().max() < 1e-12
    mean = importance(model, [batch], reference="mean").scores
    assert not torch.allclose(mean, zero.scores)
    with pytest.raises(HeadwiseError, match="fewer twins"):
        importance(model, [batch, batch], reference=[batch])
    with pytest.raises(HeadwiseError, match="zero, mean, a constant"):
        importance(model, [batch], reference="resample")


def test_signs_tell_harmful_heads_from_helpful_ones():
    model, batch = build("CausalLM", "gpt2")
    result = importance(model, [batch], "ablation")
    torch.testing.assert_close(result.signed, result.scores)
    assert (result.signed < 0).any()
    first_order = importance(model, [batch]).signed
    assert torch.corrcoef(torch.stack([first_order.flatten(), result.signed.flatten()]))[0, 1] > 0.7


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: {k: v for k, v in b.items() if k != "labels"}, "without labels"),
        (lambda b: [b["input_ids"], b["labels"]], "a batch that is"),
    ],
)
def test_batches_without_a_loss_are_refused(change, says):
    model, batch = build("CausalLM", "gpt2")
    with pytest.raises(HeadwiseError, match=says):
        importance(model, [change(batch)])


def test_a_loss_that_is_not_per_example_is_refused():
    model, batch = build("CausalLM", "gpt2")
    with pytest.raises(HeadwiseError, match="one loss for each of the 4 examples"):
        importance(model, [batch], loss=lambda model, batch: model(**batch).loss)


@pytest.mark.parametrize(("task", "says"), [("sst2", "no tasks"), (7, "in place of a task"), ([], "no batches")])
def test_what_is_no_task_and_no_batches_is_refused(task, says):
    with pytest.raises(HeadwiseError, match=says):
        importance(build("CausalLM", "gpt2")[0], task)


def test_nothing_is_said_in_passing():
    model, batch = build("CausalLM", "gpt2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importance(model, [batch])
