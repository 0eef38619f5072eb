"""Ways to break a sentence: agreement and word order."""

from __future__ import annotations

from random import Random

from headwise.tasks.corpus.english import BE, DO
from headwise.tasks.corpus.lexicon import ADJECTIVES, NOUNS, VERBS
from headwise.tasks.corpus.sentence import Sentence
from headwise.tasks.corpus.spanish import DETERMINERS, ERA, ESTAR, SER

# never grammatical the other way round, in either language
FIXED_ORDERS = {("DET", "NOUN"), ("DET", "ADJ"), ("ADP", "DET"), ("ADP", "PROPN"), ("SCONJ", "DET"), ("NUM", "NOUN")}


def _both_ways(pairs: list[tuple[str, str]]) -> dict[str, str]:
    return {a: b for one, other in pairs for a, b in ((one, other), (other, one)) if a != b}


def _numbers(*tables: dict[tuple[bool, bool], str]) -> list[tuple[str, str]]:
    return [(table[past, False], table[past, True]) for table in tables for past in (False, True)]


OTHER_NUMBER = {
    "en": _both_ways([*_numbers(BE, DO), *((verb.en[1], verb.en[0]) for verb in VERBS.values())]),
    "es": _both_ways(
        [*_numbers(SER, ERA, ESTAR), *(pair for verb in VERBS.values() for pair in (verb.es[:2], verb.es[2:4]))]  # type: ignore[misc]
    ),
}
OTHER_GENDER = _both_ways(
    [pair for key in ("the", "a", "this", "some", "many") for pair in (DETERMINERS[key][:2], DETERMINERS[key][2:])]
    + [pair for adjective in ADJECTIVES.values() for pair in (adjective.es[:2], adjective.es[2:])]
)
SEXLESS = {form for noun in NOUNS.values() if noun.kind not in ("person", "PER", "animal") for form in noun.es}


def disagree(sentence: Sentence, rng: Random) -> list[str] | None:
    """The words with one agreement violated: the number of the main verb or a demonstrative, or in Spanish a gender."""
    ways = [way for way in (_verb(sentence), _demonstrative(sentence), _gender(sentence, rng)) if way is not None]
    if not ways:
        return None
    index, word = rng.choice(ways)
    return _with(sentence.words, {index: word})


def _with(words: tuple[str, ...], new: dict[int, str]) -> list[str]:
    found = [new.get(i, word) for i, word in enumerate(words)]
    found[0] = found[0][0].upper() + found[0][1:]
    return found


def _verb(sentence: Sentence) -> tuple[int, str] | None:
    """The verb form that agrees with the subject of the sentence, in the other number."""
    root = sentence.heads.index(0)
    helpers = [i for i, head in enumerate(sentence.heads) if head == root + 1 and sentence.upos[i] == "AUX"]
    finite = helpers[0] if helpers else root
    past = sentence.properties["tense"] == "past"
    if sentence.language == "en" and past and sentence.words[finite] not in ("was", "were"):
        return None
    other = OTHER_NUMBER[sentence.language].get(sentence.words[finite])
    return None if other is None else (finite, other)


def _demonstrative(sentence: Sentence) -> tuple[int, str] | None:
    """``this nurse`` as ``these nurse``."""
    other = {"this": "these", "these": "this", "este": "estos", "estos": "este", "esta": "estas", "estas": "esta"}
    for i, word in enumerate(sentence.words):
        if word.lower() in other and sentence.upos[i] == "DET":
            return i, other[word.lower()]
    return None


def _gender(sentence: Sentence, rng: Random) -> tuple[int, str] | None:
    """``la mesa`` as ``el mesa``, ``la mesa roja`` as ``la mesa rojo``; words for people can have either gender."""
    if sentence.language != "es":
        return None
    found = [
        (i, OTHER_GENDER[word.lower()])
        for i, word in enumerate(sentence.words)
        if sentence.deprels[i] in ("det", "amod")
        and word.lower() in OTHER_GENDER
        and sentence.words[sentence.heads[i] - 1] in SEXLESS
    ]
    return rng.choice(found) if found else None


def disorder(sentence: Sentence, rng: Random) -> list[str] | None:
    """The words with two neighbours swapped into an order that is never grammatical."""
    upos = sentence.upos
    places = [i for i in range(len(upos) - 1) if (upos[i], upos[i + 1]) in FIXED_ORDERS]
    return swapped(sentence, rng.choice(places)) if places else None


def swapped(sentence: Sentence, i: int) -> list[str]:
    """The words with the i-th and the next swapped; the first letter stays a capital."""
    words = list(sentence.words)
    if i == 0 and sentence.upos[0] != "PROPN":
        words[0] = words[0].lower()
    words[i], words[i + 1] = words[i + 1], words[i]
    words[0] = words[0][0].upper() + words[0][1:]
    return words
