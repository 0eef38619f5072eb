"""Paraphrase and similarity pairs.

The two texts of a row differ in form. For the label ``different``, the roles are swapped or the statement is reversed
as well, so no bag of words predicts the label.
"""

from __future__ import annotations

from collections.abc import Callable

from headwise.tasks.corpus import lexicon
from headwise.tasks.corpus.entailment import JUDGED
from headwise.tasks.corpus.lexicon import NOUNS, SYNONYM, VERBS
from headwise.tasks.corpus.meaning import Event, Joined, Meaning, Thing
from headwise.tasks.corpus.sampler import MOTION, Sampler

Triple = tuple[Meaning, Meaning, Meaning]  # a text, one that says the same, one that does not
LABELS = ("different", "paraphrase")
GRADES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)


def _placed(sampler: Sampler, event: Event) -> Event:
    return event._replace(place=sampler.place()) if event.verb not in MOTION and sampler.chance(0.4) else event


def opinion(sampler: Sampler) -> Triple:
    """The film was awful. / The film was not superb. / The film was superb."""
    theme = sampler.thing(*JUDGED, plural=sampler.chance(0.3), det="the")
    kind, sign = NOUNS[theme.noun].kind, sampler.rng.choice((1, -1))
    event = Event("be", theme, attribute=sampler.word(lexicon.adjectives, kind, sign), past=sampler.chance(0.6))
    opposed = sampler.chance(0.5)
    said = sampler.word(lexicon.adjectives, kind, -sign if opposed else sign)
    other = event._replace(attribute=said)
    plain, denied = other, other._replace(negated=True)
    pair = (event, denied, plain) if opposed else (event, plain, denied)
    if sampler.chance(0.5):
        return pair
    who = sampler.someone()
    first, same, different = (Event("say", who, content=meaning) for meaning in pair)
    return first, same, different


def handling(sampler: Sampler) -> Triple:
    """Laura ate the apple. / The apple was eaten by Laura. / Laura was eaten by the apple."""
    verb = sampler.verb("thing")
    person, thing = sampler.twins(lambda: sampler.one("person"), lambda: sampler.one(*VERBS[verb].object))
    event = _placed(sampler, Event(verb, person, thing, past=sampler.chance(0.7)))
    same = event._replace(passive=True)  # never the other way: in Spanish the personal "a" would tell
    return event, same, same._replace(subject=thing, object=event.subject)


def _deed(sampler: Sampler) -> Event:
    """An action between two people who can be swapped."""
    who, whom = sampler.twins(sampler.someone, sampler.someone)
    return Event(sampler.verb("person"), who, whom)


def voice(sampler: Sampler) -> Triple:
    """An event, the same event in the other voice, and the latter with swapped roles."""
    event = _placed(sampler, _deed(sampler))
    event = event._replace(passive=sampler.chance(0.5), past=sampler.chance(0.7))
    same = event._replace(passive=not event.passive)
    assert event.object is not None
    return event, same, same._replace(subject=event.object, object=event.subject)


def fronting(sampler: Sampler) -> Triple:
    """Laura followed Emma in Lima. / In Lima, Laura followed Emma. / In Lima, Emma followed Laura."""
    event = _deed(sampler)
    if sampler.chance(0.6):
        event = event._replace(place=sampler.place(), fronted=sampler.rng.choice(("", "place")))
        same = event._replace(fronted="" if event.fronted else "place")
    else:
        event = event._replace(adverb=sampler.word(lexicon.adverbs, "past"), fronted=sampler.rng.choice(("", "adverb")))
        same = event._replace(fronted="" if event.fronted else "adverb")
    assert event.object is not None
    return event, same, same._replace(subject=event.object, object=event.subject)


def dative(sampler: Sampler) -> Triple:
    """Laura gave Daniel the book. / Laura gave the book to Daniel. / Daniel gave the book to Laura."""
    giver, taker = sampler.twins(sampler.someone, sampler.someone)
    event = sampler.event("to", subject=giver)._replace(recipient=taker, negated=False, adverb="", fronted="")
    same = event._replace(shifted=not event.shifted)
    assert event.recipient is not None
    return event, same, same._replace(subject=event.recipient, recipient=event.subject)


def linked(sampler: Sampler) -> Triple:
    """Laura left because Emma arrived. / Because Emma arrived, Laura left. / Because Laura left, Emma arrived."""
    first, second = (_placed(sampler, Event(sampler.verb("-"), sampler.someone())) for _ in range(2))
    links = ("because", "although", "before", "after", "since")
    joined = Joined(sampler.among(links), (first, second), sampler.chance(0.5))
    same = joined._replace(fronted=not joined.fronted)
    if joined.link in ("because", "although", "since") and sampler.chance(0.5):  # elsewhere Spanish verbs would change
        return joined, same, same._replace(clauses=(second, first))
    crossed = first._replace(subject=second.subject), second._replace(subject=first.subject)
    return joined, same, same._replace(clauses=crossed)


def reworded(sampler: Sampler) -> Triple:
    """The tall lawyer helped Emma. / The tall attorney assisted Emma. / Emma assisted the tall attorney."""
    verb = sampler.among(tuple(key for key in SYNONYM if key in VERBS and _takes_person(key)))
    one, other = sampler.twins(*[lambda: sampler.one("person")] * 2)
    one, other = (thing._replace(adjectives=(sampler.word(lexicon.adjectives, "person"),)) for thing in (one, other))
    event = _placed(sampler, Event(verb, one, other, past=sampler.chance(0.7)))
    same = Event(SYNONYM[verb], _reworded(one), _reworded(other), past=event.past, place=event.place)
    if sampler.chance(0.5):
        crossed = one._replace(adjectives=other.adjectives), other._replace(adjectives=one.adjectives)
    else:
        crossed = other, one
    return event, same, same._replace(subject=_reworded(crossed[0]), object=_reworded(crossed[1]))


def _takes_person(verb: str) -> bool:
    return VERBS[verb].object == ("person",)


def _reworded(thing: Thing) -> Thing:
    adjectives = tuple(SYNONYM.get(key, key) for key in thing.adjectives)
    return thing._replace(noun=SYNONYM.get(thing.noun, thing.noun), adjectives=adjectives)


def conjoined(sampler: Sampler) -> Triple:
    """Laura ate a pear, and Emma sang. / Emma sang, and Laura ate a pear. / Laura sang, and Emma ate a pear."""
    one = sampler.event("thing", subject=sampler.someone())._replace(
        negated=False, passive=False, adverb="", fronted=""
    )
    other = Event(sampler.verb("-"), sampler.someone(), past=one.past)
    crossed = other._replace(subject=one.subject), one._replace(subject=other.subject)
    return Joined("and", (one, other)), Joined("and", (other, one)), Joined("and", crossed)


FORMS: tuple[Callable[[Sampler], Triple], ...] = (  # those that can be learnt first come more often
    *(opinion, opinion, opinion, handling, handling),
    *(fronting, reworded, dative, voice, linked, conjoined),
)


CHANGES = {  # which parts differ at each grade of similarity
    5.0: ((),),
    4.0: (("place",),),
    3.0: (("object",), ("subject",)),
    2.0: (("object", "place"), ("verb",), ("subject", "place")),
    1.0: (("verb", "object"), ("subject", "object", "place")),
    0.0: (("verb", "subject", "object", "place"),),
}


def graded(sampler: Sampler, grade: float) -> tuple[Meaning, Meaning]:
    """Two events that share subject, verb, object and place to some degree."""
    verb = sampler.verb("person")
    event = Event(verb, sampler.someone(), sampler.someone(), place=sampler.place(), past=True)
    changed = sampler.rng.choice(CHANGES[grade])
    fresh = {
        "verb": lambda: sampler.verb("person"),
        "subject": sampler.someone,
        "object": sampler.someone,
        "place": sampler.place,
    }
    other = event._replace(**{part: fresh[part]() for part in changed})
    passive = sampler.chance(0.5)
    return event._replace(passive=passive), other._replace(passive=not passive if grade == 5.0 else sampler.chance(0.5))
