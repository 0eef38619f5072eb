"""Files for the GLUE server (gluebenchmark.com): one table of predictions per task, checked, in one zip.

The server scores test sets with hidden labels, and takes all eleven tables together. GLUE's own folder
(``glue_data``) holds the questions; MNLI is marked on matched and mismatched genres, so one model answers both.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from headwise import tasks as catalog
from headwise.errors import HeadwiseError, unknown
from headwise.heads.modules import evaluating
from headwise.io.files import write
from headwise.measuring.evaluate import default_tokens
from headwise.models.batching import batches, encode
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.task import Row, Rows, Task


class Test(NamedTuple):
    """A test set of the server: task, file, number of rows and format of answers."""

    task: str  # the catalog's name of the task that is trained
    file: str
    columns: tuple[str, ...]  # of the text, or of the two texts; CoLA and SST-2 name theirs alike
    rows: int
    answers: tuple[str, ...] = ("0", "1")  # as the server writes them, in the order of the task's labels
    default: str = "0"  # the answer for a task that was not trained

    @property
    def graded(self) -> bool:
        return not self.answers


NLI = ("entailment", "neutral", "contradiction")
PAIR = ("sentence1", "sentence2")
YES_NO = ("entailment", "not_entailment")
TESTS = {
    "CoLA": Test("cola", "CoLA/test.tsv", ("sentence",), 1063),
    "SST-2": Test("sst2", "SST-2/test.tsv", ("sentence",), 1821),
    "MRPC": Test("mrpc", "MRPC/test.tsv", ("#1 String", "#2 String"), 1725),
    "STS-B": Test("stsb", "STS-B/test.tsv", PAIR, 1379, (), "0.000"),
    "QQP": Test("qqp", "QQP/test.tsv", ("question1", "question2"), 390_965),
    "MNLI-m": Test("mnli", "MNLI/test_matched.tsv", PAIR, 9796, NLI, "neutral"),
    "MNLI-mm": Test("mnli", "MNLI/test_mismatched.tsv", PAIR, 9847, NLI, "neutral"),
    "QNLI": Test("qnli", "QNLI/test.tsv", ("question", "sentence"), 5463, YES_NO, "entailment"),
    "RTE": Test("rte", "RTE/test.tsv", PAIR, 3000, YES_NO, "entailment"),
    "WNLI": Test("wnli", "WNLI/test.tsv", PAIR, 146),
    "AX": Test("mnli", "diagnostic/diagnostic.tsv", PAIR, 1104, NLI, "neutral"),
}


def submit(
    models: MultiTaskModel | Mapping[str, MultiTaskModel], data: str | Path, out: str | Path, fill: bool = False
) -> Path:
    """Answer GLUE's test sets and write the zip that its server takes.

    Args:
        models: one model with GLUE's tasks under their names in the catalog, or one for each task.
        data: the folder ``glue_data`` with its ``CoLA``, ``MNLI``, … folders.
        out: the zip to write.
        fill: answer test sets of tasks that no model has (WNLI, which nobody trains on) with one class throughout.

    Example:
        >>> submit(model, "glue_data", "submission.zip", fill=True)
    """
    answers = {}
    for name, test in TESTS.items():
        model = models if isinstance(models, MultiTaskModel) else models.get(test.task)
        if model is not None and test.task in model.tasks:
            answers[name] = predicted(model, test, questions(test, data))
    return write_submission(answers, out, fill)


def questions(test: Test, data: str | Path) -> list[tuple[str, ...]]:
    """A test set's texts in the server's order."""
    path = Path(data) / test.file
    if not path.is_file():
        raise HeadwiseError(f"no file {path}", "GLUE's own folders, as its download script writes them")
    with path.open(encoding="utf-8-sig", newline="") as file:
        head, *lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    places = [head.index(column) if column in head else None for column in test.columns]
    if None in places:
        raise HeadwiseError(f"{path} has the columns {', '.join(head)}", ", ".join(test.columns))
    if len(lines) != test.rows:
        raise HeadwiseError(f"{path} has {len(lines)} rows", f"{test.rows}, as the server has")
    short = next((i for i, line in enumerate(lines) if len(line) <= max(p or 0 for p in places)), None)
    if short is not None:
        raise HeadwiseError(f"line {short + 2} of {path} has {len(lines[short])} columns", f"{len(head)}")
    return [tuple(line[place or 0] for place in places) for line in lines]


@torch.no_grad()
def predicted(model: MultiTaskModel, test: Test, texts: Sequence[tuple[str, ...]]) -> list[str]:
    """A model's answers as the server writes them."""
    task = model.tasks[test.task]
    names = {} if test.graded else _names(test)
    if not test.graded and {names.get(label) for label in task.kind.labels} != set(test.answers):
        raise HeadwiseError(f"{test.task} with the labels {', '.join(task.kind.labels)}", ", ".join(names))
    anything: Any = task.kind.labels[0] if not test.graded else 0.0  # rows must have a label; it is not used
    rows: list[Row] = [{"text": t[0], "text_b": t[1] if len(t) > 1 else None, "label": anything} for t in texts]
    asked = Task(test.task, task.kind, Rows(test=rows), task.metric)
    data = encode(asked, "test", model.tokenizer, model.max_length)
    answers: list[str] = [""] * len(rows)
    with evaluating(model):
        for items, batch in batches(data, default_tokens(model), model.device):
            for item, answer in zip(items, task.kind.decode(model(test.task, batch).scores, batch)):
                answers[item] = f"{min(5.0, max(0.0, answer)):.3f}" if test.graded else names[task.kind.labels[answer]]
    return answers


def _names(test: Test) -> dict[str, str]:
    """What the server calls each label: by name, as one's own files may have them in any order."""
    kind: Any = catalog.get(test.task).kind
    return dict(zip(kind.labels, test.answers)) | {answer: answer for answer in test.answers}


def write_submission(answers: Mapping[str, Sequence[str]], out: str | Path, fill: bool = False) -> Path:
    """Check every table of answers and write them as ``<name>.tsv`` into one zip; the same answers, the same bytes."""
    for name in answers:
        if name not in TESTS:
            raise unknown("table of the GLUE server", name, TESTS)
    missing = [name for name in TESTS if name not in answers]
    if missing and not fill:
        raise HeadwiseError(f"no answers for {', '.join(missing)}", "all eleven tables", "fill=True, and say so")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, test in TESTS.items():
            given = answers.get(name, [test.default] * test.rows)
            _check(name, test, given)
            text = "".join(f"{i}\t{answer}\n" for i, answer in enumerate(given))
            archive.writestr(zipfile.ZipInfo(f"{name}.tsv", (2000, 1, 1, 0, 0, 0)), f"index\tprediction\n{text}")
    return write(Path(out), packed.getvalue())


def _check(name: str, test: Test, given: Sequence[str]) -> None:
    if len(given) != test.rows:
        raise HeadwiseError(f"{len(given)} answers for {name}", f"{test.rows}")
    for number, answer in enumerate(given):
        if test.graded:
            try:
                fits = 0 <= float(answer) <= 5
            except ValueError:
                fits = False
        else:
            fits = answer in test.answers
        if not fits:
            raise HeadwiseError(
                f"answer {number} of {name} is {answer!r}", " or ".join(test.answers) or "a grade from 0 to 5"
            )
