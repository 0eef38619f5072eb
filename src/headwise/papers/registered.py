"""Registered tests: a file that names models, seeds, endpoints and correction before anything runs.

Only its endpoints are primary on the page; every other table is marked exploratory. The file is remembered with the
run, and a changed one is refused once there are records.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import HeadwiseError, unknown
from headwise.io.files import read_json, write_json
from headwise.io.records import Results
from headwise.io.text import read_toml
from headwise.measuring.stats import adjust
from headwise.papers.recipe import PaperRecipe, Part, recipes
from headwise.papers.summary import over_seeds, table

FIELDS = ("recipe", "size", "models", "seeds", "endpoints", "correction", "alpha", "only")
ENDPOINT = ("method", "against", "column", "split", "direction")
MEMORY = "registered.json"
DIRECTIONS = ("greater", "less", "two-sided")


@dataclass(frozen=True)
class Registered:
    """A study plan, as read from its file.

    Example:
        >>> Registered.read("docs/results/registered/methods.toml").endpoints[0]["method"]  # doctest: +SKIP
        'scales'
    """

    recipe: str
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    endpoints: tuple[Mapping[str, str], ...]
    size: str = "small"
    only: tuple[str, ...] = ()
    correction: str = "holm"
    alpha: float = 0.05
    digest: str = field(default="", compare=False)

    @classmethod
    def read(cls, path: str | Path) -> Registered:
        """Read a plan; missing or invalid fields raise before anything runs."""
        values = read_toml(path, "registered plan", 'recipe = "methods"')
        for name in values:
            if name not in FIELDS:
                raise unknown("field of a registered plan", name, FIELDS)
        for name in ("recipe", "models", "seeds", "endpoints"):
            if not values.get(name):
                raise HeadwiseError(f"the registered plan {path} has no {name}", "recipe, models, seeds and endpoints")
        fields: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        made = cls(
            **fields,
            digest=hashlib.sha256(Path(path).read_bytes()).hexdigest(),
        )
        made._check()
        return made

    def _check(self) -> None:
        chosen = recipes[self.recipe]
        if getattr(chosen, "contrast", None) is None:
            able = [name for name in recipes if getattr(recipes[name], "contrast", None)]
            raise HeadwiseError(f"registered tests of the recipe {self.recipe!r}", f"one of: {', '.join(able)}")
        if len(self.seeds) < 2:
            raise HeadwiseError(f"{len(self.seeds)} seed", "two or more: tests are over seeds")
        for endpoint in self.endpoints:
            for name in endpoint:
                if name not in ENDPOINT:
                    raise unknown("field of an endpoint", name, ENDPOINT)
            for name in ("method", "against", "column"):
                if name not in endpoint:
                    raise HeadwiseError(f"an endpoint without {name}", 'method = "…", against = "…", column = "…"')
            if endpoint.get("direction", "two-sided") not in DIRECTIONS:
                raise unknown("direction of an endpoint", endpoint["direction"], DIRECTIONS)

    def remember(self, folder: str | Path) -> str:
        """Write the plan's sha256 and the time beside the run, once; the time of registration.

        A plan that comes after records, or that was changed after them, is refused.
        """
        path, records = Path(folder) / MEMORY, len(list(Results(Path(folder) / "records")))
        if path.exists():
            before = read_json(path)
            if before["sha256"] != self.digest and records:
                seen = f"a registered plan that changed after {records} records were made"
                raise HeadwiseError(seen, f"the plan of {before['time']} (sha256 {before['sha256'][:12]})", "--out NEW")
            if before["sha256"] == self.digest:
                return before["time"]
        elif records:
            raise HeadwiseError(f"{records} records in {folder} that are older than the plan", "an empty --out")
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        write_json(path, {"sha256": self.digest, "time": now})
        return now

    def part(self, records: Any, when: str = "") -> Part:
        """The registered tests, and no other, as the first section of the page."""
        contrast, rows, ps = recipes[self.recipe].contrast, [], []  # type: ignore[attr-defined]
        for model in self.models:
            for e in self.endpoints:
                mine, base = contrast(records, model, e["method"], e["against"], e["column"], e.get("split", "dev"))
                kept = [{s: one[s] for s in self.seeds if s in one} for one in (mine, base)]
                difference, direction = over_seeds(*kept), e.get("direction", "two-sided")
                both = len(kept[0].keys() & kept[1].keys())
                p = np.nan if difference is None or both < len(self.seeds) else _towards(difference, direction)
                estimate = [None] * 3 if difference is None else [difference.value, difference.low, difference.high]
                words = f"{e['method']} against {e['against']}, {e['column']} ({e.get('split', 'dev')})"
                rows.append([model, words, direction, *estimate, p, f"{both} of {len(self.seeds)}"])
                ps.append(p)
        for row, p in zip(rows, adjust(np.array(ps), self.correction)):
            verdict = "waiting for seeds" if np.isnan(p) else "confirmed" if p < self.alpha else "not confirmed"
            row[7:7] = [p]
            row.append(verdict)
        columns = [
            "model",
            "endpoint",
            "direction",
            "difference",
            "low",
            "high",
            "p",
            f"p ({self.correction})",
            "seeds",
        ]
        note = f"Plan {self.digest[:12]}{f', registered {when}' if when else ''}. Student's paired t over seeds; "
        note += (
            f"confirmed: p < {self.alpha:g} after correction over the plan's {len(rows)} tests. An endpoint is tested "
        )
        note += "once all its seeds are complete."
        made = table("Registered tests", [*columns, "verdict"], rows, note)
        return Part("Registered tests", "Registered before the first run; all other tables are exploratory.", [made])


def _towards(difference: Any, direction: str) -> float:
    """One-sided p-value from the two-sided one."""
    if direction == "two-sided":
        return float(difference.p)
    agrees = (difference.value > 0) == (direction == "greater")
    return float(difference.p / 2 if agrees else 1 - difference.p / 2)


def with_registered(recipe: PaperRecipe, plan: Registered, when: str = "") -> PaperRecipe:
    """The recipe with the plan's tests first and every other table marked exploratory."""

    def exploratory(make: Any) -> Any:
        def made(records: Any) -> Part:
            part = make(records)
            tables = [{**t, "note": f"Exploratory. {t.get('note', '')}".strip()} for t in part.tables]
            return replace(part, tables=tables)

        return made

    return replace(recipe, sections=(lambda records: plan.part(records, when), *map(exploratory, recipe.sections)))
