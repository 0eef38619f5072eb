"""Write docs/api.md from the docstrings: ``python docs/make_api.py``."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import headwise
from headwise.training.methods import methods

MODULES = {  # beyond the names of the package itself
    "headwise.heads.selection": (
        "random_heads",
        "matched_heads",
        "ties",
        "close_groups",
        "overlap",
        "per_layer",
        "relabelled",
    ),
    "headwise.tasks": ("get", "names", "own", "describe", "statistics", "Rows"),
    "headwise.study.stages": ("Settings", "Stage"),
    "headwise.study.study": ("Study",),
    "headwise.io.records": ("Results", "Record"),
    "headwise.dissociation.result": ("Dissociation", "verdict"),
    "headwise.dissociation.lesions": ("null_matrices",),
    "headwise.measuring.stats": ("bootstrap", "change", "over_trainings"),
    "headwise.atlas.result": ("Roles", "joined"),
    "headwise.atlas.cards": ("atlas",),
    "headwise.atlas.copying": ("needles", "retrieval", "copied", "copying_curve"),
    "headwise.atlas.writing": ("writing",),
    "headwise.atlas.functions": ("function_vectors",),
    "headwise.atlas.languages": ("language_heads", "soft_mask", "SoftMask"),
    "headwise.atlas.speech": (
        "alignment",
        "monotonic",
        "onset_errors",
        "best_heads",
        "word_onsets",
        "write_heads",
        "Clip",
    ),
    "headwise.heads.masking": ("masked", "beside"),
    "headwise.pruning.kv_policy": ("kv_policy", "KVPolicy", "streaming", "policy_curve", "passages"),
    "headwise.reporting.heads": ("render_atlas",),
    "headwise.pruning.iterative": ("cut_in_rounds", "Rounds"),
    "headwise.papers.specialization.transfer": ("transfer", "Transfer", "shuffled"),
    "headwise.papers.specialization.glue": ("submit", "write_submission"),
    "headwise.papers.mesh.meta": ("Meta",),
    "headwise.papers.mesh.trim": ("Trim",),
    "headwise.papers.mesh.metatest": ("meta_test", "best_rate", "MetaTest"),
    "headwise.papers.mesh.groups": ("dissociate_groups",),
    "headwise.papers.stem_cell.claims": ("Claims", "StemCells"),
    "headwise.training.methods.l0": ("L0",),
    "headwise.training.methods.distill": ("Distill",),
    "headwise.measuring.evaluate": ("sentence_vectors",),
    "headwise.dissociation.similarity": ("Similarity", "dse", "cra", "cnm", "ahp", "head_overlap", "rank_correlation"),
    "headwise.probing": (
        *("probe", "utilize", "effect_of_n", "fine_tune", "scatter", "change", "profiles", "across"),
        *("nearest_centroid", "relations", "unlearnt"),
    ),
    "headwise.integrations.trainer": ("ImportantHeadCallback",),
    "headwise.testing": ("tiny", "tiny_batch", "tiny_tokenizer", "toy_model", "planted", "playground"),
}
HEAD = "# Reference\n\nWritten from the docstrings by `python docs/make_api.py`.\n"


def reference() -> str:
    """The whole page."""
    parts = [HEAD, "## headwise\n", *(entry(name, getattr(headwise, name)) for name in headwise.__all__)]
    for module, names in MODULES.items():
        home = import_module(module)
        parts += [f"## {module}\n", *(entry(name, getattr(home, name)) for name in names)]
    parts += [
        "## Methods\n",
        "As objects for `fit`; `plain` and `iat` also by `headwise train --method`.\n",
        table(methods),
    ]
    return "\n".join(parts)


def entry(name: str, thing: Any) -> str:
    """A function, or a class with its public methods."""
    found = [f"### {name}\n", block(name, thing)]
    for part, method in vars(thing).items() if inspect.isclass(thing) else ():
        method = inspect.unwrap(getattr(method, "__func__", method))
        if not part.startswith("_") and inspect.isfunction(method) and method.__doc__:
            found.append(block(f"{name}.{part}", method))
    return "\n".join(found)


def block(name: str, thing: Any) -> str:
    said = inspect.getdoc(thing) or ""
    start = inspect.getdoc(thing.__init__) if inspect.isclass(thing) and "__init__" in vars(thing) else None
    if start and not start.startswith("Initialize self"):
        said += f"\n\n{start}"
    return f"```text\n{name}{signature(thing)}\n\n{said}\n```\n"


def signature(thing: Any) -> str:
    """As in the source, where annotations are texts; what has no short form is shown as dots."""
    words, named = [], False
    for part in inspect.signature(thing).parameters.values():
        if part.name in ("self", "cls") or part.name.startswith("_"):
            continue
        if part.kind is part.KEYWORD_ONLY and not named:
            words.append("*")
        named = named or part.kind in (part.KEYWORD_ONLY, part.VAR_POSITIONAL)
        stars = {part.VAR_POSITIONAL: "*", part.VAR_KEYWORD: "**"}.get(part.kind, "")
        kind = f": {part.annotation}" if isinstance(part.annotation, str) else ""
        words.append(f"{stars}{part.name}{kind}{default(part)}")
    line = ", ".join(words)
    return f"({line})" if len(line) < 80 else "(\n" + "".join(f"    {word},\n" for word in words) + ")"


def default(part: inspect.Parameter) -> str:
    if part.default is part.empty:
        return ""
    short = part.default is None or isinstance(part.default, bool | int | float | str | tuple)
    return f" = {part.default!r}" if short else " = ..."


def table(registry: Any) -> str:
    rows = [f"| `{name}` | {first_line(registry[name])} |" for name in registry]
    return "\n".join(["| name | what |", "|---|---|", *rows]) + "\n"


def first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    (Path(__file__).parent / "api.md").write_text(reference(), encoding="utf-8")
