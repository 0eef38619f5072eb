"""The atlas page: the same bytes for the same data, nothing from data becomes markup, filters show what they say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from headwise.atlas.cards import atlas
from headwise.atlas.result import Moments, Roles
from headwise.errors import HeadwiseError
from headwise.reporting.atlas import render_atlas

HOSTILE = "</script><img src=x onerror=alert(1)>"


def roles(holders: dict[tuple[int, int], int], names: tuple[str, ...] = ("previous", "induction")) -> Roles:
    rng = np.random.default_rng(0)
    score, control = rng.uniform(0.1, 0.3, (2, 30, 2, 3, 4))
    for (layer, head), r in holders.items():
        score[:, r, layer, head] = 0.9
    sums = [score.sum(0), control.sum(0), (score**2).sum(0), ((score - control) ** 2).sum(0)]
    return Roles.of(names, ["the token before", "what came next"], Moments(np.array([30, 30]), *sums))


def record(name: str = "before"):
    example = {
        "tokens": ["[CLS]", "a", HOSTILE],
        "attention": {f"{x}.{y}": np.eye(3).tolist() for x in range(3) for y in range(4)},
    }
    needs = {name: {"sst2": np.arange(12.0).reshape(3, 4)}}
    models = {name: roles({(0, 1): 0, (2, 3): 1}), "after": roles({(0, 1): 0, (1, 2): 1})}
    return atlas(models, needs, {name: {"depth": np.ones((3, 4))}}, {name: [example]})


def test_the_page_is_the_same_for_the_same_atlas_and_says_what_was_found():
    text = render_atlas(record())
    assert text == render_atlas(record())
    assert "2 of 12 heads of before have a role: 1 previous, 1 induction." in text
    assert "1 of them are among no task" in text


def test_names_from_data_never_become_markup():
    text = render_atlas(record(HOSTILE))
    assert HOSTILE not in text and not re.search(r"<img", text)
    assert text.count("</script>") == 2


def test_an_empty_atlas_is_refused():
    with pytest.raises(HeadwiseError, match="without models"):
        render_atlas({"models": []})


@pytest.mark.browser
def test_filters_and_cards_in_a_browser(browser, tmp_path):
    page = tmp_path / "atlas.html"
    page.write_text(render_atlas(record()), encoding="utf-8")
    browser.size(1280, 900)
    browser.open(page)
    count = "return document.querySelectorAll('.headmap button:not(.dim)').length"
    assert browser.run("return document.querySelectorAll('.headmap button').length") == 24 and browser.run(count) == 24
    browser.point('[data-head="0:2.3"]', click=True)
    card = browser.text('[data-role="card"]')
    assert "layer 2, head 3" in card and "induction" in card and "1 of 12" in card and "90" in card
    browser.point('.legend [data-key="induction"]', click=True)
    assert browser.run(count) == 2  # one in each model
    browser.run(
        "const s = document.querySelector('[data-role=needed]'); s.value = 'none'; s.dispatchEvent(new Event('change'))"
    )
    assert browser.run(count) == 1  # the one of the second model, of which no task is known
    browser.run(
        "const s = document.querySelector('[data-role=needed]'); s.value = ''; s.dispatchEvent(new Event('change'))"
    )
    browser.point('.legend [data-key="induction"]', click=True)
    browser.point('[data-role="changed"]', click=True)
    assert browser.run(count) == 2
    assert browser.requests() == [page.as_uri()] and browser.console() == []
