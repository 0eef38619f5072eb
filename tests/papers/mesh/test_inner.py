"""Gates and masks of tasks in pairs, and the episodes they learn from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise import tasks
from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads, gated
from headwise.models.batching import Encoded, Order, encode
from headwise.papers.mesh.episodes import Draw, Episodes
from headwise.papers.mesh.inner import HeadGates, read
from headwise.papers.mesh.trim import Trim, together
from headwise.tasks.columns import Ragged
from headwise.testing import tiny, tiny_tokenizer, toy_model, toy_tasks

HEADS = Heads.of(tiny("bert"))


def pairs() -> list:
    one, two = toy_tasks(2, rows=8)
    names = [("nli_en", "en", one), ("nli_es", "es", one), ("ner_en", "en", two), ("ner_es", "es", two)]
    return [replace(task, name=name, language=language) for name, language, task in names]


@pytest.mark.parametrize(("each", "sets"), [("shared", 1), ("task", 2), ("language", 2), ("pair", 4)])
def test_sets_of_gates(each, sets):
    gates = HeadGates(HEADS, pairs(), "sigmoid", each)
    gates.logits.data[:] = torch.arange(sets)[:, None, None].float()
    assert gates.logits.shape == (sets, 2, 4)
    values = {name: gates.values(name)[0, 0].item() for name in gates.keys}
    assert len(set(values.values())) == sets
    assert (values["nli_en"] == values["nli_es"]) == (each in ("shared", "task"))
    assert (values["nli_en"] == values["ner_en"]) == (each in ("shared", "language"))


def test_a_model_runs_under_gates_times_mask():
    model = toy_model(2, rows=8).eval()
    batch = encode(model.tasks["toy0"], "train", model.tokenizer, model.max_length).batch(range(4))
    gates = HeadGates(Heads.of(model.encoder), model.tasks.values(), "sigmoid", "pair")
    gates.logits.data.normal_(generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[1, 2] = True
    gates.close({"toy0": mask})
    for task, place in (("toy0", 0), ("toy1", 1)):
        wanted = torch.sigmoid(gates.logits[place]) * (~mask if place == 0 else torch.ones(2, 4))
        with gates.on(model), torch.no_grad():
            found = model(task, batch).scores
        with gated(model.encoder, wanted.detach()), torch.no_grad():
            assert torch.equal(found, model(task, batch).scores)
    assert gates.closed["toy0"].equal(mask) and not gates.closed["toy1"].any()


def test_gates_by_input_begin_as_sigmoid_and_are_each_examples_own():
    model = toy_model(2, rows=8).eval()
    batch = encode(model.tasks["toy0"], "train", model.tokenizer, model.max_length).batch(range(4))
    width = model.encoder.get_input_embeddings().embedding_dim
    gates, plain = (
        HeadGates(Heads.of(model.encoder), model.tasks.values(), form, "pair", width) for form in ("input", "sigmoid")
    )
    texts = read(model.encoder, batch)
    assert torch.equal(gates.values("toy0", texts=texts), plain.values("toy0").expand(4, -1, -1))
    gates.reads.data.normal_(generator=torch.Generator().manual_seed(0))
    wanted = gates.values("toy0", texts=texts).detach()
    assert wanted.shape == (4, 2, 4) and wanted.flatten(1).unique(dim=0).shape[0] == 4
    with gates.on(model), torch.no_grad():
        found = model("toy0", batch).scores
    with gated(model.encoder, wanted), torch.no_grad():
        assert torch.equal(found, model("toy0", batch).scores)
    padded = {k: torch.nn.functional.pad(v, (0, 3)) if v.dim() == 2 else v for k, v in batch.items()}
    torch.testing.assert_close(read(model.encoder, padded), texts)  # padding is not read
    with gates.on(model):
        model("toy0", batch).loss.sum().backward()
    assert gates.reads.grad.abs().sum() > 0


def test_without_a_form_there_is_the_mask_alone():
    gates = HeadGates(HEADS, pairs())
    assert gates.logits is None and (gates.values("nli_en") == 1).all()
    concrete = HeadGates(HEADS, pairs(), "concrete")
    assert (concrete.values("nli_en") == 1).all()  # settled, and open at the start
    torch.manual_seed(0)
    assert not torch.equal(concrete.values("nli_en", drawn=True), concrete.values("nli_en", drawn=True))


def test_a_newcomer_gets_the_gates_and_the_mask_of_its_kind():
    known = [task for task in pairs() if task.name != "nli_es"]
    (new,) = [task for task in pairs() if task.name == "nli_es"]
    gates = HeadGates(HEADS, known, "sigmoid", "task")
    gates.logits.data[:] = torch.tensor([-1.0, 2.0])[:, None, None]
    masks = {task.name: torch.zeros(2, 4, dtype=torch.bool) for task in known}
    masks["ner_es"][0, 0] = True
    for name in masks:
        masks[name][1, 1] = True
    gates.close(masks, "language")
    made = gates.newcomer(new)
    assert torch.allclose(made.logits, torch.tensor(-1.0))  # its task's
    assert made.closed["nli_es"].equal(masks["ner_es"])  # its language's
    gates.close(masks, "shared")
    assert made.closed["nli_es"].sum() == 2 and gates.newcomer(new).closed["nli_es"].sum() == 1  # what all close
    other = HeadGates(HEADS, known, "sigmoid", "pair")
    other.logits.data[:] = torch.tensor([0.0, 1.0, 2.0])[:, None, None]
    assert torch.allclose(other.newcomer(new).logits, torch.tensor(1.0))  # the mean


# -- which heads


def scores(layers: int = 6, heads: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {task.name: torch.rand(layers, heads, generator=generator) for task in pairs()}


def test_thirds_part_the_layers():
    for layers in range(3, 30):
        found = [list(range(layers))[Trim(where=where).third(layers)] for where in ("bottom", "middle", "top")]
        assert [*found[0], *found[1], *found[2]] == list(range(layers)) and min(map(len, found)) >= layers // 3


@pytest.mark.parametrize("where", ["bottom", "middle", "top", "all"])
@pytest.mark.parametrize("prune_by", ["least", "most", "random"])
def test_a_trim_closes_what_it_says(where, prune_by):
    found, names = scores(), dict.fromkeys(scores(), "all")
    trim = Trim(prune=0.25, prune_by=prune_by, where=where, train=0.25)
    closed = trim.closed(found, names, seed=0)
    mask = closed["nli_en"]
    assert all(torch.equal(mask, other) for other in closed.values()) and int(mask.sum()) == 6
    inside = torch.zeros(6, dtype=torch.bool)
    inside[trim.third(6)] = True
    assert not mask[~inside].any()
    joint = together(list(found.values()))
    if prune_by == "least":
        assert joint[mask].max() < joint[inside][~mask[inside]].min()
    if prune_by == "most":
        assert joint[mask].min() > joint[inside][~mask[inside]].max()
    for pair, free in trim.movable(found, closed, seed=0).items():
        assert int(free.sum()) == 6 and not (free & mask).any()
        assert found[pair][free].min() > found[pair][~free & ~mask].max()


def test_masks_by_language_differ_between_languages_alone():
    found = scores()
    keys = {task.name: task.language for task in pairs()}
    closed = Trim(prune=0.3, each="language").closed(found, keys, seed=0)
    assert torch.equal(closed["nli_es"], closed["ner_es"]) and torch.equal(closed["nli_en"], closed["ner_en"])
    assert not torch.equal(closed["nli_en"], closed["nli_es"])


def test_random_heads_are_a_function_of_the_seed():
    trim, found, keys = Trim(prune=0.3, prune_by="random", train=0.3, train_by="random"), scores(), scores().keys()
    names = {name: name for name in keys}
    one, two, other = (trim.closed(found, names, seed) for seed in (0, 0, 1))
    assert all(torch.equal(one[n], two[n]) for n in names) and not all(torch.equal(one[n], other[n]) for n in names)
    assert not torch.equal(one["nli_en"], one["nli_es"])
    assert all((trim.movable(found, one, 0)[n] & one[n]).sum() == 0 for n in names)


def test_a_third_has_no_more_heads_than_it_has():
    with pytest.raises(HeadwiseError, match="at most the 8 free ones"):
        Trim(prune=0.5, where="top").closed(scores(), dict.fromkeys(scores(), "all"), 0)
    with pytest.raises(HeadwiseError, match="form of gates"):
        HeadGates(HEADS, pairs(), "softmax")
    with pytest.raises(HeadwiseError, match="nli_en"):
        HeadGates(HEADS, pairs()).values("nli_e")


# -- episodes: disjoint, stratified, a function of the seed and their number; what cannot be drawn is refused


def classes(labels: list[int]) -> Encoded:
    ids = Ragged.of([[1, 2, 3]] * len(labels))
    return Encoded({"input_ids": ids, "label": np.array(labels, np.int64)}, pad=0, rows=len(labels))


def stream(data: Encoded, size: int = 8, support: int = 4, seed: int = 0) -> Episodes:
    return Episodes("pair", data, Order(data.lengths, size), (seed, 2, 0), support)


label_lists = st.lists(st.integers(0, 2), min_size=12, max_size=60)


@given(label_lists, st.integers(0, 5), st.integers(3, 6), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_support_and_query_never_share_a_row_and_every_class_is_there(labels, seed, support, query):
    drawn = stream(classes(labels), support + query, support, seed)
    for _ in range(5):
        items = drawn.next()
        first, rest = drawn.parts
        assert len(first) == support and len(rest) == query and np.array_equal(items, np.concatenate([first, rest]))
        assert len(set(items.tolist())) == support + query
        assert {labels[i] for i in first} == set(labels)
        counts = np.bincount([labels[i] for i in first], minlength=3)
        free = [n for n, total in zip(counts, np.bincount(labels, minlength=3)) if 0 < n < total]
        assert not free or max(free) - min(free) <= 1  # as even as the rows allow


def test_episodes_are_a_function_of_seed_and_number():
    data = classes([0, 1] * 20)
    one, two, other = stream(data), stream(data), stream(data, seed=1)
    first = [one.next() for _ in range(12)]
    assert all(np.array_equal(a, two.next()) for a in first)
    assert not all(np.array_equal(a, other.next()) for a in first)
    again = stream(data)
    again.load_state({"epoch": 1, "position": 2})
    assert len(again) == 5 and np.array_equal(again.next(), first[7])
    assert again.state() == {"epoch": 1, "position": 3}


@given(st.lists(st.lists(st.integers(-1, 4), min_size=1, max_size=4), min_size=8, max_size=30), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_tags_are_covered_where_the_support_has_room(tags, seed):
    data = Encoded({"input_ids": Ragged.of(tags), "labels": Ragged.of(tags)}, pad=0, rows=len(tags))
    first, rest = Draw("tags", data)(np.random.default_rng(seed), 6, 2)
    known = {tag for row in tags for tag in row if tag >= 0}
    assert len(set(first) | set(rest)) == 8
    assert {tag for i in first for tag in tags[i] if tag >= 0} == known  # five tags, six rows


def test_windows_of_a_row_stay_on_one_side():
    rows = np.repeat(np.arange(12), 3)
    data = Encoded({"input_ids": Ragged.of([[1, 2]] * 36), "row": rows}, pad=0, rows=12)
    drawn = stream(data, 6, 3)
    for _ in range(6):
        drawn.next()
        first, rest = (rows[part] for part in drawn.parts)
        assert len(set(first)) == len(set(rest)) == 3 and not set(first) & set(rest)
        assert len(drawn.parts[0]) == 9


@pytest.mark.parametrize("name", ["entailment", "ner", "pos", "similarity", "qa", "dep", "con", "srl"])
def test_every_kind_of_task_has_episodes(name):
    from headwise.tasks.corpus import tasks as corpus

    task = corpus("es", size={"train": 40, "dev": 4})[f"corpus.{name}.es"].ready()
    data = encode(task, "train", tiny_tokenizer(), 48)
    drawn = stream(data, 16, 8)
    drawn.next()
    assert all(len(part) >= 8 for part in drawn.parts)
    assert not set(drawn.parts[0]) & set(drawn.parts[1])


def test_too_few_rows_or_classes_are_refused():
    with pytest.raises(HeadwiseError, match=r"7 training rows; expected 8 or more: 4 support and 4 query"):
        stream(classes([0, 1] * 3 + [0]))
    with pytest.raises(HeadwiseError, match=r"support set of 2 for the 3 classes .* support = 3"):
        stream(classes([0, 1, 2] * 8), support=2)
    with pytest.raises(HeadwiseError, match="query"):
        stream(classes([0, 1] * 8), size=4, support=4)
    assert tasks.get("corpus.topic").kind.labels
