"""The embedded corpus: a generative grammar of English and Spanish with gold annotation (no torch, no files).

A meaning (``Event`` or ``Joined``) is sampled and rendered in either language; every task is derived from meanings. The
split is a property of the meaning, so train, dev and test share no sentence in any task or language, and test sentences
contain words and constructions that do not occur in training.
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
