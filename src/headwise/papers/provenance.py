"""Where data and weights of records come from: known by their hashes, and said on every page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from headwise.io.records import Record
from headwise.papers.recipe import Part
from headwise.papers.summary import table

UNKNOWN = "not known here"
TEXT = """Data and weights are known by their hashes; another copy, or an official one, is not described here. Samples
stand in where official files could not be had, and scores on them are not comparable with published ones.

Contamination: encoders tuned for sentence similarity have seen public pairs such as MultiNLI's, Quora's and SQuAD's,
and pretraining data of decoders may hold any public test set. Comparisons on this page are within one model, where this
is the same on both sides; levels are not to be compared between models."""


@cache
def known() -> dict[str, Any]:
    """What is known of data and weights, by name: hashes, source, and what the rows or weights are."""
    return json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


def provenance(records: Iterable[Record]) -> Part:
    """Tables of the data and weights that these records were made with."""
    data: dict[tuple[str, str], None] = {}
    weights: dict[tuple[str, str], None] = {}
    for record in records:
        data |= dict.fromkeys(_data(record.config))
        weights |= dict.fromkeys(_weights(record.config))
    rows = [[name, *_said("data", name, digest, ("source", "rows"))] for name, digest in sorted(data)]
    models = [[name, *_said("weights", name, digest, ("source", "note"))] for name, digest in sorted(weights)]
    tables = [table("Data", ["task", "source", "rows"], _once(rows))] if rows else []
    tables += [table("Weights", ["model", "source", "what they are"], _once(models))] if models else []
    return Part("Data and weights", TEXT, tables)


def _said(what: str, name: str, digest: str, fields: tuple[str, str]) -> list[str]:
    entry = known()[what].get(name, {})
    return [entry[field] if digest in entry.get("hashes", ()) else UNKNOWN for field in fields]


def _once(rows: list[list[str]]) -> list[list[str]]:
    return [list(row) for row in dict.fromkeys(map(tuple, rows))]


def _data(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and hashes of tasks anywhere in a config."""
    for field in ("tasks", "pairs", "held"):
        if isinstance(config.get(field), Mapping):
            yield from ((name, digest) for name, digest in config[field].items() if isinstance(digest, str))
    if isinstance(config.get("task"), str) and isinstance(config.get("data"), str):
        yield config["task"], config["data"]
    for inner in config.values():
        if isinstance(inner, Mapping):
            yield from _data(inner)


def _weights(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(config.get("model"), str) and isinstance(config.get("weights"), str):
        yield config["model"], config["weights"]
    for inner in config.values():
        if isinstance(inner, Mapping):
            yield from _weights(inner)
