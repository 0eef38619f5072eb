"""What a newcomer waits for: the command line's first answers, and own files of a million rows.

    python benchmarks/starting.py [--rows 1000000] [--repeats 2] [--json FILE]

Every time is that of a process of its own, imports included; the best one counts. Memory is the peak of the process
that reads all rows, less that of one which loads the same libraries and reads a file of ten rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from comparing import Row, finish, row

COMMAND = [sys.executable, "-m", "headwise"]
READ = "from headwise.tasks import own; task = own({!r}); print([len(task.rows(s)) for s in ('train', 'dev', 'test')])"
LIBRARIES = "import pyarrow.compute, pyarrow.csv, pyarrow.json; "
WORDS = [
    "a",
    "fine",
    "film",
    "but",
    "the",
    "plot",
    "is",
    "thin",
    "and",
    "much",
    "too",
    "long",
    "for",
    "what",
    "it",
    "says",
]


def texts(rows: int):
    """A line of words and a label, no two lines alike."""
    for i in range(rows):
        start, length = i % len(WORDS), 6 + i % 9
        yield f"{' '.join((WORDS * 2)[start : start + length])} {i}", ("bad", "good")[i % 2]


def write_csv(path: Path, rows: int) -> None:
    with path.open("w") as file:
        file.write("text,label\n")
        file.writelines(f"{text},{label}\n" for text, label in texts(rows))


def write_jsonl(path: Path, rows: int) -> None:
    with path.open("w") as file:
        file.writelines(f"{json.dumps({'text': text, 'label': label})}\n" for text, label in texts(rows))


def run(command: list[str]) -> tuple[float, float]:
    """Seconds and peak memory in bytes of a process: wall time, or its own time on a busy machine."""
    begun = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, 1, 0)])
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {status}")
    wall = time.perf_counter() - begun
    own = used.ru_utime + used.ru_stime
    unit = 1 if sys.platform == "darwin" else 1024
    return own if os.environ.get("BENCH_CLOCK") == "cpu" else wall, used.ru_maxrss * unit


def best(command: list[str], repeats: int) -> tuple[float, float]:
    found = [run(command) for _ in range(repeats)]
    return min(s for s, _ in found), min(m for _, m in found)


def of_a_file(folder: Path, form: str, write: Callable[[Path, int], None], rows: int, repeats: int) -> list[Row]:
    """How long a file takes to be shown and to be read, and the memory that takes."""
    big, small = folder / f"big.{form}", folder / f"small.{form}"
    write(big, rows)
    write(small, 10)
    shown, _ = best([*COMMAND, "tasks", "show", f"big={big}:text,label"], repeats)
    read, memory = best([sys.executable, "-c", READ.format(f"big={big}:text,label")], repeats)
    _, base = best([sys.executable, "-c", LIBRARIES + READ.format(f"small={small}:text,label")], 1)
    size = big.stat().st_size
    what = f"{form} of {rows:,} rows ({size / 1e6:.0f} MB)"
    return [
        row(f"{what}: shown by headwise tasks, s", shown, "<= 3"),
        row(f"{what}: all rows read, s", read, "<= 6"),
        row(f"{what}: memory for all rows, in sizes of the file", (memory - base) / size, "<= 3"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [
        row("headwise --help, s", best([*COMMAND, "--help"], args.repeats)[0], "<= 0.4"),
        row("headwise tasks, s", best([*COMMAND, "tasks"], args.repeats)[0], "<= 1"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows += of_a_file(Path(folder), "csv", write_csv, args.rows, args.repeats)
        rows += of_a_file(Path(folder), "jsonl", write_jsonl, args.rows, args.repeats)
    finish(rows, args.json)


if __name__ == "__main__":
    main()
