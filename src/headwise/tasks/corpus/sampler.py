"""Sample meanings at random: who does what, with which modifiers and words."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from headwise.tasks.corpus import lexicon
from headwise.tasks.corpus.lexicon import FAMILY, HELD, NOUNS, TOPICS, VERBS
from headwise.tasks.corpus.meaning import GAP, PLURAL, Event, Joined, Meaning, Place, Thing, is_feminine, split_of
from headwise.tasks.corpus.words import COMPANY_VERBS

NOVELTY = 0.45  # how often a test sentence takes a held-out word or construction where it can
SINGULARS = ("the", "the", "the", "a", "a", "this", "every")
PLURALS = ("the", "the", "the", "some", "some", "many", "two", "three", "this")
PLAIN = ("", "the", "a", "this")  # determiners that negation leaves alone
FRAMES = ("-", "-", "person", "person", "thing", "thing", "thing", "animal", "to", "that", "be")
MOTION = ("arrive", "return", "disappear")  # said without a place: Spanish would want another preposition
SUBORDINATORS = ("because", "although", "when", "before", "after")
SITES = {  # where a kind of noun is said to be: prepositions, kinds
    "person": (
        (("near", "behind", "beside"), ("landmark", "place")),
        (("with",), ("garment", "holder")),
        (("from",), ("LOC",)),
    ),
    "animal": ((("near", "behind", "under"), ("landmark", "surface")),),
    "place": ((("near", "behind"), ("landmark",)), (("in",), ("LOC",))),
    "landmark": ((("near", "behind"), ("place",)), (("in",), ("LOC",))),
    "surface": ((("in", "near"), ("place",)), (("near", "beside"), ("opening",))),
    "holder": ((("on", "under"), ("surface",)), (("near",), ("opening",))),
} | dict.fromkeys(
    ("object", "garment", "text", "gear", "dish"), ((("on", "under", "beside"), ("surface",)), (("in",), ("holder",)))
)
COMPANIES = frozenset(COMPANY_VERBS.split())


class Sampler:
    """Random things, events and meanings for one row of one split; nouns do not repeat."""

    def __init__(self, rng: Random, split: str, topic: str | None = None):
        self.rng, self.split = rng, split
        self.topic = rng.choice((*TOPICS, "general")) if topic is None else topic
        self.used: set[str] = set()

    def fits(self, *meanings: Meaning | Thing) -> bool:
        return split_of(*meanings) == self.split

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    @property
    def novel(self) -> bool:
        return self.split == "test" and self.chance(NOVELTY)

    def word(self, pool: Callable[..., tuple[str, ...]], *arguments: Any) -> str:
        """A word of a pool that the row has not used yet."""
        word = ""
        for choices in ((pool(*arguments, held=True) if self.novel else ()), pool(*arguments, held=False)):
            for _ in range(6 if choices else 0):
                word = self.rng.choice(choices)
                if FAMILY.get(word, word) not in self.used:
                    self.used.add(FAMILY.get(word, word))
                    return word
        return word

    def among(self, words: tuple[str, ...]) -> str:
        """One of the words; held-out ones in test only."""
        held = [word for word in words if word in HELD] if self.novel else []
        return self.rng.choice(held or [word for word in words if word not in HELD])

    def noun(self, kinds: tuple[str, ...]) -> str:
        return self.word(lexicon.nouns, kinds, self.topic if self.chance(0.75) else "general")

    def verb(self, frame: str) -> str:
        return self.word(lexicon.verbs, frame, self.topic)

    def thing(self, *kinds: str, room: int = 0, plural: bool | None = None, det: str = "") -> Thing:
        """A thing of one of the kinds, with a determiner that agrees in number and ``room`` for modifiers."""
        noun = self.noun(kinds)
        if NOUNS[noun].entity:
            return Thing(noun, "")
        if det:
            plural = det in PLURAL if plural is None else plural
        else:
            plural = self.chance(0.4) if plural is None else plural
            det = self.rng.choice(PLURALS if plural else SINGULARS)
        thing = Thing(noun, det, plural)
        return self.modified(thing, room) if room > 0 else thing

    def person(self, room: int = 0, plural: bool | None = None, det: str = "") -> Thing:
        """A person, by name or by profession."""
        if not plural and not det and self.chance(0.4):
            return self.thing("PER")
        return self.thing("person", room=room, plural=plural, det=det)

    def one(self, *kinds: str) -> Thing:
        """One thing of one of the kinds, with ``the``."""
        return self.thing(*kinds, plural=False, det="the")

    def someone(self) -> Thing:
        """One person: a name, or a profession with ``the``."""
        if self.chance(0.5):
            return self.thing("PER")
        person = self.one("person")
        return self.novel_clause(person, "person") if self.novel and self.chance(0.2) else person

    def twins(self, *makers: Callable[[], Thing]) -> list[Thing]:
        """Different things that can be swapped without changing articles or endings in Spanish."""
        while True:
            things = [make() for make in makers]
            alike = len({(thing.det, is_feminine(thing)) for thing in things}) == 1
            if alike and len({thing.noun for thing in things}) == len(things):
                return things

    def modified(self, thing: Thing, room: int) -> Thing:
        """The thing with an adjective, a place, a relative clause or (in test) an owner."""
        kind = NOUNS[thing.noun].kind
        if self.chance(0.35) and lexicon.adjectives(kind, held=False):
            thing = thing._replace(adjectives=(self.word(lexicon.adjectives, kind),))
        draw = self.rng.random() * (2.2 - 0.2 * min(room, 5))
        if draw < 0.3 and self.novel:
            return self.novel_clause(thing, kind)
        if draw < 0.35 and kind in SITES:
            return thing._replace(place=self.site(kind, room - 1))
        if draw < 0.65 and (kind in ("person", "animal") or lexicon.adjectives(kind, held=False)):
            return thing._replace(clause=self.relative(kind, room - 1))
        return thing

    def novel_clause(self, thing: Thing, kind: str) -> Thing:
        """A possessor, an object relative or a participle: constructions that occur in test sentences only."""
        if kind in ("place", "landmark"):
            return thing
        frames = {"person": "person", "animal": "animal"}
        fitting = [
            v for v in lexicon.verbs(frames.get(kind, "thing"), self.topic, held=False) if kind in VERBS[v].object
        ]
        if kind != "person" and (not fitting or self.chance(0.34)):
            return thing._replace(det="the", owner=self.person(det="the"))
        agent = self.thing("animal", det="the") if kind == "animal" else self.person()
        event = Event(self.rng.choice(fitting), agent, GAP)
        return thing._replace(clause=event, reduced=self.chance(0.5))

    def relative(self, kind: str, room: int) -> Event:
        if kind == "person":
            frame = self.rng.choice(("-", "person", "thing", "to"))
        else:
            frame = self.rng.choice(("-", "animal")) if kind == "animal" else "be"
        return self.event(frame, room, subject=GAP, kind=kind)._replace(adverb="", fronted="", passive=False)

    def site(self, kind: str, room: int) -> Place:
        prepositions, kinds = self.rng.choice(SITES[kind])
        return Place(self.rng.choice(prepositions), self.thing(*kinds, room=room, plural=False, det="the"))

    def place(self, room: int = 0) -> Place:
        """Where an event happens."""
        draw = self.rng.random()
        if draw < 0.4:
            return Place("in", self.thing("LOC"))
        if draw < 0.6:
            return Place(self.rng.choice(("near", "beside", "behind")), self.thing("landmark", room=room, det="the"))
        return Place(self.rng.choice(("in", "in", "near", "behind")), self.thing("place", room=room, det="the"))

    def event(self, frame: str = "", room: int = 0, subject: Thing | None = None, kind: str = "") -> Event:
        """A clause; ``room`` limits its modifiers."""
        frame = frame or self.rng.choice(FRAMES)
        if frame == "be":
            return self.state(room, subject, kind)
        verb = self.verb(frame)
        if subject is None:
            subject = self.doer(verb, frame, room)
        event = Event(verb, subject, past=self.chance(0.5))
        if frame == "that":
            inner = self.event(self.rng.choice(("-", "person", "thing", "be")), room - 1)
            return event._replace(content=inner._replace(past=True, fronted="", adverb=""))
        if frame != "-":
            event = event._replace(object=self.thing(*VERBS[verb].object, room=room - 1))
        if frame == "to":
            event = event._replace(recipient=self.person(), shifted=self.chance(0.5))
        return self.finished(event, frame, room)

    def doer(self, verb: str, frame: str, room: int) -> Thing:
        if verb in COMPANIES and self.chance(0.25):
            return self.thing("ORG")
        if frame == "animal" or (frame == "-" and "animal" in VERBS[verb].subject and self.chance(0.3)):
            return self.thing("animal", "bird", room=room)
        return self.person(room)

    def finished(self, event: Event, frame: str, room: int) -> Event:
        """The event with place, adverb, negation and voice."""
        if self.chance(0.3 if room else 0.1) and event.verb not in MOTION:
            event = event._replace(place=self.place(room - 2), fronted="place" if self.chance(0.3) else "")
        plain = all(part is None or part.det in PLAIN for part in (event.subject, event.object, event.recipient))
        if plain and self.chance(0.15):
            event = event._replace(negated=True)
        elif frame not in ("-", "to") and event.subject is not GAP and self.chance(0.15):
            event = event._replace(passive=True)
        if self.chance(0.25):
            event = self.timed(event)
        return event

    def timed(self, event: Event) -> Event:
        kinds = ["manner", "past" if event.past else "present"]
        if not event.past and not event.negated and not event.passive:
            kinds.append("often")
        kind = self.rng.choice(kinds)
        front = kind in ("past", "present") and not event.fronted and self.chance(0.4)
        return event._replace(adverb=self.word(lexicon.adverbs, kind), fronted="adverb" if front else event.fronted)

    def state(self, room: int, subject: Thing | None = None, kind: str = "") -> Event:
        """A thing with a predicate adjective."""
        if subject is None:
            subject = self.thing("person", "animal", "dish", "object", "garment", "device", "vehicle", room=room)
            kind = NOUNS[subject.noun].kind
        attribute = self.word(lexicon.adjectives, kind)
        if attribute in subject.adjectives:
            subject = subject._replace(adjectives=())
        negated = subject.det in PLAIN and self.chance(0.2)
        return Event("be", subject, attribute=attribute, past=self.chance(0.5), negated=negated)

    def joined(self, room: int) -> Joined:
        """Two clauses with a link, in one tense."""
        if self.chance(0.4):
            link = "whereas" if self.novel else self.rng.choice(("and", "but"))
        else:
            link = "since" if self.novel else self.rng.choice(SUBORDINATORS)
        past = link in ("before", "after", "when") or self.chance(0.5)
        frames = ("-", "person", "thing", "to", "be") if link not in ("before", "after") else ("-", "person", "thing")
        clauses = [self.event(self.rng.choice(frames), room - 1) for _ in range(2)]
        clauses = [clause._replace(past=past, fronted="", adverb="", negated=False) for clause in clauses]
        fronted = link in (*SUBORDINATORS, "since") and self.chance(0.45)
        return Joined(link, tuple(clauses), fronted)

    def meaning(self) -> Meaning:
        """A sentence of any form: short or long, one clause or two."""
        room = self.rng.choice((0, 1, 1, 2, 2, 3))
        return self.joined(room) if room > 0 and self.chance(0.25) else self.event("", room)


def draw(
    rng: Random, split: str, make: Callable[[Sampler], Meaning] = Sampler.meaning, topic: str | None = None
) -> Meaning:
    """A random meaning of the split."""
    while True:
        sampler = Sampler(rng, split, topic)
        meaning = make(sampler)
        if sampler.fits(meaning):
            return meaning
