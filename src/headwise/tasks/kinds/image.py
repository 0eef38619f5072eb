"""Classify images of a local folder with vision encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headwise.errors import HeadwiseError, missing_extra
from headwise.tasks.columns import Columns
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Row


@dataclass(frozen=True)
class Picture(Classify):
    """One label per image; rows are ``{"path", "label"}``, and the tokenizer is the model's image processor.

    Example:
        >>> Picture(("cat", "dog")).check({"path": "pets/rex.png", "label": "dog"})
    """

    asks: ClassVar[tuple[str, ...]] = ("path",)

    def check(self, row: Row) -> None:
        if not isinstance(row.get("path"), str | Path):
            raise HeadwiseError(f"path {row.get('path')!r}", "a picture's file")
        self.check_label(row)

    def files_of(self, rows: Sequence[Row]) -> list[Path]:
        return [Path(row["path"]) for row in rows]

    def encode(self, rows: Sequence[Row], tokenizer: Any, max_length: int) -> Columns:
        """``pixel_values``: ``(n, C, H, W)`` in half precision, processed 64 images at a time."""
        if not hasattr(tokenizer, "image_mean") and not hasattr(tokenizer, "size"):
            raise HeadwiseError(f"{type(tokenizer).__name__} for pictures", "the image processor of a vision model")
        parts = [_pixels(rows[i : i + 64], tokenizer) for i in range(0, len(rows), 64)]
        return {"pixel_values": np.concatenate(parts), "label": np.array(self.gold(rows), np.int64)}


def _pixels(rows: Sequence[Row], processor: Any) -> np.ndarray:
    pictures = [_picture(row["path"]) for row in rows]
    return np.asarray(processor(images=pictures, return_tensors="np")["pixel_values"], np.float16)


def _picture(path: str | Path) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise missing_extra("pillow", "images", "reading pictures") from None
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except FileNotFoundError:
        raise HeadwiseError(f"no file {path}", "a picture") from None
    except (UnidentifiedImageError, OSError) as error:
        raise HeadwiseError(
            f"{path} is not a readable picture ({error})", "a complete png, jpeg or similar file"
        ) from None
