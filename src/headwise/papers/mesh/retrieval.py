"""Finding a sentence's translation among many by its vector: XTREME's Tatoeba and BUCC, which train no output head.

Tatoeba gives every sentence one translation and is scored by accuracy. In BUCC few have any: pairs above a similarity
count, and the similarity is chosen on half of the gold pairs' sentences. XTREME's script removes what Tatoeba's test
answers are, so its files are read as LASER publishes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.io.files import digest
from headwise.measuring.evaluate import sentence_vectors

if TYPE_CHECKING:
    from headwise.models.multitask import MultiTaskModel

THREE = {"de": "deu", "es": "spa", "fr": "fra", "it": "ita", "nl": "nld", "pt": "por", "ru": "rus", "zh": "cmn"}


@dataclass(frozen=True)
class Translations:
    """Sentences of a language and of English, and which belong together, by position."""

    name: str
    sources: Sequence[str]
    targets: Sequence[str]
    gold: Sequence[tuple[int, int]]

    @property
    def digest(self) -> str:
        return digest(list(self.sources), list(self.targets), [list(pair) for pair in self.gold])

    @property
    def whole(self) -> bool:
        """Whether every sentence has its translation."""
        return len(self.gold) == len(self.sources) == len(self.targets)


def tatoeba(folder: str | Path, language: str) -> Translations | None:
    """``tatoeba/tatoeba.spa-eng.spa`` and ``.eng``: line by line translations; None where they are not."""
    three = THREE.get(language, language)
    paths = [Path(folder) / "tatoeba" / f"tatoeba.{three}-eng.{side}" for side in (three, "eng")]
    if not all(path.is_file() for path in paths):
        return None
    sources, targets = (path.read_text(encoding="utf-8").splitlines() for path in paths)
    if len(sources) != len(targets):
        raise HeadwiseError(f"{len(sources)} and {len(targets)} lines in {paths[0]} and {paths[1]}", "translations")
    return Translations(f"tatoeba_{language}", sources, targets, [(i, i) for i in range(len(sources))])


def bucc(folder: str | Path, language: str, split: str = "dev") -> Translations | None:
    """``bucc2018/de-en.dev.de``, ``.en`` and ``.gold``: identifiers and sentences; None where they are not."""
    stem = Path(folder) / "bucc2018" / f"{language}-en.{split}"
    if not all(Path(f"{stem}.{side}").is_file() for side in (language, "en", "gold")):
        return None
    sides = [_lines(Path(f"{stem}.{side}")) for side in (language, "en")]
    places = [{name: i for i, (name, _) in enumerate(side)} for side in sides]
    gold = [(places[0][a], places[1][b]) for a, b in _lines(Path(f"{stem}.gold"))]
    return Translations(f"bucc_{language}", [t for _, t in sides[0]], [t for _, t in sides[1]], gold)


def translations(folder: str | Path | None, languages: Sequence[str]) -> list[Translations]:
    """Everything of these languages that lies in a folder."""
    every = [read(folder, language) for language in languages for read in (tatoeba, bucc)] if folder else []
    return [loaded for loaded in every if loaded is not None]


def _lines(path: Path) -> list[tuple[str, str]]:
    return [tuple(line.split("\t", 1)) for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line]  # type: ignore[misc]


def retrieve(model: MultiTaskModel, data: Translations, gates: torch.Tensor | None = None) -> dict[str, Any]:
    """How well nearest neighbours by cosine are translations: accuracy, or F1 of pairs above a similarity.

    Example:
        >>> retrieve(model, tatoeba("data", "es"))["value"]
    """
    with nullcontext() if gates is None else gated(model.encoder, gates):
        a, b = (sentence_vectors(model, texts) for texts in (data.sources, data.targets))
    a, b = (side / np.linalg.norm(side, axis=1, keepdims=True).clip(1e-12) for side in (a, b))
    similarity = a @ b.T
    nearest = similarity.argmax(1)
    if data.whole:
        return {"metric": "accuracy", "value": float(np.mean(nearest == np.arange(len(a)))), "n": len(a)}
    return {"metric": "f1", **_mined(similarity.max(1), nearest, data.gold), "n": len(data.gold)}


def _mined(best: np.ndarray, nearest: np.ndarray, gold: Sequence[tuple[int, int]]) -> dict[str, float]:
    """F1 on the odd source sentences, with the threshold that is best on the even ones."""
    answers = dict(gold)
    right = np.array([answers.get(i) == int(j) for i, j in enumerate(nearest)])
    has = np.array([i in answers for i in range(len(nearest))])
    even = np.arange(len(nearest)) % 2 == 0

    def f1(part: np.ndarray, threshold: float) -> float:
        taken = part & (best >= threshold)
        hits = (taken & right).sum()
        return float(2 * hits / max(1, taken.sum() + (part & has).sum()))

    threshold = max(np.unique(best[even]), key=lambda level: f1(even, level))
    return {"value": f1(~even, threshold), "threshold": float(threshold)}
