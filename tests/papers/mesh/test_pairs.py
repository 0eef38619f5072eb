"""Task-language pairs: the same in both languages, and nothing that measures has trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from headwise.dissociation.lesions import dissociate
from headwise.dissociation.result import Counts
from headwise.errors import HeadwiseError
from headwise.papers.mesh.groups import dissociate_groups, side_by_side
from headwise.papers.mesh.pairs import LANGUAGES, MORE, TASKS, _held_out, pair, pairs_of, sides_of
from headwise.papers.mesh.published import PAIRS
from headwise.papers.mesh.retrieval import Translations, _mined, retrieve, translations
from headwise.scoring.importance import importance
from headwise.tasks.catalog.sentences import catalog
from headwise.tasks.languages import base, share
from headwise.tasks.leakage import leakage
from headwise.tasks.metrics import metrics
from headwise.testing import planted, toy_model

SIZE = {"train": 12, "dev": 6}


def test_every_source_has_every_pair():
    names = {f"{task}_{language}" for task in (*TASKS, *MORE) for language in LANGUAGES}
    every = {source: {name: sides_of(name, source) for name in names} for source in ("samples", "published")}
    used = {side[0] for table in every.values() for sides in table.values() for side in (sides.train, sides.dev)}
    assert "squad_v11" in used and all(s.train != ("squad_v11", "dev") for t in every.values() for s in t.values())
    assert {"squad_translated_es", "xnli_translated_es", "pawsx_translated_es"} <= used, "Table II's translations"
    for table in every.values():  # what measures one pair trains no other, but in halves by item
        whole = [s for s in table.values() if not s.by_item]
        assert not {s.train for s in whole} & {s.dev for s in whole}


def test_languages_have_the_pairs_that_there_are_data_for():
    assert pairs_of(("en", "es")) == pairs_of(("en", "es"), "samples") == PAIRS
    every = pairs_of(("en", "fr", "de", "hi", "fi"))
    assert {"nli_fr", "pa_fr", "qa_de", "qa_hi", "qa_fi", "ner_fi"} <= set(every)
    assert not {"qa_fr", "pa_hi", "nli_fi", "pa_fi"} & set(every)
    for name in every:
        sides = sides_of(name, "published")
        assert sides.train[0] in catalog and sides.dev[0] in catalog, name
        assert sides.train != sides.dev, name
    assert sides_of("pa_de", "samples", ("en", "de", "fr")).by_item == ("pawsx_en", "pawsx_fr")
    with pytest.raises(HeadwiseError, match="qa_fr"):
        pair("qa_fr", "published")
    with pytest.raises(HeadwiseError, match="nli_de"):
        pair("nli_de", "corpus")


@pytest.mark.parametrize("task", [*TASKS, *MORE])
def test_corpus_pairs_are_one_task_in_two_languages(task):
    english, spanish = (pair(f"{task}_{language}", "corpus", size=SIZE) for language in LANGUAGES)
    assert (english.language, spanish.language) == ("en", "es")
    assert base(english) == base(spanish) == task
    assert spanish.metric == ("answer_f1_es" if task == "qa" else english.metric)
    assert len(spanish.rows("train")) == 12 and english.rows("dev") != spanish.rows("dev")
    if task != "dep":
        assert share([english, spanish]) == {f"{task}_es": f"{task}_en"}


def test_items_with_a_text_in_common_stay_together():
    rows = [
        {"item": str(i), "text": f"left {i // 2}", "text_b": f"right {(i + 1) // 2 if i % 4 else i}"} for i in range(60)
    ]
    held = _held_out(rows)
    seen = [row for row in rows if row["item"] not in held]
    assert 0 < len(held) <= 12
    for field in ("text", "text_b"):
        assert not {r[field] for r in seen} & {r[field] for r in rows if r["item"] in held}
    assert held == _held_out(list(reversed(rows)))


def questions(path, question: str, context: str, answer: str) -> None:
    """A file of one question in SQuAD's form."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = {"id": question, "question": question, "answers": [{"text": answer, "answer_start": context.find(answer)}]}
    paragraph = {"context": context, "qas": [asked]}
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))


@pytest.mark.filterwarnings("ignore::headwise.errors.HeadwiseWarning")
def test_questions_of_a_language_are_measured_by_its_rules(tmp_path):
    questions(tmp_path / "xquad.es.json", "¿Quién?", "Fue el niño.", "el niño")
    questions(tmp_path / "tydiqa.goldp.en.train.json", "Who?", "It was the child.", "the child")
    for language in LANGUAGES:
        name = f"dev-context-{language}-question-{language}.json"
        questions(tmp_path / "MLQA_V1/dev" / name, f"{language}?", "It was el niño.", "el niño")
    spanish, english = (pair(f"qa_{language}", "samples", str(tmp_path)) for language in ("es", "en"))
    assert (spanish.metric, english.metric) == ("answer_f1_es", "answer_f1_en")
    assert metrics[spanish.metric](["niño"], spanish.kind.gold(spanish.rows("dev"))) == 1
    assert metrics[english.metric](["niño"], english.kind.gold(english.rows("dev"))) == pytest.approx(2 / 3)


def test_wrong_names_are_told():
    with pytest.raises(HeadwiseError, match="nli_es"):
        pair("nli_fr", "corpus")
    with pytest.raises(HeadwiseError, match="samples"):
        pair("nli_es", "sample")


@pytest.mark.realdata
def test_nothing_that_measures_has_trained(data_folder):
    known = ("nli_en", "nli_es", "qa_en", "qa_es", "pa_en", "pa_es")
    found = [pair(name, "samples", str(data_folder)) for name in known]
    leaks = leakage(found).leaks
    assert not [leak for leak in leaks if leak.field in ("item", "pair")]
    assert max((leak.rows / leak.of for leak in leaks if "pa_" in leak.held or "qa_es" in leak.held), default=0) == 0
    assert {task.name: len(task.rows("dev")) for task in found if task.name.startswith("pa")} == {
        "pa_en": 400,
        "pa_es": 400,
    }
    assert all(task.note for task in found)


# -- groups of tasks: planted heads dissociate, a group of one is its task, groups of the same heads do not


@pytest.fixture(scope="module")
def plant():
    model, _ = planted(seed=0, steps=200)
    return model, {task: importance(model, task, examples=128) for task in model.tasks}


def test_groups_of_one_task_are_the_tasks(plant):
    model, scores = plant
    grid, options, groups = (0.125, 0.25), {"random": 1, "resamples": 50}, {t: f"group of {t}" for t in scores}
    whole, grouped = (
        dissociate(model, scores, grid, **options),
        dissociate_groups(model, scores, groups, grid, **options),
    )
    assert np.array_equal(whole.performance, grouped.performance)
    assert grouped.tasks == ("group of toy0", "group of toy1")
    assert np.allclose(whole.scores(0.125), grouped.scores(0.125))


def test_planted_groups_come_apart(plant):
    model, scores = plant
    found = dissociate_groups(model, scores, {"toy0": "en", "toy1": "es"}, 0.125, resamples=200)
    assert found.mean() > 0.1 and (found.scores() > 0).all()


def test_the_metric_of_a_group_is_the_mean_of_its_tasks():
    rng = np.random.default_rng(0)

    def ratio(sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / sums[..., 1]

    def mean(sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / sums[..., -1]

    one = Counts(np.stack([rng.integers(0, 2, (30, 1, 4)), np.ones((30, 1, 4))], -1), ratio)
    two = Counts(np.stack([rng.random((7, 1, 4)), rng.random((7, 1, 4)), np.ones((7, 1, 4))], -1), mean)
    both = side_by_side([one, two])
    assert both.counts.shape == (37, 1, 4, 5 + 2)  # and how many examples of each
    wanted = (one.value(one.counts.sum(0)) + two.value(two.counts.sum(0))) / 2
    assert np.allclose(both.value(both.counts.sum(0)), wanted)
    with np.errstate(invalid="ignore"):
        assert np.isnan(both.value(both.counts[:30].sum(0))).all(), "a draw without the second task has no mean"


def test_every_task_needs_a_group(plant):
    model, scores = plant
    with pytest.raises(HeadwiseError, match="a group for each"):
        dissociate_groups(model, scores, {"toy0": "en"})
    with pytest.raises(HeadwiseError, match="two tasks"):
        dissociate_groups(model, {t: torch.rand(2, 4) for t in scores}, dict.fromkeys(scores, "en"))


# -- sentence retrieval: published layouts, copies are found, and noise is not


def files(root):
    """Tatoeba as LASER has it, and BUCC with identifiers; every fourth sentence of BUCC has no translation."""
    same = [f"a sentence about {i}" for i in range(64)]
    sides = {"es": same[::2] + same[1::4], "en": same[::2] + same[3::4]}
    texts = {f"tatoeba/tatoeba.spa-eng.{side}": same for side in ("spa", "eng")}
    for side, own in sides.items():
        texts[f"bucc2018/es-en.dev.{side}"] = [f"{side}-{i:06d}\t{text}" for i, text in enumerate(own)]
    texts["bucc2018/es-en.dev.gold"] = [f"es-{i:06d}\ten-{i:06d}" for i in range(32)]
    for name, lines in texts.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
    return root


def test_copies_are_found_in_files_as_published(tmp_path):
    found = translations(files(tmp_path), ("en", "es"))
    assert [each.name for each in found] == ["tatoeba_es", "bucc_es"] and [each.whole for each in found] == [
        True,
        False,
    ]
    assert len(found[0].sources) == 64 and len(found[1].gold) == 32 < len(found[1].sources)


def test_a_sentence_is_its_own_translation():
    model = toy_model()
    texts = [f"w{i} w{i + 1} w{2 * i}" for i in range(12)]
    both = Translations("t", texts, texts, [(i, i) for i in range(12)])
    assert retrieve(model, both)["value"] == 1.0
    turned = Translations("t", texts, texts[1:] + texts[:1], [(i, i) for i in range(12)])
    assert retrieve(model, turned)["value"] == 0.0


def test_the_threshold_parts_pairs_from_noise():
    """Worked out by hand: pairs lie at 0.9, others at 0.1, and one gold pair has a wrong neighbour."""
    gold = [(i, i) for i in range(8)]
    best = np.where(np.arange(16) < 8, 0.9, 0.1)
    nearest = np.arange(16)
    assert _mined(best, nearest, gold)["value"] == 1.0
    nearest[1] = 5
    assert _mined(best, nearest, gold)["value"] == pytest.approx(2 * 3 / (4 + 4))
