"""Important-head training under an ordinary Trainer: what is held is held to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from headwise.errors import HeadwiseError
from headwise.heads.gates import Heads
from headwise.integrations.trainer import ImportantHeadCallback, task_of
from headwise.scoring.importance import importance
from headwise.testing import tiny, toy_model, toy_tasks

HEADS = {"toy0": [(0, 1), (1, 2)], "toy1": [(0, 1), (1, 3)]}


def masks() -> dict[str, torch.Tensor]:
    out = {task: torch.zeros(2, 4, dtype=torch.bool) for task in HEADS}
    for task, chosen in HEADS.items():
        for layer, head in chosen:
            out[task][layer, head] = True
    return out


def rows(batch: int = 8) -> list[dict]:
    """Items of both tasks in stretches as long as a batch, so that every batch is of one task."""
    tokenizer = toy_model().tokenizer
    made = []
    for task in toy_tasks():
        for row in task.rows("train"):
            ids = tokenizer(row["text"])["input_ids"]
            made.append({"input_ids": ids, "labels": "ab".index(row["label"]), "task": task.name})
    stretches = [made[i : i + batch] for i in range(0, len(made), batch)]
    order = np.random.default_rng(0).permutation(len(stretches))
    return [row for i in order for row in stretches[i]]


def collate(items: list[dict]) -> dict:
    width = max(len(item["input_ids"]) for item in items)
    ids = torch.tensor([item["input_ids"] + [0] * (width - len(item["input_ids"])) for item in items])
    labels = torch.tensor([item["labels"] for item in items])
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": labels,
        "task": [i.get("task") for i in items],
    }


def arguments(folder, **changes) -> TrainingArguments:
    settings = {
        "output_dir": str(folder),
        "max_steps": 40,
        "per_device_train_batch_size": 8,
        "learning_rate": 3e-3,
        "weight_decay": 0.1,
        "remove_unused_columns": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "train_sampling_strategy": "sequential",
        "logging_strategy": "no",
    }
    return TrainingArguments(**settings | changes)


class Watch(TrainerCallback):
    """Every head's q, k, v rows and their moments, before the held phase and at the end."""

    def __init__(self, first: int):
        self.first = first

    def on_step_begin(self, args, state, control, model, optimizer, **_):
        if state.global_step == self.first:
            self.before = snapshot(model, optimizer)

    def on_train_end(self, args, state, control, model, optimizer, **_):
        self.after = snapshot(model, optimizer)

    @property
    def moved(self) -> set[tuple[int, int]]:
        pairs = ((key, zip(self.before[key], self.after[key])) for key in self.before)
        return {key[:2] for key, tensors in pairs if any(not torch.equal(a, b) for a, b in tensors)}


def snapshot(model, optimizer) -> dict:
    found = {}
    for site in Heads.of(model).sites:
        for name in "qkv":
            part = site.parts[name]
            for head, places in enumerate(part.rows):
                state = optimizer.state[part.module.weight]
                tensors = (part.module.weight.data, state["exp_avg"], state["exp_avg_sq"])
                found[site.layer, head, name] = [t.index_select(part.axis, places).clone() for t in tensors]
    return found


def train(folder, callback, watch=None, family="bert", data=None, **changes):
    config = {"pad_token_id": 0} if family == "gpt2" else {}
    model = tiny(family, auto="AutoModelForSequenceClassification", **config)
    callbacks = [callback, *([watch] if watch else [])]
    trainer = Trainer(
        model, arguments(folder, **changes), data_collator=collate, train_dataset=data or rows(), callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=changes.get("resume_from_checkpoint"))
    return model


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("changes", [{}, {"gradient_accumulation_steps": 2, "max_steps": 20}, {"max_grad_norm": 0.1}])
def test_unselected_rows_are_bit_identical_and_selected_ones_move(tmp_path, family, changes):
    total = changes.get("max_steps", 40)
    watch = Watch(total // 4)
    train(tmp_path, ImportantHeadCallback(delta=0.75, masks=masks()), watch, family, **changes)
    assert watch.moved == {(0, 1), (1, 2), (1, 3)}


def test_each_task_moves_its_own_heads_only(tmp_path):
    watch = Watch(10)
    data = [row for row in rows() if row["task"] == "toy1"]
    train(tmp_path, ImportantHeadCallback(delta=0.75, masks=masks()), watch, data=data)
    assert watch.moved == set(HEADS["toy1"])


def test_heads_are_measured_at_one_minus_delta(tmp_path):
    """The measured importance is that of Eq. 4, and measuring leaves training as it was."""
    plain = train(tmp_path, ImportantHeadCallback(delta=0.0))
    measured = ImportantHeadCallback(alpha=1.0, delta=0.5)
    same = train(tmp_path, measured)
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), same.state_dict().values()))
    callback, watch = ImportantHeadCallback(alpha=0.25, delta=0.5), Watch(20)
    train(tmp_path, callback, watch)
    assert set(callback.masks) == {"toy0", "toy1"} and all(int(m.sum()) == 2 for m in callback.masks.values())
    assert watch.moved == {tuple(place) for m in callback.masks.values() for place in m.nonzero().tolist()}


def test_the_importance_is_that_of_the_library():
    """On a classifier whose head is the library's, both give the same scores."""
    ours = toy_model(1).eval()
    theirs = tiny("bert", auto="AutoModelForSequenceClassification")

    class Same(torch.nn.Module):
        """The library's model behind the face of a Hugging Face one."""

        def __init__(self):
            super().__init__()
            self.encoder, self.config = ours.encoder, theirs.config

        def forward(self, input_ids, attention_mask, labels):
            batch = {"input_ids": input_ids, "attention_mask": attention_mask, "label": labels}
            return type("Output", (), {"loss": ours("toy0", batch).loss.mean()})

    callback = ImportantHeadCallback()
    callback.model = Same()
    callback.heads = Heads.of(callback.model)
    data = [row for row in rows() if row["task"] == "toy0"]
    batches = [collate(data[i : i + 7]) for i in range(0, len(data), 7)]
    for batch in batches:
        del batch["task"]
    assert torch.allclose(callback._importance(batches), importance(ours, "toy0").scores, rtol=1e-4)


def test_masks_come_back_when_a_run_is_resumed(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 30, "restore_callback_states_from_checkpoint": True}
    whole = ImportantHeadCallback(alpha=0.25, delta=0.5)
    one = train(tmp_path, whole, **settings)
    resumed = ImportantHeadCallback()
    model = tiny("bert", auto="AutoModelForSequenceClassification")
    trainer = Trainer(
        model, arguments(tmp_path, **settings), data_collator=collate, train_dataset=rows(), callbacks=[resumed]
    )
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-30"))
    back = next(c for c in trainer.callback_handler.callbacks if isinstance(c, ImportantHeadCallback))
    assert back.alpha == 0.25 and {t: torch.tensor(m).tolist() for t, m in back.masks.items()} == {
        t: m.tolist() for t, m in whole.masks.items()
    }
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), model.state_dict().values()))


def test_batches_of_ones_own_are_not_taken_from_elsewhere_when_a_run_is_resumed(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 10, "restore_callback_states_from_checkpoint": True}
    own = {task: [collate([row for row in rows() if row["task"] == task][:8])] for task in HEADS}
    whole = ImportantHeadCallback(alpha=0.25, delta=0.5, batches=own)
    one = train(tmp_path, whole, **settings)
    with pytest.raises(HeadwiseError, match="which checkpoints do not contain"):
        train(tmp_path, ImportantHeadCallback(), resume_from_checkpoint=str(tmp_path / "checkpoint-10"), **settings)
    settings["restore_callback_states_from_checkpoint"] = False
    again = ImportantHeadCallback(alpha=0.25, delta=0.5, batches=own)
    two = train(tmp_path, again, resume_from_checkpoint=str(tmp_path / "checkpoint-10"), **settings)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values()))


@pytest.mark.parametrize("shape", [(3, 4), (2, 5), (1, 4), (4,)])
def test_masks_of_another_shape_are_told_before_training(tmp_path, shape):
    with pytest.raises(HeadwiseError, match=r"a mask of shape .*\(layers, heads\) = \(2, 4\)"):
        train(tmp_path, ImportantHeadCallback(masks=dict.fromkeys(HEADS, torch.ones(shape, dtype=torch.bool))))


def test_numbers_may_name_the_tasks_of_masks(tmp_path):
    data = [row | {"task": int(row["task"][-1])} for row in rows()]
    callback, watch = ImportantHeadCallback(delta=0.5, masks=dict(enumerate(masks().values()))), Watch(20)
    train(tmp_path, callback, watch, data=data)
    assert watch.moved == {place for places in HEADS.values() for place in places}


class Break(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            raise RuntimeError("broken")


def test_a_second_training_is_as_by_a_fresh_callback(tmp_path):
    used, fresh = (ImportantHeadCallback(alpha=0.25, delta=0.5, examples=16) for _ in range(2))
    train(tmp_path, used, family="roberta", max_steps=4)
    again = train(tmp_path, used, max_steps=4)
    other = train(tmp_path, fresh, max_steps=4)
    assert all(torch.equal(used.masks[task], mask) for task, mask in fresh.masks.items())
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), other.state_dict().values()))


def test_a_training_that_broke_leaves_nothing_to_the_next(tmp_path):
    callback = ImportantHeadCallback(delta=1.0, masks=masks())
    broken = tiny("bert", 3, auto="AutoModelForSequenceClassification")
    trainer = Trainer(
        broken, arguments(tmp_path), data_collator=collate, train_dataset=rows(), callbacks=[callback, Break()]
    )
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train()
    watch = Watch(1)
    train(tmp_path, callback, watch, max_steps=8)
    assert watch.moved == {(0, 1), (1, 2), (1, 3)} and not broken._forward_pre_hooks


def broken(folder, delta: float = 1.0):
    """A model whose training broke in its fourth step, and what it was trained on."""
    model = tiny("bert", 3, auto="AutoModelForSequenceClassification")
    callbacks = [ImportantHeadCallback(delta=delta, masks=masks()), Break()]
    with pytest.raises(RuntimeError, match="broken"):
        Trainer(model, arguments(folder), data_collator=collate, train_dataset=rows(), callbacks=callbacks).train()
    return model


@pytest.mark.parametrize("delta", [1.0, 0.0], ids=["held", "not yet held"])
def test_a_plain_call_after_a_training_that_broke_is_as_without(tmp_path, delta):
    model = broken(tmp_path, delta)
    fresh = tiny("bert", 3, auto="AutoModelForSequenceClassification").train()
    fresh.load_state_dict(model.state_dict())
    batch = collate(rows()[:8])
    del batch["task"]
    for one in (model, fresh):
        one.zero_grad()
        torch.manual_seed(0)
        one(**batch).loss.backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), fresh.parameters()))


def test_a_new_callback_takes_the_place_of_one_whose_training_broke(tmp_path):
    model, watch, callback = broken(tmp_path), Watch(1), ImportantHeadCallback(delta=1.0, masks=masks())
    data = [row for row in rows() if row["task"] == "toy1"]
    settings = arguments(tmp_path, max_steps=8)
    Trainer(model, settings, data_collator=collate, train_dataset=data, callbacks=[callback, watch]).train()
    assert watch.moved == set(HEADS["toy1"]) and not model._forward_pre_hooks
    assert not any(p._backward_hooks for p in model.parameters())


def test_measuring_that_breaks_ends():
    callback = ImportantHeadCallback()
    callback.model = tiny("bert", auto="AutoModelForSequenceClassification")
    callback.heads = Heads.of(callback.model)
    with pytest.raises(ValueError):
        callback._importance([{"input_ids": torch.ones(2, 3, 4, 5, dtype=torch.long)}])
    assert not callback.measuring


def test_the_task_of_a_batch():
    assert task_of("a") == task_of(["a", "a"]) == "a"
    assert task_of(3) == task_of(torch.tensor([3, 3])) == task_of(np.array(3)) == "3"
    with pytest.raises(HeadwiseError, match=r"several tasks: a, b.*train_sampling_strategy=\"sequential\""):
        task_of(["a", "b"])
    with pytest.raises(HeadwiseError, match="remove_unused_columns=False"):
        task_of(None)


def test_a_batch_that_names_no_task_is_told_before_anything_moves(tmp_path):
    model = tiny("bert", auto="AutoModelForSequenceClassification")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    unnamed = lambda items: {k: v for k, v in collate(items).items() if k != "task"}  # noqa: E731
    trainer = Trainer(
        model, arguments(tmp_path), data_collator=unnamed, train_dataset=rows(), callbacks=[ImportantHeadCallback()]
    )
    with pytest.raises(HeadwiseError, match="a batch without 'task'"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_batches_without_a_name_or_of_unknown_tasks_are_told(tmp_path):
    with pytest.raises(HeadwiseError, match="remove_unused_columns=False"):
        train(tmp_path, ImportantHeadCallback(), remove_unused_columns=True)
    with pytest.raises(HeadwiseError, match=r"'toy\d', which has no heads"):
        train(tmp_path, ImportantHeadCallback(delta=1.0, masks={"other": masks()["toy0"]}))
    with pytest.raises(HeadwiseError, match="alpha"):
        ImportantHeadCallback(alpha=2)
