"""Metrics against scikit-learn and scipy, and against the standard tools on cases small enough to count by hand."""

from __future__ import annotations

import math
import string
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from headwise.errors import HeadwiseError
from headwise.tasks.catalog.sentences import catalog
from headwise.tasks.kinds.bracketing import Tree
from headwise.tasks.lookup import get
from headwise.tasks.metrics import ARTICLES, bio_spans, metrics, plain_words

few = settings(max_examples=60, deadline=None)


def pairs(values, **sizes):
    return st.lists(st.tuples(values, values), **({"min_size": 2, "max_size": 30} | sizes)).map(
        lambda rows: tuple(zip(*rows))
    )


# -- classes and grades


@given(pairs(st.integers(0, 1)))
@few
def test_f1_is_scikit_learns(pair):
    assert metrics["f1"](*pair) == pytest.approx(sk.f1_score(pair[1], pair[0], zero_division=0))


@given(pairs(st.integers(0, 3)))
@few
def test_classes_are_scored_as_scikit_learn_does(pair):
    predicted, gold = pair
    assert metrics["accuracy"](predicted, gold) == pytest.approx(sk.accuracy_score(gold, predicted))
    assert metrics["macro_f1"](predicted, gold) == pytest.approx(
        sk.f1_score(gold, predicted, average="macro", zero_division=0)
    )
    expected = sk.matthews_corrcoef(gold, predicted) if len({*gold, *predicted}) > 1 else 0  # warns of one class
    assert metrics["mcc"](predicted, gold) == pytest.approx(expected, abs=1e-9)


@given(pairs(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=3))
@few
def test_grades_correlate_as_in_scipy(pair):
    predicted, gold = pair
    if len(set(predicted)) == 1 or len(set(gold)) == 1:
        assert metrics["pearson"](*pair) == metrics["spearman"](*pair) == 0
    else:
        assert metrics["pearson"](*pair) == pytest.approx(stats.pearsonr(*pair)[0], abs=1e-6)
        assert metrics["spearman"](*pair) == pytest.approx(stats.spearmanr(*pair)[0], abs=1e-6)


@pytest.mark.parametrize("level", [0.1, 2.5, 1e6, -3.3])
def test_a_model_that_always_says_the_same_correlates_with_nothing(level):
    assert metrics["pearson"]([level] * 500, np.linspace(0, 5, 500)) == 0


def test_what_is_no_class_or_grade_is_refused():
    for name, predicted in [
        ("accuracy", ["a"]),
        ("accuracy", [-1]),
        ("f1", [2]),
        ("pearson", [math.nan]),
        ("mcc", [0.5]),
    ]:
        with pytest.raises(HeadwiseError):
            metrics[name](predicted, [1])
    with pytest.raises(HeadwiseError, match="2 predictions for 1"):
        metrics["accuracy"]([1, 0], [1])
    with pytest.raises(HeadwiseError, match="no examples"):
        metrics["accuracy"]([], [])
    with pytest.raises(HeadwiseError, match="unknown metric"):
        metrics["acuracy"]


# -- every metric

EXAMPLES = {
    "accuracy": ([1, 0, 2, 1], [1, 1, 2, 0]),
    "f1": ([1, 0, 1, 1], [1, 1, 0, 1]),
    "macro_f1": ([1, 0, 2, 1], [1, 1, 2, 0]),
    "mcc": ([1, 0, 2, 1], [1, 1, 2, 0]),
    "pearson": ([0.1, 2.0, 3.0, 1.0], [1.0, 2.0, 5.0, 0.0]),
    "spearman": ([0.1, 2.0, 3.0, 1.0], [1.0, 2.0, 5.0, 0.0]),
    "tag_accuracy": ([["N", "V"], ["N"], [], ["V"]], [["N", "N"], ["N"], [], ["D"]]),
    "span_f1": ([["B-A", "I-A"], ["O"], [], ["B-B"]], [["B-A", "O"], ["O"], [], ["B-B"]]),
    "las": ([[(2, "x"), (0, "r")], [(0, "r")]], [[(2, "y"), (0, "r")], [(0, "r")]]),
    "bracket_f1": ([[(0, 2, "S")], []], [[(0, 2, "S"), (0, 1, "NP")], [(0, 1, "NP")]]),
    "srl_f1": ([[(0, 1, 2, "A0")], []], [[(0, 1, 2, "A0")], [(1, 0, 1, "A1")]]),
    "srl_f1_given": ([[(0, 1, 2, "A0")], [(5, 0, 1, "A0")]], [[(0, 1, 2, "A0")], [(1, 0, 1, "A1")]]),
    "em": (["the dog", "cat"], [["dog"], ["cats", "a dog"]]),
    "answer_f1": (["the dog", "big cat"], [["dog"], ["cat", "a dog"]]),
}
EXAMPLES |= {name: EXAMPLES["las"] for name in ("uas", "las_punct", "uas_punct")}
EXAMPLES |= {f"{name}_{code}": EXAMPLES[name] for name in ("em", "answer_f1") for code in ARTICLES}


def test_the_metrics_are_known_by_name():
    assert set(metrics) >= set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_counts_add_up_and_values_are_vectorised(name):
    metric, (predicted, gold) = metrics[name], EXAMPLES[name]
    counts = metric.counts(predicted, gold)
    assert counts.dtype == float
    assert len(counts) == len(gold)
    weights = np.random.default_rng(0).multinomial(len(gold), np.full(len(gold), 1 / len(gold)), size=(3, 5))
    values = metric.value(weights @ counts)  # fifteen bootstrap samples at once
    assert values.shape == (3, 5)
    for chosen, value in zip(weights.reshape(15, -1), values.ravel()):
        assert value == pytest.approx(metric.value(np.repeat(counts, chosen, 0).sum(0)))
        assert -1 <= value <= 1
    assert metric.value(counts.sum(0)) == metric(predicted, gold)
    if name not in ("spearman", "mcc", "macro_f1"):  # these look at all examples together
        apart = [metric.counts(predicted[i : i + 1], gold[i : i + 1]) for i in range(len(gold))]
        np.testing.assert_allclose(np.concatenate(apart), counts)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_gold_is_worth_one(name):
    gold = EXAMPLES[name][1]
    right = [answers[0] for answers in gold] if name.startswith(("em", "answer")) else gold
    assert metrics[name](right, gold) == pytest.approx(1)


def test_metrics_need_no_torch():
    code = "import sys, headwise.tasks.metrics, headwise.tasks.kinds.bracketing; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- words and spans: conlleval


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("B-A I-A O B-A", [(0, 2, "A"), (3, 4, "A")]),
        ("I-A I-A O", [(0, 2, "A")]),  # a chunk that nobody began begins by itself
        ("B-A I-B", [(0, 1, "A"), (1, 2, "B")]),  # another type ends it and begins its own
        ("B-A B-A", [(0, 1, "A"), (1, 2, "A")]),
        ("O I-A B-A I-A", [(1, 2, "A"), (2, 4, "A")]),
        ("S-A B-B E-B O E-A", [(0, 1, "A"), (1, 3, "B"), (4, 5, "A")]),
        ("B-creative-work I-creative-work", [(0, 2, "creative-work")]),
        ("O O", []),
    ],
)
def test_broken_sequences_are_read_as_conlleval_reads_them(tags, spans):
    assert bio_spans(tags.split()) == spans


def test_span_f1_counts_as_conlleval():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG", "I-ORG", "O"], ["B-PER", "O", "O"]]
    found = [["B-PER", "I-PER", "O", "I-LOC"], ["O", "B-ORG", "O", "O"], ["B-LOC", "O", "B-PER"]]
    # conlleval: 4 phrases, 5 found, 2 correct (PER 0-2, LOC 3): precision 40.00, recall 50.00, FB1 44.44
    assert metrics["span_f1"](found, gold) == pytest.approx(0.4444, abs=1e-4)
    assert metrics["span_f1"](
        [bio_spans(tags) for tags in found], [set(bio_spans(tags)) for tags in gold]
    ) == pytest.approx(0.4444, abs=1e-4)


def test_tags_of_another_length_are_refused():
    with pytest.raises(HeadwiseError, match="example 1"):
        metrics["tag_accuracy"]([["N"], ["N"]], [["N"], ["N", "V"]])


# -- trees: CoNLL's eval.pl and EVALB


def test_attachment_scores_with_and_without_punctuation():
    gold = [[(2, "det"), (3, "nsubj"), (0, "root"), (3, "punct")], [(0, "root"), (1, "obj"), (1, "punct:final")]]
    found = [[(2, "det"), (3, "obj"), (0, "root"), (2, "punct")], [(0, "root"), (1, "obj"), (1, "punct")]]
    # all 7 words: heads right 6, with label 4; without the 2 of punctuation: heads 5 of 5, with label 4
    assert metrics["uas_punct"](found, gold) == pytest.approx(6 / 7)
    assert metrics["las_punct"](found, gold) == pytest.approx(4 / 7)
    assert metrics["uas"](found, gold) == 1
    assert metrics["las"](found, gold) == pytest.approx(4 / 5)


GOLD_TREES = [
    "(TOP (S (NP (DT The) (NN dog)) (, ,) (VP (VBZ runs) (ADVP (RB fast))) (. .)))",
    "(TOP (S (NP (PRP I)) (VP (VBD saw) (NP (NP (DT a) (NN man)) (PP (IN with) (NP (NNS eyes))))) (. .)))",
    "(TOP (NP (NP (NN dog))))",
]
FOUND_TREES = [
    "(TOP (S (NP (DT The) (NN dog) (, ,)) (VP (VBZ runs) (PRT (RB fast))) (. .)))",
    "(TOP (S (NP (PRP I)) (VP (VBD saw) (NP (DT a) (NN man)) (PP (IN with) (NP (NNS eyes)))) (. .)))",
    "(TOP (NP (NN dog)))",
]


def test_bracket_f1_is_evalbs():
    gold, found = ([Tree.read(text).brackets() for text in texts] for texts in (GOLD_TREES, FOUND_TREES))
    counts = metrics["bracket_f1"].counts(found, gold)
    # EVALB with COLLINS.prm says, as matched, test and gold brackets: 4 4 4, 6 6 7, 1 1 2; recall 84.62,
    # precision 100.00, F 91.67. The comma is deleted, PRT is ADVP, TOP is no bracket, NP over NP counts twice.
    assert counts.tolist() == [[4, 4, 4], [6, 6, 7], [1, 1, 2]]
    assert metrics["bracket_f1"](found, gold) == pytest.approx(0.9167, abs=1e-4)


def test_function_tags_and_brackets_over_nothing_do_not_count():
    gold = [[(0, 3, "S"), (0, 1, "NP"), (2, 3, "."), (2, 3, "PRN")]]
    assert metrics["bracket_f1"].counts([[(0, 3, "S"), (0, 1, "NP-SBJ=2"), (0, 3, "ROOT")]], gold).tolist() == [
        [2, 2, 2]
    ]


# -- frames: srl-eval.pl


def test_srl_f1_is_that_of_srl_eval():
    gold = [
        [(2, 0, 2, "A0"), (2, 2, 3, "V"), (2, 3, 5, "A1"), (2, 6, 8, "C-A1"), (5, 4, 5, "AM-TMP"), (5, 5, 6, "V")],
    ]
    found = [[(2, 0, 2, "A0"), (2, 2, 3, "V"), (2, 3, 5, "A1"), (7, 6, 7, "A0"), (7, 7, 8, "V")]]
    # srl-eval.pl says 1 right, 1 too many, 2 missed: precision 50.00, recall 33.33, F1 40.00. A1 needs its C-A1, V is
    # no argument, and the frame of word 7, which is no gold predicate, is skipped; end to end it counts as wrong.
    assert metrics["srl_f1_given"](found, gold) == pytest.approx(0.4)
    assert metrics["srl_f1"](found, gold) == pytest.approx(2 / 6)


def test_a_continuation_of_nothing_is_an_argument_of_its_own():
    assert metrics["srl_f1"]([[(0, 1, 2, "C-A1")]], [[(0, 1, 2, "A1")]]) == 1
    assert metrics["srl_f1"]([[(0, 1, 2, "A1"), (0, 3, 4, "C-A1")]], [[(0, 1, 2, "A1"), (0, 3, 4, "A1")]]) == 0
    assert metrics["srl_f1"].counts([[(0, 0, 1, "V"), (0, 2, 3, "C-V")]], [[(0, 0, 1, "V")]]).tolist() == [[0, 0, 0]]


# -- answers: the SQuAD and MLQA scripts


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        ("The  Cat's\n(an) End.", None, ["cats", "end"]),
        ("A theory", None, ["theory"]),
        ("¿El niño?", None, ["¿el", "niño"]),  # SQuAD's own rule knows ASCII and English only
        ("¿El niño de la casa?", "es", ["niño", "de", "casa"]),
        ("„Der Hund“", "de", ["hund"]),
        ("北京 in 2008", "zh", ["北", "京", "in", "2008"]),
        ("والكتاب", "ar", ["و", "كتاب"]),
        ("Một chiếc xe", "vi", ["một", "xe"]),
        ("एक किताब।", "hi", ["एक", "किताब"]),
        ("„Le chat, the end…“", "plain", ["le", "chat", "the", "end"]),
    ],
)
def test_answers_are_compared_without_case_marks_and_articles(text, language, words):
    assert plain_words(text, language) == words


DROPPED = {  # MLQA's lists, written down here a second time
    "en": "a an the",
    "es": "un una unos unas el la los las",
    "de": "ein eine einen einem eines einer der die das den dem des",
    "vi": "của là cái chiếc những",
}


def mlqa_words(answer: str, language: str) -> list[str]:
    """MLQA's published rules once more: punctuation goes from within words, then articles as whole words."""
    marks = {c for c in map(chr, range(0x11000)) if unicodedata.category(c).startswith("P")} | set(string.punctuation)
    text = "".join(" " if c.isspace() else c for c in answer.lower() if c not in marks)
    if language == "ar":
        text = text.replace("\u0627\u0644", " ")
    if language == "zh":
        text = "".join(f" {c} " if "\u4e00" <= c <= "\u9fa5" else c for c in text)
    return [word for word in text.split() if word not in DROPPED.get(language, "").split()]


@given(
    st.text(st.sampled_from("aelodi AnTh.,¿»„-–'0北京大学、 الكتابự ủc।\n"), max_size=25),
    st.sampled_from(("en", "es", "de", "vi", "ar", "hi", "zh", "plain")),
    st.sampled_from(("", "el", "the", "der", "của", "ال", "北")),
)
def test_words_of_answers_are_those_of_mlqa_s_rules(text, language, word):
    answer = f"{word} {text}"
    assert plain_words(answer, language) == mlqa_words(answer, language)


WORKED = [  # worked by hand
    ("answer_f1_zh", "北京大学", "北京", 2 / 3),  # 2 characters of 4 and of 2
    ("answer_f1_zh", "2008年 in 北京", "北京 2008", 6 / 8),
    ("answer_f1_es", "la escuela", "escuela", 1),
    ("answer_f1", "la escuela", "escuela", 2 / 3),
    ("answer_f1_de", "dem Hund", "der Hund", 1),
    ("answer_f1_ar", "الكتاب", "كتاب", 1),
    ("answer_f1_vi", "cái xe đỏ", "xe", 2 / 3),
    ("answer_f1_en", "1671–75", "167175", 1),
    ("answer_f1", "1671–75", "167175", 0),
    ("answer_f1_plain", "„le chat“", "le chat.", 1),
    ("em_es", "El niño", "niño", 1),
    ("em_zh", "北京", "北 京", 1),
]


@pytest.mark.parametrize(("metric", "answer", "gold", "score"), WORKED)
def test_answers_are_scored_by_the_rules_of_their_language(metric, answer, gold, score):
    assert metrics[metric]([answer], [[gold]]) == pytest.approx(score)


def test_every_task_of_answers_is_scored_in_its_own_language():
    tasks = [entry for name in catalog if (entry := catalog[name]).kind == "answer"]
    assert {task.language for task in tasks} >= {"ar", "de", "en", "es", "hi", "vi", "zh", "fi", "th"}
    for task in tasks:
        code = task.language if task.language in ARTICLES else "plain"
        squad = code == "en" and not task.name.startswith("mlqa")
        assert task.metric == ("answer_f1" if squad else f"answer_f1_{code}"), task.name
        assert task.metric in metrics


@pytest.mark.realdata
def test_spanish_rules_matter_for_more_than_a_quarter_of_mlqa(data_folder):
    rows = get("mlqa_es", data_folder).rows("dev")
    apart = [row for row in rows if any(plain_words(a) != plain_words(a, "es") for a in row["answers"])]
    assert (len(apart), len(rows)) == (139, 500)


def test_answers_are_scored_as_squad_does():
    found = ["the big red dog", "Cats!", "", "7"]
    gold = [["red dog", "a cat"], ["dogs", "cats"], ["the"], ["8"]]
    # exact: 0, 1, 1, 0; F1: big red dog against red dog is 2 * 2 / (3 + 2) = 0.8, then 1, 1, 0
    assert metrics["em"](found, gold) == 0.5
    assert metrics["answer_f1"](found, gold) == pytest.approx(2.8 / 4)
    assert metrics["answer_f1"](["a dog dog"], [["dog cat"]]) == pytest.approx(
        0.5
    )  # words count as often as they occur
