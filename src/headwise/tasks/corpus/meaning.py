"""The interlingua: what a sentence says and how, independent of language; and the split of a meaning."""

from __future__ import annotations

from typing import Any, NamedTuple

from headwise.tasks.corpus.lexicon import HELD, NOUNS, WEIGHT

DEV_SHARE = 3  # one in three of the meanings without held-out words is kept for dev
COORDINATORS = ("and", "but")
PLURAL = ("some", "all", "not all", "no", "many", "two", "three")  # determiners that make a plural


class Thing(NamedTuple):
    """The referent of a phrase."""

    noun: str
    det: str = "the"  # "" for names, "pronoun" to stand for the noun
    plural: bool = False
    adjectives: tuple[str, ...] = ()
    place: Place | None = None
    clause: Event | None = None  # a relative clause; its GAP is the thing itself
    reduced: bool = False  # "chased by the dog" for "that was chased by the dog"
    owner: Thing | None = None
    other: Thing | None = None  # joined by "and"


class Place(NamedTuple):
    preposition: str
    thing: Thing


class Event(NamedTuple):
    """Who does what to whom, where, when and how; ``be`` with an adjective is an event too."""

    verb: str
    subject: Thing
    object: Thing | None = None
    recipient: Thing | None = None
    content: Event | None = None
    attribute: str = ""  # of "be": an adjective, or a comparative with ``than``
    than: Thing | None = None
    place: Place | None = None
    adverb: str = ""
    past: bool = True
    negated: bool = False
    passive: bool = False
    shifted: bool = False  # the recipient before the object
    fronted: str = ""  # "place" or "adverb" said first


class Joined(NamedTuple):
    """Linked clauses: coordinated (and, but), or the second subordinate to the first (because, before, ...)."""

    link: str
    clauses: tuple[Event, ...]
    fronted: bool = False  # the second clause said first


Meaning = Event | Joined
GAP = Thing("", "gap")


def atoms(meaning: Meaning | Thing | Place) -> list[str]:
    """The content words of a meaning, and its constructions that are partly held out."""
    words: list[str] = []
    _collect(meaning, words)
    return words


def _collect(meaning: Meaning | Thing | Place, words: list[str]) -> None:
    if isinstance(meaning, Thing):
        if meaning.det not in ("gap", "pronoun"):
            _collect_thing(meaning, words)
    elif isinstance(meaning, Event):
        words += filter(None, (meaning.verb, meaning.attribute, meaning.adverb))
        for part in (meaning.subject, meaning.object, meaning.recipient, meaning.content, meaning.than, meaning.place):
            if part is not None:
                _collect(part, words)
    elif isinstance(meaning, Place):
        _collect(meaning.thing, words)
    else:
        words.append(meaning.link)
        for clause in meaning.clauses:
            _collect(clause, words)


def _collect_thing(thing: Thing, words: list[str]) -> None:
    words += (thing.noun, *thing.adjectives)
    if thing.owner is not None:
        words.append("owner")
    if thing.clause is not None and thing.clause.subject is not GAP:
        words.append("reduced relative" if thing.reduced else "object relative")
    for part in (thing.place, thing.clause, thing.owner, thing.other):
        if part is not None:
            _collect(part, words)


def split_of(*meanings: Meaning | Thing) -> str | None:
    """The split that all meanings belong to, in every language and task; None if they differ.

    A meaning with a held-out word or construction is in test; otherwise the unordered content words decide, so role
    swaps, passives, tense, negation and synonyms never move a sentence to another split.
    """
    splits = {_split(meaning) for meaning in meanings}
    return splits.pop() if len(splits) == 1 else None


def _split(meaning: Meaning | Thing) -> str:
    total = 0
    for atom in atoms(meaning):
        if atom in HELD:
            return "test"
        total += WEIGHT.get(atom, 0)
    return "dev" if (total * 2654435761 >> 16) % DEV_SHARE == 0 else "train"


def substitute(part: Any, old: str, new: str) -> Any:
    """The meaning with one word replaced by another."""
    if part is GAP or not isinstance(part, tuple):
        return new if part == old else part
    values = [substitute(value, old, new) for value in part]
    return type(part)(*values) if isinstance(part, (Thing, Place, Event, Joined)) else tuple(values)


def is_plural(thing: Thing) -> bool:
    return thing.plural or thing.other is not None


def is_feminine(thing: Thing) -> bool:
    return NOUNS[thing.noun].feminine and (thing.other is None or is_feminine(thing.other))


def events(meaning: Meaning) -> tuple[Event, ...]:
    return meaning.clauses if isinstance(meaning, Joined) else (meaning,)


def main(meaning: Meaning) -> Event:
    """The main clause: the first one."""
    return events(meaning)[0]
