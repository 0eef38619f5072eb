"""English phrases."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.tasks.corpus.grammar import Grammar, Part, Role
from headwise.tasks.corpus.lexicon import ADJECTIVES, COMPARATIVES, LINKS, NOUNS, VERBS
from headwise.tasks.corpus.meaning import GAP, Event, Thing, is_plural
from headwise.tasks.corpus.sentence import HEAD, Node, leaf, phrase, spell, words_of

BE = {(True, False): "was", (True, True): "were", (False, False): "is", (False, True): "are"}  # (past, plural)
DO = {(True, False): "did", (True, True): "did", (False, False): "does", (False, True): "do"}
PRONOUNS = {"they": "them", "it": "it", "he": "him", "she": "her"}


class English(Grammar):
    language = "en"

    def word(self, pair: Sequence[str]) -> str:
        return pair[0]

    def link(self, key: str, fronted: bool = False) -> list[str]:
        return LINKS[key][0].split()

    def core(self, thing: Thing, subject: bool) -> Node:
        if thing.det == "pronoun":
            pronoun = self.pronoun(thing)
            return phrase("NP", (HEAD, leaf("PRP", "PRON", pronoun if subject else PRONOUNS[pronoun])))
        noun = NOUNS[thing.noun]
        if noun.entity:
            return self.name(thing)
        head = leaf("NNS" if thing.plural else "NN", "NOUN", noun.en[thing.plural])
        adjectives: list[Part] = [("amod", leaf("JJ", "ADJ", ADJECTIVES[key].en)) for key in thing.adjectives]
        following = adjectives[0][1].word if adjectives else head.word
        return phrase("NP", *self.determiner(thing, following), *adjectives, (HEAD, head))

    def determiner(self, thing: Thing, following: str) -> list[Part]:
        if thing.owner is not None:
            owner = self.thing(thing.owner)
            mark = "'" if is_plural(thing.owner) and words_of(owner)[-1].endswith("s") else "'s"
            return [("nmod:poss", phrase("NP", (HEAD, owner), ("case", leaf("POS", "PART", mark))))]
        if thing.det in ("all", "not all"):
            no = [("advmod>", leaf("RB", "PART", "not"))] if thing.det == "not all" else []
            return [*no, ("det:predet", leaf("PDT", "DET", "all")), ("det", leaf("DT", "DET", "the"))]
        if thing.det in ("two", "three"):
            return [("nummod", leaf("CD", "NUM", thing.det))]
        if thing.det == "many":
            return [("amod", leaf("JJ", "ADJ", "many"))]
        word = {"a": "an" if following[0] in "aeiou" else "a", "this": "these" if thing.plural else "this"}
        return [("det", leaf("DT", "DET", word.get(thing.det, thing.det)))]

    @staticmethod
    def pronoun(thing: Thing) -> str:
        noun = NOUNS[thing.noun]
        if is_plural(thing):
            return "they"
        if noun.kind not in ("person", "PER"):
            return "it"
        return "she" if noun.feminine else "he"

    def prepositional(self, preposition: str, thing: Thing) -> Node:
        return phrase("PP", ("case", leaf("IN", "ADP", preposition)), (HEAD, self.thing(thing)))

    def agent(self, thing: Thing) -> Node:
        return self.prepositional("by", thing)

    def participle(self, verb: str, agrees: Thing) -> str:
        return VERBS[verb].en[3]

    def relative_pronoun(self, thing: Thing, by_subject: bool) -> Node:
        person = by_subject and NOUNS[thing.noun].kind in ("person", "PER")
        return phrase("WHNP", (HEAD, leaf("WP", "PRON", "who") if person else leaf("WDT", "PRON", "that")))

    def predicate(
        self, event: Event, agrees: Thing, tail: list[Part], roles: list[Role], subjunctive: bool
    ) -> tuple[Node, Node]:
        plural = is_plural(agrees)
        group: list[Part] = []
        if event.verb == "be":
            group.append(("cop", self.finite(event, BE[event.past, plural], plural)))
        elif event.passive:
            group.append(("aux:pass", self.finite(event, BE[event.past, plural], plural)))
        elif event.negated:
            group.append(("aux", self.finite(event, DO[event.past, plural], plural)))
        if event.negated:
            group.append(("advmod", leaf("RB", "PART", "not")))
            roles.append((group[-1][1], "AM-NEG"))
        if event.verb == "be":
            node = self.attribute(event)
            roles.append((node, "A2"))
            return phrase("VP", *group, (HEAD, node), *tail), group[0][1]
        verb = self.verb(event, plural)
        body = phrase("VP", (HEAD, verb), *self.complements(event, roles), *tail)
        return (phrase("VP", *group, (HEAD, body)) if group else body), verb

    @staticmethod
    def finite(event: Event, word: str, plural: bool) -> Node:
        return leaf("VBD" if event.past else "VBP" if plural else "VBZ", "AUX", word)

    @staticmethod
    def verb(event: Event, plural: bool) -> Node:
        base, third, past, participle = VERBS[event.verb].en
        if event.passive:
            return leaf("VBN", "VERB", participle)
        if event.negated:
            return leaf("VB", "VERB", base)
        if event.past:
            return leaf("VBD", "VERB", past)
        return leaf("VBP", "VERB", base) if plural else leaf("VBZ", "VERB", third)

    def attribute(self, event: Event) -> Node:
        if event.than is None:
            return phrase("ADJP", (HEAD, leaf("JJ", "ADJ", ADJECTIVES[event.attribute].en)))
        than = phrase("PP", ("case", leaf("IN", "ADP", "than")), (HEAD, self.thing(event.than)))
        return phrase("ADJP", (HEAD, leaf("JJR", "ADJ", COMPARATIVES[event.attribute].en)), ("obl", than))

    def complements(self, event: Event, roles: list[Role]) -> list[Part]:
        parts: list[tuple[Part, str]] = []
        if event.object is not None and event.object is not GAP and not event.passive:
            parts.append((("obj", self.thing(event.object)), "A1"))
        if event.recipient is not None and event.shifted:
            parts.insert(0, (("iobj", self.thing(event.recipient)), "A2"))
        elif event.recipient is not None:
            parts.append((("obl", self.prepositional("to", event.recipient)), "A2"))
        if event.content is not None:
            mark = ("mark", leaf("IN", "SCONJ", "that"))
            parts.append((("ccomp", phrase("SBAR", mark, (HEAD, self.clause(event.content)))), "A1"))
        if event.passive:
            parts.append((("obl:agent", self.agent(event.subject)), "A0"))
        roles += [(node, role) for (_, node), role in parts]
        return [part for part, _ in parts]

    def question(self, event: Event, asked: str) -> str:
        """``Who bought the lamp in Lima?``, ``What did Laura buy in Lima?``, ``Where did Laura buy the lamp?``"""
        base, third, past, _ = VERBS[event.verb].en
        plural = is_plural(event.subject)
        rest = [
            *(words_of(self.thing(event.object)) if event.object and asked != "object" else []),
            *(words_of(self.prepositional(*event.place)) if event.place and asked != "place" else []),
        ]
        if asked == "subject":
            return spell(["Who", past if event.past else third, *rest, "?"])[0]
        person = event.object is not None and NOUNS[event.object.noun].kind in ("person", "PER")
        wh = "Where" if asked == "place" else "Whom" if person else "What"
        subject = words_of(self.thing(event.subject, subject=True))
        return spell([wh, DO[event.past, plural], *subject, base, *rest, "?"])[0]
