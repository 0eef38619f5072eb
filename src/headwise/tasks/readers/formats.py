"""File formats: each reads a file into records (plain dicts) with their line, and writes records back (no torch)."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.io import files as store
from headwise.registry import Registry

Record = dict[str, Any]
Numbered = Iterator[tuple[int, Record | None]]  # None: a broken line that the layout skips


@dataclass(frozen=True)
class Format:
    """How one kind of file is read and written; ``columns`` says whether it can read a choice of columns only."""

    read: Callable[..., Numbered]
    write: Callable[..., Path]
    columns: bool = False


formats: Registry[Format] = Registry("format")
for _name in ("conllu", "columns", "conll2012", "trees"):
    formats.add(_name, f"headwise.tasks.readers.conll:{_name}")


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A whole text file; errors name a missing file, a folder, or the line of a wrong encoding."""
    path = Path(path)
    if path.is_dir():
        raise HeadwiseError(f"{path} is a directory", "a file")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise HeadwiseError(f"no file {path}") from None
    try:
        return content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise HeadwiseError(
            f"{path}:{line}: byte 0x{content[error.start]:02x} is not {encoding}",
            f"text in {encoding}",
            f"iconv -f latin1 -t utf-8 {path.name}",
        ) from None


def opened(path: Path, encoding: str = "utf-8", newline: str = "\n") -> Iterator[str]:
    """The lines of a text file as they are read, with their ends; errors are those of `read_text`."""
    path = Path(path)
    if not path.is_file():
        read_text(path, encoding)
    try:
        with path.open(encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline=newline) as file:
            yield from file
    except UnicodeDecodeError:
        read_text(path, encoding)
        raise


def text_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """The lines of a file, numbered from 1; only line feeds end a line, since texts may hold other separators."""
    lines = enumerate(opened(path, encoding), 1)
    return ((number, line.removesuffix("\n").removesuffix("\r")) for number, line in lines)


def _rows_of(
    path: Path, rows: Iterable[tuple[int, Sequence[str]]], header: Sequence[str] | None, lenient: bool
) -> Numbered:
    rows = iter(rows)
    if header is None:
        header = [name.strip() for name in next(rows, (0, ()))[1]]
        if len(set(header)) != len(header):
            raise HeadwiseError(f"{path}:1: column names {header}", "a first line that names each column once")
    for line, values in rows:
        if values == [""] and len(header) > 1:
            continue  # an empty line, not an empty text
        if len(values) == len(header):
            yield line, dict(zip(header, values))
        elif lenient:
            yield line, None
        else:
            expected = f"{len(header)} ({', '.join(header)})"
            other = len(header) == 1 and next((mark for mark in ";\t|" if mark in header[0]), None)
            hint = f"columns are parted by {other!r} there" if other else "look for a tab or quote out of place"
            raise HeadwiseError(f"{path}:{line}: {len(values)} columns", expected, hint)


def read_tsv(
    path: Path, header: Sequence[str] | None = None, encoding: str = "utf-8", lenient: bool = False
) -> Numbered:
    """Tab-separated columns without quoting, as GLUE's files; ``lenient`` leaves broken lines out (counted)."""
    rows = ((number, line.split("\t")) for number, line in text_lines(path, encoding))
    return _rows_of(path, rows, header, lenient)


def write_tsv(path: Path, records: Sequence[Record], header: Sequence[str] | None = None) -> Path:
    names = list(header or records[0])
    lines = [] if header else ["\t".join(names)]
    for record in records:
        values = [str(record[name]) for name in names]
        if any(mark in value for value in values for mark in "\t\n\r"):
            raise HeadwiseError(f"a tab or line break in {values}", "plain text", "write csv or jsonl instead")
        lines.append("\t".join(values))
    return store.write(path, "".join(f"{line}\n" for line in lines))


def read_csv(
    path: Path, header: Sequence[str] | None = None, encoding: str = "utf-8", delimiter: str = ","
) -> Numbered:
    """Comma-separated columns with the usual quoting; AG's News has no header line."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(opened(path, encoding, newline=""), delimiter=delimiter, strict=True)

    def rows() -> Iterator[tuple[int, list[str]]]:
        try:
            for values in reader:
                if values:
                    yield reader.line_num, values
        except csv.Error as error:
            raise HeadwiseError(f"{path}:{reader.line_num}: {error}", "comma-separated values") from None

    return _rows_of(path, rows(), header, lenient=False)


def write_csv(path: Path, records: Sequence[Record], header: Sequence[str] | None = None) -> Path:
    names = list(header or records[0])
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    if not header:
        writer.writerow(names)
    writer.writerows([record[name] for name in names] for record in records)
    return store.write(path, out.getvalue())


def read_jsonl(path: Path) -> Numbered:
    """One JSON object per line."""
    for number, line in text_lines(path):
        if not line.strip():
            continue
        try:
            record = _json(line)
        except (ValueError, RecursionError) as error:
            raise HeadwiseError(f"{path}:{number}: {error}", "one JSON object per line") from None
        if not isinstance(record, dict):
            raise HeadwiseError(f"{path}:{number}: a {type(record).__name__}", "one JSON object per line")
        yield number, record


def _json(text: str) -> Any:
    """What a text says; half of a surrogate pair, which only an escape can say, is no text for a tokenizer."""
    value = json.loads(text)
    if "\\u" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def write_jsonl(path: Path, records: Sequence[Record]) -> Path:
    return store.write(path, "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records))


def read_parquet(path: Path, columns: Sequence[str] | None = None, classes: bool = False) -> Numbered:
    """A parquet table; numbers are rows, from 1. ``classes`` puts the names of a ClassLabel for its numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    if path.is_dir():
        raise HeadwiseError(f"{path} is a directory", "a parquet file")
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        table = file.read(columns=[name for name in columns if name in names] if columns else None)
    except FileNotFoundError:
        raise HeadwiseError(f"no file {path}") from None
    except (pa.ArrowException, OSError) as error:
        raise HeadwiseError(f"{path} is not readable as parquet ({error})") from None
    return _decoded_rows(table, class_names(path) if classes else {})


def read_arrow(path: Path, columns: Sequence[str] | None = None, classes: bool = True) -> Numbered:
    """A file of `datasets.save_to_disk`; numbers are rows, from 1."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            table = stream.read_all()
    except (pa.ArrowException, OSError) as error:
        raise HeadwiseError(f"{path} is not readable as arrow ({error})") from None
    kept = [name for name in columns if name in table.column_names] if columns else table.column_names
    return _decoded_rows(table.select(kept), class_names(path) if classes else {})


def _decoded_rows(table: Any, names: dict[str, list[str]]) -> Numbered:
    """Records of a table; those whose label is hidden (-1) are skipped."""
    for number, record in enumerate(table.to_pylist(), 1):
        if names and any(record.get(column) == -1 for column in names):
            continue
        yield number, decoded(record, names)


def class_names(path: Path) -> dict[str, list[str]]:
    """The names behind the numbers of ClassLabel columns, as `datasets` writes them into parquet and arrow files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        metadata = pq.read_schema(path).metadata
    else:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            metadata = stream.schema.metadata
    written = json.loads((metadata or {}).get(b"huggingface", b"{}"))
    features = written.get("info", {}).get("features") or {}
    by_column = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and inner.get("names"):
            by_column[column] = list(inner["names"])
    return by_column


def decoded(record: Record, names: Mapping[str, list[str]]) -> Record:
    """The record with the names of its classes for their numbers."""
    return {**record, **{column: _named(record[column], words) for column, words in names.items() if column in record}}


def _named(value: Any, words: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(item, words) for item in value]
    whole = isinstance(value, int) and not isinstance(value, bool)
    return words[value] if whole and 0 <= value < len(words) else value


def write_parquet(path: Path, records: Sequence[Record]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(records)), sink, compression="zstd")
    return store.write(path, sink.getvalue().to_pybytes())


def read_lines(path: Path, pattern: str | None = None, encoding: str = "utf-8") -> Numbered:
    """One text per line; its label is the file's suffix (``rt-polarity.pos``) or what ``pattern`` names."""
    form = re.compile(pattern, re.DOTALL) if pattern else None
    for number, line in text_lines(path, encoding):
        if form is None:
            yield number, {"text": line, "label": Path(path).suffix.removeprefix(".")}
        elif match := form.fullmatch(line):
            yield number, match.groupdict()
        else:
            raise HeadwiseError(f"{path}:{number}: {line[:60]!r}", f"a line of the form {pattern}")


def write_lines(path: Path, records: Sequence[Record], template: str = "{text}") -> Path:
    return store.write(path, "".join(f"{template.format(**record)}\n" for record in records))


def read_folders(path: Path, labels: Sequence[str] = (), encoding: str = "utf-8") -> Numbered:
    """A folder per label with one text per file, as IMDB; ``labels`` passes over other folders (``unsup``)."""
    for number, (label, file) in enumerate(_labelled_files(path, (".txt",), labels), 1):
        yield number, {"id": file.stem, "text": read_text(file, encoding), "label": label}


def write_folders(path: Path, records: Sequence[Record]) -> Path:
    for record in records:
        for name in (record["label"], record["id"]):
            if Path(name).name != name or name.startswith("."):
                raise HeadwiseError(f"{name!r} as the name of a file", "a plain name, no path")
        store.write(Path(path) / record["label"] / f"{record['id']}.txt", record["text"])
    return Path(path)


def read_pictures(path: Path) -> Numbered:
    """A folder per label with pictures in it."""
    kinds = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
    for number, (label, file) in enumerate(_labelled_files(path, kinds), 1):
        yield number, {"path": str(file), "label": label}


def read_sounds(path: Path) -> Numbered:
    """A folder per label with recordings in it."""
    for number, (label, file) in enumerate(_labelled_files(path, (".wav",)), 1):
        yield number, {"path": str(file), "label": label}


def _labelled_files(path: Path, suffixes: tuple[str, ...], labels: Sequence[str] = ()) -> Iterator[tuple[str, Path]]:
    path = Path(path)
    if not path.is_dir():
        raise HeadwiseError(f"no folder {path}", "a folder with one folder per label")
    for folder in sorted(
        child for child in path.iterdir() if child.is_dir() and child.name in (labels or (child.name,))
    ):
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in suffixes)
        yield from ((folder.name, file) for file in files)


def read_squad(path: Path) -> Numbered:
    """SQuAD's json (XQuAD, MLQA and TyDi-QA use it too); numbers count the questions."""
    text = read_text(path)
    try:
        articles = _json(text)["data"]
        number = 0
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    number += 1
                    yield number, _question(question, paragraph["context"], article.get("title"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HeadwiseError(
            f"{path}: {type(error).__name__} {error}", "SQuAD json: data, paragraphs, qas, answers"
        ) from None


def _question(question: Record, context: str, title: str | None) -> Record:
    answers = question["answers"]
    return {
        "id": str(question["id"]),
        "question": question["question"],
        "context": context,
        "answers": [answer["text"] for answer in answers],
        "starts": [answer["answer_start"] for answer in answers],
        "title": title,
    }


def write_squad(path: Path, records: Sequence[Record]) -> Path:
    articles = [
        {
            "title": record.get("title"),
            "paragraphs": [{"context": record["context"], "qas": [_packed(record)]}],
        }
        for record in records
    ]
    return store.write(path, json.dumps({"version": "1.1", "data": articles}, ensure_ascii=False))


def _packed(record: Record) -> Record:
    answers = [
        {"text": text, "answer_start": start} for text, start in zip(record["answers"], record["starts"], strict=True)
    ]
    return {"id": record["id"], "question": record["question"], "answers": answers}


def _no_writer(path: Path, records: Sequence[Record]) -> Path:
    raise HeadwiseError(f"{path} is of a format that is only read", "csv, tsv, jsonl or parquet")


formats.add("tsv", Format(read_tsv, write_tsv))
formats.add("csv", Format(read_csv, write_csv))
formats.add("jsonl", Format(read_jsonl, write_jsonl))
formats.add("parquet", Format(read_parquet, write_parquet, columns=True))
formats.add("arrow", Format(read_arrow, _no_writer, columns=True))
formats.add("lines", Format(read_lines, write_lines))
formats.add("folders", Format(read_folders, write_folders))
formats.add("pictures", Format(read_pictures, _no_writer))
formats.add("sounds", Format(read_sounds, _no_writer))
formats.add("squad", Format(read_squad, write_squad))
