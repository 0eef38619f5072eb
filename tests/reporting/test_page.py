"""Laws of the page as text: whole in itself, the same twice, nothing from data becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import fake_study
import numpy as np
import pytest
from fake_study import HOSTILE, hostile
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError
from headwise.reporting import report
from headwise.reporting.page import SCRIPTS, asset, render
from headwise.study.schema import PARTS, REQUIRED, checked, nearest, relative


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


class Elements(HTMLParser):
    """Counts the elements of a page and keeps every attribute."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def least(name: str = "sst2") -> dict:
    return {
        "model": {"name": "tiny", "layers": 1, "heads": 2},
        "tasks": [{"name": name}],
        "importance": {name: {"scores": [[0.2, 0.8]]}},
    }


def test_report_writes_one_file_and_returns_it(tmp_path, study):
    path = report(study, tmp_path / "out" / "page.html")
    assert [path] == list((tmp_path / "out").iterdir())
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_same_study_same_bytes(study):
    assert render([study]) == render([fake_study.make(6, 12, 4)])


def test_large_study_stays_small():
    assert len(render([fake_study.make(24, 16, 10)]).encode()) < 2_000_000


def test_nothing_is_fetched_and_nothing_else_may_run(study):
    page = render([study])
    elements = Elements(page)
    addresses = [value for name, value in elements.attributes if name in ("src", "href", "action", "srcset")]
    assert all(value.startswith("#") or value == "data:," for value in addresses)
    assert not [name for name, _ in elements.attributes if name == "style" or name.startswith("on")]
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    assert "url(" not in page and "@import" not in page


def test_only_a_served_page_links_to_the_lab(study):
    links = [value for name, value in Elements(render([study], lab="./")).attributes if name == "href"]
    assert "./" in links and 'data-role="lab"' not in render([study]).partition("<script")[0]


def test_policy_names_exactly_the_style_and_script_of_the_page(study):
    page = render([study])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1).replace("&#39;", "'")
    for element, directive in (("style", "style-src"), ("script", "script-src")):
        text = re.findall(rf"<{element}>(.*?)</{element}>", page, re.S)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_script_makes_elements_only_from_text_nodes():
    script = "".join(map(asset, SCRIPTS))
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "fetch("):
        assert danger not in script


def test_hostile_text_stays_text():
    calm, wild = Elements(render([fake_study.make(4, 5, 3)])), Elements(render([hostile()]))
    assert wild.tags == calm.tags
    assert [name for name, _ in wild.attributes] == [name for name, _ in calm.attributes]
    assert data_of(render([hostile()]))["studies"][0]["tasks"][0]["name"] == HOSTILE


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40))
def test_any_task_name_survives_the_journey(name):
    page = render([least(name)])
    assert data_of(page)["studies"][0]["tasks"][0]["name"] == name
    assert Elements(page).tags == Elements(render([least()])).tags


@pytest.mark.parametrize("part", [part for part in PARTS if part not in REQUIRED])
def test_every_optional_part_may_be_missing(study, part):
    assert render([{name: value for name, value in study.items() if name != part}])


def test_least_study_has_a_page_without_empty_sections():
    page = render([least()])
    assert re.findall(r'<section id="(\w+)', page) == ["map"]


def test_a_section_for_each_part_and_no_other(study):
    assert set(re.findall(r'<section id="(\w+)', render([study]))) >= {
        "map",
        "overlap",
        "lesions",
        "trust",
        "iat",
        "prune",
    }
    assert 'id="iat-0"' not in render([study | {"iat": None}])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_cut_heads_become_null(bad):
    study = least()
    study["importance"]["sst2"]["scores"] = [[0.5, bad]]
    assert data_of(render([study]))["studies"][0]["importance"]["sst2"]["scores"] == [[0.5, None]]


def test_float32_scores_keep_their_order():
    scores = np.float32(0.1) + np.arange(8, dtype=np.float32) * np.spacing(np.float32(0.1))
    study = least() | {"model": {"name": "t", "layers": 2, "heads": 4}}
    study["importance"] = {"sst2": {"scores": scores.reshape(2, 4)}}
    kept = data_of(render([study]))["studies"][0]["importance"]["sst2"]["scores"]
    assert np.array_equal(np.argsort(np.ravel(kept)), np.arange(8)) and len(set(np.ravel(kept))) == 8


def test_attention_too_big_for_the_page_is_left_out_and_said(monkeypatch, study):
    monkeypatch.setattr(sys.modules["headwise.reporting.page"], "EXAMPLE_BYTES", 15_000)
    shown = data_of(render([study]))["studies"][0]
    assert shown["examples_left_out"] == 2 and len(shown["examples"]) == 1


def test_several_studies_share_a_page(study):
    other = fake_study.make(6, 12, 3, seed=1) | {"title": "another"}
    page = render([study, other])
    assert page.count('<article class="study"') == 2
    assert re.findall(r'<option value="(\d)">', page) == ["0", "1"]
    names = re.findall(r'<option value="\d">([^<]+)', render([study, study, study | {"title": "another"}]))
    assert len(set(names)) == 3 and names[2] == "another", "studies of one title are told apart"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_labels_of_static_tables_point_to_something(study):
    page = render([study])
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    assert set(re.findall(r'data-copy="([^"]+)"', page)) <= ids
    assert {link for link in re.findall(r'href="#([^"]+)"', page)} <= ids


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"importances": {}}, "did you|importance"),
        ({"importance": {"nope": {"scores": [[0.1, 0.2]]}}}, "unknown task"),
        ({"importance": {"sst2": {"scores": [[0.1, 0.2, 0.3]]}}}, r"\(1, 3\).*\(1, 2\)"),
        ({"importance": {"sst2": {"scores": [[0.1, 0.2], [0.3]]}}}, "unequal"),
        ({"importance": {}}, "at least one task"),
        ({"tasks": [{"name": "sst2"}, {"name": "sst2"}]}, "two tasks"),
        ({"gates": {"sst2": [[1.0]]}}, "gates of 'sst2'"),
        ({"dissociation": {"fractions": [0.3], "lesions": ["sst2"], "performance": [[[0.5]]]}}, "'none'"),
        ({"dissociation": {"fractions": [0.3], "lesions": ["none"], "performance": [[0.5]]}}, r"\(1, 1\)"),
        ({"examples": [{"tokens": ["a", "b"], "attention": {"0.0": [[1.0]]}}]}, "2 x 2"),
    ],
)
def test_wrong_studies_are_refused(change, words):
    with pytest.raises(HeadwiseError, match=words):
        render([least() | change])


def test_missing_part_and_no_study_are_refused():
    with pytest.raises(HeadwiseError, match="without 'tasks'"):
        render([{"model": {}}])
    with pytest.raises(HeadwiseError, match="no study"):
        render([])


def test_relative_performance_of_the_intact_model_is_one(study):
    part = checked(study)["dissociation"]
    for at in range(len(part["fractions"])):
        assert [row[0] for row in relative(part, at)] == [1.0] * len(part["tasks"])


@pytest.mark.parametrize("base", [0.0, -0.4, None])
def test_there_is_no_share_of_what_is_not_above_zero(base):
    part = {"lesions": ["none", "a"], "performance": [[[base, -0.2], [0.5, 0.25]]]}
    assert relative(part, 0) == [[None, None], [1.0, 0.5]]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8, unique=True), st.floats(0, 1))
def test_nearest_is_nearest(fractions, wanted):
    found = abs(fractions[nearest(fractions, wanted)] - wanted)
    assert found == min(abs(fraction - wanted) for fraction in fractions)


def test_page_needs_no_torch():
    code = "import sys, headwise.reporting, headwise.reporting.figures; sys.exit('torch' in sys.modules)"
    folder = Path(__file__).parents[2] / "src"
    assert subprocess.run([sys.executable, "-c", code], cwd=folder, env={"PYTHONPATH": str(folder)}).returncode == 0
