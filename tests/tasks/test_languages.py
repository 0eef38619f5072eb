"""Pairs of task and language: their names, who shares an output head, and how tokenizers cover them."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from headwise import tasks
from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.tasks.kinds.tag import Tag
from headwise.tasks.languages import base, coverage, joined, key, share
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny_tokenizer, toy_tasks


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("corpus.entailment", "corpus.entailment"),
        ("corpus.entailment.es", "corpus.entailment"),
        ("xnli_en", "xnli"),
        ("xnli_es", "xnli"),
        ("stsb", "stsb"),
        ("stsb_es", "stsb"),
        ("ancora_es_pos", "ancora_pos"),
        ("sst2", "sst2"),
    ],
)
def test_the_task_of_a_pair(name, task):
    assert base(tasks.get(name)) == task


def test_names_that_are_a_language_stay():
    (task,) = toy_tasks(1)
    assert base(replace(task, name="es", language="es")) == "es"


def test_keys():
    task = tasks.get("xnli_es")
    assert [key(task, each) for each in ("shared", "task", "language", "pair")] == ["all", "xnli", "es", "xnli_es"]
    with pytest.raises(HeadwiseError, match="language"):
        key(task, "langauge")


def test_label_sets_are_joined_over_languages_so_that_they_share():
    """A language that lacks a label trains the same output head; another task's labels stay its own."""
    one = {lang: [{"words": ["a", "b"], "labels": list(tags)}] * 2 for lang, tags in (("en", "NV"), ("es", "NX"))}
    pairs = [Task(f"pos_{lang}", Tag(), Rows(train=rows, dev=rows), "tag_accuracy", lang) for lang, rows in one.items()]
    other = replace(pairs[1], name="ner_es")
    assert share(pairs) == {}, "different labels do not share"
    made = joined([*pairs, other])
    assert [task.kind.labels for task in made] == [("N", "V", "X"), ("N", "V", "X"), ("N", "X")]
    assert share(made) == {"pos_es": "pos_en"}


def test_pairs_of_one_task_share_an_output_head():
    names = [
        "corpus.pos",
        "corpus.ner",
        "corpus.pos.es",
        "corpus.ner.es",
        "corpus.word_content",
        "corpus.word_content.es",
    ]
    found = share([tasks.get(name) for name in names])
    assert found == {"corpus.pos.es": "corpus.pos", "corpus.ner.es": "corpus.ner"}  # the others' labels differ


class Letters:
    """A tokenizer that knows some letters."""

    unk_token_id = 0

    def __init__(self, known: str):
        self.known = known

    def __call__(self, texts, **options):
        return {"input_ids": [[self.known.find(letter) + 1 for letter in text if letter != " "] for text in texts]}


def test_coverage_counts_pieces_and_unknown_ones():
    (task,) = toy_tasks(1, rows=10)
    words = [word for row in task.rows("train") for word in row["text"].split()]
    whole = coverage(task, tiny_tokenizer(sorted(set(words))))
    assert (whole.pieces_per_word, whole.unknown_rate, whole.words) == (1.0, 0.0, len(words))
    assert not whole.poor and coverage(task, tiny_tokenizer()).unknown_rate == 1.0
    letters = coverage(task, Letters("wm0123456789"))
    assert letters.pieces_per_word == sum(map(len, words)) / len(words)
    assert letters.unknown_rate == sum(word[-1] in "ab" for word in words) / sum(map(len, words))


def test_bad_coverage_is_warned_of():
    task = tasks.get("corpus.topic.es")
    with pytest.warns(HeadwiseWarning, match=r"corpus.topic.es \(es\): 5.* pieces a word, 99.5% unknown"):
        coverage(task, Letters("xyz"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        coverage(task, tiny_tokenizer())


def test_languages_without_spaces_are_counted_by_letters():
    (task,) = toy_tasks(1, rows=4)
    found = coverage(replace(task, language="zh", _read={}), Letters("wmab0123456789"))
    assert found.pieces_per_word == 1.0


class Spaced:
    """A tokenizer such as GPT-2's: a word with the space before it is one piece, without it is spelled."""

    def __call__(self, texts, **options):
        return {"input_ids": [[1] * (len(text.split(" ")[0]) + text.count(" ")) for text in texts]}


def test_words_are_counted_as_the_model_reads_them():
    (task,) = toy_tasks(1, rows=10)
    texts = [row["text"] for row in task.rows("train")]
    pieces = sum(len(text.split()[0]) + len(text.split()) - 1 for text in texts)
    assert coverage(task, Spaced()).pieces_per_word == pieces / sum(len(text.split()) for text in texts)
