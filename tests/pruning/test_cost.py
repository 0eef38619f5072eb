"""What a cut costs and gains is measured on inputs that the encoder takes."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headwise.heads.cutting import prune
from headwise.heads.gates import Heads
from headwise.measuring.evaluate import Score
from headwise.pruning import cost as cutting
from headwise.pruning.cost import LENGTH, ceiling, cheapest, least_needed, seconds, tokens
from headwise.tasks.task import Rows
from headwise.testing import tiny, tiny_batch, toy_model


@pytest.mark.parametrize("positions", [24, 200])
@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "gpt2"])
def test_speed_is_measured_within_the_positions_there_are(family, positions):
    name = "n_positions" if family == "gpt2" else "max_position_embeddings"
    encoder = tiny(family, **{name: positions})
    assert seconds(encoder, repeats=1)[0] > 0
    assert tokens(encoder) <= min(LENGTH, positions)
    assert positions < LENGTH or tokens(encoder) == LENGTH


@pytest.mark.parametrize("words", [1, 2, 6, 30, 49, 64])
@pytest.mark.parametrize("family", ["bert", "gpt2", "distilbert"])
def test_speed_is_measured_within_the_vocabulary_there_is(family, words):
    encoder = tiny(family, vocab_size=words, pad_token_id=0)
    assert seconds(encoder, repeats=1)[0] > 0


@pytest.mark.parametrize("family", ["vit", "deit", "dinov2"])
def test_speed_of_an_encoder_of_pictures_is_measured_on_pictures(family):
    encoder = tiny(family)
    assert seconds(encoder, repeats=1)[0] > 0
    assert tokens(encoder) in (5, 6)  # four patches, one token for the whole, and deit's second


@pytest.mark.parametrize("pace", [0.9, 1.0, 1.1])
def test_a_machine_that_gets_faster_or_slower_makes_no_speedup(monkeypatch, pace):
    """Every forward takes what the machine's load makes it take: whole and cut models are compared under the same."""
    ticks = itertools.accumulate(x for i in itertools.count() for x in (0.0, pace**i))
    monkeypatch.setattr(cutting, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    model = toy_model(rows=16)
    scores = {task: torch.rand(Heads.of(model.encoder).shape) for task in model.tasks}
    rows = cutting.trials(model, scores, (0.25, 0.5))["rows"]
    found = [row["speedup"] for row in rows]
    assert found == pytest.approx([1, 1, 1], rel=0.12), "no more than from one turn to the next"


# -- cuts are chosen on some rows and measured on others


def answers(task: str, rows: int, *accuracies: float, seed: int = 0) -> list[Score]:
    """A score for each cut, right on so many of two classes."""
    rng = np.random.default_rng([seed, *task.encode()])
    golds = rng.integers(2, size=rows).tolist()
    scores = []
    for accuracy in accuracies:
        found = [gold if luck < accuracy else 1 - gold for gold, luck in zip(golds, rng.random(rows))]
        scores.append(Score(task, "accuracy", float(np.mean(np.equal(found, golds))), found, golds))
    return scores


def rows_of(found):
    return cutting._rows(found, (0.0, 0.1, 0.3), (10, 9, 7))


def test_the_cheapest_cut_is_the_largest_that_costs_no_task_a_point():
    def rows(*losses, kept=(8, 7, 6)):
        return [
            {"fraction": f, "kept": k, "task scores": {"a": 0.9 - x}} for f, k, x in zip((0, 0.1, 0.3), kept, losses)
        ]

    assert cheapest(rows(0.0, 0.0, 0.005)) == 2
    assert cheapest(rows(0.0, 0.0, 0.2)) == 1
    assert cheapest(rows(0.0, 0.02, 0.2)) == 0
    assert cheapest(rows(0.0, 0.0, 0.0, kept=(4, 2, 0))) == 1, "nobody cuts all heads that are left"
    assert cheapest(rows(0.0, 0.0, 0.0, kept=(8, 8, 8))) == 0
    two = [row | {"task scores": row["task scores"] | {"b": 0.5 - row["fraction"]}} for row in rows(0.0, 0.0, 0.0)]
    assert cheapest(two) == 0 and cheapest(two, ["a"]) == 2, "tasks that were not learned do not choose"


def test_the_loss_on_the_rows_that_chose_is_too_small_and_that_of_nested_folds_is_not():
    """A cut that costs five points looks free on forty rows now and then, and is chosen exactly then."""
    chosen, nested, truth = [], [], []
    for seed in range(300):
        found = {"a": answers("a", 40, 0.8, 0.78, 0.75, seed=seed)}
        if row := cheapest(rows_of(found)):
            chosen.append(found["a"][row].value - found["a"][0].value)
            nested.append(cutting._nested(found, (0.0, 0.1, 0.3), (10, 9, 7), None)["a"]["value"])
            truth.append((0.0, -0.02, -0.05)[row])
    assert np.mean(chosen) > 0.02 > np.mean(truth), "the rows that chose promise a gain"
    assert np.mean(nested) < np.mean(chosen) - 0.02


def test_over_all_studies_nested_folds_are_right_on_average():
    """Also where no cut is chosen: the rule's own cost, each row cut as other rows choose."""
    nested, truth = [], []
    for seed in range(300):
        found = {"a": answers("a", 40, 0.8, 0.78, 0.75, seed=seed)}
        nested.append(cutting._nested(found, (0.0, 0.1, 0.3), (10, 9, 7), None)["a"]["value"])
        train = {"a": [cutting._part(score, np.arange(40) < 32) for score in found["a"]]}
        truth.append((0.0, -0.02, -0.05)[cheapest(rows_of(train))])
    assert np.mean(nested) == pytest.approx(np.mean(truth), abs=0.012)


def test_a_cut_is_measured_on_test_rows_where_there_are_some_and_in_folds_elsewhere(monkeypatch):
    model = toy_model(2, rows=64)
    scores = {task: torch.rand(Heads.of(model.encoder).shape) for task in model.tasks}
    for name, size in (("toy0", 20), ("toy1", 0)):
        task = model.tasks[name]
        rows = Rows(train=task.rows("train"), dev=task.rows("train")[:40], test=task.rows("dev")[:size])
        model.tasks[name] = replace(task, source=rows)
    monkeypatch.setattr(cutting, "cheapest", lambda rows, tasks=None: 1)
    found = cutting.trials(model, scores, (0.25,), limit=30)
    held_out = found["held out"]
    assert {task: change["split"] for task, change in held_out.items()} == {"toy0": "test", "toy1": "dev"}
    assert (held_out["toy0"]["n"], held_out["toy1"]["n"], found["chosen"]) == (min(20, 30), 30, 0.25)
    assert all(change["low"] <= change["value"] <= change["high"] for change in held_out.values())
    one, base = found["rows"][1]["task scores"]["toy1"], found["rows"][0]["task scores"]["toy1"]
    assert held_out["toy1"]["value"] == pytest.approx(one - base), "the same cut in every fold"


def test_ceiling_grows_with_what_is_cut_from_one():
    encoder = tiny("vit")
    every = torch.arange(8).view(2, 4)
    found = [ceiling(encoder, every < count, tokens(encoder)) for count in range(9)]
    assert found[0] == 1 and found == sorted(set(found))


@pytest.mark.parametrize("others", [-1.0, 0.0, 1.0])
def test_the_head_that_helps_least_goes_first_whatever_the_sign(others):
    """Also where closing most heads helps, and where a task's scores are all 0."""
    scores = torch.full((2, 4), others)
    scores[1, 2] = others - 1
    for more in ({}, {"nothing": torch.zeros(2, 4)}):
        cut = least_needed({"task": scores, **more}, 1 / 8, kv_heads=4)
        assert cut.nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 0.9])
def test_a_share_of_grouped_heads_is_that_share_in_whole_groups(fraction):
    scores = torch.rand(10, 9, generator=torch.Generator().manual_seed(0))
    mask = least_needed({"a": scores, "b": scores * 2}, fraction, kv_heads=3)
    groups = mask.unflatten(1, (3, 3))
    assert (groups.all(-1) == groups.any(-1)).all() and int(mask.sum()) == 3 * round(fraction * 30)
    cut, kept = (scores.unflatten(1, (3, 3)).sum(-1)[chosen] for chosen in (groups.all(-1), ~groups.any(-1)))
    assert cut.max() < kept.min()


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2", "llama", "mistral", "qwen2", "phi3", "modernbert"])
def test_the_ceiling_is_that_of_counted_operations(family):
    """Gated feed-forward layers have three matrices, and query heads may share keys and values."""
    encoder = tiny(family)
    encoder.set_attn_implementation("eager")
    heads = Heads.of(encoder)
    mask = torch.zeros(heads.shape, dtype=torch.bool)
    mask[:, : heads.num_heads // 2] = True
    batch = tiny_batch(encoder, batch=2, length=16)

    def operations(model):
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            model(**batch)
        return counted.get_total_flops()

    wanted = operations(encoder) / operations(prune(copy.deepcopy(encoder), mask))
    assert ceiling(encoder, mask, 16) == pytest.approx(wanted, rel=0.01)


def test_the_small_model_may_be_written_where_a_link_leads(tmp_path):
    model = toy_model()
    scores = {task: torch.rand(Heads.of(model.encoder).shape) for task in model.tasks}
    (tmp_path / "disk").mkdir()
    (tmp_path / "small").symlink_to(tmp_path / "disk")
    for _ in range(2):
        cutting.export_small(model, scores, 0.25, tmp_path / "small")
        assert (tmp_path / "small").is_symlink() and list((tmp_path / "disk").glob("*.safetensors"))
