"""The lab without a server: a folder with a page, an ONNX model with gates as an input, and a browser runtime.

The model is an ONNX graph that onnxruntime-web runs; its files come from a local npm package, so nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from headwise.errors import HeadwiseError, missing_extra
from headwise.heads.gates import gated
from headwise.io import files as store
from headwise.lab import page
from headwise.lab.answers import Answers
from headwise.lab.opening import Opened
from headwise.models.multitask import MultiTaskModel, pool
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.tag import Tag

RUNTIME = ("ort.wasm.min.js", "ort-wasm-simd-threaded.wasm", "ort-wasm-simd-threaded.mjs")  # of onnxruntime-web
KINDS = (Classify, Regress, Tag)
CLOSE = 1e-4  # of the largest answer: a graph sums in another order
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'"
)


class Graph(nn.Module):
    """A model whose inputs are sub-words and gates and whose outputs are the scores of each task."""

    def __init__(self, model: MultiTaskModel, tasks: list[str]):
        super().__init__()
        self.model, self.tasks, self.heads = model, tasks, model.attention

    def forward(self, input_ids: torch.Tensor, gates: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = torch.ones_like(input_ids)
        with gated(self.model.encoder, gates, heads=self.heads):
            states = self.model.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
        pooled = pool(states, mask, self.model.pooling)
        return tuple(self._scores(task, states, pooled) for task in self.tasks)

    def _scores(self, task: str, states: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        head: Any = self.model.head(task)
        if isinstance(self.model.tasks[task].kind, Tag):
            return head.out(states)  # of a mean of sub-words it is the mean: the page takes it
        return head.out(head.inner(pooled))


def write_static(opened: Opened, folder: str | Path, runtime: str | Path) -> Path:
    """Write a folder that any web server can serve, after comparing every task's answers with the model's.

    Args:
        opened: a model that headwise trained, with tasks that classify, grade or tag.
        folder: to be made.
        runtime: the npm package onnxruntime-web (``npm install onnxruntime-web`` makes node_modules/onnxruntime-web).

    Example:
        >>> write_static(open_lab("runs/demo"), "site", "node_modules/onnxruntime-web")
    """
    model, tasks = _require_simple(opened.subject)
    ready = [_runtime_file(Path(runtime), name) for name in RUNTIME]
    words = tokenizer_of(model.tokenizer)
    about = page.about(opened, Answers(model))
    about |= {"tasks": [task | {"rows": 0} for task in about["tasks"] if task["name"] in tasks], "report": False}
    about |= {"atlas": False, "exports": False, "scores": {n: s for n, s in about["scores"].items() if n in tasks}}
    about |= {"static": {"max_length": model.max_length, "pool": {n: _pool_of(model, n) for n in tasks}, **words}}
    with store.folder(Path(folder)) as scratch:
        _write_graph(model, tasks, scratch / "model.onnx")
        _check_graph(model, tasks, scratch / "model.onnx")
        store.write(scratch / "about.json", json.dumps(about, ensure_ascii=False))
        store.write(scratch / "lab.html", _html())
        store.write(scratch / "lab.css", page.style())
        store.write(scratch / "lab.js", page.script("local.js"))
        for file in ready:
            shutil.copyfile(file, scratch / file.name)
    return Path(folder)


def _require_simple(subject: Any) -> tuple[MultiTaskModel, list[str]]:
    if not isinstance(subject, MultiTaskModel) or subject.output_heads != "linear":
        raise HeadwiseError(
            f"a {type(subject).__name__}", "a model of headwise train or study, with linear output heads"
        )
    if subject.use_heads is not None or subject.layer is not None or len(subject.scales):
        raise HeadwiseError("output heads on single heads, an inner layer or factors", "those on the last layer")
    tasks = [name for name, task in subject.tasks.items() if isinstance(task.kind, KINDS)]
    if not tasks:
        kinds = ", ".join(sorted({type(task.kind).__name__ for task in subject.tasks.values()}))
        raise HeadwiseError(f"tasks of kind {kinds}", "at least one that classifies, grades or tags")
    return subject, tasks


def _runtime_file(package: Path, name: str) -> Path:
    for place in (package / "dist" / name, package / name):
        if place.is_file():
            return place
    hint = "npm install onnxruntime-web, then --runtime node_modules/onnxruntime-web"
    raise HeadwiseError(f"no {name} in {package}", "the npm package onnxruntime-web", hint)


def _pool_of(model: MultiTaskModel, task: str) -> str:
    return getattr(model.tasks[task].kind, "pool", "")


def tokenizer_of(tokenizer: Any) -> dict[str, Any]:
    """BERT's WordPiece tokenizer as data; the page implements the same algorithm."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    model, normal, before = (rules.get(part) or {} for part in ("model", "normalizer", "pre_tokenizer"))
    if (model.get("type"), normal.get("type"), before.get("type")) != (
        "WordPiece",
        "BertNormalizer",
        "BertPreTokenizer",
    ):
        seen = f"a tokenizer of type {model.get('type')} with {normal.get('type')} and {before.get('type')}"
        raise HeadwiseError(seen, "BERT's WordPiece, the only one the page implements", "headwise lab, with a server")
    strip = normal["lowercase"] if normal.get("strip_accents") is None else normal["strip_accents"]
    ends = [tokenizer.cls_token_id, tokenizer.sep_token_id]
    return {
        "vocab": model["vocab"],
        "unknown": model["unk_token"],
        "prefix": model["continuing_subword_prefix"],
        "longest": model["max_input_chars_per_word"],
        "lowercase": normal["lowercase"],
        "strip": strip,
        "chinese": normal["handle_chinese_chars"],
        "special": [token["content"] for token in rules["added_tokens"] if token["special"]],
        "ends": ends,
    }


def _write_graph(model: MultiTaskModel, tasks: list[str], path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "onnx", "the lab without a server")
    graph = Graph(model, tasks).eval()
    sample = (torch.tensor([[1, 2, 3, 2]]), torch.ones(model.attention.shape))
    names = [f"scores_{number}" for number in range(len(tasks))]
    try:
        with warnings.catch_warnings():  # of what torch is about to change in itself
            warnings.simplefilter("ignore")
            torch.onnx.export(
                graph,
                sample,
                path,
                dynamo=True,
                external_data=False,
                dynamic_shapes=({1: Dim.DYNAMIC}, None),
                input_names=["input_ids", "gates"],
                output_names=names,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise HeadwiseError(f"torch.onnx cannot write {type(model.encoder).__name__} with gates ({error})") from error


@torch.no_grad()
def _check_graph(model: MultiTaskModel, tasks: list[str], path: Path) -> None:
    """Check that the graph answers as the gated model under several masks and lengths."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    graph, draw = Graph(model, tasks).eval(), torch.Generator().manual_seed(0)
    vocabulary = model.encoder.get_input_embeddings().num_embeddings
    for length in (3, 9, 17):
        ids = torch.randint(0, vocabulary, (1, length), generator=draw)
        gates = torch.rand(model.attention.shape, generator=draw).round(decimals=1)
        outputs = session.run(None, {"input_ids": ids.numpy(), "gates": gates.numpy()})
        for name, mine, theirs in zip(tasks, graph(ids, gates), outputs, strict=True):
            away = float((mine - torch.from_numpy(theirs)).abs().max() / mine.abs().max().clamp_min(1))
            if not away <= CLOSE:
                raise HeadwiseError(f"the graph's scores of {name!r} differ by {away:.2g}", f"{CLOSE:g} at most")


def _html() -> str:
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    text = page.html().replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}')
    return text.replace(
        '<script src="lab.js" defer>', f'<script src="{RUNTIME[0]}" defer></script>\n<script src="lab.js" defer>'
    )
