"""Training speed as ratios in one run on the same data and model: Hugging Face's Trainer, IAT, the reference's way.

    python benchmarks/training.py [--rows 512] [--repeats 5] [--threads 2] [--clock wall] [--json FILE]

The packaged MiniLM encoder, batch size 32, float32, and sentence lengths as in GLUE. The ways to train take turns, so
that whatever else the machine does falls on all of them; a ratio is the median over turns, its spread the quartiles.
On a shared machine ``--threads 1 --clock cpu`` counts the process's own time only.
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
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments

from headwise.batching import Encoded, Order, encode
from headwise.demo import encoder_folder
from headwise.methods import Method
from headwise.methods.iat import IAT
from headwise.model import MultiTaskModel
from headwise.plan import Plan
from headwise.tasks.sentence import Classify
from headwise.tasks.task import Rows, Task
from headwise.train import Run, _step, fit

BATCH, WIDTH = 32, 256
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Turn = Callable[[], float]


def sentences(rows: int, names: tuple[str, ...]) -> list[Task]:
    """Tasks of random words, as long as GLUE's sentences: speed does not depend on what they say."""
    rng = np.random.default_rng(0)
    words = [
        "the",
        "a",
        "of",
        "and",
        "to",
        "in",
        "is",
        "was",
        "it",
        "for",
        "on",
        "with",
        "as",
        "his",
        "at",
        "by",
        "from",
        "that",
        "this",
        "an",
        "be",
        "are",
        "or",
    ]
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
    return clock() - start


def ratios(turns: list[Turn], repeats: int) -> list[list[float]]:
    """Seconds of every way to train, turn by turn; the first round warms up."""
    rounds = [[turn() for turn in turns] for _ in range(repeats + 1)]
    return [list(seconds) for seconds in zip(*rounds[1:])]


# -- the ways to train


def our_epoch(folder: Path, tasks: list[Task], clock: Callable[[], float]) -> Turn:
    model = MultiTaskModel.from_pretrained(folder, tasks)
    plan = Plan(epochs=1, batch_size=BATCH, evaluate_every=0)
    return lambda: timed(lambda: fit(model, plan, device="cpu"), clock)


def trainer_epoch(folder: Path, task: Task, data: Encoded, tokenizer: Any, clock: Callable[[], float]) -> Turn:
    """An ordinary Trainer on the same sub-words, padded to the longest of each batch."""
    ids: Any = data.columns["input_ids"]
    items = [{"input_ids": ids[i].tolist(), "labels": int(data.columns["label"][i])} for i in range(len(data))]
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, local_files_only=True)
    scratch = tempfile.mkdtemp()

    def epoch() -> None:
        settings = {"num_train_epochs": 1, "per_device_train_batch_size": BATCH, "learning_rate": 2e-5}
        quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
        arguments = TrainingArguments(scratch, use_cpu=True, warmup_steps=0.1, max_grad_norm=0.0, **settings, **quiet)
        collate = DataCollatorWithPadding(tokenizer)
        Trainer(model, arguments, train_dataset=items, data_collator=collate).train()  # type: ignore[arg-type]

    return lambda: timed(epoch, clock)


def steps(folder: Path, tasks: list[Task], method: Method, number: int, clock: Callable[[], float]) -> Turn:
    """Optimizer steps of a run that goes on from turn to turn."""
    run = Run(MultiTaskModel.from_pretrained(folder, tasks), Plan(epochs=1000, batch_size=BATCH), method, None, "cpu")
    method.start(run)

    def work() -> None:
        for _ in range(number):
            _step(run)
            run.step += 1

    return lambda: timed(work, clock)


def reference_steps(folder: Path, task: Task, data: Encoded, number: int, clock: Callable[[], float]) -> Turn:
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


def compare(what: str, other: list[float], ours: list[float], goal: float, at_least: bool) -> dict[str, Any]:
    """How many times ours fits into the other's (``at_least``), or ours over the other's (at most)."""
    each = [a / b if at_least else b / a for a, b in zip(other, ours)]
    low, ratio, high = statistics.quantiles(each, n=4) if len(each) > 1 else (each[0],) * 3
    met = ratio >= goal if at_least else ratio <= goal
    seconds = {"ours_s": statistics.median(ours), "other_s": statistics.median(other)}
    return {
        "what": what,
        **seconds,
        "ratio": ratio,
        "spread": [low, high],
        "goal": goal,
        "at_least": at_least,
        "met": met,
    }


def measure(rows: int, repeats: int, clock: Callable[[], float]) -> list[dict[str, Any]]:
    folder, number = encoder_folder(), max(2, rows // BATCH)
    one, two = sentences(rows, ("one",)), sentences(rows, ("one", "two"))
    model = MultiTaskModel.from_pretrained(folder, one)
    data = encode(model.tasks["one"], "train", model.tokenizer)
    found = []
    turns = [trainer_epoch(folder, one[0], data, model.tokenizer, clock), our_epoch(folder, one, clock)]
    theirs, ours = ratios(turns, repeats)
    found.append(compare("epoch: ours / HF Trainer, dynamic padding", theirs, ours, 1.0, at_least=False))
    masks = {
        name: torch.rand(6, 12, generator=torch.Generator().manual_seed(i)) > 0.7
        for i, name in enumerate(("one", "two"))
    }
    held = IAT(delta=1.0, choose=masks)
    plain_iat = [steps(folder, two, Method(), 1, clock), steps(folder, two, held, 1, clock)]
    plain, iat = ratios(plain_iat, repeats * number)
    found.append(compare("step: IAT / plain", plain, iat, 1.03, at_least=False))
    turns = [
        reference_steps(folder, one[0], data, 2, clock),
        steps(folder, one, IAT(delta=1.0, choose=masks), 2 * 8, clock),
    ]
    reference, ours = ratios(turns, max(2, repeats // 2))
    found.append(compare("IAT step: the reference's way / ours", reference, [s / 8 for s in ours], 10.0, at_least=True))
    batching = ratios([lambda: batched(data, clock)], repeats)[0]
    per_second = [len(data) * 20 / seconds for seconds in batching]
    found.append(compare("sentences batched per second / 50 000", per_second, [50_000.0] * len(per_second), 1.0, True))
    return found


def batched(data: Encoded, clock: Callable[[], float]) -> float:
    def work() -> None:
        for epoch in range(20):
            for items in Order(data.lengths, BATCH).epoch([0, epoch]):
                data.batch(items)

    return timed(work, clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = measure(given.rows, given.repeats, CLOCKS[given.clock])
    print(f"{'what':44}{'ours':>10}{'other':>10}{'ratio':>9}  {'quartiles':17}{'goal':>9}")
    for row in found:
        low, high = row["spread"]
        goal = f"{'≥' if row['at_least'] else '≤'} {row['goal']:g}"
        line = f"{row['what']:44}{row['ours_s']:>10.3f}{row['other_s']:>10.3f}{row['ratio']:>9.3f}  "
        print(f"{line}{f'{low:.3f} to {high:.3f}':17}{goal:>9}  {'met' if row['met'] else 'MISSED'}")
    if given.json:
        given.json.write_text(
            json.dumps({"settings": vars(given) | {"json": str(given.json)}, "rows": found}, indent=1)
        )


if __name__ == "__main__":
    main()
