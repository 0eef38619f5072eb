"""A language model as it is: tasks are prompts with choices, continuations or answers, and nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.errors import HeadwiseError, unknown
from headwise.heads.gates import Heads
from headwise.heads.modules import evaluating, positions
from headwise.models.likelihood import Reader, piece
from headwise.models.subject import Batch, Output, Subject
from headwise.tasks.kinds.choice import Choice, Prompted
from headwise.tasks.task import Task

LONGEST = 4096  # tokens of a prompt, where the model would take more: memory grows with their square
