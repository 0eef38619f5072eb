"""The lab without a server: a graph that answers as the model does, in Python and in the browser alike."""

from __future__ import annotations

import functools
import http.server
import json
import os
import threading
import time
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headwise.errors import HeadwiseError
from headwise.heads.gates import gated
from headwise.lab.opening import Opened
from headwise.lab.static import RUNTIME, tokenizer_of, write_static
from headwise.models.multitask import MultiTaskModel
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.tag import Tag
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, tiny_tokenizer, toy_language_model

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-é中\u00df\u0130"
VOCAB = [*SPECIAL, *LETTERS, *(f"##{c}" for c in LETTERS), "the", "film", "was", "play", "##ing", "##ed", "un"]
TEXTS = (
    "The film was playing.",
    "THE Café wasn't unplayed!?",
    "film\u00a0 was\tthe\u200b 中film [MASK] x[SEP]y",
    "\u0130stanbul stra\u00dfe \U0001f600 e\u0301",
    "a" * 120,
    "  -- ,, ",
)
LONG = "the film " * 40


def word_pieces() -> PreTrainedTokenizerFast:
    """BERT's own pipeline over a small vocabulary."""
    inner = Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(VOCAB)}, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", VOCAB.index("[CLS]")), ("[SEP]", VOCAB.index("[SEP]"))]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL))
    return PreTrainedTokenizerFast(tokenizer_object=inner, **names)


@pytest.fixture(scope="module")
def opened() -> Opened:
    rows = {
        "c": {"text": "the", "label": "a"},
        "g": {"text": "the", "label": 1.0},
        "t": {"words": ["the"], "labels": ["N"]},
    }
    kinds = {"c": Classify(("a", "b", "c"), inner=True), "g": Regress(0, 5), "t": Tag(("N", "V"))}
    tasks = [Task(name, kind, Rows(dev=[rows[name]]), "accuracy") for name, kind in kinds.items()]
    torch.manual_seed(0)
    model = MultiTaskModel(tiny("bert", vocab_size=len(VOCAB)), word_pieces(), tasks, pooling="mean", max_length=64)
    return Opened(model.eval(), "m", "toy", {"c": [[0.1, 0.4, 0.2, 0.3]] * 2})


@pytest.fixture(scope="module")
def runtime(tmp_path_factory) -> Path:
    """onnxruntime-web where it is, else empty files of its names."""
    for place in (os.environ.get("HEADWISE_ORT", ""), "node_modules/onnxruntime-web"):
        if place and (Path(place) / "dist").is_dir():
            return Path(place)
    folder = tmp_path_factory.mktemp("ort")
    for name in RUNTIME:
        (folder / name).write_text("")
    return folder


@pytest.fixture(scope="module")
def site(opened, runtime, tmp_path_factory) -> Path:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    return write_static(opened, tmp_path_factory.mktemp("static") / "site", runtime)


@pytest.mark.slow  # torch.onnx takes its time
def test_the_graph_answers_as_the_model_under_any_gates(opened, site):
    import onnxruntime

    session = onnxruntime.InferenceSession(site / "model.onnx", providers=["CPUExecutionProvider"])
    model, gates = opened.subject, torch.tensor([[0.0, 0.5, 1.0, 1.0], [1.0, 0.0, 1.0, 0.25]])
    text = "the film was playing"
    ids = model.tokenizer(text, return_tensors="np")["input_ids"]
    found = session.run(None, {"input_ids": ids, "gates": gates.numpy()})
    with gated(model.encoder, gates):
        expected = model.predict("c", [text])[0].probabilities
    chances = torch.from_numpy(found[0])[0].softmax(-1).tolist()
    assert all(abs(a - b) < 1e-5 for a, b in zip(chances, expected.values()))
    assert {file.name for file in site.iterdir()} == {
        "lab.html",
        "lab.css",
        "lab.js",
        "about.json",
        "model.onnx",
        *RUNTIME,
    }
    assert "unsafe-inline" not in (site / "lab.html").read_text()


def test_what_a_browser_cannot_run_is_refused(opened, tmp_path):
    with pytest.raises(HeadwiseError, match="npm install onnxruntime-web"):
        write_static(opened, tmp_path / "site", tmp_path)
    with pytest.raises(HeadwiseError, match="linear output heads"):
        write_static(Opened(toy_language_model(), "m", "lm"), tmp_path / "site", tmp_path)
    with pytest.raises(HeadwiseError, match="WordPiece"):
        tokenizer_of(tiny_tokenizer(["a"]))


@pytest.fixture
def served(site):
    """The folder on a plain web server."""
    handler = functools.partial(_Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/lab.html"
    server.shutdown(), server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.browser
def test_the_browser_answers_as_predict_does(opened, served, runtime, browser):
    if not (runtime / "dist").is_dir():
        pytest.skip("needs onnxruntime-web: npm install onnxruntime-web, or HEADWISE_ORT=.../onnxruntime-web")
    gates, model = [[0.0, 0.5, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0]], opened.subject
    browser.size(1440, 900)
    browser.open(served, "#t=the+film")
    until = time.monotonic() + 30
    while not browser.run("return document.querySelectorAll('.answer .chance').length"):
        assert time.monotonic() < until, browser.console()
        time.sleep(0.1)
    for text in TEXTS:
        assert browser.run("return encode(arguments[0])", text) == model.tokenizer(text)["input_ids"], text
        found = _answers(browser, text, gates)["after"]
        if not text.strip():
            continue
        with gated(model.encoder, torch.tensor(gates)):
            expected = {name: model.predict(name, [text])[0] for name in model.tasks}
        assert all(abs(found["c"]["probabilities"][k] - v) < 1e-5 for k, v in expected["c"].probabilities.items())
        assert abs(found["g"]["value"] - expected["g"].value) < 1e-5
        assert found["t"]["tags"] == expected["t"].tags
        assert all(abs(a - b) < 1e-5 for a, b in zip(found["t"]["probabilities"], expected["t"].probabilities))
    assert "longer than 64" in _answers(browser, LONG, gates)["after"]["c"]["problem"]
    browser.point('[data-head="1.1"]', click=True)
    assert browser.run("return document.querySelectorAll('.panel:not([hidden])').length") == 1, (
        "what needs a server is hidden"
    )
    assert browser.console() == []
    assert all(url.startswith((served.rpartition("/")[0], "data:", "about:", "blob:")) for url in browser.requests())


def _answers(browser, text: str, gates: list[list[float]]) -> dict:
    script = (
        "const done = arguments[2];answersTo(arguments[0], arguments[1]).then((after) => done(JSON.stringify({after})))"
    )
    return json.loads(browser._call("POST", "/execute/async", {"script": script, "args": [text, gates]}))
