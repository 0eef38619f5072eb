"""The costs of docs/scale.md follow simple laws, and the page shows what its program prints."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
FEW = settings(max_examples=30, deadline=None)
AMOUNTS = st.floats(0, 1e12)


@pytest.fixture(scope="module", autouse=True)
def programs():
    """The programs beside the benchmarks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield


def scale():
    return importlib.import_module("scale")


def recipes():
    return importlib.import_module("scale_recipes")


def test_the_page_shows_what_the_program_prints():
    text = (ROOT / "docs" / "scale.md").read_text()
    assert scale().written(text, scale().page()) == text, "run: python benchmarks/scale.py --write"
    assert len(re.findall(r"^\| specialization \|", text, re.M)) == 1


def test_a_changed_rate_changes_the_page(monkeypatch):
    s = scale()
    before = s.page()
    value, *words = s.RATES["base_bf16"]
    monkeypatch.setitem(s.RATES, "base_bf16", (2 * value, *words))
    assert s.page() != before


@FEW
@given(st.lists(AMOUNTS, min_size=5, max_size=5), st.sampled_from(["bert-base", "bert-large", "minilm"]))
def test_cost_is_linear_in_what_is_done(done, model):
    s, r = scale(), recipes()
    for precision in ("fp32", "bf16"):
        once = s.seconds(r.Amount(*done), model, precision)
        apart = sum(s.seconds(r.Amount()._replace(**{n: v}), model, precision) for n, v in zip(r.Amount._fields, done))
        assert s.seconds(r.Amount(*(3 * v for v in done)), model, precision) == pytest.approx(3 * once)
        assert apart == pytest.approx(once)


def test_a_step_costs_what_was_measured():
    s, r = scale(), recipes()
    step, example = r.Amount(trained=32 * r.LENGTH), r.Amount(scored=r.LENGTH)
    assert s.seconds(step, "bert-base", "fp32") == pytest.approx(s.rate("base_fp32"))
    assert s.seconds(step, "minilm", "bf16") == pytest.approx(s.rate("mini_bf16"))
    assert s.seconds(example, "bert-base", "bf16") == pytest.approx(s.rate("importance"))
    assert s.seconds(r.Amount(probed=1), "bert-base", "bf16") == pytest.approx(s.rate("probe"))


@FEW
@given(st.integers(1, 100), st.integers(1, 10))
def test_training_is_linear_in_epochs_and_examples(epochs, times):
    r = recipes()
    plan = {"epochs": epochs, "evaluate_every": 0, "train": "all"}
    made = r.training({"plan": plan, "tasks": ["sst2", "cola"]}, {})
    more = r.training({"plan": {**plan, "epochs": times * epochs}, "tasks": ["sst2", "cola"]}, {})
    assert made.trained == epochs * (r.tokens(["sst2"]) + r.tokens(["cola"]))
    assert (more.trained, more.read) == (times * made.trained, made.read)
    assert r.lesions(["sst2"], 10, times * 7).lesioned == times * r.lesions(["sst2"], 10, 7).lesioned
    assert r.tokens(["sst2"], limit=10 * times) == 10 * times * r.LENGTH


def test_what_branches_off_is_trained_from_there_on():
    r, plan = recipes(), {"epochs": 5, "evaluate_every": 0, "train": "all"}
    config = {"plan": plan, "tasks": ["sst2"], "method": {"name": "iat", "delta": 0.1}}
    alone, branched = (r.training(config, at) for at in ({}, {"branch": "key"}))
    assert branched.trained == pytest.approx(0.1 * alone.trained)


@FEW
@given(st.floats(0.5, 8), st.integers(0, 10**6), st.integers(1, 100))
def test_memory_is_weights_and_activations(per_weight, tokens, layers):
    model = importlib.import_module("scale_decoder").Decoder(layers=layers)
    assert model.memory(per_weight, tokens) == pytest.approx(per_weight * model.parameters + tokens * model.activations)
    deeper = importlib.import_module("scale_decoder").Decoder(layers=2 * layers)
    assert (deeper.blocks, deeper.activations) == (2 * model.blocks, 2 * model.activations)


def test_the_decoder_has_the_weights_of_its_published_shape():
    assert importlib.import_module("scale_decoder").Decoder().parameters == pytest.approx(70.55e9, rel=1e-3)


def test_in_parts_there_is_never_more_than_a_device_holds():
    decoder = importlib.import_module("scale_decoder")
    rows = decoder.parts_rows(decoder.Decoder())
    assert rows[0][1:] == [0, 0, 0, 0]  # the weights fill one device
    for _, fsdp, tokens, *_ in rows[1:]:
        assert 0 < fsdp < decoder.DEVICE / decoder.GB and tokens * decoder.Decoder().activations <= fsdp * decoder.GB


@pytest.mark.parametrize("name", ["specialization", "anatomy", "stem_cell", "mesh"])
def test_every_job_of_a_recipe_is_known_and_chains_are_parts_of_the_whole(name):
    s, r = scale(), recipes()
    jobs = r.full(name)
    spent = {job.key: s.seconds(r.amount(job), r.model_of(job), "bf16") for job in jobs}
    free = {job.work.rpartition(".")[2] for job in jobs if not spent[job.key]}
    assert free <= {"inventory", "likeness"}
    assert max(spent.values()) <= r.longest(jobs, spent) <= sum(spent.values())


@pytest.mark.parametrize(("name", "where"), [("mesh", ("part", "recovery")), ("stem_cell", ("method", "l0"))])
def test_most_of_a_recipe_is_what_the_page_says(name, where):
    s, r = scale(), recipes()
    spent = {job.key: s.seconds(r.amount(job), r.model_of(job), "bf16") for job in r.full(name)}
    field, word = where
    some = sum(spent[job.key] for job in r.full(name) if word in str(job.config.get(field)))
    assert some > sum(spent.values()) / 2


def test_pairs_grow_with_the_square_and_groups_cover_them():
    rows = scale().pair_rows()
    for tasks, pairs, *_, groups, _, _, _ in rows:
        assert pairs == tasks * (tasks - 1) / 2 and groups * 45 >= pairs
    assert scale().pair_rows(rows=20_000)[0][2] == pytest.approx(2 * rows[0][2])
