"""Every ratio in one run, beside its floor and its goal.

    python benchmarks/run.py [NAME ...] [--size tiny|cores|accelerator] [--busy] [--json FILE]
    python benchmarks/run.py --page

Each benchmark is a program of its own beside this one; this runs them one after the other, so that they do not disturb
each other, and gathers their tables. The size tiny only shows that they run; its ratios mean nothing. A file that is
there keeps the tables of benchmarks that were not run this time. On a machine that does other work, --busy runs
everything on one thread and counts the process's own time. A few run on two cores only if they are named. With --page
nothing runs: docs/benchmarks.md is written from docs/benchmarks/*.json.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from comparing import Row, faults

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
MARKS = ("<!-- tables -->\n", "<!-- /tables -->\n")
NAMES = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith(("run", "scale", "comparing")))
ON_REQUEST = {"cores": ("lab", "large", "quantized", "repairing", "starting")}  # minutes each, or for accelerators
SIZED = ("cutting", "growth", "peers", "roles")  # know the sizes themselves
CPU, GPU = ["--device", "cpu"], ["--device", "cuda"]
SIZES: dict[str, dict[str, list[str]]] = {
    "tiny": {
        "finding": ["--shape", "small", "--repeats", "1"],
        "identity": ["--gigabytes", "0.1", "--repeats", "1"],
        "large": [*CPU, "--tokens", "256", "--length", "64", "--count", "1"],
        "lesions": [*CPU, "--examples", "8", "--repeats", "1"],
        "importance": [*CPU, "--examples", "16"],
        "language": [*CPU, "--rows", "16", "--repeats", "1"],
        "lab": ["--repeats", "5", "--seconds", "2", "--requests", "100"],
        "meta": ["--repeats", "1", "--threads", "1"],
        "parameterfree": ["--sentences", "4", "--repeat", "1"],
        "parsing": [*CPU, "--sentences", "60", "--repeat", "1"],
        "probing": [*CPU, "--sentences", "80", "--repeat", "1", "--threads", "1"],
        "quantized": ["--models", "smollm2-135m", "--rows", "4"],
        "records": ["--records", "20"],
        "repairing": ["--model", "stories15m", "--windows", "2"],
        "starting": ["--rows", "500", "--repeats", "1"],
        "training": ["--rows", "32", "--repeats", "2", "--threads", "1"],
    },
    "cores": {"importance": CPU, "language": CPU, "parsing": CPU, "probing": CPU},
    "accelerator": {
        "importance": GPU,
        "parsing": [*GPU, "--sentences", "500", "--repeat", "2"],
        "probing": GPU,
        "training": [*GPU, "--rows", "2048"],  # every shape of batch comes often enough to be recorded
    },
}
ORDERS = {"<=": operator.le, ">=": operator.ge}


def table_of(name: str, size: str, busy: bool = False) -> list[Row]:
    """A benchmark's rows."""
    clock = {"OMP_NUM_THREADS": "1", "BENCH_CLOCK": "cpu"} if busy else {}
    extra = ["--size", size] if name in SIZED else SIZES[size].get(name, [])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.json"
        done = subprocess.run([sys.executable, HERE / f"{name}.py", *extra, "--json", file], env=os.environ | clock)
        if done.returncode:
            return [{"what": name, "skipped": f"FAILED with code {done.returncode}"}]
        rows = json.loads(file.read_text())
    if wrong := [fault for row in rows for fault in faults(row)]:
        return [{"what": name, "skipped": f"FAILED: {'; '.join(wrong)}"}]
    return [{**row, "met": met(row)} for row in rows]


def met(row: Row) -> bool | None:
    """Whether a row's goal is met; None where it has none. A bare number is the most that it may be."""
    goal = str(row.get("goal") or "").replace("≤", "<=").replace("≥", ">=").split()
    if "ratio" not in row or not goal:
        return None
    order, limit = goal[:2] if len(goal) > 1 else ("<=", goal[0])
    return bool(ORDERS[order](row["ratio"], float(limit)))


def show(tables: dict[str, list[Row]]) -> None:
    print(f"\n{'':15}{'what':60}{'ratio':>10}  {'goal':>10}  {'floor':20}")
    for name, rows in tables.items():
        for row in rows:
            if "skipped" in row:
                print(f"{name:15}{row['what']:60}skipped: {row['skipped']}")
                continue
            said = {True: "met", False: "MISSED", None: ""}[row["met"]]
            goal, floor = row.get("goal") or "-", row.get("floor") or "-"
            print(f"{name:15}{row['what']:60}{row['ratio']:>10.4g}  {goal!s:>10}  {floor!s:20}{said}")


def saved(path: Path, size: str, tables: dict[str, list[Row]], about: str = "") -> None:
    """Add tables to a file, in the place of those of the same benchmarks."""
    before = json.loads(path.read_text())["tables"] if path.exists() else {}
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores"
    machine = f"{name}, Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}"
    found = {"size": size, "machine": machine, "about": about, "tables": dict(sorted({**before, **tables}.items()))}
    path.write_text(json.dumps(found, indent=1) + "\n")


def markdown(found: dict[str, Any]) -> str:
    """A size's tables as one, and the rows that were withdrawn."""
    every = [(name, row) for name, rows in found["tables"].items() for row in rows]
    lines = [f"### {found['machine']}", "", *([found["about"], ""] if found.get("about") else [])]
    lines += [
        "| benchmark | what | measured | goal | floor | | equal on both sides |",
        "|---|---|---:|---|---|---|---|",
    ]
    lines += [_line(name, row) for name, row in every if "withdrawn" not in row]
    withdrawn = [f"- {name}, *{row['what']}*: {row['withdrawn']}" for name, row in every if "withdrawn" in row]
    return "\n".join([*lines, *(["", "Withdrawn rows:", "", *withdrawn] if withdrawn else []), ""])


def _line(name: str, row: Row) -> str:
    if "skipped" in row:
        return f"| {name} | {row['what']} | skipped | | | | {row['skipped']} |"
    goal = str(row.get("goal") or "").replace("<=", "≤").replace(">=", "≥")
    verdict = {True: "met", False: "missed", None: ""}[row.get("met")]
    proof = "; ".join(row.get("same", ["not asserted"] if row.get("unchecked") else []))
    what = f"{row['what']} ({row['peer']})" if row.get("peer") else row["what"]
    return f"| {name} | {what} | {row['ratio']:.4g} | {goal} | {row.get('floor') or ''} | {verdict} | {proof} |"


def page() -> str:
    """docs/benchmarks.md with the tables of docs/benchmarks."""
    before, _, rest = (DOCS / "benchmarks.md").read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    found = [json.loads(file.read_text()) for file in sorted((DOCS / "benchmarks").glob("*.json"))]
    return "".join([before, MARKS[0], *(markdown(one) + "\n" for one in found), MARKS[1], after])


def _about(busy: bool) -> str:
    """How times were taken, and how busy the machine was."""
    load = f"load average {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    clock = "One thread, the process's own time" if busy else "Wall-clock time"
    return f"{clock}; {load}." if load else f"{clock}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}")
    parser.add_argument("--size", choices=[*SIZES], default="cores")
    parser.add_argument("--busy", action="store_true", help="one thread and the process's own time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md, run nothing")
    args = parser.parse_args()
    if args.page:
        (DOCS / "benchmarks.md").write_text(page())
        return
    unknown = set(args.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    tables: dict[str, list[Row]] = {}
    for name in args.names or [name for name in NAMES if name not in ON_REQUEST.get(args.size, ())]:
        print(f"\n{name}", flush=True)
        tables[name] = table_of(name, args.size, args.busy)
    show(tables)
    if args.json:
        saved(args.json, args.size, tables, _about(args.busy))
    if any("FAILED" in row.get("skipped", "") for rows in tables.values() for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
