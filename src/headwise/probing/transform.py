"""Head outputs as sentence vectors: a scikit-learn transformer with ``encode``, as in sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from headwise.errors import HeadwiseError
from headwise.probing.features import POOL, Reader
from headwise.probing.fitting import Labels, Vectors, fit
from headwise.tasks.task import Row

Head = tuple[int, int]


class HeadFeatures(TransformerMixin, BaseEstimator):
    """Transform texts to the concatenated outputs of chosen heads.

    Pass the heads, or let ``fit`` probe all of them by cross-validation on its texts and labels and choose the best
    ``n``. In a Pipeline or GridSearchCV the choice never sees held-out texts.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> pipeline = make_pipeline(HeadFeatures(model, tokenizer, n=12), LogisticRegression())
        >>> pipeline.fit(texts, labels).score(more_texts, more_labels)  # doctest: +SKIP
        0.88
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        n: int | None = None,
        heads: Sequence[Head] | None = None,
        at: str | None = None,
        pair: str = "apart",
        max_length: int | None = None,
        precision: str = "fp32",
        folds: int = 3,
        l2: Sequence[float] = (1e-4, 1e-3, 1e-2),
        cache: Any = False,
    ):
        """Configure the vectors.

        Args:
            model: a Hugging Face model, a `MultiTaskModel`, or a folder or Hub name; shared by copies of this object.
            tokenizer: the tokenizer of a Hugging Face model.
            n: how many heads ``fit`` chooses. Default: as many as a layer has.
            heads: (layer, head) pairs to use, in this order.
            at: the token that represents a sentence: cls, last, mean or post_last.
            pair: read pairs of texts separately, as [|a - b|, a * b], or together.
            max_length: maximum input length in sub-words.
            precision: fp32, fp16 or bf16.
            folds: number of cross-validation folds that rank heads.
            l2: strengths that probes choose from.
            cache: store features on disk; a folder, or True for the cache folder.
        """
        self.model, self.tokenizer, self.n, self.heads = model, tokenizer, n, heads
        self.at, self.pair, self.max_length, self.precision = at, pair, max_length, precision
        self.folds, self.l2, self.cache = folds, l2, cache

    def __sklearn_clone__(self) -> HeadFeatures:
        return type(self)(**self.get_params(deep=False))  # the model is shared, not copied

    def _reader(self) -> Reader:
        options = {"pair": self.pair, "precision": self.precision}
        return Reader.of(self.model, self.tokenizer, self.at, self.max_length, **options)

    def fit(self, X: Any, y: Any = None) -> HeadFeatures:
        """Choose the heads: those passed to the constructor, or the best for these texts and labels."""
        reader = self._reader()
        if self.heads is not None:
            self.heads_ = [_checked(head, reader) for head in self.heads]
            return self
        if y is None:
            raise HeadwiseError("HeadFeatures with neither heads nor labels", "labels to choose heads by", "fit(X, y)")
        scores = self._scores(reader, X, y)
        alive = int(reader.heads.alive.sum())
        n = reader.heads.num_heads if self.n is None else self.n
        if not 1 <= n <= alive:
            raise HeadwiseError(f"n={n}", f"1 to {alive}, the heads there are")
        order = scores.flatten().argsort(descending=True, stable=True)[:n].tolist()
        self.heads_ = [divmod(i, reader.heads.num_heads) for i in order]
        return self

    def _scores(self, reader: Reader, X: Any, y: Any) -> torch.Tensor:
        """Cross-validated scores of all heads; -inf for cut heads."""
        features = reader.read(rows_of(X), cache=self.cache).heads.flatten(0, 1)
        alive = reader.heads.alive
        x = features if alive.all() else features[alive.flatten().to(features.device)]
        labels = _labels(y)
        fitted = fit(
            "sklearn", Vectors(x, x[:, :0], x[:, :1]), labels, device=reader.device, l2=tuple(self.l2), folds=self.folds
        )
        scores = torch.full(alive.shape, -torch.inf, dtype=torch.float64)
        scores[alive] = fitted.dev
        self.scores_ = scores.masked_fill(~alive, torch.nan).numpy()
        return scores

    def transform(self, X: Any) -> np.ndarray:
        """Vectors ``(texts, heads * head size)``, twice as wide for pairs read separately."""
        if self.heads is None:
            check_is_fitted(self, "heads_")
            heads = self.heads_
        else:
            heads = [_checked(head, self._reader()) for head in self.heads]
        rows, reader = rows_of(X), self._reader()
        if not rows:
            raise HeadwiseError("no texts", "one or more")
        parts = [reader.vectors(rows[i : i + POOL])[0] for i in range(0, len(rows), POOL)]
        return torch.cat([torch.cat([part[head] for head in heads], -1).float().cpu() for part in parts]).numpy()

    def encode(
        self,
        sentences: Any,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
    ) -> Any:
        """Vectors of sentences, or one vector for one text. Batches are formed by length; ``batch_size`` is ignored."""
        single = isinstance(sentences, str)
        vectors = self.transform([sentences] if single else sentences)
        if normalize_embeddings:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        vectors = vectors[0] if single else vectors
        return vectors if convert_to_numpy and not convert_to_tensor else torch.from_numpy(vectors)

    def get_sentence_embedding_dimension(self) -> int:
        """The size of a single text's vector."""
        return len(self.heads if self.heads is not None else self.heads_) * self._reader().heads.head_dim

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Layer, head and index of every column (for single texts)."""
        heads = self.heads if self.heads is not None else self.heads_
        size = self._reader().heads.head_dim
        return np.array([f"layer{layer}_head{head}_{i}" for layer, head in heads for i in range(size)], dtype=object)


def rows_of(X: Any) -> list[Row]:
    """Texts, or pairs of texts, as rows."""
    if isinstance(X, str):
        raise HeadwiseError("one text", "a list of texts", "[text]")
    rows = []
    for item in X:
        if isinstance(item, str):
            rows.append({"text": str(item)})
        elif len(item) == 2 and all(isinstance(text, str) for text in item):
            rows.append({"text": str(item[0]), "text_b": str(item[1])})
        else:
            raise HeadwiseError(f"{item!r}", "a text, or a pair of texts")
    return rows


def _labels(y: Any) -> Labels:
    """Class indices, or grades scaled to 0-1, for probes that choose by cross-validation."""
    y = np.asarray(y)
    if type_of_target(y) == "continuous":
        grades = (y - y.min()) / ((y.max() - y.min()) or 1.0)
        return Labels(grades, grades[:0], grades[:1], 0)
    names, numbers = np.unique(y, return_inverse=True)
    if len(names) < 2:
        raise HeadwiseError("labels of one class only", "two classes or more")
    return Labels(numbers, numbers[:0], numbers[:1], len(names))


def _checked(head: Head, reader: Reader) -> Head:
    layer, number = int(head[0]), int(head[1])
    layers, heads = reader.heads.shape
    if not (0 <= layer < layers and 0 <= number < heads) or not reader.heads.alive[layer, number]:
        raise HeadwiseError(f"head {head}", f"a remaining head of layers 0 to {layers - 1} and heads 0 to {heads - 1}")
    return layer, number


class FewHeads(ClassifierMixin, BaseEstimator):
    """Classify texts by the heads that best separate a few labelled texts, without training.

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
        """Compute the centroids of all heads and keep the heads with the best leave-one-out accuracy."""
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
        """The class with the most votes; ties go to the larger sum of cosines."""
        votes, near = self._votes(X)
        return self.classes_[(votes + 1e-6 * near).argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The fraction of votes for each class, (N, C), not calibrated probabilities."""
        return self._votes(X)[0] / self.heads

    def _votes(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        check_is_fitted(self, "heads_")
        z_NHD, places = self._outputs(X)
        chosen = [places.index(head) for head in self.heads_]
        near_NHC = _cosines(z_NHD[:, chosen], self.centroids_)
        votes = np.eye(len(self.classes_))[near_NHC.argmax(-1)].sum(1)
        return votes, near_NHC.mean(1)

    def _outputs(self, X: Any) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """The outputs of all remaining heads, (N, L · H, D), and their indices."""
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
