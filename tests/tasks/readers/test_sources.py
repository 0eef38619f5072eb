"""Sources: every published layout is found and read; bad input is told; nothing is lost."""

from __future__ import annotations

import json
import sys
import types
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.tasks import get, own
from headwise.tasks.builders import ag_pair
from headwise.tasks.catalog.known import NOT_FOUND, Finder, Known
from headwise.tasks.lookup import known
from headwise.tasks.readers.formats import formats
from headwise.tasks.readers.sources import Files, Hub, Layout, portions

pytestmark = pytest.mark.filterwarnings("ignore::headwise.errors.HeadwiseWarning")


def tabs(*lines: str) -> str:
    return "".join(line.replace("|", "\t") + "\n" for line in lines)


def one(text: str, label) -> dict:
    return {"text": text, "text_b": None, "label": label}


def two(label) -> dict:
    return {"text": "a", "text_b": "b", "label": label}


CONLLU = tabs("1|Dogs|dog|NOUN|NNS|Number=Plur|2|nsubj|_|_", "2|bark|bark|VERB|VBP|_|0|root|_|_", "")
CONLL2012 = "d 0 0 Dogs NNS (TOP(S(NP*) - - - - (ORG) (ARG0*) -\nd 0 1 bark VBP (VP*))) bark 01 - - * (V*) -\n\n"
QUESTION = {"id": "1", "question": "c?", "answers": [{"text": "b", "answer_start": 2}]}
SQUAD = json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [QUESTION]}]}]})
ANSWER = {"id": "1", "question": "c?", "context": "a b", "answers": ["b"], "starts": [2]}
WORDS = ["Dogs", "bark"]
TREE = "(TOP (S (NP (NNS Dogs)) (VP (VBP bark))))"
ENTITY = {"words": ["EU", "acts"], "labels": ["B-ORG", "O"]}
SICK = tabs("pair_ID|sentence_A|sentence_B|relatedness_score|entailment_judgment", "1|a|b|4.5|CONTRADICTION")
SNLI = '{{"gold_label": "{}", "sentence1": "a", "sentence2": "b"}}\n'
AG_PAIR = tabs("label|news1-sentence1|news1-sentence2|news2-sentence1|news2-sentence2", "same|A| b|C|d ")
PUBLISHED = [  # task, split, file, content, the one row in it
    ("cola", "train", "CoLA/train.tsv",
        tabs("gj04|0|*|They drank the pub."), one("They drank the pub.", "unacceptable")),
    ("sst2", "dev", "SST-2/dev.tsv", tabs("sentence|label", '"good fun|1'), one('"good fun', "positive")),
    ("mrpc", "train", "MRPC/train.tsv",
        "\ufeff" + tabs("Quality|#1 ID|#2 ID|#1 String|#2 String", "1|7|8|a|b"), two("equivalent")),
    ("qqp", "dev", "QQP/dev.tsv",
        tabs("id|question1|question2|is_duplicate", "broken", "1|a|b|0"), two("not_duplicate")),
    ("stsb", "dev", "STS-B/dev.tsv", tabs("sentence1|sentence2|score", "a|b|3.800"), two(3.8) | {"item": "stsb/dev/0"}),
    ("mnli", "dev", "MNLI/dev_matched.tsv", tabs("sentence1|sentence2|gold_label", "a|b|neutral"), two("neutral")),
    ("mnli_mm", "dev", "MNLI/dev_mismatched.tsv",
        tabs("sentence1|sentence2|gold_label", "a|b|neutral"), two("neutral")),
    ("qnli", "train", "QNLI/train.tsv", tabs("index|question|sentence|label", "0|a|b|entailment"), two("entailment")),
    ("rte", "train", "RTE/train.tsv", tabs("index|sentence1|sentence2|label", "0|a|b|entailment"), two("entailment")),
    ("agnews", "dev", "ag_news_csv/test.csv",
        '"3","Oil ""up""","Prices, rose"\n', one('Oil "up" - Prices, rose', "Business")),
    ("agpair", "test", "AGPair_data/test.tsv", AG_PAIR, {"text": "A - b", "text_b": "C - d", "label": "same"}),
    ("scitail", "dev", "SciTailV1.1/tsv_format/scitail_1.0_dev.tsv", tabs("a|b|entails"), two("entails")),
    ("imdb", "train", "aclImdb/train/pos/0_9.txt", "A fine film.", one("A fine film.", "positive")),
    ("snli", "dev", "snli_1.0/snli_1.0_dev.jsonl", SNLI.format("-") + SNLI.format("neutral"), two("neutral")),
    ("sick", "dev", "SICK/SICK_trial.txt", SICK, two("contradiction")),
    ("sick_relatedness", "dev", "SICK/SICK_trial.txt", SICK, two(4.5)),
    ("trec", "train", "TREC/train_5500.label", "DESC:manner How so ?\n", one("How so ?", "DESC")),
    ("stsb_es", "train", "stsb-es-train.csv", "a,b,5.000\n", two(5.0) | {"item": "stsb/train/0"}),
    ("xnli_es", "dev", "XNLI-1.0/xnli.dev.tsv",
        tabs("language|gold_label|sentence1|sentence2", "ar|neutral|x|y", "es|neutral|a|b"),
        two("neutral") | {"item": "xnli/dev/0"}),
    ("xnli_es", "test", "xnli/test-es.tsv", tabs("a|b|neutral"), two("neutral") | {"item": "xnli/test/0"}),
    ("pawsx_es", "train", "x-final/es/translated_train.tsv",
        tabs("id|sentence1|sentence2|label", "1|a|b|1"), two("paraphrase") | {"item": "pawsx/train/0"}),
    ("pawsx_en", "dev", "pawsx/dev-en.tsv", tabs("a|b|0"), two("not_paraphrase") | {"item": "pawsx/dev/0"}),
    ("xnli_es", "dev", "xnli/dev-es.tsv", '"a"\t"b"\tneutral\n', two("neutral") | {"item": "xnli/dev/0"}),
    ("xnli_translated_es", "train", "xtreme_translations/XNLI/translate-train/en-es-translated.tsv",
        tabs("x|y|a|b|contradictory", "broken"), two("contradiction")),
    ("xnli_translated_de", "train", "XNLI-MT-1.0/multinli/multinli.train.de.tsv",
        tabs("premise|hypo|label", "a|b|contradictory"), two("contradiction")),
    ("pawsx_translated_fr", "train", "PAWSX/translate-train/en-fr-translated.tsv",
        tabs("x|y|a|b|1", "x|y|a|b|NS"), two("paraphrase")),
    ("squad_translated_es", "train", "xtreme_translations/SQuAD/translate-train/squad.translate.train.en-es.json",
        SQUAD, ANSWER),
    ("mlqa_es", "dev", "mlqa/MLQA_V1/dev/dev-context-es-question-es.json", SQUAD, ANSWER | {"item": "mlqa/1"}),
    ("senteval.past_present", "dev", "probing/past_present.txt",
        tabs("tr|PAST|He ran", "va|PRES|He runs"), one("He runs", "Pres")),
    ("xprobe_es.bigram_shift", "dev", "xprobe/es/bigram_shift/va.txt", tabs("Hola .|O"), one("Hola .", "O")),
    ("wikiann_es", "train", "panx_dataset/es/train", tabs("es:EU|B-ORG", "es:acts|O", ""), ENTITY),
    ("wikiann_es", "dev", "panx/dev-es.tsv", tabs("EU|B-ORG", "acts|O", ""), ENTITY),
    ("conll2003", "train", "conll2003/eng.train", "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nacts VBZ I-VP O\n", ENTITY),
    ("conll2003", "dev", "conll2003/valid.txt", "EU NNP B-NP B-ORG\nacts VBZ B-VP O\n", ENTITY),
    ("wnut17", "test", "emerging.test.annotated", tabs("EU|B-group", "|"), {"words": ["EU"], "labels": ["B-group"]}),
    ("udpos_de", "dev", "udpos/dev-de.tsv",
        tabs("Dogs|NOUN", "bark|VERB", ""), {"words": WORDS, "labels": ["NOUN", "VERB"]}),
    ("ud.de_gsd.pos", "dev", "UD_German-GSD/de_gsd-ud-dev.conllu",
        CONLLU, {"words": WORDS, "labels": ["NOUN", "VERB"]}),
    ("ud.de_gsd.dep", "train", "de_gsd-ud-train.conllu",
        CONLLU, {"words": WORDS, "heads": [2, 0], "labels": ["nsubj", "root"]}),
    ("ewt_xpos", "test", "ewt/en_ewt-ud-test.conllu", CONLLU, {"words": WORDS, "labels": ["NNS", "VBP"]}),
    ("ontonotes_pos", "dev", "conll-2012/v4/data/development/data/english/x.v4_gold_conll",
        CONLL2012, {"words": WORDS, "labels": ["NNS", "VBP"]}),
    ("ontonotes_ner", "dev", "conll-2012/dev.conll", CONLL2012, {"words": WORDS, "labels": ["B-ORG", "O"]}),
    ("ontonotes_con", "dev", "conll-2012/dev.conll", CONLL2012, {"words": WORDS, "tree": TREE}),
    ("ontonotes_srl", "dev", "conll-2012/dev.conll",
        CONLL2012, {"words": WORDS, "frames": [{"predicate": 1, "arguments": [[0, 1, "ARG0"]]}]}),
    ("ptb_con", "test", "ptb/test.mrg", "( (S (NP-SBJ (NNS Dogs))\n (VP (VBP bark))))", {"words": WORDS, "tree": TREE}),
    ("squad_v11", "dev", "dev-v1.1.json", SQUAD, ANSWER),
    ("xquad_es", "dev", "xquad.es.json", SQUAD, ANSWER | {"item": "xquad/1"}),
    ("mlqa_es", "test", "MLQA_V1/test/test-context-es-question-es.json", SQUAD, ANSWER | {"item": "mlqa/1"}),
    ("tydiqa_fi", "train", "tydiqa-goldp-v1.1-train/tydiqa.goldp.fi.train.json", SQUAD, ANSWER),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "folder", "row"),
    [("udpos_es", "udpos", "Dogs|NOUN"), ("wikiann_es", "panx", "EU|B-ORG"), ("xnli_es", "xnli", "a|b|neutral")],
)
def test_a_test_set_without_labels_is_no_split(task, folder, row, tmp_path):
    """XTREME's download script takes the labels of all test sets away."""
    put(tmp_path, f"{folder}/dev-es.tsv", tabs(row, ""))
    put(tmp_path, f"{folder}/test-es.tsv", tabs(row.rpartition("|")[0], ""))
    source = get(task, tmp_path, sources=("folder",)).source
    assert source.splits == ["dev"] and len(source.read("dev")) == 1
    with pytest.raises(HeadwiseError, match="no test file"):
        source.read("test")


def test_ag_pair_is_made_from_the_news_where_its_own_files_are_not_there(tmp_path):
    topics = ("1", "2")
    news = "".join(f'"{topics[i % 2]}","title {i}","text {i}"\n' for i in range(16))
    for split in ("train", "test"):
        put(tmp_path, f"ag_news_csv/{split}.csv", news)
    made = get("agpair", tmp_path, sources=("folder",))
    assert "made from" in made.source.origin and made.source.splits == ["train", "test"]
    assert made.rows("train") == ag_pair(get("agnews", tmp_path).rows("train"))
    assert made.rows("dev") == made.rows("test") and {row["label"] for row in made.rows("dev")} == {"same", "different"}
    put(tmp_path, "AGPair_data/train.tsv", AG_PAIR)
    assert len(get("agpair", tmp_path, sources=("folder",)).rows("train")) == 1, "its own files come first"


def put(root: Path, file: str, content: str) -> Path:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "split", "file", "content", "row"), PUBLISHED, ids=[f"{c[0]}-{c[2]}" for c in PUBLISHED]
)
def test_published_layouts_are_found_and_read(tmp_path, name, split, file, content, row):
    put(tmp_path, file, content)
    task = get(name, tmp_path, ("folder",))
    assert task.rows(split) == [row]
    assert str(tmp_path) in task.source.origin


def test_no_more_and_no_less_than_the_broken_lines_are_left_out(tmp_path):
    put(tmp_path, "QQP/dev.tsv", tabs("id|question1|question2|is_duplicate", "x|y", "1|a|b|0", "z"))
    task = get("qqp", tmp_path)
    assert len(task.rows("dev")) == 1
    assert task.source.counts["dev"]["broken lines skipped"] == 2


def test_a_pool_without_splits_is_cut_by_a_seed(tmp_path):
    for label in ("neg", "pos"):
        put(tmp_path, f"MR/rt-polarity.{label}", "".join(f"{label} {i}\n" for i in range(50)))
    task = get("mr", tmp_path)
    sizes = [len(task.rows(split)) for split in ("train", "dev", "test")]
    assert sizes == [80, 10, 10]
    assert {row["label"] for row in task.rows("train")} == {"negative", "positive"}
    assert get("mr", tmp_path).rows("dev") == task.rows("dev")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("abcdefghijkl"), min_size=3, max_size=60), st.integers(0, 5))
def test_portions_lose_nothing_and_never_part_equal_texts(texts, seed):
    rows = [one(text, str(i)) for i, text in enumerate(texts)]
    parts = portions(rows, seed)
    assert sorted(row["label"] for part in parts.values() for row in part) == sorted(row["label"] for row in rows)
    where = [{row["text"] for row in part} for part in parts.values()]
    assert not where[0] & where[1] and not where[0] & where[2] and not where[1] & where[2]


def test_rows_that_share_a_text_however_written_are_on_one_side():
    rows = [{"text": f"first {i // 3}", "text_b": f"second {i}", "label": "a"} for i in range(120)]
    rows += [{"text": f"FIRST {i} .", "text_b": "", "label": "b"} for i in range(40)]
    parts = portions(rows)
    where = [{row["text"].casefold().strip(" .") for row in part} for part in parts.values()]
    assert not where[0] & where[1] and not where[0] & where[2] and not where[1] & where[2]
    assert [len(parts[split]) for split in ("train", "dev", "test")] == [128, 16, 16]


def test_what_most_rows_share_goes_to_training_and_what_all_share_parts_nothing():
    rows = [{"text": "the same" if i < 60 else f"other {i}", "text_b": f"b {i}", "label": "a"} for i in range(100)]
    parts = portions(rows)
    assert all(row["text"] != "the same" for split in ("dev", "test") for row in parts[split]) and parts["dev"]
    asked = [{"text": "Is it good?", "text_b": f"review {i}", "label": "a"} for i in range(100)]
    assert [len(portions(asked)[split]) for split in ("train", "dev", "test")] == [80, 10, 10]
    few = [{"question": f"q {i}", "context": f"c {i % 2}", "answers": [], "starts": []} for i in range(6)]
    assert all(portions(few).values()), "two contexts, three sides"


def parquet(root: Path, file: str, *records: dict) -> None:
    formats["parquet"].write(root / file, records)


def sentence(text, label) -> dict:
    return {"text_a": text, "text_b": None, "label": label}


def pair(label) -> dict:
    return {"text_a": "x", "text_b": "y", "label": label}


def arcs(*heads: int) -> dict:
    return {"tokens": ["w"] * len(heads), "heads": list(heads), "deprels": ["x"] * len(heads)}


def answer(text: str, start: int) -> dict:
    return {"id": "1", "question": "?", "context": "ab", "answers": [text], "answer_starts": [start]}


BAD = [  # task, records, what the message says
    ("sst2", [{"text_a": "x", "text_b": None}], "unknown column 'label'"),
    ("sst2", [sentence("x", 1), sentence("y", 7)], "dev.parquet:2: label 7 is out of range; expected 0 to 1"),
    ("sst2", [sentence("x", -1)], "label -1"),
    ("sst2", [sentence("x", None)], "label None"),
    ("sst2", [sentence("x", float("nan"))], "label nan"),
    ("sst2", [sentence(None, 1)], "text_a is None"),
    ("sst2", [sentence(float("nan"), 1)], "text_a is nan"),
    ("sst2", [sentence("x", "pasitive")], "unknown label 'pasitive'"),
    ("stsb", [pair(float("nan"))], "grade nan"),
    ("stsb", [pair(9.0)], "label 9.0; expected a number from 0.0 to 5.0"),
    ("stsb", [pair("much")], "grade 'much'"),
    ("wnut17", [{"tokens": ["a", "b"], "labels": ["O"]}], "1 labels for 2 words"),
    ("wnut17", [{"tokens": ["a"], "labels": ["I-group"]}], "tag 'I-group' after 'O'"),
    ("wnut17", [{"tokens": ["a"], "labels": ["B-gruop"]}], "unknown entity 'gruop'"),
    ("ewt_dep", [arcs(2, 1)], "0 roots"),
    ("ewt_dep", [arcs(0, 0)], "2 roots"),
    ("ewt_dep", [arcs(0, 3, 2)], "circle"),
    ("gum_con", [{"tokens": ["a"], "tree": "(S (NN a)"}], "never closed"),
    ("gum_con", [{"tokens": ["a", "b"], "tree": "(S (NN a))"}], "a tree over 1 words"),
    ("ewt_srl", [{"tokens": ["a"], "srl": [{"predicate": 4, "tags": ["O"]}]}], "predicate 4"),
    ("ewt_srl", [{"tokens": ["a"], "srl": [{"predicate": 0, "tags": ["O", "O"]}]}], "2 tags for 1 words"),
    ("squad_v11", [answer("abc", 1)], "a span inside it"),
    ("squad_v11", [answer("b", 0)], "is not what stands at 0"),
    ("squad_v11", [answer("b", "1")], "answer 'b' at '1'"),
    ("squad_v11", [answer("b", 1.0)], "answer 'b' at 1.0"),
    ("squad_v11", [answer("b", None)], "answer 'b' at None"),
    ("squad_v11", [answer(3, 1)], "answer 3 at 1"),
    ("squad_v11", [answer("b", 1) | {"answers": None}], "the columns of the kind answer"),
    ("sst2", [sentence("x", [1])], "label [1]"),
    ("sst2", [sentence("x", {"a": 1})], "one label"),
    ("wnut17", [{"tokens": ["a"], "labels": None}], "the columns of the kind spans"),
    ("wnut17", [{"tokens": ["a"], "labels": [None]}], "the columns of the kind spans"),
    ("ewt_dep", [{"tokens": ["a"], "heads": None, "deprels": ["x"]}], "heads"),
    ("gum_con", [{"tokens": ["a"], "tree": 3}], "the columns of the kind"),
    ("ewt_srl", [{"tokens": ["a"], "srl": [{"predicate": None, "tags": ["O"]}]}], "srl"),
]


FOLDER = {"ewt_dep": "ewt", "ewt_srl": "ewt"}


@pytest.mark.parametrize(("name", "records", "message"), BAD, ids=[f"{case[0]}-{case[2][:20]}" for case in BAD])
def test_bad_rows_are_told_with_their_place(tmp_path, name, records, message):
    parquet(tmp_path, f"{FOLDER.get(name, name)}/dev.parquet", *records)
    with pytest.raises(HeadwiseError) as error:
        get(name, tmp_path, ("folder",)).rows("dev")
    assert message in str(error.value)
    assert f"dev.parquet:{len(records)}" in str(error.value) or "stsb/dev row 0" in str(error.value)


def test_a_label_out_of_place_is_told_with_file_and_line(tmp_path):
    path = put(tmp_path, "SST-2/dev.tsv", tabs("sentence|label", "fine|1", "odd|maybe"))
    with pytest.raises(HeadwiseError) as error:
        get("sst2", tmp_path).rows("dev")
    assert f"{path}:3: unknown label 'maybe'" in str(error.value)


def test_an_empty_text_is_kept_and_counted(tmp_path):
    parquet(
        tmp_path,
        "sst2/dev.parquet",
        {"text_a": "", "text_b": None, "label": 1},
        {"text_a": "x", "text_b": None, "label": 0},
    )
    task = get("sst2", tmp_path)
    assert [row["text"] for row in task.rows("dev")] == ["", "x"]
    assert task.source.counts["dev"]["empty"] == 1


def test_a_null_annotation_leaves_the_row_out_and_is_counted(tmp_path):
    parquet(tmp_path, "ewt/dev.parquet", {"tokens": ["a"], "tree": "(S (NN a))"}, {"tokens": ["b"], "tree": None})
    task = get("ewt_con", tmp_path)
    assert len(task.rows("dev")) == 1
    assert task.source.counts["dev"]["skipped"] == 1


def test_a_size_that_differs_is_warned_of_once_and_recorded(tmp_path):
    parquet(tmp_path, "sst2/dev.parquet", {"text_a": "x", "text_b": None, "label": 1})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            task = get("sst2", tmp_path)
            task.rows("dev")
    assert [str(w.message) for w in caught if w.category is HeadwiseWarning] == [
        f"sst2/dev has 1 rows, the published split 872 (parquet files, {tmp_path / 'sst2'})"
    ]
    assert task.source.differs == {"dev": (1, 872)}


def test_where_a_task_was_looked_for_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADWISE_DATA", raising=False)
    with pytest.raises(HeadwiseError, match=r"looked for .*CoLA/train\.tsv"):
        get("cola", tmp_path, ("folder",)).rows("dev")
    with pytest.raises(HeadwiseError, match="no data folder was named"):
        get("cola", None, ("folder",)).rows("dev")
    with pytest.raises(HeadwiseError, match="no folder"):
        get("cola", tmp_path / "absent").rows("dev")
    with pytest.raises(HeadwiseError, match="unknown source 'web'"):
        get("cola", tmp_path, ("web",)).rows("dev")
    put(tmp_path, "CoLA/train.tsv", tabs("a|0|*|b"))
    with pytest.raises(HeadwiseError, match=r"no dev file; expected CoLA/dev\.tsv"):
        get("cola", tmp_path, ("folder",)).rows("dev")


# -- the Hub


class FakeFeature:
    def __init__(self, names=None, feature=None):
        self.names, self.feature = names, feature


class FakeData:
    def __init__(self, features, rows):
        self.features, self.rows = features, rows

    def to_list(self):
        return [dict(row) for row in self.rows]


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for ``datasets`` that notes what it was asked for."""
    asked, data = [], {}

    def load_dataset(path, name=None, **rest):
        asked.append((path, name, rest))
        if path not in data:
            raise FileNotFoundError(path)
        return data[path]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return types.SimpleNamespace(asked=asked, data=data)


def test_the_hub_is_asked_in_its_own_words_and_its_classes_are_named(hub):
    label = FakeFeature(["negative", "positive"])
    hub.data["nyu-mll/glue"] = FakeData(
        {"sentence": FakeFeature(), "label": label}, [{"sentence": "x", "label": 1, "idx": 0}]
    )
    assert get("sst2", None, ("hub",)).rows("dev") == [one("x", "positive")]
    assert hub.asked == [("nyu-mll/glue", "sst2", {"split": "validation"})]


@pytest.mark.parametrize(
    ("feature", "numbers"), [(FakeFeature(["3", "1", "2"]), [1, 2, 0]), (FakeFeature(), [1, 2, 3])]
)
def test_numbers_of_the_hub_are_labels_or_the_indices_of_its_classes(hub, feature, numbers):
    rows = [{"text": "x", "label": number} for number in numbers]
    hub.data["stars"] = FakeData({"label": feature}, rows)
    layout = Layout("hub", {"dev": "dev"}, {"text": "text", "label": "label"}, options={"path": "stars"})
    read = Hub(layout, "classify", ("1", "2", "3")).read("dev")
    assert [row["label"] for row in read] == ["1", "2", "3"]


def test_lists_of_classes_and_the_parquet_branch(hub):
    tags = FakeFeature(feature=FakeFeature(["O", "B-person", "I-person"]))
    hub.data["leondz/wnut_17"] = FakeData({"ner_tags": tags}, [{"tokens": ["Al", "G"], "ner_tags": [1, 2]}])
    assert get("wnut17", None, ("hub",)).rows("test") == [{"words": ["Al", "G"], "labels": ["B-person", "I-person"]}]
    assert hub.asked == [
        ("leondz/wnut_17", None, {"split": "test", "data_dir": "wnut_17", "revision": "refs/convert/parquet"})
    ]


def test_answers_and_other_names_for_labels_from_the_hub(hub):
    answers = {"text": ["b"], "answer_start": [2]}
    hub.data["rajpurkar/squad"] = FakeData({}, [{"id": "1", "question": "c?", "context": "a b", "answers": answers}])
    assert get("squad_v11", None, ("hub",)).rows("dev") == [ANSWER]
    hub.data["stanfordnlp/imdb"] = FakeData({"label": FakeFeature(["neg", "pos"])}, [{"text": "x", "label": 0}])
    assert get("imdb", None, ("hub",)).rows("dev") == [one("x", "negative")]
    assert hub.asked[-1][2] == {"split": "test"}  # IMDB has no dev: its test set serves


def test_hidden_labels_and_failures_of_the_hub_are_told(hub):
    hub.data["nyu-mll/glue"] = FakeData(
        {"label": FakeFeature(["negative", "positive"])}, [{"sentence": "x", "label": -1}]
    )
    with pytest.raises(HeadwiseError, match="hidden"):
        get("sst2", None, ("hub",)).rows("dev")
    with pytest.raises(HeadwiseError, match=r"facebook/xnli could not be read from the Hub \(FileNotFoundError"):
        get("xnli_en", None, ("hub",)).rows("dev")
    with pytest.raises(HeadwiseError, match="has no test split"):
        get("sst2", None, ("hub",)).rows("test")
    with pytest.raises(HeadwiseError, match="not on the Hub"):
        get("blimp", None, ("hub",)).rows("test")


def test_the_order_of_sources_is_the_users(hub, tmp_path):
    hub.data["nyu-mll/glue"] = FakeData({}, [{"sentence": "from the hub", "label": "positive"}])
    put(tmp_path, "SST-2/dev.tsv", tabs("sentence|label", "from the folder|1"))
    assert get("sst2", tmp_path).rows("dev")[0]["text"] == "from the folder"
    assert get("sst2", tmp_path, ("hub", "folder")).rows("dev")[0]["text"] == "from the hub"
    assert get("sst2", tmp_path / "..", ("folder", "hub")).rows("dev")[0]["text"] == "from the hub"


def test_a_missing_extra_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    told = r"not in .*; reading nyu-mll/glue .*pip install -e \"\.\[hub\]\".* --data FOLDER"
    with pytest.raises(HeadwiseError, match=told):
        get("sst2", tmp_path).rows("dev")


# -- one's own files

TABLES = {
    "csv": 'text,label\n"good, really",yes\nbad,no\n',
    "tsv": "text\tlabel\ngood, really\tyes\nbad\tno\n",
    "jsonl": '{"text": "good, really", "label": "yes"}\n{"text": "bad", "label": "no"}\n',
}


@pytest.mark.parametrize("suffix", [*TABLES, "parquet"])
def test_own_tables_with_files_beside(tmp_path, suffix):
    rows = [one("good, really", "yes"), one("bad", "no")]
    for part in ("", ".dev"):
        if suffix == "parquet":
            parquet(tmp_path, f"reviews{part}.parquet", *({"text": row["text"], "label": row["label"]} for row in rows))
        else:
            put(tmp_path, f"reviews{part}.{suffix}", TABLES[suffix])
    task = own(f"mine={tmp_path}/reviews.{suffix}:text,label")
    assert task.rows("train") == task.rows("dev") == rows
    assert (task.name, task.kind.labels, task.metric) == ("mine", ("no", "yes"), "accuracy")


@pytest.mark.parametrize(
    ("spec", "language", "metric"),
    [("qa", "en", "answer_f1"), ("qa.es", "es", "answer_f1_es"), ("qa.fr", "fr", "answer_f1_plain")],
)
def test_own_questions_are_scored_by_the_rules_of_their_language(tmp_path, spec, language, metric):
    put(tmp_path, "questions.json", SQUAD)
    task = own(f"mine={tmp_path}/questions.json:{spec}")
    assert (task.language, task.metric) == (language, metric)


def test_own_table_alone_is_cut_and_grades_are_seen(tmp_path):
    put(tmp_path, "pairs.tsv", tabs("a|b|score", *(f"text {i}|other {i}|{i / 8}" for i in range(40))))
    task = own(f"grades={tmp_path}/pairs.tsv:a,b,score")
    assert [len(task.rows(split)) for split in ("train", "dev", "test")] == [32, 4, 4]
    assert (task.metric, task.kind.low, task.kind.high) == ("spearman", 0.0, 39 / 8)
    assert isinstance(task.rows("dev")[0]["label"], float)


@pytest.mark.parametrize("name", ["a*b", "a|b", "a[x]b", "a?b", "a b", "{train}"])
def test_own_files_are_read_whatever_their_names_and_no_others(tmp_path, name):
    for other in ("a", "b", "aXb", "ab", "axb"):
        put(tmp_path, f"{other}.csv", "text,label\nother,1\nothers,0\n")
    put(tmp_path, f"{name}.csv", "text,label\n" + "".join(f"mine {i},{i % 2}\n" for i in range(10)))
    put(tmp_path, f"{name}.dev.csv", "text,label\nmine,1\n")
    task = own(f"mine={tmp_path}/{name}.csv:text,label")
    assert [len(task.rows(split)) for split in ("train", "dev")] == [10, 1]
    assert all(row["text"].startswith("mine") for split in ("train", "dev") for row in task.rows(split))


@pytest.mark.parametrize("labels", [(["a"], ["a", "b"]), ({"a": 1}, {"b": 2})])
def test_a_label_of_an_own_table_is_one_label(tmp_path, labels):
    records = ({"text": f"text {i}", "label": labels[i % 2]} for i in range(20))
    put(tmp_path, "many.jsonl", "".join(f"{json.dumps(record)}\n" for record in records))
    with pytest.raises(HeadwiseError, match=r"many\.jsonl:1: label .* one label"):
        own(f"mine={tmp_path}/many.jsonl:text,label")


BLANKS = [
    (("fine,good", "bad,bad", "foo,"), "reviews.csv:4: label ''"),
    (("fine,1.5", "bad,2.5", "foo, "), "reviews.csv:4: label ' '"),
    (("fine,good", ",", "bad,bad"), "reviews.csv:3: label ''"),
    (("fine,good", "bad,bad", " ,good"), "reviews.csv:4: no text"),
]


@pytest.mark.parametrize(("rows", "message"), BLANKS)
@pytest.mark.parametrize("part", ["", ".dev"])
def test_a_blank_label_or_text_of_an_own_table_is_refused_with_its_place(tmp_path, rows, message, part):
    put(tmp_path, "reviews.csv", "text,label\nfine,good\nbad,bad\n")
    put(tmp_path, f"reviews{part}.csv", "\n".join(("text,label", *rows)))
    with pytest.raises(HeadwiseError) as error:
        own(f"mine={tmp_path}/reviews.csv:text,label")
    assert message.replace("reviews", f"reviews{part}") in str(error.value) and "remove the row" in str(error.value)


def test_one_empty_text_of_a_pair_is_fine(tmp_path):
    put(tmp_path, "pairs.csv", "\n".join(("a,b,label", *(f"text {i},,{i % 2}" for i in range(20)))))
    assert own(f"mine={tmp_path}/pairs.csv:a,b,label").kind.labels == ("0", "1")


def test_a_column_that_is_no_label_is_refused(tmp_path):
    put(tmp_path, "ids.csv", "text,id\n" + "".join(f"text {i},n{i}\n" for i in range(40)))
    with pytest.raises(HeadwiseError, match=r"40 labels in 40 rows.*'id', which is the last"):
        own(f"mine={tmp_path}/ids.csv:text,id")


LABELS = [("new", "no training row has: .'new'"), ("GOOD ", "spaces or case.*GOOD")]


@pytest.mark.parametrize(("label", "words"), LABELS)
def test_labels_that_cannot_be_meant_are_told(tmp_path, label, words):
    put(tmp_path, "mine.csv", "text,label\n" + "".join(f"text {i},{('good', 'bad')[i % 2]}\n" for i in range(20)))
    put(tmp_path, "mine.dev.csv", f"text,label\nother,{label}\n")
    with pytest.warns(HeadwiseWarning, match=words):
        own(f"mine={tmp_path}/mine.csv:text,label")


def test_large_letters_and_other_separators(tmp_path):
    put(tmp_path, "MINE.CSV", "text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(20)))
    assert own(f"mine={tmp_path}/MINE.CSV:text,label").kind.labels == ("0", "1")
    put(tmp_path, "semi.csv", "text;label\nfine, really;good\n")
    with pytest.raises(HeadwiseError, match="parted by ';'"):
        own(f"mine={tmp_path}/semi.csv:text,label")


def test_own_annotated_files(tmp_path):
    put(tmp_path, "bank.conllu", CONLLU)
    put(tmp_path, "bank.dev.conllu", CONLLU)
    assert own(f"tags={tmp_path}/bank.conllu:pos").rows("dev") == [{"words": WORDS, "labels": ["NOUN", "VERB"]}]
    assert own(f"arcs={tmp_path}/bank.conllu:dep").rows("train")[0]["heads"] == [2, 0]


def test_own_pictures(tmp_path):
    for label in ("cat", "dog"):
        for i in range(10):
            put(tmp_path, f"{label}/{i}.png", "")
    task = own(f"pets={tmp_path}")
    assert task.kind.labels == ("cat", "dog")
    assert len(task.rows("train")) == 16
    assert task.rows("dev")[0].keys() == {"path", "label"}


BAD_SPECS = [
    ("reviews.csv", "name=file:columns"),
    ("mine=absent.csv:text,label", "no file absent.csv"),
    ("mine={}/r.txt:text,label", "a .csv, .tsv, .jsonl, .parquet, .arrow file"),
    ("mine={}/r.csv:text", "text,label or text,text_b,label"),
    ("mine={}/r.csv:text,lable", "unknown column 'lable'"),
    ("mine={}/r.csv:text,label", "only one label"),
    ("mine={}/half.csv:text,label", "only one label"),  # grades need a range
]


@pytest.mark.parametrize(("spec", "message"), BAD_SPECS)
def test_bad_specs_of_own_tasks_are_told(tmp_path, spec, message):
    put(tmp_path, "r.csv", "text,label\nx,1\ny,1\n")
    put(tmp_path, "half.csv", "text,label\nx,0.5\ny,0.50\n")
    put(tmp_path, "r.txt", "x")
    with pytest.raises(HeadwiseError) as error:
        own(spec.format(tmp_path))
    assert message in str(error.value)


def test_a_dev_split_is_named_where_there_is_none():
    for name in ("agnews", "imdb", "trec", "xquad_en"):
        entry = known(name)
        assert isinstance(entry, Known) and entry.dev == "test"


def test_a_source_says_where_rows_come_from(tmp_path):
    layout = Layout("csv", {"train": "a.csv"}, {"text": "text", "label": "label"})
    put(tmp_path, "a.csv", TABLES["csv"])
    source = Files(layout, tmp_path, "classify")
    assert source.origin == f"csv files, {tmp_path}"
    assert source.splits == ["train"]
    assert Finder(known("cola"), tmp_path, ("folder",)).origin == NOT_FOUND  # type: ignore[arg-type]


def test_the_real_library_reads_a_folder_of_the_hubs_form(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    data = datasets.Dataset.from_dict({"sentence": ["x"], "label": [1]}, features=features)
    data.to_parquet(str(tmp_path / "set" / "validation-00000-of-00001.parquet"))
    layout = Layout(
        "hub", {"dev": "validation"}, {"text": "sentence", "label": "label"}, options={"path": str(tmp_path / "set")}
    )
    assert Hub(layout, "classify", ("no", "yes")).read("dev") == [one("x", "yes")]


def test_of_one_or_two_texts_training_comes_first():
    rows = [{"text": name, "text_b": None, "label": "a"} for name in ("one", "two", "three")]
    sizes = [[len(part) for part in portions(rows[:n] * 5).values()] for n in (1, 2, 3)]
    assert sizes == [[5, 0, 0], [5, 5, 0], [5, 5, 5]]
