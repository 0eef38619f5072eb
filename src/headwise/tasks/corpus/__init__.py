"""The embedded corpus: a grammar and lexicon of our own, English and Spanish, with gold annotation (no torch, no file).

A meaning (``Event`` or ``Joined``) is drawn at random and rendered in either language; every task is derived from
meanings. The split is a property of the meaning, so train, dev and test share no sentence in any task or language,
and test sentences have words and constructions that training never shows.
"""

from headwise.tasks.corpus.meaning import Event, Joined, Meaning, Place, Thing, split_of
from headwise.tasks.corpus.sentence import Sentence
from headwise.tasks.corpus.source import NAMES, Corpus, render, sentences, tasks

__all__ = [
    "NAMES",
    "Corpus",
    "Event",
    "Joined",
    "Meaning",
    "Place",
    "Sentence",
    "Thing",
    "render",
    "sentences",
    "split_of",
    "tasks",
]
