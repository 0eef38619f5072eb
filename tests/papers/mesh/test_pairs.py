"""Task-language pairs: the same in both languages, and nothing that measures has trained."""

from __future__ import annotations

import json

import pytest

from headwise.errors import HeadwiseError
from headwise.papers.mesh.pairs import LANGUAGES, MORE, TASKS, _held_out, pair, pairs_of, sides_of
from headwise.papers.mesh.published import PAIRS
from headwise.tasks.catalog.sentences import catalog
from headwise.tasks.languages import base, share
from headwise.tasks.leakage import leakage
from headwise.tasks.metrics import metrics

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
