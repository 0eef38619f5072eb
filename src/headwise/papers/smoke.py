"""The encoder of smoke runs: a tiny random BERT that knows the words of the embedded corpus."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from headwise.io.files import cache_folder, folder

NAME = "tiny"
SENTENCES = 600  # of each language, for the vocabulary


def tiny_encoder() -> Path:
    """A folder with three layers of four heads, written once; the same bytes everywhere."""
    path = cache_folder("models") / "corpus-tiny-1"
    if not (path / "config.json").exists():
        from headwise.tasks.corpus import sentences
        from headwise.testing import tiny, tiny_tokenizer

        texts = [s.text for language in ("en", "es") for s in islice(sentences(language), SENTENCES)]
        words = sorted({word for text in texts for word in text.split()})
        size = len(words) + 8
        with folder(path, replace=True) as scratch:
            tiny("bert", vocab_size=size, num_hidden_layers=3).save_pretrained(scratch)
            tiny_tokenizer(words, size).save_pretrained(scratch)
    return path
