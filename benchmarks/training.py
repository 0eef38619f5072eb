"""Training speed as ratios in one run on the same data and model: Hugging Face's Trainer, IAT, the released way.

    python benchmarks/training.py [--rows 128] [--repeats 3] [--json FILE]
    python benchmarks/training.py --device cuda --rows 4096 [--model FOLDER]

The packaged MiniLM encoder, batch size 32, float32 (and bfloat16 on an accelerator), and sentence lengths as in GLUE.
The ways to train take turns, so that whatever else the machine does falls on all of them; a ratio is the median over
turns, its spread the quartiles. Trainer runs with batches of similar lengths, its faster setting, and at random; it is
built outside of the clock. Before that it must hold the same parameters as our model, give the same scores, and read
as many sub-words in as many steps; the released way must take the same step as important-head training.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comparing import Row, equal, finish, in_turns, parameters_of, reading, row, seconds
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

from headwise.heads.gates import Heads
from headwise.heads.selection import random_heads
from headwise.models.batching import Encoded, Order, encode
from headwise.models.multitask import MultiTaskModel
from headwise.study.demo import encoder_folder
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Rows, Task
from headwise.training.loop import Run, fit
from headwise.training.methods.iat import IAT
from headwise.training.methods.method import Method
from headwise.training.plan import Plan
from headwise.training.step import step

BATCH, WIDTH, EPOCHS = 32, 256, 20
GOALS = {"cpu": 1.0, "cuda": 0.5}  # of an epoch beside Trainer's
STEP_MS = {"MiniLM-size": 6.0, "BERT-base-size": 10.0}


def sentences(rows: int, names: tuple[str, ...], inner: bool = False) -> list[Task]:
    """Tasks of random words, as long as GLUE's sentences: speed does not depend on what they say."""
    rng = np.random.default_rng(0)
    words = ["the", "a", "of", "and", "to", "in", "is", "was", "it", "for", "on", "with", "as", "at", "by", "from"]
    tasks = []
    for name in names:
        lengths = np.clip(rng.lognormal(3.3, 0.6, rows), 6, 120).astype(int)
        texts = [" ".join(words[i] for i in rng.integers(0, len(words), n)) for n in lengths]
        made = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]
        tasks.append(Task(name, Classify(("a", "b"), inner=inner), Rows(train=made, dev=made[:8]), "accuracy"))
    return tasks


# -- the ways to train


def our_epoch(model: MultiTaskModel, device: str, precision: str) -> Callable[[], object]:
    plan = Plan(epochs=1, batch_size=BATCH, evaluate_every=0, precision=precision)
    return lambda: fit(model, plan, device="cpu" if device == "cpu" else None)


class TheirEpochs:
    """An ordinary Trainer on the same sub-words, padded to the longest of each batch; one is built for every epoch."""

    def __init__(self, model: Any, data: Encoded, tokenizer: Any, device: str, precision: str, order: str):
        ids: Any = data.columns["input_ids"]
        self.items = [{"input_ids": ids[i].tolist(), "labels": int(data.columns["label"][i])} for i in range(len(data))]
        self.model, self.collate = model, DataCollatorWithPadding(tokenizer)
        settings: dict[str, Any] = {
            "num_train_epochs": 1,
            "per_device_train_batch_size": BATCH,
            "learning_rate": 2e-5,
            "bf16": precision == "bf16",
            "train_sampling_strategy": order,
        }
        quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        self.arguments = TrainingArguments(
            tempfile.mkdtemp(), use_cpu=device == "cpu", warmup_steps=0.1, max_grad_norm=0.0, **settings, **quiet
        )

    def ready(self) -> Trainer:
        trainer = Trainer(self.model, self.arguments, train_dataset=self.items, data_collator=self.collate)  # type: ignore[arg-type]
        trainer.remove_callback(PrinterCallback)
        return trainer

    def seconds(self, device: str) -> float:
        trainer = self.ready()
        return seconds(trainer.train, device)


def twin(model: MultiTaskModel, folder: Path) -> Any:
    """transformers' own classifier with the parameters of our model."""
    theirs = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, local_files_only=True)
    head: Any = model.head("one")
    theirs.bert.load_state_dict(model.encoder.state_dict(), strict=False)
    theirs.bert.pooler.dense.load_state_dict(head.inner[0].state_dict())
    theirs.classifier.load_state_dict(head.out.state_dict())
    return theirs


def steps(
    model: MultiTaskModel, method: Method, number: int, device: str, precision: str = "fp32"
) -> Callable[[], object]:
    """Optimizer steps of a run that goes on from turn to turn."""
    plan = Plan(epochs=1000, batch_size=BATCH, precision=precision)
    run = Run(model, plan, method, None, "cpu" if device == "cpu" else None)
    run.model.train()
    method.start(run)

    def work() -> None:
        for _ in range(number):
            step(run)
            run.step += 1

    return work


class ReleasedSteps:
    """As the released code works: everything padded to 256, eager attention, a new iterator and so a new shuffle for
    every batch, and every q, k and v gradient through numpy and back to be masked."""

    def __init__(self, model: MultiTaskModel, data: Encoded, free: torch.Tensor, optimizer: type, **options: Any):
        self.model = model
        model.encoder.set_attn_implementation("eager")
        self.items = [_padded(data.batch([i])) for i in range(len(data))]
        self.loader = DataLoader(self.items, batch_size=BATCH, shuffle=True)  # type: ignore[arg-type]
        self.optimizer = optimizer(model.parameters(), **options)
        size = model.config.hidden_size // model.config.num_attention_heads
        self.masks = []
        for name, parameter in model.encoder.named_parameters():
            if ".attention.self." in name:
                rows = free[int(name.split("layer.")[1].split(".")[0])].repeat_interleave(size).numpy()
                self.masks.append((parameter, rows.reshape(-1, *[1] * (parameter.ndim - 1))))

    def step(self, items: np.ndarray | None = None) -> None:
        batch = (
            next(iter(self.loader))
            if items is None
            else torch.utils.data.default_collate([self.items[i] for i in items])
        )
        self.model("one", batch).loss.mean().backward()
        for parameter, mask in self.masks:
            parameter.grad = torch.from_numpy(parameter.grad.cpu().numpy() * mask).to(parameter.device)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _padded(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    wide = {n: torch.nn.functional.pad(v, (0, WIDTH - v.shape[1])) if v.ndim == 2 else v for n, v in batch.items()}
    return {name: value[0] for name, value in wide.items()}


# -- the table


def compare(what: str, ours: list[float], other: list[float], goal: float, same: list[str], peer: str = "") -> Row:
    """The median of ours over the other's, turn by turn, beside the most it may be."""
    each = [a / b for a, b in zip(ours, other)]
    low, ratio, high = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
    times = {"ours_s": statistics.median(ours), "other_s": statistics.median(other)}
    return row(what, ratio, f"<= {goal:g}", same=same, peer=peer, spread=[low, high], **times)


def epoch_rows(folder: Path, rows: int, repeats: int, device: str, precision: str) -> list[Row]:
    """Epochs of our loop and of Trainer, with batches of similar lengths and with random ones."""
    tasks = sentences(rows, ("one",), inner=True)
    model = _loaded(folder, tasks)
    data = encode(model.tasks["one"], "train", model.tokenizer)
    theirs = {
        order: TheirEpochs(twin(model, folder), data, model.tokenizer, device, precision, order)
        for order in ("group_by_length", "random")
    }
    ours = our_epoch(model, device, precision)
    same = {order: same_epoch(model, ours, epochs, data) for order, epochs in theirs.items()}
    turns = [[seconds(ours, device), *(e.seconds(device) for e in theirs.values())] for _ in range(repeats + 1)][1:]
    mine, *others = ([*times] for times in zip(*turns))
    names = {"group_by_length": "batches by length", "random": "random batches"}
    found = [
        compare(f"epoch / Trainer's, {names[order]}, {precision}", mine, other, GOALS[device], same[order], "Trainer")
        for order, other in zip(theirs, others)
    ]
    return sorted(found, key=lambda each: -each["ratio"])


def same_epoch(model: MultiTaskModel, ours: Callable[[], object], theirs: TheirEpochs, data: Encoded) -> list[str]:
    """The same model and an epoch of the same work; both are trained a little by it."""
    batch = data.batch(np.arange(min(8, len(data))))
    device = next(theirs.model.parameters()).device
    model.to(device).eval(), theirs.model.eval()
    model.load_state_dict(_state_of(theirs.model, model))
    batch = {name: value.to(device) for name, value in batch.items()}
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        scores = [model("one", batch).scores.cpu(), theirs.model(**inputs).logits.cpu()]
    pooler = parameters_of(model.encoder.pooler)  # which our model loads and does not use
    lines = [
        equal("parameters in use", parameters_of(model) - pooler, parameters_of(theirs.model)),
        equal("scores", *scores, 1e-4),
    ]
    with reading(model.encoder) as mine:
        ours()
    with reading(theirs.model.bert) as others:
        theirs.ready().train()
    lines += [equal(f"{n} of an epoch", getattr(mine, n), getattr(others, n)) for n in ("subwords", "forwards")]
    return [*lines, f"padded to {mine.padded:,.0f} and {others.padded:,.0f}"]


def _state_of(theirs: Any, model: MultiTaskModel) -> dict[str, torch.Tensor]:
    """Our model's parameters as the twin has them now."""
    state = model.state_dict()
    state |= {f"encoder.{n}": t for n, t in theirs.bert.state_dict().items() if f"encoder.{n}" in state}
    state |= {f"heads.one.inner.0.{n}": t for n, t in theirs.bert.pooler.dense.state_dict().items()}
    return state | {f"heads.one.out.{n}": t for n, t in theirs.classifier.state_dict().items()}


def iat_rows(folder: Path, rows: int, repeats: int, device: str, precision: str) -> list[Row]:
    """Steps of important-head training and plain ones, two tasks in turn."""
    number, tasks = max(2, rows // BATCH), sentences(rows, ("one", "two"))
    models = [_loaded(folder, tasks) for _ in range(2)]
    ways = [steps(m, method, 1, device, precision) for m, method in zip(models, (held(models[0]), Method()))]
    read = [_read(model, way) for model, way in zip(models, ways)]
    same = [equal("sub-words of a step", *(r.subwords for r in read))]
    ours, plain = in_turns(ways, (repeats + 1) * number, device)
    return [compare(f"IAT step / plain step, {precision}", ours[number:], plain[number:], 1.03, same)]


def _read(model: MultiTaskModel, way: Callable[[], object]) -> Any:
    with reading(model.encoder) as read:
        way()
    return read


def released_rows(folder: Path, rows: int, repeats: int) -> list[Row]:
    """Steps of important-head training and the released way's."""
    tasks = sentences(rows, ("one",))
    model = _loaded(folder, tasks)
    data = encode(model.tasks["one"], "train", model.tokenizer)
    theirs = ReleasedSteps(
        _loaded(folder, tasks).train(), data, _free(model), torch.optim.AdamW, lr=2e-5, weight_decay=0.0
    )
    same = [same_step(folder, tasks, data)]
    ways = [steps(model, held(model), max(2, rows // BATCH), "cpu"), theirs.step]
    ours, released = in_turns(ways, repeats)
    return [compare("IAT step / the released way's", [s / max(2, rows // BATCH) for s in ours], released, 0.1, same)]


def same_step(folder: Path, tasks: list[Task], data: Encoded) -> str:
    """One step of gradient descent on one batch, without dropout, moves all parameters alike both ways.

    Adam's first step is the gradient's sign, which rounding turns where there is next to no gradient.
    """
    models = [_without_dropout(_loaded(folder, tasks)) for _ in range(2)]
    before = {name: tensor.clone() for name, tensor in models[0].state_dict().items()}
    plan = Plan(steps=1, batch_size=BATCH, optimizer="sgd", beta1=0.0, lr=1e-2, warmup=0.0)
    method = held(models[0])
    run = Run(models[0], plan, method, None, "cpu")
    run.model.train()
    method.start(run)
    items = copy.deepcopy(run.streams["one"]).next()
    step(run)
    theirs = ReleasedSteps(models[1].train(), data, _free(models[1]), torch.optim.SGD, lr=plan.lr)
    theirs.step(items)
    moved = [torch.cat([(m.state_dict()[n] - before[n]).flatten() for n in before]) for m in models]
    return equal("parameters moved by a step", *moved, 1e-3)


def _without_dropout(model: MultiTaskModel) -> MultiTaskModel:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def measure(folder: Path, rows: int, repeats: int, device: str) -> list[Row]:
    found = []
    for precision in ("fp32",) if device == "cpu" else ("fp32", "bf16"):
        found += epoch_rows(folder, rows, repeats, device, precision)
        found += iat_rows(folder, rows, repeats, device, precision)
    if device == "cpu":
        found += released_rows(folder, rows, repeats)
    else:
        found += step_times(folder, sentences(rows, ("one", "two")), repeats, max(2, rows // BATCH))
    model = _loaded(folder, sentences(rows, ("one",)))
    data = encode(model.tasks["one"], "train", model.tokenizer)
    (times,) = in_turns([lambda: batched(data)], repeats)
    return [*found, row("batching a sentence, µs", 1e6 * statistics.median(times) / (EPOCHS * len(data)), "<= 20")]


def step_times(folder: Path, tasks: list[Task], repeats: int, number: int) -> list[Row]:
    """Milliseconds of a step on the accelerator, recordings made, against the goals."""
    found = []
    for name, most in STEP_MS.items():
        for precision in ("fp32", "bf16"):
            model = _loaded(folder, tasks) if name == "MiniLM-size" else _base_size(folder, tasks)
            (times,) = in_turns([steps(model, Method(), number, "cuda", precision)], repeats + 1, "cuda")
            each = 1e3 * statistics.median(times[1:]) / number
            found.append(row(f"a step of {name}, {precision}, ms", each, f"<= {most:g}"))
    return found


def _free(model: MultiTaskModel) -> torch.Tensor:
    """The heads that important-head training moves on the first task."""
    return random_heads(Heads.of(model.encoder).shape, 0.3, seed=0)


def held(model: MultiTaskModel) -> IAT:
    """IAT from the first step on, with given heads."""
    shape = Heads.of(model.encoder).shape
    masks = {name: random_heads(shape, 0.3, seed=i) for i, name in enumerate(("one", "two"))}
    return IAT(delta=1.0, choose=masks)


def _loaded(folder: Path, tasks: list[Task]) -> MultiTaskModel:
    return MultiTaskModel.from_pretrained(folder, tasks)


def _base_size(folder: Path, tasks: list[Task]) -> MultiTaskModel:
    """BERT-base's shape without its weights: speed does not ask for them."""
    small = _loaded(folder, tasks)
    return MultiTaskModel(BertModel(BertConfig(vocab_size=len(small.tokenizer))), small.tokenizer, tasks)


def batched(data: Encoded) -> None:
    for epoch in range(EPOCHS):
        for items in Order(data.lengths, BATCH).epoch([0, epoch]):
            data.batch(items)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=[*GOALS], default="cpu")
    parser.add_argument("--model", type=Path, help="an encoder's folder in place of the packaged one")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    finish(measure(args.model or encoder_folder(), args.rows, args.repeats, args.device), args.json)


if __name__ == "__main__":
    main()
