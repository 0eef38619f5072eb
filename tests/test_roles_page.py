"""docs/results/roles.md is what its records say; the example knows how to measure every part of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HOME = Path(__file__).parent.parent
sys.path.append(str(HOME))

from examples.roles.__main__ import plan  # noqa: E402
from examples.roles.page import written  # noqa: E402

RECORDS = json.loads((HOME / "results" / "roles.json").read_text(encoding="utf-8"))


def test_the_page_is_what_its_records_say():
    assert (HOME / "docs" / "results" / "roles.md").read_text(encoding="utf-8") == written(RECORDS)


def test_every_record_is_one_that_the_example_measures():
    assert set(RECORDS) <= set(plan(Path("weights"), {}, Path("molecules")))


def test_known_heads_are_found():
    """Induction in two decoders, MiniLM's previous token, RXNMapper's atoms, Whisper's published heads."""
    first = lambda name, role: RECORDS[f"{name}-attention"]["roles"][role]["best"]  # noqa: E731
    assert {best["head"] for best in first("smollm2-135m", "induction")} == {"18.6", "17.3", "17.4"}
    assert first("gemma3-270m", "induction")[0]["head"] == "5.1"
    previous = first("minilm-l6", "previous")[0]
    assert previous["head"] == "0.2" and previous["score"] > 0.99
    assert "10.5" in {best["head"] for best in RECORDS["rxnmapper-albert-atoms"]["best"]}
    speech = RECORDS["whisper-tiny-en-alignment"]
    assert all(speech["order"][layer][head] > 0.85 for layer, head in speech["sets"]["published"])
    assert speech["gains"][0][1] > 0  # onsets are nearer than with the published heads, on the other half
