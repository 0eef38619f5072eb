"""Every known task as a data literal: kind, metric, labels, published sizes, and where its rows may lie (no torch).

This file has the tasks on one or two texts; ``words`` those on words, trees and answers, and the probes.
"""

from __future__ import annotations

from headwise.registry import Registry
from headwise.tasks.catalog.known import PACKED, Known, blimp, glue, hub, one, parquet, per_split, sizes, table, two
from headwise.tasks.catalog.words import PROBES, QUESTIONS, WORDS
from headwise.tasks.readers.sources import Layout
from headwise.tasks.task import Task

NLI = ("entailment", "neutral", "contradiction")
POLARITY = ("negative", "positive")
POLAR = {"neg": "negative", "pos": "positive"}
LABELLED = {"train": "train", "dev": "validation"}  # GLUE's hidden test sets stay out
NO_DEV = {"train": "train", "test": "test"}
SENTENCES = two("sentence1", "sentence2")
XNLI, PAWSX = "ar bg de el en es fr hi ru sw th tr ur vi zh", "de en es fr ja ko zh"


def text(name: str, labels: tuple[str, ...], *layouts: Layout, metric: str = "accuracy", **rest) -> Known:
    """A task that classifies a text or a pair."""
    return Known(name, "classify", metric, layouts, labels, **rest)


GLUE = (
    text(
        "cola",
        ("unacceptable", "acceptable"),
        parquet("cola"),
        glue("CoLA", one("text"), "source", "label", "mark", "text"),
        metric="mcc",
        hub=hub("nyu-mll/glue", "cola", one("sentence"), files=LABELLED),
        sizes=sizes(8551, 1043),
    ),
    text(
        "sst2",
        POLARITY,
        parquet("sst2"),
        glue("SST-2", one("sentence")),
        hub=hub("nyu-mll/glue", "sst2", one("sentence"), files=LABELLED),
        sizes=sizes(67349, 872, 1821),
    ),
    text(
        "sst2_sentences", POLARITY, parquet("sst2_sentences"), sizes=sizes(6920, 872, 1821), note="whole sentences only"
    ),
    text(
        "mrpc",
        ("not_equivalent", "equivalent"),
        parquet("mrpc"),
        glue("MRPC", two("#1 String", "#2 String", "Quality")),
        metric="f1",
        hub=hub("nyu-mll/glue", "mrpc", SENTENCES),
        sizes=sizes(3668, 408, 1725),
    ),
    text(
        "qqp",
        ("not_duplicate", "duplicate"),
        parquet("qqp"),
        glue("QQP", two("question1", "question2", "is_duplicate"), lenient=True),  # its train.tsv has broken lines
        metric="f1",
        hub=hub("nyu-mll/glue", "qqp", two("question1", "question2"), files=LABELLED),
        sizes=sizes(363846, 40430),
    ),
    text(
        "mnli",
        NLI,
        parquet("mnli", odd={"dev": "dev_matched"}),
        glue("MNLI", two("sentence1", "sentence2", "gold_label"), dev="dev_matched"),
        hub=hub(
            "nyu-mll/glue", "mnli", two("premise", "hypothesis"), files={"train": "train", "dev": "validation_matched"}
        ),
        sizes=sizes(392702, 9815),
    ),
    text(
        "mnli_mm",
        NLI,
        parquet("mnli_mm", odd={"train": "mnli/train", "dev": "mnli/dev_mismatched_1k"}),
        glue("MNLI", two("sentence1", "sentence2", "gold_label"), dev="dev_mismatched"),
        hub=hub(
            "nyu-mll/glue",
            "mnli",
            two("premise", "hypothesis"),
            files={"train": "train", "dev": "validation_mismatched"},
        ),
        sizes=sizes(392702, 9832),
        note="dev of other genres than train",
    ),
    text(
        "qnli",
        ("entailment", "not_entailment"),
        parquet("qnli", odd={"train": "train_squad"}),
        glue("QNLI", two("question", "sentence")),
        hub=hub("nyu-mll/glue", "qnli", two("question", "sentence"), files=LABELLED),
        sizes=sizes(104743, 5463),
    ),
    text(
        "rte",
        ("entailment", "not_entailment"),
        parquet("rte"),
        glue("RTE", SENTENCES),
        hub=hub("nyu-mll/glue", "rte", SENTENCES, files=LABELLED),
        sizes=sizes(2490, 277),
    ),
    Known(
        "stsb",
        "regress",
        "spearman",
        (parquet("stsb"), glue("STS-B", two("sentence1", "sentence2", "score"))),
        hub=hub("nyu-mll/glue", "stsb", SENTENCES, files=LABELLED),
        sizes=sizes(5749, 1500, 1379),
        parallel="stsb",
    ),
    Known(
        "stsb_es",
        "regress",
        "spearman",
        (parquet("stsb_es"), table(per_split("stsb-es-{split}.csv"), two("a", "b", "c"), "a", "b", "c", format="csv")),
        hub=hub(
            "PhilipMay/stsb_multi_mt",
            "es",
            two("sentence1", "sentence2", "similarity_score"),
            files=per_split("{split}"),
        ),
        language="es",
        sizes=sizes(5749, 1500, 1379),
        parallel="stsb",
        note="translated by machine",
    ),
)

AG = ("World", "Sports", "Business", "Sci/Tech")
AG_CSV = {"train": "ag_news_csv/train.csv", "test": "ag_news_csv/test.csv"}
AG_PAIR = two(("news1-sentence1", "news1-sentence2"), ("news2-sentence1", "news2-sentence2"))
SICK = {"train": "SICK/SICK_train.txt", "dev": "SICK/SICK_trial.txt", "test": "SICK/SICK_test_annotated.txt"}
NEWS_AND_OTHERS = (
    text(
        "agnews",
        AG,
        parquet("agnews"),
        table(
            AG_CSV,
            one(("title", "description")),
            *("label", "title", "description"),
            format="csv",
            names={str(i): name for i, name in enumerate(AG, 1)},
        ),
        hub=hub("fancyzhx/ag_news", None, one("text"), files=NO_DEV),
        sizes=sizes(120000, None, 7600),
        dev="test",
    ),
    text(
        "agpair",
        ("different", "same"),
        parquet("agpair"),
        table({"train": "AGPair_data/train.tsv", "test": "AGPair_data/test.tsv"}, AG_PAIR),
        sizes=sizes(120000, None, 7600),
        dev="test",
        made_from="agnews",
    ),
    text(
        "scitail",
        ("entails", "neutral"),
        parquet("scitail"),
        table(per_split("SciTailV1.1/tsv_format/scitail_1.0_{split}.tsv"), two("a", "b"), "a", "b", "label"),
        hub=hub("allenai/scitail", "tsv_format", two("premise", "hypothesis")),
        sizes=sizes(23596, 1304, 2126),
    ),
    text(
        "imdb",
        POLARITY,
        parquet("imdb"),
        Layout("folders", per_split("aclImdb/{split}", dev=""), one("text"), POLAR, {"labels": tuple(POLAR)}),
        hub=hub("stanfordnlp/imdb", None, one("text"), names=POLAR, files=NO_DEV),
        sizes=sizes(25000, None, 25000),
        dev="test",
    ),
    text(
        "snli",
        NLI,
        parquet("snli", odd={"train": "train_from_dev"}),
        Layout(
            "jsonl",
            per_split("snli_1.0/snli_1.0_{split}.jsonl"),
            two("sentence1", "sentence2", "gold_label"),
            leave_out={"gold_label": ("-",)},  # the annotators did not agree
        ),
        hub=hub("stanfordnlp/snli", None, two("premise", "hypothesis"), leave_out={"label": (-1,)}),
        sizes=sizes(549367, 9842, 9824),
        dev="test",
    ),
    text(
        "sick",
        NLI,
        parquet("sick"),
        table(SICK, two("sentence_A", "sentence_B", "entailment_judgment"), names={name.upper(): name for name in NLI}),
        sizes=sizes(4500, 500, 4927),
    ),
    Known(
        "sick_relatedness",
        "regress",
        "spearman",
        (
            parquet("sick", {**PACKED, "label": "relatedness"}),
            table(SICK, two("sentence_A", "sentence_B", "relatedness_score")),
        ),
        sizes=sizes(4500, 500, 4927),
        options={"low": 1.0, "high": 5.0},
    ),
    text(
        "wikiqa",
        ("not_answer", "answer"),
        parquet("wikiqa"),
        sizes=sizes(8672, 1130, 2351),
        note="questions with at least one answer",
    ),
    text(
        "trec",
        ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM"),
        parquet("trec"),
        Layout(
            "lines",
            {"train": "TREC/train_5500.label", "test": "TREC/TREC_10.label"},
            one("text"),
            options={"pattern": r"(?P<label>[A-Z]+):\S+ (?P<text>.*)", "encoding": "latin-1"},
        ),
        hub=hub("CogComp/trec", "default", one("text", "coarse_label"), branch=True, files=NO_DEV),
        sizes=sizes(5452, None, 500),
        dev="test",
    ),
)


def uncut(
    name: str, labels: dict[str, str], stem: str, where: Layout, whole: int | None, packed: tuple[int, int, int]
) -> Known:
    """A set of sentences in a file per label, published without splits."""
    files = {"all": tuple(f"{stem}.{suffix}" for suffix in labels)}
    lines = Layout("lines", files, one("text"), labels, {"encoding": "latin-1"})
    note = "no published split: cut 80/10/10 by a seed"
    layouts = (parquet(name, size=packed), lines)
    return text(
        name, tuple(labels.values()), *layouts, hub=where, sizes={"all": whole} if whole else {}, dev="test", note=note
    )


UNCUT = (
    uncut(
        "mr",
        POLAR,
        "MR/rt-polarity",
        hub("cornell-movie-review-data/rotten_tomatoes", None, one("text"), names=POLAR),
        10662,
        (8529, 1066, 1067),
    ),
    uncut(
        "cr",
        POLAR,
        "CR/custrev",
        hub("SetFit/CR", None, one("text", "label_text"), files=NO_DEV),
        None,
        (3016, 377, 378),
    ),
    uncut(
        "subj",
        {"subjective": "subjective", "objective": "objective"},
        "SUBJ/subj",
        hub("SetFit/subj", None, one("text", "label_text"), files=NO_DEV),
        10000,
        (8000, 1000, 1000),
    ),
)


def xtreme(folder: str, language: str) -> Layout:
    """Files as XTREME's download script leaves them: with the usual quoting, and test sets without labels."""
    files = per_split(f"{folder}/{{split}}-{language}.tsv")
    options = {"header": ("a", "b", "label"), "delimiter": "\t"}
    return Layout("csv", files, two("a", "b"), options=options, hidden={"test": 2})


def translations(folder: str, language: str, labels: tuple[str, ...] = (), **names: str) -> Layout:
    """XTREME's machine translations of training files: both texts, both translated, label."""
    file = f"translate-train/en-{language}-translated.tsv"
    files = {"train": f"xtreme_translations/{folder}/{file}|{folder}/{file}|{folder.lower()}/{file}"}
    header = ("en_a", "en_b", "a", "b", "label")
    options = {"header": header, "lenient": True}  # some of its lines are broken
    return Layout("tsv", files, two("a", "b"), names, options, {"label": labels} if labels else {})


def xnli_translated(language: str) -> Known:
    names = {"contradictory": "contradiction"}
    original = {"train": f"XNLI-MT-1.0/multinli/multinli.train.{language}.tsv"}
    return text(
        f"xnli_translated_{language}",
        NLI,
        translations("XNLI", language, (), **names),
        table(original, two("premise", "hypo"), names=names),
        xtreme("xnli", language),
        hub=hub("facebook/xnli", language, two("premise", "hypothesis"), files={"train": "train"}),
        language=language,
        sizes=sizes(392702),
        dev="train",
        note="MultiNLI translated by machine, for training",
    )


def pawsx_translated(language: str) -> Known:
    return text(
        f"pawsx_translated_{language}",
        ("not_paraphrase", "paraphrase"),
        translations("PAWSX", language, ("0", "1")),
        table({"train": f"x-final/{language}/translated_train.tsv"}, SENTENCES),
        xtreme("pawsx", language),
        hub=hub("google-research-datasets/paws-x", language, SENTENCES, files={"train": "train"}),
        language=language,
        sizes=sizes(49401),
        dev="train",
        note="PAWS translated by machine, for training",
    )


def xnli(language: str) -> Known:
    train = {"train": "mnli/train"} if language == "en" else {}
    return text(
        f"xnli_{language}",
        NLI,
        parquet(f"xnli_{language}", odd=train),
        xtreme("xnli", language),
        table(
            per_split("XNLI-1.0/xnli.{split}.tsv", train=""),
            two("sentence1", "sentence2", "gold_label"),
            where={"language": language},
        ),
        hub=hub("facebook/xnli", language, two("premise", "hypothesis")),
        language=language,
        sizes=sizes(392702, 2490, 5010),
        parallel="xnli",
    )


def pawsx(language: str) -> Known:
    train = "train" if language == "en" else "translated_train"
    return text(
        f"pawsx_{language}",
        ("not_paraphrase", "paraphrase"),
        parquet(f"pawsx_{language}"),
        xtreme("pawsx", language),
        table(per_split(f"x-final/{language}/{{split}}.tsv", train, "dev_2k", "test_2k"), SENTENCES),
        hub=hub("google-research-datasets/paws-x", language, SENTENCES),
        language=language,
        sizes=sizes(49401, 2000, 2000),
        parallel="pawsx",
    )


LANGUAGES = (
    *map(xnli, XNLI.split()),
    *map(pawsx, PAWSX.split()),
    *(xnli_translated(language) for language in XNLI.split() if language != "en"),
    *(pawsx_translated(language) for language in PAWSX.split() if language != "en"),
    text("esxnli_es", NLI, parquet("esxnli_es"), language="es", sizes=sizes(None, None, 2490), dev="test"),
)

catalog: Registry[Known | Task] = Registry("task")
for _entry in (*GLUE, *NEWS_AND_OTHERS, blimp("blimp"), *UNCUT, *LANGUAGES, *WORDS, *QUESTIONS, *PROBES):
    catalog.add(_entry.name, _entry)
