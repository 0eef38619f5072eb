"""The Hub, by a stand-in of its HTTP API on loopback: what is pushed comes back, with a card that says what it is."""

from __future__ import annotations

import json

import pytest
import yaml
from hubserver import serving
from transformers import AutoModel

from headwise.errors import HeadwiseError
from headwise.integrations.hub import from_pretrained, model_card, push_results, push_to_hub, without_places
from headwise.io.records import Results
from headwise.measuring.evaluate import evaluate
from headwise.models.multitask import MultiTaskModel
from headwise.pruning.export import export
from headwise.tasks.own_files import own
from headwise.testing import playground, toy_model
from headwise.training.plan import Plan


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving() as found:
        yield found


@pytest.fixture
def place(hub):
    return {"endpoint": hub.url, "token": "hf_stand_in"}


def front_matter(card: str) -> dict:
    return yaml.safe_load(card.split("---")[1])


def test_a_model_is_pushed_with_a_card_and_opened_by_name(hub, place, tmp_path):
    playground(tmp_path)
    model = toy_model(1).eval()
    model.add(own(f"reviews={tmp_path}/reviews.csv:text,label"))
    scores = {"reviews": evaluate(model, "reviews")}
    address = push_to_hub(model, "me/reviews", scores=scores, plan=Plan(steps=7), base="org/bert-tiny", **place)
    assert address.startswith(f"{hub.url}/me/reviews/commit/")
    files = hub.files("me/reviews")
    assert {"README.md", "headwise.json", "heads.safetensors", "config.json", "model.safetensors"} <= set(files)
    assert not any(str(tmp_path).encode() in content for content in files.values())  # nothing of this machine
    back = from_pretrained("me/reviews", **place).eval()
    assert back.predict("reviews", ["w1 good"]) == model.predict("reviews", ["w1 good"])
    with pytest.raises(HeadwiseError, match="no rows of task 'reviews'"):
        back.tasks["reviews"].rows("dev")
    assert hub.tokens == {"Bearer hf_stand_in"}

    card = files["README.md"].decode()
    about = front_matter(card)
    assert about["base_model"] == "org/bert-tiny" and about["language"] == ["en"]
    value = about["model-index"][0]["results"][0]["metrics"][0]
    assert value["type"] == "accuracy" and value["value"] == pytest.approx(scores["reviews"].value, abs=1e-4)
    low, high = scores["reviews"].interval()
    digest = json.loads(files["headwise.json"])["tasks"]["reviews"]["files"]["sha256"]["reviews.csv"]
    for words in (f"({100 * low:.1f} to {100 * high:.1f})", digest[:12], "| steps | 7 |", "0 of 8 attention heads"):
        assert words in card


def test_what_is_pushed_again_replaces_what_was_there(hub, place):
    push_to_hub(toy_model(2), "me/toys", **place)
    push_to_hub(toy_model(1), "me/toys", **place)
    assert list(from_pretrained("me/toys", **place).tasks) == ["toy0"]


def test_a_model_opens_by_its_name_like_a_folder(hub, place, monkeypatch):
    model = toy_model(2).eval()
    push_to_hub(model, "me/toys", **place)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    for back in (MultiTaskModel.from_pretrained("me/toys"), MultiTaskModel.load("me/toys", only=["toy1"])):
        assert back.eval().predict("toy1", ["w1 m1a"]) == model.predict("toy1", ["w1 m1a"])


def test_plain_transformers_opens_what_was_pushed(hub, place, tmp_path):
    model = toy_model(1, output_heads="native").eval()
    push_to_hub(model, "me/toy", private=True, **place)
    assert hub.private["me/toy"]
    for path, content in hub.files("me/toy").items():
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / path).write_bytes(content)
    assert AutoModel.from_pretrained(tmp_path / "copy").config.model_type == "bert"


def test_a_cut_model_comes_back_cut(hub, place, tmp_path):
    import torch

    mask = torch.tensor([[True, False, False, False], [False, True, True, False]])
    cut = MultiTaskModel.load(export(toy_model(), mask, tmp_path / "cut", "sliced")).eval()
    push_to_hub(cut, "me/cut", **place)
    assert "3 of 8 attention heads were cut" in hub.files("me/cut")["README.md"].decode()
    assert from_pretrained("me/cut", **place).predict("toy0", ["w1"]) == cut.predict("toy0", ["w1"])


def test_results_are_a_data_set(hub, place, tmp_path):
    results = Results(tmp_path / "results")
    for seed in range(3):
        results.save("importance", {"seed": seed}, {"value": seed / 2})
    push_results(results, "me/results", **place)
    files = hub.files("me/results", "datasets")
    (tmp_path / "results.parquet").write_bytes(files["results.parquet"])
    assert len(Results(tmp_path / "results.parquet")) == 3
    assert "| importance | 3 |" in files["README.md"].decode()


@pytest.mark.parametrize("name", ["reviews", "me/re views", "https://hub/me/x", "../x", "a/b/c"])
def test_names_that_are_no_repository_are_refused(name):
    with pytest.raises(HeadwiseError, match="user/name"):
        push_to_hub(toy_model(1), name)


def test_what_the_hub_refuses_is_one_line(hub, place):
    with pytest.raises(HeadwiseError, match=r"cannot read 'me/nothing' from the Hub"):
        from_pretrained("me/nothing", **place)
    hub.repos["models", "me/plain"] = {"config.json": b"{}"}
    with pytest.raises(HeadwiseError, match=r"has no headwise\.json.*starts training from it"):
        from_pretrained("me/plain", **place)
    with pytest.raises(HeadwiseError, match=r"cannot write 'me/x' to the Hub.*hf auth login"):
        push_to_hub(toy_model(1), "me/x", endpoint="http://127.0.0.1:9", token="hf_x")


def test_a_card_is_safe_whatever_tasks_are_called():
    entry = {"kind": {"type": "Classify"}, "language": "no", "origin": "a | <b> file", "metric": "accuracy"}
    name = 'x: "y"\\'
    card = model_card({"tasks": {name: entry}}, "me/m", scores={name: {"metric": "accuracy", "value": 1.0}})
    about = front_matter(card)
    assert about["model-index"][0]["results"][0]["dataset"]["name"] == name and about["language"] == ["no"]
    assert "a \\| &lt;b> file" in card and "Citation" not in card
    assert "EMNLP 2023" in model_card({"tasks": {name: entry}}, "me/m", plan={"method": "iat"})


def test_places_are_no_part_of_what_is_shared():
    files = {"root": "/home/me", "sha256": {"a.csv": "0" * 64}, "layout": {}}
    entry = {"kind": {"type": "Classify"}, "language": "en", "origin": "csv files, /home/me", "files": files}
    assert "/home/me" not in json.dumps(without_places({"tasks": {"a": entry}}))
