"""The corpus as a source of rows and as tasks: generated on demand, balanced, determined by the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from headwise.errors import HeadwiseError, unknown
from headwise.tasks.corpus import derive, entailment, paraphrase, probing
from headwise.tasks.corpus.derive import ASKED, GRAMMARS, Draft, answer
from headwise.tasks.corpus.lexicon import NOUNS, TOPICS
from headwise.tasks.corpus.meaning import Meaning
from headwise.tasks.corpus.sampler import draw
from headwise.tasks.corpus.sentence import Sentence
from headwise.tasks.metrics import answer_f1
from headwise.tasks.task import SPLITS, Row, Task

SIZES = {"train": 4000, "dev": 1000, "test": 1000}
TRIES = 20_000  # how often a row that repeats another is drawn anew
UPOS = ("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "VERB")
BIO = ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")


def _words(draft: Draft, label: str, **columns: Callable[[Sentence], Any]) -> Row | None:
    sentence = draft.sentence(draw(draft.rng, draft.split))
    return {"words": list(sentence.words), **{name: make(sentence) for name, make in columns.items()}}


def pos(draft: Draft, label: str) -> Row | None:
    return _words(draft, label, labels=lambda s: list(s.upos))


def ner(draft: Draft, label: str) -> Row | None:
    return _words(draft, label, labels=lambda s: list(s.entities))


def dep(draft: Draft, label: str) -> Row | None:
    return _words(draft, label, heads=lambda s: list(s.heads), labels=lambda s: list(s.deprels))


def con(draft: Draft, label: str) -> Row | None:
    return _words(draft, label, tree=lambda s: s.tree)


def srl(draft: Draft, label: str) -> Row | None:
    return _words(draft, label, frames=lambda s: list(s.frames))


MAKERS: dict[str, tuple[Callable[[Draft, Any], Row | None], tuple]] = {  # what makes a row, and what is balanced
    "sentiment": (derive.sentiment, derive.SENTIMENT),
    "topic": (derive.topic, TOPICS),
    "acceptability": (derive.acceptability, derive.ACCEPTABILITY),
    "entailment": (derive.entailment, entailment.LABELS),
    "paraphrase": (derive.paraphrase, paraphrase.LABELS),
    "similarity": (derive.similarity, paraphrase.GRADES),
    "qa": (answer, tuple(ASKED)),
    "pos": (pos, ("",)),
    "ner": (ner, ("",)),
    "dep": (dep, ("",)),
    "con": (con, ("",)),
    "srl": (srl, ("",)),
    "sentence_length": (probing.sentence_length, tuple(probing.LENGTHS)),
    "word_content": (probing.word_content, probing.TARGETS),
    "tree_depth": (probing.tree_depth, probing.DEPTHS),
    "top_constituents": (probing.top_constituents, probing.TOPS),
    "bigram_shift": (probing.bigram_shift, probing.SHIFT),
    "past_present": (probing.past_present, probing.TENSES),
    "subj_number": (probing.subj_number, probing.NUMBERS),
    "obj_number": (probing.obj_number, probing.NUMBERS),
    "odd_man_out": (probing.odd_man_out, probing.ODD),
    "coordination_inversion": (probing.coordination_inversion, probing.SHIFT),
}
NAMES = tuple(MAKERS)
METRICS = {
    "acceptability": "mcc",
    "paraphrase": "f1",
    "similarity": "spearman",
    "pos": "tag_accuracy",
    "ner": "span_f1",
    "dep": "las",
    "con": "bracket_f1",
    "srl": "srl_f1",
}  # accuracy for the rest
KINDS = {
    "similarity": "regress",
    "qa": "answer",
    "pos": "tag",
    "ner": "tag",
    "dep": "dependencies",
    "con": "constituents",
    "srl": "frames",
}  # classify for the rest


def render(meaning: Meaning, language: str = "en") -> Sentence:
    """Render a meaning as a sentence of a language.

    Example:
        >>> from headwise.tasks.corpus import Event, Thing, render
        >>> render(Event("chase", Thing("dog"), Thing("cat", plural=True)), "es").text
        'El perro persiguió a los gatos.'
    """
    if language not in GRAMMARS:
        raise unknown("corpus language", language, GRAMMARS)
    return GRAMMARS[language]().render(meaning)


def sentences(language: str = "en", seed: int = 0, split: str = "train") -> Iterator[Sentence]:
    """An endless stream of sentences, determined by the seed; both languages express the same meanings in turn.

    Example:
        >>> from itertools import islice
        >>> from headwise.tasks.corpus import sentences
        >>> [s.text for s in islice(sentences("en"), 1)] == [s.text for s in islice(sentences("en"), 1)]
        True
    """
    _check_split(split)
    for index in count():
        yield render(draw(Random(f"{seed}/{split}/{index}"), split), language)


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)


@dataclass(frozen=True)
class Corpus:
    """The rows of one corpus task in one language, generated on reading; ``size`` maps splits to counts.

    The i-th row depends only on seed, task, split and i: a larger size only adds rows.

    Example:
        >>> from headwise.tasks.corpus import Corpus
        >>> rows = Corpus("entailment", size={"dev": 30}).read("dev")
        >>> sum(row["label"] == "neutral" for row in rows)
        10
    """

    name: str
    language: str = "en"
    size: Mapping[str, int] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in MAKERS:
            raise unknown("corpus task", self.name, NAMES)
        if self.language not in GRAMMARS:
            raise unknown("corpus language", self.language, GRAMMARS)
        for split, rows in (self.size or {}).items():
            _check_split(split)
            if rows < 1:
                raise HeadwiseError(f"a size of {rows} for {split}", "at least one row")

    @property
    def sizes(self) -> dict[str, int]:
        return SIZES | dict(self.size or {})

    @property
    def origin(self) -> str:
        return f"the embedded corpus ({self.name}, {self.language}, seed {self.seed})"

    def read(self, split: str) -> list[Row]:
        _check_split(split)
        seen: set[str] = set()
        labels = self._labels(split)
        return [self._row(split, index, next(labels), seen) for index in range(self.sizes[split])]

    def _labels(self, split: str) -> Iterator[Any]:
        """Every label once in each round, in shuffled order."""
        rng = Random(f"{self.seed}/{self.name}/{split}")
        labels = list(MAKERS[self.name][1])
        while True:
            rng.shuffle(labels)
            yield from labels

    def _row(self, split: str, index: int, label: Any, seen: set[str]) -> Row:
        make = MAKERS[self.name][0]
        draft = Draft(Random(f"{self.seed}/{self.name}/{split}/{index}"), split, self.language)
        for _ in range(TRIES):
            row = make(draft, label)
            key = row and str(
                row.get("words") or (row.get("text") or row["context"], row.get("text_b") or row.get("question"))
            )
            if row and key not in seen:
                seen.add(str(key))
                return row | {"id": f"{split}-{index}"} if "question" in row else row
        raise HeadwiseError(
            f"no new row of {self.name!r} for {label!r} after {index} {split} rows", hint=f"size={{{split!r}: {index}}}"
        )


def tasks(language: str = "en", size: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, Task]:
    """Every corpus task of a language, by name: ``corpus.sentiment``, or ``corpus.sentiment.es`` in Spanish."""
    end = "" if language == "en" else f".{language}"
    return {f"corpus.{name}{end}": task(name, language, size, seed) for name in NAMES}


def task(name: str, language: str = "en", size: Mapping[str, int] | None = None, seed: int = 0) -> Task:
    """One corpus task."""
    source = Corpus(name, language, size, seed)
    full = f"corpus.{name}" if language == "en" else f"corpus.{name}.{language}"
    return Task(full, _kind(name, language), source, metric(name, language), language, source.sizes)


def metric(name: str, language: str = "en") -> str:
    """The metric of a task; answers are compared by the rules of their language."""
    return answer_f1(language) if name == "qa" else METRICS.get(name, "accuracy")


def _kind(name: str, language: str) -> Any:
    """The kind of a task; imported lazily because kinds need torch."""
    from headwise.tasks.kinds import answer, classify, frames, tag, tree

    structured = {
        "similarity": lambda: classify.Regress(0.0, 5.0),
        "qa": answer.Answer,
        "pos": lambda: tag.Tag(UPOS),
        "ner": lambda: tag.Tag(BIO),
        "dep": tree.Dependencies,
        "con": tree.Constituents,
        "srl": frames.Frames,
    }
    return structured[name]() if name in structured else classify.Classify(labels(name, language))


def labels(name: str, language: str = "en") -> tuple[str, ...]:
    """The classes of a sentence task."""
    known = MAKERS[name][1]
    if name != "word_content":
        return known
    return tuple(NOUNS[key].en[0] if language == "en" else NOUNS[key].es[0] for key in known)
