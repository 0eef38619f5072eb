"""What a model must give to be measured: the smallest subject is measured like any other."""

from __future__ import annotations

import pytest
import torch

from headwise.dissociation.lesions import dissociate
from headwise.heads.gates import gated
from headwise.measuring.evaluate import evaluate
from headwise.models.multitask import MultiTaskModel
from headwise.models.subject import Output, Subject
from headwise.scoring.importance import importance
from headwise.testing import toy_model


class Mirrored(Subject):
    """Reads every text twice, forwards and with its marker hidden, as two rows of one forward."""

    def __init__(self, model: MultiTaskModel):
        super().__init__()
        self.model, self.tasks, self.tokenizer, self.max_length = model, model.tasks, model.tokenizer, 64

    @property
    def backbone(self):
        return self.model.encoder

    def rows(self, batch):
        return torch.arange(len(batch["input_ids"])).repeat_interleave(2)

    def forward(self, task, batch):
        ids, mask = batch["input_ids"].repeat_interleave(2, 0), batch["attention_mask"].repeat_interleave(2, 0)
        ids[1::2, 1] = 4
        states = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0, :2]
        scores = states[::2] - states[1::2]
        return Output(self.tasks[task].kind.loss(scores, batch), scores)


@pytest.fixture(scope="module")
def subject():
    return Mirrored(toy_model(2, rows=24).double().eval())


def test_a_multitask_model_is_a_subject():
    model = toy_model(1, rows=8)
    assert isinstance(model, Subject) and model.backbone is model.encoder
    assert model.attention.shape == (2, 4)


def test_a_subject_of_few_lines_is_evaluated_and_dissociated(subject):
    gates = torch.stack([torch.ones(2, 4), torch.zeros(2, 4)])
    whole, closed = evaluate(subject, "toy0", gates)
    assert whole.predictions == evaluate(subject, "toy0").predictions and len(closed.predictions) == closed.examples
    scores = {task: importance(subject, task) for task in subject.tasks}
    assert dissociate(subject, scores, 0.5, random=2, undefined="leave").tasks == ("toy0", "toy1")


@pytest.mark.parametrize("by", ["gradient", "integrated_gradients", "ablation", "magnitude", "l0"])
def test_rows_of_an_example_are_counted_to_it(subject, by):
    options = {"steps": 3} if by in ("integrated_gradients", "l0") else {}
    found = importance(subject, "toy0", by, tokens=80, **options)
    assert found.examples == 24 and bool(found.scores.isfinite().all())


def test_gradients_of_examples_laid_out_as_rows_equal_a_loop_over_examples(subject):
    data, rows = subject.encode("toy0", "train"), []
    for item in range(len(data)):
        gates = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
        with gated(subject.backbone, gates):
            rows.append(torch.autograd.grad(subject("toy0", data.batch([item])).loss.sum(), gates)[0])
    found = importance(subject, "toy0", tokens=80).scores
    torch.testing.assert_close(found.double(), torch.stack(rows).abs().mean(0), rtol=1e-6, atol=1e-9)
