"""Entailment pairs whose label no bag of words predicts.

The label depends on how words combine: negating the opposite preserves meaning, what holds of roses holds of flowers
but not under negation, and most premises contain both what would make the hypothesis true and what would make it false,
so it matters who did what. Over all blocks together, every word, every difference of words and the overlap are equally
frequent with all labels.
"""

from __future__ import annotations

from collections.abc import Callable

from headwise.tasks.corpus import lexicon
from headwise.tasks.corpus.lexicon import (
    ADJECTIVES,
    BELIEVED,
    COMPARATIVES,
    FACTIVE,
    LIKED,
    LOATHED,
    NOUNS,
    OPPOSITE,
    VERBS,
)
from headwise.tasks.corpus.meaning import Event, Joined, Meaning, Place, Thing
from headwise.tasks.corpus.sampler import Sampler

Pair = tuple[Meaning, Meaning]
LABELS = ("entailment", "neutral", "contradiction")
JUDGED = ("work", "text", "dish", "contest", "speech")
DONE = ("text", "dish", "contest", "speech")  # what can be judged and can also just be read, eaten, won or given
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


def verdict(sampler: Sampler, label: str) -> Pair:
    """Laura bought the book, and the film was awful. / The film was not superb."""
    sign, negated = sampler.rng.choice((1, -1)), sampler.chance(0.5)
    theme, other = sampler.twins(*[lambda: sampler.one(*DONE)] * 2)
    deed = _deed(sampler, other)
    attribute = sampler.word(lexicon.adjectives, NOUNS[theme.noun].kind, sign)
    past = sampler.chance(0.6)
    premise = _contrast(sampler, Event("be", theme, attribute=attribute, past=past), deed._replace(past=past))
    agrees = sampler.chance(0.5) if label == "neutral" else negated != (label == "entailment")
    about = other if label == "neutral" else theme
    said = sampler.word(lexicon.adjectives, NOUNS[theme.noun].kind, sign if agrees else -sign)
    return premise, Event("be", about, attribute=said, past=past, negated=negated)


def _deed(sampler: Sampler, thing: Thing) -> Event:
    """An action on a thing that expresses no verdict."""
    kind = NOUNS[thing.noun].kind
    plain = [key for key, verb in VERBS.items() if kind in verb.object and not verb.recipient]
    verb = sampler.among(tuple(key for key in plain if key not in (*LIKED, *LOATHED)))
    return Event(verb, sampler.someone(), thing)


def attitude(sampler: Sampler, label: str) -> Pair:
    """Laura loved the soup, and Emma ate the cake. / Laura did not hate the soup."""
    sides = [tuple(verb for verb in side if "work" in VERBS[verb].object) for side in (LIKED, LOATHED)]
    sampler.rng.shuffle(sides)
    fond = sampler.among(sides[0])
    theme, other = sampler.twins(*[lambda: sampler.one(*DONE[:3])] * 2)
    who, deed = sampler.someone(), _deed(sampler, other)
    premise = _contrast(sampler, Event(fond, who, theme), deed)
    opposed = sampler.chance(0.5)
    negated = sampler.chance(0.5) if label == "neutral" else opposed == (label == "entailment")
    said = sampler.among(sides[1] if opposed else tuple(verb for verb in sides[0] if verb != fond))
    about = other if label == "neutral" else theme
    return premise, Event(said, who, about, negated=negated)


def _kin(sampler: Sampler) -> tuple[str, Thing, Thing]:
    """A verb, a noun and its hypernym."""
    kind = sampler.rng.choice(tuple(HYPERNYMS))
    sampler.used.add(kind)
    return sampler.rng.choice(HYPERNYMS[kind]), Thing(sampler.noun((kind,)), "a"), Thing(kind, "a")


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
    b = b._replace(clause=None, reduced=False)  # "the girl seen by Emma and Hugo" could be read in two ways
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
    one, other = sampler.twins(*[lambda: sampler.one(kind)] * 2)
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
    verb, narrow, wide = _kin(sampler)
    a, b = sampler.someone(), sampler.someone()
    known, denied = (wide, narrow) if label == "neutral" else (narrow, wide)
    premise = _contrast(sampler, Event(verb, a, known), Event(verb, b, denied, negated=True))
    who, what = sampler.rng.choice(((a, denied), (b, known)))
    negated = sampler.chance(0.5) if label == "neutral" else (label == "entailment") == (who is b)
    return premise, Event(verb, who, what, negated=negated)


def quantity(sampler: Sampler, label: str) -> Pair:
    """All the nurses sang, some pilots sang, and no guards sang. / Not all the pilots sang."""
    verb = sampler.verb("-")
    trio = sampler.twins(*[lambda: sampler.one("person")] * 3)
    groups = [Thing(group.noun, det, plural=True) for group, det in zip(trio, ("all", "some", "no"))]
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


BLOCKS: tuple[Callable[[Sampler, str], Pair], ...] = (  # those that can be learnt first come more often
    *(verdict, verdict, verdict, attachment, attachment, attachment),
    *(attitude, attitude, comparison, comparison),
    *(kinship, binding, sequence, quantity, factivity),
)
