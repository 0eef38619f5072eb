"""Questions about a short paragraph (who, what, where), with a distractor sentence that says nearly the same."""

from __future__ import annotations

from headwise.tasks.corpus.derive import GRAMMARS, Draft
from headwise.tasks.corpus.lexicon import VERBS
from headwise.tasks.corpus.meaning import GAP, Event, Thing, atoms, split_of
from headwise.tasks.corpus.sampler import Sampler
from headwise.tasks.corpus.sentence import Sentence, spell
from headwise.tasks.task import Row

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
