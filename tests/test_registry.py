from importlib.metadata import EntryPoint

import pytest

from headwise import registry as module
from headwise.errors import HeadwiseError
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
