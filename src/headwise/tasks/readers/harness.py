"""Tasks of lm-evaluation-harness as tasks for a language model: ``lm-eval:arc_easy`` (extra ``lm-eval``)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headwise.errors import HeadwiseError, first_line, missing_extra, unknown
from headwise.tasks.prompts.prompted import Halves
from headwise.tasks.task import Row, Task

PREFIX = "lm-eval:"
FORMATS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
SEED = 1234  # of few-shot examples, as the harness draws them


def harness_task(name: str, data: Path | None = None) -> Task:
    """A task of the harness by its name there.

    Rows are read as the harness reads them, from the Hub or from its cache; where the folder of data has
    ``lm-eval/NAME/SPLIT.parquet`` (or .json, .jsonl, .csv), from these files. Their splits and columns are named as the
    harness's task expects. The split ``test`` has the rows that the harness evaluates on.

    Args:
        name: with the prefix, such as ``lm-eval:arc_easy``.
        data: the folder of data.
    """
    rows = HarnessRows(_loaded(name.removeprefix(PREFIX), data))
    source: Any = rows if "train" in rows.splits else Halves(rows, "test")
    kind, metric = rows.kind
    return Task(name, kind, source, metric, note=f"of lm-evaluation-harness, {rows.task.OUTPUT_TYPE}")


def _loaded(name: str, data: Path | None) -> Any:
    """The harness's own task; its problems, whatever they are, as one line."""
    manager = _manager()
    if name not in manager.all_subtasks:
        if name in manager.all_tasks:
            raise HeadwiseError(f"{name!r}, a group of tasks", "one of its tasks", "lm-eval ls tasks")
        raise unknown("task of lm-evaluation-harness", name, manager.all_subtasks)
    files = _local_files(data / "lm-eval" / name) if data else {}
    try:
        with TemporaryDirectory() as folder:
            spec = _with_files(manager.task_index[name].yaml_path, name, files, Path(folder)) if files else name
            task = next(iter(manager.load([spec])["tasks"].values()))
    except Exception as error:  # of the harness, of datasets, of the network
        where = f"{data or 'the data folder'}/lm-eval/{name}/SPLIT.parquet"
        seen = f"cannot read {PREFIX}{name}: {first_line(error)}"
        raise HeadwiseError(seen, f"a network, or files: {where}") from error
    task.set_fewshot_seed(SEED)
    return task


@cache
def _manager() -> Any:
    """The harness's index of tasks, which takes seconds to read."""
    try:
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise missing_extra("lm-eval", "lm-eval", "a task of lm-evaluation-harness") from None
    return TaskManager()


def _with_files(included: Path, name: str, files: dict[str, Path], folder: Path) -> str:
    """The task with local files in place of its data set: a file that includes the harness's own and changes it."""
    local = {split: str(path.resolve()) for split, path in files.items()}
    changed = {"include": str(included), "task": name, "dataset_path": FORMATS[next(iter(files.values())).suffix]}
    changed |= {"dataset_name": None, "dataset_kwargs": {"data_files": local}}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(changed))  # which is YAML too
    return str(path)


def _local_files(folder: Path) -> dict[str, Path]:
    """Split to file, of one format."""
    files = sorted(path for path in folder.glob("*.*") if path.suffix in FORMATS)
    if len({FORMATS[path.suffix] for path in files}) > 1:
        raise HeadwiseError(f"files of several formats in {folder}", "one format for all splits")
    return {path.stem: path for path in files}


@dataclass(frozen=True)
class HarnessRows:
    """The documents of a harness task with the requests that it makes of them."""

    task: Any

    @cached_property
    def splits(self) -> list[str]:
        """``test`` is what the harness evaluates on; it also serves as ``dev`` where there is no other."""
        return (["train"] if self.task.has_training_docs() else []) + ["dev"]

    @property
    def origin(self) -> str:
        config = self.task.config
        kept = (config.dataset_kwargs or {}).get("data_files")
        return f"lm-evaluation-harness, {', '.join(sorted(kept.values())) if kept else config.dataset_path}"

    def read(self, split: str) -> list[Row]:
        if split == "train":
            return self._rows(self.task.training_docs())
        has_both = self.task.has_validation_docs() and self.task.has_test_docs()
        return self._rows(self.task.validation_docs() if split == "dev" and has_both else self.task.eval_docs)

    def _rows(self, docs: Iterable[Any]) -> list[Row]:
        return [self._row(doc) for doc in docs]

    def _row(self, doc: Any) -> Row:
        shots = self.task.config.num_fewshot or 0
        context = self.task.fewshot_context(doc, num_fewshot=shots)
        made = self.task.construct_requests(doc, context)
        if self.task.OUTPUT_TYPE == "multiple_choice":
            made = made[: len(self.task.doc_to_choice(doc))]  # a metric may ask for likelihoods without context too
            prompts, choices = zip(*(request.args[:2] for request in made))
            one = prompts[0] if len(set(prompts)) == 1 else list(prompts)
            target = self.task.doc_to_text(doc) if self.task.multiple_input else self.task.doc_to_target(doc)
            label = target if isinstance(target, int) else self.task.doc_to_choice(doc).index(target)
            return {"prompt": one, "choices": [self._bare(choice) for choice in choices], "label": label}
        if self.task.OUTPUT_TYPE == "loglikelihood":
            return {"prompt": made.args[0], "target": made.args[1]}
        target = self.task.doc_to_target(doc)
        return {"prompt": context, "answers": [str(t) for t in target] if isinstance(target, list) else [str(target)]}

    @property
    def delimiter(self) -> str:
        return self.task.config.target_delimiter

    def _bare(self, choice: str) -> str:
        """A choice without the delimiter, which `Reading` puts there: its characters do not count."""
        return choice[len(self.delimiter) :]

    @property
    def kind(self) -> tuple[Any, str]:
        """The kind and the metric."""
        from headwise.tasks.kinds.choice import Choice
        from headwise.tasks.kinds.generation import Continuation, Generation
        from headwise.tasks.kinds.reading import Reading

        form, reading = self.task.OUTPUT_TYPE, Reading(delimiter="")
        if form == "multiple_choice":
            return Choice(reading=replace(reading, delimiter=self.delimiter)), "accuracy"
        if form == "loglikelihood":
            return Continuation(reading=reading), "continuation_match"
        how = dict(self.task.config.generation_kwargs or {})
        if form != "generate_until" or how.get("do_sample") or not how.get("until"):
            seen = f"{PREFIX}{self.task.config.task}, which asks for {form}"
            hint = "headwise.integrations.lm_eval.GatedLM, which the harness itself evaluates"
            raise HeadwiseError(seen, "multiple_choice, loglikelihood, or greedy generate_until", hint)
        until = how["until"] if isinstance(how["until"], list) else [how["until"]]
        kind = Generation(longest=int(how.get("max_gen_toks", 256)), stop=tuple(until), reading=reading)
        return kind, "answer_f1"
