"""Every ratio in one run, beside its floor and its goal.

    python benchmarks/run.py [NAME ...] [--size tiny|cores|accelerator] [--json FILE]

Each benchmark is a program of its own beside this one; this runs them one after the other, so that they do not disturb
each other, and gathers their tables. The size tiny only shows that they run; its ratios mean nothing.
"""

from __future__ import annotations

import argparse
import json
import operator
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith(("run", "scale")))
SIZED = ("cutting", "growth", "peers")  # know the sizes themselves
CPU = ["--device", "cpu"]
SIZES: dict[str, dict[str, list[str]]] = {
    "tiny": {
        "importance": [*CPU, "--examples", "16"],
        "meta": ["--repeats", "1", "--threads", "1"],
        "parameterfree": ["--sentences", "60", "--few", "2", "--many", "4", "--repeat", "1"],
        "parsing": [*CPU, "--sentences", "60", "--repeat", "1"],
        "probing": [*CPU, "--sentences", "80", "--repeat", "1", "--threads", "1"],
        "training": ["--rows", "32", "--repeats", "2", "--threads", "1"],
    },
    "cores": {"importance": CPU, "parsing": CPU, "probing": CPU},
    "accelerator": {name: ["--device", "cuda"] for name in ("importance", "parsing", "probing", "training")},
}
ORDERS = {"<=": operator.le, ">=": operator.ge}


def table_of(name: str, size: str) -> list[dict[str, Any]]:
    """A benchmark's rows."""
    extra = ["--size", size] if name in SIZED else SIZES[size].get(name, [])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.json"
        done = subprocess.run([sys.executable, HERE / f"{name}.py", *extra, "--json", file])
        if done.returncode:
            return [{"what": name, "skipped": f"FAILED with code {done.returncode}"}]
        found = json.loads(file.read_text())
    rows = found["found"] if isinstance(found, dict) else found
    return [{**row, "met": met(row)} for row in rows]


def met(row: dict[str, Any]) -> bool | None:
    """Whether a row's goal is met; None where it has none. A bare number is the most that it may be."""
    goal = str(row.get("goal") or "").replace("≤", "<=").replace("≥", ">=").split()
    if "ratio" not in row or not goal:
        return None
    order, limit = goal[:2] if len(goal) > 1 else ("<=", goal[0])
    return bool(ORDERS[order](row["ratio"], float(limit)))


def show(tables: dict[str, list[dict[str, Any]]]) -> None:
    print(f"\n{'':15}{'what':60}{'ratio':>10}  {'goal':>10}  {'floor':20}")
    for name, rows in tables.items():
        for row in rows:
            if "skipped" in row:
                print(f"{name:15}{row['what']:60}skipped: {row['skipped']}")
                continue
            said = {True: "met", False: "MISSED", None: ""}[row["met"]]
            goal, floor = row.get("goal") or "-", row.get("floor") or "-"
            print(f"{name:15}{row['what']:60}{row['ratio']:>10.4g}  {goal!s:>10}  {floor!s:20}{said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}")
    parser.add_argument("--size", choices=[*SIZES], default="cores")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    unknown = set(args.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in args.names or NAMES:
        print(f"\n{name}", flush=True)
        tables[name] = table_of(name, args.size)
    show(tables)
    if args.json:
        args.json.write_text(json.dumps({"size": args.size, "tables": tables}, indent=1) + "\n")
    if any("FAILED" in row.get("skipped", "") for rows in tables.values() for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
