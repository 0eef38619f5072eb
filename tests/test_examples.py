"""The examples: reactions, roles and language models. Their pages need records alone, and say what these say."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from itertools import dropwhile, takewhile
from pathlib import Path

import pytest
import torch

HOME = Path(__file__).parent.parent
sys.path.append(str(HOME))

from examples.language_models import page as language_page  # noqa: E402
from examples.language_models import running  # noqa: E402
from examples.language_models import study as language_study  # noqa: E402
from examples.reactions import data, page, study, tables  # noqa: E402
from examples.roles.__main__ import plan  # noqa: E402
from examples.roles.page import written  # noqa: E402

from headwise.io.records import Results  # noqa: E402
from headwise.papers.pages import pages  # noqa: E402
from headwise.testing import toy_language_model  # noqa: E402

TOKENS = tuple(data.TOKEN.findall("CC(=O)O.Nc1ccccc1>>CC(=O)Nc1ccccc1"))
MAPS = (  # some of them, by hand; the two carbons beside the ring's first are the same by symmetry
    data.Map(18, 0, (0,)),
    data.Map(19, 1, (1,)),
    data.Map(22, 4, (4,)),
    data.Map(24, 8, (8,)),
    data.Map(27, 11, (11, 15)),
)
REACTION = data.Reaction("amide coupling", TOKENS, MAPS, "CC(=O)Nc1ccccc1", 1)


def looking(pairs: list[tuple[int, int]]) -> torch.Tensor:
    """Attention of one layer and head in which some tokens look at others, and all else at the first."""
    looks = torch.zeros(1, 1, len(TOKENS), len(TOKENS))
    looks[..., 0] = 0.5
    for place, target in pairs:
        looks[..., place, target] = 1
    return looks


def right(relation: str, pairs: list[tuple[int, int]]) -> tuple[int, int]:
    return tuple(study._right(looking(pairs), *study.targets(REACTION, relation))[0, 0].tolist())


def test_partners_of_brackets_and_rings_are_exact():
    assert REACTION.brackets == [(5, 2), (23, 20)]
    assert REACTION.closures == [(16, 10), (32, 26)]
    assert [data.element(token) for token in ("[nH]", "Cl", "c", "[N+]", "(", "1", ".")] == (
        ["N", "CL", "C", "N", None, None, None]
    )
    assert not REACTION.halogen


def test_planted_attention_is_found():
    assert right("brackets", [(5, 2), (23, 20)]) == (2, 2)
    assert right("rings", [(32, 26)]) == (1, 2)
    exact = [(each.product, each.reactant) for each in MAPS]
    assert right("atoms", exact) == right("atoms_exact", exact) == right("atoms_element", exact) == (5, 5)


def test_symmetry_forgives_and_elements_help():
    other = [(27, 15)]
    assert right("atoms", other) == (2, 5)  # and the first token, where all else looks, is one atom's
    assert right("atoms_exact", other) == (1, 5)
    astray = [(22, 6), (24, 7)]  # the other oxygen, and a dot: among atoms of its element one nitrogen is left
    assert right("atoms", astray) == (1, 5)
    assert right("atoms_element", astray) == (2, 5)


def test_baselines_count_what_they_say():
    assert data.offset([REACTION], study.pairs_of("atoms")) in {-18, -16}
    assert study._offset_hits(REACTION, "atoms_exact", -18) == (3, 5)
    assert study._order_hits(REACTION) == (4, 5)  # C, C, O, N; the third carbon would be the ring's first
    hit, asked = study._chance_hits(REACTION)
    assert asked == 5 and hit == pytest.approx(1 / 8 + 1 / 8 + 1 / 2 + 1 + 2 / 8)


def test_reactions_made_of_molecules_keep_their_atoms():
    pytest.importorskip("rdkit")
    step = data._chemistry().ReactionFromSmarts(data.TEMPLATES["amide coupling"])
    made = data._apply("amide coupling", step, "CC(=O)Nc1ccccc1", random.Random(0))
    assert made and len(made.maps) == 10 and sorted(made.text.split(">>")[0].split(".")) == ["CC(=O)O", "Nc1ccccc1"]
    for each in made.maps:
        assert data.element(made.tokens[each.product]) == data.element(made.tokens[each.reactant])
        assert each.reactant in each.same


@pytest.mark.parametrize("n", [1, 5, 480])
def test_a_share_with_all_or_none_right_is_not_known_without_error(n):
    z = 1.959964
    every, none = tables.share_of(1.0, n), tables.share_of(0.0, n)
    assert [every["value"], every["low"], every["high"]] == pytest.approx([1, n / (n + z * z), 1])
    assert [none["value"], none["low"], none["high"]] == pytest.approx([0, 0, z * z / (n + z * z)])


def test_no_share_of_reactions_on_the_page_has_an_interval_without_width():
    results = Results(HOME / "results" / "reactions.parquet")
    records = tables.Records(results)
    for made, value in ((tables.property_table(records), "counts %"), (tables.probe_table(records), "top heads %")):
        place = made["columns"].index(value)
        spans = [row[place : place + 3] for row in made["rows"]]
        assert any(share == 100 for share, _, _ in spans)
        assert all(low <= share <= high + 1e-9 and low < high for share, low, high in spans)
    text = "".join(part.text for part in page.Page().parts(results))
    assert "[100.0, 100.0]" not in text and "Wilson" in text and "instead the mean ± sd" in text


def test_the_page_is_written_without_torch_or_rdkit():
    program = (
        "import sys; sys.path.append('.'); import examples.reactions.study; print({'torch', 'rdkit'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=HOME, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


RECORDS = json.loads((HOME / "results" / "roles.json").read_text(encoding="utf-8"))


def test_the_page_is_what_its_records_say():
    assert (HOME / "docs" / "results" / "roles.md").read_text(encoding="utf-8") == written(RECORDS)


def test_every_record_is_one_that_the_example_measures():
    assert set(RECORDS) <= set(plan(Path("weights"), {}, Path("molecules")))


def test_known_heads_are_found():
    """Induction in two decoders, MiniLM's previous token, RXNMapper's atoms, Whisper's published heads."""
    first = lambda name, role: RECORDS[f"{name}-attention"]["roles"][role]["best"]  # noqa: E731
    assert {best["head"] for best in first("smollm2-135m", "induction")} == {"18.6", "17.3", "17.4"}
    assert first("gemma3-270m", "induction")[0]["head"] == "5.1"
    previous = first("minilm-l6", "previous")[0]
    assert previous["head"] == "0.2" and previous["score"] > 0.99
    assert "10.5" in {best["head"] for best in RECORDS["rxnmapper-albert-atoms"]["best"]}
    speech = RECORDS["whisper-tiny-en-alignment"]
    assert all(speech["order"][layer][head] > 0.85 for layer, head in speech["sets"]["published"])
    assert speech["gains"][0][1] > 0  # onsets are nearer than with the published heads, on the other half


def test_a_run_resumes_from_its_records_and_its_page_is_written(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    lm = toy_language_model("llama", torch.float32, rows=24)
    tasks = [task for name, task in lm.tasks.items() if name in ("short", "after")]
    monkeypatch.setattr(language_study, "tasks_of", lambda seed, size, data: tasks)
    monkeypatch.setattr(language_study, "opened", lambda folder, device, dtype: (lm.model, lm.tokenizer))
    size = language_study.Size(None, 8, 8, 8, (0.1, 0.25), 2, 0, 0, 2, (1, 2))
    monkeypatch.setattr(language_study, "ALPHA", 0.25)
    how = {"device": "cpu", "dtype": "float32", "seconds": None, "data": tmp_path, "processes": 1}
    first = running.measure({"toy": "toy"}, tmp_path / "one", [size], argparse.Namespace(**how, resume=None))
    works = [record.work for record in Results(first)]
    assert sorted(works) == sorted(["intact", "importance", "lesions"] * 2 + ["lesions"] * 2 + ["gating"] * 2)
    monkeypatch.setattr("headwise.scoring.importance.importance", None)  # nothing is measured again
    again = running.measure({"toy": "toy"}, tmp_path / "two", [size], argparse.Namespace(**how, resume=first))
    assert {record.key for record in Results(again)} == {record.key for record in Results(first)}
    pages(language_page.Page(), Results(again), tmp_path / "pages", language_page.COMMAND)
    text = (tmp_path / "pages" / "language_models.md").read_text()
    assert "## Closing heads in several ways" in text and "**toy, closed heads return: resample**" in text


@pytest.mark.parametrize("model", language_page.TRAINED)
def test_what_is_said_of_trained_language_models_is_on_their_page(model):
    said, trained = (HOME / "docs" / "results" / "specialization.md").read_text(), language_page.TRAINED[model]

    def rows(title: str) -> list[list[str]]:
        after = iter(said.partition(f"**{title}")[2].splitlines())
        lines = [*takewhile(bool, dropwhile(lambda line: not line.startswith("|"), after))]  # long tables are folded
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]

    (d,) = [row for row in rows("D in all encoders**") if row[0] == model]
    assert tuple(map(float, d[7:10])) == trained.d
    shared = [float(row[2].split()[0]) for row in rows(f"Overlap of top heads, {model} ")]
    assert (min(shared), max(shared)) == trained.shared
    layers = rows(f"Top heads per layer, {model} ")
    assert tuple(float(row[6]) for row in layers[:2]) == trained.first
    assert sum(float(row[6]) for row in layers) == pytest.approx(trained.top, abs=0.1)
