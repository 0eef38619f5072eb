"""The lab in a real browser: every interaction, on a desk and on a phone, without a serious issue of accessibility."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from chromium import DOWN, ESCAPE, RIGHT, UP, Chromium, axe
from labs import Lab

from headwise.lab.opening import Opened
from headwise.testing import toy_language_model

pytestmark = pytest.mark.browser
CELL = '[data-head="{}"]'
CLOSED = "return cells.filter((c) => c.classList.contains('closed')).map((c) => c.dataset.head).join()"
BAD = "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"


def wait(what: Callable[[], Any], seconds: float = 15) -> Any:
    """What something becomes once it is true."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.03)
    return found


def settled(window: Chromium) -> None:
    """All answers are there."""
    wait(
        lambda: window.run(
            "return document.querySelectorAll('.answer .chance').length"
            " && !document.querySelector('[data-part=banner]:not([hidden])')"
        )
    )
    time.sleep(0.1)


@pytest.fixture
def window(browser: Chromium, lab) -> Chromium:
    browser.size(1440, 1000)
    browser.prefer("light")
    browser.open(lab.address, "#t=w1+m0a+w3")
    settled(browser)
    yield browser
    assert browser.console() == []
    assert all(url.startswith((lab.address, "data:", "about:", "blob:")) for url in browser.requests())


def press(window: Chromium, act: str) -> None:
    window.run("document.querySelector(`[data-do=${arguments[0]}]`).click()", act)


def text(window: Chromium, part: str) -> str:
    return window.text(f'[data-part="{part}"]')


def type_text(window: Chromium, words: str) -> None:
    window.run(
        "const b = document.getElementById('text'); b.value = arguments[0];"
        "b.dispatchEvent(new Event('input', {bubbles: true}))",
        words,
    )


def test_a_click_closes_a_head_and_the_answers_are_the_models(window, lab):
    window.point(CELL.format("0.1"), click=True)
    wait(lambda: "1 of 8 heads closed" in text(window, "count"))
    gates = [[1.0, 0.0, 1.0, 1.0], [1.0] * 4]
    found = lab.ask("answers", text="w1 m0a w3", gates=gates)
    shown = lambda: window.run(  # noqa: E731
        "return [...document.querySelectorAll('.answer')].map((a) =>"
        " [a.querySelector('.after .word').innerText, a.querySelector('.after .chance').innerText])"
    )
    expected = [[a["label"], f"{a['probabilities'][a['label']]:.2f}"] for a in found["after"].values()]
    wait(lambda: shown() == expected)
    window.point(CELL.format("0.1"), click=True)
    wait(lambda: "0 of 8 heads closed" in text(window, "count"))


def test_half_on_off_and_dragging(window):
    window.run("document.querySelector('[data-part=paint] [data-key=\"0.5\"]').click()")
    window.point(CELL.format("1.0"), click=True)
    assert window.run("return state.gates[4]") == 0.5 and window.run("return cells[4].classList.contains('half')")
    window.run("document.querySelector('[data-part=paint] [data-key=\"0\"]').click()")
    boxes = window.run(
        "return ['0.0', '0.3'].map((h) => {"
        " const b = document.querySelector(`[data-head='${h}']`).getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2].map(Math.round) })"
    )
    steps = [
        {"type": "pointerMove", "x": boxes[0][0], "y": boxes[0][1], "duration": 0},
        {"type": "pointerDown", "button": 0},
    ]
    steps += [
        {"type": "pointerMove", "x": boxes[1][0], "y": boxes[1][1], "duration": 300},
        {"type": "pointerUp", "button": 0},
    ]
    window._call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})
    assert window.run(CLOSED) == "0.0,0.1,0.2,0.3"
    press(window, "undo")
    assert window.run(CLOSED) == "", "a drag is one step to undo"


def test_everything_by_keyboard(window):
    window.run("cells[0].focus()")
    window.keys(UP, RIGHT, " ")
    assert window.run(CLOSED) == "1.1"
    window.keys(DOWN, "h")
    assert window.run("return state.gates[1]") == 0.5
    window.keys("l")
    assert window.run(CLOSED) == "0.0,0.1,0.2,0.3,1.1"
    window.keys("o")
    assert window.run(CLOSED) == "" and window.run("return closedHeads().length") == 0
    window._call(
        "POST",
        "/actions",
        {
            "actions": [
                {
                    "type": "key",
                    "id": "k",
                    "actions": [
                        {"type": "keyDown", "value": "\ue009"},
                        {"type": "keyDown", "value": "z"},
                        {"type": "keyUp", "value": "z"},
                        {"type": "keyUp", "value": "\ue009"},
                    ],
                }
            ]
        },
    )
    assert window.run("return closedHeads().length") == 5
    window.keys("/")
    assert window.run("return document.activeElement.id") == "text"


def test_sets_of_heads_with_one_click(window, lab):
    about = lab.ask("examples", task="toy0") and json.loads(lab.send("about.json")[1])
    flat = [score for row in about["scores"]["toy1"] for score in row]
    best = sorted(range(8), key=lambda i: -flat[i])[: int(0.3 * 8)]
    window.run("document.querySelectorAll('.chip')[1].click()")
    assert window.run(CLOSED) == ",".join(f"{i // 4}.{i % 4}" for i in sorted(best))
    window.run("document.querySelectorAll('.chip')[1].click()")
    assert window.run(CLOSED) == ""
    window.run("document.querySelectorAll('.headgrid button.tick')[0].click()")
    assert window.run(CLOSED) == "1.0,1.1,1.2,1.3"
    press(window, "random")
    assert len(window.run(CLOSED).split(",")) == 4
    window.run(
        "change({gates: allOpen()}); const t = document.querySelector('[data-part=roles]');"
        "t.value = 'previous token'; t.dispatchEvent(new Event('change'))"
    )
    assert window.run(CLOSED) == "0.1"
    window.run(
        "[...document.querySelectorAll('[data-part=sets] button')].find((b) => b.innerText === 'Invert').click()"
    )
    assert len(window.run(CLOSED).split(",")) == 7


@pytest.mark.parametrize("close", ["mean", "resample"])
def test_what_closed_heads_return_can_be_chosen(window, lab, close):
    window.run("document.querySelectorAll('.headgrid button.tick')[0].click()")
    window.run("document.querySelector(`[data-part=close] [data-key=${arguments[0]}]`).click()", close)
    found = lab.ask("answers", text="w1 m0a w3", gates=[[1.0] * 4, [0.0] * 4], close=close)["after"]["toy0"]
    wait(lambda: f"{found['probabilities'][found['label']]:.2f}" == window.text('[data-task="toy0"] .after .chance'))
    assert f"r={close}" in window.run("return location.hash")


def test_undo_and_redo(window):
    window.point(CELL.format("0.0"), click=True)
    type_text(window, "w5 m1b")
    press(window, "undo")
    assert window.run("return document.getElementById('text').value") == "w1 m0a w3" and window.run(CLOSED) == "0.0"
    press(window, "undo")
    assert window.run(CLOSED) == "" and window.run("return document.querySelector('[data-do=undo]').disabled")
    press(window, "redo")
    press(window, "redo")
    assert window.run("return document.getElementById('text').value") == "w5 m1b" and window.run(CLOSED) == "0.0"


def test_an_address_holds_text_mask_and_reference(window, lab):
    window.point(CELL.format("1.2"), click=True)
    window.run("cells[0].focus()")
    window.keys("h")
    window.run("document.querySelector('[data-part=close] [data-key=mean]').click()")
    address = window.run("return location.hash")
    window.open(lab.address, address)
    settled(window)
    assert window.run(CLOSED) == "1.2" and window.run("return [state.text, state.gates[0], state.close]") == [
        "w1 m0a w3",
        0.5,
        "mean",
    ]
    window.open(lab.address, "#t=x&m=%%%&r=evil&s=-5&heads=0.1,9.9,a.b")
    settled(window)
    assert window.run(CLOSED) == "0.1" and window.run("return [state.close, state.seed]") == ["zero", 0]


def test_development_scores_come_in_and_can_be_stopped(window):
    window.point(CELL.format("0.0"), click=True)
    wait(lambda: text(window, "measured") == "measured")
    shown = window.text('[data-task="toy0"] .dev')
    assert "n = 48" in shown and window.run("return document.querySelectorAll('.meter.score s').length") == 3
    window.run(
        "window.slow = setInterval(() => { const b = document.querySelector('[data-do=measure]');"
        " if (b.textContent === 'Stop measuring') { clearInterval(window.slow); b.click(); } }, 1)"
    )
    press(window, "measure")
    wait(lambda: text(window, "measured") == "stopped")


def test_examples_and_those_the_mask_changes(window):
    press(window, "next-example")
    wait(lambda: "2 of 48" in text(window, "example-note"))
    window.run("change({gates: state.gates.map(() => 0)})")
    wait(lambda: "changed by this mask" in text(window, "flips"))
    wait(lambda: text(window, "measured") == "measured")
    window.run("document.querySelector('[data-part=flips] button').click()")
    wait(lambda: window.run("return document.querySelectorAll('.answer.flipped').length") > 0)


def test_a_second_text_can_be_given_and_taken_back(window, lab):
    press(window, "second")
    assert window.run("return document.activeElement.id") == "other"
    window.run("change({other: 'w7 w8'})")
    found = lab.ask("answers", text="w1 m0a w3", other="w7 w8")["after"]["toy0"]
    wait(lambda: f"{found['probabilities'][found['label']]:.2f}" == window.text('[data-task="toy0"] .after .chance'))
    press(window, "second")
    assert window.run("return [state.other, document.getElementById('other').hidden]") == ["", True]


def test_why_shows_effects_on_the_map(window, lab):
    press(window, "why")
    effects = lab.ask("why", text="w1 m0a w3", task="toy0")["effects"]
    flat = [value for row in effects for value in row]
    strongest = max(range(8), key=lambda i: abs(flat[i]))
    wait(lambda: text(window, "why").count("\n") > 5)
    assert (
        window.run("return document.querySelector('[data-part=why] .link').innerText")
        == f"{strongest // 4}.{strongest % 4}"
    )
    assert window.run("return cells[arguments[0]].innerText", strongest) == ("+" if flat[strongest] > 0 else "−")
    window.run("document.querySelector('[data-part=sets] [data-key=tasks]').click()")
    assert window.run("return document.querySelectorAll('.cell .mark').length") > 0


def test_the_search_for_heads_that_flip_is_shown_step_by_step(window):
    press(window, "flip")
    done = wait(
        lambda: (found := text(window, "flip")) and ("flip toy0" in found or "No set was found" in found) and found
    )
    assert window.run("return document.querySelectorAll('[data-part=flip] circle').length") >= 2
    if "flip toy0" in done:
        press(window, "use")
        wait(lambda: window.run("return document.querySelector('[data-task=toy0]').classList.contains('flipped')"))


def test_attention_is_drawn_over_the_words(window):
    wait(lambda: window.run("return document.querySelectorAll('.arc').length") > 3)
    before = window.run("return document.querySelector('[data-part=words]').getAttribute('aria-label')")
    window.run(
        "const s = document.querySelector('[data-part=layer]'); s.value = 1; s.dispatchEvent(new Event('input'))"
    )
    wait(
        lambda: (
            "head 1.0" in window.run("return document.querySelector('[data-part=words]').getAttribute('aria-label')")
        )
    )
    assert before.startswith("Attention of head 0.0: [CLS] to") and text(window, "looking") == "attention of 1.0"


def test_masks_are_kept_named_and_compared(window):
    for cell, name in (("0.0", "one"), ("1.1", BAD[:40])):
        window.point(CELL.format(cell), click=True)
        settled(window)
        window.run("document.querySelector('[data-part=name]').value = arguments[0]", name)
        press(window, "keep")
    assert "1 heads closed in both, 0 only in one, 1 only in" in text(window, "compared")
    window.run("document.querySelector('.masks .link').click()")
    assert window.run(CLOSED) == "0.0"


def test_masks_are_taken_away(window, opened):
    window.point(CELL.format("0.0"), click=True)
    press(window, "python")
    wait(lambda: "(0, 0): 0" in text(window, "export"))
    press(window, "file")
    wait(lambda: "[true, false, false, false]" in text(window, "export"))
    window.run("document.querySelector('[data-part=name]').value = 'from the page'")
    press(window, "model")
    wait(lambda: "same outputs as gated" in text(window, "export"), 60)
    assert (opened.folder / "from-the-page" / "encoder").exists() or (
        opened.folder / "from-the-page" / "config.json"
    ).exists()


def test_empty_and_hostile_texts(window):
    type_text(window, "  ")
    wait(lambda: "–" in window.text('[data-task="toy0"] .before'))
    type_text(window, BAD)
    settled(window)
    wait(lambda: window.run("return document.querySelectorAll('.arc').length") >= 0)
    assert (
        window.run("return window.hit") is None
        and window.run("return document.querySelectorAll('img, script').length") == 1
    )


def test_a_lab_that_is_gone_is_said_in_words(window, lab):
    window.run("window.fetch = () => Promise.reject(new TypeError('x'))")
    window.point(CELL.format("0.2"), click=True)
    wait(lambda: "still running" in text(window, "banner"))


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(1440, 900, "light"), (1440, 900, "dark"), (390, 844, "light"), (390, 844, "dark")]
)
def test_no_serious_issue_of_accessibility(window, lab, width, height, scheme):
    window.size(width, height)
    window.prefer(scheme)
    window.open(lab.address, "#t=w1+m0a+w3&heads=0.1,1.2")
    settled(window)
    press(window, "why")
    press(window, "keep")
    wait(lambda: "ahead by" in text(window, "why"))
    assert axe(window) == []


def test_on_a_phone_nothing_is_wider_than_the_screen(window, lab):
    window.size(390, 844)
    window.open(lab.address, "#t=w1+m0a+w3+w4+w5+w6+w7+w8+w9")
    settled(window)
    assert window.run("return document.documentElement.scrollWidth") <= 390
    small = window.run(
        "return [...document.querySelectorAll('.chip, .segments button, .thumb button')]"
        ".map((b) => b.getBoundingClientRect()).filter((b) => b.width && b.height < 24).length"
    )
    assert small == 0, "targets of 24 px or more"
    order = window.run(
        "return ['.answers', '.heads'].map((s) => document.querySelector(s).getBoundingClientRect().top)"
    )
    assert order[0] < order[1]
    assert window.run("return getComputedStyle(document.querySelector('.thumb')).position") == "fixed"


@pytest.fixture(scope="module")
def talking():
    """A lab on a language model."""
    running = Lab(Opened(toy_language_model("llama", torch.float32), "lm", "toy-lm"))
    yield running
    running.close()


def test_a_language_model_shows_next_words_and_choices(browser, talking):
    browser.size(1440, 1000)
    browser.open(talking.address, "#t=w1+w2&c=w3%0Aw4+w5")
    settled(browser)
    words = browser.text('[data-task="next word"] .after .word')
    assert words.startswith("“")
    browser.run("document.querySelector('[data-task=\"next word\"] details').open = true")
    assert browser.run("return document.querySelectorAll('[data-task=\"next word\"] ol li').length") == 26
    assert browser.text('[data-task="short"] .after .word') in ("w3", "w4 w5")
    browser.run("document.querySelectorAll('.headgrid button.tick')[1].click()")
    expected = talking.ask("answers", text="w1 w2", gates=[[0.0] * 4, [1.0] * 4])["after"]["next word"]["label"]
    wait(lambda: browser.text('[data-task="next word"] .after .word') == f"“{expected}”")
    browser.keys(ESCAPE)
    assert axe(browser) == [] and browser.console() == []


def test_many_tasks_and_many_heads_stay_in_reach(browser):
    """Tasks beyond a dozen are in a list, small heads can be enlarged, and the map can be read as text."""
    from dataclasses import replace

    from labs import opened_toy

    running = Lab(replace(opened_toy(tasks=14), roles={}))
    try:
        browser.size(1440, 1000)
        browser.open(running.address, "#t=w1+m0a+w3")
        settled(browser)
        assert browser.run("return document.querySelectorAll('.chip').length") == 12
        browser.run(
            "const s = document.querySelector('[data-part=more-tasks]');"
            "s.value = 'toy13'; s.dispatchEvent(new Event('change'))"
        )
        shut = browser.run(CLOSED).split(",")
        browser.run("document.querySelector('details:has([data-part=as-text]) summary').click()")
        wait(lambda: f"Closed, as layer.head: {' '.join(shut)}." in text(browser, "as-text"))
        assert "toy13" in text(browser, "as-text") and len(shut) == 2
        browser.run(
            "lab.heads = 64; lab.layers = 80; cells.length = 0; state.gates = Array(5120).fill(1);"
            "lab.alive = Array.from({length: 80}, () => Array(64).fill(true)); lab.scores = {}; drawMap()"
        )
        press(browser, "zoom")
        assert browser.run("return cells[0].getBoundingClientRect().width") >= 24
        press(browser, "zoom")
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        running.close()
