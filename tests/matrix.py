"""The tests under other versions: python tests/matrix.py [NAME ...] [--list]

Each entry gets a virtual environment of its own below ``.matrix``, made by the Python it names, and runs the quick
tests. What is marked "not run" was never run where this was written: it needs a Python or an accelerator that was not
there. The rest says what was run, and how it went.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Entry:
    python: str
    torch: str
    transformers: str
    said: str
    index: str = ""  # where torch comes from, where not the usual index
    marks: str = "not slow and not soak and not accelerator"


MATRIX = {
    "here": Entry("3.11", "2.13.0", "", "run: make test"),
    "lowest-transformers": Entry("3.11", "2.13.0", "5.7.*", "run with 5.7.0: see docs/robustness.md"),
    "newest-transformers": Entry("3.11", "2.13.0", ">=5,<6", "run: 5.23.0 is the newest and the one used here"),
    "lowest-torch": Entry("3.11", "2.6.*", "5.7.*", "run: see docs/robustness.md"),
    "older-torch": Entry("3.11", "2.11.*", "5.17.*", "run: see docs/robustness.md"),
    "accelerator": Entry("3.12", "2.11.*", "5.17.*", "run on an H200: see docs/robustness.md", marks="accelerator"),
    "python-3.12": Entry("3.12", "2.13.0", "", "not run"),
    "python-3.13": Entry("3.13", "2.13.0", "", "not run"),
}


def versions(entry: Entry) -> list[str]:
    def wanted(package: str, version: str) -> str:
        return package + (version if version[:1] in ("", ">", "<") else f"=={version}")

    return [wanted("torch", entry.torch), wanted("transformers", entry.transformers)]


def run(name: str, entry: Entry) -> str:
    """What came of an entry, in a line."""
    python = shutil.which(f"python{entry.python}")
    if python is None:
        return f"not run: there is no python{entry.python}"
    folder = ROOT / ".matrix" / name
    own = folder / "bin" / "python"
    extra = ["--index-url", entry.index] if entry.index else []
    steps = [
        [python, "-m", "venv", folder],
        [own, "-m", "pip", "install", "-q", *extra, *versions(entry)],
        [own, "-m", "pip", "install", "-q", "-e", f"{ROOT}[test]", *versions(entry)],
        [own, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", "-m", entry.marks],
    ]
    for step in steps:
        done = subprocess.run([str(word) for word in step], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines()
            return f"failed at {' '.join(map(str, step[1:4]))}: {lines[-1] if lines else done.returncode}"
    return done.stdout.strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(MATRIX)}")
    parser.add_argument("--list", action="store_true", help="show what there is, and what was run")
    args = parser.parse_args()
    if unknown := set(args.names) - set(MATRIX):
        parser.error(f"no entry {', '.join(sorted(unknown))}; there are {', '.join(MATRIX)}")
    failed = False
    for name in args.names or MATRIX:
        entry = MATRIX[name]
        said = entry.said if args.list else run(name, entry)
        failed |= said.startswith("failed")
        print(f"{name:22} Python {entry.python}, {', '.join(versions(entry))}: {said}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
