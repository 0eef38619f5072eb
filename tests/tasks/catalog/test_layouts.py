"""Short names of layouts say which file holds each split."""

from __future__ import annotations

from headwise.tasks.catalog.layouts import by_index, glue, hub, one, parquet, per_split, sizes, table, two


def test_a_split_may_have_a_file_of_its_own():
    plain = parquet("rte", two("premise", "hypothesis"), size=(10, 5))
    assert plain.files == {split: f"rte/{split}.parquet" for split in ("train", "dev", "test")}
    assert plain.sizes == {"train": 10, "dev": 5} == sizes(10, 5)
    odd = parquet("mnli", odd={"dev": "matched", "test": "other/file"})
    assert odd.files["dev"] == "mnli/dev.parquet|mnli/matched.parquet"
    assert odd.files["test"] == "mnli/test.parquet|other/file.parquet"
    assert parquet("sst", one("text"), without="label").leave_out == {"label": (None,)}


def test_patterns_name_the_splits_there_are():
    assert per_split("{split}.txt", dev="valid", test="") == {"train": "train.txt", "dev": "valid.txt"}


def test_glue_has_no_labels_to_test_with():
    assert set(glue("SST-2", one("sentence")).files) == {"train", "dev"}
    assert glue("CoLA", one("text"), "id", "label").options["header"] == ("id", "label")


def test_hub_splits_have_names_of_their_own():
    layout = hub("nyu-mll/glue", "rte", one("text"), files={"train": "train"})
    assert layout.options == {"path": "nyu-mll/glue", "config": "rte", "parquet_branch": False}
    assert layout.files == {"train": "train"}
    assert hub("x", None, one("text")).files["dev"] == "validation"


def test_numbers_may_be_places_in_a_list_of_numbers():
    layout = by_index(table({"train": "a.tsv"}, one("text")), ("3", "1"))
    assert layout.names == {"0": "3", "1": "1"}
