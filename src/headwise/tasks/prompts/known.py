"""Templates for the tasks of the catalog, three phrasings each where there are three ways to ask (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter

from headwise.errors import HeadwiseError
from headwise.tasks.task import Row


@dataclass(frozen=True)
class Template:
    """How a task's rows are written.

    Example:
        >>> template = Template("Review: {text}\\nSentiment:", {"neg": "negative", "pos": "positive"})
        >>> template.prompt({"text": "A warm, clever film."})
        'Review: A warm, clever film.\\nSentiment:'
    """

    text: str
    """A row as a prompt; ``{text}``, ``{text_b}``, ``{question}`` and ``{context}`` are its fields."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What the model is to say for each label; by default the label itself."""
    between: str = "\n\n"
    """What stands between examples."""

    def prompt(self, row: Row, shots: Sequence[tuple[Row, str]] = (), delimiter: str = " ") -> str:
        """A row's prompt, after examples with their answers."""
        shown = [f"{self._fill(shot)}{delimiter}{answer}{self.between}" for shot, answer in shots]
        return "".join([*shown, self._fill(row)])

    def _fill(self, row: Row) -> str:
        if missing := [name for name in self.fields if row.get(name) is None]:
            raise HeadwiseError(f"the template needs {missing[0]!r}", f"a field of the row: {', '.join(row)}")
        return self.text.format(**{name: str(row[name]).strip() for name in self.fields})

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a row that are filled in, in their order."""
        return tuple(dict.fromkeys(name for _, name, _, _ in Formatter().parse(self.text) if name))

    def word(self, label: str) -> str:
        return self.words.get(label, label)

    def neutral(self, text: str) -> dict[str, str]:
        """A row without content."""
        return dict.fromkeys(self.fields, text)


POLARITY = {"negative": "negative", "positive": "positive"}
TOPICS = {"World": "world", "Sports": "sports", "Business": "business", "Sci/Tech": "technology"}
TRUTH = {"entailment": "true", "entails": "true", "neutral": "neither", "contradiction": "false"}
VERDAD = {"entailment": "verdadero", "neutral": "ninguno", "contradiction": "falso"}
YES = {
    **dict.fromkeys(("equivalent", "duplicate", "paraphrase", "acceptable", "same", "answer", "entailment"), "yes"),
    **dict.fromkeys(
        ("not_equivalent", "not_duplicate", "not_paraphrase", "unacceptable", "different", "not_answer"), "no"
    ),
    "not_entailment": "no",
}
SI = {label: {"yes": "sí", "no": "no"}[word] for label, word in YES.items()}
KINDS_OF_ANSWERS = {
    "DESC": "a description",
    "ENTY": "a thing",
    "ABBR": "an abbreviation",
    "HUM": "a person",
    "LOC": "a place",
    "NUM": "a number",
}


def ways(words: dict[str, str], *texts: str) -> tuple[Template, ...]:
    return tuple(Template(text, words) for text in texts)


# The first pattern that fits a task's name has its templates.
TEMPLATES: tuple[tuple[str, tuple[Template, ...]], ...] = (
    (
        "sst2|sst2_sentences|mr|cr|imdb|corpus.sentiment",
        ways(
            POLARITY,
            "Review: {text}\nSentiment:",
            "{text}\nQuestion: Is the author's opinion negative or positive?\nAnswer:",
            'The review "{text}" is',
        ),
    ),
    (
        "agnews",
        ways(
            TOPICS,
            "News: {text}\nTopic:",
            "{text}\nQuestion: Is this about world, sports, business or technology?\nAnswer:",
            'The news item "{text}" belongs in the section',
        ),
    ),
    ("agpair", ways(YES, "First: {text}\nSecond: {text_b}\nQuestion: Are both about the same topic?\nAnswer:")),
    (
        "rte",
        ways(
            {"entailment": "true", "not_entailment": "false"},
            "{text}\nQuestion: {text_b} True or false?\nAnswer:",
            "Text: {text}\nClaim: {text_b}\nThe claim is",
            'If "{text}", is it true or false that "{text_b}"?\nAnswer:',
        ),
    ),
    (
        "mnli|mnli_mm|snli|sick|scitail|xnli_en|corpus.entailment",
        ways(
            TRUTH,
            "{text}\nQuestion: {text_b} True, false or neither?\nAnswer:",
            "Text: {text}\nClaim: {text_b}\nThe claim is",
            'If "{text}", is "{text_b}" true, false or neither?\nAnswer:',
        ),
    ),
    (
        "xnli_es|esxnli_es|corpus.entailment.es",
        ways(
            VERDAD,
            "{text}\nPregunta: {text_b} ¿Verdadero, falso o ninguno?\nRespuesta:",
            "Texto: {text}\nAfirmación: {text_b}\nLa afirmación es",
            'Si "{text}", ¿es "{text_b}" verdadero, falso o ninguno?\nRespuesta:',
        ),
    ),
    (
        "mrpc|pawsx_en|corpus.paraphrase",
        ways(
            YES,
            "Sentence 1: {text}\nSentence 2: {text_b}\nQuestion: Do both sentences mean the same?\nAnswer:",
            "{text}\n{text_b}\nSame meaning, yes or no?",
            'Does "{text}" say the same as "{text_b}"?\nAnswer:',
        ),
    ),
    (
        "pawsx_es|corpus.paraphrase.es",
        ways(
            SI,
            "Frase 1: {text}\nFrase 2: {text_b}\nPregunta: ¿Significan lo mismo?\nRespuesta:",
            "{text}\n{text_b}\n¿El mismo significado, sí o no?",
            '¿Dice "{text}" lo mismo que "{text_b}"?\nRespuesta:',
        ),
    ),
    (
        "qqp",
        ways(YES, "Question 1: {text}\nQuestion 2: {text_b}\nDo both questions ask the same?\nAnswer:"),
    ),
    (
        "qnli|wikiqa",
        ways(YES, "Question: {text}\nText: {text_b}\nDoes the text answer the question?\nAnswer:"),
    ),
    (
        "cola|corpus.acceptability",
        ways(
            YES,
            "Sentence: {text}\nQuestion: Is this sentence grammatical?\nAnswer:",
            "{text}\nGrammatical, yes or no?",
            'Is "{text}" good English?\nAnswer:',
        ),
    ),
    ("subj", ways({}, "{text}\nQuestion: Is this sentence subjective or objective?\nAnswer:")),
    ("trec", ways(KINDS_OF_ANSWERS, "Question: {text}\nThe answer is")),
    (
        "stsb|sick_relatedness",
        ways({}, "Sentence 1: {text}\nSentence 2: {text_b}\nSimilarity on a scale up to 5:"),
    ),
    ("stsb_es", ways({}, "Frase 1: {text}\nFrase 2: {text_b}\nSimilitud en una escala hasta 5:")),
)
ANSWER = {
    "en": (
        "Text: {context}\nQuestion: {question}\nAnswer:",
        "{context}\n\nQ: {question}\nA:",
        "Read this: {context}\nNow answer briefly. {question}\nAnswer:",
    ),
    "es": (
        "Texto: {context}\nPregunta: {question}\nRespuesta:",
        "{context}\n\nP: {question}\nR:",
        "Lea esto: {context}\nAhora responda brevemente. {question}\nRespuesta:",
    ),
}
ONE, TWO = "Text: {text}\nLabel:", "Text 1: {text}\nText 2: {text_b}\nLabel:"


def known_template(name: str, language: str, pair: bool, answers: bool, phrasing: int = 1) -> Template:
    """The template of a task by its name; a plain one for tasks that are not of the catalog.

    Args:
        name: the task's name.
        language: of its texts.
        pair: whether rows have two texts.
        answers: whether rows are questions about a context.
        phrasing: which of the ways to ask, from 1.
    """
    if answers:
        choices = ways({}, *ANSWER.get(language, ANSWER["en"]))
    else:
        plain = ways({}, TWO if pair else ONE)
        fitting = (templates for names, templates in TEMPLATES if name in names.split("|"))
        choices = next(fitting, plain)
    if not 1 <= phrasing <= len(choices):
        raise HeadwiseError(f"phrasing {phrasing} of {name!r}", f"1 to {len(choices)}", f"{name}@prompt")
    return choices[phrasing - 1]
