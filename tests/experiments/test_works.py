"""The works that sweeps share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from headwise.errors import HeadwiseError
from headwise.experiments.jobs import Place, in_order, perform, task_named
from headwise.experiments.works import _thinned, asked, lesioning, small, training
from headwise.io.records import Results
from headwise.models.opening import open_subject
from headwise.testing import playground
from headwise.training.plan import Plan

TASKS = ["reviews=reviews.csv:text,label", "news=news.csv:text,label"]
PLAN = Plan(steps=8, batch_size=8, lr=1e-3, evaluate_every=0)
IAT = {"name": "iat", "delta": 0.25, "examples": 16}
AT = {"tiny": "bert-tiny"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(playground(tmp_path))
    return tmp_path


def weights(root, job):
    return load_file(root / "models" / job.key / "encoder" / "model.safetensors")


def test_a_branch_gives_the_weights_of_the_whole_way(place):
    """What two methods have in common is trained once; the result is that of training it twice, bit for bit."""
    plain = training("tiny", TASKS, PLAN, at=AT, marks=[0.25])
    branched = training("tiny", TASKS, PLAN, IAT, at=AT, branch=plain)
    alone = training("tiny", TASKS, PLAN, IAT, at=AT)
    assert branched.key == alone.key != plain.key
    for job in in_order([branched]):
        perform(job, place / "one")
    assert "step 7" not in str(sorted((place / "one" / "work" / plain.key / "checkpoints").iterdir()))
    perform(alone, place / "two")
    one, two = weights(place / "one", branched), weights(place / "two", alone)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], weights(place / "one", plain)[name]) for name in one)


def test_a_job_can_start_from_anothers_model(place):
    first = training("tiny", TASKS, PLAN, at=AT)
    second = training("tiny", TASKS, PLAN.with_(lr=0.0, head_lr=0.0), at=AT, start=first)
    for job in in_order([second]):
        perform(job, place / "out")
    one, two = weights(place / "out", first), weights(place / "out", second)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_lesions_of_a_trained_and_of_an_untrained_model(place):
    job = training("tiny", TASKS, PLAN, at=AT)
    jobs = [lesioning(job, trained=t, examples=16, fractions=[0.25, 0.5], random=1) for t in (True, False)]
    for one in in_order(jobs):
        perform(one, place / "out")
    found = [Results(place / "out" / "records")[one.key].result for one in jobs]
    assert all(set(f["importance"]) == {"reviews", "news"} for f in found)
    assert found[0]["importance"] != found[1]["importance"]
    assert found[0]["dissociation"]["fractions"] == [0.25, 0.5]


def test_a_job_is_known_by_content_and_not_by_folder(place):
    (place / "bert-tiny").rename(place / "moved")
    moved = training("tiny", TASKS, PLAN, at={"tiny": "moved"})
    (place / "moved").rename(place / "bert-tiny")
    same = training("tiny", TASKS, PLAN, at=AT)
    assert moved.key == same.key
    file = place / "bert-tiny" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    assert training("tiny", TASKS, PLAN, at=AT).key != same.key


def test_a_model_named_by_its_folder_is_known_by_content_too(place):
    before = training("bert-tiny", TASKS, PLAN, at={}).key
    file = place / "bert-tiny" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
    assert training("bert-tiny", TASKS, PLAN, at={}).key != before


def test_what_people_write_is_filled_in(place):
    job = asked("train", {"model": "tiny", "tasks": TASKS, "plan": {"steps": 8, "batch_size": 8}}, AT)
    assert job.key == training("tiny", TASKS, Plan(steps=8, batch_size=8), at=AT).key


@pytest.mark.parametrize("wrong", [{"tasks": "sst2"}, {"plan": 3}])
def test_what_people_write_wrongly_is_refused(wrong):
    with pytest.raises(HeadwiseError, match="a list of names, and a table"):
        asked("train", {"model": "tiny", "tasks": TASKS, **wrong}, AT)


@pytest.mark.parametrize(
    ("method", "word"),
    [({"delta": 0.5}, "its name"), ({"name": "iat", "detla": 0.5}, "detla"), ("iatt", "Try: iat"), (3, "its name")],
)
def test_a_wrong_method_is_told_before_anything_runs(method, word):
    with pytest.raises(HeadwiseError, match=word):
        asked("train", {"model": "tiny", "tasks": TASKS, "method": method}, AT)
    named = asked("train", {"model": "tiny", "tasks": TASKS, "method": "iat"}, AT)
    assert named.config["method"] == {"name": "iat"}


def test_a_study_is_a_work(place):
    settings = {"plan": {"steps": 4, "batch_size": 8}, "examples": 16, "dev": 12, "skip": ["iat", "attention", "prune"]}
    job = asked("study", {"model": "tiny", "tasks": TASKS, **settings}, AT)
    perform(job, place / "out")
    assert Results(place / "out" / "records")[job.key].result["verdict"]
    assert (Place(job, place / "out").folder / "report.html").exists()


@pytest.mark.parametrize("length", [0, 1, 49, 50, 51, 99, 101, 1000])
def test_curves_are_thinned_to_their_end(length):
    made = _thinned({"a": {"step": list(range(length)), "loss": list(range(length))}})["a"]
    assert made["step"] == made["loss"] and len(made["step"]) <= 50 and made["step"][-1:] == list(range(length))[-1:]


def test_losses_are_kept_in_five_digits_and_steps_whole():
    made = _thinned({"a": {"step": [1234567, 2345678], "loss": [0.00123456789, float("nan")]}})["a"]
    assert made["step"] == [1234567, 2345678] and made["loss"][0] == 0.0012346 and made["loss"][1] != made["loss"][1]


WHOLE = [([[0, 1]], "uint8"), ([[0, 300]], "uint16")]
NOT = [([[0.5, 1]], "float32"), ([[-1, 1]], "float32"), ([[np.nan, 1]], "float32")]


@pytest.mark.parametrize(("counts", "kind"), WHOLE + NOT)
def test_counts_are_kept_in_as_few_bytes_as_they_need(counts, kind):
    kept = small(np.array(counts, float))
    assert kept.dtype == kind and np.array_equal(kept.astype(float), counts, equal_nan=True)


def test_a_job_is_known_by_ones_own_files_as_they_are_now(place):
    before = training("tiny", TASKS, PLAN, at=AT).key
    assert training("tiny", TASKS, PLAN, at=AT).key == before
    with (place / "reviews.csv").open("a") as file:
        file.write((place / "reviews.csv").read_text().splitlines()[1] + "\n")
    assert training("tiny", TASKS, PLAN, at=AT).key != before


@pytest.mark.filterwarnings("ignore::headwise.errors.HeadwiseWarning")  # few rows
def test_a_job_is_known_by_the_data_of_the_folder_that_the_environment_names_now(place, monkeypatch):
    keys = {}
    for word in ("good", "fine"):
        (place / word / "SST-2").mkdir(parents=True)
        for split in ("train", "dev"):
            (place / word / "SST-2" / f"{split}.tsv").write_text(f"sentence\tlabel\n{word}\t1\nbad\t0\n")
        monkeypatch.setenv("HEADWISE_DATA", str(place / word))
        keys[word] = training("tiny", ["sst2"], PLAN, at=AT).key
        assert task_named("sst2", AT).rows("dev")[0]["text"] == word
        assert training("tiny", ["sst2"], PLAN, at={**AT, "data": str(place / word)}).key == keys[word]
    assert keys["good"] != keys["fine"]


def test_a_job_that_dies_after_its_training_does_not_train_again(place, monkeypatch):
    def dies(*args, **options):
        raise MemoryError

    job = training("tiny", TASKS, PLAN, at=AT)
    with monkeypatch.context() as now, pytest.raises(MemoryError):
        now.setattr("headwise.experiments.works.scored", dies)
        perform(job, place / "out")
    monkeypatch.setattr("headwise.training.loop._step", dies)
    perform(job, place / "out")
    assert not list((place / "out" / "work" / job.key / "checkpoints").iterdir())


def test_scores_of_many_tasks_and_estimators_share_a_loaded_model(place, monkeypatch):
    job = training("tiny", TASKS, PLAN, at=AT)
    perform(job, place / "out")
    model, opened = str(place / "out" / "models" / job.key), []
    counted = lambda *args: opened.append(args) or open_subject(*args)  # noqa: E731
    monkeypatch.setattr("headwise.experiments.works.open_subject", counted)
    how = [{"by": "gradient", "examples": 8}, {"by": "ablation", "examples": 8}, {"by": "ablation", "examples": 9}]
    jobs = [asked("importance", {"model": model, "task": TASKS[0], **each}, {}) for each in how]
    for one in jobs:
        perform(one, place / "scores")
    assert len(opened) == 1
    found = [Results(place / "scores" / "records")[one.key].result for one in jobs]
    assert [each["examples"] for each in found] == [8, 8, 9] and np.shape(found[0]["scores"]) == (2, 4)
    with pytest.raises(HeadwiseError, match="task = None"):
        asked("importance", {"model": model}, {})
