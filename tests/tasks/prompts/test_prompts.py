"""Tasks as prompts: templates, examples from the training split, halves, names with options."""

from __future__ import annotations

from collections import Counter

import pytest

from headwise import tasks
from headwise.errors import HeadwiseError
from headwise.tasks.catalog.known import PARADIGMS, PHENOMENA, blimp
from headwise.tasks.kinds.answer import Answer
from headwise.tasks.kinds.choice import Choice, Grade
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.generation import Generation
from headwise.tasks.kinds.tag import Tag
from headwise.tasks.prompts.known import TEMPLATES, Template, known_template
from headwise.tasks.prompts.prompted import Halves, options_of, prompted
from headwise.tasks.task import Rows, Task


def reviews(count: int = 20) -> Task:
    rows = [{"text": f"text {i}", "text_b": None, "label": ("bad", "good")[i % 2]} for i in range(count)]
    return Task("reviews", Classify(("bad", "good")), Rows(rows, rows[:4]), "accuracy")


def test_a_template_writes_rows_and_examples():
    template = Template("Q: {text}\nA:", {"good": "yes"}, between="\n")
    assert template.prompt({"text": " x "}, [({"text": "y"}, "yes")]) == "Q: y\nA: yes\nQ: x\nA:"
    assert template.word("good") == "yes" and template.word("bad") == "bad"
    assert template.neutral("N/A") == {"text": "N/A"}
    with pytest.raises(HeadwiseError, match="needs 'text'"):
        template.prompt({"question": "x"})


def test_a_task_of_ones_own_is_asked_plainly():
    made = prompted(reviews())
    assert made.name == "reviews@prompt" and made.metric == "accuracy"
    assert made.rows("dev")[0]["prompt"] == "Text: text 0\nLabel:"
    assert made.kind == Choice(("bad", "good"), ("bad", "good"))
    assert made.kind.gold(made.rows("dev")) == [0, 1, 0, 1]


def test_examples_are_drawn_from_training_rows_evenly_and_shown_nowhere_else():
    made = prompted(reviews(), shots=4, seed=3)
    shown = made.source.examples
    assert Counter(answer for _, answer in shown) == {"bad": 2, "good": 2}
    assert all(row["text"] not in {r["text"] for r, _ in shown} for row in made.rows("train"))
    assert all(row["prompt"].count("Label:") == 5 for row in made.rows("train"))
    again, other = prompted(reviews(), shots=4, seed=3), prompted(reviews(), shots=4, seed=4)
    assert again.source.examples == shown != other.source.examples
    with pytest.raises(HeadwiseError, match="shots=30"):
        prompted(reviews(), shots=30).rows("dev")


def test_calibration_asks_without_content():
    made = prompted(reviews(), calibrated=True, score="char")
    assert made.kind.neutral[0] == "Text: N/A\nLabel:" and made.kind.score == "char"


def test_grades_are_choices_that_are_numbers():
    rows = [{"text": "a", "text_b": "b", "label": 2.5}, {"text": "c", "text_b": "d", "label": 0.0}]
    made = prompted(Task("alike", Regress(), Rows(rows, rows), "spearman"))
    assert isinstance(made.kind, Grade) and made.kind.values == (0, 1, 2, 3, 4, 5) and made.kind.loss_of == "choices"
    fine = prompted(Task("alike", Regress(0.0, 1.5), Rows(rows[1:], rows[1:]), "spearman"))
    assert len(fine.kind.values) == 11 and fine.kind.values[-1] == 1.5


def test_questions_are_answered_in_their_language():
    rows = [{"question": "¿Qué?", "context": "Lima es capital.", "answers": ["Lima"], "starts": [0]}] * 3
    made = prompted(Task("qa", Answer(), Rows(rows, rows), "answer_f1_es", "es"))
    assert isinstance(made.kind, Generation)
    assert made.rows("dev")[0]["prompt"] == "Texto: Lima es capital.\nPregunta: ¿Qué?\nRespuesta:"


def test_a_single_split_is_cut_into_halves_that_share_no_text():
    rows = [{"text": f"t{i // 2}", "text_b": None, "label": "ab"[i % 2]} for i in range(40)]
    task = Task("one", Classify(("a", "b")), Rows(dev=rows), "accuracy")
    made = prompted(task)
    assert isinstance(made.source.source, Halves)
    train, dev = ({row["text"] for row in made.rows(split)} for split in ("train", "dev"))
    assert not train & dev and len(made.rows("train")) == len(made.rows("dev")) == 20
    assert "halves" in made.source.origin


def test_other_kinds_have_no_prompt():
    with pytest.raises(HeadwiseError, match="no prompt for 'pos', a task of the kind Tag"):
        prompted(Task("pos", Tag(("a",)), Rows(), "tag_accuracy"))


def test_names_carry_options():
    found = options_of("prompt+shots4+seed1+phrasing2+chat+calibrated+token")
    assert found == {"shots": 4, "seed": 1, "phrasing": 2, "chat": True, "calibrated": True, "score": "token"}
    for wrong in ("prompt+shots", "prompt+chat2", "prompt+shot4", "prompt+", "promt"):
        with pytest.raises(HeadwiseError):
            options_of(wrong)


def test_tasks_are_asked_for_by_name(tmp_path):
    made = tasks.get("corpus.sentiment@prompt+shots2")
    assert made.name == "corpus.sentiment@prompt+shots2" and made.rows("dev")[0]["prompt"].count("Sentiment:") == 3
    (tmp_path / "mine.csv").write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40)))
    own = tasks.own(f"mine@prompt={tmp_path}/mine.csv:text,label")
    assert own.name == "mine@prompt" and own.rows("dev")[0]["prompt"].startswith("Text: ")


def test_every_template_is_for_tasks_that_exist():
    names = {*tasks.names(), "corpus.sentiment.es"}
    for pattern, templates in TEMPLATES:
        for name in pattern.split("|"):
            assert name in names, name
            assert all(known_template(name, "en", True, False, i + 1) is t for i, t in enumerate(templates))
    with pytest.raises(HeadwiseError, match="phrasing 4"):
        known_template("sst2", "en", False, False, 4)


def test_words_are_for_labels_that_exist():
    for pattern, templates in TEMPLATES:
        for name in pattern.split("|"):
            labels = getattr(tasks.lookup.known(name), "labels", ()) if not name.startswith("corpus.") else ()
            for template in templates:
                words = [template.word(label) for label in labels]
                assert len(set(words)) == len(words), name
                assert not template.words or not labels or set(labels) & set(template.words) == set(labels), name


def test_blimp_has_its_67_paradigms():
    assert len(set(PARADIGMS)) == 67 and len(PHENOMENA) == 13
    assert blimp("blimp.anaphor_agreement").sizes == {"test": 2000}
    assert blimp("blimp").sizes == {"test": 67000}
    with pytest.raises(HeadwiseError, match="phenomenon or paradigm"):
        blimp("blimp.anaphor")


@pytest.mark.realdata
def test_blimp_is_compared_by_likelihood(data_folder):
    task = tasks.get("blimp.anaphor_agreement", data_folder)
    train, dev = task.rows("train"), task.rows("dev")
    assert len(train) == len(dev) == 1000 and len(task.rows("test")) == 2000
    assert abs(sum(task.kind.gold(dev)) - 500) < 60
    assert not {tuple(sorted(row["choices"])) for row in train} & {tuple(sorted(row["choices"])) for row in dev}


def test_copying_asks_for_what_followed_before():
    task = tasks.get("copying")
    for row in task.rows("train")[:50]:
        words = row["prompt"].split()
        right = row["choices"][row["label"]]
        assert len(words) > 8 and words[words.index(words[-1]) + 1] == right != row["choices"][1 - row["label"]]
    assert 150 < sum(task.kind.gold(task.rows("dev"))) < 250
