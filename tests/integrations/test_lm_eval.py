"""lm-evaluation-harness both ways: its tasks give its own answers here, and its evaluation runs under our gates."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from headwise import tasks
from headwise.errors import HeadwiseError
from headwise.measuring.evaluate import evaluate
from headwise.models.language import LanguageModel
from headwise.tasks.catalog.known import PARADIGMS
from headwise.testing import toy_language_model

pytest.importorskip("lm_eval")
pytestmark = pytest.mark.filterwarnings("ignore")  # the harness and what it imports warn in many ways

NEAR = 1e-4


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def write_rows(folder: Path, name: str, split: str, rows: list[dict]) -> None:
    path = folder / "lm-eval" / name / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def toy_files(folder: Path) -> None:
    """Files for a task of several choices, one of minimal pairs, one of last words and one of answers."""
    questions = [
        {
            "question": f"w{i} w{i + 3}",
            "choices": {"text": [f"w{i + 1}", f"w{i + 2} w{i}", "w9 w9 w8"], "label": ["A", "B", "C"]},
            "answerKey": "ABC"[i % 3],
        }
        for i in range(8)
    ]
    for split in ("train", "validation", "test"):
        write_rows(folder, "arc_easy", split, questions)
    pairs = [{"sentence_good": f"w{i} w{i + 1}", "sentence_bad": f"w{i + 1} w{i} w2"} for i in range(8)]
    write_rows(folder, "blimp_causative", "train", pairs)
    for split in ("validation", "test"):
        write_rows(folder, "lambada_openai", split, [{"text": f"w{i} w5 w{i + 2}"} for i in range(6)])


def by_harness(lm: LanguageModel, harness) -> dict[str, list[list[tuple[float, bool]]]]:
    """What the harness finds for each request of each document, by the name of our task."""
    import lm_eval

    own = {name: getattr(task.source, "task", None) or task.source.source.task for name, task in lm.tasks.items()}
    how = {"log_samples": True, "bootstrap_iters": 0, "verbosity": "ERROR"}
    samples = lm_eval.simple_evaluate(harness, tasks=list(own.values()), **how)["samples"]
    ordered = {name: sorted(samples[task.config.task], key=lambda s: s["doc_id"]) for name, task in own.items()}
    return {name: [[tuple(r[0]) for r in sample["resps"]] for sample in found] for name, found in ordered.items()}


def gated_lm(lm, gates=None, **options):
    from headwise.integrations.lm_eval import GatedLM

    return GatedLM(lm, gates, batch_size=4, **options)


@pytest.fixture
def toy(tmp_path):
    toy_files(tmp_path)
    lm = toy_language_model("llama", torch.float32)
    names = ("lm-eval:arc_easy", "lm-eval:blimp_causative", "lm-eval:lambada_openai")
    return LanguageModel(lm.model, lm.tokenizer, [tasks.get(name, tmp_path) for name in names])


def test_answers_are_those_of_the_harness_under_a_lesion(toy):
    gates = torch.ones(1, *toy.attention.shape)
    gates[0, 0, 1:] = 0
    harness = by_harness(toy, gated_lm(toy, gates[0]))
    for name in toy.tasks:
        score = evaluate(toy, name, gates, split="test")[0]
        assert len(harness[name]) == score.examples
        for prediction, row in zip(score.predictions, harness[name]):
            if hasattr(prediction, "scores"):
                assert list(prediction.scores) == pytest.approx([total for total, _ in row], abs=NEAR)
            else:
                assert prediction.total == pytest.approx(row[0][0], abs=NEAR)
                assert prediction.exact == row[0][1]


def test_gates_of_one_change_no_bit_of_the_harness(toy):
    from lm_eval.models.huggingface import HFLM

    plain = HFLM(pretrained=toy.model, tokenizer=toy.tokenizer, batch_size=4, device="cpu")
    requests = [r for task in toy.tasks.values() for r in requests_of(task)]
    ones = gated_lm(toy, torch.ones(toy.attention.shape)).loglikelihood(requests)
    assert plain.loglikelihood(requests) == ones


def requests_of(task) -> list:
    from lm_eval.api.instance import Instance

    made = []
    for row in task.rows("test"):
        for choice in row.get("choices") or [row["target"]]:
            context = (row["prompt"], task.kind.reading.delimiter + choice)
            made.append(Instance("loglikelihood", {}, context, len(made)))
    return made


def test_what_the_harness_cannot_keep_apart_is_refused(toy, tmp_path):
    import lm_eval

    shape = toy.attention.shape
    with pytest.raises(HeadwiseError, match="sorts its requests by length"):
        gated_lm(toy, torch.ones(3, *shape))
    with pytest.raises(HeadwiseError, match="a reference of shape"):
        gated_lm(toy, torch.ones(shape), reference=torch.zeros(1, *shape, toy.attention.head_dim))
    with pytest.raises(HeadwiseError, match=r"\(layers, heads\)"):
        gated_lm(toy, torch.ones(1, 1))
    task = toy.tasks["lm-eval:arc_easy"].source.task
    with pytest.raises(HeadwiseError, match="use_cache"):
        lm_eval.simple_evaluate(gated_lm(toy), tasks=[task], use_cache=str(tmp_path / "cache"), bootstrap_iters=0)


def test_tasks_that_cannot_be_had_are_refused_in_one_line(tmp_path):
    for name, message in (
        ("lm-eval:arc_eazy", "unknown task of lm-evaluation-harness"),
        ("lm-eval:blimp", "a group of tasks"),
        ("lm-eval:sst2", r"cannot read lm-eval:sst2.*SPLIT\.parquet"),
    ):
        with pytest.raises(HeadwiseError, match=message):
            tasks.get(name, tmp_path)


def test_rows_are_read_from_local_files(toy):
    task = toy.tasks["lm-eval:arc_easy"]
    assert task.rows("dev")[0] == {
        "prompt": "Question: w0 w3\nAnswer:", "choices": ["w1", "w2 w0", "w9 w9 w8"], "label": 0
    }  # fmt: skip
    pairs = toy.tasks["lm-eval:blimp_causative"]
    assert len(pairs.rows("train")) + len(pairs.rows("dev")) == len(pairs.rows("test")) == 8


def real_files(folder: Path, data: Path, rows: int) -> list[str]:
    """BLiMP's paradigms, SST-2 and RTE as the harness wants them, so many rows of each."""
    import pyarrow.parquet as pq

    names = []
    table = pq.read_table(data / "blimp" / "test.parquet").to_pylist()
    for name in PARADIGMS:
        write_rows(folder, f"blimp_{name}", "train", [row for row in table if row["uid"] == name][:rows])
        names.append(f"lm-eval:blimp_{name}")
    fields = {"sst2": {"sentence": "text_a"}, "rte": {"sentence1": "text_a", "sentence2": "text_b"}}
    for name, columns in fields.items():
        found = pq.read_table(data / name / "dev.parquet").to_pylist()[: 4 * rows]
        made = [{**{ours: row[theirs] for ours, theirs in columns.items()}, "label": row["label"]} for row in found]
        for split in ("train", "validation"):
            write_rows(folder, name, split, made)
        names.append(f"lm-eval:{name}")
    return names


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.realweights
@pytest.mark.parametrize("name", ["stories15m", "smollm2-135m", "gemma3-270m"])
def test_real_models_answer_as_in_the_harness(name, tmp_path, data_folder):
    """HEADWISE_HARNESS_ROWS of each of BLiMP's 67 paradigms, four times as many of SST-2 and RTE.

    In float64: likelihoods of float32 reach -300, and their last digits depend on the order of a batch.
    """
    rows = int(os.environ.get("HEADWISE_HARNESS_ROWS", "2"))
    folder = Path(os.environ["HEADWISE_WEIGHTS"]) / name
    names = real_files(tmp_path, data_folder, rows)
    lm = LanguageModel.from_pretrained(
        folder, [tasks.get(each, tmp_path) for each in names], reading={"long": "left"}
    ).double()
    theirs, away, ties, count, right = by_harness(lm, gated_lm(lm)), 0.0, 0, 0, 0
    for each in lm.tasks:
        score = evaluate(lm, each, split="test")
        for prediction, row, gold in zip(score.predictions, theirs[each], score.golds, strict=True):
            totals = [total for total, _ in row]
            away = max(away, max(abs(a - b) for a, b in zip(prediction.scores, totals)))
            first, second = sorted(totals)[:-3:-1]
            tie = first - second < 2 * NEAR
            assert prediction == totals.index(first) or tie, (each, prediction.scores, totals)
            ties, count, right = ties + tie, count + 1, right + (prediction == gold)
    print(f"{name}: {count} rows, largest difference {away:.1e}, {ties} ties, accuracy {right / count:.4f}")
    assert away < NEAR
