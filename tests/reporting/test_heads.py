"""The card of one head: what the study says, no more and no less."""

from __future__ import annotations

import copy
import json
import re

import numpy as np
import pytest

from headwise.atlas.cards import atlas
from headwise.atlas.result import Moments, Roles
from headwise.cli.app import Screen
from headwise.errors import HeadwiseError
from headwise.io.files import write_json
from headwise.reporting import report
from headwise.reporting.heads import card, render_atlas, write_probes
from headwise.reporting.page import render
from headwise.study.schema import read_study


def test_scores_and_ranks_are_those_of_the_map(study):
    for task, row in card(study, "5.7")["importance"].items():
        scores = np.array(study["importance"][task]["scores"], float)
        assert row["score"] == pytest.approx(scores[5, 7])
        assert row["rank"] == 1 + (scores > scores[5, 7]).sum() and row["of"] == (~np.isnan(scores)).sum()


def test_the_first_head_of_a_task_is_owned_by_it(study):
    for task, found in study["importance"].items():
        layer, head = np.unravel_index(np.nanargmax(np.array(found["scores"], float)), (6, 12))
        row = card(study, f"{layer}.{head}")
        first = [name for name, one in row["importance"].items() if one["rank"] == 1]
        assert task in first and row["owner"] == (task if first == [task] else None)


def test_a_head_of_the_same_rank_for_two_tasks_is_owned_by_neither(study):
    a, b = list(study["importance"])[:2]
    twice = dict.fromkeys((a, b), study["importance"][a])
    assert card(study | {"importance": twice}, "5.7")["owner"] is None


def test_the_roles_that_a_head_holds_are_on_its_card(study, capsys):
    found = card(study, "0.0")
    assert found["roles"] == {"previous": pytest.approx(0.82)} and "roles" not in card(study, "0.1")
    Screen().card(found)
    assert "roles\n  previous" in capsys.readouterr().out


def test_a_twin_is_most_alike(study, capsys):
    twins = {name: part for name, part in copy.deepcopy(study).items() if name not in ("probes", "gates")}
    for found in twins["importance"].values():
        found["scores"][0][0] = found["scores"][4][2]
    near = card(twins, "4.2")["alike"]
    assert near[0]["head"] == "0.0" and near[0]["distance"] == 0 and len(near) == 5
    assert [one["distance"] for one in near] == sorted(one["distance"] for one in near)
    Screen().card(card(twins, "4.2"))
    assert "most alike (distance in standard deviations, 0 is the same): 0.0 (0.00), " in capsys.readouterr().out


def test_a_head_that_was_cut_has_no_rank_and_no_owner(study, capsys):
    study = copy.deepcopy(study)
    for found in study["importance"].values():
        found["scores"][5][7] = None
    found = card(study, "5.7", study)
    assert found["owner"] is None and all(row["rank"] is row["share"] is None for row in found["importance"].values())
    json.dumps(found, allow_nan=False)
    Screen().card(found)
    assert "cut" in capsys.readouterr().out


def test_a_second_checkpoint_stands_beside(study):
    found = card(study, "5.7", study)
    assert found["beside"] == found["importance"]


@pytest.mark.parametrize("name", ["5", "5.12", "6.0", "a.b", "5.7.1", "-1.0", ""])
def test_a_head_that_is_not_there_is_refused(study, name):
    with pytest.raises(HeadwiseError, match="head"):
        card(study, name)


def test_no_study_is_said_so(tmp_path):
    with pytest.raises(HeadwiseError, match="no study"):
        read_study(tmp_path)
    write_json(tmp_path / "study.json", {"a": 1})
    assert read_study(tmp_path) == read_study(tmp_path / "study.json") == {"a": 1}


PROBE = {"accuracy": [[0.5, 0.9], [0.6, 0.7]], "dev": [[0.5, 0.6], [0.8, 0.7]], "layers": [0.7, 0.65]}
PROBE |= {"layers_dev": [0.5, 0.9], "chance": 0.5, "metric": "accuracy", "select_on": "dev"}


def test_a_page_of_probes_alone(tmp_path):
    page = write_probes({"tense": PROBE}, {"name": "m", "layers": 2, "heads": 2}, tmp_path)
    row = read_study(tmp_path)["tables"][0]["rows"][0]
    assert row == ["tense", 0.5, 0.65, 0.65, 0.6, "1.0"]  # chosen on dev: head 1.0, layer 1
    assert page.exists() and card(read_study(tmp_path), "0.1")["probes"]["tense"]["accuracy"] == 0.9
    assert render([read_study(tmp_path)]).encode() == page.read_bytes()


def test_probes_without_parameters_have_a_row_for_every_label(tmp_path):
    maps = [[[0.1, 0.4], [0.2, 0.3]], [[0.9, None], [0.2, 0.3]], [[0.5, 0.5], [0.5, 0.5]]]
    free = {"labels": ["det", "nsubj", "root"], "counts": [3, 2, 0], "by_label": maps, "accuracy": maps[0]}
    write_probes(
        {"tense": PROBE, "dep": free | {"metric": "accuracy"}}, {"name": "m", "layers": 2, "heads": 2}, tmp_path
    )
    linear, labels = read_study(tmp_path)["tables"]
    assert [row[0] for row in linear["rows"]] == ["tense"]
    assert labels["rows"] == [["dep", "det", 3, 0.4, "0.1"], ["dep", "nsubj", 2, 0.9, "0.0"]]
    assert card(read_study(tmp_path), "0.1")["probes"]["dep"]["accuracy"] == 0.4


def test_a_page_of_nothing_is_refused(tmp_path):
    with pytest.raises(HeadwiseError, match="without importance scores or probes"):
        report({"model": {"name": "m", "layers": 2, "heads": 2}, "tasks": [], "importance": {}}, tmp_path / "p.html")


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
