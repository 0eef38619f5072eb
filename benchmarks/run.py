"""Every ratio in one run: ``python benchmarks/run.py [NAME ...] [--json FILE]``; without names, all of them.

Each benchmark is a program of its own beside this one; this runs them one after the other, so that they do not
disturb each other, and gathers their tables.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NAMES = sorted(p.stem for p in HERE.glob("*.py") if p.stem != "run")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    unknown = set(args.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    tables = {}
    for name in args.names or NAMES:
        print(f"\n{name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "table.json"
            subprocess.run([sys.executable, HERE / f"{name}.py", "--json", file], check=True)
            tables[name] = json.loads(file.read_text())
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
