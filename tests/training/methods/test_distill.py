"""Distillation: what the student is compared with is what the teacher computed, and it helps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from twoprocesses import STILL, assert_agree

from headwise import tasks as corpus
from headwise.errors import HeadwiseError
from headwise.heads.attention import eager
from headwise.measuring.evaluate import evaluate
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.tag import Tag
from headwise.tasks.task import Rows, Task
from headwise.testing import no_dropout, tiny, tiny_batch, tiny_tokenizer, toy_model
from headwise.training.loop import fit
from headwise.training.methods.distill import Distill, imitate, layer_map, observed, scores_apart, states_apart
from headwise.training.plan import Plan

PLAN = Plan(steps=12, lr=3e-3, batch_size=16, evaluate_every=0)
FAMILIES = ["bert", "albert", "distilbert", "deberta-v2", "mpnet", "modernbert"]
FAMILIES += ["gpt2", "gpt_neox", "llama", "gemma2", "vit"]


def small(seed: int = 1, **config) -> MultiTaskModel:
    """A student with the toy tasks whose encoder is narrower, shallower or less many-headed."""
    model = toy_model()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MultiTaskModel(tiny("bert", seed, **config), model.tokenizer, model.tasks.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_scores_are_those_the_softmax_got(family):
    """Their softmax is the model's own attention map, with rotations, biases and masks; also while training."""
    model = tiny(family)
    batch = tiny_batch(model)
    if "attention_mask" in batch:
        batch["attention_mask"][0, -2:] = 0
    with torch.no_grad(), observed(SimpleNamespace(encoder=model)) as seen:
        output = model(**batch)
    with torch.no_grad(), eager(model) as maps:
        wanted = maps(**batch)
    assert len(seen.scores) == 2 and len(seen.states) == 3
    assert all(torch.allclose(s.softmax(-1), a, atol=1e-6) for s, a in zip(seen.scores, wanted))
    assert torch.equal(seen.states[-1], output.last_hidden_state) or family == "vit"  # it normalises once more


def test_scores_of_a_plain_family_are_q_times_k():
    model = tiny("bert")
    batch = tiny_batch(model)
    with torch.no_grad():
        with observed(SimpleNamespace(encoder=model)) as seen:
            model(**batch)
        own = model.encoder.layer[1].attention.self
        q, k = (part(seen.states[1]).unflatten(-1, (4, 6)).transpose(1, 2) for part in (own.query, own.key))
    assert torch.allclose(seen.scores[1], q @ k.mT / 6**0.5, atol=1e-5)


def count_hooks(model: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_looking_changes_nothing():
    """The kernel, the output and the hooks are as before; dropout falls alike."""
    model = toy_model().train()
    batch = {"input_ids": torch.tensor([[1, 7, 9, 2]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    before = model.config._attn_implementation
    with eager(model.encoder):
        model.encoder(**batch, output_hidden_states=True)  # transformers leaves hooks of its own the first time
        torch.manual_seed(0)
        wanted = model.hidden(batch).states
    hooks = count_hooks(model)
    torch.manual_seed(0)
    with observed(model):
        assert torch.equal(model.hidden(batch).states, wanted)
    assert model.config._attn_implementation == before
    assert count_hooks(model) == hooks


def test_layers_are_spread_evenly():
    assert layer_map(4, 12) == [3, 6, 9, 12]
    assert layer_map(6, 6) == [1, 2, 3, 4, 5, 6]
    assert layer_map(4, 6) == [2, 3, 4, 6]
    assert layer_map(2, 4, [1, 4]) == [1, 4]
    for bad in ([1], [0, 4], [1, 5]):
        with pytest.raises(HeadwiseError, match="layers="):
            layer_map(2, 4, bad)


def test_padding_is_not_compared():
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    a, b = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    s, t = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3)
    states, scores = states_apart(a, b, mask), scores_apart(s, t, mask)
    assert torch.allclose(states[0], (a[0, :2] - b[0, :2]).square().mean())
    assert torch.allclose(scores[0], (s[0, :, :2, :2] - t[0, :, :2, :2]).square().mean())
    a[0, 2] += 100
    s[0, :, :, 2] = torch.finfo(torch.float32).min
    s[0, :, 2] += 7
    assert torch.equal(states_apart(a, b, mask), states) and torch.equal(scores_apart(s, t, mask), scores)


def test_what_a_causal_model_may_not_see_is_not_compared():
    s, t = torch.randn(1, 2, 3, 3), torch.randn(1, 2, 3, 3)
    later = torch.ones(3, 3).triu(1).bool()
    s, t = (x.masked_fill(later, torch.finfo(torch.float32).min) for x in (s, t))
    wanted = (s - t)[:, :, ~later].square().mean()
    assert torch.allclose(scores_apart(s, t, torch.ones(1, 3)), wanted)


def test_a_twin_is_at_distance_zero_and_stays_there():
    """A student that is its teacher has no loss in stage one and no gradient in stage two."""
    teacher, student = no_dropout(toy_model()), no_dropout(toy_model())
    history = fit(student, PLAN.with_(steps=6), Distill(teacher, share=0.5))
    losses = {step: value for points in history.losses.values() for step, value in points}
    assert all(abs(losses[step]) < 1e-6 for step in (1, 2, 3)) and all(losses[step] > 1e-3 for step in (4, 5, 6))


def test_a_twin_of_a_teacher_with_factors_has_them_as_well():
    teacher, student = no_dropout(toy_model()), no_dropout(toy_model())
    teacher.give_scales()
    for place, scales in enumerate(teacher.scales.values()):
        scales.data.mul_(0.3 + place)
    student.give_scales()
    student.load_state_dict(teacher.state_dict())
    history = fit(student, PLAN.with_(steps=3), Distill(teacher, share=1.0))
    assert all(abs(value) < 1e-6 for points in history.losses.values() for _, value in points)


def test_answers_are_compared_by_their_probabilities():
    torch.manual_seed(0)
    mine, theirs = torch.randn(3, 4), torch.randn(3, 4)
    wanted = -(theirs.softmax(1) * mine.log_softmax(1)).sum(1)
    assert torch.allclose(imitate(Classify(tuple("abcd")), mine, theirs, {}, 1.0), wanted)
    assert torch.allclose(imitate(Regress(), mine[:, :1], theirs[:, :1], {}, 1.0), (mine - theirs)[:, 0].square())
    words, labels = torch.randn(2, 3, 4), torch.tensor([[0, 1, -1], [2, -1, -1]])
    found = imitate(Tag(tuple("abcd")), words, theirs[None, :].expand(2, -1, -1), {"labels": labels}, 1.0)
    each = -(theirs.softmax(1) * words.log_softmax(2)).sum(2)
    assert torch.allclose(found, torch.stack([each[0, :2].mean(), each[1, 0]]))


@pytest.mark.parametrize("shape", [{}, {"num_hidden_layers": 1}, {"hidden_size": 12, "num_attention_heads": 2}])
def test_any_student_comes_nearer_in_stage_one_and_leaves_its_output_heads_alone(shape):
    student = small(**shape)
    heads = {name: value.clone() for name, value in student.heads.state_dict().items()}
    method = Distill(toy_model(), share=1.0)
    history = fit(student, PLAN.with_(steps=30, weight_decay=0.1), method)
    losses = [value for _, value in sorted(p for points in history.losses.values() for p in points)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert all(torch.equal(value, heads[name]) for name, value in student.heads.state_dict().items())
    assert len(method.projections) == (2 if "hidden_size" in shape else 0)


@pytest.mark.parametrize("family", ["albert", "electra"])
def test_embeddings_that_end_in_a_linear_layer_are_projected_in_half_precision_too(family):
    settings = {"embedding_size": 12}
    student = MultiTaskModel(tiny(family, **settings), toy_model().tokenizer, toy_model().tasks.values())
    teacher = small(hidden_size=48)
    history = fit(student, PLAN.with_(steps=2, precision="bf16"), Distill(teacher, share=1.0))
    assert history.steps == 2


def test_the_teacher_stays_as_it_is():
    teacher = toy_model()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    fit(small(), PLAN, Distill(teacher))
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert all(p.grad is None for p in teacher.parameters())


def test_a_second_student_is_taught_as_by_a_fresh_method():
    """Also one as wide as the teacher after a narrower one, and by a teacher that has learned in between."""
    teacher, again, fresh = toy_model(), small(), small()
    used = Distill(teacher)
    fit(small(hidden_size=12, num_attention_heads=2), PLAN, used)
    fit(teacher, PLAN)
    fit(again, PLAN, used)
    fit(fresh, PLAN, Distill(teacher))
    assert all(torch.equal(x, y) for x, y in zip(again.state_dict().values(), fresh.state_dict().values()))
    assert used.describe() == Distill(teacher).describe()


@pytest.mark.parametrize("crash", [3, 9])
def test_resume_is_exact_in_both_stages(tmp_path, crash):
    """Learned projections and their moments come back too."""
    teacher, plan = toy_model(), PLAN.with_(checkpoint_every=2)
    shape = {"hidden_size": 12, "num_attention_heads": 2}
    whole, resumed = small(**shape), small(**shape)
    a, b = Distill(teacher, share=0.5), Distill(teacher, share=0.5)
    fit(whole, plan, a)

    class Crash(Distill):
        def before_batch(self, run, task):
            if run.step == crash:
                raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        fit(small(**shape), plan, Crash(teacher, share=0.5), out=tmp_path)
    fit(resumed, plan, b, out=tmp_path)
    for mine, theirs in ((whole, resumed), (a.projections, b.projections)):
        assert all(torch.equal(x, y) for x, y in zip(mine.state_dict().values(), theirs.state_dict().values()))


def test_pairs_that_do_not_fit_are_refused():
    teacher, student = toy_model(1), toy_model(2)
    with pytest.raises(HeadwiseError, match="without toy1"):
        fit(student, PLAN, Distill(teacher))
    with pytest.raises(HeadwiseError, match="different tokenizers"):
        fit(toy_model(1), PLAN, Distill(toy_model(2)))
    other = toy_model(1)
    task = other.tasks["toy0"]
    other.tasks["toy0"] = Task("toy0", Classify(("b", "a")), Rows(task.rows("train"), task.rows("dev")), "accuracy")
    with pytest.raises(HeadwiseError, match="labels"):
        fit(toy_model(1), PLAN, Distill(other))
    for bad in ({"share": 2}, {"temperature": 0}):
        with pytest.raises(HeadwiseError):
            Distill(teacher, **bad)


def from_scratch(tasks: list[Task], tokenizer, seed: int, width: int, layers: int) -> MultiTaskModel:
    """An untrained encoder with the scales training starts from."""
    shape = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    encoder = tiny("bert", seed, vocab_size=len(tokenizer), **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in encoder.modules():
            encoder._init_weights(module)
        return MultiTaskModel(encoder, tokenizer, tasks, pooling="mean")


@pytest.mark.slow
def test_a_taught_student_beats_the_same_student_alone_on_three_tasks():
    """Few rows are not enough to learn the tasks from labels; the teacher, which saw many, makes more of them."""
    tasks = [corpus.get(f"corpus.{name}") for name in ("sentiment", "topic", "past_present")]
    words = sorted({word for task in tasks for row in task.rows("train") for word in row["text"].split()})
    tokenizer = tiny_tokenizer(words, size=len(words) + 5)
    teacher = from_scratch(tasks, tokenizer, 0, width=64, layers=3)
    fit(teacher, Plan(epochs=2, lr=2e-3, evaluate_every=0))
    few = [replace(task, source=Rows(task.rows("train")[:300], task.rows("dev")), _read={}) for task in tasks]
    plan = Plan(steps=400, lr=2e-3, evaluate_every=0)
    alone, taught = (from_scratch(few, tokenizer, 1, width=32, layers=2) for _ in range(2))
    fit(alone, plan)
    fit(taught, plan, Distill(teacher))
    for task in tasks:
        assert evaluate(taught, task.name).value > evaluate(alone, task.name).value + 0.05, task.name


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    """Learned projections stand outside the wrapped model, and are averaged over processes all the same."""
    kept = assert_agree(
        tmp_path,
        "from headwise.testing import tiny, toy_model\nfrom headwise.training.loop import fit\n"
        "from headwise.training.plan import Plan\n"
        "from headwise.models.multitask import MultiTaskModel\nfrom headwise.training.methods.distill import Distill\n"
        "torch.manual_seed(0)\nteacher = toy_model()\n"
        "encoder = tiny('bert', 1, hidden_size=12, num_attention_heads=2)\n"
        f"model = MultiTaskModel(encoder, teacher.tokenizer, teacher.tasks.values())\n{STILL}"
        "method = Distill(teacher, share=0.5)\n"
        "fit(model, Plan(steps=8, lr=1e-3, batch_size=16, evaluate_every=0), method, device='cpu')\n"
        "kept = {**model.state_dict(), **method.projections.state_dict()}\n",
    )
    assert "states.weight" in kept
