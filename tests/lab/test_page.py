"""The page as text: it holds no script and no style of its own, and makes elements from text alone."""

from __future__ import annotations

import re

from headwise.lab import page
from headwise.lab.answers import Answers


def test_the_page_has_no_script_or_style_within():
    text = page.html()
    assert re.findall(r"<script([^>]*)>", text) == [' src="lab.js" defer'] and "<style" not in text
    assert not re.findall(r"\son\w+=|\sstyle=", text)
    assert {link for link in re.findall(r'(?:src|href)="([^"]+)"', text)} == {
        "lab.css",
        "lab.js",
        "report",
        "atlas",
        "data:,",
        "#answers",
    }


def test_scripts_make_elements_only_from_text():
    script = page.script()
    for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "import("):
        assert danger not in script
    assert "http" not in script.replace("http://www.w3.org/2000/svg", "") and "url(" not in page.style()


def test_the_policy_lets_nothing_in():
    assert page.POLICY.startswith("default-src 'none'") and "unsafe" not in page.POLICY and "*" not in page.POLICY


def test_every_part_that_scripts_name_is_on_the_page():
    parts = set(re.findall(r'data-part="(\w[\w-]*)"', page.html()))
    asked = set(re.findall(r'(?:place|put)\("(\w[\w-]*)"', page.script()))
    assert asked - parts <= {"alpha-text", "compared", "compare-", "roles", "more-tasks"}
    acts = set(re.findall(r'data-do="([\w-]+)"', page.html()))
    known = re.search(r"const ACTS = \{(.*?)\n\};", page.script(), re.S)[1]
    assert all(re.search(rf'\b{act}\b|"{act}"', known) for act in acts)


def test_the_page_is_told_what_the_model_is(opened):
    found = page.about(opened, Answers(opened.subject))
    assert (found["layers"], found["heads"], found["form"]) == (2, 4, "encoder")
    assert [task["letter"] for task in found["tasks"]] == ["T", "O", "Y"]
    assert found["tasks"][0]["rows"] == 48 and found["roles"] == {"previous token": [[0, 1]]}
