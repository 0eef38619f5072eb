"""Spanish phrases: gender and number agreement, personal ``a``, clitics, contractions, ser and estar."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.tasks.corpus.grammar import Grammar, Part, Role
from headwise.tasks.corpus.lexicon import ADJECTIVES, COMPARATIVES, LINKS, NOUNS, PREPOSITIONS, VERBS
from headwise.tasks.corpus.meaning import GAP, Event, Thing, is_feminine, is_plural
from headwise.tasks.corpus.morphology import spanish_adjective, spanish_subjunctive
from headwise.tasks.corpus.sentence import HEAD, Node, first_leaf, leaf, phrase, spell, words_of

# masculine, feminine, masculine plural, feminine plural
DETERMINERS = {
    "the": ("el", "la", "los", "las"),
    "a": ("un", "una", "unos", "unas"),
    "this": ("este", "esta", "estos", "estas"),
    "some": ("algún", "alguna", "algunos", "algunas"),
    "every": ("cada", "cada", "cada", "cada"),
    "no": ("ninguno", "ninguna", "ninguno", "ninguna"),
    "all": ("todo", "toda", "todos", "todas"),
    "many": ("mucho", "mucha", "muchos", "muchas"),
    "two": ("dos",) * 4,
    "three": ("tres",) * 4,
}
SUBJECTS = ("él", "ella", "ellos", "ellas")
CLITICS = ("lo", "la", "los", "las")
SER = {(True, False): "fue", (True, True): "fueron", (False, False): "es", (False, True): "son"}  # (past, plural)
ERA = SER | {(True, False): "era", (True, True): "eran"}  # lasting properties, where passives have fue
ESTAR = {(True, False): "estaba", (True, True): "estaban", (False, False): "está", (False, True): "están"}
CONTRACTED = {"a": "al", "de": "del"}
ANIMATE = ("person", "animal", "bird", "PER")


def agreement(thing: Thing) -> int:
    """The index of the agreeing form among the four forms."""
    return 2 * is_plural(thing) + is_feminine(thing)


def is_plural_verb(thing: Thing) -> bool:
    return is_plural(thing) and thing.det != "no"


def is_clitic(thing: Thing | None) -> bool:
    return thing is not None and thing.det == "pronoun"


class Spanish(Grammar):
    language = "es"

    def word(self, pair: Sequence[str]) -> str:
        return pair[1]

    def link(self, key: str, fronted: bool = False) -> list[str]:
        return ["como"] if fronted and key == "because" else LINKS[key][1].split()

    def conjunction(self, key: str, following: Node) -> Node:
        """``y`` is ``e`` before the sound i."""
        before_i = key == "and" and first_leaf(following).word.lower().startswith(("i", "hi"))
        return leaf("CC", "CCONJ", "e" if before_i else self.link(key)[0])

    def core(self, thing: Thing, subject: bool) -> Node:
        if thing.det == "pronoun":
            return phrase("NP", (HEAD, leaf("PRP", "PRON", SUBJECTS[agreement(thing)])))
        noun = NOUNS[thing.noun]
        if noun.entity:
            return self.name(thing)
        form = 2 * thing.plural + noun.feminine
        head = leaf("NNS" if thing.plural else "NN", "NOUN", noun.es[thing.plural])
        adjectives = [("amod", leaf("JJ", "ADJ", ADJECTIVES[key].es[form])) for key in thing.adjectives]
        node = phrase("NP", *self.determiner(thing, form), (HEAD, head), *adjectives)
        if thing.owner is None:
            return node
        return phrase("NP", (HEAD, node), ("nmod", self.marked(["de"], self.thing(thing.owner))))

    @staticmethod
    def determiner(thing: Thing, form: int) -> list[Part]:
        if thing.det in ("all", "not all"):
            no = [("advmod>", leaf("RB", "ADV", "no"))] if thing.det == "not all" else []
            every, the = leaf("PDT", "DET", DETERMINERS["all"][form]), leaf("DT", "DET", DETERMINERS["the"][form])
            return [*no, ("det", every), ("det", the)]
        word = DETERMINERS[thing.det][form]
        if thing.det == "no":  # ninguna de las enfermeras
            of, the = leaf("IN", "ADP", "de"), leaf("DT", "DET", DETERMINERS["the"][form])
            return [("det", leaf("DT", "DET", word)), ("case", of), ("det", the)]
        if thing.det in ("two", "three"):
            return [("nummod", leaf("CD", "NUM", word))]
        return [("det", leaf("DT", "DET", word))]

    def prepositional(self, preposition: str, thing: Thing) -> Node:
        return self.marked(PREPOSITIONS[preposition][1].split(), self.thing(thing))

    @staticmethod
    def marked(prepositions: list[str], node: Node) -> Node:
        """A noun phrase after a preposition: ``a`` and ``de`` contract with the article ``el``."""
        first, *rest = prepositions
        deepest = node
        while deepest.parts[0][1].parts:
            deepest = deepest.parts[0][1]
        last = prepositions[-1]
        if last in CONTRACTED and deepest.parts[0][1].word == "el":
            deepest.parts = deepest.parts[1:]
            first, rest = (first, [*rest[:-1], CONTRACTED[last]]) if rest else (CONTRACTED[last], rest)
        fixed = [("fixed<", leaf("IN", "ADP", word)) for word in rest]
        case = leaf("IN", "ADV" if rest else "ADP", first)
        return phrase("PP", ("case", case), *fixed, (HEAD, node))

    def agent(self, thing: Thing) -> Node:
        return self.marked(["por"], self.thing(thing))

    def participle(self, verb: str, agrees: Thing) -> str:
        return spanish_adjective(VERBS[verb].es[4])[agreement(agrees)]

    def relative_pronoun(self, thing: Thing, by_subject: bool) -> Node:
        if by_subject or NOUNS[thing.noun].kind not in ("person", "PER"):
            return phrase("WHNP", (HEAD, leaf("WDT", "PRON", "que")))
        who = phrase("WHNP", (HEAD, leaf("WP", "PRON", "quienes" if is_plural(thing) else "quien")))
        return phrase("PP", ("case", leaf("IN", "ADP", "a")), (HEAD, who))

    def predicate(
        self, event: Event, agrees: Thing, tail: list[Part], roles: list[Role], subjunctive: bool
    ) -> tuple[Node, Node]:
        group: list[Part] = []
        if event.negated:
            group.append(("advmod", leaf("RB", "ADV", "no")))
            roles.append((group[0][1], "AM-NEG"))
        group += self.clitics(event, roles)
        if event.verb == "be":
            node = self.attribute(event, agrees)
            state = event.attribute in ADJECTIVES and ADJECTIVES[event.attribute].state
            copula = self.auxiliary(event, agrees, ESTAR if state else ERA)
            roles.append((node, "A2"))
            return phrase("VP", *group, ("cop", copula), (HEAD, node), *tail), copula
        complements = self.complements(event, roles)
        if event.passive:
            verb = leaf("VBN", "VERB", self.participle(event.verb, agrees))
            body = phrase("VP", (HEAD, verb), *complements, *tail)
            return phrase("VP", *group, ("aux:pass", self.auxiliary(event, agrees, SER)), (HEAD, body)), verb
        verb = self.verb(event, is_plural_verb(agrees), subjunctive)
        return phrase("VP", *group, (HEAD, verb), *complements, *tail), verb

    @staticmethod
    def auxiliary(event: Event, agrees: Thing, forms: dict[tuple[bool, bool], str]) -> Node:
        plural = is_plural_verb(agrees)
        tag = "VBD" if event.past else "VBP" if plural else "VBZ"
        return leaf(tag, "AUX", forms[event.past, plural])

    @staticmethod
    def verb(event: Event, plural: bool, subjunctive: bool) -> Node:
        forms = VERBS[event.verb].es
        if subjunctive:
            return leaf("VBD", "VERB", spanish_subjunctive(forms[3], plural))
        return leaf("VBD" if event.past else "VBP" if plural else "VBZ", "VERB", forms[2 * event.past + plural])

    @staticmethod
    def clitics(event: Event, roles: list[Role]) -> list[Part]:
        """``le`` doubles a recipient; ``lo`` and the like are pronominal objects."""
        parts: list[Part] = []
        if event.recipient is not None and not event.passive:
            parts.append(("expl", leaf("PRP", "PRON", "les" if is_plural(event.recipient) else "le")))
        if event.object is not None and is_clitic(event.object) and not event.passive:
            parts.append(("obj", leaf("PRP", "PRON", CLITICS[agreement(event.object)])))
            roles.append((parts[-1][1], "A1"))
        return parts

    def attribute(self, event: Event, agrees: Thing) -> Node:
        form = agreement(agrees)
        if event.than is None:
            return phrase("ADJP", (HEAD, leaf("JJ", "ADJ", ADJECTIVES[event.attribute].es[form])))
        *more, adjective = COMPARATIVES[event.attribute].es[form].split()
        parts = [("advmod", leaf("RB", "ADV", word)) for word in more]
        than = phrase("PP", ("case", leaf("IN", "SCONJ", "que")), (HEAD, self.thing(event.than)))
        return phrase("ADJP", *parts, (HEAD, leaf("JJ" if more else "JJR", "ADJ", adjective)), ("obl", than))

    def complements(self, event: Event, roles: list[Role]) -> list[Part]:
        parts: list[tuple[Part, str]] = []
        if event.object is not None and event.object is not GAP and not event.passive and not is_clitic(event.object):
            parts.append((("obj", self.object(event.object)), "A1"))
        if event.recipient is not None:
            recipient = (("iobj", self.marked(["a"], self.thing(event.recipient))), "A2")
            parts.insert(0 if event.shifted else len(parts), recipient)
        if event.content is not None:
            mark = ("mark", leaf("IN", "SCONJ", "que"))
            parts.append((("ccomp", phrase("SBAR", mark, (HEAD, self.clause(event.content)))), "A1"))
        if event.passive:
            parts.append((("obl:agent", self.agent(event.subject)), "A0"))
        roles += [(node, role) for (_, node), role in parts]
        return [part for part, _ in parts]

    def object(self, thing: Thing) -> Node:
        """A direct object; living beings take the personal ``a``."""
        node = self.thing(thing)
        return self.marked(["a"], node) if NOUNS[thing.noun].kind in ANIMATE else node

    def question(self, event: Event, asked: str) -> str:
        """``¿Quién compró la lámpara en Lima?``, ``¿Qué compró Laura en Lima?``, ``¿Dónde compró Laura la lámpara?``"""
        rest = [
            *(words_of(self.object(event.object)) if event.object and asked != "object" else []),
            *(words_of(self.prepositional(*event.place)) if event.place and asked != "place" else []),
        ]
        plural = is_plural(event.subject) and asked != "subject"
        verb = self.verb(event, plural, subjunctive=False).word
        if asked == "subject":
            return spell(["¿", "Quién", verb, *rest, "?"])[0]
        person = event.object is not None and NOUNS[event.object.noun].kind in ANIMATE
        wh = ["Dónde"] if asked == "place" else ["A", "quién"] if person else ["Qué"]
        return spell(["¿", *wh, verb, *words_of(self.thing(event.subject, subject=True)), *rest, "?"])[0]
