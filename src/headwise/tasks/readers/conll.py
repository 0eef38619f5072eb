"""Annotated sentences in files: CoNLL-U, CoNLL-2003 columns, CoNLL-2012 and bracketed trees (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from headwise.errors import HeadwiseError
from headwise.io import files as store
from headwise.tasks.metrics import bio_spans
from headwise.tasks.readers import brackets
from headwise.tasks.readers.formats import Format, Numbered, Record, read_text, text_lines

UD = ("words", "lemmas", "upos", "xpos", "feats", "heads", "deprels")  # columns 2-8 of CoNLL-U
Lines = list[tuple[int, str]]


def blocks(path: Path, encoding: str = "utf-8") -> Iterator[Lines]:
    """Runs of lines between empty lines."""
    block: Lines = []
    for number, line in text_lines(path, encoding):
        if line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def read_conllu(path: Path) -> Numbered:
    """Universal Dependencies' CoNLL-U; multi-word ranges and empty nodes are passed over."""
    for block in blocks(path):
        record: Record = {name: [] for name in UD}
        for number, line in block:
            if line.startswith("#"):
                _comment(line, record)
                continue
            cells = line.split("\t")
            if len(cells) != 10:
                raise HeadwiseError(f"{path}:{number}: {len(cells)} columns", "the 10 columns of CoNLL-U, between tabs")
            if _is_number(cells[0]):
                _word(path, number, cells, record)
            elif not all(map(_is_number, re.split("[-.]", cells[0], maxsplit=1))):
                expected = "a word's number, a range 1-2 or an empty node 1.1"
                raise HeadwiseError(f"{path}:{number}: {cells[0]!r} in the first column", expected)
        if record["words"]:
            yield block[0][0], record


def _comment(line: str, record: Record) -> None:
    name, mark, value = line[1:].partition("=")
    if mark and name.strip() in ("sent_id", "text"):
        record[name.strip()] = value.removeprefix(" ")


def _word(path: Path, number: int, cells: list[str], record: Record) -> None:
    if int(cells[0]) != len(record["words"]) + 1:
        raise HeadwiseError(f"{path}:{number}: word number {cells[0]}", str(len(record["words"]) + 1))
    if not _is_number(cells[6]):
        raise HeadwiseError(f"{path}:{number}: head {cells[6]!r}", "the number of a word, or 0")
    for name, cell in zip(UD, cells[1:8]):
        record[name].append(int(cell) if name == "heads" else cell)


def _is_number(cell: str) -> bool:
    return cell.isdecimal() and len(cell) < 10


def write_conllu(path: Path, records: Sequence[Record]) -> Path:
    """What a record lacks is written as ``_``."""
    out = []
    for record in records:
        out += [f"# {name} = {record[name]}" for name in ("sent_id", "text") if name in record]
        for i in range(len(record["words"])):
            cells = [str(record[name][i]) if name in record else "_" for name in UD]
            if any(re.search(r"[\t\n\r]", cell) or not cell for cell in cells):
                raise HeadwiseError(f"a tab, line break or nothing in {cells}", "words of CoNLL-U")
            out.append("\t".join([str(i + 1), *cells, "_", "_"]))
        out.append("")
    return store.write(path, "".join(f"{line}\n" for line in out))


def read_columns(
    path: Path, label: int = -1, separator: str | None = None, prefix: str = "", iob1: bool = False
) -> Numbered:
    """A word per line with its label in the last column, as CoNLL-2003, WNUT-17 and PAN-X.

    Args:
        label: the label's column.
        separator: what stands between columns; None is any white space.
        prefix: what to take off each word (``en:`` in PAN-X).
        iob1: CoNLL-2003's own tags, where ``B-`` only parts two neighbours, are made BIO.
    """
    for block in blocks(path):
        lines = [(number, line.split(separator)) for number, line in block if not line.startswith("-DOCSTART-")]
        for number, cells in lines:
            if len(cells) < 2:
                raise HeadwiseError(f"{path}:{number}: {len(cells)} column", "a word and its label on each line")
        labels = [cells[label] for _, cells in lines]
        if lines:
            words = [cells[0].removeprefix(prefix) for _, cells in lines]
            yield block[0][0], {"words": words, "labels": bio(labels) if iob1 else labels}


def write_columns(path: Path, records: Sequence[Record], separator: str = "\t", prefix: str = "") -> Path:
    out = []
    for record in records:
        for word, label in zip(record["words"], record["labels"], strict=True):
            if not word or re.search(r"\s", word + label):
                raise HeadwiseError(f"word {word!r} with label {label!r}", "neither empty nor with spaces in it")
            out.append(f"{prefix}{word}{separator}{label}\n")
        out.append("\n")
    return store.write(path, "".join(out))


def bio(labels: Sequence[str]) -> list[str]:
    """Tags where an entity may begin with ``I-``, as BIO.

    Example:
        >>> bio(["I-PER", "I-PER", "B-PER", "O", "I-LOC"])
        ['B-PER', 'I-PER', 'B-PER', 'O', 'B-LOC']
    """
    out, before = [], "O"
    for label in labels:
        begins = label.startswith("I-") and before[2:] != label[2:]
        out.append("B" + label[1:] if begins else label)
        before = label
    return out


def read_conll2012(path: Path) -> Numbered:
    """OntoNotes as CoNLL-2012: words, tags, trees, entities and predicate-argument frames."""
    for block in blocks(path):
        lines = [(number, line.split()) for number, line in block if not line.startswith("#")]
        if not lines:
            continue
        widths = {len(cells) for _, cells in lines}
        if len(widths) > 1 or min(widths) < 12:
            raise HeadwiseError(
                f"{path}:{lines[0][0]}: lines of {sorted(widths)} columns", "12 columns or more, the same in a sentence"
            )
        try:
            yield lines[0][0], _sentence([cells for _, cells in lines])
        except HeadwiseError as error:
            raise HeadwiseError(f"{path}:{lines[0][0]}: {error}") from None


def _sentence(rows: list[list[str]]) -> Record:
    words = [brackets.unescape(row[3]) for row in rows]
    bits = "".join(row[5].replace("*", f"({row[4]} {brackets.escape(row[3])})") for row in rows)
    entities = ["O"] * len(rows)
    for start, end, label in spans([row[10] for row in rows]):
        entities[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
    predicates = [i for i, row in enumerate(rows) if row[7] != "-"]
    columns = [spans([row[j] for row in rows]) for j in range(11, len(rows[0]) - 1)]
    if len(columns) != len(predicates):
        raise HeadwiseError(f"{len(predicates)} predicates and {len(columns)} columns of arguments", "one column each")
    frames = [_frame(rows, predicate, column) for predicate, column in zip(predicates, columns)]
    tree = brackets.write(brackets.parse(bits))
    return {"words": words, "xpos": [row[4] for row in rows], "tree": tree, "ner": entities, "frames": frames}


def _frame(rows: list[list[str]], predicate: int, column: list[tuple[int, int, str]]) -> Record:
    arguments = [[start, end, role] for start, end, role in column if role != "V"]
    return {"predicate": predicate, "roleset": f"{rows[predicate][6]}.{rows[predicate][7]}", "arguments": arguments}


def spans(cells: Sequence[str]) -> list[tuple[int, int, str]]:
    """The spans of a column such as ``(ARG0*  *)  (V*)  *``, end exclusive, by start."""
    closed, stack = [], []
    for i, cell in enumerate(cells):
        for piece in re.findall(r"\([^()*]+|\)", cell):
            if piece != ")":
                stack.append((i, piece[1:]))
            elif stack:
                start, label = stack.pop()
                closed.append((start, i + 1, label))
            else:
                raise HeadwiseError(f"{cell!r} closes a bracket that is not open", "balanced brackets")
    if stack:
        raise HeadwiseError(f"({stack[-1][1]} is never closed", "balanced brackets")
    return sorted(closed)


def write_conll2012(path: Path, records: Sequence[Record]) -> Path:
    out = ["#begin document (headwise); part 000"]
    for record in records:
        words = record["words"]
        bits = _bits(brackets.parse(record["tree"]))
        columns = [_starred(len(words), bio_spans(record["ner"]))]
        lemmas, senses = ["-"] * len(words), ["-"] * len(words)
        for frame in record["frames"]:
            at = frame["predicate"]
            lemmas[at], senses[at] = frame["roleset"].rsplit(".", 1)
            columns.append(_starred(len(words), [*map(tuple, frame["arguments"]), (at, at + 1, "V")]))
        for i, word in enumerate(words):
            fixed = [
                "headwise",
                "0",
                str(i),
                brackets.escape(word),
                record["xpos"][i],
                bits[i],
                lemmas[i],
                senses[i],
                "-",
                "-",
            ]
            out.append(" ".join([*fixed, *(column[i] for column in columns), "-"]))
        out.append("")
    return store.write(path, "".join(f"{line}\n" for line in [*out, "#end document"]))


def _bits(tree: brackets.Node) -> list[str]:
    """A tree cut at its words: ``(TOP(S(NP*``, ``*))``."""
    if tree.word is not None:
        return ["*"]
    bits = [bit for child in tree.children for bit in _bits(child)]
    bits[0] = f"({tree.label}{bits[0]}"
    bits[-1] += ")"
    return bits


def _starred(length: int, closed: Sequence[tuple]) -> list[str]:
    cells = ["*"] * length
    for start, end, label in sorted(closed, key=lambda span: (span[1] - span[0], span[0])):
        cells[start] = f"({label}{cells[start]}"
        cells[end - 1] += ")"
    return cells


def read_trees(path: Path) -> Numbered:
    """Bracketed trees, one per line or spread over lines, without traces and function tags."""
    try:
        for line, node in brackets.parse_all(read_text(path)):
            clean = brackets.cleaned(node)
            if clean is None:
                raise HeadwiseError(f"line {line}: a tree without words", "a tree with words")
            words = brackets.leaves(clean)
            record = {
                "words": [brackets.unescape(leaf.word or "") for leaf in words],
                "xpos": [leaf.label for leaf in words],
            }
            yield line, record | {"tree": brackets.write(clean)}
    except HeadwiseError as error:
        raise HeadwiseError(f"{path}:{error.seen.removeprefix('line ')}", error.expected) from None


def write_trees(path: Path, records: Sequence[Record]) -> Path:
    return store.write(path, "".join(f"{record['tree']}\n" for record in records))


conllu = Format(read_conllu, write_conllu)
columns = Format(read_columns, write_columns)
conll2012 = Format(read_conll2012, write_conll2012)
trees = Format(read_trees, write_trees)
