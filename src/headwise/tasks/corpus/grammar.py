"""What the two grammars share: clauses, links, relative clauses, frames; each language supplies the phrases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from headwise.tasks.corpus.lexicon import ADJECTIVES, ADVERBS, LIKED, LOATHED, NOUNS, TOPIC
from headwise.tasks.corpus.meaning import COORDINATORS, GAP, Event, Joined, Meaning, Thing, atoms, is_plural, main
from headwise.tasks.corpus.sentence import HEAD, Node, Reading, Sentence, first_leaf, leaf, phrase

Role = tuple[Node, str]
Part = tuple[str, Node]
LINK_ROLES = {"because": "AM-CAU", "since": "AM-CAU", "although": "AM-ADV", "whereas": "AM-ADV"}


class Grammar(ABC):
    """Renders a meaning in one language; one instance per sentence."""

    language: str

    def __init__(self) -> None:
        self.frames: list[tuple[Node, list[Role]]] = []

    def render(self, meaning: Meaning) -> Sentence:
        body = self.whole(meaning)
        root = Node("S", (*body.parts, ("punct", leaf(".", "PUNCT", "."))))
        opening = first_leaf(root)
        opening.word = opening.word[0].upper() + opening.word[1:]
        reading = Reading(root)
        properties = describe(meaning) | {
            "length": len(reading.words),
            "depth": reading.depth,
            "top": "_".join(part.label for _, part in root.parts),
        }
        return Sentence(
            tuple(reading.words),
            tuple(reading.upos),
            tuple(reading.entities),
            tuple(reading.heads),
            tuple(reading.deprels),
            reading.tree,
            tuple(sorted((self._frame(verb, roles) for verb, roles in self.frames), key=lambda f: f["predicate"])),
            properties,
            meaning,
            self.language,
        )

    @staticmethod
    def _frame(verb: Node, roles: list[Role]) -> dict[str, Any]:
        return {"predicate": verb.span[0], "arguments": sorted([*node.span, role] for node, role in roles)}

    def whole(self, meaning: Meaning) -> Node:
        if isinstance(meaning, Event):
            return self.clause(meaning)
        return self.coordination(meaning) if meaning.link in COORDINATORS else self.subordination(meaning)

    def coordination(self, joined: Joined) -> Node:
        first, *middle, last = map(self.clause, joined.clauses)
        parts: list[Part] = [(HEAD, first)]
        for node in middle:
            parts += [("punct>", self.comma()), ("conj", node)]
        return phrase(
            "S", *parts, ("punct>", self.comma()), ("cc>", self.conjunction(joined.link, last)), ("conj", last)
        )

    def subordination(self, joined: Joined) -> Node:
        over, under = joined.clauses
        mark, *fixed = (leaf("IN", "SCONJ", word) for word in self.link(joined.link, joined.fronted))
        clause = self.clause(under, subjunctive=joined.link in ("before", "after"))
        node = phrase("SBAR", ("mark", mark), *(("fixed<", word) for word in fixed), (HEAD, clause))
        role = (node, LINK_ROLES.get(joined.link, "AM-TMP"))
        return self.clause(over, before=role) if joined.fronted else self.clause(over, after=role)

    def clause(
        self,
        event: Event,
        before: Role | None = None,
        after: Role | None = None,
        gap: Thing | None = None,
        roles: Sequence[Role] = (),
        subjunctive: bool = False,
    ) -> Node:
        """An ``S``: fronted material, subject, verb phrase; ``gap`` replaces GAP in the clause."""
        arguments = [*roles, *filter(None, (before, after))]
        parts: list[Part] = []
        if before is not None:
            parts += [("advcl", before[0]), ("punct", self.comma())]
        adjuncts = self.adjuncts(event, arguments)
        if event.fronted:
            parts += [adjuncts.pop(event.fronted), ("punct", self.comma())]
        surface = event.object if event.passive else event.subject
        if surface is not GAP and surface is not None:
            node = self.thing(surface, subject=True)
            parts.append(("nsubj:pass" if event.passive else "nsubj", node))
            arguments.append((node, "A1" if event.passive or event.verb == "be" else "A0"))
        if "often" in adjuncts:
            parts.append(adjuncts.pop("often"))
        tail = [*adjuncts.values(), *([("advcl", after[0])] if after else [])]
        agrees = gap if surface is GAP else surface
        assert agrees is not None
        verb_phrase, verb = self.predicate(event, agrees, tail, arguments, subjunctive)
        self.frames.append((verb, arguments))
        return Node("S", (*parts, (HEAD, verb_phrase)))

    def adjuncts(self, event: Event, roles: list[Role]) -> dict[str, Part]:
        """Place and adverb, by position: ``place``, ``adverb`` or ``often`` (before the verb)."""
        parts: dict[str, Part] = {}
        if event.place is not None:
            node = self.prepositional(*event.place)
            parts["place"] = ("obl", node)
            roles.append((node, "AM-LOC"))
        if event.adverb:
            kind = ADVERBS[event.adverb][0]
            node = phrase("ADVP", (HEAD, leaf("RB", "ADV", self.word(ADVERBS[event.adverb][1:]))))
            parts["often" if kind == "often" else "adverb"] = ("advmod", node)
            roles.append((node, "AM-MNR" if kind == "manner" else "AM-TMP"))
        return parts

    def thing(self, thing: Thing, subject: bool = False) -> Node:
        """A noun phrase with its modifiers."""
        node = core = self.core(thing, subject)
        if thing.place is not None:
            node = phrase("NP", (HEAD, node), ("nmod", self.prepositional(*thing.place)))
        if thing.clause is not None:
            alone = thing._replace(other=None)
            modifier = self.participial(alone, core) if thing.reduced else self.relative(alone, core)
            node = phrase("NP", (HEAD, node), ("acl" if thing.reduced else "acl:relcl", modifier))
        if thing.other is not None:
            other = self.thing(thing.other, subject)
            node = phrase("NP", (HEAD, node), ("cc>", self.conjunction("and", other)), ("conj", other))
        return node

    def relative(self, thing: Thing, core: Node) -> Node:
        """``who praised the pilot`` or ``that the pilot bought``."""
        event = thing.clause
        assert event is not None
        by_subject = event.subject is GAP
        pronoun = self.relative_pronoun(thing, by_subject)
        role = "A1" if event.verb == "be" or not by_subject else "A0"
        clause = self.clause(event, gap=thing, roles=[(core, role), (pronoun, f"R-{role}")])
        return phrase("SBAR", ("nsubj" if by_subject else "obj", pronoun), (HEAD, clause))

    def participial(self, thing: Thing, core: Node) -> Node:
        """``chased by the dog``."""
        event = thing.clause
        assert event is not None
        verb = leaf("VBN", "VERB", self.participle(event.verb, thing))
        agent = self.agent(event.subject)
        self.frames.append((verb, [(core, "A1"), (agent, "A0")]))
        return phrase("VP", (HEAD, verb), ("obl:agent", agent))

    def name(self, thing: Thing) -> Node:
        noun = NOUNS[thing.noun]
        first, *rest = self.word((noun.en[0], noun.es[0])).split()
        parts = [(HEAD, leaf("NNP", "PROPN", first, f"B-{noun.entity}"))]
        parts += [("flat", leaf("NNP", "PROPN", word, f"I-{noun.entity}")) for word in rest]
        return phrase("NP", *parts)

    def conjunction(self, key: str, following: Node) -> Node:
        return leaf("CC", "CCONJ", self.link(key)[0])

    @staticmethod
    def comma() -> Node:
        return leaf(",", "PUNCT", ",")

    @abstractmethod
    def word(self, pair: Sequence[str]) -> str:
        """This language's word of an (English, Spanish) pair."""

    @abstractmethod
    def link(self, key: str, fronted: bool = False) -> list[str]: ...

    @abstractmethod
    def core(self, thing: Thing, subject: bool) -> Node: ...

    @abstractmethod
    def prepositional(self, preposition: str, thing: Thing) -> Node: ...

    @abstractmethod
    def agent(self, thing: Thing) -> Node: ...

    @abstractmethod
    def participle(self, verb: str, agrees: Thing) -> str: ...

    @abstractmethod
    def relative_pronoun(self, thing: Thing, by_subject: bool) -> Node: ...

    @abstractmethod
    def predicate(
        self, event: Event, agrees: Thing, tail: list[Part], roles: list[Role], subjunctive: bool
    ) -> tuple[Node, Node]:
        """The verb phrase and its verb; also collects semantic roles."""

    @abstractmethod
    def question(self, event: Event, asked: str) -> str:
        """The question for an event's ``subject``, ``object`` or ``place``."""


def describe(meaning: Meaning) -> dict[str, Any]:
    """The language-independent properties of a meaning."""
    event = main(meaning)
    subject = event.object if event.passive else event.subject
    return {
        "tense": "past" if event.past else "present",
        "subject_number": _number(subject),
        "object_number": None if event.passive else _number(event.object),
        "topic": topic(meaning),
        "polarity": polarity(meaning),
        "voice": "passive" if event.passive else "active",
    }


def _number(thing: Thing | None) -> str | None:
    return None if thing is None else "plural" if is_plural(thing) else "singular"


def topic(meaning: Meaning) -> str:
    """The topic of most content words, or ``general``."""
    topics = [TOPIC[atom] for atom in atoms(meaning) if atom in TOPIC]
    return max(topics, key=topics.count) if topics else "general"


def polarity(meaning: Meaning) -> str:
    """The sentiment of the main clause: positive, negative or neutral."""
    event = main(meaning)
    if event.content is not None:
        return polarity(event.content)
    sign = ADJECTIVES[event.attribute].polarity if event.attribute in ADJECTIVES else 0
    sign = sign or (event.verb in LIKED) - (event.verb in LOATHED)
    return ("neutral", "positive", "negative")[sign * (-1 if event.negated else 1)]
