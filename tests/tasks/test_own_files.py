"""Data as people have it: tables, shards, folders of datasets, DataFrames; guessed only where there is one way."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import HeadwiseError, HeadwiseWarning
from headwise.tasks import own
from headwise.tasks.kinds.classify import Classify
from headwise.tasks.task import Rows, Task

TAGGED = [{"tokens": [f"EU{i}", "acts"][:: 1 - 2 * (i % 2)], "ner_tags": [1 - i % 2, i % 2]} for i in range(20)]
REVIEWS = [{"sentence": f"text {i}", "verdict": i % 2} for i in range(40)]
QUESTIONS = [
    {
        "id": str(i),
        "question": f"who {i}?",
        "context": f"Ann {i} did",
        "answers": {"text": ["Ann"], "answer_start": [0]},
    }
    for i in range(20)
]


def features(**columns) -> dict[bytes, bytes]:
    """The metadata that `datasets` writes."""
    return {b"huggingface": json.dumps({"info": {"features": columns}}).encode()}


def classes(*names: str, several: bool = False) -> dict:
    one = {"names": list(names), "_type": "ClassLabel"}
    return {"feature": one, "_type": "List"} if several else one


def table(records: list[dict], **columns) -> pa.Table:
    made = pa.Table.from_pylist(records)
    return made.replace_schema_metadata(features(**columns)) if columns else made


def arrow(path: Path, data: pa.Table) -> None:
    """A folder as `Dataset.save_to_disk` writes it."""
    path.mkdir(parents=True)
    with pa.OSFile(str(path / "data-00000-of-00001.arrow"), "wb") as file, pa.ipc.new_stream(file, data.schema) as out:
        out.write_table(data)
    (path / "state.json").write_text("{}")


def lines(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_a_folder_of_save_to_disk_is_read_with_its_class_names(tmp_path):
    data = table(REVIEWS, verdict=classes("bad", "good"))
    arrow(tmp_path / "one", data)
    with pytest.warns(HeadwiseWarning, match="using column 'sentence' as text, 'verdict' as label"):
        task = own(f"mine={tmp_path}/one")
    assert task.kind.labels == ("bad", "good") and len(task.rows("train")) == 32
    assert {row["label"] for row in task.rows("dev")} <= {"bad", "good"}


def test_splits_of_save_to_disk_are_those_of_the_task(tmp_path):
    for split in ("train", "validation", "test"):
        arrow(tmp_path / "d" / split, table(TAGGED, ner_tags=classes("O", "B-ORG", several=True)))
    (tmp_path / "d/dataset_dict.json").write_text('{"splits": ["train", "validation", "test"]}')
    task = own(f"ner={tmp_path}/d")
    assert type(task.kind).__name__ == "Spans" and task.metric == "span_f1"
    assert task.rows("dev")[0] == {"words": ["EU0", "acts"], "labels": ["B-ORG", "O"]}
    assert [len(task.rows(split)) for split in ("train", "dev", "test")] == [20, 20, 20]


@pytest.mark.parametrize("spec", ["", ":tokens,ner_tags"])
def test_tokens_with_ids_or_names_of_tags(tmp_path, spec):
    ids = own(f"a={lines(tmp_path / 'ids.jsonl', TAGGED)}{spec}").ready()
    assert type(ids.kind).__name__ == "Tag" and ids.kind.labels == ("0", "1")
    named = [{**r, "ner_tags": [["O", "B-X"][i] for i in r["ner_tags"]]} for r in TAGGED]
    assert type(own(f"b={lines(tmp_path / 'named.jsonl', named)}{spec}").kind).__name__ == "Spans"
    pq.write_table(table(TAGGED, ner_tags=classes("DET", "NOUN", several=True)), tmp_path / "t.parquet")
    assert own(f"c={tmp_path}/t.parquet{spec}").kind.labels == ("DET", "NOUN")


def test_several_columns_of_tags_are_asked_for(tmp_path):
    file = lines(tmp_path / "many.jsonl", [{**record, "pos_tags": [0, 1]} for record in TAGGED])
    with pytest.raises(HeadwiseError, match=r"several columns to read as labels: ner_tags, pos_tags.*tokens,ner_tags"):
        own(f"mine={file}")
    assert own(f"mine={file}:tokens,pos_tags").rows("dev")[0]["labels"] == ["0", "1"]


def test_shards_are_read_together_with_the_other_splits(tmp_path):
    for split, many in (("train", 2), ("validation", 1)):
        for i in range(many):
            pq.write_table(table(REVIEWS[20 * i : 20 * i + 20]), tmp_path / f"{split}-0000{i}-of-0000{many}.parquet")
    for spec in (f"{tmp_path}/train-00000-of-00002.parquet", f"{tmp_path}"):
        task = own(f"mine={spec}")
        assert [len(task.rows(split)) for split in ("train", "dev")] == [40, 20]
    (tmp_path / "hub/data").mkdir(parents=True)
    pq.write_table(table(REVIEWS), tmp_path / "hub/data/train-00000-of-00001.parquet")
    assert [len(own(f"mine={tmp_path}/hub").rows(split)) for split in ("train", "dev", "test")] == [32, 4, 4]


def test_squad_features(tmp_path):
    pq.write_table(table(QUESTIONS), tmp_path / "squad.parquet")
    for spec in ("", ":question,context,answers"):
        task = own(f"qa={tmp_path}/squad.parquet{spec}")
        row = task.rows("dev")[0]
        assert type(task.kind).__name__ == "Answer" and (row["answers"], row["starts"]) == (["Ann"], [0])
    without = [{k: v for k, v in record.items() if k != "id"} for record in QUESTIONS]
    assert Task.from_dataset("qa", without).rows("train")[0]["answers"] == ["Ann"]


def test_records_and_mappings_of_splits():
    records = [{"premise": f"a {i}", "hypothesis": "b", "label": ("no", "yes")[i % 2]} for i in range(40)]
    task = Task.from_dataset("pairs", {"train": records, "validation": records[:10]})
    assert task.rows("dev")[0] == {"text": "a 0", "text_b": "b", "label": "no"}
    with pytest.warns(HeadwiseWarning, match="no validation split"):
        assert len(Task.from_dataset("pairs", {"train": records}).rows("dev")) == 4
    with pytest.raises(HeadwiseError, match="a split named 'training'"):
        Task.from_dataset("pairs", {"training": records})
    grades = Task.from_dataset("graded", [{"text": f"t {i}", "score": i / 8} for i in range(40)], ("text", "score"))
    assert grades.metric == "spearman" and isinstance(grades.rows("dev")[0]["label"], float)


def test_columns_by_name():
    records = [{"a": f"t {i}", "b": f"u {i}", "c": "xy"[i % 2]} for i in range(20)]
    for columns in (("a", "c"), "a,c", {"text": "a", "label": "c"}):
        assert Task.from_dataset("mine", records, columns).rows("train")[0].keys() == {"text", "text_b", "label"}
    with pytest.raises(HeadwiseError, match="no columns to read as label: a, b, c"):
        Task.from_dataset("mine", records)


def test_data_that_is_no_source_says_what_to_type():
    with pytest.raises(HeadwiseError, match=r"rows that are a list.*Task\.from_dataset\(\"mine\", data\)"):
        Task("mine", Classify(("a", "b")), [{"text": "x", "label": "a"}], "accuracy")


def test_a_data_frame(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(REVIEWS)
    assert Task.from_pandas("mine", frame).kind.labels == ("0", "1")
    assert Task.from_pandas("mine", {"train": frame, "dev": frame[:10]}, ("sentence", "verdict")).rows("dev")
    rows = frame.rename(columns={"sentence": "text", "verdict": "label"})
    assert len(Task("mine", Classify(("0", "1")), Rows(train=rows), "accuracy").rows("train")) == 40


@pytest.mark.filterwarnings("ignore")
def test_datasets_with_class_labels(tmp_path):
    datasets = pytest.importorskip("datasets")
    values = datasets.Features({"tokens": datasets.List(datasets.Value("string"))})
    values["ner_tags"] = datasets.List(datasets.ClassLabel(names=["O", "B-ORG"]))
    data = datasets.Dataset.from_list(TAGGED, features=values)
    task = Task.from_dataset("ner", datasets.DatasetDict({"train": data, "test": data}))
    assert task.rows("test")[0]["labels"] == ["B-ORG", "O"]
    data.save_to_disk(tmp_path / "saved")
    assert own(f"ner={tmp_path}/saved").rows("dev")[0].keys() == {"words", "labels"}
    data.to_parquet(tmp_path / "train-00000-of-00001.parquet")
    assert own(f"ner={tmp_path}/train-00000-of-00001.parquet").metric == "span_f1"


def test_a_folder_without_data_says_what_may_be_in_it(tmp_path):
    with pytest.raises(HeadwiseError, match=r"no data in .*save_to_disk.*FILE:text,label"):
        own(f"mine={tmp_path}")


def test_of_several_texts_none_is_guessed_unless_it_is_called_text():
    rows = [{"id": f"r{i}", "title": f"t {i}", "sentence": f"s {i}", "label": "ab"[i % 2]} for i in range(20)]
    with pytest.raises(HeadwiseError, match="several columns to read as text: title, sentence"):
        Task.from_dataset("mine", rows)
    named = [{"text": row["sentence"], **row} for row in rows]
    assert Task.from_dataset("mine", named).rows("train")[0]["text"].startswith("s ")
    with pytest.warns(HeadwiseWarning, match="using column 'title' as text"):
        Task.from_dataset("mine", [{k: v for k, v in row.items() if k != "sentence"} for row in rows])
