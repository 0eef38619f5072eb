"""Laws of the figures: one file per part that is there, the same bytes twice, a clear word without matplotlib."""

from __future__ import annotations

import sys

import pytest

from headwise.errors import HeadwiseError
from headwise.reporting import figures
from headwise.reporting.figures import RAMP, TASKS


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def test_ramp_rises_in_lightness_all_the_way():
    steps = [luminance(colour) for colour in RAMP]
    assert steps == sorted(steps) and steps[0] < 0.02 and steps[-1] > 0.85
    assert len(set(TASKS)) == len(TASKS) == 10


def test_every_part_gives_a_figure(tmp_path, study):
    pytest.importorskip("matplotlib")
    made = figures.draw(study, tmp_path, "svg")
    assert [path.stem for path in made] == list(figures.FIGURES)
    assert all(path.read_text(encoding="utf-8").lstrip().startswith("<?xml") for path in made)


def test_missing_parts_give_no_figure(tmp_path, study):
    pytest.importorskip("matplotlib")
    bare = {part: study[part] for part in ("model", "tasks", "importance")}
    assert [path.name for path in figures.draw(bare, tmp_path, "png")] == ["heads.png"]
    with pytest.raises(HeadwiseError, match="without lesions"):
        figures.lesions(bare)


def test_a_measure_without_a_correlation_is_drawn_without_a_line(study):
    pytest.importorskip("matplotlib")
    level = dict.fromkeys(("r", "slope", "intercept", "p_mantel"), float("nan"))
    (axis, _) = figures.similarity(study | {"similarity": study["similarity"] | {"fits": {"DSE": level}}}).axes
    assert len(axis.lines) == 1 and axis.get_title() == ""


def test_same_figure_same_bytes(tmp_path, study):
    pytest.importorskip("matplotlib")
    for form in ("svg", "pdf", "png"):
        one, two = (figures.save(figures.heads(study), tmp_path / f"{i}.{form}") for i in range(2))
        assert one.read_bytes() == two.read_bytes()


def test_unknown_form_is_refused(tmp_path, study):
    with pytest.raises(HeadwiseError, match="unknown form"):
        figures.draw(study, tmp_path, "gif")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch, study):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HeadwiseError, match=r"\.\[plots\]"):
        figures.heads(study)
