"""Training speed as ratios in one run on the same data and model: Hugging Face's Trainer, IAT, the reference's way.

    python benchmarks/training.py [--rows 256] [--repeats 3] [--threads 2] [--clock wall] [--json FILE]
    python benchmarks/training.py --device cuda --rows 4096 [--model FOLDER]

The packaged MiniLM encoder, batch size 32, float32 (and bfloat16 on an accelerator), and sentence lengths as in GLUE.
The ways to train take turns, so that whatever else the machine does falls on all of them; a ratio is the median over
turns, its spread the quartiles. On a shared machine ``--threads 1 --clock cpu`` counts the process's own time only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
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

from headwise.batching import Encoded, Order, encode
from headwise.demo import encoder_folder
from headwise.heads import Heads
from headwise.methods import Method
from headwise.methods.iat import IAT
from headwise.model import MultiTaskModel
from headwise.plan import Plan
from headwise.selection import random_heads
from headwise.stepping import step
from headwise.tasks.sentence import Classify
from headwise.tasks.task import Rows, Task
from headwise.train import Run, fit

BATCH, WIDTH, EPOCHS = 32, 256, 20
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
GOALS = {"cpu": {"epoch": 1.0}, "cuda": {"epoch": 0.5}}
STEP_MS = {"MiniLM-size": 6.0, "BERT-base-size": 10.0}
Turn = Callable[[], float]


def sentences(rows: int, names: tuple[str, ...]) -> list[Task]:
    """Tasks of random words, as long as GLUE's sentences: speed does not depend on what they say."""
    rng = np.random.default_rng(0)
    words = ["the", "a", "of", "and", "to", "in", "is", "was", "it", "for", "on", "with", "as", "at", "by", "from"]
    tasks = []
    for name in names:
        lengths = np.clip(rng.lognormal(3.3, 0.6, rows), 6, 120).astype(int)
        texts = [" ".join(words[i] for i in rng.integers(0, len(words), n)) for n in lengths]
        made = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]
        tasks.append(Task(name, Classify(("a", "b")), Rows(train=made, dev=made[:8]), "accuracy"))
    return tasks


def timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


def turns(ways: list[Turn], repeats: int) -> list[list[float]]:
    """Seconds of every way to train, turn by turn; the first round warms up."""
    rounds = [[way() for way in ways] for _ in range(repeats + 1)]
    return [list(seconds) for seconds in zip(*rounds[1:])]


# -- the ways to train


def our_epoch(folder: Path, tasks: list[Task], clock: Callable[[], float], device: str, precision: str) -> Turn:
    model = MultiTaskModel.from_pretrained(folder, tasks)
    plan = Plan(epochs=1, batch_size=BATCH, evaluate_every=0, precision=precision)
    return lambda: timed(lambda: fit(model, plan, device="cpu" if device == "cpu" else None), clock)


def trainer_epoch(folder: Path, data: Encoded, tokenizer: Any, clock: Callable, device: str, precision: str) -> Turn:
    """An ordinary Trainer on the same sub-words, padded to the longest of each batch."""
    ids: Any = data.columns["input_ids"]
    items = [{"input_ids": ids[i].tolist(), "labels": int(data.columns["label"][i])} for i in range(len(data))]
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, local_files_only=True)
    scratch = tempfile.mkdtemp()

    def epoch() -> None:
        settings = {
            "num_train_epochs": 1,
            "per_device_train_batch_size": BATCH,
            "learning_rate": 2e-5,
            "bf16": precision == "bf16",
        }
        quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        arguments = TrainingArguments(
            scratch, use_cpu=device == "cpu", warmup_steps=0.1, max_grad_norm=0.0, **settings, **quiet
        )
        collate = DataCollatorWithPadding(tokenizer)
        trainer = Trainer(model, arguments, train_dataset=items, data_collator=collate)  # type: ignore[arg-type]
        trainer.remove_callback(PrinterCallback)
        trainer.train()

    return lambda: timed(epoch, clock)


def steps(
    model: MultiTaskModel, method: Method, number: int, clock: Callable[[], float], device: str, precision: str = "fp32"
) -> Turn:
    """Optimizer steps of a run that goes on from turn to turn."""
    plan = Plan(epochs=1000, batch_size=BATCH, precision=precision)
    run = Run(model, plan, method, None, "cpu" if device == "cpu" else None)
    run.model.train()
    method.start(run)

    def work() -> None:
        for _ in range(number):
            step(run)
            run.step += 1

    return lambda: timed(work, clock)


def reference_steps(folder: Path, data: Encoded, number: int, clock: Callable[[], float]) -> Turn:
    """As the released code works: everything padded to 256, eager attention, a new iterator and so a new shuffle for
    every batch, and every q, k and v gradient through numpy and back to be masked."""
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=2, local_files_only=True, attn_implementation="eager"
    ).train()
    ids: Any = data.columns["input_ids"]
    items = [{"input_ids": torch.from_numpy(ids.padded([i], 0, WIDTH)[0]).long()} for i in range(len(data))]
    for i, item in enumerate(items):
        item["attention_mask"] = (torch.arange(WIDTH) < int(data.lengths[i])).long()
        item["labels"] = torch.tensor(int(data.columns["label"][i]))
    loader = DataLoader(items, batch_size=BATCH, shuffle=True)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0)
    held = [p for n, p in model.named_parameters() if ".attention.self." in n]
    masks = [(np.random.default_rng(0).random(p.shape) > 0.7).astype(np.int8) for p in held]

    def work() -> None:
        for _ in range(number):
            model(**next(iter(loader))).loss.backward()
            for parameter, mask in zip(held, masks):
                grad: Any = parameter.grad
                parameter.grad = torch.from_numpy(grad.cpu().numpy() * mask).to(parameter.device)
            optimizer.step()
            optimizer.zero_grad()

    return lambda: timed(work, clock)


# -- the table


def compare(what: str, ours: list[float], other: list[float], goal: float) -> dict[str, Any]:
    """The median of ours over the other's, turn by turn, beside the most it may be."""
    each = [a / b for a, b in zip(ours, other)]
    low, ratio, high = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
    seconds = {"ours_s": statistics.median(ours), "other_s": statistics.median(other)}
    return {"what": what, **seconds, "ratio": ratio, "spread": [low, high], "goal": goal, "met": ratio <= goal}


def measure(folder: Path, rows: int, repeats: int, clock: Callable[[], float], device: str) -> list[dict[str, Any]]:
    number = max(2, rows // BATCH)
    one, two = sentences(rows, ("one",)), sentences(rows, ("one", "two"))
    model = MultiTaskModel.from_pretrained(folder, one)
    data = encode(model.tasks["one"], "train", model.tokenizer)
    found = []
    for precision in ("fp32",) if device == "cpu" else ("fp32", "bf16"):
        ours = our_epoch(folder, one, clock, device, precision)
        theirs = trainer_epoch(folder, data, model.tokenizer, clock, device, precision)
        what = f"epoch / HF Trainer's, dynamic padding, {precision}"
        found.append(compare(what, *turns([ours, theirs], repeats), GOALS[device]["epoch"]))
        pair = [steps(_loaded(folder, two), m, 1, clock, device, precision) for m in (held(model), Method())]
        ours, theirs = turns(pair, repeats * number)
        found.append(compare(f"IAT step / plain step, {precision}", ours[number:], theirs[number:], 1.03))
    if device == "cpu":
        pair = [steps(model, held(model), number, clock, device), reference_steps(folder, data, 1, clock)]
        ours, theirs = turns(pair, repeats)
        found.append(compare("IAT step / the reference's", [s / number for s in ours], theirs, 0.1))
    else:
        found += step_times(folder, two, repeats, number, clock)
    (seconds,) = turns([lambda: timed(lambda: batched(data), clock)], repeats)
    each = [s / (EPOCHS * len(data)) for s in seconds]
    found.append(compare("batching a sentence / 20 µs (50 000 a second)", each, [2e-5] * repeats, 1.0))
    return found


def step_times(folder: Path, tasks: list[Task], repeats: int, number: int, clock: Callable) -> list[dict[str, Any]]:
    """Milliseconds of a step on the accelerator, recordings made, against the goals."""
    found = []
    for name, most in STEP_MS.items():
        for precision in ("fp32", "bf16"):
            made = _loaded(folder, tasks) if name == "MiniLM-size" else _base_size(folder, tasks)
            (seconds,) = turns([steps(made, Method(), number, clock, "cuda", precision)], repeats + 2)
            each = [s / number for s in seconds[2:]]
            found.append(compare(f"a step of {name}, {precision} / {most:g} ms", each, [most / 1000] * len(each), 1.0))
    return found


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
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall")
    parser.add_argument("--device", choices=[*GOALS], default="cpu")
    parser.add_argument("--model", type=Path, help="an encoder's folder in place of the packaged one")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    found = measure(given.model or encoder_folder(), given.rows, given.repeats, CLOCKS[given.clock], given.device)
    print(f"{'what':46}{'ours, s':>10}{'other, s':>10}{'ratio':>8}  {'quartiles':17}{'goal':>7}")
    for row in found:
        low, high = row["spread"]
        seconds = f"{row['ours_s']:>10.3g}{row['other_s']:>10.3g}"
        line = f"{row['what']:46}{seconds}{row['ratio']:>8.3f}  {f'{low:.3f} to {high:.3f}':17}≤ {row['goal']:<5g}"
        print(f"{line}  {'met' if row['met'] else 'MISSED'}")
    if given.json:
        settings = {"rows": given.rows, "repeats": given.repeats, "threads": given.threads, "clock": given.clock}
        given.json.write_text(json.dumps({"settings": settings, "found": found}, indent=1))


if __name__ == "__main__":
    main()
