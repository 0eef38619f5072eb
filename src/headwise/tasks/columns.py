"""A tokenized task as columns of numbers: rows of different lengths are concatenated in one array (no torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: row i is ``values[offsets[i]:offsets[i + 1]]``; values may have trailing axes.

    Example:
        >>> Ragged.of([[1, 2], [], [3]]).padded([0, 2])
        array([[ 1,  2],
               [ 3, -1]], dtype=int32)
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: Iterable, width: int = 0, dtype: DTypeLike = np.int32) -> Ragged:
        """From a sequence of lists; ``width`` is the trailing axis (spans as ``(start, end, label)``: 3)."""
        rows = list(rows)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        flat = [item for row in rows for item in row]
        return cls(np.asarray(flat, dtype).reshape((-1, width) if width else (-1,)), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def take(self, rows: Iterable[int]) -> Ragged:
        """The chosen rows, in the order given."""
        rows = np.asarray(rows, np.int64)
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Ragged(self.values[np.repeat(self.offsets[rows], lengths) + inside], offsets)

    def padded(self, rows: Iterable[int], fill: int = -1, length: int | None = None, grain: int = 1) -> np.ndarray:
        """The chosen rows as one array, padded on the right.

        Its width is ``length``, or that of the longest chosen row, rounded up to a multiple of ``grain`` but not beyond
        the longest row of all.
        """
        part = self.take(rows)
        lengths = part.lengths
        width = int(lengths.max(initial=0)) if length is None else length
        if grain > 1:
            width = stepped(width, grain, int(self.lengths.max(initial=width)))
        out = np.full((len(part), width, *self.values.shape[1:]), fill, self.values.dtype)
        out[np.arange(width) < lengths[:, None]] = part.values
        return out


Columns = dict[str, Ragged | np.ndarray]


def stepped(width: int, grain: int, most: int) -> int:
    """A width rounded up to a multiple of ``grain``, but not beyond ``most``."""
    return min(-(-width // grain) * grain, most)


def to_arrays(columns: Columns) -> dict[str, np.ndarray]:
    """Columns as named flat arrays, for a safetensors file."""
    arrays = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            arrays[f"{name}.values"], arrays[f"{name}.offsets"] = column.values, column.offsets
        else:
            arrays[name] = column
    return arrays


def from_arrays(arrays: Mapping[str, np.ndarray]) -> Columns:
    columns: Columns = {}
    for name, array in arrays.items():
        if name.endswith(".values"):
            name = name.removesuffix(".values")
            columns[name] = Ragged(array, arrays[f"{name}.offsets"])
        elif not name.endswith(".offsets"):
            columns[name] = array
    return columns
