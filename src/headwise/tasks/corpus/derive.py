"""Sentence tasks derived from meanings: sentiment, topic, acceptability, and pairs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from headwise.tasks.corpus import lexicon
from headwise.tasks.corpus.english import BE, DO, English
from headwise.tasks.corpus.entailment import BLOCKS, JUDGED
from headwise.tasks.corpus.lexicon import ADJECTIVES, BELIEVED, LIKED, LOATHED, NOUNS, TOPIC, VERBS
from headwise.tasks.corpus.meaning import GAP, Event, Joined, Meaning, Thing, atoms, split_of
from headwise.tasks.corpus.paraphrase import FORMS, graded
from headwise.tasks.corpus.sampler import Sampler, draw
from headwise.tasks.corpus.sentence import Sentence, spell
from headwise.tasks.corpus.spanish import DETERMINERS, ERA, ESTAR, SER, Spanish
from headwise.tasks.task import Row

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
    changed = [new.get(i, word) for i, word in enumerate(words)]
    changed[0] = changed[0][0].upper() + changed[0][1:]
    return changed


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
    changes = [
        (i, OTHER_GENDER[word.lower()])
        for i, word in enumerate(sentence.words)
        if sentence.deprels[i] in ("det", "amod")
        and word.lower() in OTHER_GENDER
        and sentence.words[sentence.heads[i] - 1] in SEXLESS
    ]
    return rng.choice(changes) if changes else None


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


ASKED = {"who": "subject", "what": "object", "where": "place"}
ROLES = {"subject": "A0", "object": "A1", "place": "AM-LOC"}


def answer(draft: Draft, label: str) -> Row | None:
    """A paragraph, a question about one of its sentences, and the position of the answer."""
    asked = ASKED[label]
    target = _fact(draft)
    if split_of(_left(target, asked)) != draft.split:
        return None
    facts = [target, _rival(draft, target, asked)]
    used = {atom for fact in facts for atom in atoms(fact)}
    while len(facts) < 4:
        fact = _fact(draft)
        if not used & set(atoms(fact)):
            facts.append(fact)
            used |= set(atoms(fact))
    draft.rng.shuffle(facts)
    return _row(draft, facts, target, asked)


def _fact(draft: Draft) -> Event:
    """An event with subject, object and place, in the split."""
    while True:
        sampler = draft.sampler()
        verb = sampler.verb(sampler.rng.choice(("person", "thing", "thing")))
        fact = Event(verb, sampler.someone(), _theme(sampler, verb), place=sampler.place())
        if sampler.fits(fact):
            return fact


def _theme(sampler: Sampler, verb: str) -> Thing:
    persons = VERBS[verb].object == ("person",)
    return sampler.someone() if persons else sampler.thing(*VERBS[verb].object, det="the")


def _rival(draft: Draft, target: Event, asked: str) -> Event:
    """A distractor: the same action elsewhere, with the roles swapped, by someone else or to something else."""
    assert target.object is not None
    while True:
        sampler = draft.sampler()
        if VERBS[target.verb].object == ("person",):
            rival = target._replace(subject=target.object, object=target.subject)
        elif asked == "subject" or (asked == "place" and sampler.chance(0.5)):
            rival = target._replace(subject=sampler.someone())
        else:
            rival = target._replace(object=_theme(sampler, target.verb))
        rival = rival._replace(place=sampler.place())
        if rival.place != target.place and rival[1:3] != target[1:3] and sampler.fits(rival):
            return rival


def _left(event: Event, asked: str) -> Event:
    """The content that the question itself states."""
    if asked == "subject":
        return event._replace(subject=GAP)
    return event._replace(object=None) if asked == "object" else event._replace(place=None)


def _row(draft: Draft, facts: list[Event], target: Event, asked: str) -> Row:
    context, start, text = "", 0, ""
    for fact in facts:
        sentence = draft.sentence(fact)
        context += " " if context else ""
        if fact is target:
            begin, text = _span(sentence, asked)
            start = len(context) + begin
        context += sentence.text
    question = GRAMMARS[draft.language]().question(target, asked)
    return {"question": question, "context": context, "answers": [text], "starts": [start]}


def _span(sentence: Sentence, asked: str) -> tuple[int, str]:
    """Where the answer starts in the sentence, and its words without a preposition."""
    spoken, starts = spell(sentence.words)
    root = sentence.heads.index(0)
    frame = next(frame for frame in sentence.frames if frame["predicate"] == root)
    first, last = next((start, end) for start, end, role in frame["arguments"] if role == ROLES[asked])
    while sentence.upos[first] == "ADP" or sentence.deprels[first] == "case":
        first += 1
    end = starts[last - 1] + len(sentence.words[last - 1])
    return starts[first], spoken[starts[first] : end]
