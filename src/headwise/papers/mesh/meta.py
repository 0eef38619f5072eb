"""Meta-learning across task-language pairs (MESH, Algorithms 1-3): train a start from which few examples suffice.

Every batch is an episode of one pair. Its support examples move the parameters θ by a few steps of SGD to φ (the inner
loop); the query examples judge φ, and their loss moves θ (the outer loop, which is `fit`'s own step). With v the
steps' directions and r their rates:

    φ = θ - r Σ v(φ)            v = momentum · v + ∂L_support/∂φ
    maml     ∂L_query(φ)/∂θ, through the inner steps (Finn et al. 2017)
    fomaml   ∂L_query(φ)/∂φ: the inner gradients count as constants
    reptile  (θ - φ')/r, where φ' is φ after one more step, on the query (Nichol et al. 2018): the sum of all directions
    anil     fomaml whose inner loop moves output heads and gates alone (Raghu et al. 2020)

Without inner steps nothing is left but multi-task training, to the bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from headwise.errors import HeadwiseError, HeadwiseWarning, unknown
from headwise.heads.gates import Heads
from headwise.measuring.evaluate import to_device
from headwise.models.batching import Encoded, Order, Stream
from headwise.papers.mesh.episodes import Episodes
from headwise.papers.mesh.inner import Adapted, HeadGates, Learner, Rates, adapt
from headwise.papers.mesh.trim import Trim
from headwise.scoring.importance import importance
from headwise.tasks.kinds.wordlevel import drop_words
from headwise.tasks.languages import Coverage, coverage, key
from headwise.training.methods.iat import HeldHeads, choose_heads
from headwise.training.methods.method import Method

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel
    from headwise.training.loop import Run
    from headwise.training.plan import Plan

ALGORITHMS = ("fomaml", "maml", "reptile", "anil", "multitask")
GROUPS = ("encoder", "heads", "gates")
MOVES = {"all": GROUPS, "heads": ("heads",), "gates": ("gates",), "fast": ("heads", "gates")}


class Meta(Method):
    """Meta-train a model over its task-language pairs.

    An episode is one batch: ``plan.batch_size`` rows, ``support`` of them to adapt by, the rest the query.
    ``plan.accumulate`` with ``window="mixed"`` is the number of episodes of an outer step, ``plan.sampling`` how pairs
    are drawn, ``plan.lr`` and ``plan.clip`` are the outer loop's. Evaluations while training are without adaptation.
    At the end a mask alike for all pairs, without trained gates, is folded into the model; other gates stay beside it
    (``method.learner``, and ``meta.safetensors`` in the run's folder), and `headwise.papers.mesh.metatest` takes both.

    Example:
        >>> method = Meta("fomaml", steps=3, rates=0.01, gates="sigmoid", gates_each="language")
        >>> fit(model, Plan(accumulate=4, window="mixed", sampling="temperature", lr=2e-5, clip=1.0), method)
    """

    name = "meta"

    def __init__(
        self,
        algorithm: str = "fomaml",
        steps: int = 3,
        support: int = 16,
        rates: float | Mapping[str, float] = 0.01,
        moves: str | None = None,
        momentum: float = 0.0,
        learn_rates: float | None = None,
        gates: str | None = None,
        gates_each: str = "shared",
        gate_lr: float = 1e-2,
        trim: Trim | Mapping[str, Any] | None = None,
    ):
        """Set the algorithm and its inner loop.

        Args:
            algorithm: fomaml, maml (second order: attention then runs the math kernel), reptile, anil or multitask.
            steps: inner steps on the support set.
            support: rows of an episode to adapt by, stratified.
            rates: of the inner loop, one or by group: ``{"encoder": …, "heads": …, "gates": …}``.
            moves: what inner steps move: all, heads (output heads), gates, or fast (both of them; anil's own).
            momentum: of the inner loop.
            learn_rates: learn the groups' rates too (as Meta-SGD does), with this rate of the outer loop.
            gates: trainable head gates: "sigmoid", "concrete", or "input": for each example, by its words.
            gates_each: one set for all pairs (shared), or one per task, language or pair.
            gate_lr: of the gates in the outer loop.
            trim: heads to close and heads to train, from a point on.
        """
        if algorithm not in ALGORITHMS:
            raise unknown("meta-learning algorithm", algorithm, ALGORITHMS)
        moves = moves or ("fast" if algorithm == "anil" else "all")
        if moves not in MOVES:
            raise unknown("moves", moves, MOVES)
        if algorithm == "anil" and moves == "all":
            raise HeadwiseError("anil with moves='all'", "heads, gates or fast", "algorithm='fomaml'")
        if moves == "gates" and gates is None:
            raise HeadwiseError("moves='gates' without gates", "gates= sigmoid, concrete or input", "gates='sigmoid'")
        if algorithm == "reptile" and learn_rates is not None:
            raise HeadwiseError("reptile with learn_rates", "fomaml or maml: reptile's rule has no gradient for rates")
        if steps < 0 or not 0 <= momentum < 1:
            raise HeadwiseError(f"steps={steps}, momentum={momentum}", "0 steps or more, momentum from 0 to below 1")
        self.algorithm, self.steps = algorithm, 0 if algorithm == "multitask" else steps
        self.support, self.moves = support, moves
        self.rates = _rates(rates)
        self.momentum, self.learn_rates = momentum, learn_rates
        self.form, self.gates_each, self.gate_lr = gates, gates_each, gate_lr
        self.trim = Trim(**trim) if isinstance(trim, Mapping) else trim
        if self.trim and self.trim.prune_by == "gates" and gates is None:
            raise HeadwiseError(
                "pruning by gates without gates", "gates= sigmoid, concrete or input", "gates='sigmoid'"
            )
        self.log_rates: nn.Parameter | None = None
        self.free: dict[str, Tensor] = {}  # each pair's heads that may move, once chosen
        self.trimmed = False
        self.held: HeldHeads | None = None
        self.coverage: dict[str, Coverage] = {}

    @property
    def second(self) -> bool:
        return self.algorithm == "maml" and self.steps > 0

    def ready(self, model: MultiTaskModel, file: str | Path | None = None) -> Learner:
        """The learner of a model; made by `fit`, or here for a model that is not to be trained.

        ``file`` is the ``meta.safetensors`` that training left in its folder: gates, mask and learned rates.
        """
        self.learner = self.fresh(model)
        if self.learn_rates is not None and self.steps:
            start = torch.tensor([self.rates[group] for group in GROUPS], device=model.device)
            self.log_rates = nn.Parameter(start.log())
        if file is not None:
            self.load_state(load_file(file))
        return self.learner

    def fresh(self, model: MultiTaskModel) -> Learner:
        """A model under gates as training starts with; the method keeps its own."""
        if not (self.form or self.trim):
            return Learner(model)
        width = model.encoder.get_input_embeddings().embedding_dim if self.form == "input" else 0
        gates = HeadGates(Heads.of(model.encoder), model.tasks.values(), self.form, self.gates_each, width)
        return Learner(model, gates.to(model.device))

    def parameters(self, model: MultiTaskModel, plan: Plan) -> list[dict[str, Any]]:
        gates, groups = self.ready(model).gates, []
        self.free, self.trimmed = {}, False
        if gates is not None and gates.logits is not None:
            params = [gates.logits, *([] if gates.reads is None else [gates.reads])]
            groups.append({"params": params, "lr": self.gate_lr, "weight_decay": 0.0})
        if self.log_rates is not None:
            groups.append({"params": [self.log_rates], "lr": self.learn_rates, "weight_decay": 0.0})
        return groups

    def stream(self, task: str, data: Encoded, order: Order, seed: Sequence[int]) -> Stream:
        if not self.steps:
            return super().stream(task, data, order, seed)
        return Episodes(task, data, order, seed, self.support)

    def start(self, run: Run) -> None:
        if self.steps and run.accelerator.num_processes > 1:
            raise HeadwiseError("meta-training in several processes", "one: an episode is not split", "a sweep")
        if self.steps or self.form == "input":
            run.model.require_one_pass("inner steps" if self.steps else "gates by input")
        if self.second:
            self._tell_kernel(run.model)
        if run.plan.patience is not None and self.form:
            raise HeadwiseError("patience with trained gates", "the last step's gates beside the last step's weights")
        if self.trim:
            if not self.form:
                run.model.require_projected("folding a mask (gates= keep it beside the model)")
            self._check_room(run, self.trim)
            step = self._trim_step(run, self.trim)
            run.best_after = step if step < run.total else 0  # evaluations of the whole model do not compete
        if callable(getattr(run.model.tokenizer, "tokenize", None)):
            self.coverage = {name: coverage(task, run.model.tokenizer) for name, task in run.model.tasks.items()}
        if self.trim and self.trim.train < 1:
            Heads.of(run.model.encoder).require_exact("training chosen heads")
        if self.free:
            self._hold(run)

    def _tell_kernel(self, model: MultiTaskModel) -> None:
        kernel = getattr(model.config, "_attn_implementation", "eager")
        if kernel not in ("sdpa", "eager"):
            hint = "model.encoder.set_attn_implementation('eager')"
            raise HeadwiseError(f"second order through {kernel} attention", "eager or sdpa", hint)
        if kernel == "sdpa":
            text = "second order: attention runs the math kernel, as fused ones have no second derivative"
            warnings.warn(text, HeadwiseWarning, stacklevel=3)

    @contextmanager
    def around(self, run: Run) -> Iterator[None]:
        with ExitStack() as stack:
            if self.second:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(self.learner.gated())
            yield

    def before_step(self, run: Run) -> None:
        if self.trim and not self.trimmed and run.step >= self._trim_step(run, self.trim):
            self._trim(run, self.trim)

    def before_batch(self, run: Run, task: str) -> None:
        if self.held:
            self.held.select(task)

    def loss(self, run: Run, task: str, batch: dict[str, Tensor]) -> Tensor:
        """The loss of what the support set makes of the model, on the query set: one number, once per item."""
        if not self.steps:
            return run.wrapped(task, batch).loss
        stream = run.streams[task]
        assert isinstance(stream, Episodes)
        support, query = (self._batch(run, task, items) for items in stream.parts)
        adapted = self.adapt(self.learner, task, support)
        loss = functional_call(self.learner, adapted.parameters, (task, query)).mean()
        if self.algorithm == "reptile":
            own = dict(self.learner.named_parameters())
            way = torch.stack([(own[name] * step.detach()).sum() for name, step in adapted.path.items()]).sum()
            loss = loss + (way - way.detach())  # adds nothing but the path to the gradient
        return loss.expand(len(next(iter(batch.values()))))

    def _batch(self, run: Run, task: str, items: np.ndarray) -> dict[str, Tensor]:
        batch = drop_words(run.data[task].batch(items), run.plan.word_dropout, run.model.tokenizer)
        return to_device(batch, run.device)

    def adapt(
        self,
        learner: Learner,
        task: str,
        batch: dict[str, Tensor],
        steps: int | None = None,
        rates: Rates | None = None,
    ) -> Adapted:
        """The inner loop on a support set; steps and rates are the method's own where not given."""
        groups = learner.movable(task, MOVES[self.moves])
        second = self.second and learner.training
        how = (self.steps if steps is None else steps, rates or self.current_rates(), self.momentum, second)
        return adapt(learner, task, batch, groups, *how, self._masks(learner), whole_path=self.algorithm == "reptile")

    def current_rates(self) -> Rates:
        """The inner loop's rates by group."""
        if self.log_rates is None:
            return self.rates
        return dict(zip(GROUPS, self.log_rates.exp().unbind()))

    def _masks(self, learner: Learner) -> dict[str, Callable[[Tensor], Tensor]]:
        """Masks that keep the inner loop from updating heads that the outer loop freezes."""
        if not self.held:
            return {}
        rows = {id(one.parameter): one.masked for one in self.held.rows}
        return {name: rows[id(p)] for name, p in learner.named_parameters() if id(p) in rows}

    def before_update(self, run: Run, tasks: list[str]) -> None:
        if self.held:
            self.held.save(run.optimizer, tasks)

    def after_update(self, run: Run, tasks: list[str]) -> None:
        if self.held:
            self.held.restore()

    @torch.no_grad()
    def finish(self, run: Run) -> None:
        if self.held:
            self.held.detach()
        self.held = None
        gates = self.learner.gates
        if gates is not None and gates.logits is None and self.trimmed and len(gates.open.unique(dim=0)) == 1:
            from headwise.heads.cutting import fold

            fold(run.model.encoder, gates.open[0])
        if run.out and run.accelerator.is_main_process and (kept := self.state()):
            run.out.mkdir(parents=True, exist_ok=True)
            save_file({name: value.contiguous().cpu() for name, value in kept.items()}, run.out / "meta.safetensors")

    def state(self) -> dict[str, Tensor]:
        kept = {f"free.{task}": mask for task, mask in self.free.items()}
        gates = self.learner.gates
        if gates is not None:
            kept |= {f"gates.{name}": value.detach() for name, value in gates.state_dict().items()}
            kept["trimmed"] = torch.tensor(self.trimmed)
        return kept if self.log_rates is None else {**kept, "log_rates": self.log_rates.detach()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        self.free = {n.removeprefix("free."): mask for n, mask in tensors.items() if n.startswith("free.")}
        gates = self.learner.gates
        if gates is not None:
            gates.load_state_dict({n.removeprefix("gates."): v for n, v in tensors.items() if n.startswith("gates.")})
            gates.masked_by = self.trim.each if self.trim else "shared"
            self.trimmed = bool(tensors["trimmed"])
        if self.log_rates is not None:
            self.log_rates.data.copy_(tensors["log_rates"])

    def describe(self) -> dict[str, Any]:
        settings = {
            "algorithm": self.algorithm,
            "steps": self.steps,
            "support": self.support,
            "rates": dict(self.rates),
        }
        settings |= {"moves": self.moves, "momentum": self.momentum, "learn_rates": self.learn_rates}
        settings |= {"gates": self.form, "gates_each": self.gates_each, "gate_lr": self.gate_lr}
        settings |= {"attention": "math" if self.second else "any"}
        return {"method": self.name, **settings, "trim": asdict(self.trim) if self.trim else None}

    # -- closing and choosing heads

    def _trim_step(self, run: Run, trim: Trim) -> int:
        return run.total - round(trim.delta * run.total)

    def _trim(self, run: Run, trim: Trim) -> None:
        gates = self.learner.gates
        assert gates is not None
        scores = self._scores(run, trim)
        with torch.no_grad():
            own = {task: gates.values(task).cpu() * living for task, living in self._living(run).items()}
        values = own if trim.prune_by == "gates" else scores
        gates.close(trim.closed(values, self._keys(run, trim), run.plan.seed), trim.each)
        if trim.train < 1:
            self.free = trim.movable(scores, gates.closed, run.plan.seed)
            self._hold(run)
        self.trimmed = True

    def _check_room(self, run: Run, trim: Trim) -> None:
        """Raise before training if more heads are to be closed or trained than exist."""
        living = self._living(run)
        closed = trim.closed(living, self._keys(run, trim), run.plan.seed)
        if trim.train < 1:
            trim.movable(living, closed, run.plan.seed)

    def _keys(self, run: Run, trim: Trim) -> dict[str, str]:
        return {name: key(task, trim.each) for name, task in run.model.tasks.items()}

    def _living(self, run: Run) -> dict[str, Tensor]:
        """For each pair 1 for existing heads, NaN for pruned ones."""
        heads = Heads.of(run.model.encoder)
        return dict.fromkeys(run.names, torch.ones(heads.shape).masked_fill(~heads.alive.cpu(), torch.nan))

    def _scores(self, run: Run, trim: Trim) -> dict[str, Tensor]:
        """Each pair's importance under its gates; random choices need only the existing heads."""
        gates = self.learner.gates
        assert gates is not None
        if not trim.needs_importance:
            return self._living(run)
        gates.requires_grad_(False)  # importance leaves gradients in parameters that require them
        with self.learner.gated():
            scores = choose_heads(run, lambda run, task: self._importance(run, task, trim))
        gates.requires_grad_(True)
        return scores

    def _importance(self, run: Run, task: str, trim: Trim) -> Tensor:
        return importance(run.model, task, trim.by, examples=trim.examples, data=run.data[task]).scores

    def _hold(self, run: Run) -> None:
        if self.held:
            self.held.detach()
        self.held = HeldHeads(Heads.of(run.model.encoder), self.free)
        self.held.attach()


def _rates(rates: float | Mapping[str, float]) -> dict[str, float]:
    by_group = {group: float(rates) for group in GROUPS} if isinstance(rates, int | float) else dict(rates)
    if set(by_group) - set(GROUPS):
        raise unknown("group of inner rates", next(iter(set(by_group) - set(GROUPS))), GROUPS)
    missing = [group for group in GROUPS if group not in by_group]
    if missing or not all(rate > 0 for rate in by_group.values()):
        raise HeadwiseError(f"inner rates {by_group}", "a number above 0 for each of encoder, heads and gates", "0.01")
    return by_group
