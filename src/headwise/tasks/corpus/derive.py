"""Sentence tasks derived from meanings: sentiment, topic, acceptability, and pairs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from headwise.tasks.corpus import lexicon
from headwise.tasks.corpus.breaks import disagree, disorder
from headwise.tasks.corpus.english import English
from headwise.tasks.corpus.entailment import BLOCKS, JUDGED
from headwise.tasks.corpus.lexicon import BELIEVED, LIKED, LOATHED, NOUNS, TOPIC, VERBS
from headwise.tasks.corpus.meaning import Event, Joined, Meaning, atoms, split_of
from headwise.tasks.corpus.paraphrase import FORMS, graded
from headwise.tasks.corpus.sampler import Sampler, draw
from headwise.tasks.corpus.sentence import Sentence, spell
from headwise.tasks.corpus.spanish import Spanish
from headwise.tasks.task import Row

GRAMMARS = {"en": English, "es": Spanish}
SENTIMENT = ("negative", "positive")
ACCEPTABILITY = ("unacceptable", "acceptable")


class Draft(NamedTuple):
    """The context of a row: its random generator, split and language."""

    rng: Random
    split: str
    language: str

    def sampler(self, topic: str | None = None) -> Sampler:
        return Sampler(self.rng, self.split, topic)

    def sentence(self, meaning: Meaning) -> Sentence:
        return GRAMMARS[self.language]().render(meaning)

    def text(self, meaning: Meaning) -> str:
        return self.sentence(meaning).text

    def row(self, label: Any, *meanings: Meaning) -> Row | None:
        """A row of one or two texts, or None if they are not in the split."""
        if split_of(*meanings) != self.split:
            return None
        first, second = (*map(self.text, meanings), None)[:2]
        return {"text": first, "text_b": second, "label": label}


def entailment(draft: Draft, label: str) -> Row | None:
    """A premise and a hypothesis that is entailed, possible or contradicted."""
    block = draft.rng.choice(BLOCKS)
    return _until(lambda: draft.row(label, *block(draft.sampler(), label)))


def paraphrase(draft: Draft, label: str) -> Row | None:
    """Two forms of one meaning, or of two meanings that differ in who did what or in the verdict."""
    form = draft.rng.choice(FORMS)

    def make() -> Row | None:
        text, same, different = form(draft.sampler())
        return draft.row(label, text, same if label == "paraphrase" else different)

    return _until(make)


def _until(make: Callable[[], Row | None]) -> Row:
    """Repeat one way of making a row until the row is in the split, so that it is equally frequent in all splits."""
    while (row := make()) is None:
        continue
    return row


def similarity(draft: Draft, label: float) -> Row | None:
    return draft.row(label, *graded(draft.sampler(), label))


def topic(draft: Draft, label: str) -> Row | None:
    """A sentence whose topical words all belong to one topic."""
    meaning = draw(draft.rng, draft.split, topic=label)
    return draft.row(label, meaning) if {TOPIC[a] for a in atoms(meaning) if a in TOPIC} == {label} else None


def sentiment(draft: Draft, label: str) -> Row | None:
    """A verdict: plain, negated, reported, or with a concession of opposite sentiment."""
    sampler = draft.sampler()
    verdict = _verdict(sampler, 1 if label == "positive" else -1)
    kind = draft.rng.random()
    if kind < 0.3:
        against = _verdict(sampler, -1 if label == "positive" else 1)._replace(past=verdict.past)
        return draft.row(label, Joined("although", (verdict, against), sampler.chance(0.5)))
    if kind < 0.5:
        teller = Event(sampler.among(BELIEVED), sampler.someone(), content=verdict)
        return draft.row(label, teller._replace(past=verdict.past and sampler.chance(0.5)))
    return draft.row(label, verdict)


def _verdict(sampler: Sampler, sign: int) -> Event:
    """``The film was wonderful``, ``Laura did not enjoy the soup``: a clause with a polarity."""
    negated = sampler.chance(0.35)
    sign = -sign if negated else sign
    past = sampler.chance(0.6)
    if sampler.chance(0.6):
        subject = sampler.thing(*JUDGED, plural=sampler.chance(0.3), det="the")
        attribute = sampler.word(lexicon.adjectives, NOUNS[subject.noun].kind, sign)
        return Event("be", subject, attribute=attribute, past=past, negated=negated)
    verb = sampler.among(tuple(v for v in (LIKED if sign > 0 else LOATHED) if "work" in VERBS[v].object))
    theme = sampler.thing(*VERBS[verb].object, plural=sampler.chance(0.3), det="the")
    return Event(verb, sampler.someone(), theme, past=past, negated=negated)


def acceptability(draft: Draft, label: str) -> Row | None:
    """A sentence, or the same with agreement, order or selection violated; both classes are sampled alike."""
    kind = draft.rng.choice((_agreement, _order, _selection))
    return _until(lambda: kind(draft, label == "acceptable"))


def _agreement(draft: Draft, good: bool) -> Row | None:
    """``The keys near the door are heavy`` against ``The keys near the door is heavy``."""
    sampler = draft.sampler()
    frame = sampler.rng.choice(("-", "person", "thing", "animal", "be"))
    plural = sampler.chance(0.5)
    if frame == "be":
        subject = sampler.thing("person", "animal", "object", "garment", "device", room=1, plural=plural)
        event = sampler.state(0, subject, NOUNS[subject.noun].kind)
    else:
        subject = sampler.thing("animal" if frame == "animal" else "person", room=1, plural=plural)
        event = sampler.event(frame, 1, subject)._replace(past=False, passive=False)
    if event.adverb and not event.past and lexicon.ADVERBS[event.adverb][0] == "past":
        event = event._replace(adverb="", fronted="place" if event.fronted == "place" else "")
    return _broken(draft, event, good, disagree)


def _order(draft: Draft, good: bool) -> Row | None:
    """``The nurse slept in the park`` against ``The nurse slept the in park``."""
    return _broken(draft, draw(draft.rng, draft.split), good, disorder)


def _broken(draft: Draft, meaning: Meaning, good: bool, breaks: Any) -> Row | None:
    sentence = draft.sentence(meaning)
    words = breaks(sentence, draft.rng)
    if split_of(meaning) != draft.split or words is None:
        return None
    text = sentence.text if good else spell(words)[0]
    return {"text": text, "text_b": None, "label": ACCEPTABILITY[good]}


def _selection(draft: Draft, good: bool) -> Row | None:
    """``Laura ate the apple`` against ``The apple ate Laura``; ``Emma slept`` against ``Emma slept the apple``."""
    sampler = draft.sampler()
    person, verb = sampler.someone(), sampler.verb("thing")
    thing = sampler.one(*VERBS[verb].object)
    event = Event(verb, person, thing, past=sampler.chance(0.7))
    if sampler.chance(0.5):
        other = Event(sampler.verb("-"), sampler.someone(), past=event.past)
        if not good:
            event, other = event._replace(verb=other.verb), other._replace(verb=event.verb)
        clauses = (event, other) if sampler.chance(0.5) else (other, event)
        return draft.row(ACCEPTABILITY[good], Joined("and", clauses))
    passive = sampler.chance(0.5) or draft.language == "es"  # the personal "a" would tell
    event = event._replace(passive=passive, place=sampler.place() if sampler.chance(0.4) else None)
    if not good:
        event = event._replace(subject=thing, object=person)
    return draft.row(ACCEPTABILITY[good], event)
