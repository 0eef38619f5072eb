"""Over the model types of transformers: gates close what closing a head inside its attention call closes."""

from __future__ import annotations

import json

import pytest

from families import sweep
from families.build import build
from families.check import attached, slope, verdict
from families.sweep import FILE, PAGE, page, types, verdicts
from headwise.heads.gates import Heads

KNOWN = json.loads(FILE.read_text())
FAST = (
    "afmoe albert apertus arcee bamba bart bert big_bird bigbird_pegasus bitnet blip bloom clip convbert "
    "cpmant ctrl cvt deberta-v2 deepseek_v3 distilbert falcon falcon_h1 gemma3_text gemma4_text glm4 glpn "
    "gpt2 gpt_neox gpt_oss granite granitemoehybrid jamba kosmos-2 led lfm2 llama longformer minimax "
    "mixtral mllama modernbert mpnet nemotron_h olmo3 olmo_hybrid pegasus_x phi3 qwen2_vl qwen3_5 "
    "qwen3_next recurrent_gemma roberta siglip smollm3 swin t5 vit vit_mae whisper xlm zamba2 "
    "detr d_fine diffllama idefics jetmoe lilt lxmert mllama_text_model squeezebert timesfm wavlm xlnet"
)
SAVED = {
    "gemma4_text": ["decoder 3/3 x 4 x 16"],
    "jamba": ["decoder 1/2 x 4 x 8"],
    "qwen2_vl": ["text 2/2 x 4 x 8", "vision 2/2 x 4 x 8"],
    "donut-swin": ["encoder 3/3 x 6 x 8"],
    "whisper": ["encoder 2/2 x 4 x 8", "decoder 2/2 x 4 x 8", "cross 2/2 x 4 x 8"],
}


@pytest.mark.parametrize("family", FAST.split())
def test_gates_close_heads(family):
    kind, why = verdict(build(family), thorough=False)
    assert kind == "right", why


@pytest.mark.parametrize("family", [*SAVED])
def test_what_is_cut_is_saved_and_opened_again(family):
    """Heads of several sizes, layers without attention, towers that texts do not reach, a pooler without weights."""
    assert verdict(build(family)) == ("right", "; ".join(f"{each}, cut, masked, sliced" for each in SAVED[family]))


@pytest.mark.parametrize("family", ["mamba", "fnet", "resnet"])
def test_what_cannot_be_reached_is_refused(family):
    kind, why = verdict(build(family))
    assert kind == "refused" and why


@pytest.mark.parametrize(
    ("family", "stack"),
    [
        *[("llama", "decoder"), ("diffllama", "decoder"), ("idefics2", "text"), ("mistral3", "text")],
        *[("phimoe", "decoder"), ("owlv2", "text"), ("d_fine", "decoder"), ("lxmert", "vision")],
    ],
)
def test_gradients_are_those_of_finite_differences(family, stack):
    model = build(family)
    gradient, away = slope(model, Heads.of(model, stack=stack))
    assert gradient == pytest.approx(away, rel=1e-6) and gradient


@pytest.mark.parametrize("family", ["rt_detr", "fastspeech2_conformer"])
def test_gradients_differ_by_what_a_model_detaches_alone(family):
    """Boxes, pitch and energy: heads before them have another gradient, until nothing is cut off from autograd."""
    first, other = build(family), build(family)
    gradient, away = slope(first, Heads.of(first, stack="encoder"))
    assert gradient != pytest.approx(away, rel=0.1)
    heads = Heads.of(other, stack="encoder")
    with attached():
        gradient, away = slope(other, heads)
    assert gradient == pytest.approx(away, rel=1e-4) and gradient


def test_nothing_is_known_to_be_wrong():
    assert not [name for name, (kind, _) in KNOWN.items() if kind in ("wrong", "crash")]
    assert sorted(KNOWN) == types()


def test_the_page_says_what_was_found():
    assert PAGE.read_text() == page(KNOWN), "run: python tests/families/sweep.py"


@pytest.mark.soak
def test_every_type_is_as_it_was():
    changed = {
        name: (KNOWN.get(name, ["not known"])[0], kind, why)
        for name, kind, why in verdicts(types())
        if kind != KNOWN.get(name, [""])[0]
    }
    assert not changed


def test_a_type_that_takes_too_long_gets_the_quick_verdict(monkeypatch):
    def judged(family, quick=False):
        if not quick:
            sweep._stop()
        return "right", "quickly"

    monkeypatch.setattr(sweep, "judge", judged)
    assert list(verdicts(["slow"])) == [("slow", "right", "quickly")]
    monkeypatch.setattr(sweep, "judge", lambda family, quick=False: sweep._stop())
    assert [kind for _, kind, _ in verdicts(["never"])] == ["crash"]
