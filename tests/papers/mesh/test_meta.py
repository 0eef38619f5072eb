"""Meta-learning: gradients by definition and by finite differences, the limit without inner steps, exact resume."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from headwise import tasks as catalog
from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.heads.cutting import prune
from headwise.heads.modules import evaluating
from headwise.measuring.stats import paired_bootstrap
from headwise.models.batching import encode
from headwise.models.multitask import MultiTaskModel
from headwise.papers.mesh.episodes import Draw
from headwise.papers.mesh.inner import Learner, adapt
from headwise.papers.mesh.meta import GROUPS, MOVES, Meta
from headwise.tasks.task import Rows, Task
from headwise.testing import no_dropout, tiny, tiny_tokenizer, toy_model
from headwise.training.loop import Run, _step, fit
from headwise.training.methods import methods
from headwise.training.methods.method import Method
from headwise.training.plan import Plan


@dataclass(frozen=True)
class Wave:
    """A number for a number; rows are ``{"x", "y"}``."""

    labels: tuple[str, ...] = ("y",)

    def ready(self, rows):
        return self

    def check(self, row):
        pass

    def encode(self, rows, tokenizer, max_length):
        column = np.array([[[row["x"]]] for row in rows], np.float32)
        return {"pixel_values": column, "label": np.array([row["y"] for row in rows], np.float32)}

    def head(self, hidden):
        return Out(hidden)

    def loss(self, scores, batch):
        return (scores - batch["label"]).square()

    def decode(self, scores, batch):
        return scores.tolist()

    def gold(self, rows):
        return [row["y"] for row in rows]


class Out(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.out = nn.Linear(hidden, 1)

    def forward(self, hidden, batch):
        return self.out(hidden.pooled).squeeze(-1)


class Network(nn.Module):
    """Two layers of 40, as in the paper, in the clothes of an encoder."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(hidden_size=40, _attn_implementation="eager")
        self.layers = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())

    dtype = torch.float32

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.layers(pixel_values.flatten(1))[:, None])


def wave(number: int, train: int = 60, dev: int = 60, seed: int = 0) -> Task:
    rng = np.random.default_rng([seed, number])
    amplitude, phase = rng.uniform(0.1, 5.0), rng.uniform(0, np.pi)

    def rows(count: int) -> list[dict]:
        return [{"x": float(x), "y": float(amplitude * np.sin(x - phase))} for x in rng.uniform(-5, 5, count)]

    return Task(f"wave{number}", Wave(), Rows(train=rows(train), dev=rows(dev)), "pearson")


def network(tasks: list[Task], seed: int = 0) -> MultiTaskModel:
    torch.manual_seed(seed)
    share = {task.name: tasks[0].name for task in tasks[1:]}
    return MultiTaskModel(Network(), None, tasks, pooling="mean", share=share)


PLAN = Plan(steps=6, lr=3e-3, batch_size=12, accumulate=2, window="mixed", evaluate_every=0, clip=1.0)
SGD = PLAN.with_(optimizer="sgd", beta1=0.0, clip=None, warmup=0.0, schedule="constant", lr=0.1)


def calm(dtype: torch.dtype = torch.float64, **options):
    """A toy model without dropout."""
    return no_dropout(toy_model(rows=48, **options).to(dtype))


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


def first_gradients(model, method: Method, plan: Plan = SGD) -> dict[str, torch.Tensor]:
    """What the optimizer sees in the first step, by parameter."""
    kept: dict[str, torch.Tensor] = {}

    class Seen(type(method)):  # type: ignore[misc]
        def before_update(self, run, tasks):
            super().before_update(run, tasks)
            named = dict(self.learner.named_parameters() if hasattr(self, "learner") else run.model.named_parameters())
            if getattr(self, "log_rates", None) is not None:
                named["rates"] = self.log_rates
            kept.update({name: p.grad.clone() for name, p in named.items() if p.grad is not None})

    method.__class__ = Seen
    run = Run(model, plan, method, None, "cpu")
    run.model.train()
    method.start(run)
    _step(run)
    return kept


def episodes(model, method: Meta, plan: Plan = SGD) -> list[tuple[str, dict, dict]]:
    """The first step's episodes as the loop draws them: task, support batch, query batch."""
    run = Run(model, plan, method, None, "cpu")
    found = []
    for task in run.tasks_of_step(0):
        run.streams[task].next()
        found.append((task, *(run.data[task].batch(items) for items in run.streams[task].parts)))
    return found


# -- gradients


SETTINGS = {
    "all": {},
    "momentum": {"momentum": 0.7},
    "rates": {"rates": {"encoder": 0.02, "heads": 0.3, "gates": 0.2}},
    "gates": {"gates": "sigmoid", "moves": "gates", "gates_each": "pair"},
    "fast": {"gates": "sigmoid", "moves": "fast"},
    "learned": {"learn_rates": 0.1},
}


def outer_loss(model, method: Meta, drawn: list) -> torch.Tensor:
    """The mean query loss after adaptation, written out with plain loops and dicts."""
    learner, total = method.learner, 0.0
    with sdpa_kernel(SDPBackend.MATH), learner.gated():
        for task, support, query in drawn:
            groups = learner.movable(task, MOVES[method.moves])
            fast = {n: p for group in groups.values() for n, p in group.items()}
            speed = {n: torch.zeros_like(p) for n, p in fast.items()}
            group_of = {n: name for name, group in groups.items() for n in group}
            rates = method.current_rates()
            for _ in range(method.steps):
                loss = functional_call(learner, fast, (task, support)).mean()
                grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True, allow_unused=True)
                for name, grad in zip(list(fast), grads):
                    if grad is not None:
                        speed[name] = method.momentum * speed[name] + grad
                        fast[name] = fast[name] - rates[group_of[name]] * speed[name]
            total = total + functional_call(learner, fast, (task, query)).mean() / len(drawn)
    return total  # type: ignore[return-value]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_meta_gradient_of_maml_equals_finite_differences(settings):
    options = {"rates": 0.1} | settings
    model = calm()
    method = Meta("maml", steps=2, support=6, **options)
    with pytest.warns(HeadwiseWarning, match="math kernel"):
        found = first_gradients(copy.deepcopy(model), method)
    method = Meta("maml", steps=2, support=6, **options)
    drawn = episodes(model, method)
    method.learner.train()
    if method.learner.gates is not None:
        method.learner.gates.double()
    if method.log_rates is not None:
        method.log_rates.data = method.log_rates.data.double()
    named = dict(method.learner.named_parameters()) | ({"rates": method.log_rates} if method.learn_rates else {})
    assert set(found) <= set(named) and len(found) > 20
    generator = np.random.default_rng(0)
    special = [name for name in found if name.split(".")[0] in ("gates", "rates")]
    for name in [*special, *generator.choice(sorted(set(found) - set(special)), 10, replace=False)]:
        flat = named[name].data.view(-1)
        place = int(found[name].abs().argmax()) if name in special else int(generator.integers(len(flat)))
        exact = _difference(lambda: outer_loss(model, method, drawn), flat, place)
        assert found[name].view(-1)[place].item() == pytest.approx(exact, rel=1e-6, abs=1e-6), name


def _difference(loss, flat: torch.Tensor, place: int, step: float = 1e-4) -> float:
    """Fourth-order central difference."""
    old, values = flat[place].item(), {}
    for times in (-2, -1, 1, 2):
        flat[place] = old + times * step
        values[times] = loss().item()
    flat[place] = old
    return (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)


def gradients_at(learner: Learner, parameters: dict, task: str, batch: dict) -> dict[str, torch.Tensor]:
    """∂ mean loss at parameters, all of the learner's, by name."""
    full = {n: p.detach().requires_grad_() for n, p in {**dict(learner.named_parameters()), **parameters}.items()}
    loss = functional_call(learner, full, (task, batch)).mean()
    grads = torch.autograd.grad(loss, list(full.values()), allow_unused=True)
    return {n: g for n, g in zip(full, grads) if g is not None}


def by_hand(learner: Learner, method: Meta, task: str, support: dict) -> tuple[dict, dict]:
    """θ after plain SGD steps, one parameter at a time, and the momentum it carries."""
    moving = {n for group in learner.movable(task, MOVES[method.moves]).values() for n in group}
    now = {n: p.detach().clone() for n, p in learner.named_parameters() if n in moving}
    speed = {n: torch.zeros_like(p) for n, p in now.items()}
    for _ in range(method.steps):
        for name, grad in gradients_at(learner, now, task, support).items():
            if name in now:
                speed[name] = method.momentum * speed[name] + grad
        now = {n: p - 0.1 * speed[n] for n, p in now.items()}
    return now, speed


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.7}, {"gates": "sigmoid", "moves": "fast"}], ids=str)
@pytest.mark.parametrize("by", ["fomaml", "reptile"])
def test_first_order_methods_equal_their_definitions(by, settings):
    model = calm()
    found = first_gradients(copy.deepcopy(model), Meta(by, steps=3, support=6, rates=0.1, **settings))
    method = Meta(by, steps=3, support=6, rates=0.1, **settings)
    drawn = episodes(model, method)
    learner = method.learner.train()
    expected: dict[str, torch.Tensor] = {}
    with learner.gated():
        for task, support, query in drawn:
            now, speed = by_hand(learner, method, task, support)
            last = gradients_at(learner, now, task, query)
            if by == "reptile":  # one more step, on the query; then how far it all went, over the rate
                start = dict(learner.named_parameters())
                for name, value in now.items():
                    end = value - 0.1 * (method.momentum * speed[name] + last.get(name, torch.zeros_like(value)))
                    last[name] = (start[name].detach() - end) / 0.1
            for name, grad in last.items():
                expected[name] = expected.get(name, 0) + grad / len(drawn)
    for name, grad in found.items():
        near = 1e-5 if grad.dtype == torch.float32 else 1e-9  # gates are kept in single precision
        assert torch.allclose(grad.double(), expected[name].double(), rtol=1e-6, atol=near), name


def test_reptile_with_plain_sgd_moves_towards_the_adapted_parameters():
    """θ + ε (mean φ' - θ), the rule as it is published, by an outer rate of ε r."""
    model = calm()
    trained = copy.deepcopy(model)
    epsilon, rate = 0.5, 0.1
    fit(trained, SGD.with_(steps=1, lr=epsilon * rate), Meta("reptile", steps=2, support=6, rates=rate))
    method = Meta("reptile", steps=2, support=6, rates=rate)
    ends = []
    for task, support, query in episodes(model, method):
        now, _ = by_hand(method.learner.train(), method, task, support)
        last = gradients_at(method.learner, now, task, query)
        start = {n: p.detach() for n, p in method.learner.named_parameters()}
        ends.append(start | {n: p - rate * last.get(n, 0) for n, p in now.items()})
    for name, value in trained.named_parameters():
        start = model.get_parameter(name)
        mean = torch.stack([end[f"model.{name}"] for end in ends]).mean(0)
        assert torch.allclose(value, start + epsilon * (mean - start), rtol=1e-8, atol=1e-9), name


def test_second_order_differs_from_first_order():
    with pytest.warns(HeadwiseWarning):
        maml = first_gradients(calm(), Meta("maml", steps=2, support=6, rates=0.1))
    fomaml = first_gradients(calm(), Meta("fomaml", steps=2, support=6, rates=0.1))
    gaps = {n: (maml[n] - fomaml[n]).norm() / fomaml[n].norm().clamp_min(1e-12) for n in fomaml}
    assert max(gaps.values()) > 0.05
    with pytest.warns(HeadwiseWarning):  # and comes to the same as the inner steps get small
        maml = first_gradients(calm(), Meta("maml", steps=2, support=6, rates=1e-7))
    fomaml = first_gradients(calm(), Meta("fomaml", steps=2, support=6, rates=1e-7))
    assert all(torch.allclose(maml[n], fomaml[n], rtol=1e-4, atol=1e-6) for n in fomaml)


def test_second_order_through_attention_needs_the_math_kernel():
    """What the warning is about: without it the fused kernel fails, or would be silently first order."""
    method = Meta("maml", steps=1, support=6)
    (task, support, _), *_ = episodes(calm(torch.float32), method)
    groups = method.learner.movable(task, MOVES["all"])
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError):
        found = adapt(method.learner, task, support, groups, 1, method.rates, second=True)
        sum(p.sum() for p in found.parameters.values()).backward()


# -- the limit without inner steps


@pytest.mark.parametrize("by", ["maml", "fomaml", "reptile", "anil", "multitask"])
def test_without_inner_steps_all_are_multi_task_training(by):
    plain, meta = toy_model(), toy_model()
    one = fit(plain, PLAN)
    two = fit(meta, PLAN, Meta(by, steps=3 if by == "multitask" else 0))
    assert same(plain, meta) and one.losses == two.losses


# -- episodes and resume


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "reptile", "momentum": 0.9},
        {"algorithm": "anil", "gates": "concrete", "gates_each": "pair"},
        {"algorithm": "maml", "steps": 1, "learn_rates": 0.1, "gates": "sigmoid"},
        {"gates": "input", "moves": "fast", "gates_each": "language"},
        {"trim": {"prune": 0.25, "train": 0.25, "delta": 0.5}},
        {"algorithm": "multitask", "trim": {"prune": 0.25, "prune_by": "random", "each": "pair", "delta": 0.5}},
    ],
    ids=lambda s: "-".join(map(str, s)) or "plain",
)
@pytest.mark.parametrize("crash", [2, 5])
@pytest.mark.filterwarnings("ignore::headwise.errors.HeadwiseWarning")
def test_a_run_stopped_and_gone_on_is_the_undisturbed_one(tmp_path, settings, crash):
    plan = PLAN.with_(checkpoint_every=1)

    class Crash(Meta):
        def after_update(self, run, tasks):
            super().after_update(run, tasks)
            if run.step == crash:
                raise RuntimeError("crash")

    whole, one = toy_model(), Meta(support=6, **settings)
    history = fit(whole, plan, one)
    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, Crash(support=6, **settings), out=tmp_path)
    resumed, two = toy_model(), Meta(support=6, **settings)
    again = fit(resumed, plan, two, out=tmp_path)
    assert same(whole, resumed) and history.losses == again.losses
    assert all(torch.equal(a, b) for a, b in zip(one.state().values(), two.state().values()))
    assert one.state().keys() == two.state().keys()


def test_outer_sgd_goes_on_with_its_momentum(tmp_path):
    plan = PLAN.with_(optimizer="sgd", lr=0.05, checkpoint_every=2)
    whole, resumed = toy_model(), toy_model()
    fit(whole, plan, Meta(support=6))

    class Crash(Meta):
        def before_step(self, run):
            if run.step == 3:
                raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        fit(toy_model(), plan, Crash(support=6), out=tmp_path)
    fit(resumed, plan, Meta(support=6), out=tmp_path)
    assert same(whole, resumed)


def test_words_are_left_out_of_support_and_query():
    task = catalog.get("corpus.pos")
    task = Task(task.name, task.kind, Rows(task.rows("train")[:32]), task.metric)
    words = dict.fromkeys(word for row in task.rows("train") for word in row["words"])
    model = no_dropout(MultiTaskModel(tiny("bert"), tiny_tokenizer(list(words)[:50]), [task]))
    unknown, seen = model.tokenizer.unk_token_id, []
    model.encoder.register_forward_pre_hook(lambda m, _, given: seen.append(given["input_ids"]), with_kwargs=True)
    fit(model, PLAN.with_(steps=1, accumulate=1, word_dropout=1.0), Meta(support=6, steps=1))
    assert [len(ids) for ids in seen] == [6, 6]
    assert all(set(ids.unique().tolist()) <= {0, 1, 2, unknown} for ids in seen)  # padding, [CLS] and [SEP] stay


def test_seeds_make_episodes():
    models = [toy_model() for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1)):
        fit(model, PLAN.with_(seed=seed), Meta(support=6))
    assert same(models[0], models[1]) and not same(models[0], models[2])


# -- closing and holding heads


@pytest.mark.parametrize("by", ["fomaml", "multitask"])
def test_a_shared_mask_is_folded_and_held_heads_stay(by):
    trim = {"prune": 0.25, "train": 0.25, "delta": 0.5, "examples": 48}

    class Watched(Meta):
        def _trim(self, run, trim):
            super()._trim(run, trim)
            self.before = {n: p.detach().clone() for n, p in run.model.named_parameters()}

    model, method = toy_model(), Watched(by, support=6, trim=trim)
    fit(model, PLAN.with_(weight_decay=0.1), method)
    closed = method.learner.gates.closed
    assert torch.equal(closed["toy0"], closed["toy1"]) and int(closed["toy0"].sum()) == 2
    free = torch.stack([*method.free.values()])
    assert (free.sum((1, 2)) == 2).all() and not (free.any(0) & closed["toy0"]).any()
    for site in method.learner.gates.heads.sites:
        for head in range(4):
            weight = site.module.weight[:, 6 * head : 6 * head + 6]
            assert (weight == 0).all() == bool(closed["toy0"][site.layer, head])
            part = site.parts["q"]
            name = next(n for n, p in model.named_parameters() if p is part.module.weight)
            still = torch.equal(part.module.weight[part.rows[head]], method.before[name][part.rows[head]])
            assert still != bool(free.any(0)[site.layer, head])


def test_inner_steps_leave_held_heads_alone():
    trim = {"train": 0.25, "delta": 1.0, "examples": 48}
    model, method = toy_model(), Meta(support=6, steps=2, rates=0.1, trim=trim)
    run = Run(model, PLAN, method, None, "cpu")
    method.start(run)
    method.before_step(run)
    run.streams["toy0"].next()
    batch = run.data["toy0"].batch(run.streams["toy0"].parts[0])
    method.before_batch(run, "toy0")
    with method.around(run):
        found = method.adapt(method.learner, "toy0", batch).parameters
    for site in method.learner.gates.heads.sites:
        part = site.parts["q"]
        name = next(n for n, p in method.learner.named_parameters() if p is part.module.weight)
        for head, rows in enumerate(part.rows):
            moved = not torch.equal(found[name][rows], part.module.weight[rows])
            assert moved == bool(method.free["toy0"][site.layer, head])
    method.held.detach()


def test_a_trim_that_never_comes_leaves_patience_as_it_is():
    plan = PLAN.with_(lr=0.0, evaluate_every=1, patience=2)
    method = Meta("multitask", trim={"prune": 0.25, "delta": 0.05})
    assert fit(toy_model(), plan, method).steps == fit(toy_model(), plan).steps < 6


def test_importance_before_a_trim_leaves_no_gradients_behind():
    model, method = toy_model(), Meta(support=6, gates="sigmoid", trim={"prune": 0.25, "delta": 1.0, "examples": 32})
    run = Run(model, PLAN, method, None, "cpu")
    method.start(run)
    method.before_step(run)
    assert all(p.grad is None for p in method.learner.parameters())
    assert all(p.requires_grad for p in method.learner.parameters())


def test_heads_that_were_cut_away_do_not_count_as_those_with_the_lowest_gates():
    model = toy_model()
    prune(model.encoder, torch.tensor([[True, False, False, False], [False, False, False, True]]))
    settings = {"gates": "concrete", "trim": {"prune": 0.25, "prune_by": "gates", "delta": 1.0}}
    method = Meta("multitask", gate_lr=0.0, **settings)
    run = Run(model, PLAN, method, None, "cpu")
    method.start(run)
    method.before_step(run)
    alive = method.learner.gates.heads.alive
    assert all(int((closed & alive).sum()) == 2 for closed in method.learner.gates.closed.values())


@pytest.mark.parametrize("trim", [{"prune": 0.9, "where": "top"}, {"prune": 0.75, "train": 0.5}])
def test_more_heads_than_there_are_is_told_before_training(trim):
    class Untrained(Meta):
        def before_step(self, run):
            raise AssertionError("training began")

    with pytest.raises(HeadwiseError, match="free ones"):
        fit(toy_model(), PLAN, Untrained("multitask", trim={**trim, "delta": 0.5}))


# -- bad input


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": "mamal"}, "maml"),
        ({"moves": "everything"}, "moves"),
        ({"algorithm": "anil", "moves": "all"}, "fomaml"),
        ({"moves": "gates"}, "gates='sigmoid'"),
        ({"algorithm": "reptile", "learn_rates": 0.1}, "rates"),
        ({"rates": 0.0}, "above 0"),
        ({"rates": {"encoder": 0.1}}, "each of"),
        ({"rates": {"body": 0.1}}, "group"),
        ({"trim": {"prune": 1.5}}, "prune"),
        ({"trim": {"where": "upper"}}, "where"),
        ({"trim": {"prune": 0.3, "prune_by": "gates"}}, "gates='sigmoid'"),
        ({"momentum": 1.0}, "below 1"),
        ({"steps": -1}, "0 steps or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings, words):
    with pytest.raises(HeadwiseError, match=words):
        Meta(**settings)


def test_the_loop_refuses_what_has_no_episodes():
    with pytest.raises(HeadwiseError, match="batch_size"):
        fit(toy_model(), PLAN.with_(tokens=512), Meta(support=6))
    with pytest.raises(HeadwiseError, match="query"):
        fit(toy_model(), PLAN, Meta(support=12))
    with pytest.raises(HeadwiseError, match="patience"):
        fit(toy_model(), PLAN.with_(patience=2), Meta(support=6, gates="sigmoid"))
    assert methods["meta"] is Meta


META_WAVES_PLAN = Plan(
    **{"steps": 400, "lr": 1e-2, "batch_size": 20, "accumulate": 4, "window": "mixed", "sampling": "uniform"},
    **{"evaluate_every": 0, "warmup": 0.0},
)
RATES = (0.001, 0.003, 0.01, 0.03)


def errors(by: str, rates: tuple[float, ...]) -> np.ndarray:
    """Squared errors on 50 new waves after five steps on ten points each: (rates, waves)."""
    method, model = Meta(by, steps=1, support=10, rates=0.01), network([wave(i) for i in range(40)])
    fit(model, META_WAVES_PLAN, method, device="cpu")
    found = []
    for task in (wave(1000 + i) for i in range(50)):
        train, dev = encode(task, "train", None), encode(task, "dev", None).batch(range(60))
        model.add(task, "wave0")
        support = train.batch(Draw(task.name, train).few(10, 0))
        with evaluating(method.learner):
            found.append([_error(method, task.name, support, dev, rate) for rate in rates])
    return np.array(found).T


def _error(method: Meta, task: str, support: dict, dev: dict, rate: float) -> float:
    fast = method.adapt(method.learner, task, support, 5, dict.fromkeys(GROUPS, rate)).parameters
    with method.learner.wearing(fast), torch.no_grad():
        return method.learner(task, dev).mean().item()


@pytest.fixture(scope="module")
def multitask() -> np.ndarray:
    """The baseline may choose its rate by the waves it is tested on."""
    return min(errors("multitask", RATES), key=np.mean)


@pytest.mark.filterwarnings("ignore::headwise.errors.HeadwiseWarning")
@pytest.mark.parametrize("by", ["maml", "fomaml"])
def test_a_meta_trained_start_is_better(by, multitask):
    (meta,) = errors(by, (0.01,))
    better = paired_bootstrap(multitask, meta)
    assert better.p < 0.05 and better.value > 0.3
