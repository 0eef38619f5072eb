"""Files for the GLUE server: its form, its order, and what it would refuse."""

from __future__ import annotations

import zipfile
from dataclasses import replace

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.measuring.evaluate import evaluate
from headwise.models.multitask import MultiTaskModel
from headwise.papers.specialization import glue
from headwise.papers.specialization.glue import TESTS, predicted, questions, submit, write_submission
from headwise.tasks import Classify, Regress, Rows, Task
from headwise.tasks.catalog.sentences import catalog
from headwise.testing import tiny, tiny_tokenizer

WORDS = [f"w{i}" for i in range(20)]
SMALL = 9  # rows of every test set here


@pytest.fixture
def short(monkeypatch):
    """The same test sets, nine rows each."""
    monkeypatch.setattr(glue, "TESTS", {name: test._replace(rows=SMALL) for name, test in TESTS.items()})


@pytest.fixture
def data(tmp_path):
    """A folder in GLUE's layout; quotes and odd columns as in the real files."""
    for test in TESTS.values():
        path = tmp_path / test.file
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = ["index", "odd", *test.columns]
        texts = [
            [str(i), 'a "quote', *(f"w{i} w{(3 * i + n) % 20}" for n in range(len(test.columns)))] for i in range(SMALL)
        ]
        path.write_text("\n".join("\t".join(line) for line in [columns, *texts]) + "\n")
    return tmp_path


def model() -> MultiTaskModel:
    tasks = []
    for name in dict.fromkeys(test.task for test in TESTS.values() if test.task != "wnli"):
        known = catalog[name]
        row = {
            "text": "w1",
            "text_b": "w2" if len(next(t for t in TESTS.values() if t.task == name).columns) > 1 else None,
        }
        kind = Regress() if name == "stsb" else Classify(known.labels)
        row["label"] = 1.0 if name == "stsb" else known.labels[0]
        tasks.append(Task(name, kind, Rows(train=[row], dev=[row]), known.metric))
    torch.manual_seed(0)
    return MultiTaskModel(tiny("bert"), tiny_tokenizer(WORDS), tasks)


def tables(path) -> dict[str, list[list[str]]]:
    with zipfile.ZipFile(path) as archive:
        text = {name: archive.read(name).decode() for name in archive.namelist()}
    return {name: [line.split("\t") for line in body.splitlines()] for name, body in text.items()}


def test_the_labels_of_the_catalog_stand_in_the_server_s_order():
    """Class i of the catalog is the server's answer i: 0 and 1 mean there what they mean here."""
    meant = {"cola": "acceptable", "sst2": "positive", "mrpc": "equivalent", "qqp": "duplicate"}
    for test in TESTS.values():
        if test.answers == ("0", "1") and test.task != "wnli":
            assert catalog[test.task].labels.index(meant[test.task]) == 1
        elif test.answers:
            assert catalog[test.task].labels == test.answers if test.task != "wnli" else True


def test_a_submission_is_eleven_tables_in_the_server_s_form(short, data, tmp_path):
    made, out = model(), tmp_path / "out.zip"
    found = tables(submit(made, data, out, fill=True))
    assert set(found) == {f"{name}.tsv" for name in TESTS}
    for name, test in TESTS.items():
        head, *lines = found[f"{name}.tsv"]
        assert head == ["index", "prediction"]
        assert [line[0] for line in lines] == [str(i) for i in range(SMALL)]
        assert all(0 <= float(a) <= 5 for _, a in lines) if test.graded else {a for _, a in lines} <= set(test.answers)
    assert {a for _, a in found["WNLI.tsv"][1:]} == {"0"}, "nobody answers WNLI"
    again = submit(made, data, tmp_path / "again.zip", fill=True)
    assert again.read_bytes() == out.read_bytes()


def test_answers_are_the_model_s_and_in_the_order_of_the_questions(short, data):
    made = model()
    for name in ("QNLI", "CoLA", "STS-B"):
        test = glue.TESTS[name]
        asked = questions(test, data)
        task = made.tasks[test.task]
        label = 0.0 if test.graded else task.kind.labels[0]
        rows = [{"text": t[0], "text_b": t[1] if len(t) > 1 else None, "label": label} for t in asked]
        made.tasks[test.task] = Task(test.task, task.kind, Rows(dev=rows), "accuracy" if test.answers else "pearson")
        if test.answers:
            wanted = [test.answers[p] for p in evaluate(made, test.task).predictions]
            assert predicted(made, test, asked) == wanted
        one_by_one = [predicted(made, test, [text])[0] for text in asked]
        assert predicted(made, test, asked) == one_by_one


def test_labels_are_told_by_their_names_in_any_order(short, data):
    made = model()
    test = glue.TESTS["MNLI-m"]
    asked, task, head = questions(test, data), made.tasks["mnli"], made.head("mnli")
    wanted = predicted(made, test, asked)
    order = [2, 0, 1]  # as a file of one's own may have them
    made.tasks["mnli"] = replace(task, kind=Classify(tuple(task.kind.labels[i] for i in order)))
    last = [module for module in head.modules() if isinstance(module, torch.nn.Linear)][-1]
    last.weight.data, last.bias.data = last.weight.data[order], last.bias.data[order]
    assert predicted(made, test, asked) == wanted
    made.tasks["mnli"] = replace(task, kind=Classify(("no", "maybe", "yes")))
    with pytest.raises(HeadwiseError, match="labels no, maybe, yes; expected entailment, neutral, contradiction"):
        predicted(made, test, asked)


def test_what_the_server_would_refuse_is_refused_here(short, data, tmp_path):
    full = {name: [test.default] * SMALL for name, test in TESTS.items()}
    write_submission(full, tmp_path / "fine.zip")
    for name, wrong, why in (
        ("CoLA", ["0"] * 8, "8 answers for CoLA; expected 9"),
        ("CoLA", ["0"] * 8 + ["2"], "answer 8 of CoLA"),
        ("MNLI-m", ["0"] * SMALL, "answer 0 of MNLI-m"),
        ("STS-B", ["5.2"] * SMALL, "a grade from 0 to 5"),
        ("STS-B", ["much"] * SMALL, "a grade from 0 to 5"),
    ):
        with pytest.raises(HeadwiseError, match=why):
            write_submission({**full, name: wrong}, tmp_path / "bad.zip")
    with pytest.raises(HeadwiseError, match="unknown table of the GLUE server 'Cola'"):
        write_submission({**full, "Cola": ["0"] * SMALL}, tmp_path / "bad.zip")
    with pytest.raises(HeadwiseError, match="no answers for WNLI"):
        submit(model(), data, tmp_path / "bad.zip")
    assert not (tmp_path / "bad.zip").exists()


def test_files_that_are_not_glue_s_are_told(short, data):
    test = glue.TESTS["RTE"]
    with pytest.raises(HeadwiseError, match="expected 3000, as the server has"):
        questions(TESTS["RTE"], data)
    path = data / test.file
    path.write_text(path.read_text().replace("sentence1", "premise"))
    with pytest.raises(HeadwiseError, match="premise"):
        questions(test, data)
    path.unlink()
    with pytest.raises(HeadwiseError, match="no file"):
        questions(test, data)
