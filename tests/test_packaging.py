"""What the package declares is what it imports, and the files for CI, citation and typing say what is true."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PACKAGE_OF = {"PIL": "pillow", "sklearn": "scikit-learn"}  # where the import's name is not the package's
UNSEEN = {  # extras whose packages are not imported by a statement, with the reason
    "hub": "imported by name when a task comes from the Hub",
    "demo": "holds weights alone",
    "pandas": "imported by name when a DataFrame is asked for",
    **dict.fromkeys(["test", "check", "docs"], "tools"),
}


def name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


CORE = {name(requirement) for requirement in PROJECT["dependencies"]}
EXTRAS = {extra: {name(r) for r in group} for extra, group in PROJECT["optional-dependencies"].items()}


@cache
def third_party() -> tuple[frozenset[tuple[str, str, bool]], ...]:
    """For each source file: (file, package, imported when the module is imported)."""

    def of(path: Path) -> frozenset[tuple[str, str, bool]]:
        seen = set()

        def visit(node: ast.AST, at_import: bool) -> None:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                return
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for module in modules:
                top = module.split(".")[0]
                if top not in sys.stdlib_module_names and top != "headwise":
                    package = PACKAGE_OF.get(top, top).lower().replace("_", "-")
                    seen.add((str(path.relative_to(ROOT)), package, at_import))
            inner = at_import and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                visit(child, inner)

        visit(ast.parse(path.read_text()), True)
        return frozenset(seen)

    return tuple(of(path) for path in SOURCES)


def test_every_third_party_import_is_declared():
    declared = CORE.union(*(EXTRAS[extra] for extra in set(EXTRAS) - {"test", "check", "docs"}))
    assert {(file, package) for seen in third_party() for file, package, _ in seen if package not in declared} == set()


def test_optional_packages_are_imported_only_when_they_are_used():
    early = {(file, package) for seen in third_party() for file, package, now in seen if now and package not in CORE}
    early -= {("src/headwise/integrations/lm_eval.py", "lm-eval")}  # a subclass of the harness's: nothing imports it
    assert early == set()


def test_every_declared_package_is_imported():
    used = {package for seen in third_party() for _, package, _ in seen}
    assert CORE - used == set()
    assert [extra for extra, packages in EXTRAS.items() if not packages & used and extra not in UNSEEN] == []


def test_make_pins_what_it_installs():
    pins = {name(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    makefile = (ROOT / "Makefile").read_text()
    extras = set(re.search(r'-e "\.\[([\w,]+)\]"', makefile)[1].split(","))
    assert CORE | set().union(*(EXTRAS[extra] for extra in extras)) <= pins
    torch = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    assert f"install -c constraints.txt torch=={torch}\n" in makefile


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def test_ci_runs_make_test_whole():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert re.search(r"^make test$", script.read_text(), re.M)


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_workflows_run_targets_that_exist(path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {target for step in steps for target in re.findall(r"^make ([a-z-]+)", step, re.M)}
    assert called and called <= targets()
    versions = jobs["test"]["strategy"]["matrix"]["python-version"]
    declared = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert versions == declared
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"] and citation["license"] == PROJECT["license"]
    readme = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    for reference in citation["references"]:
        assert reference["title"] in readme, "README and CITATION.cff cite the same papers"


def test_annotations_are_for_users_too():
    assert (ROOT / "src/headwise/py.typed").exists() and "Typing :: Typed" in PROJECT["classifiers"]
