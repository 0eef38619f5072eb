"""The shape of the house: layers, sizes, and what is kept out."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "headwise"
FILES = sorted(SOURCE.rglob("*.py"))
# Imports point to the same layer or to one above it in this list.
LAYERS = [
    {"errors", "registry", "store", "progress", "display", "io", "stopping", "spreadsheet"},
    {
        "families",
        "samples",
        "tracing",
        "proven",
        "finding",
        "heads",
        "encoders",
        "causality",
        "selection",
        "tasks",
        "metrics",
        "intervals",
        "stats",
        "correlation",
    },
    {
        "plan",
        "sampling",
        "batching",
        "model",
        "evaluate",
        "memory",
        "stepping",
        "resuming",
        "checkpoint",
        "train",
        "passes",
        "importance",
        "stability",
        "baseline",
        "ablation",
        "attribution",
        "methods",
        "journal",
    },
    {
        "integrations",
        "equations",
        "headtests",
        "rowtests",
        "dissociation",
        "lesions",
        "similarity",
        "transfer",
        "rounds",
        "glue",
        "groups",
        "metatest",
        "prune",
        "remains",
        "exports",
        "cutting",
        "agreement",
        "claims",
        "attention",
    },
    {"features", "probes", "probing", "protocols", "headfeatures", "analyses", "finetune"},
    {
        "results",
        "verdict",
        "trust",
        "heading",
        "report",
        "study",
        "sweep",
        "recipes",
        "demo",
        "doctor",
        "jobs",
        "engines",
        "works",
        "cli",
    },
]
FREE = {"testing", "__init__", "__main__"}
NO_TORCH = [
    "store",
    "results",
    "metrics",
    "baseline",
    "intervals",
    "stats",
    "correlation",
    "equations",
    "rowtests",
    "headtests",
    "verdict",
    "report",
    "dissociation",
    "claims",
    "tasks.catalog",
    "tasks.corpus",
    "tasks",
]
ONLY = {"accelerate": {"train"}, "ray": {"engines"}}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def level(name: str) -> int | None:
    first = name.split(".")[0]
    return next((i for i, layer in enumerate(LAYERS) if first in layer), None)


def imports(path: Path, whole: bool) -> list[str]:
    """Modules a file imports: at import time, or anywhere in it (``whole``), typing-only ones left out."""
    tree = ast.parse(path.read_text())
    found = []
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {id(child) for child in ast.walk(node)}
        if not whole and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            skipped |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_upward(path):
    name = module_name(path)
    if name.split(".")[0] in FREE:
        return
    own = level(name)
    assert own is not None, f"{name} belongs to no layer: name it in LAYERS"
    for target in imports(path, whole=False):
        if target.startswith("headwise."):
            other = level(target.removeprefix("headwise."))
            assert other is None or other <= own, f"{name} imports {target} from a layer below it"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400, "the file has found a second subject"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 45, f"{node.name} has {lines} lines"


@pytest.mark.parametrize(("library", "homes"), ONLY.items())
def test_engines_have_one_home(library, homes):
    users = {
        module_name(path)
        for path in FILES
        if any(target == library or target.startswith(f"{library}.") for target in imports(path, whole=True))
    }
    assert users <= homes


def test_parts_that_open_without_torch():
    code = (
        "import sys\n"
        + "\n".join(f"import headwise.{name}" for name in NO_TORCH)
        + "\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_pickle_and_no_remote_code():
    for path in FILES:
        text = path.read_text()
        for word in ("import pickle", "torch.load(", "trust_remote_code=True", "shell=True", " eval("):
            assert word not in text, f"{path.name} has {word!r}"


def test_no_grab_bags():
    assert not [p for p in FILES if p.stem in ("utils", "helpers", "misc", "common", "base")]
