"""Inflection: English and Spanish plurals, third-person verb forms, Spanish gender."""

from __future__ import annotations

from headwise.tasks.corpus.words import IRREGULAR_PLURALS

UNACCENTED = str.maketrans("áéíóú", "aeiou")


def english_plural(noun: str) -> str:
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    return _with_s(noun)


def _with_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh", "to")) else "s")


def english_past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    return verb[:-1] + "ied" if verb.endswith("y") and verb[-2] not in "aeiou" else verb + "ed"


def english_verb(spec: str) -> tuple[str, str, str, str]:
    """Base, third person, past and participle from ``base[:past[:participle]]``."""
    base, *given = spec.split(":")
    past = given[0] if given else english_past(base)
    return base, _with_s(base), past, given[1] if len(given) > 1 else past


def spanish_plural(word: str) -> str:
    """Plural of a noun or adjective: ``león`` gives ``leones``, ``luz`` gives ``luces``."""
    if word in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[word]
    if word[-1] in "aeiouáéó":
        return word + "s"
    if word.endswith("z"):
        return word[:-1] + "ces"
    stem = word[:-2] + word[-2:].translate(UNACCENTED) if word[-1] in "ns" else word
    return stem + "es"


def spanish_feminine(adjective: str) -> str:
    if adjective.endswith("o"):
        return adjective[:-1] + "a"
    return adjective + "a" if adjective.endswith("dor") else adjective


def spanish_verb(spec: str) -> tuple[str, str, str, str, str]:
    """Present and past, singular and plural, and participle of ``infinitive[:present[:past[:participle]]]``."""
    infinitive, *given = spec.split(":")
    present, past, participle = (*given, "", "", "")[:3]
    stem, ending = infinitive[:-2], infinitive[-2:].translate(UNACCENTED)
    present = present or stem + ("a" if ending == "ar" else "e")
    past = past or stem + ("ó" if ending == "ar" else "ió")
    participle = participle or stem + ("ado" if ending == "ar" else "ido")
    return present, present + "n", past, spanish_past_plural(past, ending), participle


def spanish_past_plural(past: str, conjugation: str) -> str:
    """``llegó`` gives ``llegaron``, ``durmió`` ``durmieron``, ``leyó`` ``leyeron``, ``dijo`` ``dijeron``."""
    if past.endswith("a"):
        return past + "n"
    if conjugation == "ar" and past.endswith("ó"):
        return past[:-1] + "aron"
    return past[:-1] + "eron" if past.endswith(("yó", "jo")) else past[:-2] + "ieron"


def spanish_subjunctive(past_plural: str, plural: bool) -> str:
    """The imperfect subjunctive after ``antes de que``: ``llegaron`` gives ``llegara``."""
    return past_plural.removesuffix("ron") + ("ran" if plural else "ra")


def spanish_adjective(masculine: str) -> tuple[str, str, str, str]:
    """Masculine and feminine singular, masculine and feminine plural."""
    feminine = spanish_feminine(masculine)
    return masculine, feminine, spanish_plural(masculine), spanish_plural(feminine)
