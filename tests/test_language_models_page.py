"""examples/language_models: records are made once, a run resumes from packed ones, and the page needs them alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import torch

HOME = Path(__file__).parent.parent
sys.path.append(str(HOME))

from examples.language_models import page, running, study  # noqa: E402

from headwise.io.records import Results  # noqa: E402
from headwise.papers.pages import pages  # noqa: E402
from headwise.testing import toy_language_model  # noqa: E402


def test_a_run_resumes_from_its_records_and_its_page_is_written(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    lm = toy_language_model("llama", torch.float32, rows=24)
    tasks = [task for name, task in lm.tasks.items() if name in ("short", "after")]
    monkeypatch.setattr(study, "tasks_of", lambda seed, size, data: tasks)
    monkeypatch.setattr(study, "opened", lambda folder, device, dtype: (lm.model, lm.tokenizer))
    size = study.Size(None, 8, 8, 8, (0.1, 0.25), 2, 0, 0, 2, (1, 2))
    monkeypatch.setattr(study, "ALPHA", 0.25)
    how = {"device": "cpu", "dtype": "float32", "seconds": None, "data": tmp_path, "processes": 1}
    first = running.measure({"toy": "toy"}, tmp_path / "one", [size], argparse.Namespace(**how, resume=None))
    works = [record.work for record in Results(first)]
    assert sorted(works) == sorted(["intact", "importance", "lesions"] * 2 + ["lesions"] * 2 + ["gating"] * 2)
    monkeypatch.setattr("headwise.scoring.importance.importance", None)  # nothing is measured again
    again = running.measure({"toy": "toy"}, tmp_path / "two", [size], argparse.Namespace(**how, resume=first))
    assert {record.key for record in Results(again)} == {record.key for record in Results(first)}
    pages(page.Page(), Results(again), tmp_path / "pages", page.COMMAND)
    text = (tmp_path / "pages" / "language_models.md").read_text()
    assert "## Closing heads in three ways" in text and "**toy, closed heads return: resample**" in text
