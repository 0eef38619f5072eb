"""Probing tasks made from treebanks keep the definition of each property."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.tasks import get
from headwise.tasks.catalog.probes import LENGTHS, PROPERTIES, build, inverted


def bank(size: int, trees: bool) -> list[dict]:
    """A made-up treebank: every noun and verb has a number and a tense, every other sentence two clauses."""
    rng = random.Random(1)
    return [sentence(rng, trees, i % 2 == 1) for i in range(size)]


def clause(rng: random.Random, start: int, head: int, relation: str) -> list[tuple]:
    """``DET NOUN VERB DET NOUN ADV...``, hanging on ``head``; heads count from 1."""
    number, tense = rng.choice(["Sing", "Plur"]), rng.choice(["Past", "Pres"])
    verb = start + 3
    words = [("the", "DET", "_", start + 2, "det"), noun(rng, number, verb, "nsubj")]
    words.append((f"v{letters(rng, 60)}{tense.lower()}", "VERB", f"Tense={tense}|VerbForm=Fin", head, relation))
    if rng.random() < 0.7:
        words += [("a", "DET", "_", verb + 2, "det"), noun(rng, rng.choice(["Sing", "Plur"]), verb, "obj")]
    return words + [(f"r{letters(rng, 30)}", "ADV", "_", verb, "advmod") for _ in range(rng.randrange(8))]


def letters(rng: random.Random, below: int) -> str:
    return "".join("abcdefghij"[int(digit)] for digit in str(rng.randrange(below)))


def noun(rng: random.Random, number: str, head: int, relation: str) -> tuple:
    return (f"n{letters(rng, 80)}{number.lower()}", "NOUN", f"Number={number}", head, relation)


def sentence(rng: random.Random, trees: bool, double: bool) -> dict:
    words = clause(rng, 0, 0, "root")
    if double:
        joint = len(words)
        second = clause(rng, joint + 1, 3, "conj")
        words += [("and", "CCONJ", "_", joint + 4, "cc"), *second]
    words.append((".", "PUNCT", "_", 3, "punct"))
    forms, tags, feats, heads, relations = map(list, zip(*words))
    row = {"words": forms, "upos": tags, "feats": feats, "heads": heads, "deprels": relations, "tree": None}
    if trees:
        middle = rng.randrange(1, len(forms) - 1)
        parts = [
            " ".join(f"({tag} {form})" for form, tag in zip(forms[a:b], tags[a:b]))
            for a, b in ((0, middle), (middle, None))
        ]
        label = rng.choice(["VP", "PP", "NP"])
        deeper = rng.randrange(4)
        row["tree"] = f"(TOP (S (NP {parts[0]}) ({label} {'(XP ' * deeper}{parts[1]}{')' * deeper})))"
    return row


BANKS = {trees: bank(2000, trees) for trees in (False, True)}


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_is_made_from_a_treebank(name, trees):
    rows = BANKS[trees]
    made = build(name, rows)
    texts = {part: {row["text"] for row in found} for part, found in made.items()}
    assert not texts["train"] & texts["dev"] and not texts["train"] & texts["test"] and not texts["dev"] & texts["test"]
    labels = [{row["label"] for row in found} for found in made.values()]
    assert labels[1] <= labels[0] and labels[2] <= labels[0] and len(labels[1]) > 1
    assert len(made["train"]) > 4 * len(made["dev"])
    assert build(name, rows) == made
    assert build(name, rows, seed=1) != made


def originals(trees: bool = False) -> dict[str, dict]:
    return {" ".join(row["words"]): row for row in BANKS[trees]}


def every(name: str, trees: bool = False) -> list[dict]:
    return [row for part in build(name, BANKS[trees]).values() for row in part]


@pytest.mark.parametrize(
    "name", ["bigram_shift", "odd_man_out", "coordination_inversion", "past_present", "subj_number", "obj_number"]
)
def test_two_way_properties_are_even_in_every_split(name):
    for part in build(name, BANKS[False]).values():
        counts = Counter(row["label"] for row in part)
        assert len(counts) == 2
        allowed = 0 if name in ("past_present", "subj_number", "obj_number") else 2
        assert max(counts.values()) - min(counts.values()) <= allowed


def test_sentence_length_names_the_bin():
    for row in every("sentence_length"):
        low, high = LENGTHS[int(row["label"])]
        assert low <= len(row["text"].split()) <= high


def test_word_content_holds_its_word_exactly_once():
    rows = every("word_content")
    targets = {row["label"] for row in rows}
    for row in rows:
        assert [word for word in row["text"].lower().split() if word in targets] == [row["label"]]


def test_changed_sentences_are_new_and_unchanged_ones_are_not():
    known = originals()
    for name, mark in (("bigram_shift", "I"), ("odd_man_out", "C"), ("coordination_inversion", "I")):
        for row in every(name):
            assert (row["text"] in known) == (row["label"] == "O") != (row["label"] == mark)


def test_a_shift_swaps_two_neighbours_and_keeps_the_words():
    bags = Counter(" ".join(sorted(text.split())) for text in originals())
    for row in every("bigram_shift"):
        assert " ".join(sorted(row["text"].split())) in bags
        assert row["text"].split()[0] == "the" and row["text"].endswith(".")


def test_tense_and_number_are_those_of_the_main_clause_and_forms_do_not_return():
    known = originals()
    for name, place in (("past_present", lambda row: 2), ("subj_number", lambda row: 1), ("obj_number", lambda row: 4)):
        forms = {}
        for part, rows in build(name, BANKS[False]).items():
            forms[part] = {row["text"].split()[place(row)] for row in rows}
            for row in rows:
                target = known[row["text"]]["words"][place(row)]
                assert target.endswith(row["label"].lower())
        assert not forms["train"] & forms["dev"] and not forms["train"] & forms["test"]


def steps(heads: list[int], i: int) -> int:
    return 0 if heads[i] == 0 else 1 + steps(heads, heads[i] - 1)


def test_depth_is_that_of_the_constituents_or_else_of_the_dependencies():
    known = originals(trees=True)
    for row in every("tree_depth", trees=True):
        assert int(row["label"]) == 3 + known[row["text"]]["tree"].count("XP")
    known = originals()
    for row in every("tree_depth"):
        heads = known[row["text"]]["heads"]
        assert int(row["label"]) == max(steps(heads, i) for i in range(len(heads)))


def test_length_tells_less_of_the_depth_than_before():
    def correlation(pairs: list[tuple[int, int]]) -> float:
        return abs(np.corrcoef(np.array(pairs).T)[0, 1])

    depth = {text: max(steps(row["heads"], i) for i in range(len(row["heads"]))) for text, row in originals().items()}
    before = correlation([(len(text.split()), found) for text, found in depth.items()])
    after = correlation([(len(row["text"].split()), int(row["label"])) for row in every("tree_depth")])
    assert after < before - 0.02


def test_top_constituents_are_the_parts_of_the_sentence_or_the_roots_dependents():
    assert {row["label"] for row in every("top_constituents", trees=True)} == {"NP_VP", "NP_PP", "NP_NP"}
    assert "nsubj_ROOT_obj_punct" in {row["label"] for row in every("top_constituents")}


words = str.split


def test_inversion_wants_exactly_two_clauses_with_subjects():
    row = {
        "words": words("Ann slept , but I read today ."),
        "upos": words("PROPN VERB PUNCT CCONJ PRON VERB NOUN PUNCT"),
        "deprels": words("nsubj root punct cc nsubj conj obl:tmod punct"),
        "heads": [2, 0, 6, 6, 6, 2, 6, 2],
    }
    assert " ".join(inverted(row)) == "I read today , but Ann slept ."
    assert inverted({**row, "deprels": [*row["deprels"][:4], "obj", *row["deprels"][5:]]}) is None
    assert inverted({**row, "heads": [2, 0, 6, 6, 6, 2, 2, 2]}) is None  # "today" belongs to the other clause


def test_a_treebank_that_is_too_small_is_told():
    with pytest.raises(HeadwiseError, match="past_present from 3 sentences"):
        build("past_present", BANKS[False][:3])
    with pytest.raises(HeadwiseError, match="unknown probing property"):
        build("colour", [])


@pytest.mark.realdata
@pytest.mark.parametrize("code", ["en_ewt", "es_gsd"])
@pytest.mark.parametrize("name", ["bigram_shift", "past_present", "coordination_inversion"])
def test_probes_are_made_from_real_treebanks(data_folder, code, name):
    task = get(f"probing.{code}.{name}", data_folder).ready()
    assert task.language == code[:2]
    assert len(task.kind.labels) == 2
    assert all(task.rows(split) for split in ("train", "dev", "test"))
