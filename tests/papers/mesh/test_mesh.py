"""The MESH recipe: its jobs need no network to be built, and its tables say what its records hold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from headwise.experiments.jobs import in_order, perform
from headwise.io.records import Results
from headwise.models.causality import pooling_by_name
from headwise.papers.mesh import published as paper
from headwise.papers.mesh import recipe
from headwise.papers.mesh.jobs import ROWS, STARTS, WHAT, held
from headwise.papers.mesh.tables import (
    Records,
    groups_table,
    label,
    meta_table,
    models_table,
    recovery_table,
    relation,
    shared_heads,
    table_one,
)
from headwise.papers.pages import _reproduce, pages
from headwise.papers.recipe import Scale, recipes

NAMES = ("table multi-task", "table prune least important", "recovery 0.3 random", "recovery 0.2 top")
NAMES += ("meta a new pair: multi-task", "meta a new pair: fomaml tiny", "languages and tasks")


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """A part of the smoke size."""
    root = tmp_path_factory.mktemp("mesh")
    for job in in_order([j for j in recipe.jobs(Scale("smoke")) if j.title.startswith(NAMES)]):
        perform(job, root, "cpu")
    return root


def test_published_numbers_are_whole():
    assert list(paper.PAIRS) == [
        f"{task}_{language}" for task in ("nli", "qa", "ner", "pa") for language in ("en", "es")
    ]
    assert set(paper.TABLE_1) < set(ROWS) and all(len(row) == 8 for row in paper.TABLE_1.values())
    best = np.argmax(list(paper.TABLE_1.values()), 0)
    assert best.tolist() == [3] * 7 + [2]  # the most important heads win but once
    assert set(paper.TABLE_2) == set(paper.PAIRS)


def test_what_is_held_out_was_not_trained():
    out = held()
    assert tuple(out) == WHAT
    for trained, new in out.values():
        assert not set(trained) & set(new)
    tasks = {what: {p.split("_")[0] for p in trained} for what, (trained, _) in out.items()}
    languages = {what: {p.split("_")[1] for p in trained} for what, (trained, _) in out.items()}
    assert languages["a new language"] == {"en"} == languages["a new task and language"]
    assert "pa" not in tasks["a new task"] | tasks["a new task and language"]
    assert "nli" in tasks["a new pair"] and "es" in languages["a new pair"]
    assert set(STARTS) >= {"multi-task", "fomaml", "maml", "reptile", "anil"}


@pytest.mark.parametrize("size", ["small", "full"])
def test_larger_sizes_build_without_data_or_network(size, monkeypatch):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    models = {"bert": "google-bert/bert-base-uncased", "mbert": "google-bert/bert-base-multilingual-cased"}
    found = in_order(recipe.jobs(Scale(size, models=models, seeds=(0,))))
    assert len({job.key for job in found}) == len(found) > 60
    assert {job.config["model"] for job in found} == set(models)
    trained = [job for job in found if "pairs" in job.config]
    assert all(digest is None for job in trained for digest in job.config["pairs"].values())
    assert {job.config["part"] for job in trained} == {"table", "recovery", "meta"}
    gemma = recipe.jobs(Scale(size, models={"gemma3-270m": "/nowhere"}, seeds=(0,)))[0]
    assert gemma.config["pooling"] == "last" and trained[0].config["pooling"] == "cls"


def test_a_decoder_is_known_whatever_it_is_called(tmp_path):
    names = (("mine", "/a/gemma3"), ("mine", "/a/b"), ("bert", "/a/b"))
    assert [pooling_by_name(*each) for each in names] == ["last", "cls", "cls"]
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert pooling_by_name("mine", str(tmp_path)) == "last"


def test_records_fill_the_parts(ran):
    parts = {part.title: part for part in recipe.parts(Results(ran / "records"))}
    titles = [table["title"] for part in parts.values() for table in part.tables]
    assert [title for title in titles if "claims" not in title][:3] == [
        *("Pairs, tiny", "Table I, tiny", "Pruning and recovery, tiny")
    ]
    assert "Meta-test on a new pair, tiny" in titles and len(parts) == 6
    for table in (table for part in parts.values() for table in part.tables):
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
    one = parts["Fewer heads"].tables[0]
    assert [row[0] for row in one["rows"]] == list(ROWS)[:2] and one["published"] is None  # the corpus is no XTREME
    meta = parts["Learning a new pair from few examples"].tables[0]
    assert [row[1] for row in meta["rows"]] == ["multi-task", "fomaml"]
    gain, low, high, p, over = meta["rows"][1][-6:-1]
    assert low <= gain <= high and 0 < p <= 1 and meta["rows"][0][-6] is None
    assert over is None, "one seed says nothing of other trainings"


def test_the_page_is_written(ran, tmp_path):
    path = pages(recipes["mesh"], Results(ran / "records"), tmp_path, tables_out=tmp_path / "tables")
    text = path.read_text()
    assert "Table I, tiny" in text and "the embedded corpus" in text
    assert (tmp_path / "tables" / "tiny-table-i.csv").exists() and (tmp_path / "mesh" / "recovery.svg").exists()


def test_a_recovery_knows_what_the_cut_cost(ran):
    found = Records(Results(ran / "records")).part("tiny", "recovery")
    assert len(found) == 2
    for record in found:
        assert set(record.result["cut"]) == set(record.result["scores"]) == set(paper.PAIRS)


def test_languages_and_tasks(ran):
    (record,) = Records(Results(ran / "records")).apart
    kept = [p for p in paper.PAIRS if p not in record.result["left_out"]]
    assert set(record.result["importance"]) == set(kept)
    assert set(record.result["language"]["D"][0]["tasks"]) == {p.split("_")[1] for p in kept}
    shared = shared_heads(record)
    assert len(shared) == len(kept) * (len(kept) - 1) // 2 and all(0 <= v <= 1 for v in shared.values())
    assert relation("nli_en", "nli_es") == "same task, other language" and label("pa_es") == "PA-es"
    assert relation("nli_en", "qa_en") == "same language, other task"


def test_published_numbers_stand_beside_real_data(tmp_path):
    """Made-up records of two seeds: means, the gain over multi-task and its p-value."""
    results = Results(tmp_path)
    for name, value in (("multi-task", 0.5), ("train most important 30 %", 0.6)):
        for seed in (0, 1, 2):
            config = {"part": "table", "name": name, "model": "m", "source": "samples", "plan": {"seed": seed}}
            scores = {pair: {"value": value + 0.01 * seed * (1 if value > 0.5 else -1)} for pair in paper.PAIRS}
            results.save("mesh.train", config, {"scores": scores, "cut": {}, "tests": {}, "pairs": {}})
    made = table_one(Records(results), "m")
    base, ours = made["rows"]
    assert base[1] == pytest.approx(49) and ours[9] == pytest.approx(61)
    assert ours[11] == pytest.approx(12) and 0 < ours[12] < 0.05 and base[11] is None
    assert made["published"][1][1] == 75.40 and "two-sided" in made["note"]


def test_what_is_kept_is_kept_of_the_same_training(tmp_path):
    """Every model lost a tenth in every seed; seeds differ by more, and of some the whole or the cut one is gone."""
    results, work = Results(tmp_path), "mesh.train"
    for model, whole, cut in (("m", (0, 1), (0, 1)), ("n", (0, 1), (1,)), ("o", (0,), (0, 2))):
        for seed in range(3):
            config = {"model": model, "source": "samples", "plan": {"seed": seed}}
            before, after = ({pair: {"value": x * (0.4 + 0.2 * seed)} for pair in paper.PAIRS} for x in (1.0, 0.9))
            if seed in whole:
                results.save(work, {**config, "part": "table", "name": "multi-task"}, {"scores": before})
            if seed in cut:
                closed = {"part": "recovery", "name": "0.3 least", "method": {"trim": {"prune": 0.3}}}
                results.save(work, config | closed, {"scores": after, "cut": after})
    records = Records(results)
    kept = {model: recovery_table(records, model)["rows"][1][-2:] for model in "mno"}
    assert kept == {"m": [pytest.approx(90), 2], "n": [pytest.approx(90), 1], "o": [pytest.approx(90), 2]}
    found = models_table(records)
    assert found["rows"][0][-3:] == [pytest.approx(90)] * 3
    assert all(f" {told}" in found["note"] for told in ("m 2", "n 1", "o 2"))


def test_a_page_names_the_versions_of_all_its_records():
    made = [SimpleNamespace(about={"versions": {"torch": v}, "seconds": 30.0}) for v in ("2.11", "2.13", "2.11")]
    told = _reproduce([*made, SimpleNamespace(about={})])
    assert (
        "4 records, 1.5 minutes of computation in total: 2 by torch 2.11; 1 by torch 2.13; 1 by versions unknown."
        in told
    )


def test_a_gain_in_every_example_is_not_yet_one_over_trainings(tmp_path):
    """Three trainings a start, scores alike in all examples: sure over examples, which say nothing of trainings."""
    results, right = Results(tmp_path), {"multi-task": (50, 55, 45), "reptile": (51, 75, 47)}
    for start, scores in right.items():
        for seed, score in enumerate(scores):
            config = {"part": "meta", "name": f"a new pair: {start}", "model": "m", "source": "samples", "pairs": {}}
            counts = np.tile(np.array([score, 100], np.uint8), (2, 40, 1))  # (support sets, examples, right and seen)
            shots = [{"shots": 0, "value": 0.4}, {"shots": 4, "value": score / 100}]
            found = {"scores": {}, "tests": {"nli_es": {"metric": "accuracy", "shots": shots}}}
            config["plan"] = {"seed": seed}
            results.save("mesh.train", config, found, {"nli_es/4": counts})
    made = meta_table(Records(results), "m", "a new pair")
    row = dict(zip(made["columns"], made["rows"][1]))
    assert [row[name] for name in ("gain", "low", "high")] == pytest.approx([23 / 3] * 3) and row["p"] < 0.01
    assert row["p over seeds"] == pytest.approx(ttest_rel(right["reptile"], right["multi-task"]).pvalue)
    assert row["p over seeds"] > 0.2 and "not trainings" in made["note"]


def put_apart(results, seed, value, low, high, p):
    entry = {"mean": {"value": value, "low": low, "high": high, "p": p}, "tasks": {"en": {"value": value}}}
    entry["tasks"]["es"] = {"value": value}
    config = {"model": "m", "part": "apart", "source": "samples", "plan": {"seed": seed}}
    groups = {"fractions": [0.3], "D": [entry]}
    results.save("mesh.apart", config, {"language": groups})


def test_an_interval_of_d_is_over_seeds_and_each_seeds_own_is_counted(tmp_path):
    """Every seed is sure of its own D, and they are far apart: the mean of their intervals would exclude zero."""
    results, values = Results(tmp_path), (0.005, 0.01, 0.06)
    config = {"part": "table", "name": "multi-task", "model": "m", "source": "samples", "plan": {"seed": 0}}
    results.save("mesh.train", config, {"scores": {}})
    put_apart(results, 0, values[0], values[0] - 0.01, values[0] + 0.01, 0.2)
    made = groups_table(Records(results))
    one = dict(zip(made["columns"], made["rows"][0]))
    assert one["low"] is None and one["high"] is None and one["above 0"] == "0 of 1"
    for seed in (1, 2):
        put_apart(results, seed, values[seed], values[seed] - 0.004, values[seed] + 0.004, 0.01)
    made = groups_table(Records(results))
    row = dict(zip(made["columns"], made["rows"][0]))
    ends = ttest_1samp(values, 0).confidence_interval()
    assert [row["D"], row["low"], row["high"]] == pytest.approx([2.5, 100 * ends.low, 100 * ends.high])
    assert row["low"] < 0 and row["above 0"] == "2 of 3" and row["p"] == 0.2 and "over seeds" in made["note"]


def test_a_job_that_dies_in_its_meta_test_does_not_train_again(tmp_path, monkeypatch):
    def dies(*args, **options):
        raise MemoryError

    job = next(j for j in recipe.jobs(Scale("smoke")) if j.title.startswith("meta a new pair: fomaml, gates, pruned"))
    with monkeypatch.context() as now, pytest.raises(MemoryError):
        now.setattr("headwise.papers.mesh.works._tested", dies)
        perform(job, tmp_path, "cpu")
    monkeypatch.setattr("headwise.training.loop._step", dies)
    perform(job, tmp_path, "cpu")
    assert Results(tmp_path / "records")[job.key].result["tests"]
