"""The model: what is saved comes back, the encoder stays plain, and pooling is what it says."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.heads.gates import Heads, captured, gated
from headwise.heads.modules import positions
from headwise.models.batching import encode
from headwise.models.loading import load
from headwise.models.multitask import MultiTaskModel, pool
from headwise.papers.mesh.meta import Meta
from headwise.pruning.export import export
from headwise.tasks.kinds.classify import Classify, Regress
from headwise.tasks.kinds.image import Picture
from headwise.tasks.task import Rows, Task
from headwise.testing import tiny, tiny_tokenizer, toy_model, toy_tasks
from headwise.training.loop import fit
from headwise.training.methods.l0 import L0
from headwise.training.methods.prune_least import PruneLeast
from headwise.training.plan import Plan

CHOSEN = torch.tensor([[True, False, False, True], [False, True, False, False]])


def batch_of(model: MultiTaskModel, task: str = "toy0", items: int = 6) -> dict[str, torch.Tensor]:
    return encode(model.tasks[task], "dev", model.tokenizer).batch(range(items))


OPTIONS = [{}, {"pooling": "mean"}, {"layer": 1}, {"use_heads": CHOSEN, "pooling": "mean"}, {"max_length": 6}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_is_saved_comes_back(tmp_path, options):
    model = toy_model(**options).eval()
    model.save_pretrained(tmp_path / "model")
    back = MultiTaskModel.load(tmp_path / "model", toy_tasks()).eval()
    assert back.describe() == model.describe()
    assert model.state_dict().keys() == back.state_dict().keys()
    assert all(torch.equal(value, back.state_dict()[name]) for name, value in model.state_dict().items())
    for task in model.tasks:
        batch = batch_of(model, task)
        assert torch.equal(model(task, batch).scores, back(task, batch).scores)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_the_encoder_folder_is_a_plain_checkpoint(tmp_path, family):
    model = toy_model(family=family, pooling="mean").eval()
    model.save_pretrained(tmp_path / "model")
    plain = AutoModel.from_pretrained(tmp_path / "model/encoder").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model/encoder")
    text = "w1 m0a w7"
    assert tokenizer(text)["input_ids"] == model.tokenizer(text)["input_ids"]
    batch = dict(tokenizer(text, return_tensors="pt"))
    with torch.no_grad():
        wanted = model.hidden(batch).states
        inputs = {name: value for name, value in batch.items() if name in ("input_ids", "attention_mask")}
        assert torch.equal(plain(**inputs).last_hidden_state, wanted)
    again = MultiTaskModel.from_pretrained(tmp_path / "model/encoder", toy_tasks(), pooling="mean")
    assert set(again.tasks) == {"toy0", "toy1"}


def test_an_encoder_without_its_decoder_comes_back_as_it_was(tmp_path):
    words = [f"w{i}" for i in range(20)] + ["m0a", "m0b"]
    encoder = tiny("t5", auto="AutoModelForTextEncoding")
    model = MultiTaskModel(encoder, tiny_tokenizer(words), toy_tasks(1, rows=12)).eval()
    again = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), toy_tasks(1, rows=12)).eval()
    assert type(again.encoder) is type(encoder)
    with torch.no_grad():
        assert torch.equal(model("toy0", batch_of(model)).scores, again("toy0", batch_of(model)).scores)


def test_saving_over_a_folder_replaces_it(tmp_path):
    model = toy_model()
    model.save_pretrained(tmp_path / "model")
    with torch.no_grad():
        model.heads["toy0"].out.bias.fill_(7.0)
    model.save_pretrained(tmp_path / "model")
    back = MultiTaskModel.load(tmp_path / "model", toy_tasks())
    assert back.heads["toy0"].out.bias.tolist() == [7.0, 7.0]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "distilbert"])
def test_a_model_that_has_lost_heads_comes_back_whole(tmp_path, family):
    model = toy_model(family=family).eval()
    cut = torch.zeros(Heads.of(model.encoder).shape, dtype=torch.bool)
    cut[0], cut[1, :2] = True, True  # a whole layer, and a group where heads share keys
    model.give_scales(["toy1"])
    with torch.no_grad():
        model.scales["toy1"].uniform_(0.5, 2)
    prune(model.encoder, cut)
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), toy_tasks()).eval()
    assert torch.equal(Heads.of(back.encoder).alive, ~cut)
    assert all(torch.equal(back.state_dict()[name], value) for name, value in model.state_dict().items())
    for task in model.tasks:
        assert torch.equal(back(task, batch_of(model, task)).scores, model(task, batch_of(model, task)).scores)
    assert torch.equal(Heads.of(load(tmp_path / "model")).alive, ~cut)  # the encoder alone


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_a_cut_encoder_without_a_pooler_gets_none(tmp_path, family):
    export(tiny(family, auto="AutoModelForMaskedLM"), CHOSEN, tmp_path / "small", "sliced", tiny_tokenizer())
    model = MultiTaskModel.from_pretrained(tmp_path / "small", toy_tasks())
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), toy_tasks())
    assert not any("pooler" in name for name in back.state_dict())
    assert all(torch.equal(back.state_dict()[name], value) for name, value in model.state_dict().items())


def test_a_trained_model_goes_on_with_tasks_by_task_or_name(tmp_path):
    folder = toy_model(1).save_pretrained(tmp_path / "model")
    old, new = toy_tasks(2)
    model = MultiTaskModel.continued(folder, (task for task in (old, new)), seed=3)
    assert list(model.tasks) == ["toy0", "toy1"]
    assert torch.equal(model.head("toy0").out.weight, toy_model(1).head("toy0").out.weight)
    assert list(MultiTaskModel.continued(folder, "corpus.sentiment").tasks) == ["corpus.sentiment"]


def test_chosen_heads_are_read_by_their_numbers_also_where_others_are_cut(tmp_path):
    model = toy_model(use_heads=~CHOSEN).eval()
    gone = torch.tensor([[True, False, False, False], [False, True, False, False]])  # of those that are not read
    with gated(model.encoder, (~gone).float()):
        before = model("toy0", batch_of(model)).scores
    prune(model.encoder, gone)
    back = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), toy_tasks()).eval()
    torch.testing.assert_close(back("toy0", batch_of(back)).scores, before)
    prune(model.encoder, torch.tensor([[False, True, False, False], 4 * [False]]))
    for act in (lambda: model("toy0", batch_of(model)), lambda: model.save_pretrained(tmp_path / "other")):
        with pytest.raises(HeadwiseError, match=r"read the heads \[\(0, 1\)\], which were removed"):
            act()


def test_a_cut_model_learns_as_the_whole_one_with_those_heads_closed(tmp_path):
    whole = toy_model().eval()  # without dropout, which draws by shape
    cut = copy.deepcopy(whole)
    prune(cut.encoder, CHOSEN)
    cut = MultiTaskModel.load(cut.save_pretrained(tmp_path / "cut"), toy_tasks()).eval()
    for model, gates in ((whole, (~CHOSEN).float()), (cut, torch.ones(CHOSEN.shape))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            with gated(model.encoder, gates):
                model("toy0", batch_of(model)).loss.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    prune(whole.encoder, CHOSEN)
    for name, value in cut.state_dict().items():
        torch.testing.assert_close(whole.state_dict()[name], value, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "opt", "modernbert"])
def test_without_a_pooling_the_vector_sees_the_whole_text(family):
    """The first token of a decoder sees itself alone: every text would be the same to the output heads."""
    model = toy_model(family=family).eval()
    batch = {name: torch.tensor([row, row]) for name, row in (("input_ids", [1, 7, 9, 2]), ("attention_mask", [1] * 4))}
    batch["input_ids"][1, 1] = 8
    one, other = model.hidden(batch).pooled
    assert not torch.allclose(one, other)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
@settings(max_examples=30)
def test_pooling_takes_real_tokens_only(sizes):
    states = torch.randn(len(sizes), 9, 3, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < torch.tensor(sizes)[:, None]).long()
    for i, size in enumerate(sizes):
        real = states[i, :size]
        assert torch.equal(pool(states, mask, "cls")[i], real[0])
        assert torch.equal(pool(states, mask, "last")[i], real[-1])
        assert torch.allclose(pool(states, mask, "mean")[i], real.mean(0), atol=1e-6)
    left = mask.flip(1)  # padded on the left, as decoders often are
    for i, size in enumerate(sizes):
        assert torch.equal(pool(states, left, "last")[i], states[i, -1])
        assert torch.allclose(pool(states, left, "mean")[i], states[i, 9 - size :].mean(0), atol=1e-6)


def test_without_a_mask_all_tokens_are_real():
    states = torch.randn(2, 4, 3)
    mask = torch.ones(2, 4)
    for how in ("cls", "mean", "last"):
        assert torch.allclose(pool(states, None, how), pool(states, mask, how))


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_layers_output_is_that_layers(layer):
    model = toy_model(layer=layer).eval()
    batch = batch_of(model)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    wanted = model.encoder(**inputs, output_hidden_states=True).hidden_states[layer]
    assert torch.equal(model.hidden(batch).states, wanted)
    if layer == 2:
        assert torch.equal(wanted, toy_model().eval().hidden(batch).states)


def test_a_set_of_heads_is_their_outputs_side_by_side():
    model = toy_model(use_heads=CHOSEN, pooling="cls").eval()
    batch = batch_of(model)
    with captured(model.encoder, lambda out: out) as layers:
        model.encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    wanted = torch.cat([layers[0][:, 0, 0], layers[0][:, 0, 3], layers[1][:, 0, 1]], 1)
    assert model.width == 3 * 6
    assert torch.equal(model.hidden(batch).pooled, wanted)


def test_a_set_of_heads_can_be_trained():
    """The layers up to the last chosen head learn, its output projection does not."""
    model = toy_model(use_heads=CHOSEN)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(model, Plan(steps=3, lr=1e-2, batch_size=16, evaluate_every=0))
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    sites = [site.name for site in Heads.of(model.encoder).sites]
    assert f"encoder.{sites[0]}.weight" in moved and f"encoder.{sites[1]}.weight" not in moved
    assert "heads.toy0.out.weight" in moved or "heads.toy1.out.weight" in moved


@pytest.mark.parametrize("method", [PruneLeast(), L0(), Meta("multitask", trim={"prune": 0.5})], ids=lambda m: m.name)
def test_what_is_folded_into_projections_is_refused_where_heads_are_read_before_them(method):
    """The model would answer otherwise than it did under its gates."""
    model = toy_model(rows=12, use_heads=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(HeadwiseError, match="use_heads="):
        fit(model, Plan(steps=2, evaluate_every=0), method)


def test_the_precision_of_training_ends_with_it():
    trained, fresh = toy_model(), toy_model()
    fit(trained, Plan(steps=2, precision="bf16", batch_size=16, evaluate_every=0))
    fresh.load_state_dict(trained.state_dict())
    batch = batch_of(fresh)
    assert torch.equal(trained.eval()("toy0", batch).scores, fresh.eval()("toy0", batch).scores)


def test_losses_are_one_per_example():
    model = toy_model().eval()
    batch = batch_of(model, items=5)
    output = model("toy1", batch)
    assert output.loss.shape == (5,) and output.scores.shape == (5, 2)


def test_names_are_checked():
    model = toy_model()
    with pytest.raises(HeadwiseError, match="toy1"):
        model("toi1", batch_of(model))
    with pytest.raises(HeadwiseError, match="two tasks are named"):
        model.add(toy_tasks()[0])
    with pytest.raises(HeadwiseError, match="pooling"):
        toy_model(pooling="max")


@pytest.mark.parametrize("name", ["type", "train", "training", "keys", "copy", "forward", "_modules", "a.b", "weight"])
def test_a_task_may_have_any_name_also_one_that_torch_has_taken(tmp_path, name):
    tasks = [replace(task, name=name if i else task.name) for i, task in enumerate(toy_tasks(2, rows=16))]
    model = toy_model(1, rows=16)
    model.add(tasks[1])
    model.give_scales()
    with torch.no_grad():
        model.scales_of(name).fill_(0.5)
    again = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), tasks).eval()
    batch = batch_of(model)
    assert torch.equal(again(name, batch).loss, model.eval()(name, batch).loss)


def test_new_rows_of_a_task_are_read_with_the_labels_it_was_trained_with(tmp_path):
    """Next month's file may lack a class, or hold milder grades."""
    rows = [{"text": f"w{i}", "label": i / 4} for i in range(8)]
    graded = Task("graded", Regress(0.0, 5.0), Rows(train=rows, dev=rows), "spearman")
    model = MultiTaskModel(tiny("bert"), tiny_tokenizer(), [*toy_tasks(1), graded]).eval()
    model.save_pretrained(tmp_path / "model")
    fewer = Task("toy0", Classify(("b",)), toy_tasks(1)[0].source, "accuracy")
    milder = Task("graded", Regress(0.0, 1.75), graded.source, "spearman")
    again = MultiTaskModel.load(tmp_path / "model", [fewer, milder]).eval()
    assert [task.kind for task in again.tasks.values()] == [task.kind for task in model.tasks.values()]
    for name in again.tasks:
        assert torch.equal(again(name, batch_of(again, name)).loss, model(name, batch_of(model, name)).loss)


def test_one_task_is_a_list_of_one(tmp_path):
    toy_model().encoder.save_pretrained(tmp_path)
    toy_model().tokenizer.save_pretrained(tmp_path)
    assert list(MultiTaskModel.from_pretrained(tmp_path, toy_tasks(1)[0]).tasks) == ["toy0"]
    assert list(MultiTaskModel.from_pretrained(tmp_path, "corpus.topic").tasks) == ["corpus.topic"]


def test_fresh_output_heads_are_seeded(tmp_path):
    toy_model().encoder.save_pretrained(tmp_path)
    toy_model().tokenizer.save_pretrained(tmp_path)
    one, same, other = (MultiTaskModel.from_pretrained(tmp_path, toy_tasks(), seed=seed) for seed in (0, 0, 1))
    weights = [m.heads["toy0"].out.weight for m in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_pictures_go_through_a_vision_encoder(tmp_path):
    """Kept in half precision, computed in the encoder's."""
    image = pytest.importorskip("PIL.Image")
    from transformers import ViTImageProcessor

    rows = []
    for i, colour in enumerate(["red", "blue"] * 8):
        image.new("RGB", (16, 16), colour).save(tmp_path / f"{i}.png")
        rows.append({"path": str(tmp_path / f"{i}.png"), "label": colour})
    processor = ViTImageProcessor(size={"height": 16, "width": 16})
    task = Task("colours", Picture(("blue", "red")), Rows(rows, rows), "accuracy")
    model = MultiTaskModel(tiny("vit"), processor, [task])
    history = fit(model, Plan(steps=30, lr=3e-3, batch_size=8))
    assert history.scores[-1]["mean"] == 1.0


def test_tasks_of_one_kind_may_share_an_output_head(tmp_path):
    one, two = toy_tasks(2, rows=8)
    words = [f"w{i}" for i in range(20)] + ["m0a", "m0b", "m1a", "m1b"]
    model = MultiTaskModel(tiny("bert"), tiny_tokenizer(words), [one, two], share={"toy1": "toy0"})
    assert model.head("toy1") is model.head("toy0") and list(model.heads) == ["toy0"]
    batch = encode(one, "train", model.tokenizer, model.max_length).batch(range(4))
    again = MultiTaskModel.load(model.save_pretrained(tmp_path / "model"), [one, two])
    with torch.no_grad():
        assert torch.equal(model.eval()("toy1", batch).scores, again.eval()("toy0", batch).scores)
    with pytest.raises(HeadwiseError, match="cannot share"):
        model.add(replace(one, name="three", kind=Classify(("a", "b", "c"))), "toy0")
    with pytest.raises(HeadwiseError, match="two tasks"):
        model.add(two)


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_inputs_are_never_longer_than_the_encoders_positions(family):
    encoder, tokenizer = tiny(family), tiny_tokenizer()
    long = " ".join(["the"] * 300)
    rows = [{"text": long, "label": "a"}, {"text": long, "label": "b"}]
    task = Task("long", Classify(("a", "b")), Rows(train=rows, dev=rows), "accuracy")
    model = MultiTaskModel(encoder, tokenizer, [task], max_length=10_000)
    batch = encode(task, "train", tokenizer, model.max_length).batch([0, 1])
    assert model("long", batch).loss.isfinite().all()
    assert batch["input_ids"].shape[1] == model.max_length == positions(encoder)


def test_only_some_tasks_come_back_as_they_were(tmp_path):
    model = toy_model(3).eval()
    model.give_scales()
    model.save_pretrained(tmp_path / "model")
    back = MultiTaskModel.load(tmp_path / "model", [toy_tasks(3)[1]], only=["toy1"]).eval()
    batch = batch_of(model, "toy1", 4)
    assert list(back.tasks) == ["toy1"] and torch.equal(model("toy1", batch).scores, back("toy1", batch).scores)


def test_tasks_that_share_a_head_come_back_without_the_one_that_gave_it(tmp_path):
    tasks = toy_tasks(3, rows=8)
    words = [f"w{i}" for i in range(20)] + [f"m{i}{c}" for i in range(3) for c in "ab"]
    model = MultiTaskModel(tiny("bert"), tiny_tokenizer(words), tasks, share={"toy1": "toy0", "toy2": "toy0"}).eval()
    model.save_pretrained(tmp_path / "model")
    some = MultiTaskModel.load(tmp_path / "model", tasks, only=("toy1", "toy2")).eval()
    assert list(some.tasks) == ["toy1", "toy2"] and some.head("toy1") is some.head("toy2")
    batch = batch_of(model, "toy1", 4)
    with torch.no_grad():
        assert torch.equal(model("toy1", batch).scores, some("toy2", batch).scores)


def test_an_input_has_a_sub_word_or_more():
    with pytest.raises(HeadwiseError, match="max_length=-3; expected 1 or more"):
        toy_model(max_length=-3)
