"""Similarity of tasks: by sentence vectors, fit to brain data, transfer, or heads (no torch).

Every measure is a registered function from one thing per task to a ``Similarity``. Sentence vectors are arrays
``(sentences, width)``, one per task, the same sentences in the same order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, permutations
from typing import Any

import numpy as np
from scipy import stats as scipy_stats
from scipy.spatial.distance import pdist

from headwise.errors import HeadwiseError, unknown
from headwise.io.display import Shown, plot_matrix
from headwise.measuring.correlation import Correlation, correlation
from headwise.measuring.stats import p_value
from headwise.registry import Registry


@dataclass(frozen=True)
class Similarity(Shown):
    """A symmetric matrix over tasks; only its pairs are read, and the diagonal may be NaN."""

    by: str
    tasks: tuple[str, ...]
    matrix: np.ndarray

    def pairs(self) -> dict[tuple[str, str], float]:
        """The similarity of each pair of tasks."""
        places = combinations(range(len(self.tasks)), 2)
        return {(self.tasks[i], self.tasks[j]): float(self.matrix[i, j]) for i, j in places}

    def against(self, d: Mapping[tuple[str, str], float], how: str = "pearson", **options: Any) -> Against:
        """Correlation of similarity with the dissociation score D of each pair (Li et al. 2023, Figures 3, 5-7).

        Example:
            >>> alike = Similarity("dse", ("a", "b", "c"), np.array([[1, 0.9, 0.2], [0.9, 1, 0.5], [0.2, 0.5, 1]]))
            >>> round(alike.against({("a", "b"): 0.01, ("a", "c"): 0.12, ("b", "c"): 0.08}).fit.r, 3)
            -0.997
        """
        x = self.pairs()
        y = {(a, b): d.get((a, b), d.get((b, a))) for a, b in x}
        missing = [pair for pair, value in y.items() if value is None]
        if missing:
            raise HeadwiseError(
                f"no dissociation score for {missing}", f"all {len(x)} pairs of {', '.join(self.tasks)}"
            )
        values = np.array([float(value) for value in y.values() if value is not None])
        fit = correlation(np.array(list(x.values())), values, how, **options)
        return Against(self.by, tuple(x), tuple(x.values()), tuple(values), fit, mantel(self.matrix, values, how))

    def to_records(self) -> list[dict[str, Any]]:
        """One record per pair of tasks."""
        return [{"by": self.by, "task": a, "other": b, "similarity": value} for (a, b), value in self.pairs().items()]

    def plot(self, ax: Any = None) -> Any:
        """The matrix with its numbers; returns matplotlib axes."""
        return plot_matrix(self.matrix, self.tasks, self.tasks, self.by, ax, percent=False)

    def to_record(self) -> dict[str, Any]:
        cells = [[None if cell != cell else cell for cell in row] for row in self.matrix.tolist()]
        return {"by": self.by, "tasks": list(self.tasks), "matrix": cells}

    def __str__(self) -> str:
        rows = [[self.by, *self.tasks], *([t, *(f"{v:.3f}" for v in row)] for t, row in zip(self.tasks, self.matrix))]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(word.rjust(width) for word, width in zip(row, widths)) for row in rows)


@dataclass(frozen=True)
class Against:
    """D against similarity: points, correlation and line, and a p-value that accounts for shared tasks."""

    by: str
    pairs: tuple[tuple[str, str], ...]
    similarity: tuple[float, ...]
    d: tuple[float, ...]
    fit: Correlation
    p_mantel: float

    def to_record(self) -> dict[str, Any]:
        """The part ``similarity`` of study.json: points, and the fit of this measure."""
        cells = zip(self.pairs, self.similarity, self.d)
        points = [{"a": a, "b": b, "similarity": x, "d": float(d), "measure": self.by} for (a, b), x, d in cells]
        return {"points": points, "fits": {self.by: asdict(self.fit) | {"p_mantel": self.p_mantel}}}

    def __str__(self) -> str:
        return f"{self.by} against D: {self.fit}, p by relabelled tasks = {self.p_mantel:.3g}"


def mantel(matrix: np.ndarray, values: np.ndarray, how: str = "pearson", rounds: int = 4999, seed: int = 0) -> float:
    """Two-sided p-value of a correlation over pairs by permuting tasks (Mantel 1967); exact up to seven tasks.

    Ten pairs of five tasks are not ten independent points, as an ordinary correlation test assumes.
    """
    upper = np.triu_indices(len(matrix), 1)
    ranked = scipy_stats.rankdata if how == "spearman" else np.asarray
    x = ranked(matrix[upper])
    full = np.zeros(matrix.shape)  # of the values in the matrix
    full[upper] = ranked(values)
    full += full.T
    if len(matrix) <= 7:
        orders = np.array(list(permutations(range(len(matrix)))))
    else:
        generator = np.random.default_rng(seed)
        orders = np.array([np.arange(len(matrix)), *(generator.permutation(len(matrix)) for _ in range(rounds))])
    null = np.abs([np.corrcoef(x, full[np.ix_(order, order)][upper])[0, 1] for order in orders])
    return float(p_value(null[0], null[1:]))  # the first order is the observed one


similarity: Registry[Callable[..., Similarity]] = Registry("similarity")


def _symmetric(by: str, tasks: Sequence[str], measure: Callable[[int, int], float]) -> Similarity:
    """A matrix from a symmetric function of two task indices."""
    matrix = np.eye(len(tasks))
    for i, j in combinations(range(len(tasks)), 2):
        matrix[i, j] = matrix[j, i] = measure(i, j)
    return Similarity(by, tuple(tasks), matrix)


def _vectors(vectors: Mapping[str, Any], least: int = 1) -> list[np.ndarray]:
    """The tasks' vectors, checked: the same sentences, finite numbers."""
    arrays = [np.asarray(v, float) for v in vectors.values()]
    shapes = {name: array.shape for name, array in zip(vectors, arrays)}
    if len(arrays) < 2 or any(a.ndim != 2 or len(a) != len(arrays[0]) or len(a) < least for a in arrays):
        expected = f"(sentences, width) for two tasks or more, the same {least} sentences or more"
        raise HeadwiseError(f"vectors of shapes {shapes}", expected)
    if not all(np.isfinite(a).all() for a in arrays):
        raise HeadwiseError("sentence vectors with NaN or infinity", "finite numbers")
    return arrays


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine along the last axis."""
    norm = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    if not np.all(norm > 0):
        raise HeadwiseError("a vector of zeros", "vectors with a direction")
    return (a * b).sum(-1) / norm


@similarity("dse")
def dse(vectors: Mapping[str, Any]) -> Similarity:
    """Direct similarity estimation: the mean cosine of two tasks' vectors of the same sentence."""
    arrays = _vectors(vectors)
    if len({array.shape for array in arrays}) > 1:
        raise HeadwiseError(f"vectors of widths {[a.shape[1] for a in arrays]}", "one width", "cra, which needs none")
    return _symmetric("dse", tuple(vectors), lambda i, j: float(_cosine(arrays[i], arrays[j]).mean()))


RDMS = ("correlation", "cosine", "euclidean", "cityblock")
SECOND_ORDER: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "spearman": lambda a, b: correlation(a, b, "spearman").r,
    "pearson": lambda a, b: correlation(a, b, "pearson").r,
    "cosine": lambda a, b: _cosine(a, b),
    "jaccard": lambda a, b: np.minimum(a, b).sum() / np.maximum(a, b).sum(),
}


@similarity("cra")
def cra(vectors: Mapping[str, Any], rdm: str = "correlation", compare: str = "spearman") -> Similarity:
    """Cognitive representation analytics: similarity of the distances between sentences under two tasks.

    ``rdm`` is the distance between two sentences, ``compare`` the similarity of two tasks' lists of distances
    (``jaccard``, of weights, also sees their scale).
    """
    arrays = _vectors(vectors, least=3)
    if rdm not in RDMS:
        raise unknown("distance", rdm, RDMS)
    if compare not in SECOND_ORDER:
        raise unknown("comparison", compare, SECOND_ORDER)
    distances = [pdist(array, rdm) for array in arrays]
    for name, distance in zip(vectors, distances):
        if np.isnan(distance).any() or np.ptp(distance) < 1e-12:
            raise HeadwiseError(f"{name} does not tell its sentences apart by {rdm}", "sentences that differ")
    return _symmetric("cra", tuple(vectors), lambda i, j: float(SECOND_ORDER[compare](distances[i], distances[j])))


@similarity("cnm")
def cnm(
    vectors: Mapping[str, Any],
    brain: Sequence[Any],
    model: str = "ridge",
    folds: int = 5,
    voxels: int | None = 5000,
    seed: int = 0,
) -> Similarity:
    """Cognitive-neural mapping: similarity of the voxels that two tasks' sentence vectors predict.

    Args:
        vectors: one array ``(sentences, width)`` per task.
        brain: one array ``(sentences, voxels)`` per subject, measured while reading the same sentences.
        model: ``ridge`` or ``mlp`` (one hidden layer of 200 or 400, chosen by three folds).
        folds: a voxel's score is the correlation of its values with predictions from the other folds.
        voxels: keep this many voxels per subject, best predicted by ridge on average over tasks (default: all). Scores
            on selected voxels are optimistic; only their similarity is interpreted.
        seed: of the folds and the network.
    """
    arrays = _vectors(vectors, least=2 * folds)
    if model not in ENCODERS:
        raise unknown("encoder", model, ENCODERS)
    total = np.zeros((len(arrays), len(arrays)))
    for subject in brain:
        seen = np.asarray(subject, float)
        if seen.ndim != 2 or len(seen) != len(arrays[0]):
            raise HeadwiseError(f"brain data of shape {seen.shape}", f"({len(arrays[0])} sentences, voxels)")
        scores = np.stack([_encode(a, seen, "ridge", folds, seed) for a in arrays])
        selected = np.argsort(-scores.mean(0), kind="stable")[:voxels]
        if model != "ridge":
            scores = np.stack([_encode(a, seen[:, selected], model, folds, seed) for a in arrays])
        else:
            scores = scores[:, selected]
        total += _cosine(scores[:, None], scores[None])
    return Similarity("cnm", tuple(vectors), total / len(brain))


def _encode(x: np.ndarray, y: np.ndarray, model: str, folds: int, seed: int) -> np.ndarray:
    """The correlation of every voxel with its cross-validated prediction; 0 for a constant voxel."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import KFold, cross_val_predict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the published network stops after 100 epochs
        split = KFold(folds, shuffle=True, random_state=seed)
        predicted: Any = cross_val_predict(ENCODERS[model](seed), x, y, cv=split)
    guess = predicted.reshape(y.shape)
    guess, truth = guess - guess.mean(0), y - y.mean(0)
    norm = np.sqrt(np.square(guess).sum(0) * np.square(truth).sum(0))
    return np.divide((guess * truth).sum(0), norm, out=np.zeros(y.shape[1]), where=norm > 1e-12)


def _ridge(seed: int) -> Any:
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-1, 5, 13), alpha_per_target=True))


def _mlp(seed: int) -> Any:
    from sklearn.model_selection import GridSearchCV
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPRegressor(max_iter=100, random_state=seed)
    return make_pipeline(StandardScaler(), GridSearchCV(network, {"hidden_layer_sizes": [(200,), (400,)]}, cv=3))


ENCODERS: dict[str, Callable[[int], Any]] = {"ridge": _ridge, "mlp": _mlp}


def tournament(scores: Any) -> np.ndarray:
    """W_ij: the fraction of examples on which source i beats source j, ties half; scores ``(sources, examples)``."""
    scores = np.asarray(scores, float)
    if scores.ndim != 2 or not scores.size:
        raise HeadwiseError(f"scores of shape {scores.shape}", "(sources, examples)")
    return np.stack([((row > scores) + 0.5 * (row == scores)).mean(1) for row in scores])


def priorities(wins: Any) -> np.ndarray:
    """How well each source transfers: the principal eigenvector of W / W^T, clipped first, with sum 1 (Saaty)."""
    wins = np.clip(np.asarray(wins, float), 0.001, 0.999)
    values, vectors = np.linalg.eig(wins / wins.T)
    principal = np.abs(np.real(vectors[:, np.argmax(np.real(values))]))
    return principal / principal.sum()


@similarity("ahp")
def ahp(scores: Mapping[str, Any]) -> Similarity:
    """Analytic hierarchy process (Zamir et al. 2018): tasks are similar if they transfer well to each other.

    ``scores[target]`` is ``(sources, examples)``: how well each source's model, tuned on the target, does on each
    held-out example; sources are in the order of the targets. A source that was not run has a row of NaN and is
    ignored. The two directions of a pair are averaged.
    """
    tasks = tuple(scores)
    transfer = np.full((len(tasks), len(tasks)), np.nan)  # source, target
    for column, (target, rows) in enumerate(scores.items()):
        rows = np.asarray(rows, float)
        if rows.ndim != 2 or len(rows) != len(tasks):
            raise HeadwiseError(f"scores for {target} of shape {rows.shape}", f"({len(tasks)} sources, examples)")
        run = ~np.isnan(rows).all(1)
        if np.isnan(rows[run]).any() or (~run & (np.arange(len(tasks)) != column)).any():
            raise HeadwiseError(f"scores for {target} with NaN", "a number for every source but the target itself")
        transfer[run, column] = priorities(tournament(rows[run]))
    return Similarity("ahp", tasks, (transfer + transfer.T) / 2)


@similarity("overlap")
def head_overlap(masks: Mapping[str, Any]) -> Similarity:
    """Shared heads over the size of the sets (over their mean size if it differs), from masks ``(L, H)``."""
    flat = [np.asarray(mask, bool) for mask in masks.values()]
    if len({mask.shape for mask in flat}) != 1 or not all(mask.any() for mask in flat):
        raise HeadwiseError(f"masks of shapes {[mask.shape for mask in flat]}", "one shape for all, none empty")

    def measure(i: int, j: int) -> float:
        return float(2 * (flat[i] & flat[j]).sum() / (flat[i].sum() + flat[j].sum()))

    return _symmetric("overlap", tuple(masks), measure)


@similarity("rank")
def rank_correlation(scores: Mapping[str, Any]) -> Similarity:
    """Spearman correlation of two tasks' head scores ``(L, H)``; heads cut in either (NaN) are ignored."""
    flat = [np.asarray(score, float).ravel() for score in scores.values()]
    if len({score.shape for score in flat}) != 1:
        raise HeadwiseError(f"scores of sizes {[score.size for score in flat]}", "one shape for all")

    def measure(i: int, j: int) -> float:
        both = ~np.isnan(flat[i]) & ~np.isnan(flat[j])
        return correlation(flat[i][both], flat[j][both], "spearman").r

    return _symmetric("rank", tuple(scores), measure)
