"""The command line as a user meets it: one clear line on a mistake, plain data on request, readable in a file."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import typer.main

from headwise import cli
from headwise.cli import options
from headwise.cli.app import ORDER
from headwise.cli.options import describe, named_folders
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.io.files import read_arrays
from headwise.io.records import Results
from headwise.models.loading import load, load_encoder
from headwise.study.stages import Settings
from headwise.testing import playground, tiny
from headwise.training.plan import CHOICES, Plan

VERBS = sorted(command.name or command.callback.__name__ for command in cli.app.registered_commands)
OWN = "--task reviews=reviews.csv:text,label --task news=news.csv:text,label"
SHORT = "--steps 12 --batch-size 8 --lr 1e-3"
STUDY = f"study --model bert-tiny {OWN} {SHORT} --examples 48 --dev 20 --max-length 16"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return playground(tmp_path_factory.mktemp("play"))


@pytest.fixture
def headwise(place, monkeypatch, capsys):
    """Run a line in the playground: (exit code, standard output, standard error)."""
    monkeypatch.chdir(place)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headwise", *shlex.split(line)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def trained(headwise):
    """A model of `headwise train` on the two files."""
    assert headwise(f"train --model bert-tiny {OWN} {SHORT} --out runs/t")[0] == 0
    return "runs/t/model"


@pytest.fixture
def studied(headwise):
    assert headwise(f"{STUDY} --out runs/s --json")[0] == 0
    return "runs/s"


def refused(found, *words, code=2):
    """One line on standard error that holds these words, nothing on standard output, no traceback."""
    rc, out, err = found
    assert rc == code and not out, (rc, out)
    lines = [line for line in err.splitlines() if not line.lstrip().startswith("step ")]
    assert len(lines) == 1 and lines[0].startswith("headwise: "), err
    for word in words:
        assert word in lines[0], lines[0]


# -- help


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_helps_with_an_example(headwise, verb):
    code, out, _ = headwise(f"{verb} --help")
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())
    assert code == 0
    example = re.search(rf"Example: headwise {verb}\b", text)
    assert example, text[:400]


@pytest.mark.parametrize("verb", VERBS)
def test_examples_use_options_that_exist(verb):
    command = typer.main.get_command(cli.app).commands[verb]
    known = {option for parameter in command.params for option in parameter.opts}
    used = re.findall(r"--[a-z-]+", re.search(r"Example: (.+)", command.help)[1])
    assert set(used) <= known and ("--json" in known or verb == "lab")  # a server has no result to print


def test_defaults_of_a_plan_are_shown(headwise):
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", headwise("train --help")[1]).split())
    assert "[default: 2e-05]" in text and "[default: proportional]" in text


def choices(text):
    return set(re.split(r", | or ", text))


def test_choices_in_help_are_those_there_are():
    from headwise.scoring.importance import estimators
    from headwise.training.methods import methods

    assert set(options.ESTIMATORS) == set(estimators)
    assert choices(cli.making.METHODS) == set(methods)
    for name in [*CHOICES, "sampling"]:
        with pytest.raises(HeadwiseError) as error:
            Plan(**{name: "none such"})
        assert choices(re.search(r"One of: (.+)\. \\\[", describe(Plan, name))[1]) == choices(
            error.value.expected.removeprefix("one of: ")
        )


def test_brackets_in_help_are_no_markup(headwise):
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", headwise("sweep --help")[1]).split())
    assert "a TOML file: work, [config], [grid], [at]" in text


@pytest.mark.parametrize("line", ["", "--help", "-h"])
def test_no_verb_is_a_question_for_help(headwise, line):
    code, out, err = headwise(line)
    assert code == 0 and not err and all(verb in out for verb in VERBS)


def test_completion_is_offered(headwise):
    assert "--install-completion" in headwise("--help")[1]


# -- heads


def test_heads_shows_the_map(headwise):
    code, out, err = headwise("heads bert-tiny")
    assert code == 0 and not err
    assert "2 layers × 4 heads of size 6" in out and out.count("● ● ● ●") == 2 and "cut" in out


@pytest.mark.parametrize("name", ["nosuchmodel", "no/such", "./missing/folder", "a/b/c", "bad name!", ""])
def test_heads_of_a_bad_name_or_missing_folder(headwise, name):
    refused(headwise(f"heads {shlex.quote(name)}"), "folder")


def test_heads_of_a_corrupted_file(headwise, place, tmp_path):
    folder = shutil.copytree(place / "bert-tiny", tmp_path / "bad")
    weights = (folder / "model.safetensors").read_bytes()
    for broken in (weights[:500], b"\0" * len(weights), b"", weights[:-100]):
        (folder / "model.safetensors").write_bytes(broken)
        refused(headwise(f"heads {folder}"), "cannot load a model", "bad")


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_heads_of_an_incomplete_folder(headwise, place, tmp_path, missing):
    folder = shutil.copytree(place / "bert-tiny", tmp_path / "part")
    (folder / missing).unlink()
    refused(headwise(f"heads {folder}"), "cannot load a model", "config.json, model.safetensors")


def test_heads_of_no_attention(headwise, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nosuchfamily"}')
    refused(headwise(f"heads {tmp_path}"), "cannot load a model")


@pytest.mark.parametrize("line", ["--debug heads nosuchmodel", "heads nosuchmodel --debug"])
def test_debug_shows_the_traceback(headwise, line):
    code, _, err = headwise(line)
    assert code == 2 and "Traceback (most recent call last)" in err and "HeadwiseError" in err


def test_the_version_is_that_of_the_package(headwise):
    assert headwise("--version")[:2] == (0, f"headwise {version('headwise')}\n")
    import headwise as package

    assert package.__version__ == version("headwise")


def test_heads_of_what_headwise_wrote(headwise, trained):
    assert "● ● ● ●" in headwise(f"heads {trained}")[1]
    headwise(f"prune {trained} cut-again --mask {mask('1000', '0110')}")
    assert "    1  ● · · ●\n    0  · ● ● ●" in headwise("heads cut-again")[1]


# -- plain data


@pytest.mark.parametrize("line", ["heads bert-tiny", "tasks", "doctor"])
def test_json_is_json(headwise, line):
    code, out, err = headwise(f"{line} --json")
    assert code == 0 and not err
    assert json.loads(out)


def test_doctor_names_versions_devices_and_extras(headwise):
    found = json.loads(headwise("doctor --json")[1])
    assert torch.__version__.startswith(found["versions"]["torch"])  # a build's own mark may follow: +cu130
    assert {"hub", "plots", "captum", "onnx", "demo"} <= set(found["extras"])
    assert "kernels" in headwise("doctor")[1]


def test_every_extra_of_the_project_is_examined():
    import tomllib
    from pathlib import Path

    from headwise.cli.records import EXTRAS

    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    named = set(extras["optional-dependencies"]) - {"test", "check", "docs"}
    assert set(EXTRAS) == named


# -- tasks


def test_tasks_are_listed_and_shown(headwise):
    assert "corpus.sentiment" in headwise("tasks")[1]
    code, out, _ = headwise("tasks show corpus.topic --json")
    assert code == 0 and json.loads(out)["statistics"]["rows"] == 4000


def test_a_file_of_ones_own_is_shown(headwise):
    code, out, _ = headwise("tasks show mine=reviews.csv:text,label --json")
    assert code == 0 and json.loads(out)["statistics"]["rows"] == 320  # of 400, cut 80/10/10
    told = headwise("tasks show mine=reviews.csv:text,label")[1]
    assert "name: mine" in told and "sizes: train 320, dev 40, test 40" in told and "None" not in told
    refused(headwise("tasks show mine=none.csv:text,label"), "none.csv")


def test_a_part_of_a_name_lists_the_tasks_that_hold_it(headwise):
    found = [row["name"] for row in json.loads(headwise("tasks list senti --json")[1])]
    assert "corpus.sentiment" in found and all("senti" in name for name in found)
    refused(headwise("tasks list nosuch"), "nosuch", "headwise tasks")


def test_tasks_mistakes(headwise):
    refused(headwise("tasks show corpus.sentimant"), "corpus.sentiment")
    refused(headwise("tasks show"), "headwise tasks show")
    refused(headwise("tasks lsit"), "list or show")
    refused(headwise("tasks show reviews.csv"), "headwise tasks show mine=reviews.csv:text,label")
    refused(headwise("probe --model bert-tiny"), "headwise probe MODEL")


def test_help_lists_every_verb_once():
    assert sorted(ORDER) == sorted(VERBS)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mine=none.csv:text,label", ("none.csv",)),
        ("mine=reviews.csv:txt,label", ("txt", "text")),
        ("mine=reviews.csv:text", ("text,label",)),
        ("reviews.csv", ("name=file:columns",)),
        ("mine=bert-tiny/config.json:text,label", ("csv",)),
        ("mine=one.csv:text,label", ("two labels",)),
    ],
)
def test_own_files_that_do_not_fit(headwise, place, spec, words):
    (place / "one.csv").write_text("text,label\na,x\nb,x\n")
    refused(headwise(f"train --model bert-tiny --task {spec} --out runs/never"), *words)
    assert not (place / "runs" / "never").exists()


# -- train, importance, dissociate


def test_train_again_goes_on_and_other_settings_are_refused(headwise, trained):
    code, out, _ = headwise(f"train --model bert-tiny {OWN} {SHORT} --out runs/t --json")
    assert code == 0 and json.loads(out)["steps"] == 12 and json.loads(out)["trained"] == 0
    refused(headwise(f"train --model bert-tiny {OWN} {SHORT} --lr 0.5 --out runs/t"), "another run", "runs/t")


def test_train_says_metric_rows_and_whether_anything_was_trained(headwise):
    line = f"train --model bert-tiny {OWN} {SHORT} --out runs/once"
    first, again = headwise(line)[1], headwise(line)[1]
    for said in (first, again):
        assert re.search(r"reviews: accuracy \d+\.\d\d \(n = 40\)", said), said
    assert "nothing to train" not in first and "nothing to train: all 12 steps" in again
    assert "(n = 10)" in headwise(f"train --model bert-tiny {OWN} {SHORT} --max-dev 10 --out runs/few")[1]


def test_train_says_when_nothing_was_learned(headwise, place):
    """Planted: of rows with one label in ten a rate of nothing learns no more than the most common answer."""
    rows = [f"text {i % 7},{'rare' if i % 10 == 0 else 'common'}" for i in range(200)]
    (place / "skewed.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    slow = "--steps 40 --lr 1e-9 --head-lr 1e-2"
    line = f"train --model bert-tiny --task skewed=skewed.csv:text,label {slow} --out runs/skewed"
    said, again = headwise(line)[1], json.loads(headwise(f"{line} --json")[1])
    assert "the same answer for every row" in said and "no task was learned" in said and "--clip 1" in said
    assert again["one_class"] == ["skewed"]


def test_train_is_silent_where_something_was_learned(headwise):
    line = f"train --model bert-tiny {OWN} --steps 60 --lr 1e-3 --out runs/learned"
    said, again = headwise(line)[1], json.loads(headwise(f"{line} --json")[1])
    assert "answer for every row" not in said and again["one_class"] == []


def test_a_flag_overrides_the_plan_file(headwise, place):
    (place / "plan.toml").write_text("steps = 3\nbatch_size = 8\nlr = 0.5\n")
    line = f"train --model bert-tiny {OWN} --plan plan.toml --lr 0.001 --out runs/plan --json"
    assert json.loads(headwise(line)[1])["steps"] == 3
    kept = json.loads((place / "runs/plan/plan.json").read_text())
    assert kept["plan"]["lr"] == 0.001 and kept["plan"]["batch_size"] == 8


def test_heads_that_training_closed_can_be_cut(headwise, place):
    line = f"train --model bert-tiny {OWN} --method prune_least --alpha 0.5 --delta 0.5 --steps 4 --out runs/closed"
    _, out, _ = headwise(line)
    assert "4 of 8 heads are ablated" in " ".join(out.split())
    assert json.loads((place / "runs/closed/plan.json").read_text())["alpha"] == 0.5
    code, out, _ = headwise("prune runs/closed/model runs/opened --mask runs/closed/closed.json --json")
    assert code == 0 and json.loads(out)["heads_cut"] == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lrr = 1", ("lrr", "Try: lr")),
        ("steps = many", ("TOML",)),
        ("lr = 'fast'", ("a number",)),
        ("sampling = 'proportionl'", ("proportional",)),
        ("warmup = 7", ("0 to 1",)),
    ],
)
def test_plan_files_that_do_not_fit(headwise, place, text, words):
    (place / "wrong.toml").write_text(text)
    refused(headwise(f"train --model bert-tiny {OWN} --plan wrong.toml"), "wrong.toml", *words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train --model bert-tiny", ("--tasks corpus.sentiment,corpus.topic",)),
        ("train --model bert-tiny --tasks sst3", ("sst2",)),
        (f"train --model bert-tiny {OWN} --method iatt", ("iat",)),
        (f"train --model bert-tiny {OWN} --method scales --alpha 0.5", ("'scales'", "alpha")),
        (f"train --model bert-tiny {OWN} --alpha 0.5", ("'plain'", "alpha")),
        (f"train --model bert-tiny {OWN} --steps 0", ("above 0",)),
        (f"train --model bert-tiny {OWN} --pooling cl", ("cls",)),
        (f"train --model nosuchmodel {OWN}", ("nosuchmodel",)),
        ("train", ("--model", "Try: headwise train --help")),
        ("prune bert-tiny small", ("--mask", "--scores and --fraction")),
        ("trian", ("train", "Try: headwise --help")),
        (f"train --model bert-tiny {OWN} --method distill", ("distill", "teacher")),
        ("heads bert-tiny --josn", ("--json",)),
        ("heads bert-tiny --stack decoder", ("encoder",)),
        ("importance bert-tiny", ("bert-tiny", "no output head")),
        ("dissociate nowhere", ("nowhere",)),
        (f"study --model bert-tiny {OWN} --skip lesion", ("lesions",)),
        (f"study --model bert-tiny {OWN} --alpha 30", ("alpha",)),
        (f"study --model bert-tiny {OWN} --by gradeint", ("gradient",)),
        (f"study --model bert-tiny {OWN} --device gpu9", ("'gpu9'", "cpu")),
        (f"train --model bert-tiny {OWN} --device cuda:99", ("'cuda:99'", "cpu")),
        ("importance nowhere --device gpu9", ("'gpu9'", "cpu")),
        ("probe bert-tiny --tasks corpus.topic --device gpu9", ("'gpu9'", "cpu")),
        ("dissociate nowhere --dev 0", ("--dev",)),
        ("dissociate nowhere --random -1", ("--random",)),
        ("dissociate nowhere --fractions ''", ("0.1,0.3,0.5",)),
        ("dissociate nowhere --fractions 0.1,30", ("fraction of 30", "0.3 for 30 %")),
        ("dissociate nowhere --fractions nan", ("fraction of nan", "from 0 to 1")),
        ("importance nowhere --examples 0", ("--examples",)),
        ("probe bert-tiny --tasks corpus.topic --limit -4", ("--limit",)),
        ("probe bert-tiny --tasks corpus.topic --protocol sklern", ("sklearn",)),
        ("probe bert-tiny --tasks corpus.topic,corpus.qa", ("corpus.qa", "Classify")),
        (f"train --model bert-tiny {OWN} --max-length -3", ("--max-length",)),
        (f"study --model bert-tiny {OWN} --dev -3", ("dev=-3",)),
        ("recipe anatomy --seeds -1", ("--seeds",)),
        ("recipe anatomy --workers 0", ("--workers",)),
        ("ls nowhere", ("nowhere",)),
        ("report nowhere", ("nowhere",)),
    ],
)
def test_mistakes_are_one_line(headwise, line, words):
    refused(headwise(line), *words)


def test_importance_of_own_tasks(headwise, place, trained):
    assert headwise(f"importance {trained} --examples 20")[0] == 0  # its files are found again
    code, out, _ = headwise(f"importance {trained} {OWN} --examples 40 --out runs/scores.safetensors --json")
    assert code == 0
    found = json.loads(out)
    assert set(found) == {"reviews", "news"} and len(found["news"]["scores"]) == 2
    kept, _ = read_arrays(place / "runs/scores.safetensors")
    assert kept["news"].ravel().tolist() == pytest.approx([x for layer in found["news"]["scores"] for x in layer])
    again = headwise(f"importance {trained} {OWN} --examples 40 --out runs/scores.safetensors --json")
    assert json.loads(again[1]) == found
    said = headwise(f"importance {trained} {OWN} --examples 40 --out runs/scores.safetensors")[1]
    assert said.count("found in runs/scores.safetensors") == 2, "the same command resumes"
    assert "found in" not in headwise(f"importance {trained} {OWN} --examples 41 --out runs/scores.safetensors")[1]
    refused(headwise(f"importance {trained} {OWN} --task other=news.csv:text,label"), "other", "news")
    assert "reviews: top heads" in headwise(f"importance {trained} {OWN} --examples 40")[1]


def test_predict_writes_a_record_for_every_row(headwise, place, trained):
    Path("texts.csv").write_text("id,review\n1,the film was great\n2,a dull song\n")
    code, out, _ = headwise(f"predict {trained} texts.csv --task reviews --column text=review --out found.csv")
    assert code == 0 and "2 predictions" in out
    with Path("found.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["1", "2"] and {row["label"] for row in rows} <= {"good", "bad"}
    assert float(rows[0]["good"]) + float(rows[0]["bad"]) == pytest.approx(1, abs=1e-5)
    told = headwise(f"predict {trained} texts.csv --task reviews")
    assert told[0] == 0 and "good" in told[1]
    found = json.loads(headwise(f"predict {trained} reviews.csv --task reviews --json")[1])
    assert len(found) == 400 and set(found[0]) == {"label", "bad", "good"}
    refused(headwise(f"predict {trained} texts.csv"), "has 2 tasks", "--task reviews")
    refused(headwise(f"predict {trained} texts.csv --task revews"), "revews", "reviews")
    refused(headwise(f"predict {trained} texts.csv --task reviews --out found.xlsx"), "--out found.csv")
    refused(headwise(f"predict {trained} texts.pdf --task reviews"), ".csv")
    refused(headwise(f"predict {trained} news.csv --task reviews --column text=body"), "no column 'body'")


def test_a_task_is_exported_for_transformers(headwise, place):
    from transformers import pipeline

    assert headwise(f"train --model bert-tiny {OWN} {SHORT} --output-heads native --out runs/native")[0] == 0
    code, out, _ = headwise("export runs/native/model runs/reviews --task reviews --json")
    assert code == 0 and json.loads(out)["opened_by"] == "transformers (AutoModelFor...)"
    found = json.loads(headwise("predict runs/native/model reviews.csv --task reviews --json")[1])
    texts = [line.rpartition(",")[0] for line in Path("reviews.csv").read_text().splitlines()[1:20]]
    plain = pipeline("text-classification", "runs/reviews", device="cpu")(texts)
    assert [each["label"] for each in plain] == [each["label"] for each in found[:19]]
    refused(headwise("export runs/native/model runs/more"), "has 2 tasks", "--task reviews")
    assert headwise(f"train --model bert-tiny {OWN} {SHORT} --out runs/linear")[0] == 0
    refused(
        headwise("export runs/linear/model runs/more --task reviews"), "linear output head", "--output-heads native"
    )


def test_a_model_is_pushed(headwise, trained, monkeypatch, tmp_path):
    from hubserver import serving

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "hf_stand_in")
        code, out, _ = headwise(f"push {trained} me/two --evaluate --json")
        assert code == 0 and json.loads(out)["commit"].startswith(hub.url)
        card = hub.files("me/two")["README.md"].decode()
        assert "accuracy" in card and "| batch_size |" in card and "| method | plain |" in card
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        code, out, _ = headwise("predict me/two reviews.csv --task reviews --json")  # by its name
        assert code == 0 and json.loads(out) == json.loads(
            headwise(f"predict {trained} reviews.csv --task reviews --json")[1]
        )
    refused(headwise(f"push {trained} two"), "user/name")


def test_training_refuses_a_tracker_it_does_not_know(headwise):
    refused(headwise(f"train --model bert-tiny {OWN} {SHORT} --track wand --out runs/k"), "wand", "mlflow")


def test_training_goes_on_from_what_headwise_trained(headwise, place, trained):
    line = f"{OWN} --steps 1 --lr 0 --batch-size 8 --out"
    assert headwise(f"train --model {trained} {line} runs/next")[0] == 0
    for file in ("encoder/model.safetensors", "heads.safetensors"):
        assert (place / trained / file).read_bytes() == (place / "runs/next/model" / file).read_bytes()
    assert headwise(f"train --model {trained}/encoder {line} runs/afresh")[0] == 0
    made = [place / folder / "heads.safetensors" for folder in (trained, "runs/afresh/model")]
    assert made[0].read_bytes() != made[1].read_bytes()


def test_what_was_cut_is_measured_trained_and_studied(headwise, place, trained):
    """A trained model keeps its output heads when it is cut: nothing changes where no head goes."""
    assert headwise(f"prune {trained} runs/equal --mask {mask('0000', '0000')}")[0] == 0
    assert (place / "runs/equal/heads.safetensors").read_bytes() == (place / trained / "heads.safetensors").read_bytes()
    before, after = (headwise(f"importance {f} {OWN} --examples 40 --json")[1] for f in (trained, "runs/equal"))
    assert json.loads(before)["news"]["scores"] == json.loads(after)["news"]["scores"]
    cut = json.loads(headwise(f"prune {trained} runs/lost --mask {mask('1000', '0110')} --json")[1])
    assert cut["parameters_after"] < cut["parameters_before"]
    scores = json.loads(headwise(f"importance runs/lost {OWN} --examples 40 --json")[1])["news"]["scores"]
    assert [[x is None for x in row] for row in scores] == [[True, *3 * [False]], [False, True, True, False]]
    line = "--steps 4 --batch-size 8"
    assert headwise(f"train --model runs/lost {OWN} {line} --out runs/on")[0] == 0
    assert Heads.of(load("runs/on/model")).alive.tolist() == [[False, *3 * [True]], [True, False, False, True]]
    made = headwise(
        f"study --model runs/on/model {OWN} {line} --examples 20 --dev 20 --skip attention --out runs/thinner"
    )
    assert made[0] == 0 and not Heads.of(load("runs/thinner/model")).alive[0, 0]


@pytest.mark.parametrize("broken", ["heads", "about"])
def test_a_trained_model_that_is_not_whole_is_not_cut(headwise, place, trained, broken):
    shutil.copytree(place / trained, place / f"runs/no-{broken}")
    if broken == "heads":
        (place / "runs/no-heads/heads.safetensors").unlink()
    else:
        (place / "runs/no-about/headwise.json").write_text("{}")
    line = f"prune runs/no-{broken} runs/half-{broken} --mask {mask('1000', '0110')}"
    refused(headwise(line), "no output heads beside the encoder", "a whole model")
    assert not (place / f"runs/half-{broken}").exists()


def test_what_reads_pictures_goes_with_every_cut(headwise, place):
    pytest.importorskip("PIL.Image")
    from transformers import ViTImageProcessor

    tiny("vit").save_pretrained(place / "vit-tiny")
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(place / "vit-tiny")
    assert headwise(f"prune vit-tiny vit-less --mask {mask('1000', '0110')}")[0] == 0
    assert headwise(f"prune vit-less vit-least --mask {mask('1100', '0110')}")[0] == 0
    assert isinstance(load_encoder(place / "vit-least")[1], type(load_encoder(place / "vit-tiny")[1]))


def test_an_encoder_that_was_cut_gets_output_heads_by_training(headwise, place):
    assert headwise(f"prune bert-tiny cut-small --mask {mask('1000', '0110')}")[0] == 0
    refused(headwise("importance cut-small"), "cut-small is a sliced encoder", "without output heads")
    assert headwise(f"train --model cut-small {OWN} --steps 2 --batch-size 8 --out runs/fresh")[0] == 0
    assert Heads.of(load("runs/fresh/model")).alive.tolist() == [[False, *3 * [True]], [True, False, False, True]]


def test_importance_reads_no_task_that_is_not_named(headwise, trained):
    code, out, _ = headwise(f"importance {trained} --task news=news.csv:text,label --examples 40 --json")
    both = json.loads(headwise(f"importance {trained} {OWN} --examples 40 --json")[1])
    assert code == 0 and json.loads(out)["news"]["scores"] == both["news"]["scores"]
    refused(headwise(f"importance {trained} --task nwes"), "'nwes'", "news")


def test_dissociate(headwise, trained):
    code, out, _ = headwise(f"dissociate {trained} {OWN} --examples 40 --dev 20 --fractions 0.25,0.5 --json")
    assert code == 0 and json.loads(out)["fractions"] == [0.25, 0.5]
    code, out, _ = headwise(f"dissociate {trained} {OWN} --examples 40 --dev 20")
    assert code == 0 and "mean D" in out and "reviews × news" in out
    assert "α = 0.3: 2 of 8 heads closed" in out
    refused(headwise(f"dissociate {trained} {OWN} --fractions some"), "some", "0.1,0.3,0.5")


# -- prune


def mask(*layers: str) -> str:
    from pathlib import Path

    Path("mask.json").write_text(json.dumps([[cell == "1" for cell in layer] for layer in layers]))
    return "mask.json"


def test_prune_writes_once(headwise):
    code, out, _ = headwise(f"prune bert-tiny small --mask {mask('1000', '0110')} --json")
    found = json.loads(out)
    assert code == 0 and found["heads_cut"] == 3
    sizes = [load(path).num_parameters() for path in ("bert-tiny", "small")]
    assert [found["parameters_before"], found["parameters_after"]] == sizes and sizes[1] < sizes[0]
    masked = json.loads(headwise("prune bert-tiny same --mask mask.json --form masked --json")[1])
    assert masked["parameters_after"] == sizes[0]
    refused(headwise("prune bert-tiny small --mask mask.json"), "already exists")
    refused(headwise("prune bert-tiny other --mask mask.json --form compact"), "--form masked", "--form sliced")
    refused(headwise("prune bert-tiny other --mask mask.json --form slicd"), "sliced")
    refused(headwise("prune bert-tiny other --mask none.json"), "none.json")
    refused(headwise(f"prune bert-tiny other --mask {mask('10', '01')}"), "(2, 4)")


def test_prune_counts_what_it_cuts_and_not_what_was_gone(headwise):
    cut = mask("1000", "0010")
    assert "2 of 8 heads pruned, " in headwise(f"prune bert-tiny once --mask {cut}")[1]
    assert "0 of 8 heads pruned (2 were pruned before), " in headwise(f"prune once twice --mask {cut}")[1]
    code, out, _ = headwise(f"prune once more --mask {mask('1100', '0000')} --json")
    found = json.loads(out)
    assert code == 0 and (found["heads_cut"], found["heads_newly_cut"]) == (2, 1)


# -- study, report, ls


@pytest.mark.parametrize("debug", [False, True])
def test_a_stage_that_fails_ends_in_one_line_and_a_page_with_the_rest(place, headwise, monkeypatch, debug):
    def fails(*args, **kwargs):
        raise RuntimeError("no room")

    monkeypatch.setattr("headwise.heads.attention.attention_patterns", fails)
    folder = f"runs/failing{debug}"
    line = f"{STUDY} --skip lesions,iat,prune --out {folder} --json {'--debug' if debug else ''}"
    code, out, err = headwise(line)
    found = json.loads(out)
    assert code == 1 and found["failed"] == {"attention": "RuntimeError: no room"} and Path(found["page"]).exists()
    assert "headwise: stage 'attention' failed: RuntimeError: no room" in err.splitlines()
    assert ("Traceback" in err) == debug


def test_a_study_of_own_files_from_end_to_end(headwise, place):
    code, out, _ = headwise(f"{STUDY} --out runs/whole")
    assert code == 0
    for stage in ("Train the tasks together", "Score every head", "Ablate head sets", "against plain", "can be pruned"):
        assert stage in out
    assert "Findings" in out and str(place / "runs/whole/report.html") in out
    assert "reviews" in (place / "runs/whole/report.html").read_text()
    records = {record.key for record in Results(place / "runs/whole/records")}
    code, again, _ = headwise(f"{STUDY} --out runs/whole")
    assert code == 0 and again.count("already done, read back") == len(records)
    assert records == {record.key for record in Results(place / "runs/whole/records")}
    said = out[out.index("Findings") :]
    assert again.endswith(said), "the verdict of the second run is that of the first"


def test_every_setting_of_a_study_is_a_flag():
    command = typer.main.get_command(cli.app).commands["study"]
    flags = {option for parameter in command.params for option in parameter.opts}
    for name in {*vars(Settings()), *vars(Plan())} - {"plan"}:
        assert f"--{name.replace('_', '-')}" in flags, name


def test_a_config_file_is_what_its_flags_are(headwise, place):
    """Dumping a config, running from it and dumping again ends in the same file; what is typed wins."""
    line = (
        f"{STUDY} --fractions 0.2,0.5 --prune 0.25 --skip iat,prune --probes corpus.past_present --seed 3 --out runs/c"
    )
    code, dumped, _ = headwise(f"{line} --dump-config")
    assert code == 0 and not (place / "runs/c").exists()
    (place / "study.toml").write_text(dumped)
    assert headwise("study --config study.toml --dump-config")[1] == dumped
    changed = headwise("study --config study.toml --alpha 0.5 --steps 3 --dump-config")[1]
    different = {line for line in changed.splitlines() if line not in dumped.splitlines()}
    assert different == {"alpha = 0.5", "steps = 3"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alhpa = 0.3", ("'alhpa'", "alpha")),
        ("alpha = 30", ("alpha=30", "a fraction above 0")),
        ('alpha = "0.3"', ("alpha='0.3'", "a number")),
        ('tasks = "sst2"', ("tasks='sst2'", "a list of texts")),
        ("plan = { lrr = 1 }", ("'lrr'", "lr")),
        ("alpha = = 1", ("study.toml is not TOML", 'model = "bert-base-uncased"')),
        ("", ("no model", "--model")),
    ],
)
def test_a_wrong_config_is_refused(headwise, tmp_path, text, words):
    (tmp_path / "study.toml").write_text(text)
    refused(headwise(f"study --config {tmp_path}/study.toml"), *words)


def test_prune_by_stored_scores(headwise, place, trained):
    """Of a study, or of `importance --out`; both cut the same heads."""
    assert headwise(f"importance {trained} --examples 48 --out scores.safetensors")[0] == 0
    from_file = headwise(f"prune {trained} small-a --scores scores.safetensors --fraction 0.25")[1]
    assert "2 of 8 heads pruned" in from_file
    scores = read_arrays(place / "scores.safetensors")[0]
    study = {"model": {"name": "m", "layers": 2, "heads": 4}, "tasks": [{"name": name} for name in scores]}
    study["importance"] = {name: {"scores": values.tolist()} for name, values in scores.items()}
    (place / "study.json").write_text(json.dumps(study))
    assert headwise(f"prune {trained} small-b --scores study.json --fraction 0.25")[0] == 0
    assert torch.equal(Heads.of(load("small-a/encoder")).alive, Heads.of(load("small-b/encoder")).alive)


def test_prune_wants_one_way_to_choose_heads(headwise, place):
    for line in ("", "--scores study.json", "--fraction 0.3", "--mask m.json --scores s.json --fraction 0.3"):
        refused(headwise(f"prune bert-tiny small {line}"), "--mask, or --scores and --fraction")


def test_a_study_names_its_own_folder(headwise, place):
    code, out, _ = headwise(f"{STUDY} --skip lesions,attention,iat,prune --json")
    assert code == 0 and json.loads(out)["page"] == "runs/bert-tiny-reviews-news/report.html"
    kept = json.loads((place / "runs/bert-tiny-reviews-news/study.json").read_text())
    assert kept["reproduce"]["command"].startswith("headwise study --model bert-tiny")


def test_the_command_on_the_page_can_be_typed_again(headwise, place):
    line = f"{STUDY} --skip lesions,attention,iat,prune --out 'runs/my study' --json"
    assert headwise(line)[0] == 0
    kept = json.loads((place / "runs/my study/study.json").read_text())
    assert shlex.split(kept["reproduce"]["command"]) == ["headwise", *shlex.split(line)]


def test_report_of_one_and_of_two(headwise, place, studied):
    assert json.loads(headwise(f"report {studied} --out page.html --json")[1]) == {"page": "page.html"}
    assert headwise(f"report {studied}/study.json {studied} --out both.html")[0] == 0
    assert (place / "both.html").stat().st_size > (place / "page.html").stat().st_size


def test_ls_lists_filters_and_exports(headwise, place, studied):
    rows = json.loads(headwise(f"ls {studied} --json")[1])
    assert {row["work"] for row in rows} == set(
        ["train", "scores", "importance", "dissociation", "attention", "iat", "prune"]
    )
    [scored] = [row for row in rows if row["work"] == "scores"]
    assert set(scored["scores"]) == {"reviews", "news"} and "reviews " in headwise(f"ls {studied}")[1]
    refused(headwise(f"ls {studied} --where plan.sed=1"), "'plan.sed'", "plan.seed")
    only = json.loads(headwise(f"ls {studied} --where work=importance --where task=news --json")[1])
    assert len(only) == 1
    assert "importance" in headwise(f"ls {studied}")[1]
    assert headwise(f"ls {studied} --export all.csv")[0] == 0 and (place / "all.csv").exists()
    assert headwise(f"ls {studied} --where work=importance --export some.csv")[0] == 0
    with (place / "some.csv").open(newline="") as file:
        assert [row["work"] for row in csv.DictReader(file)] == ["importance"] * 2, (
            "what is filtered out is not exported"
        )
    refused(headwise(f"ls {studied} --export all.xls"), ".csv or .parquet")
    refused(headwise(f"ls {studied} --where importance"), "name=value")


# -- where to write


WRITERS = [
    f"{STUDY} --out",
    "demo --quick --out",
    f"train --model bert-tiny {OWN} --out",
    "prune bert-tiny --mask mask.json",
    "probe bert-tiny --tasks corpus.topic --out",
    "sweep grid.toml --out",
    "recipe anatomy --out",
    "recipe anatomy --pages",
    "importance bert-tiny --out",
    "dissociate bert-tiny --out",
]


@pytest.mark.parametrize("line", WRITERS)
def test_a_place_that_cannot_be_written_is_told_before_any_work(headwise, place, monkeypatch, line):
    for module in ("loading", "multitask"):
        monkeypatch.setattr(f"headwise.models.{module}.load_encoder", lambda *_: pytest.fail("work was done"))
    (place / "grid.toml").write_text('work = "handiwork:square"\n[grid]\nn = [1]\n')
    (place / "mask.json").write_text("[[true, false, false, false], [false, false, false, false]]")
    (place / "in-the-way").write_text("")
    refused(headwise(f"{line} in-the-way/here"), "in-the-way is a file")
    refused(headwise(f"{line} {'a' * 300}/here"), "File name too long")
    monkeypatch.setattr("os.access", lambda path, mode, **_: not mode & os.W_OK)
    refused(headwise(f"{line} new/here"), "no permission to write in", str(place))
    assert not (place / "new").exists()


def test_a_page_is_a_file_and_a_run_a_folder(headwise, place, studied):
    refused(headwise(f"report {studied} --out {studied}"), "is a folder", "a file")
    refused(headwise(f"ls {studied} --export {studied}"), "is a folder", "a file")
    refused(headwise(f"train --model bert-tiny {OWN} --out news.csv"), "news.csv is a file", "a folder")


# -- as a process


def process(place, line, **options):
    command = [sys.executable, "-m", "headwise", *shlex.split(line)]
    return subprocess.run(command, cwd=place, capture_output=True, timeout=120, **options)


def test_output_to_a_file_has_no_control_characters(place):
    done = process(place, f"{STUDY} --out runs/file --skip attention,prune")
    assert done.returncode == 0
    for stream in (done.stdout, done.stderr):
        text = stream.decode()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text), "a bar or a colour in a file"
        assert text.strip()
    assert b"Traceback" not in done.stderr


def test_a_mistake_as_a_process(place):
    done = process(place, "heads nosuchmodel")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and not done.stdout


# -- exit codes of what is no mistake of use


def test_a_failure_is_one_line_and_code_1(headwise, monkeypatch):
    def broken(*args):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(cli.measuring, "plain_encoder", broken)
    refused(headwise("heads bert-tiny"), "RuntimeError: the disk is full", code=1)


@pytest.mark.parametrize("said", ["", "stopped at step 3 of 9; run the same command to resume"])
def test_a_stop_by_hand_is_130_and_says_what_is_kept(headwise, monkeypatch, said):
    def stopped(*args):
        raise KeyboardInterrupt(said)

    monkeypatch.setattr(cli.measuring, "plain_encoder", stopped)
    refused(headwise("heads bert-tiny"), said or "stopped", code=130)


@pytest.mark.parametrize("line", [f"train --model bert-tiny {OWN} {SHORT}", STUDY])
def test_a_file_in_place_of_the_model_is_refused_before_training(headwise, place, monkeypatch, line):
    (place / "runs/taken").mkdir(parents=True, exist_ok=True)
    (place / "runs/taken/model").write_text("mine")
    monkeypatch.setattr("headwise.training.loop.fit", lambda *args, **kwargs: pytest.fail("training began"))
    refused(headwise(f"{line} --out runs/taken"), "runs/taken/model is a file")


def test_a_model_folder_may_be_a_link(headwise, place):
    (place / "disk/model").mkdir(parents=True)
    (place / "runs/linked").mkdir(parents=True)
    (place / "runs/linked/model").symlink_to(place / "disk/model")
    assert headwise(f"train --model bert-tiny {OWN} {SHORT} --out runs/linked")[0] == 0
    assert (place / "runs/linked/model").is_symlink() and (place / "disk/model/encoder/config.json").exists()


@pytest.mark.parametrize(
    "line",
    [
        "--skip attention --skip prune --probes corpus.bigram_shift --probes corpus.tree_depth",
        "--skip attention,prune --probes corpus.bigram_shift,corpus.tree_depth",
        "--skip attention, --skip ,prune --probes corpus.bigram_shift, --probes corpus.tree_depth",
    ],
)
def test_options_with_commas_may_be_repeated(headwise, monkeypatch, line):
    class Stop(Exception):
        pass

    def study(model, tasks, settings, *rest, **options):
        raise Stop(f"{settings.skip} {settings.probes} {[task.name for task in tasks]}")

    monkeypatch.setattr("headwise.study.study.Study", study)
    told = "('attention', 'prune') ('corpus.bigram_shift', 'corpus.tree_depth') ['corpus.topic', 'corpus.sentiment']"
    line = f"study --model bert-tiny --tasks corpus.topic --tasks corpus.sentiment {line}"
    refused(headwise(line), f"Stop: {told}", code=1)


def test_sigterm_in_a_training_is_143_and_a_checkpoint(place):
    words = f"train --model bert-tiny {OWN} --steps 100000 --out runs/ended --device cpu"
    command = [sys.executable, "-m", "headwise", *words.split()]
    running = subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    metrics, until = place / "runs/ended/metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < until and running.poll() is None:
        time.sleep(0.05)
    running.terminate()
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 143, errors.decode()
    assert b"Traceback" not in errors and b"run the same command to resume" in errors
    assert list((place / "runs/ended/checkpoints").iterdir())


def test_sigterm_elsewhere_is_one_line_and_143(headwise, monkeypatch):
    def ended(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(cli.measuring, "plain_encoder", ended)
    refused(headwise("heads bert-tiny"), "terminated", code=143)


# -- many runs


def test_a_sweep_whose_jobs_fail_ends_with_1(headwise, place, importable):
    (place / "bad.toml").write_text('work = "handiwork:refuse"\n[grid]\nn = [1]\n')
    code, out, _ = headwise("sweep bad.toml --workers 1 --out runs/bad")
    assert code == 1 and "1 not" in out
    code, out, _ = headwise("sweep bad.toml --workers 1 --out runs/bad --json")
    assert code == 1 and json.loads(out)["failed"]
    (place / "good.toml").write_text('work = "handiwork:square"\n[grid]\nn = [1]\n')
    code, out, _ = headwise("sweep good.toml --workers 1 --out runs/good --json")
    assert code == 0 and json.loads(out) == {
        **{"records": "runs/good/records", "done": 1, "failed": {}},
        "scores": {},  # of jobs that have some
    }


def test_a_sweep_ends_with_its_scores(headwise, place):
    config = 'work = "train"\n[config]\nmodel = "bert-tiny"\ntasks = ["corpus.topic", "corpus.sentiment"]\n'
    plan = "plan = { steps = 2, batch_size = 4, max_examples = 8, max_dev = 8 }\n"
    (place / "scored.toml").write_text(config + plan + '[grid]\n"plan.seed" = [0]\n')
    out = headwise("sweep scored.toml --workers 1 --out runs/scored")[1]
    header, row = [line.split() for line in out.splitlines() if line.startswith(("job", "plan.seed=0  "))][:2]
    assert header == ["job", "corpus.topic", "corpus.sentiment"] and all(0 <= float(v) <= 100 for v in row[1:])


@pytest.mark.parametrize(
    ("line", "absent"), [("--help", ("numpy", "torch", "transformers")), ("tasks", ("torch", "transformers", "scipy"))]
)
def test_what_answers_at_once_imports_little(line, absent):
    """The time limits, 0.4 s and 1 s, hang on these; `make bench` measures them."""
    code = f"import sys; from headwise.cli import app; app({line.split()!r}, standalone_mode=False)\n"
    code += f"assert not set({absent!r}) & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_models_are_named_by_their_folders(tmp_path):
    (tmp_path / "lr=0.1").mkdir()
    found = named_folders(["a/model", "b/model", "x=c", str(tmp_path / "lr=0.1")])
    assert found == {"a": "a/model", "b": "b/model", "x": "c", "lr=0.1": str(tmp_path / "lr=0.1")}
    with pytest.raises(HeadwiseError, match="two models named 'bert'"):
        named_folders(["a/bert", "b/bert"])
