"""`headwise recipe` on small recipes of these tests."""

from __future__ import annotations

import json
import shlex
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from handiwork import job
from typer.testing import CliRunner

from headwise import cli
from headwise.cli import app
from headwise.cli.options import method_settings
from headwise.dissociation.similarity import dse
from headwise.errors import HeadwiseError
from headwise.io.files import write_arrays
from headwise.measuring.evaluate import sentence_vectors
from headwise.models.multitask import MultiTaskModel
from headwise.papers.recipe import Part, recipes
from headwise.papers.specialization.glue import TESTS
from headwise.testing import playground


@pytest.fixture
def headwise(tmp_path, monkeypatch, capsys):
    """Run a line in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headwise", *shlex.split(line)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def refused(result, *words, code=2):
    """Nothing on standard output, one line of error with these words."""
    assert result[0] == code and not result[1]
    assert result[2].count("\n") == 1 and all(word in result[2] for word in words), result[2]


class Halves:
    """A recipe of which one job fails."""

    name, title, paper = "halves", "Halves", "none"

    def jobs(self, scale):
        return [job("square", seed) for seed in scale.seeds or (0, 1)] + [job("refuse")]

    def parts(self, results):
        table = {"title": "How many, square", "columns": ["records"], "rows": [[len(list(results))]]}
        return [Part("Records", str(len(list(results))), [table])]


def test_a_recipe_shows_what_is_there_and_ends_with_1_where_a_job_failed(headwise, importable, monkeypatch):
    monkeypatch.setitem(recipes._entries, "halves", Halves())
    code, out, _ = headwise("recipe halves --workers 1 --out runs/halves --json")
    told = json.loads(out)
    assert code == 1 and told["done"] == 2 and len(told["failed"]) == 1 and Path(told["page"]).exists()
    code, out, _ = headwise("recipe halves --no-run --out runs/halves --json")
    assert code == 0 and json.loads(out) == {"page": told["page"]}
    assert not list(Path("runs").rglob("*.csv"))
    assert headwise("recipe halves --no-run --out runs/halves --tables-out tables")[0] == 0
    assert Path("tables/how-many-square.csv").read_text().splitlines() == ["records", "2"]
    assert "2" in Path("tables/how-many-square.tex").read_text()


@pytest.mark.parametrize(("line", "seeds"), [("", [0, 1]), ("--seed 5", [5]), ("--seeds 3 --seed 4", [4, 5, 6])])
def test_seeds_of_a_recipe(headwise, monkeypatch, line, seeds):
    monkeypatch.setitem(recipes._entries, "halves", Halves())
    rows = json.loads(headwise(f"recipe halves --list --json {line}")[1])
    assert [row["key"] for row in rows[:-1]] == [job("square", seed).key for seed in seeds]


@pytest.mark.parametrize("line", ["--only nosuchtitle", "--only square --only nosuchtitle --list"])
def test_titles_that_no_job_of_a_recipe_has_are_refused(headwise, monkeypatch, line):
    monkeypatch.setitem(recipes._entries, "halves", Halves())
    told = ("'nosuchtitle'", job("square", 0).title, "headwise recipe halves --size smoke --list")
    refused(headwise(f"recipe halves {line}"), *told)
    assert len(json.loads(headwise("recipe halves --only square --list --json")[1])) == 2


OWN = {name: f"{name}={name}.csv:text,label" for name in ("reviews", "news")}
SHORT = "--model bert-tiny --steps 6 --batch-size 16 --lr 1e-3 --max-length 16"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return playground(tmp_path_factory.mktemp("trials"))


@pytest.fixture
def run(place, monkeypatch):
    monkeypatch.chdir(place)
    return lambda line: CliRunner().invoke(app, line.split(), catch_exceptions=False)


@pytest.fixture
def trained(run, place):
    """Two models of one task each, one of them meta-trained with gates."""
    if not (place / "b").exists():
        run(f"train {SHORT} --task {OWN['reviews']} --out a")
        meta = "--method meta --set algorithm=fomaml --set support=8 --set steps=1 --set gates=sigmoid"
        run(f"train {SHORT} --task {OWN['reviews']} {meta} --out b")
    return run


def test_settings_are_plain_values_and_reach_inside():
    given = ["algorithm=maml", "steps=2", "gates=null", "rates.heads=0.1", "rates.gates=1e-2"]
    expected = {"algorithm": "maml", "steps": 2, "gates": None, "rates": {"heads": 0.1, "gates": 0.01}}
    assert method_settings(given) == expected
    for wrong in (["algorithm"], ["=1"], ["trim=1", "trim.prune=0.3"]):
        with pytest.raises(HeadwiseError, match="--set"):
            method_settings(wrong)


def test_amounts_of_a_recipe_are_set_and_wrong_ones_name_those_there_are(run):
    line = "recipe mesh --only table-1 --list --json"
    plain, changed = (json.loads(run(f"{line} {more}").stdout) for more in ("", "--set dev=7 --set inner.steps=1"))
    assert [job["title"] for job in plain] == [job["title"] for job in changed]
    assert not {job["key"] for job in plain} & {job["key"] for job in changed}
    for wrong, said in (("dve=7", "dev"), ("plan.lr=1", "setting of this recipe"), ("dev=many", "like 24")):
        with pytest.raises(HeadwiseError, match=said):
            run(f"{line} --set {wrong}")


@pytest.mark.filterwarnings("ignore:labels not seen")
def test_words_are_probed_without_parameters(run, place):
    found = json.loads(run("probe bert-tiny --tasks corpus.dep,corpus.pos --limit 12 --json --out p").stdout)["probes"]
    assert found["corpus.dep"]["by"] != found["corpus.pos"]["by"] == "nearest centroid"
    assert all(len(one["by_label"]) == len(one["labels"]) > 1 for one in found.values())
    assert (place / "p" / "report.html").exists()


def test_a_setting_that_a_method_does_not_have_names_those_it_has(run):
    with pytest.raises(HeadwiseError, match="algorithm, steps, support"):
        run(f"train {SHORT} --task {OWN['reviews']} --method meta --set by=maml --out c")


def test_a_new_task_is_learned_from_several_models_on_the_same_rows(trained):
    line = f"metatest plain=a/model meta=b/model --task {OWN['news']} --shots 4,8 --draws 2 --limit 20 --json"
    found = json.loads(trained(f"{line} --set gates=sigmoid --steps 2 --rate 0.05").stdout)["news"]
    assert set(found) == {"plain", "meta"}
    for one in found.values():
        assert [row["shots"] for row in one["shots"]] == [0, 4, 8] and one["n"] == 20
    tuned = json.loads(trained(f"{line} --how fine-tune").stdout)["news"]
    assert tuned["starts"] == ["plain", "meta"] and np.shape(tuned["scores"]) == (2, 2, 2)
    with pytest.raises(HeadwiseError, match="fine-tune"):
        trained(f"{line} --how fine-tune --rate 0.1")


def test_similarity_is_that_of_the_models_vectors_or_of_heads(trained, place):
    found = json.loads(trained("similarity x=a/model y=b/model --by dse,cra --count 12 --json").stdout)
    assert [one["by"] for one in found] == ["dse", "cra"]
    from itertools import islice

    from headwise.tasks.corpus import sentences

    texts = [sentence.text for sentence in islice(sentences("en"), 12)]
    vectors = {n: sentence_vectors(MultiTaskModel.load(place / n / "model"), texts) for n in "ab"}
    assert found[0]["matrix"][0][1] == pytest.approx(dse(vectors).matrix[0, 1], abs=1e-6)
    rng = np.random.default_rng(0)
    write_arrays(place / "s.safetensors", {task: rng.random((2, 4), np.float32) for task in OWN})
    heads = json.loads(trained("similarity --scores s.safetensors --json").stdout)
    assert [one["by"] for one in heads] == ["overlap", "rank"] and set(heads[0]["tasks"]) == set(OWN)
    for wrong in ("similarity", "similarity x=a/model --by rank", "similarity --scores s.safetensors --by dse"):
        with pytest.raises(HeadwiseError):
            trained(wrong)


def test_a_submission_has_every_table(run, place, monkeypatch):
    """A model of RTE alone; what it lacks is filled in, or is an error."""
    monkeypatch.setattr(
        "headwise.papers.specialization.glue.TESTS", {n: TESTS[n]._replace(rows=3) for n in ("RTE", "WNLI")}
    )
    folder = place / "glue_data" / "RTE"
    folder.mkdir(parents=True)
    lines = [f"{i}\tone {i}\ttwo\t{'entailment' if i % 2 else 'not_entailment'}" for i in range(16)]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines]) + "\n")
    (folder / "test.tsv").write_text("index\tsentence1\tsentence2\n" + "".join(f"{i}\ta\tb\n" for i in range(3)))
    run(f"train {SHORT} --tasks rte --data glue_data --out g")
    with pytest.raises(HeadwiseError, match="WNLI"):
        run("submit g/model glue_data out.zip")
    said = run("submit g/model glue_data out.zip --fill")
    assert "WNLI with one class" in said.stdout
    with zipfile.ZipFile(place / "out.zip") as archive:
        assert {name: archive.read(name).decode().count("\n") for name in archive.namelist()} == {
            "RTE.tsv": 4,
            "WNLI.tsv": 4,
        }
