"""A few heads as a classifier without training: each votes for the class whose centroid its output is nearest to.

Mitra et al. 2024 (Sparse Attention Vectors, arXiv 2412.00142): of all heads the ones are kept whose nearest centroid is
right most often on a few labels a class; they vote.

Legend: N texts, C classes, L layers, H heads, D head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from headwise.errors import HeadwiseError
from headwise.probing.features import POOL, Reader
from headwise.probing.transform import rows_of


class FewHeads(ClassifierMixin, BaseEstimator):
    """Classify texts by the outputs of the heads that tell a few labelled texts apart best; nothing is trained.

    Example:
        >>> few = FewHeads("gpt2", heads=20).fit(texts, labels)  # 20 texts of each class
        >>> few.predict(["A fine film."])  # doctest: +SKIP
        array(['positive'], dtype='<U8')
        >>> few.heads_[:2]  # doctest: +SKIP
        [(8, 3), (10, 11)]
    """

    def __init__(
        self, model: Any = None, tokenizer: Any = None, heads: int = 20, at: str | None = None, max_length: int = 128
    ):
        """Configure the classifier.

        Args:
            model: a Hugging Face model, a `MultiTaskModel`, or a folder or Hub name; shared by copies of this object.
            tokenizer: the tokenizer of a Hugging Face model.
            heads: how many heads vote.
            at: the token whose head outputs stand for a text: cls, last or mean. Default: last for causal models.
            max_length: maximum input length in sub-words.
        """
        self.model, self.tokenizer, self.heads, self.at, self.max_length = model, tokenizer, heads, at, max_length

    def __sklearn_clone__(self) -> FewHeads:
        return type(self)(**self.get_params(deep=False))  # the model is shared, not copied

    def fit(self, X: Any, y: Any) -> FewHeads:
        """Centroids of all heads, and the heads whose centroids are right most often on texts they leave out."""
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        z_NHD, places = self._outputs(X)
        counts = np.bincount(labels, minlength=1)
        if len(labels) != len(z_NHD) or len(counts) < 2 or counts.min() < 2:
            seen = f"{len(z_NHD)} texts and {len(labels)} labels: {dict(zip(self.classes_.tolist(), counts.tolist()))}"
            raise HeadwiseError(seen, "a label for each text, two classes or more, two texts of each or more")
        if not 1 <= self.heads <= len(places):
            raise HeadwiseError(f"heads={self.heads}", f"1 to {len(places)}, the heads there are")
        sums_HCD = np.stack([z_NHD[labels == c].sum(0) for c in range(len(counts))], 1)
        near_NHC = _cosines(z_NHD, sums_HCD)
        own = np.arange(len(labels))
        left_out_NHD = sums_HCD[:, labels].transpose(1, 0, 2) - z_NHD  # a cosine needs no mean
        near_NHC[own, :, labels] = _cosines(z_NHD, left_out_NHD[:, :, None])[..., 0]
        right = (near_NHC.argmax(-1) == labels[:, None]).mean(0)
        tie = (near_NHC[own, :, labels] - near_NHC.mean(-1)).mean(0)  # among equally good heads, the wider margin
        order = np.lexsort((-tie, -right))[: self.heads]
        self.heads_ = [places[i] for i in order]
        self.scores_ = right[order]
        self.centroids_ = sums_HCD[order]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The class with the most votes; among equals the one with the larger sum of cosines."""
        votes, near = self._votes(X)
        return self.classes_[(votes + 1e-6 * near).argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The share of votes of each class, (N, C): counts, not calibrated chances."""
        return self._votes(X)[0] / self.heads

    def _votes(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        check_is_fitted(self, "heads_")
        z_NHD, places = self._outputs(X)
        chosen = [places.index(head) for head in self.heads_]
        near_NHC = _cosines(z_NHD[:, chosen], self.centroids_)
        votes = np.eye(len(self.classes_))[near_NHC.argmax(-1)].sum(1)
        return votes, near_NHC.mean(1)

    def _outputs(self, X: Any) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """The outputs of all heads there are, (N, L · H, D), and which they are."""
        if self.model is None:
            raise HeadwiseError("no model", "a model and its tokenizer", 'FewHeads("gpt2")')
        reader = Reader.of(self.model, self.tokenizer, self.at, self.max_length)
        rows = rows_of(X)
        if not rows:
            raise HeadwiseError("no texts", "one or more")
        alive = reader.heads.alive
        parts = [reader.vectors(rows[i : i + POOL])[0] for i in range(0, len(rows), POOL)]
        z_HND = torch.cat(parts, 2)[alive.to(parts[0].device)]
        return z_HND.transpose(0, 1).double().cpu().numpy(), [tuple(p) for p in alive.nonzero().tolist()]


def _cosines(z_NHD: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Of outputs with centroids (H, C, D), or (N, H, C, D) of their own: (N, H, C)."""
    dots = (z_NHD[:, :, None] * centroids).sum(-1)
    sizes = np.linalg.norm(z_NHD, axis=-1)[..., None] * np.linalg.norm(centroids, axis=-1)
    return dots / np.maximum(sizes, 1e-12)
