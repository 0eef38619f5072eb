"""How much the published recipes work through: their jobs, and the sub-words each trains on and reads (no rates).

`benchmarks/scale.py` makes time of it. Job counts, epochs, tasks and lesions are the recipes' own at size full;
training rows are those of the papers' tables; development rows and lengths are written down here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

from headwise.dissociation.headtests import layer_sets, random_sets
from headwise.experiments import works
from headwise.experiments.jobs import Job, in_order
from headwise.papers.anatomy import jobs as anatomy
from headwise.papers.mesh import jobs as mesh
from headwise.papers.mesh.published import TABLE_2
from headwise.papers.recipe import Scale, recipes
from headwise.papers.specialization.published import TABLE_1

NAMES = ("specialization", "anatomy", "stem_cell", "mesh")
LENGTH = 34  # mean sub-words of a sentence in the benchmarks, and so of GLUE's here
BASE, LARGE = (12, 12, 768), (24, 16, 1024)  # layers, heads, width
SHAPES = {"tinybert": (6, 12, 768), "electra-small": (12, 4, 256), "minilm": (6, 12, 384)}  # others: BASE
SHAPES |= dict.fromkeys(("bert-large", "gpt2-medium", "electra-large"), LARGE)
DEV = {  # published development rows
    **{"mnli": 9815, "mnli_mm": 9832, "qqp": 40430, "qnli": 5463, "sst2": 872, "cola": 1043, "mrpc": 408, "rte": 277},
    **{"stsb": 1500, "agnews": 7600, "agpair": 7600, "scitail": 1304, "imdb": 25000},
    **{"nli": 2490, "qa": 10570, "ner": 10000, "pa": 2000, "ontonotes": 9603},
}
LENGTHS = {"agnews": 50, "agpair": 100, "imdb": 256, "qa": 170, "ner": 20, "pa": 50, "ontonotes": 23}  # assumed
LABELS = {"agnews": "AG", "agpair": "AG", "sst2": "SST-2", "stsb": "STS-B", "cola": "CoLA", "scitail": "SciTail"}
LABELS["imdb"] = "IMDB"
ONTONOTES = 75187  # training sentences of the CoNLL-2012 split
EPISODE = {"fomaml": 2, "reptile": 2, "anil": 2, "maml": 4}  # a batch of 32 rows: 3 x 16 of support, 16 of query


class Amount(NamedTuple):
    """Sub-words trained on, read, scored for importance and read under lesions; sets of 100,000 sentences probed."""

    trained: float = 0.0
    read: float = 0.0
    scored: float = 0.0
    lesioned: float = 0.0
    probed: float = 0.0


def rows(task: str) -> int:
    """Published training rows."""
    if task.startswith("ontonotes"):
        return ONTONOTES
    return TABLE_2[task] if task in TABLE_2 else TABLE_1[LABELS.get(task, task.upper())][2]


def tokens(tasks: Iterable[str], split: str = "train", limit: float | None = None) -> float:
    """Sub-words of the tasks' rows, of at most ``limit`` rows each."""
    total = 0.0
    for task in tasks:
        name = task if task in DEV else task.split("_")[0]
        number = rows(task) if split == "train" else DEV[name]
        total += LENGTHS.get(name, LENGTH) * min(number, math.inf if limit is None else limit)
    return total


def training(c: Mapping[str, Any], at: Mapping[str, str]) -> Amount:
    """Epochs over the data; what branches off another training does only its last part."""
    plan, method, tasks = c["plan"], c.get("method") or {}, c.get("tasks") or c["pairs"]
    share = method.get("delta", 1.0) if "branch" in at else 1.0
    passes = plan["epochs"] * share * tokens(tasks) * EPISODE.get(method.get("by"), 1)
    read = tokens(tasks, "dev") * (1 + (plan["epochs"] if plan["evaluate_every"] is None else 0))
    scored = tokens(tasks, limit=(method.get("trim") or method).get("examples", 0))
    return Amount(0.0, passes + read, scored) if plan["train"] == "heads" else Amount(passes, read, scored)


def lesions(tasks: Sequence[str], examples: int, number: int, limit: int | None = None) -> Amount:
    """An importance pass over each task, and a number of lesions on its development rows."""
    return Amount(scored=tokens(tasks, limit=examples), lesioned=number * tokens(tasks, "dev", limit))


def amount(job: Job) -> Amount:
    """What a job works through."""
    c, work = job.config, job.work.rpartition(".")[2]
    if work in ("train", "trained", "mtdnn", "distilled"):
        made = training(c, job.at)
        return made if work != "distilled" else made._replace(read=made.read + made.trained)  # the teacher's passes
    if work in ("lesions", "apart", "estimator", "relabelling", "rounds"):
        return closing(c, work)
    if work == "mismatched":
        return Amount(read=tokens([c["task"]], "dev"))
    if work == "few_shot":
        shown = c["plan"]["epochs"] * sum(c["shots"]) * tokens([c["task"]], limit=1)
        return Amount(len(c["seeds"]) * shown, len(c["seeds"]) * len(c["shots"]) * tokens([c["task"]], "dev"))
    if work == "onto":
        target, sources = [c["target"]], len(c["of"])
        return Amount(sources * tokens(target, limit=c["plan"]["max_examples"]), sources * tokens(target, "dev"))
    if work == "tuned":  # three inputs of the classifier; probes before and after
        return Amount(3 * c["plan"]["epochs"] * tokens([c["task"]]), probed=2 * rows(c["task"]) / 1e5)
    if work == "probed" and "task" in c:
        return Amount(probed=1.0)
    if work == "probed":
        return Amount(read=tokens(c["tasks"], "dev") + (tokens(c["tasks"]) if c["fit_on"] == "train" else 0.0))
    return Amount()  # inventory, likeness: a moment


def closing(c: Mapping[str, Any], work: str) -> Amount:
    """The works that close heads of a trained model."""
    tasks = [*(c["training"].get("tasks") or c["training"]["pairs"])]
    if work == "estimator":  # as if each were an ablation of all heads one by one, the dearest
        return lesions(tasks, 0, math.prod(BASE[:2]) + len(c["fractions"]), c["examples"])
    if work in ("relabelling", "rounds"):
        return lesions(tasks, 9 * c.get("examples", 0), c.get("draws", 18) * len(tasks), c["dev"])
    sets = [len(tasks)] if work == "lesions" else [len(tasks), 2, 4]  # apart: pairs, languages, tasks
    closed = sum(1 + len(c["fractions"]) * (n + random_sets(n)) for n in sets) + len(tasks) * layer_sets(len(tasks))
    return lesions(tasks, c["examples"], closed, c["dev"])


@lru_cache
def full(name: str) -> list[Job]:
    """All jobs of a recipe's published size, each after those it stands on; no rows are read for it."""
    nothing = {"new": lambda *_, **__: None}
    unread = [(works, "data_of"), (anatomy, "data_of"), (mesh, "digest_of")]
    with ExitStack() as stack:
        for module, function in unread:
            stack.enter_context(mock.patch.object(module, function, **nothing))
        return in_order(recipes[name].jobs(Scale("full")))


def model_of(job: Job) -> str:
    return job.config.get("model") or job.config["training"]["model"]


def kept(job: Job) -> float:
    """Bytes of the model that a job leaves for others, in 32 bits, with a BERT's embeddings."""
    layers, _, width = SHAPES.get(model_of(job), BASE)
    stays = job.config.get("keep", job.work == "train" or job.work.endswith(("mtdnn", "distilled")))
    return 4.0 * (12 * layers * width**2 + 31000 * width) if stays else 0.0


def longest(jobs: Sequence[Job], spent: Mapping[str, float]) -> float:
    """Seconds of the longest chain of jobs that wait for each other."""
    ends: dict[str, float] = {}
    for job in jobs:
        ends[job.key] = spent[job.key] + max((ends[before.key] for before in job.after), default=0.0)
    return max(ends.values())
