"""The ten probing tasks of SentEval (Conneau et al. 2018) on sentences of the corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headwise.tasks.corpus import lexicon
from headwise.tasks.corpus.derive import Draft, swapped
from headwise.tasks.corpus.lexicon import HELD, NOUNS, SYNONYM, VERBS
from headwise.tasks.corpus.meaning import Event, Joined, Meaning, Thing, atoms, events, main, split_of, substitute
from headwise.tasks.corpus.sampler import PLURALS, SINGULARS, Sampler, draw
from headwise.tasks.corpus.sentence import spell
from headwise.tasks.task import Row

LENGTHS = {"0": (5, 8), "1": (9, 12), "2": (13, 16), "3": (17, 20), "4": (21, 25), "5": (26, 28)}
ROOMS = {"0": 1, "1": 1, "2": 2, "3": 3, "4": 5, "5": 6}  # how much is said, for a length
DEPTHS = ("3", "4", "5", "6", "7")
DEPTH_LENGTHS = ((10, 11), (12, 13))  # every depth has the same lengths, so that length does not tell depth
TOPS = ("NP_VP_.", "S_,_CC_S_.", "SBAR_,_NP_VP_.", "PP_,_NP_VP_.", "ADVP_,_NP_VP_.", "NP_ADVP_VP_.")
SHIFT, ODD, TENSES, NUMBERS = ("I", "O"), ("C", "O"), ("PAST", "PRES"), ("NN", "NNS")
FREE_ORDERS = {
    ("VERB", "ADV"),
    ("ADV", "VERB"),
    ("NOUN", "ADJ"),
    ("ADJ", "NOUN"),
    ("PROPN", "PROPN"),
    ("PROPN", "VERB"),
}
NARROW = tuple(key for key, verb in VERBS.items() if lexicon.frame_of(verb) == "thing" and len(verb.object) < 4)
THINGS = ("flower", "fruit", "dish", "vehicle", "text", "object", "holder", "garment", "gear", "measure", "landmark")
TARGETS = tuple(  # the words of word_content: common nouns of the training vocabulary without a synonym
    key
    for key, noun in NOUNS.items()
    if not noun.entity and key not in HELD and key not in SYNONYM and noun.kind not in ("place", "landmark", "person")
)[:60]


def _row(text: str, label: str) -> Row:
    return {"text": text, "text_b": None, "label": label}


def _of_size(room: int, joined: float) -> Callable[[Sampler], Meaning]:
    """One clause, or two with some probability, with room for modifiers."""
    return lambda sampler: sampler.joined(room) if sampler.chance(joined) else sampler.event("", room)


def sentence_length(draft: Draft, label: str) -> Row | None:
    """Which of six bins the number of words falls in."""
    low, high = LENGTHS[label]
    sentence = draft.sentence(draw(draft.rng, draft.split, _of_size(ROOMS[label], 0.1 if low < 10 else 0.6)))
    return _row(sentence.text, label) if low <= sentence.properties["length"] <= high else None


def word_content(draft: Draft, label: str) -> Row | None:
    """Which one of a list of words is in the sentence."""
    sampler = draft.sampler()
    sampler.used = set(TARGETS)
    kind, plural = NOUNS[label].kind, sampler.chance(0.4)
    thing = Thing(label, sampler.rng.choice(PLURALS if plural else SINGULARS), plural)
    if sampler.chance(0.3) and lexicon.adjectives(kind, held=False):
        event = sampler.state(0, thing, kind)
    elif kind in ("animal", "bird"):
        event = sampler.event("-", 1, thing)
    else:
        verb = sampler.among(tuple(key for key, entry in VERBS.items() if kind in entry.object and not entry.recipient))
        event = sampler.finished(Event(verb, sampler.person(1), thing, past=sampler.chance(0.5)), "thing", 1)
    if [atom for atom in atoms(event) if atom in TARGETS] != [label]:
        return None
    return draft.row(NOUNS[label].en[0] if draft.language == "en" else NOUNS[label].es[0], event)


def tree_depth(draft: Draft, label: str) -> Row | None:
    """The depth of the phrase tree."""
    low, high = draft.rng.choice(DEPTH_LENGTHS)
    make = _of_size(1, 0.5) if label in DEPTHS[:3] else _of_size(5, 0.1)
    for _ in range(1000):
        sentence = draft.sentence(draw(draft.rng, draft.split, make))
        if sentence.properties["depth"] == int(label) and low <= sentence.properties["length"] <= high:
            return _row(sentence.text, label)
    return None


def top_constituents(draft: Draft, label: str) -> Row | None:
    """The phrases directly below the sentence."""
    sentence = draft.sentence(draw(draft.rng, draft.split, lambda sampler: _topped(sampler, label)))
    return _row(sentence.text, label) if sentence.properties["top"] == label else None


def _topped(sampler: Sampler, label: str) -> Meaning:
    """A meaning that is likely to be rendered with the label's top constituents."""
    room = sampler.rng.choice((0, 1, 1, 2, 2, 3))
    if label.startswith("S"):
        return sampler.joined(max(room, 1))
    event = sampler.event("", room)
    if label.startswith("PP") and event.place is not None:
        return event._replace(fronted="place")
    if label.startswith("ADVP") and lexicon.ADVERBS.get(event.adverb, ("",))[0] in ("past", "present"):
        return event._replace(fronted="adverb")
    return event


def bigram_shift(draft: Draft, label: str) -> Row | None:
    """Whether two neighbouring words were swapped (I) or not (O)."""
    sentence = draft.sentence(draw(draft.rng, draft.split))
    if label == "O":
        return _row(sentence.text, label)
    pairs = list(zip(sentence.upos, sentence.upos[1:]))
    places = [i for i, pair in enumerate(pairs) if "PUNCT" not in pair and pair not in FREE_ORDERS]
    return _row(spell(swapped(sentence, draft.rng.choice(places)))[0], label) if places else None


def past_present(draft: Draft, label: str) -> Row | None:
    """The tense of the main verb."""
    meaning = draw(draft.rng, draft.split)
    return draft.row(label, meaning) if main(meaning).past == (label == "PAST") else None


def subj_number(draft: Draft, label: str) -> Row | None:
    """The number of the main clause's subject."""
    meaning = draw(draft.rng, draft.split)
    event = main(meaning)
    return _numbered(draft, meaning, event.object if event.passive else event.subject, label)


def obj_number(draft: Draft, label: str) -> Row | None:
    """The number of the main clause's direct object."""
    meaning = draw(draft.rng, draft.split)
    event = main(meaning)
    return _numbered(draft, meaning, None if event.passive else event.object, label)


def _numbered(draft: Draft, meaning: Meaning, thing: Thing | None, label: str) -> Row | None:
    if thing is None or NOUNS[thing.noun].entity or thing.plural != (label == "NNS"):
        return None
    return draft.row(label, meaning)


def odd_man_out(draft: Draft, label: str) -> Row | None:
    """Whether a noun or a verb was replaced by one that does not fit (C) or not (O)."""
    meaning = draw(draft.rng, draft.split)
    changes = [change for event in events(meaning) for change in _oddities(event) if change[1]]
    if not changes:
        return None
    old, strangers = draft.rng.choice(changes)
    return draft.row(label, meaning if label == "O" else substitute(meaning, old, draft.rng.choice(strangers)))


def _oddities(event: Event) -> Iterator[tuple[str, list[str]]]:
    """The replaceable words of a clause, each with words of the same part of speech that do not fit."""
    if event.verb not in VERBS:
        return
    if not NOUNS[event.subject.noun].entity:
        yield event.subject.noun, _strangers(event.subject.noun, THINGS)
    kinds = VERBS[event.verb].object
    if event.object is not None and lexicon.frame_of(VERBS[event.verb]) == "thing" and "work" not in kinds:
        yield event.object.noun, _strangers(event.object.noun, ("person", "place", "landmark", "contest"))
        yield event.verb, [key for key in NARROW if not set(VERBS[key].object) & set(kinds)]


def _strangers(old: str, kinds: tuple[str, ...]) -> list[str]:
    """Nouns of the given kinds, excluding those of the old noun; held-out ones if the old noun is held out."""
    own, held = NOUNS[old].kind, old in HELD
    return [key for key, noun in NOUNS.items() if noun.kind in kinds and noun.kind != own and (key in HELD) == held]


def coordination_inversion(draft: Draft, label: str) -> Row | None:
    """Whether the two clauses of a coordination are in their original order (O) or swapped (I)."""
    sampler = draft.sampler()
    first = sampler.event("thing", sampler.rng.choice((0, 1, 2)))
    first = first._replace(negated=False, passive=False, adverb="", fronted="")
    assert first.object is not None
    kind = NOUNS[first.object.noun].kind
    verb = sampler.among(tuple(key for key, entry in VERBS.items() if kind in entry.object and not entry.recipient))
    again = first.subject._replace(det="pronoun", adjectives=(), place=None, clause=None, reduced=False, owner=None)
    it = first.object._replace(det="pronoun", adjectives=(), place=None, clause=None, reduced=False, owner=None)
    subject = again if sampler.chance(0.6) else sampler.someone()
    second = Event(verb, subject, it, past=first.past)
    clauses = (first, second) if label == "O" else (second, first)
    if verb == first.verb or split_of(Joined("and", clauses)) != draft.split:
        return None
    return draft.row(label, Joined(sampler.rng.choice(("and", "but")), clauses))
