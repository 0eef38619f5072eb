"""The MT-DNN-style baseline: dropout by task, pairs reasoned about in steps."""

from __future__ import annotations

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.measuring.evaluate import evaluate
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.papers.specialization import mtdnn
from headwise.papers.specialization.mtdnn import SAN, AnswerNetwork
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.task import Hidden, Rows, Task
from headwise.testing import tiny, tiny_tokenizer, toy_tasks
from headwise.training.loop import fit


def pairs(rows: int = 192, seed: int = 0) -> Task:
    """Whether the second text names the marker of the first: neither text alone tells."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(rows + rows // 2):
        a, b = torch.randint(0, 2, (2,), generator=generator).tolist()
        filler = torch.randint(0, 20, (4,), generator=generator).tolist()
        text, text_b = f"w{filler[0]} m0{'ab'[a]} w{filler[1]}", f"m0{'ab'[b]} w{filler[2]} w{filler[3]}"
        made.append({"text": text, "text_b": text_b, "label": "same" if a == b else "other"})
    return Task("pairs", Classify(("other", "same")), Rows(made[:rows], made[rows:]), "accuracy")


def build(tasks: list[Task]) -> MultiTaskModel:
    words = [f"w{i}" for i in range(20)] + ["m0a", "m0b", "m1a", "m1b"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MultiTaskModel(tiny("bert"), tiny_tokenizer(words), tasks)


def test_pairs_get_the_answer_network_and_every_task_its_dropout():
    graded = Task("grades", Regress(), Rows([{"text": "w1", "text_b": "w2", "label": 1.0}]), "pearson")
    found = mtdnn.prepare([pairs(), toy_tasks(1)[0], graded], dropout={"pairs": 0.3, "toy0": 0.05})
    assert [task.kind for task in found] == [SAN(("other", "same"), 0.3), Classify(("a", "b"), 0.05), Regress()]
    model = build(found)
    assert isinstance(model.heads["pairs"], AnswerNetwork)
    assert model.heads["pairs"].dropout.p == 0.3 and model.heads["toy0"].dropout.p == 0.05


def test_sides_are_the_two_texts():
    model = build(mtdnn.prepare([pairs(8)]))
    batch = encode(model.tasks["pairs"], "train", model.tokenizer).batch([0])
    assert batch["side"].tolist() == [[-1, 0, 0, 0, -1, 1, 1, 1, -1]]


def network(dropout: float = 0.5) -> tuple[AnswerNetwork, Hidden, dict]:
    torch.manual_seed(0)
    states = torch.randn(6, 9, 12)
    batch = {"side": torch.tensor([[-1, 0, 0, 0, -1, 1, 1, -1, -1]] * 6)}
    return AnswerNetwork(12, 3, dropout=dropout), Hidden(states, states[:, 0]), batch


def test_scores_are_log_probabilities_and_padding_is_not_read():
    net, hidden, batch = network()
    net.eval()
    scores = net(hidden, batch)
    assert torch.allclose(scores.exp().sum(1), torch.ones(6), atol=1e-5)
    noisy = hidden.states.clone()
    noisy[:, [0, 4, 7, 8]] += 100
    assert torch.allclose(net(Hidden(noisy, noisy[:, 0]), batch), scores, atol=1e-5)
    for side in (2, 5):  # a word of either text is
        other = hidden.states.clone()
        other[:, side] += 1
        assert not torch.allclose(net(Hidden(other, other[:, 0]), batch), scores, atol=1e-3)


def test_steps_are_dropped_at_random_in_training_only():
    net, hidden, batch = network()
    net.dropout.p = 0.0  # leaves the dropping of whole steps
    net.train()
    assert not torch.equal(net(hidden, batch), net(hidden, batch))
    net.rate = 1.0  # one step always stays
    assert net(hidden, batch).isfinite().all()
    net.eval()
    assert torch.equal(net(hidden, batch), net(hidden, batch))


def test_a_pair_with_an_empty_text_has_finite_scores_and_gradients():
    net, hidden, batch = network()
    batch["side"][0] = -1
    scores = net(hidden, batch)
    scores.sum().backward()
    assert scores.isfinite().all() and all(p.grad.isfinite().all() for p in net.parameters())


def test_single_texts_are_refused():
    with pytest.raises(HeadwiseError, match="text_b"):
        SAN(("a", "b")).check({"text": "w1", "label": "a"})


@pytest.mark.slow
def test_the_named_plan_learns_pairs():
    model = build(mtdnn.prepare([pairs(384), toy_tasks(1)[0]]))
    fit(model, mtdnn.PLAN.with_(epochs=30, lr=5e-3, evaluate_every=0))
    assert evaluate(model, "pairs").value > 0.9
