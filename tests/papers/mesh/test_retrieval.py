"""Sentence retrieval: published layouts, copies are found, and noise is not."""

from __future__ import annotations

import numpy as np
import pytest

from headwise.papers.mesh.retrieval import Translations, _mined, retrieve, translations
from headwise.testing import toy_model


def files(root):
    """Tatoeba as LASER has it, and BUCC with identifiers; every fourth sentence of BUCC has no translation."""
    same = [f"a sentence about {i}" for i in range(64)]
    sides = {"es": same[::2] + same[1::4], "en": same[::2] + same[3::4]}
    texts = {f"tatoeba/tatoeba.spa-eng.{side}": same for side in ("spa", "eng")}
    for side, own in sides.items():
        texts[f"bucc2018/es-en.dev.{side}"] = [f"{side}-{i:06d}\t{text}" for i, text in enumerate(own)]
    texts["bucc2018/es-en.dev.gold"] = [f"es-{i:06d}\ten-{i:06d}" for i in range(32)]
    for name, lines in texts.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
    return root


def test_copies_are_found_in_files_as_published(tmp_path):
    found = translations(files(tmp_path), ("en", "es"))
    assert [each.name for each in found] == ["tatoeba_es", "bucc_es"] and [each.whole for each in found] == [
        True,
        False,
    ]
    assert len(found[0].sources) == 64 and len(found[1].gold) == 32 < len(found[1].sources)


def test_a_sentence_is_its_own_translation():
    model = toy_model()
    texts = [f"w{i} w{i + 1} w{2 * i}" for i in range(12)]
    both = Translations("t", texts, texts, [(i, i) for i in range(12)])
    assert retrieve(model, both)["value"] == 1.0
    turned = Translations("t", texts, texts[1:] + texts[:1], [(i, i) for i in range(12)])
    assert retrieve(model, turned)["value"] == 0.0


def test_the_threshold_parts_pairs_from_noise():
    """Worked out by hand: pairs lie at 0.9, others at 0.1, and one gold pair has a wrong neighbour."""
    gold = [(i, i) for i in range(8)]
    best = np.where(np.arange(16) < 8, 0.9, 0.1)
    nearest = np.arange(16)
    assert _mined(best, nearest, gold)["value"] == 1.0
    nearest[1] = 5
    assert _mined(best, nearest, gold)["value"] == pytest.approx(2 * 3 / (4 + 4))
