"""Known tasks on words, trees, frames and answers, and the probing tasks, as data literals (no torch)."""

from __future__ import annotations

from headwise.tasks.catalog.known import Known, by_index, hub, one, parquet, per_split, sizes, table
from headwise.tasks.metrics import answer_f1
from headwise.tasks.readers.sources import Layout

ENTITIES = ("PER", "ORG", "LOC")
ONTONOTES = """CARDINAL DATE EVENT FAC GPE LANGUAGE LAW LOC MONEY NORP ORDINAL ORG PERCENT PERSON PRODUCT QUANTITY
    TIME WORK_OF_ART"""
PANX = """af ar bg bn de el en es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr ms my nl pt ru sw ta te th tl tr
    ur vi yo zh"""
UDPOS = "af ar bg de el en es et eu fa fi fr he hi hu id it ja kk ko mr nl pt ru ta te th tl tr ur vi yo zh"
XQUAD, MLQA, TYDI = "ar de el en es hi ro ru th tr vi zh", "ar de en es hi vi zh", "ar bn en fi id ko ru sw te"
TAGS = {"words": "words", "labels": "labels"}
PACKED_TAGS = {"words": "tokens", "labels": "labels"}


PARTS = {  # of a treebank: kind, metric, columns in files, columns on the Hub
    "pos": ("tag", "tag_accuracy", {"labels": "upos"}, {"labels": "upos"}),
    "xpos": ("tag", "tag_accuracy", {"labels": "xpos"}, {"labels": "xpos"}),
    "dep": ("dependencies", "las", {"heads": "heads", "labels": "deprels"}, {"heads": "head", "labels": "deprel"}),
    "all": (
        "treebank",
        "",
        {name: name for name in ("upos", "feats", "heads", "deprels", "tree")},
        {"upos": "upos", "feats": "feats", "heads": "head", "deprels": "deprel"},
    ),
}


def universal(
    code: str, part: str, name: str = "", folder: str = "", odd: dict[str, str] | None = None, **rest
) -> Known:
    """A task from a Universal Dependencies treebank such as ``en_ewt``: ``pos``, ``xpos`` or ``dep``."""
    kind, metric, columns, on_hub = PARTS[part]
    file = f"{code}-ud-{{split}}.conllu"
    files = per_split(f"{file}|{folder or code}/{file}|UD_*/{file}")
    packed = parquet(folder or code, {"words": "tokens", **columns}, odd=odd or {})
    layouts = (packed, Layout("conllu", files, {"words": "words", **columns}))
    where = hub("universal-dependencies/universal_dependencies", code, {"words": "tokens", **on_hub}, branch=True)
    return Known(name or f"ud.{code}.{part}", kind, metric, layouts, hub=where, language=code.split("_")[0], **rest)


def ontonotes() -> tuple[Known, ...]:
    """The five tasks of OntoNotes 5 from CoNLL-2012 files (He and Choi 2021); DEP needs trees converted beforehand."""
    files = {
        split: f"conll-2012/**/{part}/**/*gold_conll|conll-2012/{split}.conll"
        for split, part in (("train", "train"), ("dev", "development"), ("test", "test"))
    }

    def known(name: str, kind: str, metric: str, columns: dict, labels: tuple = ()) -> Known:
        return Known(f"ontonotes_{name}", kind, metric, (Layout("conll2012", files, columns),), labels)

    trees = Layout(
        "conllu", per_split("ontonotes/{split}.conllu"), {"words": "words", "heads": "heads", "labels": "deprels"}
    )
    return (
        known("pos", "tag", "tag_accuracy", {"words": "words", "labels": "xpos"}),
        known("ner", "spans", "span_f1", {"words": "words", "labels": "ner"}, tuple(ONTONOTES.split())),
        known("con", "constituents", "bracket_f1", {"words": "words", "tree": "tree"}),
        known("srl", "frames", "srl_f1", {"words": "words", "frames": "frames"}),
        Known("ontonotes_dep", "dependencies", "las", (trees,)),
    )


def trees(name: str, folder: str, size: tuple = (), **rest) -> Known:
    """Constituents from bracketed trees."""
    files = per_split(f"{folder}/{{split}}.trees|{folder}/{{split}}.mrg|{folder}/{{split}}.ptb|{folder}/{{split}}.txt")
    packed = parquet(folder, {"words": "tokens", "tree": "tree"}, without="tree")
    layouts = (packed, Layout("trees", files, {"words": "words", "tree": "tree"}))
    return Known(name, "constituents", "bracket_f1", layouts, sizes=sizes(*size), **rest)


def entities(name: str, labels: tuple[str, ...], *layouts: Layout, **rest) -> Known:
    return Known(name, "spans", "span_f1", layouts, labels, **rest)


def wikiann(language: str) -> Known:
    options = {"separator": "\t", "prefix": f"{language}:"}
    files = per_split(f"panx/{{split}}-{language}.tsv|panx_dataset/{language}/{{split}}|{language}/{{split}}")
    return entities(
        f"wikiann_{language}",
        ENTITIES,
        parquet(f"wikiann_{language}", PACKED_TAGS),
        Layout("columns", files, TAGS, options=options, hidden={"test": 1}),  # XTREME's test sets have no labels
        hub=hub("unimelb-nlp/wikiann", language, {"words": "tokens", "labels": "ner_tags"}),
        language=language,
        sizes=sizes(20000, 10000, 10000) if language in ("en", "es", "de", "fr", "it", "nl", "pt", "ru") else {},
    )


def udpos(language: str) -> Known:
    files = per_split(f"udpos/{{split}}-{language}.tsv")
    layout = Layout("columns", files, TAGS, options={"separator": "\t"}, hidden={"test": 1})
    note = "XTREME's selection of UD; its test sets have no labels"
    return Known(f"udpos_{language}", "tag", "tag_accuracy", (layout,), language=language, note=note)


def spanish(bank: str, part: str, *size: int) -> Known:
    odd = {"train": "train_from_dev"}
    return universal(f"es_{bank}", part, f"{bank}_es_{part}", f"{bank}_es", odd, sizes=sizes(*size), dev="test")


CONLL2003_FILES = per_split("conll2003/eng.{split}", "train", "testa", "testb")
CONLL2003_TEXT = per_split("conll2003/{split}.txt", "train", "valid", "test")
WNUT_FILES = {"train": "wnut17train.conll", "dev": "emerging.dev.conll", "test": "emerging.test.annotated"}
WORDS = (
    *(
        universal("en_ewt", part, f"ewt_{part}", "ewt", sizes=sizes(12544, 2001, 2077))
        for part in ("pos", "xpos", "dep")
    ),
    trees("ewt_con", "ewt", (12525, 1967, 2056), note="sentences that the trees could be laid over"),
    Known(
        "ewt_srl",
        "frames",
        "srl_f1",
        (parquet("ewt", {"words": "tokens", "frames": "srl"}, without="srl"),),
        sizes=sizes(12525, 1967, 2056),
        note="PropBank over the words of UD",
    ),
    entities(
        "ewt_ner",
        ENTITIES,
        parquet("ewt", {"words": "tokens", "labels": "ner"}, without="ner"),
        Layout("columns", per_split("UNER_English-EWT/en_ewt-ud-{split}.iob2"), {"words": "words", "labels": "labels"}),
        sizes=sizes(12531, 1998, 2074),
    ),
    *(spanish("ancora", part, 14305, 1654, 1721) for part in ("pos", "dep")),
    *(spanish("gsd", part, 14187, 1400, 426) for part in ("pos", "dep")),
    trees("gum_con", "gum_con", (10224, 1575, 1464), note="GUM without its reddit part"),
    trees("ptb_con", "ptb", (39832, 1700, 2416)),
    *ontonotes(),
    entities(
        "conll2003",
        (*ENTITIES, "MISC"),
        parquet("conll2003", PACKED_TAGS),
        Layout("columns", CONLL2003_FILES, TAGS, options={"iob1": True}),
        Layout("columns", CONLL2003_TEXT, TAGS, options={"iob1": True}),
        hub=hub("eriktks/conll2003", "conll2003", {"words": "tokens", "labels": "ner_tags"}, branch=True),
        sizes=sizes(14041, 3250, 3453),
    ),
    entities(
        "wnut17",
        ("corporation", "creative-work", "group", "location", "person", "product"),
        parquet("wnut17", PACKED_TAGS),
        Layout("columns", {s: f"{f}|wnut17/{f}" for s, f in WNUT_FILES.items()}, TAGS, options={"separator": "\t"}),
        hub=hub("leondz/wnut_17", "wnut_17", {"words": "tokens", "labels": "ner_tags"}, branch=True),
        sizes=sizes(3394, 1009, 1287),
    ),
    *map(wikiann, PANX.split()),
    *map(udpos, UDPOS.split()),
)

ANSWER = {field: field for field in ("id", "question", "context", "answers", "starts")}
PACKED_ANSWER = {**ANSWER, "starts": "answer_starts"}


def question(
    name: str, files: dict[str, str], size: tuple, language: str = "en", metric: str | None = None, **rest
) -> Known:
    """Extractive answers from SQuAD's JSON, compared by the rules of their language."""
    layouts = (parquet(name, PACKED_ANSWER), Layout("squad", files, ANSWER))
    metric = metric or answer_f1(language)
    return Known(name, "answer", metric, layouts, language=language, sizes=sizes(*size), **rest)


def mlqa(language: str) -> Known:
    name = f"context-{language}-question-{language}.json"
    files = per_split(f"MLQA_V1/{{split}}/{{split}}-{name}|mlqa/MLQA_V1/{{split}}/{{split}}-{name}", train="")
    size = {"en": (None, 1148, 11590), "es": (None, 500, 5253)}.get(language, ())
    where = hub(
        "facebook/mlqa", f"mlqa.{language}.{language}", ANSWER, branch=True, files={"dev": "validation", "test": "test"}
    )
    own = f"answer_f1_{language}"  # MLQA's script, in English too
    return question(f"mlqa_{language}", files, size, language, own, parallel="mlqa", hub=where)


def xquad(language: str) -> Known:
    files = {"test": f"xquad.{language}.json|xquad/xquad.{language}.json"}
    where = hub("google/xquad", f"xquad.{language}", ANSWER, files={"test": "validation"})
    return question(f"xquad_{language}", files, (None, None, 1190), language, parallel="xquad", hub=where, dev="test")


def tydiqa(language: str) -> Known:
    name = f"tydiqa.goldp.{language}.{{split}}.json"
    files = per_split(f"{name}|tydiqa-goldp-v1.1-{{split}}/{name}|tydiqa/tydiqa-goldp-v1.1-{{split}}/{name}", test="")
    return question(f"tydiqa_{language}", files, (3696, 440) if language == "en" else (), language)


def squad_translated(language: str) -> Known:
    file = f"translate-train/squad.translate.train.en-{language}.json"
    files = {"train": f"xtreme_translations/SQuAD/{file}|SQuAD/{file}|squad/{file}"}
    note = "SQuAD translated by machine, for training"
    return question(f"squad_translated_{language}", files, (), language, dev="train", note=note)


SQUAD = {"train": "train-v1.1.json|squad/train-v1.1.json", "dev": "dev-v1.1.json|squad/dev-v1.1.json"}
SQUAD_HUB = hub("rajpurkar/squad", None, ANSWER, files={"train": "train", "dev": "validation"})
QUESTIONS = (
    question("squad_v11", SQUAD, (87599, 10570), hub=SQUAD_HUB),
    *map(xquad, XQUAD.split()),
    *map(mlqa, MLQA.split()),
    *map(tydiqa, TYDI.split()),
    *(squad_translated(language) for language in XQUAD.split() if language not in ("en", "ro")),
)

PROPERTIES: dict[
    str, tuple[str, ...]
] = {  # the ten of Conneau et al. 2018, with the labels that do not depend on the data
    "sentence_length": ("0", "1", "2", "3", "4", "5"),
    "word_content": (),
    "tree_depth": (),
    "top_constituents": (),
    "bigram_shift": ("O", "I"),
    "past_present": ("Pres", "Past"),
    "subj_number": ("Sing", "Plur"),
    "obj_number": ("Sing", "Plur"),
    "odd_man_out": ("O", "C"),
    "coordination_inversion": ("O", "I"),
}
PROPERTY_WORDS = {"PRES": "Pres", "PAST": "Past", "NN": "Sing", "NNS": "Plur"}  # as SentEval writes them
GOLD_SIZES = {
    "sentence_length": (6426, 858, 888),
    "word_content": (3435, 498, 1024),
    "tree_depth": (8599, 1460, 1294),
    "top_constituents": (3698, 571, 606),
    "bigram_shift": (14174, 2252, 2182),
    "past_present": (3810, 322, 1678),
    "subj_number": (2502, 586, 728),
    "obj_number": (2044, 294, 666),
    "odd_man_out": (14172, 2172, 2124),
    "coordination_inversion": (1122, 154, 322),
}
SHORT_XPROBE = {  # the two that the packed edition holds fewer rows of
    "en": {"sentence_length": (6909, 987, 1974), "tree_depth": (6925, 989, 1978)},
    "es": {"sentence_length": (6811, 973, 1946), "tree_depth": (6911, 987, 1974)},
}


def probe(suite: str, name: str, *layouts: Layout, labels: tuple[str, ...] = (), **rest) -> Known:
    return Known(f"{suite}.{name}", "classify", "accuracy", layouts, labels or PROPERTIES[name], **rest)


def senteval(name: str) -> Known:
    """SentEval's files: one per property, with the split in the first column."""
    file = f"probing/{name}.txt|data/probing/{name}.txt|senteval/{name}.txt"
    parts = {"part": {"train": "tr", "dev": "va", "test": "te"}}
    names = PROPERTY_WORDS if set(PROPERTIES[name]) & set(PROPERTY_WORDS.values()) else {}
    layout = table(
        dict.fromkeys(("train", "dev", "test"), file), one("text"), "part", "label", "text", names=names, where=parts
    )
    return probe("senteval", name, layout, sizes=sizes(100000, 10000, 10000))


def xprobe(language: str, name: str) -> Known:
    suite = f"xprobe_{language}"
    size = SHORT_XPROBE.get(language, {}).get(name, (12000, 2000, 4000))
    text = table(per_split(f"xprobe/{language}/{name}/{{split}}.txt", "tr", "va", "te"), one("text"), "text", "label")
    depths = ("3", "4", "5", "6", "7") if name == "tree_depth" else ()
    packed = by_index(parquet(f"{suite}/{name}", size=size if language in SHORT_XPROBE else ()), depths)
    return probe(suite, name, packed, text, labels=depths, language=language, note="annotated by machine")


def gold(name: str) -> Known:
    depths = tuple(map(str, range(4, 11))) if name == "tree_depth" else ()
    note = "SentEval's properties from the gold trees of EWT and GUM"
    packed = by_index(parquet(f"probing_gold/{name}"), depths)
    return probe("probing_gold", name, packed, labels=depths, sizes=sizes(*GOLD_SIZES[name]), note=note)


XPROBE = [name for name in PROPERTIES if name not in ("top_constituents", "odd_man_out")]
PROBES = (
    *map(senteval, PROPERTIES),
    *map(gold, PROPERTIES),
    *(xprobe(language, name) for language in ("de", "en", "es", "fi", "fr", "ru") for name in XPROBE),
)
