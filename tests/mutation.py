"""Do the tests notice? Small errors are put into a file one at a time; those that no test of the file sees are listed.

    python tests/mutation.py [heads selection dissociation iat] [--every 5] [--seconds 600] [--json FILE]

A child process is forked for each error, with torch and transformers already loaded: seconds each, not half a minute.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.machinery
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {  # a file, its own tests, and the tests of what stands on it, for what its own do not see
    "heads": (
        "heads/gates.py",
        ["heads/test_gates.py", "heads/test_finding.py"],
        ["papers/mesh/test_pairs.py", "pruning/test_prune.py", "scoring/test_importance.py"],
    ),
    "selection": ("heads/selection.py", ["heads/test_selection.py"], ["papers/mesh/test_pairs.py"]),
    "dissociation": (
        "dissociation/result.py",
        ["dissociation/test_result.py"],
        ["dissociation/test_lesions.py", "papers/stem_cell/test_claims.py"],
    ),
    "iat": ("training/methods/iat.py", ["training/methods/test_iat.py"], ["integrations/test_trainer.py"]),
}
COMPARISONS = {"Eq": "NotEq", "Lt": "LtE", "Gt": "GtE", "Is": "IsNot", "In": "NotIn"}
COMPARISONS |= {b: a for a, b in COMPARISONS.items()}
ARITHMETIC = {"Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult", "FloorDiv": "Mult", "Mod": "Mult"}
ARITHMETIC |= {"Pow": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd", "MatMult": "Add"}
# What is loaded already cannot be rewritten by pytest, which warns of it, and warnings are errors here.
QUIET = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not soak"]
QUIET += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
Change = tuple[str, Callable[[], None]]


class Mutant(NamedTuple):
    line: int
    what: str
    code: str


def mutants(source: str) -> list[Mutant]:
    """Every single change of a source, in the order of its lines."""
    found = []
    for number in range(sum(1 for _ in _places(ast.parse(source)))):
        choice = 0
        while True:
            tree = ast.parse(source)
            node = next(n for i, n in enumerate(_places(tree)) if i == number)
            before, changes = ast.unparse(node), list(_changes(node))
            if choice >= len(changes):
                break
            what, apply = changes[choice]
            apply()
            found.append(Mutant(node.lineno, f"{what}: {before[:90]}", ast.unparse(ast.fix_missing_locations(tree))))
            choice += 1
    return sorted(found)


def _places(tree: ast.AST) -> Iterator[Any]:
    """Nodes that say what is done: no annotations, decorators, documentation or words of errors."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.Raise | ast.JoinedStr):
            continue
        if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                if any(True for _ in _changes(child)):
                    yield child
                yield from _places(child)


def _changes(node: Any) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield from _swapped(COMPARISONS, op, lambda new, i=i: node.ops.__setitem__(i, new))
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        yield from _swapped(ARITHMETIC, node.op, lambda new: setattr(node, "op", new))
    elif isinstance(node, ast.BoolOp):
        yield from _swapped({"And": "Or", "Or": "And"}, node.op, lambda new: setattr(node, "op", new))
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        bare = ast.UnaryOp(ast.UAdd(), node.operand) if isinstance(node.op, ast.USub) else None
        name = type(node.op).__name__
        yield f"{name} dropped", lambda: _become(node, bare or ast.BoolOp(ast.Or(), [node.operand, node.operand]))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        new = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield f"{node.value} -> {new}", lambda: setattr(node, "value", new)
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "returns None", lambda: setattr(node, "value", ast.Constant(None))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _swapped(table: dict[str, str], op: ast.AST, put: Callable[[Any], None]) -> Iterator[Change]:
    name = type(op).__name__
    if name in table:
        yield f"{name} -> {table[name]}", lambda: put(getattr(ast, table[name])())


def _become(node: ast.AST, other: ast.AST) -> None:
    """A node turns into another in place, so that its parent need not be known."""
    node.__class__ = other.__class__
    node.__dict__.update({name: getattr(other, name) for name in other._fields})


# -- running


def in_child(work: Callable[[], int], seconds: float) -> int:
    """The exit code of some work in a forked child; -1 when it took too long."""
    child = os.fork()
    if child == 0:
        try:
            os.setpgrp()
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1), os.dup2(quiet, 2)
            os._exit(work())
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(3)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) & 255
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def tested(path: Path, code: str, tests: list[str]) -> int:
    """Run tests with a file's source replaced."""
    import pytest

    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> Any:
        return compile(code, str(path), "exec") if Path(self.path) == path else plain(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    places = [str(ROOT / "tests" / test) for test in tests]
    return int(pytest.main([*QUIET, *places]))


def warm(path: Path, tests: list[str]) -> float:
    """Load in this process what the tests load, headwise apart; the seconds they take undisturbed."""
    names = Path(tempfile.mkstemp()[1])

    def look() -> int:
        code = tested(path, path.read_text(), tests)
        names.write_text("\n".join(n for n, m in sys.modules.items() if getattr(m, "__spec__", None)))
        return code

    if in_child(look, 900):
        sys.exit(f"the tests of {path} fail without any change: {', '.join(tests)}")
    for name in names.read_text().split("\n"):
        if name.split(".")[0] in ("torch", "transformers", "scipy", "sklearn", "accelerate", "pandas", "peft"):
            with suppress(Exception):
                importlib.import_module(name)
    names.unlink()
    began = time.monotonic()
    if in_child(lambda: tested(path, path.read_text(), tests), 900):
        sys.exit(f"the tests of {path} fail in a forked process: {', '.join(tests)}")
    return time.monotonic() - began


def check(target: str, every: int, first: int, until: float) -> dict[str, Any]:
    """All mutants of a file, or every n-th of them from the first asked for, until the time is over."""
    file, own, around = TARGETS[target]
    path = ROOT / "src" / "headwise" / file
    limit = 30 + 4 * warm(path, [*own, *around])
    chosen, survivors, done = mutants(path.read_text())[first::every], [], 0
    for mutant in chosen:
        if time.monotonic() > until:
            break
        codes = [in_child(lambda m=mutant, t=tests: tested(path, m.code, t), limit) for tests in (own, around)[:1]]
        if codes[0] == 0:
            codes.append(in_child(lambda m=mutant: tested(path, m.code, around), limit))
        done += 1
        if codes[-1] == 0:
            survivors.append({"line": mutant.line, "what": mutant.what})
            print(f"  survived: {file}:{mutant.line}: {mutant.what}", flush=True)
    print(f"{target}: {done} of {len(chosen)} mutants tried, {done - len(survivors)} killed", flush=True)
    return {"mutants": len(chosen), "tried": done, "killed": done - len(survivors), "survivors": survivors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"any of {', '.join(TARGETS)}")
    parser.add_argument("--every", type=int, default=1, help="only every n-th mutant")
    parser.add_argument("--first", type=int, default=0, help="beginning with this one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of all targets together")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    os.environ |= {"OMP_NUM_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": tempfile.mkdtemp()}
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    sys.path[:0] = [str(ROOT / "src")]
    os.chdir(ROOT)
    until = time.monotonic() + args.seconds
    found = {name: check(name, args.every, args.first, until) for name in args.targets or TARGETS}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
