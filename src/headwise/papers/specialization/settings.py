"""The settings of the specialization recipe: what is trained, lesioned, transferred and compared, at three sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwise.dissociation.lesions import GRID
from headwise.papers.specialization.transfer import PLAN as SHOT_PLAN
from headwise.papers.specialization.transfer import SHOTS
from headwise.training.plan import Plan

ESTIMATORS = (
    *("gradient", "token", "batch", "weight", "fisher", "taylor", "ablation", "mean_ablation", "all_but_one", "l0"),
    *("attribution", "integrated_gradients", "shapley", "random", "magnitude", "confidence"),
)
RELEASED: dict[str, dict[str, Any]] = {  # from the paper's method to the released program, one departure after another
    "gradients zeroed": {"freeze": "grad", "by": "gradient", "leak": False, "dropout": True},
    "+ scored per token": {"freeze": "grad", "by": "token", "last_layer": "tokens", "leak": False, "dropout": True},
    "+ last layer undivided": {"freeze": "grad", "by": "token", "last_layer": "none", "leak": False, "dropout": True},
    "+ dropout off": {"freeze": "grad", "by": "token", "last_layer": "none", "leak": False, "dropout": False},
    "+ gradients left over": {"freeze": "grad", "by": "token", "last_layer": "none", "leak": True, "dropout": False},
}
CONTROLS: dict[str, dict[str, Any]] = {  # of the released program, where all heads are trained on
    "dropout off alone": {"alpha": 1.0, "freeze": "grad", "by": "gradient", "leak": False, "dropout": False},
}
UNSAID: dict[str, dict[str, dict[str, Any]]] = {  # settings of the released program that the paper does not name
    "native output heads": {"shape": {"output_heads": "native"}},
    "grades on their own scale": {"method": {"grades": True}},
    "batches drawn anew, no warm-up": {"method": {"redraw": True}, "plan": {"warmup": 0.0}},
    "all of these": {
        **{"shape": {"output_heads": "native"}, "plan": {"warmup": 0.0}},
        **{"method": {"grades": True, "redraw": True}},
    },
}
OWN: dict[str, dict[str, Any]] = {  # beyond the paper
    "a rate per head and task": {"name": "rates", "power": 1.0, "start": 0.2},
    "a factor per head and task": {"name": "scales", "lr": 0.003},
    "a factor per head and task, faster": {"name": "scales", "lr": 0.03},
    "a factor per layer and task, faster": {"name": "scales", "lr": 0.03, "tied": "heads"},
    "a factor per head, faster": {"name": "scales", "lr": 0.03, "tied": "tasks"},
}
STARTS = ("multi", "iat", "random heads", "ticket-share", "mt-dnn")  # of few-shot transfer
BASE = Plan(evaluate_every=0, checkpoint_every=0)


@dataclass(frozen=True)
class Size:
    """Data and amounts of training at one size of the recipe."""

    five: tuple[str, ...]
    glue: tuple[str, ...]
    few: tuple[str, ...]
    texts: str  # whose sentences the similarity of tasks is measured on
    plan: Plan
    other: tuple[str, str, str] = ("", "", "")  # AG, AG-Pair, and a task of pairs to train either with
    mismatched: tuple[str, str] = ("", "")  # another development set, and the task whose output head answers it
    seeds: tuple[int, ...] = (0, 1, 2)
    more: tuple[int, ...] = ()  # seeds of plain training, IAT and our own methods alone
    examples: int = 10_000
    fractions: tuple[float, ...] = GRID
    dev: int | None = None
    measured: int | None = None  # development rows of a training's own scores; all by default
    random: int | None = None  # random sets of heads closed beside the tasks' own; the default grows with the tasks
    estimators: tuple[str, ...] = ESTIMATORS
    estimate: int = 500  # examples of the comparison of estimators
    draws: int = 99
    null_dev: int | None = 400
    sentences: int = 1000
    onto: Mapping[str, Any] = field(default_factory=lambda: {"epochs": 1, "max_examples": 1000})
    shots: tuple[int, ...] = SHOTS
    few_seeds: int = 30
    few_dev: int | None = 1000
    shot_plan: Plan = SHOT_PLAN
    alphas: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    deltas: tuple[float, ...] = (0.05, 0.1, 0.15, 0.2, 0.3)
    grid: tuple[tuple[float, ...], tuple[float, ...]] = ((0.05, 0.1, 0.15), (0.1, 0.2, 0.3))  # δ and α
    conditions: tuple[Mapping[str, Any], ...] = ()  # changes of the plan under which IAT is tried as well
    own: tuple[Mapping[str, Any], ...] = ({},)  # those under which our own methods are
    max_length: int = 128


FIVE = ("mnli", "qqp", "qnli", "agnews", "sst2")
GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb")
REAL: dict[str, Any] = {"five": FIVE, "glue": GLUE, "few": ("scitail", "imdb"), "other": ("agnews", "agpair", "qnli")}
CORPUS_FIVE = ("corpus.entailment", "corpus.entailment.es", "corpus.topic", "corpus.sentiment")  # four are enough there
CORPUS_GLUE = ("corpus.acceptability", "corpus.entailment", "corpus.sentiment", "corpus.similarity")
SIZES = {
    "smoke": Size(
        five=CORPUS_FIVE,
        glue=CORPUS_GLUE,
        few=("corpus.topic",),
        other=("corpus.topic", "corpus.entailment", "corpus.entailment.es"),
        texts="corpus",
        plan=BASE.with_(steps=20, lr=2e-3, head_lr=5e-3, max_examples=240, batch_size=16),
        seeds=(0,),
        examples=48,
        fractions=(0.1, 0.3, 0.5),
        dev=60,
        estimators=("gradient", "token", "ablation", "random"),
        estimate=32,
        draws=9,
        null_dev=40,
        sentences=40,
        onto={"steps": 4},
        shots=(4, 8),
        few_seeds=3,
        few_dev=80,
        shot_plan=SHOT_PLAN.with_(steps=4, lr=1e-3),
        alphas=(0.1, 0.3),
        deltas=(0.1, 0.3),
        grid=((0.1, 0.3), (0.1, 0.3)),
        conditions=({"lr": 1e-3},),
        max_length=32,
    ),
    "small": Size(
        **REAL,
        mismatched=("mnli_mm", "mnli"),
        texts="xquad_en",
        plan=BASE.with_(epochs=3, lr=5e-5, head_lr=1e-3, max_examples=10_000, precision="bf16"),
        more=(3, 4),
        examples=2000,
        dev=1000,
        shot_plan=SHOT_PLAN.with_(lr=5e-5, head_lr=1e-3),
        conditions=(
            *({"max_examples": rows, "lr": lr} for rows in (2000, 10_000) for lr in (2e-5, 5e-5, 1e-4)),
            {"clip": 1.0},
            {"schedule": "constant"},  # linear decay leaves the last tenth of training a twentieth of the rate
        ),
        own=({}, {"clip": 1.0}),
    ),
    "full": Size(**REAL, mismatched=("mnli_mm", "mnli"), texts="squad_v11", plan=BASE, max_length=256, few_dev=None),
}
HUB = {  # the paper's models
    "bert-base": "google-bert/bert-base-uncased",
    "gpt": "openai-community/openai-gpt",
    "gpt2-medium": "openai-community/gpt2-medium",
    "tinybert": "huawei-noah/TinyBERT_General_6L_768D",
    "bert-large": "google-bert/bert-large-uncased",
    "roberta-base": "FacebookAI/roberta-base",
    "deberta-v3-base": "microsoft/deberta-v3-base",
}
