"""Jobs: their order, their grids and how they are known."""

from __future__ import annotations

import pytest
from handiwork import job

from headwise.errors import HeadwiseError
from headwise.experiments.jobs import Job, grid, in_order


def three(**config):
    """Two squares and their sum."""
    squares = tuple(job("square", n, **config) for n in (2, 3))
    return [job("total", 0, after=squares, of=[one.key for one in squares])]


def test_jobs_come_after_what_they_stand_on_and_once():
    last = three()[0]
    order = in_order([last, *last.after, last])
    assert [one.work.split(":")[1] for one in order] == ["square", "square", "total"]


def test_a_grid_has_every_combination():
    found = grid({"plan": {"lr": 0.1}, "by": "token"}, {"plan.seed": [0, 1], "alpha": [0.3, 0.5]})
    assert [(one["plan"]["seed"], one["alpha"]) for one in found] == [(0, 0.3), (0, 0.5), (1, 0.3), (1, 0.5)]
    assert all(one["plan"]["lr"] == 0.1 and one["by"] == "token" for one in found)


BAD_AXES = [({"a": 3}, "list"), ({"a": []}, "list"), ({"by.x": [1]}, "no field 'x'")]
BAD_AXES += [({"plan": {"seed": [0, 1]}}, '"plan.seed" ='), ({"plan.seed": [0, 1], "plan": [{"lr": 1}]}, "overwrites")]


@pytest.mark.parametrize("axes, word", BAD_AXES)
def test_a_bad_axis_is_refused(axes, word):
    with pytest.raises(HeadwiseError, match=word):
        grid({"by": "token"}, axes)


def test_an_axis_inside_another_follows_it():
    found = grid({}, {"plan": [{"lr": 1}, {"lr": 2}], "plan.seed": [0, 1]})
    assert [(one["plan"]["lr"], one["plan"]["seed"]) for one in found] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_job_has_a_title_whatever_its_config_holds():
    assert Job("my:work", {"method": "mine", "tasks": "one", "plan": "b", "seed": 2}).title == "my:work one mine seed=2"


def test_where_things_lie_is_no_part_of_a_job():
    here, there = job("square"), job("square")
    there.at["data"] = "/elsewhere"
    assert here.key == there.key and job("square", 3).key != here.key
