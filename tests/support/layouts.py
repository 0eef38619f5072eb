"""Small files as GLUE, AG's News, SciTail, IMDB, SQuAD, SentEval, XTREME and OntoNotes are published.

Sixty-four rows a split, with labels that words give away, so that a tiny model can learn them.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from headwise.tasks.catalog.words import PROPERTIES
from headwise.tasks.corpus import sentences

ROWS = 64
SPLITS = ("train", "dev", "test")
NLI = ("entailment", "neutral", "contradiction")
TWO_WAY = ("entailment", "not_entailment")


def write_all(root: Path, languages: Sequence[str] = ("en", "es")) -> Path:
    """All of them under one folder."""
    for write in (_glue, _news, _others, _squad, _senteval, _ontonotes):
        write(root)
    for language in languages:
        _xtreme(root, language)
    return root


def texts(seed: object, number: int = ROWS, language: str = "en") -> list[str]:
    """Sentences of the embedded corpus in random order: the tiny encoder knows their words."""
    every = [s.text for s in islice(sentences("es" if language == "es" else "en"), 400)]
    return random.Random(str(seed)).choices(every, k=number)


def table(path: Path, header: Sequence[str] | None, rows: Iterable[Sequence[object]], quoted: bool = False) -> None:
    """A tab-separated file, with the usual quoting or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [list(map(str, row)) for row in ([header] if header else []) + list(rows)]
    if not quoted:
        path.write_text("".join("\t".join(line) + "\n" for line in lines))
        return
    out = io.StringIO(newline="")
    csv.writer(out, delimiter="\t").writerows(lines)
    path.write_text(out.getvalue())


def marked(seed: object, labels: Sequence[str], number: int = ROWS, language: str = "en") -> list[tuple[str, str, str]]:
    """Two texts and a label that their lengths say."""
    a, b = texts((seed, "a"), number, language), texts((seed, "b"), number, language)
    return [(x, y, labels[(len(x) + i) % len(labels)]) for i, (x, y) in enumerate(zip(a, b))]


# -- GLUE


def _glue(root: Path) -> None:
    for split in SPLITS:
        known = split != "test"
        for name, columns, labels, file in (
            ("MRPC", ("#1 String", "#2 String", "Quality"), "01", split),
            ("QQP", ("question1", "question2", "is_duplicate"), "01", split),
            ("QNLI", ("question", "sentence", "label"), TWO_WAY, split),
            ("RTE", ("sentence1", "sentence2", "label"), TWO_WAY, split),
            ("STS-B", ("sentence1", "sentence2", "score"), ("0.5", "2.0", "3.2", "5.0"), split),
            *(
                (
                    "MNLI",
                    ("sentence1", "sentence2", "gold_label"),
                    NLI,
                    "train" if split == "train" else f"{split}_{which}",
                )
                for which in ("matched", "mismatched")
            ),
        ):
            rows = marked((name, file), labels)
            header = ("index", *(columns if known else columns[:2]))
            table(
                root / name / f"{file}.tsv", header, [(i, *(row if known else row[:2])) for i, row in enumerate(rows)]
            )
        single = marked(("SST-2", split), "01")
        header = ("sentence", "label") if known else ("index", "sentence")
        rows = [(a, label) if known else (i, a) for i, (a, _, label) in enumerate(single)]
        table(root / "SST-2" / f"{split}.tsv", header, rows)
        rows = [
            ("gj04", label, "", a) if known else (i, a) for i, (a, _, label) in enumerate(marked(("CoLA", split), "01"))
        ]
        table(root / "CoLA" / f"{split}.tsv", None if known else ("index", "sentence"), rows)
    table(root / "WNLI" / "test.tsv", ("index", "sentence1", "sentence2"), [(i, "a", "b") for i in range(ROWS)])
    diagnostic = [(i, *row[:2]) for i, row in enumerate(marked("AX", NLI))]
    table(root / "diagnostic" / "diagnostic.tsv", ("index", "sentence1", "sentence2"), diagnostic)


# -- AG's News, SciTail, IMDB, SQuAD


def _news(root: Path) -> None:
    (root / "ag_news_csv").mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        rows = [(label, a, b) for a, b, label in marked(("AG", split), "1234", 2 * ROWS)]
        with (root / "ag_news_csv" / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def _others(root: Path) -> None:
    for split in SPLITS:
        rows = marked(("SciTail", split), ("entails", "neutral"))
        table(root / "SciTailV1.1" / "tsv_format" / f"scitail_1.0_{split}.tsv", None, rows)
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            folder = root / "aclImdb" / split / label
            folder.mkdir(parents=True, exist_ok=True)
            for i, text in enumerate(texts(("IMDB", split, label), ROWS // 2)):
                (folder / f"{i}_{1 if label == 'neg' else 9}.txt").write_text(text)


def questions(path: Path, seed: object, language: str = "en", number: int = ROWS) -> None:
    """Questions for a word of their context, in SQuAD's JSON."""
    paragraphs = []
    for i, text in enumerate(texts(seed, number, language)):
        context = f"{text} {text}" if text.endswith(".") else f"{text}. {text}."
        word = context.split()[0]
        asked = {"id": f"{seed}-{i}", "question": context.split(".")[0], "answers": [{"text": word, "answer_start": 0}]}
        paragraphs.append({"context": context, "qas": [asked]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))


def _squad(root: Path) -> None:
    for split in ("train", "dev"):
        questions(root / "squad" / f"{split}-v1.1.json", ("squad", split))


# -- SentEval


def _senteval(root: Path) -> None:
    words = {"past_present": ("PRES", "PAST"), "subj_number": ("NN", "NNS"), "obj_number": ("NN", "NNS")}
    for name, labels in PROPERTIES.items():
        labels = words.get(name) or labels or ("5", "6", "7")
        rows = [
            (part, label, a) for part in ("tr", "va", "te") for a, _, label in marked((name, part), labels, 2 * ROWS)
        ]
        table(root / "probing" / f"{name}.txt", None, rows)


# -- OntoNotes


def _ontonotes(root: Path) -> None:
    """CoNLL-2012 files, and dependencies as they are converted: sentences of three words."""
    for split in SPLITS:
        rng, gold, trees = random.Random(split), [], []
        for i in range(ROWS):
            subject, verb, thing = (rng.choice(w) for w in (("Ana", "Rome"), ("sees", "likes"), ("dogs", "films")))
            entity = ("(PERSON)", "(GPE)")[subject == "Rome"]
            cells = (
                (subject, "NNP", "(TOP(S(NP*)", "-", "-", entity, "(ARG0*)"),
                (verb, "VBZ", "(VP*", verb[:3], "01", "*", "(V*)"),
                (thing, "NNS", "(NP*))))", "-", "-", "*", "(ARG1*)"),
            )
            for j, (word, tag, bit, lemma, sense, named, role) in enumerate(cells):
                gold.append(f"d/{i} 0 {j} {word} {tag} {bit} {lemma} {sense} - - {named} {role} -")
            gold.append("")
            for j, (word, head, label) in enumerate(((subject, 2, "nsubj"), (verb, 0, "root"), (thing, 2, "dobj")), 1):
                trees.append("\t".join([str(j), word, "_", "_", "_", "_", str(head), label, "_", "_"]))
            trees.append("")
        for path, lines in (
            (root / "conll-2012" / f"{split}.conll", gold),
            (root / "ontonotes" / f"{split}.conllu", trees),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")


# -- XTREME, as its download script leaves it, and its translations


def _xtreme(root: Path, language: str) -> None:
    for name, labels, translated in (("xnli", NLI, "XNLI"), ("pawsx", "01", "PAWSX")):
        for split in SPLITS:
            rows = marked((name, language, split), labels, language=language)
            if split == "test":
                table(root / name / f"test-{language}.tsv", None, [row[:2] for row in rows], quoted=True)
            elif split == "dev" or language == "en":
                table(root / name / f"{split}-{language}.tsv", None, rows, quoted=True)
        if language != "en":
            file = root / "xtreme_translations" / translated / "translate-train" / f"en-{language}-translated.tsv"
            both = zip(
                marked((name, "en", "train"), labels), marked((name, language, "train"), labels, language=language)
            )
            table(file, None, [(*english[:2], *other) for english, other in both])
    if language != "en":
        folder = root / "xtreme_translations" / "SQuAD" / "translate-train"
        questions(folder / f"squad.translate.train.en-{language}.json", ("squad", language), language)
    name = f"context-{language}-question-{language}.json"
    questions(root / "mlqa" / "MLQA_V1" / "dev" / f"dev-{name}", ("mlqa", language), language)
    for split in SPLITS:
        blocks = []
        for text in texts(("panx", language, split), language=language):
            tags = ("B-PER", "B-LOC", "B-ORG", "O", "O")
            words = [(word, tags[min(i, 4)] if word[:1].isupper() else "O") for i, word in enumerate(text.split())]
            blocks.append("".join(f"{w}\n" if split == "test" else f"{w}\t{tag}\n" for w, tag in words))
        path = root / "panx" / f"{split}-{language}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(blocks))
