"""Roles of heads: a score and a control for every head and role (no torch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from headwise.errors import HeadwiseError, unknown
from headwise.io.display import Shown, plot_map
from headwise.io.files import plain
from headwise.measuring.intervals import check_level
from headwise.measuring.stats import FEW, adjust

if TYPE_CHECKING:
    from headwise.models.processes import Team

DESCRIBE = ("focus", "distance")  # measured of every head; no head is named after them
LEAST = 0.1  # smallest lift that counts as a role


@dataclass(frozen=True)
class Moments:
    """Sums over texts for a mean, its interval and a paired test; each array is (R, L, H)."""

    texts: np.ndarray  # (R,): texts that have a target
    score: np.ndarray
    control: np.ndarray
    score_squared: np.ndarray
    lift_squared: np.ndarray  # of score - control

    def joined(self, team: Team) -> Moments:
        """The sums over all processes."""
        if team.size == 1:
            return self
        from torch import from_numpy

        texts, *sums = team.summed([from_numpy(getattr(self, each.name)) for each in fields(self)])
        return Moments(texts.long().numpy(), *(each.numpy() for each in sums))


@dataclass(frozen=True)
class Roles(Shown):
    """Roles of a model's heads; NaN for absent heads and for roles without targets in any text.

    Attributes:
        names: the roles, R of them.
        about: a line on each.
        texts: how many texts had a target, (R,).
        score: the share of attention that a role's queries give to its targets, (R, L, H).
        control: the same for the role's control.
        p: one-sided p-values of score above control over texts, after Holm over heads, (R, L, H); NaN below 20 texts.
        untrained: for every role the highest score of any head of a re-initialized model, (R,); NaN where not measured.
        shuffled: the scores on the same texts with their tokens in random order, (R, L, H); NaN where not measured.
    """

    names: tuple[str, ...]
    about: tuple[str, ...] = field(repr=False)
    texts: np.ndarray
    score: np.ndarray = field(repr=False)
    control: np.ndarray = field(repr=False)
    stderr: np.ndarray = field(repr=False)
    p: np.ndarray = field(repr=False)
    untrained: np.ndarray = field(repr=False)
    shuffled: np.ndarray = field(repr=False)

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        about: Sequence[str],
        moments: Moments,
        untrained: np.ndarray | None = None,
        shuffled: np.ndarray | None = None,
    ) -> Roles:
        """Compute roles from sums over texts."""
        n = moments.texts[:, None, None].astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            score, control = moments.score / n, moments.control / n
            lift = score - control
            stderr = np.sqrt(np.maximum(moments.score_squared / n - score**2, 0) / (n - 1))
            spread = np.sqrt(np.maximum(moments.lift_squared / n - lift**2, 0) / (n - 1))
            t = np.where(spread > 0, lift / spread, np.sign(lift) * np.inf)
            p = np.where(np.isnan(lift) | (n < FEW), np.nan, stats.t.sf(t, np.maximum(n - 1, 1)))
        p = np.stack([adjust(each.ravel()).reshape(each.shape) for each in p])
        none = np.full(len(names), np.nan)
        return cls(
            tuple(names),
            tuple(about),
            moments.texts,
            score,
            control,
            stderr,
            p,
            none if untrained is None else untrained,
            np.full(score.shape, np.nan) if shuffled is None else shuffled,
        )

    @property
    def lift(self) -> np.ndarray:
        """Attention to a role's targets beyond the control, as a fraction of the rest: 1 is all attention.

        Where the control leaves less than a tenth, the gain is a fraction of a tenth.
        """
        return (self.score - self.control) / np.maximum(1 - self.control, LEAST)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Student's t interval of the scores over texts."""
        check_level(level)
        reach = stats.t.isf((1 - level) / 2, np.maximum(self.texts - 1, 1))[:, None, None] * self.stderr
        return np.clip(self.score - reach, 0, 1), np.clip(self.score + reach, 0, 1)

    def index(self, role: str) -> int:
        if role not in self.names:
            raise unknown("role", role, self.names)
        return self.names.index(role)

    def holds(self, level: float = 0.05, least: float = LEAST) -> np.ndarray:
        """Bool (R, L, H): heads with a role: significant, large enough, above all heads of an untrained model."""
        floor = np.where(np.isnan(self.untrained), -np.inf, self.untrained)[:, None, None]
        named = np.array([name not in DESCRIBE for name in self.names])[:, None, None]
        with np.errstate(invalid="ignore"):
            return named & (self.p < level) & (self.lift >= least) & (self.score > floor)

    def strongest(self, level: float = 0.05, least: float = LEAST) -> np.ndarray:
        """The index of each head's strongest role, (L, H); -1 for none."""
        lift = np.where(self.holds(level, least), self.lift, -np.inf)
        return np.where(np.isfinite(lift).any(0), lift.argmax(0), -1)

    def top(self, role: str, k: int = 5) -> list[dict[str, Any]]:
        """The heads with the largest lift in a role, with score, control, interval and p.

        Example:
            >>> roles.top("induction", 1)[0]["head"]
            '18.6'
        """
        if k < 1:
            raise HeadwiseError(f"k={k}", "1 or more heads")
        r, (low, high) = self.index(role), self.interval()
        order = np.argsort(-np.nan_to_num(self.lift[r], nan=-np.inf), axis=None)[:k]
        places = [divmod(int(flat), self.score.shape[2]) for flat in order]
        return [
            {
                "role": role,
                "head": f"{layer}.{head}",
                "score": float(self.score[r, layer, head]),
                "low": float(low[r, layer, head]),
                "high": float(high[r, layer, head]),
                "control": float(self.control[r, layer, head]),
                "p": float(self.p[r, layer, head]),
                "texts": int(self.texts[r]),
            }
            for layer, head in places
            if not np.isnan(self.score[r, layer, head])
        ]

    def to_records(self) -> list[dict[str, Any]]:
        """One record for every role and head."""
        low, high = self.interval()
        holds = self.holds()
        return [
            {
                "role": name,
                "layer": layer,
                "head": head,
                "score": self.score[r, layer, head],
                "low": low[r, layer, head],
                "high": high[r, layer, head],
                "control": self.control[r, layer, head],
                "untrained": self.untrained[r],
                "shuffled": self.shuffled[r, layer, head],
                "p": self.p[r, layer, head],
                "holds": bool(holds[r, layer, head]),
                "texts": int(self.texts[r]),
            }
            for r, name in enumerate(self.names)
            for layer, head in np.argwhere(~np.isnan(self.score[r])).tolist()
        ]

    def held(self) -> dict[str, Any]:
        """The significant roles: a description of each, and scores by head (``layer.head``), largest first."""
        holds, lift = self.holds(), self.lift
        heads: dict[str, list[dict[str, Any]]] = {}
        for r, layer, head in sorted(np.argwhere(holds).tolist(), key=lambda at: -lift[tuple(at)]):
            values = {"score": self.score, "control": self.control, "lift": lift, "p": self.p}
            scores = {name: float(array[r, layer, head]) for name, array in values.items()}
            heads.setdefault(f"{layer}.{head}", []).append({"role": self.names[r], **scores})
        about = {name: line for name, line, any_ in zip(self.names, self.about, np.any(holds, (1, 2)).tolist()) if any_}
        return {"about": about, "heads": heads}

    def plot(self, role: str, ax: Any = None) -> Any:
        """Plot a role's score of every head; returns matplotlib axes."""
        if role not in self.names:
            raise unknown("role of this result", role, self.names)
        return plot_map(self.score[self.names.index(role)], role, ax, "share of attention")

    def to_record(self) -> dict[str, Any]:
        """All results as plain data."""
        arrays = ("texts", "score", "control", "stderr", "p", "untrained", "shuffled")
        return {"names": list(self.names), "about": list(self.about)} | {a: plain(getattr(self, a)) for a in arrays}


def from_record(record: Mapping[str, Any]) -> Roles:
    """Roles from the output of `Roles.to_record` or the file of ``headwise roles --out``."""
    arrays = [name for name in Roles.__dataclass_fields__ if name not in ("names", "about")]
    try:
        values = {name: np.array(record[name], float) for name in arrays}
        return Roles(tuple(record["names"]), tuple(record["about"]), **values | {"texts": values["texts"].astype(int)})
    except (KeyError, TypeError, ValueError) as error:
        raise HeadwiseError(f"unreadable roles ({error})", "a roles.json of this version of headwise") from error


def named_records(content: Mapping[str, Any]) -> list[Roles]:
    """The records by model in a file of ``headwise roles --out``, or a single record."""
    return [from_record(each) for each in ([content] if "names" in content else content.values())]


def joined(parts: Sequence[Roles]) -> Roles:
    """Join several measurements of one model."""
    arrays = [name for name in Roles.__dataclass_fields__ if name not in ("names", "about")]
    names = [name for part in parts for name in part.names]
    if not parts or len(set(names)) < len(names) or len({part.score.shape[1:] for part in parts}) > 1:
        seen = f"roles {', '.join(names)} of maps {sorted({part.score.shape[1:] for part in parts})}"
        raise HeadwiseError(seen, "one or more measurements of different roles of the same heads")
    about = tuple(line for part in parts for line in part.about)
    return Roles(tuple(names), about, *(np.concatenate([getattr(part, a) for part in parts]) for a in arrays))
