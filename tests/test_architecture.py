"""The shape of the house: rooms and their order, sizes, tests beside what they test, and what is kept out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "headwise"
FILES = sorted(SOURCE.rglob("*.py"))
# A room imports from itself and from rooms before it in this list, also inside functions and by name in a registry.
ROOMS = (
    *("errors", "registry", "io", "heads", "tasks", "models", "measuring", "scoring", "training", "dissociation"),
    *(
        "atlas",
        "probing",
        "pruning",
        "study",
        "reporting",
        "experiments",
        "papers",
        "lab",
        "integrations",
        "cli",
        "testing",
    ),
)
DOORS = {"__init__", "__main__"}  # they name what is public, whatever room it is in
EXCEPTIONS = {  # room to room, with the reason
    ("papers", "testing"): "smoke runs need a tiny model",
    ("registry", "papers"): "the papers are a plug-in that comes with headwise",
}
TESTED_WITH = {  # modules without a test file of their name: the file that tests them
    **{f"cli.{name}": "cli/test_cli" for name in ["app", "making", "options", "records", "studying"]},
    "cli.using": "cli/test_measuring",
    "io.text": "io/test_files",
    "heads.cutting": "pruning/test_prune",
    "heads.families": "heads/test_gates",
    "heads.modules": "models/test_multitask",
    "heads.proven": "heads/test_tracing",
    "heads.remains": "pruning/test_export",
    "heads.samples": "families/test_families",
    "heads.sites": "heads/test_finding",
    "models.opening": "cli/test_measuring",
    "probing.figures": "probing/test_roles",
    "probing.protocols": "probing/test_fitting",
    "papers.message": "papers/test_pages",
    "papers.recipe": "papers/test_checklist",
    "papers.summary": "papers/test_pages",
    "pruning.verify": "pruning/test_export",
    "reporting.words": "reporting/test_page",
    "scoring.captum": "scoring/test_importance",
    "scoring.result": "scoring/test_importance",
    "study.schema": "reporting/test_page",
    "study.stages": "study/test_study",
    "tasks.task": "tasks/test_columns",
    "tasks.catalog.sentences": "tasks/catalog/test_known",
    "tasks.catalog.words": "tasks/catalog/test_known",
    "tasks.kinds.generation": "tasks/kinds/test_choice",
    "tasks.predictions": "models/test_subject",
    "tasks.readers.harness": "integrations/test_lm_eval",
}
NO_TORCH = [
    *("io.files", "io.system", "io.records", "io.identity"),
    *("tasks", "tasks.metrics", "tasks.catalog.sentences", "tasks.corpus"),
    *("measuring.intervals", "measuring.stats", "measuring.correlation", "reporting"),
    *("dissociation.significance", "dissociation.result", "study.schema", "study.stages", "study.verdict"),
]
ONLY = {
    "accelerate": {"training.loop"},
    "ray": {"experiments.executors"},
    **{module: {"io.system"} for module in ("fcntl", "msvcrt", "ctypes")},  # what differs between operating systems
}


# modules named in a text: of a registry's entry, of `import_module`, of a plug-in
NAMED = re.compile(r'(?<=")headwise\.[\w.]+(?=:\w+"|",\)  # plug-ins)|(?<=import_module\(")headwise\.[\w.]+')


PASSED_OVER = re.compile(r"(#|//|/?\*|import |from \S+ import )")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


def room(name: str) -> str:
    return name.split(".")[0]


def imported(path: Path, named: bool = True) -> list[str]:
    """Everything a file imports, inside functions too, and places named in registries; not what types alone need."""
    tree = ast.parse(path.read_text())
    typing_only: set[int] = set()
    targets = NAMED.findall(path.read_text()) if named else []
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing_only |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            targets += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            targets += [name if name.removeprefix("headwise.") in MODULES else node.module for name in names]
    return targets


@cache
def graph(named: bool = True) -> dict[str, set[str]]:
    """Module to modules of headwise."""
    edges: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        targets = {t.removeprefix("headwise.") for t in imported(path, named) if t.startswith("headwise.")}
        edges[name] = {t for t in targets if t in MODULES and t != name}
    return edges


def test_few_files_lie_beside_the_rooms():
    assert len([path for path in FILES if path.parent == SOURCE]) <= 6
    assert {room(name) for name in MODULES} - DOORS - {"headwise"} - set(ROOMS) - {""} <= {"__init__"}


@pytest.mark.parametrize("name", sorted(set(MODULES) - DOORS))
def test_imports_point_to_rooms_before(name):
    order = {each: place for place, each in enumerate(ROOMS)}
    assert room(name) in order, f"{name} is in no room: name it in ROOMS"
    for target in graph()[name]:
        if (room(name), room(target)) not in EXCEPTIONS:
            assert order[room(target)] <= order[room(name)], f"{name} imports {target} from a room after its own"


def test_every_exception_is_needed():
    used = {(room(name), room(target)) for name, targets in graph().items() for target in targets}
    assert set(EXCEPTIONS) <= used


def test_every_import_of_headwise_exists():
    """Names that `__init__` files give late are checked where they are used."""
    for path in FILES:
        for target in imported(path):
            if target.startswith("headwise."):
                parts = target.removeprefix("headwise.").split(".")
                known = {".".join(parts[:n]) for n in range(1, len(parts) + 1)} & set(MODULES)
                assert known or len(parts) == 1, f"{module_name(path)} imports {target}, which is nowhere"


def test_no_module_imports_itself_by_way_of_others():
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above[above.index(name) :], name))
        if name not in done:
            for target in sorted(graph(named=False)[name]):
                visit(target, (*above, name))
            done.add(name)

    for name in sorted(graph()):
        if name not in DOORS:
            visit(name, ())


@pytest.mark.parametrize("name", sorted(n for n in MODULES if "." in n and MODULES[n].name != "__init__.py"))
def test_tests_mirror_the_source(name):
    """A module has a test file of its name or is in TESTED_WITH; parts of papers and of the corpus are tested whole."""
    *rooms, module = name.split(".")
    beside = TESTS.joinpath(*rooms) / f"test_{module}.py"
    folder = TESTS.joinpath(*rooms) / f"test_{rooms[-1]}.py", TESTS.joinpath(*rooms[:-1]) / f"test_{rooms[-1]}.py"
    single = rooms[-1] in ("kinds", "readers", "catalog", "methods") and rooms[0] != "papers"
    whole = len(rooms) > 1 and not single
    elsewhere = TESTS / f"{TESTED_WITH.get(name, '')}.py"
    assert beside.exists() or elsewhere.exists() or (whole and any(f.exists() for f in folder)), f"no {beside}"


def test_no_module_with_tests_of_its_own_is_said_to_be_tested_elsewhere():
    assert [
        n for n in TESTED_WITH if (TESTS / f"{'/test_'.join(n.rsplit('.', 1)).replace('.', '/')}.py").exists()
    ] == []


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
        if any(target == library or target.startswith(f"{library}.") for target in imported(path))
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


def test_no_two_places_share_twelve_lines():
    """Imports, comments and lone punctuation do not count, nor white space."""
    places: dict[tuple[str, ...], str] = {}
    for path in sorted(file for file in SOURCE.rglob("*") if file.suffix in (".py", ".js", ".css", ".j2")):
        numbered = ((n, " ".join(line.split())) for n, line in enumerate(path.read_text().splitlines(), 1))
        lines = [(n, line) for n, line in numbered if re.search(r"\w", line) and not PASSED_OVER.match(line)]
        for start in range(len(lines) - 11):
            run = tuple(line for _, line in lines[start : start + 12])
            here = f"{path.relative_to(SOURCE)}:{lines[start][0]}"
            assert places.setdefault(run, here) == here, f"{here} repeats {places[run]}"


def test_no_grab_bags():
    assert not [p for p in FILES if p.stem in ("utils", "helpers", "misc", "common", "base")]
