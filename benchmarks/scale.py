"""What large experiments would cost, worked out from measured rates: the tables of docs/scale.md.

    python benchmarks/scale.py [--write]

Nothing large is run. Every number follows from RATES, which were measured, and from the amounts of work that
`scale_recipes.py` and the functions below write down; replace a rate and run it again.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scale_decoder import GB, Decoder, features, memory_rows, parts_rows
from scale_recipes import BASE, LENGTH, NAMES, SHAPES, Amount, amount, full, kept, longest, model_of

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
TRAINING, IMPORTANCE, PROBING = (f"`benchmarks/{name}.py`, H200" for name in ("training", "importance", "probing"))
HERE, TOGETHER = "`benchmarks/records.py`, 2 cores", "15 trainings at once, H200"
RATES: dict[str, tuple[float, str, str]] = {  # value, what it is, where it comes from; H200: one, torch 2.11
    "mini_fp32": (5.25e-3, "s, a training step of MiniLM size (6 x 12 heads, 22.7 M), fp32", TRAINING),
    "mini_bf16": (2.94e-3, "s, the same, bf16", TRAINING),
    "base_fp32": (23.4e-3, "s, a training step of BERT-base size, fp32", TRAINING),
    "base_bf16": (7.62e-3, "s, the same, bf16", TRAINING),
    "importance": (46e-6, "s, importance of one example, BERT-base shape, bf16", IMPORTANCE),
    "over_forward": (1.49, "importance / bare forward", IMPORTANCE),
    "lesions": (0.93, "8 lesions / 8 forwards", IMPORTANCE),
    "probe": (10.9, "s, probing 144 heads, 100,000 sentences, anatomy protocol", PROBING),
    "probe_converged": (8.8, "s, the same, converged protocol", PROBING),
    "probe_fit": (2.05, "s, of it fitting; the rest reads the sentences", PROBING),
    "probe_gb": (19.4, "GB of device memory, the same", PROBING),
    "side_by_side": (450.0, "steps a second of MiniLM size, bf16", TOGETHER),
    "side_by_side_mps": (1180.0, "the same under NVIDIA MPS, each on a quarter of the processors", TOGETHER),
    "matrix": (788.0, "TFLOP/s of a bf16 matrix product", "H200"),
    "cpu_step": (0.53, "s, a training step of MiniLM size, fp32", "`benchmarks/training.py`, 2 cores"),
    "cpu_importance": (13.8e-3, "s, importance of one example, 6 x 12 x 384", "`benchmarks/importance.py`, 2 cores"),
    "cpu_over_forward": (1.99, "importance / bare forward, the same", "`benchmarks/importance.py`, 2 cores"),
    "save": (10.3e-3, "s, writing a record", HERE),
    "queue": (2.7e-6, "s, a job's way through the queue of a sweep", HERE),
    "record": (23.0, "kB, a record of a pair's lesions, 72 heads, 10 fractions", HERE),
    "page": (1.58, "kB of a study's page for each cell of the tasks' matrix", "pages of 10, 20 and 40 tasks, 2 cores"),
}
BATCH = 32
MOST = 40  # tasks on one page (headwise.reporting.groups)
TASKS = (10, 100, 1000)

RECIPES = "recipe | jobs | tokens trained, 10⁹ | tokens read, 10⁹ | H200 days, fp32 | H200 days, bf16 "
RECIPES += "| longest chain, hours in bf16 | models kept, GB"
MEMORY = "weights in | weights, GB | with importance of 1,024 tokens, GB | of 4,096 tokens, GB | accelerators of 141 GB"
PARTS = "accelerators | FSDP, GB | that is tokens | feed-forward part split, GB | that is tokens"
PAIRS = "tasks | pairs | each pair | with MPS | groups of 10 | all groups | with MPS | 2-core days, each pair, fp32"
FOLDER = "tasks | jobs | files, at least | models, GB | records, GB | writing records, h | choosing jobs, s"
ONE = "tasks | cells | lesions, H200 h | 2-core days | host memory, GB | at ten shares, GB | first page, MB"


def rate(name: str) -> float:
    return RATES[name][0]


# -- the four recipes


def size(model: str, precision: str) -> float:
    """A model's work beside BERT-base's: its weights without embeddings, but no less than MiniLM's measured share."""
    layers, _, width = SHAPES.get(model, BASE)
    least = rate(f"mini_{precision}") / rate(f"base_{precision}")
    return max(layers * width**2 / (BASE[0] * BASE[2] ** 2), least)


def seconds(done: Amount, model: str, precision: str) -> float:
    """On one H200, a job at a time."""
    slower = rate(f"base_{precision}") / rate("base_bf16")
    train, score = rate(f"base_{precision}") / (BATCH * LENGTH), slower * rate("importance") / LENGTH
    passes = score * (done.scored + (done.read + rate("lesions") * done.lesioned) / rate("over_forward"))
    reading, (layers, heads, _) = rate("probe_converged") - rate("probe_fit"), SHAPES.get(model, BASE)
    probe = slower * reading * size(model, precision) + (rate("probe") - reading) * layers * heads / 144
    return (done.trained * train + passes) * size(model, precision) + done.probed * probe


def recipe_rows() -> list[list[Any]]:
    found = []
    for name in NAMES:
        jobs = full(name)
        done = {job.key: amount(job) for job in jobs}
        spent = {p: {j.key: seconds(done[j.key], model_of(j), p) for j in jobs} for p in ("fp32", "bf16")}
        days = [sum(each.values()) / 86400 for each in spent.values()]
        billions = [sum(one.trained for one in done.values()) / 1e9, sum(sum(one[1:4]) for one in done.values()) / 1e9]
        found.append([name, len(jobs), *billions, *days, longest(jobs, spent["bf16"]) / 3600])
        found[-1].append(sum(map(kept, jobs)) / GB)
    total = [max(column) if i == 5 else sum(column) for i, column in enumerate(zip(*(row[1:] for row in found)))]
    return [*found, ["all four", *total]]


# -- a decoder of 70B


def speed(model: Decoder, backward: bool) -> float:
    """Tokens a second of one H200, at the share of its matrix product that a BERT-base shape reaches."""
    base = 12 * BASE[0] * BASE[2] ** 2 * LENGTH / rate("importance")
    return base / model.blocks * (1.0 if backward else rate("over_forward"))


def used() -> dict[str, float]:
    """The share of the matrix product's operations that importance, and a bare forward, reached."""
    work = 2 * 12 * BASE[0] * BASE[2] ** 2 * LENGTH / rate("importance") / (1e12 * rate("matrix"))
    return {"importance": 2 * work, "forward": work * rate("over_forward")}


def decoder_rows(model: Decoder) -> list[list[Any]]:
    forward, backward = speed(model, False), speed(model, True)
    jobs = [
        ("importance of one task, 10,000 examples of 128 tokens", 10_000 * 128, backward),
        ("lesions: 5 tasks, 30 % and 3 random controls, 2,000 rows of 128 tokens", 5 * 9 * 2000 * 128, forward),
        ("the same at ten shares of heads", 5 * 81 * 2000 * 128, forward),
        ("importance by ablation, every head once, 500 examples", model.layers * model.heads * 500 * 128, forward),
        ("features of 120,000 sentences of 34 tokens, for probes", 120_000 * LENGTH, forward),
    ]
    return [[what, tokens / 1e6, pace, tokens / pace / 3600] for what, tokens, pace in jobs]


# -- a thousand tasks


def pair_rows(rows: int = 10_000, epochs: int = 3, group: int = 10) -> list[list[Any]]:
    """Every two tasks trained together, alone or within groups."""
    found, steps = [], epochs * rows / BATCH
    for tasks in TASKS:
        pairs = tasks * (tasks - 1) // 2
        groups = -(-pairs // (group * (group - 1) // 2))
        trained = [number * steps for number in (2 * pairs, group * groups)]
        days = [n / rate(name) / 86400 for n in trained for name in ("side_by_side", "side_by_side_mps")]
        found.append([tasks, pairs, *days[:2], groups, *days[2:], trained[0] * rate("cpu_step") / 86400])
    return found


def folder_rows() -> list[list[Any]]:
    """A training and a lesions job for every pair, in one results folder."""
    found = []
    for tasks in TASKS:
        pairs = tasks * (tasks - 1) // 2
        jobs, disk = 2 * pairs, [4 * 22.7e6 * pairs / GB, 1e3 * rate("record") * pairs / GB]
        found.append([tasks, jobs, 4 * jobs, *disk, jobs * rate("save") / 3600, jobs * rate("queue")])
    return found


def one_model_rows(rows: int = 1000, draws: int = 1000, controls: int = 3) -> list[list[Any]]:
    """All tasks in one model: one matrix of lesions, its bootstrap and its page."""
    found = []
    for tasks in TASKS:
        cells = tasks * (tasks + 1 + controls)
        read = Amount(lesioned=float(rows * LENGTH * cells))
        slow = cells * rows * rate("cpu_importance") / rate("cpu_over_forward") / 86400
        host = (2 * cells * rows + 8 * (10 * cells + 2 * tasks * draws)) / GB  # counts in bytes; matrices; draws of D
        shown = rate("page") * (tasks if tasks <= MOST else math.isqrt(tasks)) ** 2 / 1e3
        found.append([tasks, cells, seconds(read, "minilm", "bf16") / 3600, slow, host, 10 * host, shown])
    return found


# -- the page


def word(value: Any) -> str:
    """Three digits, no powers of ten."""
    if isinstance(value, str):
        return value
    if 0 < value < 1e-3:
        return "< 0.001"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def told(value: float, what: str) -> str:
    """A rate in words; seconds in a fitting unit."""
    if not what.startswith("s, "):
        return f"{word(value)} {what}"
    unit, times = next((u, t) for u, t in (("s", 1), ("ms", 1e3), ("µs", 1e6)) if value * t >= 0.1)
    return f"{times * value:.3g} {unit}{what[1:]}"


def table(title: str, columns: str, rows: Sequence[Sequence[Any]]) -> str:
    """In markdown; columns are parted by bars."""
    names = [name.strip() for name in columns.split("|")]
    lines = [names, ["---"] * len(names), *rows]
    return f"**{title}**\n\n" + "".join("| " + " | ".join(map(word, line)) + " |\n" for line in lines)


def page() -> str:
    """All tables, as they stand in docs/scale.md."""
    model, share, found = Decoder(), used(), recipe_rows()
    years = found[-1][4] * rate("cpu_step") / rate("mini_fp32") / 365
    large = rate("probe_gb") * 24 * 16 / 144
    title = f"A decoder of {model.parameters / 1e9:.1f} billion weights"
    times = f"{share['forward']:.0%} (forward) and {share['importance']:.0%} (importance) of the matrix product"
    one = "1,000 development rows each, 1,000 bootstrap draws"
    return "\n".join(
        [
            table("Rates", "rate | from", [[told(v, what), where] for v, what, where in RATES.values()]),
            table("The published experiments", RECIPES, found),
            f"On 2 cores, at MiniLM's ratio of steps: {word(years)} years. Device memory that the probes of BERT-large "
            f"take, by its number of heads: {word(large)} GB.\n",
            table(f"{title}: memory", MEMORY, memory_rows(model)),
            table(f"{title}: bf16 in parts, left on each for a backward pass", PARTS, parts_rows(model)),
            table(f"{title}: time at {times}", "pass | tokens, 10⁶ | tokens a second | hours", decoder_rows(model)),
            f"Features of 120,000 sentences, all heads and layers, bf16: {word(features(model) / GB)} GB.\n",
            table("Pairs of tasks: 10,000 rows a task, 3 epochs, MiniLM size, H200 days in bf16", PAIRS, pair_rows()),
            table("Pairs of tasks: the results folder", FOLDER, folder_rows()),
            table(f"All tasks in one model of MiniLM size: {one}", ONE, one_model_rows()),
        ]
    )


def written(text: str, tables: str) -> str:
    """The page with its tables replaced."""
    return re.sub(r"(<!-- scale -->\n).*(<!-- /scale -->)", lambda m: f"{m[1]}\n{tables}\n{m[2]}", text, flags=re.S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/scale.md")
    args = parser.parse_args()
    if args.write:
        PAGE.write_text(written(PAGE.read_text(), page()))
    else:
        print(page())


if __name__ == "__main__":
    main()
