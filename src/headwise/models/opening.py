"""A model with tasks to measure it on, whatever kind of model it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headwise.errors import HeadwiseError
from headwise.models.language import LanguageModel
from headwise.models.loading import ABOUT, find_config, is_trained
from headwise.models.multitask import MultiTaskModel
from headwise.models.plain import TaskModel
from headwise.models.subject import Subject
from headwise.tasks.kinds.choice import Prompted
from headwise.tasks.task import Task

HEADED = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "ImageClassification")
HEARING = ("AudioClassification", "ConditionalGeneration", "SpeechSeq2Seq")  # for recordings


def open_subject(name: str | Path, tasks: Sequence[Task], max_length: int = 128) -> Subject:
    """Open a model as what it is.

    That is a model trained by headwise, a task model of transformers with its own output head, or, for tasks that are
    prompts (``sst2@prompt``, ``blimp.anaphor_agreement``), a language model.

    Example:
        >>> subject = open_subject("my-finetuned", [own("reviews=reviews.csv:text,label")])
        >>> importance(subject, "reviews")
    """
    if is_trained(name):
        return MultiTaskModel.load(name, tasks, only=[task.name for task in tasks])
    if tasks and all(isinstance(task.kind, Prompted) for task in tasks):
        return LanguageModel.from_pretrained(name, tasks)
    config = None if (Path(name) / ABOUT).exists() else find_config(name)
    architecture = (getattr(config, "architectures", None) or [""])[0]
    heard = HEARING if any(hasattr(task.kind, "hears") for task in tasks) else ()
    if architecture.partition("For")[2] not in (*HEADED, *heard):
        seen = f"{name} holds {architecture or 'no model of transformers'}, which has no output head for a task"
        expected = "a model of headwise train, a checkpoint of AutoModelForSequenceClassification, or prompts"
        raise HeadwiseError(seen, expected, f"headwise train --model {name}")
    if not tasks:
        raise HeadwiseError(f"no tasks to measure {name} on", "one or more", "--task reviews=reviews.csv:text,label")
    return TaskModel.from_pretrained(name, tasks, max_length)
