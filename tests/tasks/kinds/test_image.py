"""Pictures of a folder as tensors for a vision encoder."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
import torch
from kindlaws import letters

from headwise.errors import HeadwiseError
from headwise.models.batching import Encoded, encode
from headwise.tasks.kinds.image import Picture
from headwise.tasks.metrics import metrics
from headwise.tasks.task import Hidden, Kind, Rows, Task

Image = pytest.importorskip("PIL.Image")


class Processor:
    """What an image processor does: resize, scale, channels first."""

    image_mean = (0.5, 0.5, 0.5)
    size = 8

    def __call__(self, images, return_tensors):
        arrays = [np.asarray(image.resize((self.size, self.size)), np.float32) / 255 for image in images]
        return {"pixel_values": np.stack(arrays).transpose(0, 3, 1, 2)}


@pytest.fixture
def rows(tmp_path):
    found = []
    for i, colour in enumerate(["red", "green", "blue"] * 3):
        path = tmp_path / f"{i}.png"
        Image.new("RGB" if i % 2 else "P", (20 + i, 11), colour).save(path)
        found.append({"path": str(path), "label": colour})
    return found


def test_pixels_are_half_precision_in_the_order_of_rows(rows):
    kind = Picture().ready(rows)
    assert isinstance(kind, Kind)
    columns = kind.encode(rows, Processor(), 0)
    assert columns["pixel_values"].shape == (9, 3, 8, 8)
    assert columns["pixel_values"].dtype == np.float16
    assert columns["pixel_values"][2, :, 0, 0].tolist() == [0, 0, 1]  # blue
    assert kind.labels == ("blue", "green", "red")
    assert columns["label"].tolist() == kind.gold(rows) == [2, 1, 0] * 3


def test_a_picture_drawn_anew_is_read_anew(rows):
    task, processor = Task("pictures", Picture(("blue", "green", "red")), Rows(train=rows), "accuracy"), Processor()
    before = encode(task, "train", processor).columns["pixel_values"]
    Image.new("RGB", (21, 11), "blue").save(rows[0]["path"])
    after = encode(task, "train", processor).columns["pixel_values"]
    assert after[0, :, 0, 0].tolist() == [0, 0, 1] and before[0, :, 0, 0].tolist() == [1, 0, 0]
    assert np.array_equal(after[1:], before[1:])


def test_learns_its_training_rows_by_heart(rows):
    kind = Picture(dropout=0).ready(rows)
    batch = Encoded(kind.encode(rows, Processor(), 0), pad=0, rows=len(rows)).batch(range(len(rows)))
    states = batch["pixel_values"].float().flatten(2).mT  # 64 patches of three channels: the encoder is the identity
    hidden, head = Hidden(states, states.mean(1)), kind.head(3)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        kind.loss(head(hidden, batch), batch).mean().backward()
        optimizer.step()
    assert metrics["accuracy"](kind.decode(head(hidden, batch), batch), kind.gold(rows)) == 1


def test_bad_pictures_are_refused(rows, tmp_path):
    kind = Picture().ready(rows)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    for path, message in [
        (broken, "not a readable picture"),
        (tmp_path / "none.png", "no file"),
        (tmp_path, "readable"),
    ]:
        with pytest.raises(HeadwiseError, match=message):
            kind.encode([{"path": str(path), "label": "red"}], Processor(), 0)
    with pytest.raises(HeadwiseError, match="path None"):
        kind.check({"label": "red"})
    with pytest.raises(HeadwiseError, match="unknown label"):
        kind.check({"path": "x.png", "label": "black"})
    with pytest.raises(HeadwiseError, match="image processor"):
        kind.encode(rows, letters(), 16)


def test_a_missing_library_is_named(rows, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "PIL":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HeadwiseError, match=r"'pillow'.*pip install -e .*images"):
        Picture(("red",)).encode(rows[:1], Processor(), 0)
