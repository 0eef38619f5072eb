"""Pairs of sentences: entailment, paraphrase and similarity, made so that no bag of words tells the label.

In entailment every premise holds both what would make the hypothesis true and what would make it false; which of the
two it is depends on who did what. In paraphrase the same change of form is made with and without a swap of roles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headwise.tasks.corpus import lexicon
from headwise.tasks.corpus.lexicon import ADJECTIVES, BELIEVED, COMPARATIVES, FACTIVE, OPPOSITE, SYNONYM, adverbs
from headwise.tasks.corpus.meaning import Event, Joined, Meaning, Place, Thing, is_feminine
from headwise.tasks.corpus.sampler import MOTION, Sampler

Pair = tuple[Meaning, Meaning]
T = TypeVar("T")
ENTAILMENT = ("entailment", "neutral", "contradiction")
PARAPHRASE = ("different", "paraphrase")
GRADES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
HYPERNYMS = {  # kinds whose name is also a noun, and what one does with them
    "animal": ("see", "find", "follow", "protect", "recognize"),
    "bird": ("see", "find", "follow", "protect", "recognize"),
    "flower": ("buy", "purchase", "send", "bring"),
    "fruit": ("eat", "cut", "taste", "order"),
    "vegetable": ("eat", "cut", "taste", "prepare"),
    "vehicle": ("buy", "wash", "repair", "paint"),
    "instrument": ("buy", "lose", "repair", "steal"),
}


def _contrast(sampler: Sampler, *clauses: Event) -> Joined:
    order = list(clauses)
    sampler.rng.shuffle(order)
    return Joined("whereas" if sampler.novel and len(order) == 2 else sampler.rng.choice(("but", "and")), tuple(order))


def binding(sampler: Sampler, label: str) -> Pair:
    """Laura praised Daniel, but Emma did not praise Hugo. / Hugo was praised by Emma."""
    a, b, c, d = (sampler.someone() for _ in range(4))
    verb = sampler.verb("person")
    premise = _contrast(sampler, Event(verb, a, b), Event(verb, c, d, negated=True))
    negated = sampler.chance(0.5)
    if label == "neutral":
        who, whom = sampler.rng.choice(((a, d), (c, b)))
    else:
        who, whom = (c, d) if (label == "entailment") == negated else (a, b)
    return premise, Event(verb, who, whom, negated=negated, passive=sampler.chance(0.5))


def sequence(sampler: Sampler, label: str) -> Pair:
    """Laura left before Emma arrived. / After Laura left, Emma arrived."""
    first, second = Event(sampler.verb("-"), sampler.someone()), Event(sampler.verb("-"), sampler.someone())
    link, other = sampler.rng.choice((("before", "after"), ("after", "before")))
    premise = Joined(link, (first, second), sampler.chance(0.5))
    flipped = sampler.chance(0.5)
    swapped = sampler.chance(0.5) if label == "neutral" else (label == "entailment") == flipped
    if label == "neutral":
        first, second = first._replace(subject=second.subject), second._replace(subject=first.subject)
    clauses = (second, first) if swapped else (first, second)
    return premise, Joined(other if flipped else link, clauses, not premise.fronted)


def comparison(sampler: Sampler, label: str) -> Pair:
    """Laura is taller than Daniel and Emma. / Daniel is taller than Emma."""
    a, b, c = (sampler.someone() for _ in range(3))
    adjective = sampler.among(tuple(COMPARATIVES))
    premise = Event("be", a, attribute=adjective, than=b._replace(other=c), past=False)
    opposed = sampler.chance(0.5)
    one, other = (b, c) if label == "neutral" else (a, sampler.rng.choice((b, c)))
    turned = sampler.chance(0.5) if label == "neutral" else (label == "entailment") == opposed
    if turned:
        one, other = other, one
    return premise, Event("be", one, attribute=OPPOSITE[adjective] if opposed else adjective, than=other, past=False)


def attachment(sampler: Sampler, label: str) -> Pair:
    """The cup near the bottle is full. / The bottle is not empty."""
    adjective = ADJECTIVES[sampler.among(tuple(key for key in ADJECTIVES if key in OPPOSITE))]
    kind = sampler.rng.choice(adjective.kinds)
    one, other = (sampler.thing(kind, plural=False, det="the") for _ in range(2))
    past = sampler.chance(0.5)
    place = Place(sampler.rng.choice(("near", "behind", "beside")), other)
    premise = Event("be", one._replace(place=place), attribute=adjective.key, past=past)
    opposed, negated = sampler.chance(0.5), sampler.chance(0.5)
    if label == "neutral":
        one = other
    else:
        opposed = negated == (label == "entailment")
    attribute = OPPOSITE[adjective.key] if opposed else adjective.key
    return premise, Event("be", one, attribute=attribute, past=past, negated=negated)


def kinship(sampler: Sampler, label: str) -> Pair:
    """Laura bought a rose, but Daniel did not buy a flower. / Laura bought a flower."""
    kind = sampler.rng.choice(tuple(HYPERNYMS))
    verb = sampler.rng.choice(HYPERNYMS[kind])
    narrow, wide = Thing(sampler.noun((kind,)), "a"), Thing(kind, "a")
    a, b = sampler.someone(), sampler.someone()
    known, denied = (wide, narrow) if label == "neutral" else (narrow, wide)
    premise = _contrast(sampler, Event(verb, a, known), Event(verb, b, denied, negated=True))
    who, what = sampler.rng.choice(((a, denied), (b, known)))
    negated = sampler.chance(0.5) if label == "neutral" else (label == "entailment") == (who is b)
    return premise, Event(verb, who, what, negated=negated)


def quantity(sampler: Sampler, label: str) -> Pair:
    """All the nurses sang, some pilots sang, and no guards sang. / Not all the pilots sang."""
    verb = sampler.verb("-")
    groups = [sampler.thing("person", plural=True, det=det) for det in ("all", "some", "no")]
    sampler.rng.shuffle(groups)
    premise = Joined("and", tuple(Event(verb, group) for group in groups))
    negated = sampler.chance(0.5)
    wanted = "some" if label == "neutral" else "no" if (label == "entailment") == negated else "all"
    noun = next(group.noun for group in groups if group.det == wanted)
    return premise, Event(verb, Thing(noun, "not all" if negated else "all", True))


def factivity(sampler: Sampler, label: str) -> Pair:
    """Laura knows that the pilot left, but Daniel believes that the nurse did not leave. / The nurse left."""
    a, b, known, supposed = (sampler.someone() for _ in range(4))
    verb, denied = sampler.verb("-"), sampler.chance(0.5)
    fact = Event(verb, known, negated=denied)
    belief = Event(verb, supposed, negated=not denied)
    premise = _contrast(
        sampler,
        Event(sampler.among(FACTIVE), a, content=fact, past=False),
        Event(sampler.among(BELIEVED), b, content=belief, past=False),
    )
    if label == "neutral":
        return premise, belief._replace(negated=sampler.chance(0.5))
    return premise, fact._replace(negated=denied == (label == "entailment"))


BLOCKS: tuple[Callable[[Sampler, str], Pair], ...] = (
    binding,
    sequence,
    comparison,
    attachment,
    kinship,
    quantity,
    factivity,
)


def entailment(sampler: Sampler, label: str) -> Pair:
    return sampler.rng.choice(BLOCKS)(sampler, label)


def _placed(sampler: Sampler, event: Event) -> Event:
    return event._replace(place=sampler.place()) if event.verb not in MOTION and sampler.chance(0.4) else event


def _twins(sampler: Sampler, named: bool = True) -> tuple[Thing, Thing]:
    """Two persons who can change places without a change of articles or endings in Spanish."""
    while True:
        if named:
            one, other = sampler.someone(), sampler.someone()
        else:
            one, other = (sampler.thing("person", plural=False, det="the") for _ in range(2))
        if _trait(one) == _trait(other):
            return one, other


def _trait(thing: Thing) -> tuple[str, bool]:
    return thing.det, is_feminine(thing)


def voice(sampler: Sampler) -> tuple[Meaning, Meaning, Meaning]:
    """An event, the same in the other voice, and that with its roles swapped."""
    event = _placed(sampler, Event(sampler.verb("person"), *_twins(sampler)))
    event = event._replace(passive=sampler.chance(0.5), past=sampler.chance(0.7))
    same = event._replace(passive=not event.passive)
    assert event.object is not None
    return event, same, same._replace(subject=event.object, object=event.subject)


def fronting(sampler: Sampler) -> tuple[Meaning, Meaning, Meaning]:
    """Laura followed Emma in Lima. / In Lima, Laura followed Emma. / In Lima, Emma followed Laura."""
    event = Event(sampler.verb("person"), *_twins(sampler), past=True)
    if sampler.chance(0.6):
        event = event._replace(place=sampler.place(), fronted=sampler.rng.choice(("", "place")))
        same = event._replace(fronted="" if event.fronted else "place")
    else:
        event = event._replace(adverb=sampler.word(adverbs, "past"), fronted=sampler.rng.choice(("", "adverb")))
        same = event._replace(fronted="" if event.fronted else "adverb")
    assert event.object is not None
    return event, same, same._replace(subject=event.object, object=event.subject)


def dative(sampler: Sampler) -> tuple[Meaning, Meaning, Meaning]:
    """Laura gave Daniel the book. / Laura gave the book to Daniel. / Daniel gave the book to Laura."""
    giver, taker = _twins(sampler)
    event = sampler.event("to", subject=giver)._replace(recipient=taker, negated=False, adverb="", fronted="")
    same = event._replace(shifted=not event.shifted)
    assert event.recipient is not None
    return event, same, same._replace(subject=event.recipient, recipient=event.subject)


def linked(sampler: Sampler) -> tuple[Meaning, Meaning, Meaning]:
    """Laura left because Emma arrived. / Because Emma arrived, Laura left. / Because Laura left, Emma arrived."""
    first, second = (_placed(sampler, Event(sampler.verb("-"), sampler.someone())) for _ in range(2))
    links = ("because", "although", "before", "after", "since")
    joined = Joined(sampler.among(links), (first, second), sampler.chance(0.5))
    same = joined._replace(fronted=not joined.fronted)
    if sampler.chance(0.5):
        return joined, same, same._replace(clauses=(second, first))
    crossed = first._replace(subject=second.subject), second._replace(subject=first.subject)
    return joined, same, same._replace(clauses=crossed)


def reworded(sampler: Sampler) -> tuple[Meaning, Meaning, Meaning]:
    """The tall lawyer helped Emma. / The tall attorney assisted Emma. / Emma assisted the tall attorney."""
    verb = sampler.among(tuple(key for key in SYNONYM if key in lexicon.VERBS and _takes_person(key)))
    one, other = _twins(sampler, named=False)
    one, other = (thing._replace(adjectives=(sampler.word(lexicon.adjectives, "person"),)) for thing in (one, other))
    event = _placed(sampler, Event(verb, one, other, past=sampler.chance(0.7)))
    same = Event(SYNONYM[verb], _reworded(one), _reworded(other), past=event.past, place=event.place)
    if sampler.chance(0.5):
        crossed = one._replace(adjectives=other.adjectives), other._replace(adjectives=one.adjectives)
    else:
        crossed = other, one
    return event, same, same._replace(subject=_reworded(crossed[0]), object=_reworded(crossed[1]))


def _takes_person(verb: str) -> bool:
    return lexicon.VERBS[verb].object == ("person",)


def _reworded(thing: Thing) -> Thing:
    adjectives = tuple(SYNONYM.get(key, key) for key in thing.adjectives)
    return thing._replace(noun=SYNONYM.get(thing.noun, thing.noun), adjectives=adjectives)


def conjoined(sampler: Sampler) -> tuple[Meaning, Meaning, Meaning]:
    """Laura ate a pear, and Emma sang. / Emma sang, and Laura ate a pear. / Laura sang, and Emma ate a pear."""
    one = sampler.event("thing", subject=sampler.someone())._replace(
        negated=False, passive=False, adverb="", fronted=""
    )
    other = Event(sampler.verb("-"), sampler.someone(), past=one.past)
    crossed = other._replace(subject=one.subject), one._replace(subject=other.subject)
    return Joined("and", (one, other)), Joined("and", (other, one)), Joined("and", crossed)


FORMS: tuple[Callable[[Sampler], tuple[Meaning, Meaning, Meaning]], ...] = (
    fronting,
    fronting,
    reworded,
    reworded,
    dative,
    voice,
    linked,
    conjoined,
)


def paraphrase(sampler: Sampler, label: str) -> Pair:
    text, same, different = sampler.rng.choice(FORMS)(sampler)
    return text, same if label == "paraphrase" else different


CHANGES = {  # which parts differ at each grade of similarity
    5.0: ((),),
    4.0: (("place",),),
    3.0: (("object",), ("subject",)),
    2.0: (("object", "place"), ("verb",), ("subject", "place")),
    1.0: (("verb", "object"), ("subject", "object", "place")),
    0.0: (("verb", "subject", "object", "place"),),
}


def similarity(sampler: Sampler, grade: float) -> Pair:
    """Two events that share who, what, whom and where to a degree."""
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
