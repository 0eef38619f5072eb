"""The tables and figures of every paper with command, jobs, hours and status, and the differences from the paper."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from headwise.dissociation.significance import layer_sets, random_sets
from headwise.experiments.jobs import Job, in_order
from headwise.io.files import write
from headwise.io.records import Results
from headwise.papers.mesh.published import TABLE_2
from headwise.papers.recipe import Item, PaperRecipe, Scale
from headwise.papers.specialization.published import TABLE_1

LENGTH = 34  # mean sub-words of a sentence in the benchmarks, and so of GLUE's here
BASE, LARGE = (12, 12, 768), (24, 16, 1024)  # layers, heads, width
SHAPES = {
    "tinybert": (6, 12, 768),
    "electra-small": (12, 4, 256),
    "minilm": (6, 12, 384),
    "tiny": (3, 4, 32),
}  # others: BASE
SHAPES |= dict.fromkeys(("bert-large", "gpt2-medium", "electra-large"), LARGE)
DEV = {  # published development rows
    **{"mnli": 9815, "mnli_mm": 9832, "qqp": 40430, "qnli": 5463, "sst2": 872, "cola": 1043, "mrpc": 408, "rte": 277},
    **{"stsb": 1500, "agnews": 7600, "agpair": 7600, "scitail": 1304, "imdb": 25000},
    **{"nli": 2490, "qa": 10570, "ner": 10000, "pa": 2000, "ontonotes": 9603},
}
LENGTHS = {"agnews": 50, "agpair": 100, "imdb": 256, "qa": 170, "ner": 20, "pa": 50, "ontonotes": 23}  # assumed
LABELS = {"agnews": "AG", "agpair": "AG", "sst2": "SST-2", "stsb": "STS-B", "cola": "CoLA", "scitail": "SciTail"}
LABELS["imdb"] = "IMDB"
ONTONOTES, EWT = 75187, 12543  # training sentences of the CoNLL-2012 split and of the English Web Treebank
UNKNOWN = 10_000  # rows of a task that appears in no paper's table
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
    if task.startswith(("ontonotes", "ewt")):
        return ONTONOTES if task.startswith("ontonotes") else EWT
    known = TABLE_1.get(LABELS.get(task, task.upper()))
    return TABLE_2[task] if task in TABLE_2 else known[2] if known else UNKNOWN


def tokens(tasks: Iterable[str], split: str = "train", limit: float | None = None) -> float:
    """Sub-words of the tasks' rows, of at most ``limit`` rows each."""
    total = 0.0
    for task in tasks:
        name = task if task in DEV else task.split("_")[0]
        number = rows(task) if split == "train" else DEV.get(name, UNKNOWN // 10)
        total += LENGTHS.get(name, LENGTH) * min(number, math.inf if limit is None else limit)
    return total


def training(c: Mapping[str, Any], at: Mapping[str, str]) -> Amount:
    """Epochs over the data; what branches off another training does only its last part."""
    plan, method, tasks = c["plan"], c.get("method") or {}, c.get("tasks") or c["pairs"]
    share = method.get("delta", 1.0) if "branch" in at else 1.0
    limit = plan.get("max_examples")
    steps = (plan.get("steps") or 0) * plan.get("batch_size", 0) * plan.get("accumulate", 1) * LENGTH
    algorithm = str(method.get("algorithm"))
    passes = (steps or plan["epochs"] * tokens(tasks, limit=limit)) * share * EPISODE.get(algorithm, 1)
    read = tokens(tasks, "dev") * (1 + (plan["epochs"] if plan["evaluate_every"] is None else 0))
    scored = tokens(tasks, limit=(method.get("trim") or method).get("examples", 0))
    return Amount(0.0, passes + read, scored) if plan["train"] == "heads" else Amount(passes, read, scored)


def lesions(tasks: Sequence[str], examples: int, number: int, limit: int | None = None) -> Amount:
    """An importance pass over each task, and a number of lesions on its development rows."""
    return Amount(scored=tokens(tasks, limit=examples), lesioned=number * tokens(tasks, "dev", limit))


def amount(job: Job) -> Amount:
    """The amount of work of a job."""
    c, work = job.config, job.work.rpartition(".")[2]
    if work in ("train", "trained", "mtdnn", "distilled"):
        made = training(c, job.at)
        return made if work != "distilled" else made._replace(read=made.read + made.trained)  # the teacher's passes
    if work in ("lesions", "apart", "estimator", "relabelling", "closings", "rounds"):
        return closing(c, work)
    if work == "mismatched":
        return Amount(read=tokens([c["task"]], "dev"))
    if work == "few_shot":
        shown = c["plan"]["epochs"] * sum(c["shots"]) * tokens([c["task"]], limit=1)
        return Amount(len(c["seeds"]) * shown, len(c["seeds"]) * len(c["shots"]) * tokens([c["task"]], "dev"))
    if work == "onto":
        target, sources = [c["target"]], len(c["of"])
        return Amount(sources * tokens(target, limit=c["plan"].get("max_examples")), sources * tokens(target, "dev"))
    if work == "tuned":  # three inputs of the classifier; probes before and after two of them
        shown = tokens([c["task"]], limit=c["plan"].get("max_examples"))
        return Amount(3 * c["plan"]["epochs"] * shown, probed=3 * rows(c["task"]) / 1e5)
    if work == "along":  # one training, and probes at several points of it
        shown = c["plan"]["epochs"] * tokens([c["task"]], limit=c["plan"].get("max_examples"))
        probed = min(rows(c["task"]), c.get("limit") or math.inf) / 1e5
        return Amount(shown, probed=len(c["fractions"]) * probed)
    if work in ("probed", "controlled") and "task" in c:  # a control is a second probe, on labels drawn anew
        return Amount(probed=(1 + (work == "controlled")) * min(c.get("limit") or 1e5, 1e5) / 1e5)
    if work == "probed":
        return Amount(read=tokens(c["tasks"], "dev") + (tokens(c["tasks"]) if c["fit_on"] == "train" else 0.0))
    return Amount()  # inventory, likeness: seconds


def closing(c: Mapping[str, Any], work: str) -> Amount:
    """The works that close heads of a trained model."""
    tasks = [*(c["training"].get("tasks") or c["training"]["pairs"])]
    if work == "estimator":  # as if each ablated all heads one by one, the most expensive case
        return lesions(tasks, 0, math.prod(BASE[:2]) + len(c["fractions"]), c["examples"])
    if work == "closings":
        return lesions(tasks, 0, len(c["closes"]) * len(tasks), c["dev"])
    if work in ("relabelling", "rounds"):
        return lesions(tasks, 9 * c.get("examples", 0), c.get("draws", 18) * len(tasks), c["dev"])
    sets = [len(tasks)] if work == "lesions" else [len(tasks), 2, 4]  # apart: pairs, languages, tasks
    closed = sum(1 + len(c["fractions"]) * (n + random_sets(n)) for n in sets) + len(tasks) * layer_sets(len(tasks))
    return lesions(tasks, c["examples"], closed, c["dev"])


def model_of(job: Job) -> str:
    return job.config.get("model") or job.config["training"]["model"]


# -- hours

SHARE = 0.4  # of a matrix product's operations a second, which passes through an encoder reach
PROBE = 2e13  # operations of fitting the probes of one head on 100,000 sentences


@lru_cache
def speed() -> float:
    """Operations a second of a matrix product here: on the accelerator in bf16, else on the processor in fp32."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, kind = (8192, torch.bfloat16) if device == "cuda" else (1024, torch.float32)
    a = torch.randn(size, size, dtype=kind, device=device)
    best = math.inf
    for _ in range(5):
        began = time.perf_counter()
        (a @ a).sum().item()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def hours(job: Job) -> float:
    """An estimate of the hours a job takes on this machine alone, for comparing jobs rather than for planning."""
    done, (layers, heads, width) = amount(job), SHAPES.get(model_of(job), BASE)
    weights = 12 * layers * width**2
    passes = 6 * done.trained + 4 * done.scored + 2 * (done.read + done.lesioned)
    probes = done.probed * (2 * weights * 1e5 * LENGTH + PROBE * layers * heads / 144)
    return (passes * weights + probes) / (SHARE * speed()) / 3600


WAITS = "registered, not run"
COLUMNS = ("paper", "item", "shows", "command", "status")


def listed(recipe: PaperRecipe, scale: Scale, records: str | Path | None = None) -> list[dict[str, Any]]:
    """A row for each table and figure: what it shows, command, jobs, estimated hours and status.

    Args:
        recipe: of a paper.
        scale: at which jobs and hours are counted.
        records: a folder of packed records, or a file: what was run. Default: nothing was.
    """

    path = Path(records) if records else None
    if path and path.is_dir() and (path / f"{recipe.name}.parquet").exists():
        path = path / f"{recipe.name}.parquet"
    shown = titles(recipe, Results(path)) if path else []
    rows = []
    for item in recipe.items:
        jobs = in_order(recipe.jobs(scale, [item.tag])) if item.parts else []
        rows.append(
            {
                **{"paper": recipe.name, "item": item.tag, "shows": item.shows, "command": command(recipe, item)},
                **{"jobs": len(jobs), "hours": sum(map(hours, jobs)), "status": status(item, shown)},
            }
        )
    return rows


def command(recipe: PaperRecipe, item: Item) -> str:
    """The command that makes an item; empty if there is none."""
    if not item.parts:
        return f"headwise recipe {recipe.name} --no-run" if item.titles else ""
    return f"headwise recipe {recipe.name} --size full --only {item.tag}"


def titles(recipe: PaperRecipe, results: Results) -> list[str]:
    """All tables and figures that the page of these records has."""
    parts = recipe.parts(results)
    return [name for part in parts for name in (*(table["title"] for table in part.tables), *part.figures)]


def status(item: Item, shown: Sequence[str]) -> str:
    """Whether the page shows an item, and what is missing."""
    number = sum(title.startswith(item.titles) for title in shown) if item.titles else 0
    done = f"run ({number} on the page)" if number else WAITS if item.parts else "cannot be run"
    return f"{done}; needs {item.missing}" if item.missing else done


def checklist(rows: Sequence[Mapping[str, Any]], folder: str | Path) -> Path:
    """Write ``checklist.md``: paper, item, command and status."""
    head = ["# Checklist", "", "Every table and figure of the four papers, generated from the recipes' items.", ""]
    head += [
        "Status reflects the records in `results/`; the number after `run` counts the tables and figures on the page.",
        "",
    ]
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        cells = [f"`{row[c]}`" if c == "command" and row[c] else str(row[c]) for c in COLUMNS]
        lines.append(f"| {' | '.join(cells)} |")
    again = ["", "```sh", "headwise recipe all --tables --records results --pages docs/results", "```"]
    return write(Path(folder) / "checklist.md", "\n".join([*head, *lines, *again]) + "\n")
