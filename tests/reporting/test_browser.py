"""The page in a real browser: hover, pin, slider, keyboard, silence, speed."""

from __future__ import annotations

import base64
import time

import fake_study
import numpy as np
import pytest
from chromium import DOWN, ENTER, ESCAPE, LEFT, RIGHT, UP, Chromium, axe
from fake_study import HOSTILE, hostile

from headwise.dissociation.similarity import Similarity
from headwise.reporting import report

pytestmark = pytest.mark.browser
CELL = '.study:not([hidden]) [data-head="{}"]'
CARD, TIP = '.study:not([hidden]) [data-part="card"]', '[data-role="tip"]'


@pytest.fixture(scope="module")
def page(tmp_path_factory, study):
    return report(study, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def window(browser: Chromium, page) -> Chromium:
    browser.size(1440, 1000)
    browser.prefer("light")
    browser.open(page)
    yield browser
    assert browser.console() == []


def set_alpha(window: Chromium, percent: int) -> None:
    window.run(
        "const s = document.querySelector('.study:not([hidden]) [data-part=alpha]');"
        "s.value = arguments[0]; s.dispatchEvent(new Event('input'));",
        percent,
    )


def top(scores: np.ndarray, alpha: float) -> set[int]:
    """The heads the library selects at this fraction."""
    import torch

    from headwise.heads.selection import top as select

    return set(torch.nonzero(select(torch.tensor(scores), alpha).flatten()).flatten().tolist())


def test_opens_in_silence_and_asks_for_nothing(window, page):
    assert window.requests() == [page.as_uri()]
    assert window.run("return document.querySelectorAll('[data-head]').length") == 72


def test_hover_shows_the_numbers_of_all_tasks(window, study):
    assert window.run("return document.querySelector(arguments[0]).hidden", TIP)
    window.point(CELL.format("5.7"))
    shown = window.text(TIP)
    assert "Head 5.7" in shown
    for name, entry in study["importance"].items():
        scores = np.asarray(entry["scores"])
        assert name in shown and f"#{1 + int((scores > scores[5, 7]).sum())}" in shown


def test_first_layer_is_at_the_bottom(window):
    low, high = (
        window.run("return document.querySelector(arguments[0]).getBoundingClientRect().top", CELL.format(h))
        for h in ("0.0", "5.0")
    )
    assert low > high


def test_click_pins_and_a_second_click_lets_go(window):
    assert "72 heads" in window.text(CARD)
    window.point(CELL.format("3.7"), click=True)
    card = window.text(CARD)
    assert "Head 3.7" in card and "Most important to" in card and "Most alike" in card
    detail = window.text('[data-part="detail"]')
    assert all(word in detail for word in ("Probes", "Gates", "Looks at", "Attention in a sentence", "previous token"))
    window.point(CELL.format("3.7"), click=True)
    assert "72 heads" in window.text(CARD)


def test_keyboard_walks_pins_and_lets_go(window):
    window.run("document.querySelector(arguments[0]).focus()", CELL.format("0.0"))
    window.keys(UP, UP, RIGHT, RIGHT, RIGHT, DOWN, LEFT)
    assert window.run("return document.activeElement.dataset.head") == "1.2"
    assert "Head 1.2" in window.text(TIP)
    window.keys(ENTER)
    assert "Head 1.2" in window.text(CARD)
    assert window.run("return document.querySelectorAll('[aria-selected=true]').length") == 1
    window.keys(ESCAPE)
    assert "72 heads" in window.text(CARD)
    window.keys(DOWN, DOWN, DOWN, LEFT, LEFT, LEFT, LEFT)
    assert window.run("return document.activeElement.dataset.head") == "0.0"
    assert window.run("return document.querySelectorAll('[data-head][tabindex=\"0\"]').length") == 1


def test_slider_by_keyboard_moves_everything(window):
    parts = ("alpha-text", "overlap", "matrix", "scores", "pairs", "card")
    before = [window.text(f'[data-part="{name}"]') for name in parts]
    window.run("document.querySelector('[data-part=alpha]').focus()")
    window.keys(*[RIGHT] * 15)
    after = [window.text(f'[data-part="{name}"]') for name in parts]
    assert "45\u00a0%, 32 of 72" in after[0]
    assert all(old != new for old, new in zip(before, after))


@pytest.mark.parametrize("percent", [1, 5, 29, 30, 58, 90])
def test_page_selects_the_heads_the_library_selects(window, study, percent):
    set_alpha(window, percent)
    sets = window.run("return views[0].sets.map((set) => [...set])")
    expected = [top(np.asarray(entry["scores"]), percent / 100) for entry in study["importance"].values()]
    assert [set(heads) for heads in sets] == expected
    shared = window.run("return [...document.querySelectorAll('[data-shared]')].map((c) => Number(c.dataset.shared))")
    assert shared == [len(expected[i] & expected[j]) for i in range(4) for j in range(i)]


@pytest.mark.parametrize(
    ("cut", "chance"), [(0, "6.1."), (24, "9.2, as 48 heads remain."), (60, "12, as 12 heads remain.")]
)
def test_chance_counts_living_heads_only(browser, tmp_path, study, cut, chance):
    """21 of 72 heads each; where 60 are cut the 12 others are all that can be taken, and all are shared."""
    gone = np.arange(72).reshape(6, 12) < cut
    scores = {
        name: entry | {"scores": np.where(gone, np.nan, entry["scores"])} for name, entry in study["importance"].items()
    }
    browser.open(report({**{k: study[k] for k in ("model", "tasks")}, "importance": scores}, tmp_path / "r.html"))
    note = browser.text("[data-part=overlap-note]")
    assert note.endswith(f"two random sets would share {chance}") and ("remain" in note) == bool(cut)


def test_similarity_is_told_with_the_p_value_that_knows_of_shared_tasks(browser, tmp_path, study):
    names = tuple(study["importance"])
    alike = Similarity("dse", names, np.corrcoef(np.random.default_rng(0).normal(size=(4, 6))))
    found = alike.against({pair: x * x for pair, x in alike.pairs().items()})
    assert abs(found.fit.p - found.p_mantel) > 0.01, "or the page could show either"
    browser.open(report(study | {"similarity": found.to_record()}, tmp_path / "r.html"))
    told = browser.text("[data-part=similarity]")
    assert f"p = {found.p_mantel:.2g} by permuted tasks" in told and told.count("p =") == 1
    bare = {"r": 0.5, "p": 0.012, "slope": 1.0, "intercept": 0.0}
    browser.open(report(study | {"similarity": found.to_record() | {"fits": {"dse": bare}}}, tmp_path / "r.html"))
    assert "r = 0.5" in browser.text("[data-part=similarity]") and "p =" not in browser.text("[data-part=similarity]")
    assert browser.console() == []


def test_every_p_value_names_its_null(window):
    told = window.text("[data-part=scores]")
    assert "one-sided: p" in told and "against 20 random head sets of the same size" in told and "over rows" in told
    titles = window.run("return [...document.querySelectorAll('[data-part=pairs] thead [title]')].map((t) => t.title)")
    assert len(titles) == 3 and all("one-sided" in title and "Holm" in title for title in titles)


COLOURED = (
    "return [...document.querySelectorAll('[data-part=matrix] tbody td')].map((c) => Boolean(c.style.background))"
)
PILLS = "return [...document.querySelectorAll('[data-part=pairs] .tag')].map((t) => [t.innerText, t.className])"


def test_only_what_is_significant_has_a_colour(window, study):
    for percent in (10, 30, 70):
        set_alpha(window, percent)
        part = study["dissociation"]
        at = part["fractions"].index(percent / 100)
        tests = [[row[lesion]["p_holm"] < 0.05 for lesion in row] for row in part["cells"][at].values()]
        assert window.run(COLOURED) == [flag for row in tests for flag in (False, *row, False)]
        found, pairs = window.run(PILLS), {p["d"]: p for p in part["D"][at]["pairs"]}
        for (text, style), (_, pair) in zip(found, sorted(pairs.items(), reverse=True)):
            double = pair["verdict"] in ("double", "distinct")
            assert ("good" in style) == (double and pair["p"] < 0.05)
            assert not double or text == (pair["verdict"] if pair["p"] < 0.05 else "not significant")
    pale = window.run("return document.querySelectorAll('.score-row.pale').length")
    assert pale == sum(score["p_holm"] >= 0.05 for score in part["D"][at]["tasks"].values())


def test_a_study_without_a_null_of_head_sets_calls_nothing_significant(browser, tmp_path, study):
    """As those of the first edition, whose p is over rows."""
    part = {k: v for k, v in study["dissociation"].items() if k not in ("null", "cells", "random", "matched", "n")}
    older = study | {"dissociation": part, "title": "older"}
    browser.open(report([older, study], tmp_path / "r.html"))
    assert not any(browser.run(COLOURED))
    assert all("good" not in style for _, style in browser.run(PILLS))
    assert browser.run("return document.querySelectorAll('.study:not([hidden]) .score-row:not(.pale)').length") == 0
    compared = browser.text(".compare tbody")
    assert "not tested" in compared and "of 6" in compared
    assert browser.console() == []


def test_what_was_not_learned_is_withheld_everywhere(browser, tmp_path, study):
    name = next(iter(study["importance"]))
    unlearned = study["scores"][name] | {"learned": False}
    changed = study | {"scores": study["scores"] | {name: unlearned}, "withheld": {name: "not learned: accuracy 0.48"}}
    browser.open(report(changed, tmp_path / "r.html"))
    pills = browser.run(PILLS)
    assert sum(text == "withheld" for text, _ in pills) == 3 and all(
        "good" not in s for t, s in pills if t == "withheld"
    )
    assert not any(browser.run(COLOURED)[: 6 * 1]), "its row has no colour"
    assert "not learned" in browser.text("section.trust") and "(withheld)" in browser.text("[data-part=choices]")
    assert browser.console() == []


def test_stages_that_failed_are_said_at_the_top(browser, tmp_path, study):
    browser.open(report(study | {"failed": {"looks": "RuntimeError: <b>no</b>"}}, tmp_path / "r.html"))
    assert "Stage looks failed and is missing below: RuntimeError: <b>no</b>" in browser.text(".hero")


def test_a_kept_head_tells_how_often_it_is_a_top_head(window, study):
    window.point(CELL.format("3.7"), click=True)
    card = window.text(CARD)
    for entry in study["importance"].values():
        assert f"{100 * entry['top_probability'][3, 7]:.0f}\u00a0%" in card
    assert "when examples are resampled" in card


def test_ties_go_by_position_and_cut_heads_are_never_taken(browser, tmp_path):
    scores = np.array([[1.0, 2.0, np.nan, 2.0], [2.0, 0.5, 2.0, np.nan]])
    study = {
        "model": {"name": "t", "layers": 2, "heads": 4},
        "tasks": [{"name": "a"}, {"name": "b"}],
        "importance": {"a": {"scores": scores}, "b": {"scores": -scores}},
    }
    browser.open(report(study, tmp_path / "r.html"))
    for percent in (13, 25, 50, 75):
        set_alpha(browser, percent)
        sets = browser.run("return views[0].sets.map((set) => [...set])")
        assert [set(heads) for heads in sets] == [top(scores, percent / 100), top(-scores, percent / 100)]
    assert browser.run("return document.querySelectorAll('.cell.cut').length") == 2
    browser.point(CELL.format("0.2"), click=True)
    assert "This head was pruned." in browser.text(CARD)
    assert browser.console() == []


def test_lesion_matrix_and_d_come_from_the_nearest_stored_fraction(window, study):
    part = study["dissociation"]
    set_alpha(window, 66)
    at = part["fractions"].index(0.7)
    assert "α = 70\u00a0%" in window.text('[data-part="fraction-note"]')
    cells = window.run(
        "return [...document.querySelectorAll('[data-part=matrix] tbody tr')]"
        ".map((row) => [...row.querySelectorAll('td b')].map((b) => b.innerText))"
    )
    ratio = np.asarray(part["performance"][at])
    ratio = ratio / ratio[:, :1]
    ratio = np.concatenate([ratio[:, 1:5], ratio[:, 5:].mean(1, keepdims=True)], 1)  # random sets are one column
    assert [row[1:] for row in cells] == [[f"{100 * value:.0f}" for value in row] for row in ratio]
    marked = window.run("return document.querySelectorAll('[data-part=matrix] td.collapsed').length")
    fallen = np.asarray(part["collapsed"][at])
    assert marked == int(fallen[:, :5].sum() + fallen[:, 5:].any(1).sum()) > 0
    first = next(iter(part["D"][at]["tasks"].values()))
    assert f"{100 * first['value']:+.1f}" in window.text('[data-part="scores"]')


def test_lesion_cell_tells_the_absolute_value(window, study):
    window.point('[data-part="matrix"] tbody tr:nth-child(2) td:nth-of-type(2)')
    shown = window.text(TIP)
    assert "QNLI without the heads of SST-2" in shown
    assert f"{study['dissociation']['performance'][3][1][1]:.4f}".rstrip("0") in shown


@pytest.mark.parametrize("base", [0.0, -0.3])
def test_a_task_that_scores_nothing_has_no_shares_of_it(browser, tmp_path, base):
    study = fake_study.make(2, 4, 3)
    study["dissociation"]["performance"][:, 1] *= base
    browser.open(report(study, tmp_path / "r.html"))
    rows = browser.run(
        "return [...document.querySelectorAll('[data-part=matrix] tbody tr')]"
        ".map((row) => [...row.querySelectorAll('td b')].slice(1).map((b) => b.innerText))"
    )
    assert set(rows[1]) == {"–"} and "–" not in rows[0] + rows[2]
    assert browser.console() == []


def test_each_colouring_can_be_chosen(window):
    seen = set()
    for mode in ("owner", "importance", "role", "probe", "gate"):
        window.run("document.querySelector(`[data-part=modes] [data-key=${arguments[0]}]`).click()", mode)
        seen.add(window.run("return [...document.querySelectorAll('.cell')].map((c) => c.style.background).join()"))
        assert window.run("return document.querySelector('[data-part=modes] [aria-pressed=true]').dataset.key") == mode
        assert window.text('[data-part="legend"]')
    assert len(seen) == 5


def test_a_task_has_its_place_its_letter_and_its_colour(window, study):
    """Filled where the set holds the head in 95 % of resamples, hollow where it is above the cut but may leave."""
    marks = window.run(
        "return views[0].cells.map((c) => [...c.querySelectorAll('.mark')].map((m) =>"
        " [m.dataset.letter, m.style.gridArea.split(' / ').slice(0, 2).join(), m.classList.contains('hollow')]))"
    )
    letters = {"SST-2": "S", "QNLI": "Q", "MNLI": "M", "AG News": "A"}
    places = dict(zip(letters, ("1,1", "1,2", "2,1", "2,2")))
    expected: list[list] = [[] for _ in range(72)]
    for name, entry in study["importance"].items():
        sure = np.ravel(entry["top_probability"]) >= 0.95
        for head in top(np.asarray(entry["scores"]), 0.3):
            expected[head].append([letters[name], places[name], not sure[head]])
    assert marks == expected
    assert any(hollow for cell in marks for *_, hollow in cell) and not all(h for cell in marks for *_, h in cell)


def test_away_from_the_resampled_fraction_standard_errors_say_what_is_certain(window, study):
    set_alpha(window, 50)
    name, entry = next(iter(study["importance"].items()))
    scores, error = np.ravel(entry["scores"]), np.ravel(entry["stderr"])
    order = np.argsort(-scores, kind="stable")
    sure = {int(h) for h in order[:36] if scores[h] - 1.64 * error[h] > scores[order[36]]}
    shown = window.run("return views[0].cells.flatMap((c, h) => c.querySelector('.mark.c0:not(.hollow)') ? [h] : [])")
    assert set(shown) == sure and 0 < len(sure) < 36, name
    assert "standard errors" in window.text('[data-part="legend"]')


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_map_and_matrix_are_in_the_first_screen(window, width, height):
    window.size(width, height)
    window.run("scrollTo(0, 0)")
    place = "const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.top, b.bottom, b.right]"
    _, bottom, right = window.run(place, "[data-part=map]")
    assert bottom < height and right <= width
    _, bottom, right = window.run(place, "[data-part=matrix] tbody tr:first-child td:nth-of-type(2)")
    assert bottom < height and right <= width
    headline = window.run(
        "const h = document.querySelector('.headline');"
        "return h.getBoundingClientRect().height / parseFloat(getComputedStyle(h).lineHeight)"
    )
    assert headline < (2.5 if width > 600 else 4.5)


def test_an_address_holds_head_task_and_alpha(window, page):
    set_alpha(window, 45)
    window.run("document.querySelector('[data-part=choices] [data-key=QNLI]').click()")
    window.point(CELL.format("2.3"), click=True)
    address = window.run("return location.hash")
    assert address == "#head=2.3&task=QNLI&alpha=0.45"
    window.open(page, address)
    assert "Head 2.3" in window.text(CARD) and "45\u00a0%" in window.text('[data-part="alpha-text"]')
    assert window.run("return [views[0].state.mode, views[0].state.which]") == ["importance", "QNLI"]
    window.open(page, "#head=99.1&task=%3Cb%3E&alpha=7&study=9")
    assert "72 heads" in window.text(CARD)


@pytest.mark.parametrize("width", [1440, 390])
def test_roles_have_a_map_an_address_and_words(window, page, width):
    window.size(width, 844)
    window.run("document.querySelector('[data-part=modes] [data-key=role]').click()")
    window.run("document.querySelector('[data-part=choices] [data-key=first]').click()")
    assert window.run("return location.hash") == "#role=first"
    held = "return [...document.querySelectorAll('.cell:has(.held)')].map((c) => c.dataset.head)"
    assert sorted(window.run(held)) == ["3.11", "4.11", "5.11"] and "3 heads with this role" in window.text(".legend")
    window.open(page, "#role=previous&head=0.0")
    assert len(window.run(held)) == 6 and "previous" in window.text('[data-part="detail"]')
    window.run("document.querySelector('details:has([data-part=as-table]) summary').click()")
    assert "first\t3.11 4.11 5.11" in window.text('[data-part="as-table"]')
    assert "Roles: previous" in window.run("return document.querySelector('[data-head=\"0.0\"]').ariaLabel")


def test_trainings_of_one_study_are_compared(browser, tmp_path):
    studies = [fake_study.make(6, 12, 3, seed=i) for i in range(3)]
    for seed, each in enumerate(studies):
        each["reproduce"] = {"plan": {"seed": seed}, "settings": {}}
    browser.open(report(studies, tmp_path / "r.html"))
    shown = browser.text(".compare")
    assert "One study, 3 trainings" in shown and "of 3" in shown and "p over trainings" in shown
    assert "from another seed" in browser.text(".trust")
    assert browser.console() == []


def test_an_address_holds_the_study(browser, tmp_path, study):
    path = report([study, fake_study.make(4, 8, 3, seed=1) | {"title": "the other"}], tmp_path / "r.html")
    browser.open(path, "#study=1&head=3.7")
    assert browser.text(".study:not([hidden]) h1") == "the other" and "Head 3.7" in browser.text(CARD)


def test_a_tall_model_lies_on_its_side(browser, tmp_path):
    browser.size(1440, 900)
    browser.open(report(fake_study.make(24, 16, 4), tmp_path / "r.html"))
    place = (
        "const b = document.querySelector(`[data-head='${arguments[0]}']`).getBoundingClientRect();"
        "return [b.left, b.top]"
    )
    (x0, y0), (x1, y1), (x2, y2) = (browser.run(place, head) for head in ("0.0", "1.0", "0.1"))
    assert x1 > x0 and y1 == y0 and x2 == x0 and y2 < y0
    browser.run("document.querySelector(arguments[0]).focus()", CELL.format("0.0"))
    browser.keys(UP, RIGHT, RIGHT)
    assert browser.run("return document.activeElement.dataset.head") == "2.1"
    assert browser.run("return document.querySelector('[data-part=map]').getBoundingClientRect().bottom") < 900


def test_the_largest_models_stay_readable(browser, tmp_path):
    browser.size(1440, 900)
    study = {part: value for part, value in fake_study.make(80, 64, 4).items() if part not in ("examples", "attention")}
    browser.open(report(study, tmp_path / "r.html"))
    size = "return document.querySelector('.cell').getBoundingClientRect().width"
    assert browser.run(size) >= 6
    browser.run("document.querySelector('[data-part=zoom]').click()")
    assert browser.run(size) >= 24, "as large as a finger needs"
    assert browser.run("return document.documentElement.scrollWidth") <= 1440
    assert browser.console() == []


@pytest.mark.slow  # inventing a study of a hundred tasks takes half a minute
def test_a_hundred_tasks_and_ten_studies_open_in_two_seconds(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(fake_study, "NAMES", tuple(f"suite.task {i}" for i in range(100)))
    monkeypatch.setattr(fake_study, "METRICS", ("accuracy",) * 100)
    many = fake_study.make(6, 12, 100)
    monkeypatch.undo()
    ten = [fake_study.make(6, 12, 4, seed=i) | {"title": f"study {i}"} for i in range(10)]
    for studies in ([many], ten):
        path, times = report(studies, tmp_path / "r.html"), []
        for _ in range(2):
            browser.open(path)
            times.append(browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd"))
        assert min(times) < 2000
        assert browser.console() == []


def test_the_map_can_be_read_as_a_table(window, study):
    window.run("document.querySelector('[data-part=as-table]').closest('details').open = true")
    rows = window.run(
        "return [...document.querySelectorAll('[data-part=as-table] tbody tr')]"
        ".map((r) => r.querySelector('td').innerText)"
    )
    for text, entry in zip(rows, study["importance"].values()):
        heads = {12 * int(layer) + int(head) for layer, head in (h.strip("?").split(".") for h in text.split())}
        assert heads == top(np.asarray(entry["scores"]), 0.3)


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light")])
def test_no_serious_issue_of_accessibility(window, width, scheme):
    window.size(width, 900)
    window.prefer(scheme)
    window.point(CELL.format("3.7"), click=True)
    assert axe(window) == []


def test_d_can_be_read_on_another_score(window):
    parts = [f'[data-part="{name}"]' for name in ("scores", "pairs", "d-curve")]
    read = "return document.querySelector(arguments[0]).innerHTML"
    before = [window.run(read, part) for part in parts]
    window.run("document.querySelector('[data-part=on] [data-key=\"chance corrected\"]').click()")
    assert all(window.run(read, part) != old for part, old in zip(parts, before))


def test_heads_of_one_key_value_group_stand_together(browser, tmp_path, study):
    grouped = study | {"model": study["model"] | {"kv_heads": 4}}
    browser.open(report(grouped, tmp_path / "r.html"))
    assert browser.run("return document.querySelectorAll('.cell.edge').length") == 6 * 3
    edges = browser.run("return [...document.querySelectorAll('.cell.edge')].map((c) => c.dataset.head.split('.')[1])")
    assert set(edges) == {"3", "6", "9"}


def test_link_to_a_head_opens_its_card(window, page):
    window.open(page, "#4.11")
    assert "Head 4.11" in window.text(CARD)


def test_theme_follows_the_system_and_the_button(window):
    paper = "return getComputedStyle(document.body).backgroundColor"
    colours = {}
    for scheme in ("light", "dark"):
        window.prefer(scheme)
        colours[scheme] = window.run(paper)
    assert colours["light"] != colours["dark"]
    window.run("document.querySelector('[data-role=theme]').click()")
    assert window.run(paper) == colours["light"]


def test_phone_has_no_sideways_scroll(window):
    window.size(390, 844)
    assert window.run("return document.documentElement.scrollWidth") <= 390
    assert window.run("return document.querySelector('.cell').getBoundingClientRect().width") >= 18


@pytest.mark.parametrize("width", [360, 1600])
def test_long_names_leave_the_numbers_in_sight(browser, tmp_path, monkeypatch, width):
    long = "a name as long as anybody may give to a task, and then some more of it to fill the line up"
    monkeypatch.setattr(fake_study, "NAMES", tuple(f"{name} {long}" for name in fake_study.NAMES))
    study = fake_study.make(2, 4, 4)
    study["reproduce"]["hashes"] = dict.fromkeys(study["importance"], "5f1c22ab90de4411")
    browser.size(width, 900)
    browser.open(report(study, tmp_path / "r.html"))
    assert browser.run("return document.documentElement.scrollWidth") <= width
    for part in ("overlap", "matrix"):
        name, room = browser.run(
            "const p = document.querySelector(`[data-part=${arguments[0]}]`);"
            "return [p.querySelector('tbody th'), p].map((e) => e.getBoundingClientRect().width)",
            part,
        )
        assert name < room / 2, f"{part}: a name of {name} of {room} px stays in front of the numbers"


def test_prints_on_light_paper(window):
    window.prefer("dark", media="print")
    assert window.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert window.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    window.prefer("dark")
    assert base64.b64decode(window.devtools("Page.printToPDF")["data"]).startswith(b"%PDF")


def test_no_printed_table_lies_over_its_neighbour(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(fake_study, "NAMES", tuple(f"{name} in another language" for name in fake_study.NAMES))
    browser.size(750, 1000)  # A4, margins left out
    browser.open(report(fake_study.make(12, 12, 10), tmp_path / "r.html"))
    browser.prefer("light", media="print")
    box = (
        "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [b.right, b.bottom, b.left, b.top]"
    )
    right, bottom, *_ = browser.run(box, "[data-part=overlap] table")
    *_, left, top = browser.run(box, "[data-part=layers]")
    assert bottom <= top or right <= left
    browser.prefer("light")


def test_hostile_names_are_shown_as_text(browser, tmp_path):
    browser.open(report(hostile(), tmp_path / "r.html"))
    for head in ("0.0", "1.2"):
        browser.point(CELL.format(head), click=True)
    for key in ("importance", "probe", "gate"):
        browser.run("document.querySelector(`[data-part=modes] [data-key=${arguments[0]}]`).click()", key)
    assert "<script>alert(1)</script>" in browser.text(CARD)
    assert HOSTILE.split("\u2028")[0] in browser.text(TIP)
    assert browser.run("return document.querySelectorAll('script').length") == 2
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.console() == [] and len(browser.requests()) == 1


def test_policy_stops_foreign_script_and_requests(browser, page):
    browser.open(page)
    browser.run(
        "window.hacked = 0; try { const s = document.createElement('script'); s.text = 'window.hacked = 1';"
        "document.body.append(s); } catch (error) {}"
        "fetch('https://example.org/').catch(() => { window.stopped = 1; });"
    )
    time.sleep(0.2)
    assert browser.run("return [window.hacked, window.stopped]") == [0, 1]
    browser.console()


def test_a_single_measurement_is_a_spot(browser, tmp_path, study):
    """A training that was measured once, at its end, has no line to draw."""
    runs = {n: r | {"metric_step": [2000], "metric": [0.9]} for n, r in study["training"]["tasks"].items()}
    browser.open(report(study | {"training": {"tasks": runs}}, tmp_path / "r.html"))
    spots = "return [...document.querySelectorAll(`[data-part=${arguments[0]}] .spot`)].map((c) => c.getBBox().width)"
    assert browser.run(spots, "metric") == [7] * len(runs) and browser.run(spots, "loss") == []
    assert browser.console() == []


def test_studies_are_switched(browser, tmp_path, study):
    other = fake_study.make(4, 8, 3, seed=1) | {"title": "the other"}
    browser.open(report([study, other], tmp_path / "r.html"))
    assert browser.run("return document.querySelectorAll('.study:not([hidden])').length") == 1
    browser.run(
        "const s = document.querySelector('[data-role=study]'); s.value = '1'; s.dispatchEvent(new Event('change'))"
    )
    assert browser.text(".study:not([hidden]) h1") == "the other"
    assert "32 heads" in browser.text(CARD)
    browser.point(CELL.format("3.7"), click=True)
    assert "Head 3.7" in browser.text(CARD)
    assert browser.console() == []


@pytest.mark.parametrize("part", ["dissociation", "probes", "gates", "attention", "examples", "compare", "trust"])
def test_page_without_a_part_stays_silent(browser, tmp_path, study, part):
    browser.open(report({k: v for k, v in study.items() if k != part}, tmp_path / "r.html"), "#2.3")
    set_alpha(browser, 50)
    assert "Head 2.3" in browser.text(CARD)
    assert browser.console() == []


def test_large_page_loads_in_under_a_second(browser, tmp_path):
    path = report(fake_study.make(24, 16, 10), tmp_path / "r.html")
    assert path.stat().st_size < 2_000_000
    times = []
    for _ in range(3):
        browser.open(path)
        times.append(browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert min(times) < 1000
    assert browser.run("return document.querySelectorAll('[data-head]').length") == 384
    start = browser.run("const t = performance.now(); setAlpha(views[0], 0.4); return performance.now() - t")
    assert start < 300
    assert browser.console() == []


def test_probes_alone_colour_the_map(browser, tmp_path):
    """A page without tasks: the probes colour the heads, no dial, no counts, silence."""
    from headwise.reporting.heads import write_probes

    probe = {"accuracy": [[0.5, 0.9], [0.6, None]], "dev": [[0.5, 0.9], [0.6, None]], "layers": [0.7, 0.6]}
    probe |= {"layers_dev": [0.7, 0.6], "chance": 0.5, "metric": "accuracy", "select_on": "dev"}
    browser.open(write_probes({"tense": probe}, {"name": "m", "layers": 2, "heads": 2}, tmp_path))
    colour = "return getComputedStyle(document.querySelector(`[data-head='${arguments[0]}']`)).backgroundColor"
    assert browser.run(colour, "0.1") != browser.run(colour, "0.0")
    assert browser.run("return document.querySelector('[data-head=\"1.1\"]').classList.contains('cut')")
    assert browser.run("return document.querySelector('[data-part=dial]').hidden")
    assert "top heads" not in browser.text(CARD)
    browser.point(CELL.format("0.1"))
    assert "0.9" in browser.text(TIP)
    assert browser.console() == []
