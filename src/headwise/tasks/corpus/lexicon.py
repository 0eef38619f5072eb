"""The lexicon: each word's class, selection, inflection, and whether it is held out for the test split."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple
from zlib import crc32

from headwise.tasks.corpus import morphology as form
from headwise.tasks.corpus import words

TOPICS = ("sport", "food", "science", "politics")


class Noun(NamedTuple):
    key: str
    kind: str  # person, animal, dish, ...; PER, LOC, ORG for names
    topic: str
    feminine: bool
    en: tuple[str, str]  # singular, plural
    es: tuple[str, str]

    @property
    def entity(self) -> str:
        return self.kind if self.kind.isupper() else ""


class Verb(NamedTuple):
    key: str
    subject: tuple[str, ...]
    object: tuple[str, ...]  # kinds; () is none, ("that",) a clause
    recipient: tuple[str, ...]
    topic: str
    en: tuple[str, str, str, str]  # base, third person, past, participle
    es: tuple[str, str, str, str, str]  # present singular and plural, past singular and plural, participle


class Adjective(NamedTuple):
    key: str
    kinds: tuple[str, ...]
    polarity: int
    en: str
    es: tuple[str, str, str, str]  # masculine, feminine, masculine plural, feminine plural
    state: bool  # takes estar in Spanish


def _lines(table: str) -> Iterator[tuple[list[str], str, str, bool]]:
    """Each entry of a table: its heading, its English, its Spanish, and whether it is held out."""
    for line in filter(None, table.splitlines()):
        heading, items = line.split(":", 1)
        for item in items.split():
            english, _, spanish = item.removeprefix("*").partition("/")
            yield heading.split(), english.replace("_", " "), spanish.replace("_", " "), item.startswith("*")


def _kinds(text: str) -> tuple[str, ...]:
    return () if text == "-" else tuple(text.split(","))


NOUNS: dict[str, Noun] = {}
VERBS: dict[str, Verb] = {}
ADJECTIVES: dict[str, Adjective] = {}
COMPARATIVES: dict[str, Adjective] = {}
ADVERBS: dict[str, tuple[str, str, str]] = {}  # kind, English, Spanish
LINKS: dict[str, tuple[str, str]] = {}
PREPOSITIONS: dict[str, tuple[str, str]] = {}
FAMILY: dict[str, str] = {}  # a synonym's family
OPPOSITE: dict[str, str] = {}
HELD: set[str] = {"owner", "object relative", "reduced relative"}  # words and constructions kept for the test split


def _read_nouns() -> None:
    for (kind, topic), english, spanish, held in _lines(words.NOUNS):
        spanish, gender = spanish.split(".")
        plurals = form.english_plural(english), form.spanish_plural(spanish)
        NOUNS[english] = Noun(english, kind, topic, gender == "f", (english, plurals[0]), (spanish, plurals[1]))
        HELD.update([english] * held)
    for (kind,), english, spanish, held in _lines(words.NAMES):
        english, _, gender = english.partition(".")
        spanish, _, late = spanish.partition(".")
        spanish = spanish or english
        NOUNS[english] = Noun(english, kind, "general", (gender or late) == "f", (english, english), (spanish, spanish))
        HELD.update([english] * held)


def _read_verbs() -> None:
    for heading, english, spanish, held in _lines(words.VERBS.replace(">", "")):
        subject, *rest, topic = heading
        objects, recipient = (*rest, "-")[:2]
        forms = form.english_verb(english), form.spanish_verb(spanish)
        key = forms[0][0]
        VERBS[key] = Verb(key, _kinds(subject), _kinds(objects), _kinds(recipient), topic, *forms)
        HELD.update([key] * held)


def _read_adjectives() -> None:
    for (kinds, sign), english, spanish, held in _lines(words.ADJECTIVES):
        forms = form.spanish_adjective(spanish.removesuffix("~"))
        polarity = {"+": 1, "-": -1, "0": 0}[sign]
        ADJECTIVES[english] = Adjective(english, _kinds(kinds), polarity, english, forms, spanish.endswith("~"))
        HELD.update([english] * held)
    for couple in words.COMPARATIVES.split(","):
        pair = list(_lines("person:" + couple.replace("\n", " ")))
        for _, english, spanish, held in pair:
            more, _, adjective = spanish.rpartition(" ")
            forms = tuple(f"{more} {word}".strip() for word in form.spanish_adjective(adjective))
            COMPARATIVES[english] = Adjective(english, ("person",), 0, english, forms, False)  # type: ignore[arg-type]
            HELD.update([english] * held)
        _oppose(pair[0][1], pair[1][1])


def _oppose(one: str, other: str) -> None:
    OPPOSITE[one], OPPOSITE[other] = other, one


def _read_rest() -> None:
    for (kind,), english, spanish, held in _lines(words.ADVERBS):
        ADVERBS[english] = (kind, english, spanish)
        HELD.update([english] * held)
    for table, text in ((LINKS, words.LINKS), (PREPOSITIONS, words.PREPOSITIONS)):
        for _, english, spanish, held in _lines("x:" + text.replace("\n", " ")):
            table[english] = (english, spanish)
            HELD.update([english] * held)
    for couple in words.SYNONYMS.split(","):
        family, synonym = couple.split()
        FAMILY[synonym] = family
    for couple in words.OPPOSITES.split(","):
        _oppose(*couple.split())


_read_nouns()
_read_verbs()
_read_adjectives()
_read_rest()

SYNONYM = {**FAMILY, **{family: synonym for synonym, family in FAMILY.items()}}
LIKED, LOATHED = tuple(words.LIKED.split()), tuple(words.LOATHED.split())
FACTIVE, BELIEVED = tuple(words.FACTIVE.split()), tuple(words.BELIEVED.split())
TOPIC = {entry.key: entry.topic for entry in (*NOUNS.values(), *VERBS.values()) if entry.topic in TOPICS}
CONTENT = (*NOUNS, *VERBS, *ADJECTIVES, *COMPARATIVES)
WEIGHT = {key: crc32(FAMILY.get(key, key).encode()) for key in CONTENT}  # a synonym weighs what its family weighs


@cache
def nouns(kinds: tuple[str, ...], topic: str, held: bool) -> tuple[str, ...]:
    """Nouns of some kinds: those of the topic if it has any, else those without a topic, else any."""
    fitting = [noun for noun in NOUNS.values() if noun.kind in kinds and (noun.key in HELD) == held]
    for wanted in (topic, "general"):
        if keys := tuple(noun.key for noun in fitting if noun.topic == wanted):
            return keys
    return tuple(noun.key for noun in fitting)


@cache
def verbs(frame: str, topic: str, held: bool) -> tuple[str, ...]:
    """Verbs of a frame (``-`` no object, ``person``, ``thing``, ``to`` with a recipient, ``that`` with a clause)."""
    fitting = [verb for verb in VERBS.values() if frame_of(verb) == frame and (verb.key in HELD) == held]
    own = tuple(verb.key for verb in fitting if verb.topic in (topic, "general"))
    return own or tuple(verb.key for verb in fitting)


def frame_of(verb: Verb) -> str:
    if verb.recipient:
        return "to"
    if not verb.object:
        return "-"
    first = verb.object[0]
    return first if first in ("that", "person", "animal") else "thing"


@cache
def adjectives(kind: str, polarity: int = 0, *, held: bool) -> tuple[str, ...]:
    """Adjectives that go with a kind of noun."""
    return tuple(
        adjective.key
        for adjective in ADJECTIVES.values()
        if kind in adjective.kinds and adjective.polarity == polarity and (adjective.key in HELD) == held
    )


@cache
def adverbs(kind: str, held: bool) -> tuple[str, ...]:
    return tuple(key for key, entry in ADVERBS.items() if entry[0] == kind and (key in HELD) == held)
