"""Language models as subjects: measured, lesioned and scored like any other, and refused where they cannot be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from headwise.dissociation.lesions import dissociate
from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.measuring import references
from headwise.measuring.evaluate import evaluate
from headwise.measuring.references import head_outputs
from headwise.models.language import LanguageModel
from headwise.scoring.importance import importance
from headwise.tasks.kinds.choice import Choice
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.prompts.known import Template
from headwise.tasks.prompts.prompted import prompted
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, tiny_tokenizer, toy_language_model, toy_tasks

TASKS = ["short", "pairs", "several", "after", "asked"]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "bert", "t5"])
def test_importance_is_that_of_one_example_at_a_time(family):
    lm = toy_language_model(family)
    for task in lm.tasks:
        heads = lm.attention
        rows = []
        for i in range(12):
            gates = torch.ones(heads.shape, dtype=torch.float64, requires_grad=True)
            batch = lm.encode(task, "dev").batch([i])
            with gated(lm.backbone, gates, heads=heads):
                (gradient,) = torch.autograd.grad(lm.losses(task, batch).sum(), gates)
            rows.append(gradient.abs())
        expected = torch.stack(rows).mean(0).masked_fill(~heads.alive, torch.nan)
        for cache, tokens in ((True, 4096), (False, 4096), (True, 60)):
            lm.reader.cache = cache and lm.reader.cache
            found = importance(lm, task, split="dev", tokens=tokens).scores
            assert torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-7, equal_nan=True)
        lm.reader.cache = True and toy_language_model(family).reader.cache


def test_importance_in_bfloat16_is_that_of_float64_but_for_its_digits():
    exact, rough = (toy_language_model("llama", dtype) for dtype in (torch.float64, torch.bfloat16))
    for cache in (True, False):
        rough.reader.cache = cache
        for task in ("short", "several"):
            expected, found = (importance(lm, task, split="dev").scores.flatten() for lm in (exact, rough))
            assert float(torch.corrcoef(torch.stack([expected.double(), found.double()]))[0, 1]) > 0.98
            assert torch.allclose(found.double(), expected.double(), rtol=0.15, atol=0.05 * float(expected.max()))


def test_a_tokenizer_needs_no_padding_of_its_own():
    lm, bare = toy_language_model("llama"), toy_language_model("llama")
    bare.tokenizer.pad_token = None
    for task in ("several", "asked"):
        one, other = (evaluate(each, task).predictions for each in (lm, bare))
        assert one == other and [getattr(p, "scores", 0) for p in one] == [getattr(p, "scores", 0) for p in other]


def test_gates_of_one_change_nothing():
    lm = toy_language_model("llama", torch.float32)
    for task in lm.tasks:
        plain, ones = evaluate(lm, task), evaluate(lm, task, torch.ones(1, *lm.attention.shape))[0]
        assert plain.predictions == ones.predictions
        assert [getattr(p, "scores", None) for p in plain.predictions] == [
            getattr(p, "scores", None) for p in ones.predictions
        ]


def test_heads_can_be_lesioned_and_tasks_dissociated():
    lm = toy_language_model("llama", torch.float32, rows=40)
    scores = {task: importance(lm, task) for task in ("short", "pairs")}
    result = dissociate(lm, scores, fractions=(0.25, 0.5), alpha=0.25, random=4, matched=0, undefined="leave")
    assert list(result.tasks) == ["short", "pairs"]


def donated(lm, task, donor, size):
    """A donor's head outputs by token number, used again from its first token where it is shorter."""
    real, z_BTLHD = head_outputs(lm, task, lm.encode(task, "dev").batch([donor]))
    return z_BTLHD[:, torch.arange(size) % int(real.sum())]


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("task", ["short", "several", "after", "asked"])
def test_outputs_of_another_row_reach_every_choice_token_by_token(family, task):
    lm = toy_language_model(family)
    if task not in lm.tasks:
        pytest.skip("a masked model does not generate")
    data, heads = lm.encode(task, "dev"), lm.attention
    gates = torch.ones(1, *heads.shape, dtype=torch.float64)
    gates[0, 0, :2] = gates[0, 1, 1] = 0
    together = evaluate(lm, task, gates, "resample", data=data)[0].predictions
    donors = references.resample(lm, task, data).donors
    lm.reader.cache = False
    for i, prediction in enumerate(together):
        batch = data.batch([i])
        reference = donated(lm, task, int(donors[i]), batch["input_ids"].shape[1] + lm.longest)
        with torch.no_grad(), lm.gated(gates[0], reference):
            alone = lm.tasks[task].kind.decode(lm(task, batch).scores, batch)[0]
        numbers = getattr(prediction, "scores", getattr(prediction, "total", None))
        expected = getattr(alone, "scores", getattr(alone, "total", None))
        assert prediction == alone if numbers is None else numbers == pytest.approx(expected, rel=1e-9)


def test_twins_give_attribution_patching():
    lm = toy_language_model("llama")
    rows = [
        {"prompt": f"w{i} w{i + 1} w2", "choices": ["w3 w4 w5", "w7"], "label": 0, "twin": {"prompt": f"w{i} w9 w2"}}
        for i in range(5)
    ]
    lm.add(Task("twins", Choice(), Rows(rows, rows), "accuracy"))
    data, heads, found = lm.encode("twins", "train"), lm.attention, []
    turned = [{**row, **row["twin"]} for row in rows]
    lm.add(Task("turned", Choice(), Rows(turned, turned), "accuracy"))
    for i in range(len(rows)):
        gates = torch.ones(heads.shape, dtype=torch.float64, requires_grad=True)
        _, z_BTLHD = head_outputs(lm, "turned", lm.encode("turned", "train").batch([i]))
        with lm.gated(gates, z_BTLHD):
            (gradient,) = torch.autograd.grad(lm.losses("twins", data.batch([i])).sum(), gates)
        found.append(-gradient)
    result = importance(lm, "twins", reference="twin")
    assert torch.allclose(result.signed.double(), torch.stack(found).mean(0), rtol=1e-5, atol=1e-8)
    assert float(result.signed.abs().max()) > 0


def test_references_of_tokens_are_refused_where_two_stacks_read_apart():
    lm = toy_language_model("t5")
    gates = torch.ones(1, *lm.attention.shape)
    with pytest.raises(HeadwiseError, match=r"close='mean'|as many in all layers"):
        evaluate(lm, "short", gates, "resample")
    reference = torch.zeros(1, 4, *lm.attention.shape, lm.attention.head_dim)
    with pytest.raises(HeadwiseError, match="an encoder and a decoder"), lm.gated(gates[0], reference):
        pass


def test_d_is_told_by_margins_too():
    lm = toy_language_model("llama", torch.float32, rows=40)
    for task in list(lm.tasks):  # what the model says is right: every margin is above zero
        if task not in ("short", "pairs"):
            del lm.tasks[task]
            continue
        picks = evaluate(lm, task).predictions
        rows = [{**row, "label": int(pick)} for row, pick in zip(lm.tasks[task].rows("dev"), picks)]
        lm.tasks[task] = replace(lm.tasks[task], source=Rows(rows, rows), _read={})
    scores = {task: importance(lm, task) for task in lm.tasks}
    result = dissociate(lm, scores, fractions=0.25, random=2, matched=0)
    margins = result.on["margin"]
    assert margins.performance[0, 0, 0] == pytest.approx(evaluate(lm, "short").on("margin").value)
    assert margins.to_record()["D"][0]["tasks"]["short"]["value"] is not None
    assert "mean D on margin" in str(result)


def test_rows_say_what_the_model_says():
    lm = toy_language_model("llama", torch.float32)
    score = evaluate(lm, "short")
    best = [max(range(2), key=lambda i: pick.scores[i]) for pick in score.predictions]
    assert [int(pick) for pick in score.predictions] == best
    margins = [p.scores[gold] - p.scores[1 - gold] for p, gold in zip(score.predictions, score.golds)]
    assert score.on("margin").value == pytest.approx(sum(margins) / len(margins))
    assert (score.on("accuracy").value > 0.5) == (sum(m > 0 for m in margins) > len(margins) / 2)
    assert 0 < score.on("choice_probability").value < 1
    continued = evaluate(lm, "after")
    assert 0 < continued.on("token_probability").value < 1
    assert all(isinstance(text, str) for text in evaluate(lm, "asked").predictions)


def test_a_calibrated_task_takes_away_what_empty_prompts_say():
    rows = [{"prompt": f"w{i} w{i + 1}", "label": i % 2} for i in range(8)]
    lm = toy_language_model("llama")
    kind = Choice(("a", "b"), ("w3", "w4"), neutral=("w1", "w1 w1"))
    lm.add(Task("calibrated", kind, Rows(rows, rows), "accuracy"))
    lm.add(Task("plain", replace(kind, neutral=()), Rows(rows, rows), "accuracy"))
    neutral = [{"prompt": prompt, "choices": ["w3", "w4"], "label": 0} for prompt in kind.neutral]
    lm.add(Task("neutral", Choice(), Rows(neutral, neutral), "accuracy"))
    scores = torch.tensor([pick.scores for pick in evaluate(lm, "neutral").predictions]).softmax(-1).mean(0).log()
    for one, other in zip(evaluate(lm, "calibrated").predictions, evaluate(lm, "plain").predictions):
        assert one.scores == pytest.approx([o - float(s) for o, s in zip(other.scores, scores)], abs=1e-5)


def test_what_it_cannot_do_is_said_at_once():
    lm = toy_language_model("llama")
    with pytest.raises(HeadwiseError, match="toy0@prompt"):
        lm.add(toy_tasks(1)[0])
    with pytest.raises(HeadwiseError, match="two tasks are named"):
        lm.add(lm.tasks["short"])
    with pytest.raises(HeadwiseError, match="unknown task"):
        lm("none", {})
    asked = lm.tasks["asked"]
    with pytest.raises(HeadwiseError, match="generates"):
        toy_language_model("bert").add(asked)
    with pytest.raises(HeadwiseError, match="a language model"):
        Choice().head(24)
    with pytest.raises(HeadwiseError, match="no language-model head"):
        LanguageModel(tiny("llama"), lm.tokenizer)


def test_a_row_longer_than_the_context_is_refused_before_any_work():
    lm = toy_language_model("llama", max_length=6)
    with pytest.raises(HeadwiseError, match=r"a prompt and choice of \d+ tokens; expected 6 at most"):
        evaluate(lm, "short")
    cut = toy_language_model("llama", max_length=6, reading={"long": "left"})
    with pytest.warns(UserWarning, match="were truncated"):
        assert evaluate(cut, "short").examples == 12


def test_a_checkpoint_without_a_head_is_refused(tmp_path):
    tiny("bert").save_pretrained(tmp_path / "bare")
    tiny_tokenizer([f"w{i}" for i in range(20)]).save_pretrained(tmp_path / "bare")
    with pytest.raises(HeadwiseError, match="no language-model head"):
        LanguageModel.from_pretrained(tmp_path / "bare")


@pytest.mark.parametrize(("family", "form"), [("llama", "causal"), ("bert", "masked"), ("t5", "seq2seq")])
def test_checkpoints_open_as_they_are(tmp_path, family, form):
    lm = toy_language_model(family, torch.float32)
    lm.model.save_pretrained(tmp_path / "model")
    lm.tokenizer.save_pretrained(tmp_path / "model")
    again = LanguageModel.from_pretrained(tmp_path / "model", lm.tasks["short"])
    assert again.reader.form == form and json.dumps(again.form)
    assert evaluate(again, "short").predictions == evaluate(lm, "short").predictions


def test_the_inputs_are_prompts_with_their_right_choices():
    for family in ("llama", "bert", "t5"):
        lm = toy_language_model(family)
        batch = lm.encode("several", "dev").batch(range(4))
        ((real, inputs),) = lm.inputs("several", batch)
        assert real.shape == inputs["input_ids"].shape
        lm.backbone(**inputs)


def test_encoder_decoder_and_cross_attention_stand_side_by_side():
    lm = toy_language_model("t5")
    heads = lm.attention
    assert heads.shape == (2 + 3 + 3, 4) and heads.stack == "encoder+decoder+cross"
    names = [site.name for site in heads.sites]
    assert ["encoder." in name for name in names] == [True] * 2 + [False] * 6
    assert ["EncDecAttention" in name for name in names] == [False] * 2 + [False, True] * 3
    with pytest.raises(HeadwiseError, match="stack"):
        _ = toy_language_model("t5", stack="vision").attention
    assert toy_language_model("t5", stack="cross").attention.shape == (3, 4)


# -- predictions


def test_texts_are_put_into_the_prompt_of_a_task_and_answered_as_evaluation_does():
    rows = [{"text": f"w{i} w{i % 3}", "label": ("w1", "w2")[i % 2]} for i in range(8)]
    mine = prompted(Task("mine", Classify(("w1", "w2")), Rows(train=rows, dev=rows), "accuracy"), Template("{text}"))
    lm = toy_language_model()
    lm.add(mine)
    found = lm.predict("mine@prompt", [row["text"] for row in rows])
    assert [("w1", "w2").index(record.label) for record in found] == evaluate(lm, "mine@prompt").predictions
    assert all(sum(record.probabilities.values()) == pytest.approx(1) for record in found)
    assert lm.predict("mine@prompt", rows) == found, "rows may have their labels"


@pytest.mark.parametrize("task", ["short", "asked"])
def test_prompts_are_answered_as_they_are(task):
    lm = toy_language_model()
    rows = lm.tasks[task].rows("dev")
    found, scored = lm.predict(task, rows), evaluate(lm, task).predictions
    if task == "asked":
        assert [record.answer for record in found] == scored
    else:
        assert [record.label for record in found] == [row["choices"][int(i)].strip() for row, i in zip(rows, scored)]
        with pytest.raises(HeadwiseError, match="a prompt without choices"):
            lm.predict(task, ["w1 w2"])
