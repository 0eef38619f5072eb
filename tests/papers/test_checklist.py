"""Every table and figure of the papers is an item, and every item is run by jobs and shown by the page."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from headwise.errors import HeadwiseError
from headwise.experiments.jobs import in_order, perform
from headwise.io.records import Results
from headwise.papers.checklist import checklist, hours, listed, titles
from headwise.papers.pages import differences, pages
from headwise.papers.recipe import Scale, known_as, recipes, tiny_encoder
from headwise.papers.specialization.glue import TESTS
from headwise.tasks import get
from headwise.tasks.catalog.words import PROPERTIES
from headwise.tasks.corpus import sentences

ROWS = 64
SPLITS = ("train", "dev", "test")
NLI = ("entailment", "neutral", "contradiction")
TWO_WAY = ("entailment", "not_entailment")


def write_all(root: Path, languages: Sequence[str] = ("en", "es")) -> Path:
    """All of them under one folder."""
    for write in (_glue, _news, _others, _squad, _senteval, _ontonotes, _retrieval):
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


def _retrieval(root: Path) -> None:
    """Tatoeba as LASER has it, and BUCC with identifiers: of a side, every second sentence has its own copy."""
    (root / "tatoeba").mkdir(parents=True)
    (root / "bucc2018").mkdir()
    same = list(dict.fromkeys(texts("tatoeba", 4 * ROWS)))[:ROWS]
    for side in ("spa", "eng"):
        (root / "tatoeba" / f"tatoeba.spa-eng.{side}").write_text("".join(f"{text}\n" for text in same))
    for side, texts_ in (("es", same[::2] + same[1::4]), ("en", same[::2] + same[3::4])):
        lines = [f"{side}-{i:06d}\t{text}\n" for i, text in enumerate(texts_)]
        (root / "bucc2018" / f"es-en.dev.{side}").write_text("".join(lines))
    gold = [f"es-{i:06d}\ten-{i:06d}\n" for i in range(len(same[::2]))]
    (root / "bucc2018" / "es-en.dev.gold").write_text("".join(gold))


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


ROOT = Path(__file__).parents[2]
PAPERS = ("anatomy", "mesh", "specialization", "stem_cell")
EXPECTED = {
    "anatomy": [*(f"table-{i}" for i in range(1, 6)), *(f"figure-{i}" for i in range(3, 8))],
    "mesh": ["table-1", "table-2"],
    "specialization": [*(f"table-{i}" for i in range(1, 14)), *(f"figure-{i}" for i in range(2, 11)), "appendix-f"],
    "stem_cell": ["table-1", "table-2", *(f"figure-{i}" for i in range(1, 5))],
}


@pytest.mark.parametrize("name", PAPERS)
def test_every_table_and_figure_is_an_item(name):
    tags = [item.tag for item in recipes[name].items]
    assert set(EXPECTED[name]) <= set(tags) and len(tags) == len(set(tags))


@pytest.mark.parametrize("name", PAPERS)
def test_items_name_parts_of_the_recipe_and_all_of_them(name):
    recipe = recipes[name]
    parts = {part for item in recipe.items for part in item.parts}
    assert parts == set(recipe.build.parts)
    for item in recipe.items:
        assert item.parts or item.missing or item.titles, item.tag
        jobs = recipe.jobs(Scale("smoke"), [item.tag]) if item.parts else []
        assert bool(jobs) == bool(set(item.parts) - {"submission", "retrieval"}), item.tag
        assert all(hours(job) >= 0 for job in jobs)


@pytest.mark.parametrize("name", PAPERS)
def test_the_jobs_of_all_items_are_the_recipe(name):
    recipe, scale = recipes[name], Scale("smoke")
    every = {job.key for job in recipe.jobs(scale)}
    assert every == {job.key for item in recipe.items if item.parts for job in recipe.jobs(scale, [item.tag])}
    with pytest.raises(HeadwiseError, match="item of this paper"):
        recipe.jobs(scale, ["table-99"])


@pytest.mark.parametrize("name", PAPERS)
def test_titles_of_items_are_titles_of_the_page(name):
    """What was run is on the page under the titles the items name; what was not is waiting."""
    recipe = recipes[name]
    shown = titles(recipe, Results(ROOT / "results" / f"{name}.parquet"))
    rows = {row["item"]: row for row in listed(recipe, Scale("smoke"), ROOT / "results")}
    for item in recipe.items:
        found = [title for title in shown if item.titles and title.startswith(item.titles)]
        expected = "run" if found else "registered" if item.parts else "cannot"
        assert rows[item.tag]["status"].startswith(expected), item.tag


def test_the_checklist_is_up_to_date(tmp_path):
    rows = [row for name in recipes for row in listed(recipes[name], Scale("smoke"), ROOT / "results")]
    written = checklist(rows, tmp_path).read_text()
    assert written == (ROOT / "docs" / "results" / "checklist.md").read_text()
    assert all(re.search(rf"\| {name} \| {tag} \|", written) for name in PAPERS for tag in EXPECTED[name])


@pytest.mark.parametrize("name", PAPERS)
def test_settings_that_differ_come_from_the_sizes(name):
    recipe = recipes[name]
    (settings, others) = differences(recipe).tables
    assert len(others["rows"]) == len(recipe.differences) >= 6
    for setting, paper, *here in settings["rows"]:
        assert any(value != paper for value in here), setting
    known = {item.tag for item in recipe.items}
    assert {each.row for each in recipe.differences} - {""} <= known


def test_plan_flags_change_every_training_and_nothing_else():
    recipe = recipes["specialization"]
    plain, changed = (recipe.jobs(Scale("smoke", plan=plan)) for plan in ({}, {"precision": "bf16"}))
    assert [job.title for job in plain] == [job.title for job in changed]
    for before, after in zip(plain, changed):
        plan = after.config.get("plan")
        if after.work == "train" and plan:
            assert plan["precision"] == "bf16" and {**plan, "precision": "fp32"} == before.config["plan"]


def test_settings_change_the_size_alone():
    asked = {"dev": 7, "inner": {"steps": 1}, "shots": [2, 3], "thirds": 1}
    size = recipes["mesh"].size(Scale("smoke", settings=asked))
    before = recipes["mesh"].size(Scale("smoke"))
    assert (size.dev, size.shots, size.thirds) == (7, (2, 3), 1) and size.inner == {**before.inner, "steps": 1}
    assert replace(size, dev=before.dev, shots=before.shots, thirds=before.thirds, inner=before.inner) == before
    for wrong in ({"plan": {"lr": 1}}, {"nothing": 1}, {"sets": "two"}):
        with pytest.raises(HeadwiseError):
            recipes["mesh"].size(Scale("smoke", settings=wrong))


@pytest.mark.parametrize(
    ("name", "folder", "known"),
    [
        ("bert-base-uncased", "models/bert-base-uncased", "bert-base"),
        ("x", "google-bert/bert-base-uncased", "bert-base"),
        ("bert-large-uncased", "google-bert/bert-large-uncased", "bert-large"),
        ("openai-gpt", "openai-community/openai-gpt", "gpt"),
        ("minilm-l6", "somewhere/minilm", "minilm-l6"),
    ],
)
def test_models_are_known_by_their_hub_and_folder_names(name, folder, known):
    assert known_as(name, folder, recipes["specialization"].hub) == known


LAYOUTS_PAPERS = ("specialization", "anatomy", "stem_cell", "mesh")
PLAN = {"steps": 3, "epochs": 1, "batch_size": 24, "evaluate_every": 0, "checkpoint_every": 0, "patience": None}
FEWER = {  # amounts alone: tasks, splits and kinds of jobs are those of the paper
    "specialization": {
        **{"fractions": (0.3, 0.5), "examples": 16, "dev": 24, "estimate": 8, "draws": 3, "null_dev": 16},
        **{"sentences": 24, "onto": {"steps": 2}, "shots": (4,), "few_seeds": 2, "few_dev": 16, "max_length": 24},
        **{"alphas": (0.1, 0.3), "deltas": (0.1, 0.3), "grid": ((0.1, 0.15), (0.1, 0.3))},
        **{"estimators": ("gradient", "attribution", "integrated_gradients", "shapley", "random")},
        **{"own": ({},), "conditions": ({"schedule": "constant"},)},
    },
    "anatomy": {"protocol": "sklearn", "options": {"l2": [1e-2]}, "limit": 96, "tuning_limit": 48, "max_length": 24},
    "stem_cell": {"test": 16, "probe": 24, "max_length": 24, "gate_plan": {}},
    "mesh": {
        **{"inner": {"steps": 1, "support": 8, "rates": 1e-2}, "recovery": {"steps": 2}, "examples": 16, "dev": 16},
        **{"fractions": (0.3,), "pruned": (0.3,), "shots": (4, 8), "sets": 2, "adapt_dev": 16, "max_length": 32},
        "adapt": {"steps": 1, "tuning": 1, "rates": [1e-2]},
    },
}
SEEDS = {
    "appendix-a.4": (0,),
    "control": (0,),
    "along": (0,),
    "figure-1": (0, 1, 2),
}  # others two, for tests over seeds
TAGS = [(name, item.tag) for name in LAYOUTS_PAPERS for item in recipes[name].items if item.parts]
QUICK = {("specialization", "table-1"), ("specialization", "table-2"), ("anatomy", "table-1"), ("anatomy", "table-2")}
SHARDS = [pytest.param(*each, marks=[] if each in QUICK else [pytest.mark.slow]) for each in TAGS]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder for each paper: what two tags share is run once."""
    root = tmp_path_factory.mktemp("runs")
    return {name: root / name for name in LAYOUTS_PAPERS}


def shrunk(name: str):
    """A paper's recipe with the tasks of its published size, and fewer of everything else."""
    recipe = recipes[name]
    return replace(recipe, sizes={**recipe.sizes, "full": replace(recipe.sizes["full"], **FEWER[name])})


def scale(data, tag: str) -> Scale:
    return Scale("full", {"tiny": str(tiny_encoder())}, str(data), SEEDS.get(tag, (0, 1)), PLAN)


@pytest.mark.parametrize("name", LAYOUTS_PAPERS)
def test_every_task_of_a_paper_is_read_from_its_published_layout(name, data):
    """Rows of the splits that train and measure, from files alone; what no split has fails here."""
    jobs = in_order(shrunk(name).jobs(scale(data, "")))
    named = {"tasks": [], "pairs": [], "task": []}
    for job in jobs:
        for field, found in named.items():
            value = job.config.get(field)
            found += [value] if isinstance(value, str) else list(value or ())
            if isinstance(value, dict):
                assert all(value.values()), f"{job.title}: {[n for n, digest in value.items() if not digest]} not found"
    for task in {*named["tasks"], *named["task"]} - {""}:
        assert get(task, data, sources=("folder",)).rows("dev"), task
    assert sum(map(len, named.values())) > 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "tag"), SHARDS)
def test_every_item_runs_and_is_on_the_page(name, tag, data, runs, monkeypatch, tmp_path):
    for test, told in list(TESTS.items()):
        monkeypatch.setitem(TESTS, test, told._replace(rows=ROWS))
    recipe = shrunk(name)
    item = next(item for item in recipe.items if item.tag == tag)
    jobs = in_order(recipe.jobs(scale(data, tag), [tag]))
    for job in jobs:
        perform(job, runs[name], "cpu")
    results = Results(runs[name] / "records")
    assert {job.key for job in jobs} <= {record.key for record in results}
    shown = titles(recipe, results)
    missing = [start for start in item.titles if not any(title.startswith(start) for title in shown)]
    assert not missing, f"{tag} has no {missing} among {shown}"
    tables = [t for part in recipe.parts(results) for t in part.tables if t["title"].startswith(item.titles)]
    for table in tables:
        assert table["rows"] and all(len(row) == len(table["columns"]) for row in table["rows"]), table["title"]
    pages(recipe, results, tmp_path, "command")
    page = (tmp_path / f"{name}.md").read_text()
    assert f"[{tag}]" in page or f"{tag}," in page or f", {tag}]" in page
