"""Questions over a short paragraph: who, what, where; another sentence has the same verb."""

from __future__ import annotations

from headwise.tasks.corpus.derive import GRAMMARS, Draft
from headwise.tasks.corpus.lexicon import VERBS
from headwise.tasks.corpus.meaning import GAP, Event, atoms, split_of
from headwise.tasks.corpus.sampler import Sampler
from headwise.tasks.corpus.sentence import Sentence, spell
from headwise.tasks.task import Row

ASKED = {"who": "subject", "what": "object", "where": "place"}
ROLES = {"subject": "A0", "object": "A1", "place": "AM-LOC"}


def answer(draft: Draft, label: str) -> Row | None:
    """A paragraph, a question about one of its sentences, and where in the text the answer stands."""
    asked = ASKED[label]
    target = _fact(draft)
    if split_of(_left(target, asked)) != draft.split:
        return None
    facts, used = [target], set(atoms(target))
    while len(facts) < 4:
        fact = _fact(draft, target.verb if len(facts) == 1 else "")
        if not used & set(atoms(fact)) - {target.verb}:
            facts.append(fact)
            used |= set(atoms(fact))
    draft.rng.shuffle(facts)
    return _row(draft, facts, target, asked)


def _fact(draft: Draft, verb: str = "") -> Event:
    """Someone did something to something somewhere; in the split."""
    while True:
        sampler = Sampler(draft.rng, draft.split)
        doing = verb or sampler.verb(sampler.rng.choice(("person", "thing", "thing")))
        who = sampler.someone()
        whom = sampler.someone() if VERBS[doing].object == ("person",) else sampler.thing(*VERBS[doing].object, det="the")
        fact = Event(doing, who, whom, place=sampler.place())
        if sampler.fits(fact):
            return fact


def _left(event: Event, asked: str) -> Event:
    """What the question itself says."""
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
    """Where the asked-for phrase starts in the sentence, and its words without a preposition."""
    spoken, starts = spell(sentence.words)
    root = sentence.heads.index(0)
    frame = next(frame for frame in sentence.frames if frame["predicate"] == root)
    first, last = next((start, end) for start, end, role in frame["arguments"] if role == ROLES[asked])
    while sentence.upos[first] == "ADP" or sentence.deprels[first] == "case":
        first += 1
    end = starts[last - 1] + len(sentence.words[last - 1])
    return starts[first], spoken[starts[first] : end]

