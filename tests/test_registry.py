"""Registries find, import and refuse entries by name; errors say what was seen and expected."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from headwise import registry as module
from headwise.errors import HeadwiseError, missing_extra, unknown
from headwise.registry import Registry


def test_names_and_lazy_places():
    table = Registry("thing")
    table("here")(1)
    table.add("late", "math:pi")
    assert table["here"] == 1 and table["late"] == pytest.approx(3.14159, abs=1e-4)
    assert list(table) == ["here", "late"] and "here" in table and len(table) == 2


def test_unknown_and_double_names():
    table = Registry("thing")
    table("alpha")(1)
    with pytest.raises(HeadwiseError, match="Try: alpha"):
        table["alpa"]
    with pytest.raises(HeadwiseError, match="twice"):
        table("alpha")(2)


def test_plugins_come_through_the_same_door(monkeypatch, tmp_path):
    """An installed plug-in is imported when a name is not known yet, and registers like a built-in."""
    (tmp_path / "my_plugin.py").write_text(
        "from headwise.scoring.importance import estimators\nestimators.add('mine', 'math:tau')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "entry_points", lambda group: [EntryPoint("p", "my_plugin", group)])
    monkeypatch.setattr(Registry, "_plugins_loaded", False)
    from headwise.scoring.importance import estimators

    assert estimators["mine"] == pytest.approx(6.283, abs=1e-3)
    del estimators._entries["mine"]


def test_an_error_says_what_was_seen_expected_and_what_to_type():
    error = HeadwiseError("gates (2, 3)", "(6, 12)", "torch.ones(6, 12)")
    assert str(error) == "gates (2, 3); expected (6, 12). Try: torch.ones(6, 12)"
    assert isinstance(error, ValueError)


def test_near_names_are_offered():
    text = str(unknown("task", "sst", ["sst2", "qnli", "mnli"]))
    assert "unknown task 'sst'" in text and text.endswith("Try: sst2")
    assert "qnli" in text


def test_a_missing_extra_says_what_to_install():
    assert 'pip install -e ".[captum]"' in str(missing_extra("captum", "captum", "this"))
