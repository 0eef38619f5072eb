"""The atlas as data: every head with its roles, the tasks that need it, what it encodes and where it looks (no torch).

Pages and the lab show what `atlas` returns; it is plain data that JSON can hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.atlas.result import DESCRIBE, Roles
from headwise.errors import HeadwiseError
from headwise.io.files import finite

SHARE = 0.2  # fraction of heads that a task needs, or that encode a property
SINK = "first"
VERSION = 1


def atlas(
    models: Mapping[str, Roles],
    needs: Mapping[str, Mapping[str, Any]] | None = None,
    encodes: Mapping[str, Mapping[str, Any]] | None = None,
    examples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    share: float = SHARE,
) -> dict[str, Any]:
    """The heads of one or several models as cards, to compare models or one model before and after fine-tuning.

    Args:
        models: names to roles.
        needs: for models by name, tasks to importance: an `Importance`, or scores (L, H).
        encodes: for models by name, properties to a `Probe`, or scores (L, H).
        examples: for models by name, sentences as ``{"tokens": [...], "attention": {"0.1": rows}}``, as
            `headwise.heads.attention.attention_patterns` gives them.
        share: fraction of the heads, by importance, that count as needed by a task.

    Example:
        >>> before, after = headwise.roles(model, tokenizer), headwise.roles(tuned, tokenizer)
        >>> record = atlas({"before": before, "after": after}, needs={"after": {"sst2": importance(tuned, "sst2")}})
        >>> record["models"][0]["heads"][0]["role"]
        'previous'
    """
    if not models:
        raise HeadwiseError("no model", "one or several, by name")
    for name, given in (("needs", needs), ("encodes", encodes), ("examples", examples)):
        if strange := set(given or {}) - set(models):
            raise HeadwiseError(f"{name} of {', '.join(sorted(strange))}", f"models among {', '.join(models)}")
    rows = []
    for name, roles in models.items():
        needed, encoded = (
            {task: _scores(scores_of, roles) for task, scores_of in (given or {}).get(name, {}).items()}
            for given in (needs, encodes)
        )
        rows.append(_model(name, roles, needed, encoded, list((examples or {}).get(name, ())), share))
    return finite({"version": VERSION, "share": share, "models": rows, "changes": _changes(rows)}, 4)


def _model(name: str, roles: Roles, needs: dict, encodes: dict, examples: list, share: float) -> dict[str, Any]:
    layers, heads = roles.score.shape[1:]
    alive = np.asarray(~np.isnan(roles.score).all(0))
    known = {"roles": roles, "strongest": roles.strongest(), "holds": roles.holds(), "interval": roles.interval()}
    tops = {task: _top(scores, share) for task, scores in needs.items()}
    places = [(layer, head) for layer in range(layers) for head in range(heads) if alive[layer, head]]
    return {
        "name": name,
        "layers": layers,
        "heads_per_layer": heads,
        "roles": [
            {"name": role, "about": about, "describes": role in DESCRIBE, "texts": int(texts)}
            for role, about, texts in zip(roles.names, roles.about, roles.texts)
        ],
        "tasks": list(needs),
        "properties": list(encodes),
        "heads": [
            {
                "layer": layer,
                "head": head,
                **_roles_of(known, layer, head),
                "needs": {task: float(scores[layer, head]) for task, scores in needs.items()},
                "needed": [task for task, top in tops.items() if top[layer, head]],
                "encodes": {task: float(scores[layer, head]) for task, scores in encodes.items()},
            }
            for layer, head in places
        ],
        "examples": examples,
    }


def _roles_of(known: dict[str, Any], layer: int, head: int) -> dict[str, Any]:
    """A head's strongest role, with and without the sink, and its scores in all roles, largest lift first."""
    roles, (low, high) = known["roles"], known["interval"]
    lift, at = roles.lift[:, layer, head], (layer, head)
    order = [r for r in np.argsort(-np.nan_to_num(lift, nan=-np.inf)) if not np.isnan(roles.score[r][at])]
    best = int(known["strongest"][at])
    role = roles.names[best] if best >= 0 else None
    beside = (roles.names[r] for r in order if known["holds"][r][at] and roles.names[r] != SINK)
    return {
        "role": role,
        "beside": next(beside, role),
        "roles": [
            {
                "role": roles.names[r],
                "holds": bool(known["holds"][r][at]),
                **{
                    field: float(values[r][at])
                    for field, values in (
                        *(("score", roles.score), ("low", low), ("high", high), ("control", roles.control)),
                        *(("lift", roles.lift), ("p", roles.p), ("shuffled", roles.shuffled)),
                    )
                },
            }
            for r in order
        ],
    }


def _changes(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Heads whose strongest role beside the sink differs between the first model and another of the same shape."""
    first, changes = models[0], []
    own = {(h["layer"], h["head"]): h for h in first["heads"]}
    for other in models[1:]:
        if (other["layers"], other["heads_per_layer"]) != (first["layers"], first["heads_per_layer"]):
            continue
        for head in other["heads"]:
            before = own.get((head["layer"], head["head"]))
            if before is not None and before["beside"] != head["beside"]:
                place = {"layer": head["layer"], "head": head["head"]}
                changes.append({"model": other["name"], **place, "before": before["beside"], "after": head["beside"]})
    return changes


def _scores(source: Any, roles: Roles) -> np.ndarray:
    """The scores of an importance, a probe or an array."""
    scores = np.asarray(getattr(source, "scores", getattr(source, "accuracy", source)), float)
    if scores.shape != roles.score.shape[1:]:
        raise HeadwiseError(f"scores of shape {scores.shape}", f"(layers, heads) = {roles.score.shape[1:]}")
    return scores


def _top(scores: np.ndarray, share: float) -> np.ndarray:
    """Bool (L, H): the fraction of remaining heads with the highest scores."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), axis=None, kind="stable")
    mask = np.zeros(scores.shape, bool)
    mask.ravel()[order[: max(1, round(share * (~np.isnan(scores)).sum()))]] = True
    return mask
