"""The main job: what is done is read back, what changed is made again, and nothing of one training meets another's."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from importlib import import_module

import pytest
import torch

from headwise.errors import HeadwiseError
from headwise.heads.cutting import prune
from headwise.io.identity import checkpoint as checkpoint_hash
from headwise.io.records import Results
from headwise.models.loading import load_encoder
from headwise.models.multitask import MultiTaskModel
from headwise.reporting import report
from headwise.reporting.page import render
from headwise.scoring.importance import importance
from headwise.study.evidence import against_baseline
from headwise.study.stages import STAGES, Settings
from headwise.study.study import Study
from headwise.tasks import Rows, own
from headwise.testing import playground, tiny, tiny_tokenizer, toy_model, toy_tasks
from headwise.training.loop import fit
from headwise.training.methods.iat import IAT
from headwise.training.plan import Plan

PLAN = Plan(steps=12, batch_size=8, lr=1e-3)
SMALL = Settings(PLAN, examples=48, fractions=(0.3, 0.5), random=10, matched=10, dev=24, prune=(0.25,), max_length=16)
VERBS = {  # where a study finds what its stages call
    "fit": "headwise.study.study.fit",
    "importance": "headwise.scoring.importance.importance",
    "dissociate": "headwise.dissociation.lesions.dissociate",
    "attention_patterns": "headwise.heads.attention.attention_patterns",
    "trials": "headwise.pruning.cost.trials",
    "evaluate": "headwise.measuring.evaluate.evaluate",
    "against_baseline": "headwise.study.evidence.against_baseline",
}
COSTLY = ("fit", "importance", "dissociate", "attention_patterns")


def verb(name):
    module, _, attribute = VERBS[name].rpartition(".")
    return getattr(import_module(module), attribute)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return playground(tmp_path_factory.mktemp("play"))


@pytest.fixture(scope="module")
def finished(place):
    """One whole study; tests that change it take a copy."""
    folder = place / "finished"
    return folder, run(place, folder)


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "copy")


@pytest.fixture
def calls(monkeypatch):
    """How often the costly verbs run."""
    count: Counter = Counter()

    def counted(name):
        run = verb(name)

        def wrapped(*args, **kwargs):
            count[name] += 1
            return run(*args, **kwargs)

        return wrapped

    for name in COSTLY:
        monkeypatch.setattr(VERBS[name], counted(name))
    return count


def tasks_in(place):
    return [own(f"{name}={place / name}.csv:text,label") for name in ("reviews", "news")]


def run(place, out, settings=SMALL, model=None):
    study = Study(model or place / "bert-tiny", tasks_in(place), settings, out).run()
    report(study, out / "report.html")
    assert "failed" not in study
    return study


# -- the law that lets plain training and IAT share their beginning


@pytest.mark.parametrize("delta", [0.25, 0.5])
def test_branching_is_training_from_the_start_bit_for_bit(tmp_path, delta):
    plan = Plan(steps=8, batch_size=16, lr=1e-3, evaluate_every=0)
    step = 8 - round(delta * 8)
    plan = replace(plan, checkpoint_every=step)
    fit(toy_model(rows=48), plan, out=tmp_path / "plain")
    branch = tmp_path / "plain" / "checkpoints" / f"step-{step:08d}"
    whole, branched = toy_model(rows=48), toy_model(rows=48, seed=5)  # a branch brings all weights along
    a = fit(whole, plan, IAT(0.25, delta, examples=32))
    b = fit(branched, plan, IAT(0.25, delta, examples=32), branch=branch)
    assert a.losses == b.losses
    for (name, left), right in zip(whole.state_dict().items(), branched.state_dict().values()):
        assert torch.equal(left, right), name
    plain = fit(toy_model(rows=48), plan)
    assert plain.losses != a.losses, "IAT must have changed something for this test to mean anything"


def test_a_branch_of_another_plan_is_refused(tmp_path):
    plan = Plan(steps=4, batch_size=16, checkpoint_every=2, evaluate_every=0)
    fit(toy_model(rows=48), plan, out=tmp_path)
    with pytest.raises(HeadwiseError, match="another run"):
        fit(toy_model(rows=48), replace(plan, lr=1.0), branch=tmp_path / "checkpoints" / "step-00000002")


# -- a study


def test_a_study_has_every_part_and_writes_the_page(finished):
    folder, study = finished
    assert {"training", "importance", "dissociation", "attention", "iat", "prune", "trust", "verdict"} <= set(study)
    assert json.loads((folder / "study.json").read_text())["verdict"] == study["verdict"]
    assert "<html" in (folder / "report.html").read_text()[:2000]
    for row in study["iat"]["rows"]:
        assert 0 <= row["p"] <= 1 and row["low"] <= row["iat"] - row["plain"] <= row["high"]
    kinds = Counter(record.work for record in Results(folder / "records"))
    assert kinds == {"train": 1, "scores": 1, "importance": 2, "dissociation": 1, "attention": 1, "iat": 1, "prune": 1}


def test_what_only_evaluations_share_is_no_leak(finished):
    """Both tasks of the playground ask of the same texts, split alike."""
    folder, study = finished
    assert not study["trust"]["leakage"] and all("/train" not in line for line in study["trust"]["shared"])
    assert not [line for line in study["verdict"] if "Beware: texts" in line]
    page = (folder / "report.html").read_text()
    for name, split, title in (
        ("shared", "dev", "Texts that evaluations share"),
        ("unused", "test", "Texts shared with splits that this study does not use"),
    ):
        (line,) = study["trust"][name]
        assert line.count(f"/{split}") == 2 and title in page


def test_the_second_run_reads_back(place, copy, finished, calls):
    again = run(place, copy)
    assert not calls
    assert {k: v for k, v in again.items() if k != "created"} == {
        k: v for k, v in finished[1].items() if k != "created"
    }


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"alpha": 0.5}, {"fit": 1, "dissociate": 1}),  # the sets matched by layer are closed at alpha
        ({"alpha": 0.25}, {"fit": 1, "dissociate": 1}),  # a share that was not measured
        ({"fractions": (0.3, 0.75)}, {"dissociate": 1}),
        ({"prune": (0.5,)}, {}),
        ({"examples": 32}, {"importance": 2, "dissociate": 1, "fit": 1}),
        ({"by": "taylor"}, {"importance": 2, "dissociate": 1, "fit": 1}),
        ({"max_length": 12}, {"fit": 2, "importance": 2, "dissociate": 1, "attention_patterns": 1}),
    ],
)
def test_a_changed_setting_makes_again_what_depends_on_it(place, copy, calls, change, again):
    run(place, copy, replace(SMALL, **change))
    assert calls == again


def test_another_tokenizer_makes_everything_again(place, copy, calls, tmp_path):
    other = shutil.copytree(place / "bert-tiny", tmp_path / "other")
    rules = json.loads((other / "tokenizer.json").read_text())
    words = rules["model"]["vocab"]
    special = {token["content"] for token in rules["added_tokens"]}
    plain = [word for word in words if word not in special]
    words |= dict(zip(plain, [words[word] for word in reversed(plain)]))
    (other / "tokenizer.json").write_text(json.dumps(rules))
    run(place, copy, model=other)
    assert calls == {"fit": 2, "importance": 2, "dissociate": 1, "attention_patterns": 1}


def test_a_study_measures_in_one_precision(place, tmp_path, monkeypatch):
    """Plain training and IAT are compared by the same arithmetic, whatever training used."""
    seen, measure = [], verb("evaluate")

    def spied(model, task, *args, **kwargs):
        layer = next(m for m in model.encoder.modules() if isinstance(m, torch.nn.Linear))
        handle = layer.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
        found = measure(model, task, *args, **kwargs)
        handle.remove()
        return found

    monkeypatch.setattr(VERBS["evaluate"], spied)
    run(place, tmp_path / "bf16", replace(SMALL, plan=replace(PLAN, precision="bf16")))
    assert set(seen) == {torch.float32}


def test_a_changed_share_changes_what_is_said_of_stability(place, copy, finished):
    changed = run(place, copy, replace(SMALL, alpha=0.5, skip=("iat",)))
    fresh = run(place, copy.parent / "fresh", replace(SMALL, alpha=0.5, skip=("iat",)))
    assert changed["trust"] == fresh["trust"]


@pytest.mark.parametrize(("alpha", "shares"), [(0.3, [0.3, 0.5]), (0.5, [0.3, 0.5]), (0.25, [0.25, 0.3, 0.5])])
def test_a_study_starts_from_its_own_share(place, copy, alpha, shares):
    study = run(place, copy, replace(SMALL, alpha=alpha, skip=("attention", "iat", "prune")))
    assert study["dissociation"]["fractions"] == shares and study["dissociation"]["default"] == alpha
    assert study["reproduce"]["settings"]["alpha"] == alpha
    row = study["dissociation"]["performance"][shares.index(alpha)][0]
    assert study["trust"]["random_band"]["reviews"] == [min(row[3:]) / row[0], max(row[3:]) / row[0]]


def test_fallen_predictions_name_what_was_closed(place, tmp_path, monkeypatch):
    measure = verb("dissociate")
    monkeypatch.setattr(
        VERBS["dissociate"], lambda *a, **k: replace(d := measure(*a, **k), collapsed=d.performance > -1)
    )
    study = run(place, tmp_path, replace(SMALL, random=2, skip=("train", "attention", "iat", "prune")))
    closed = ("the heads of reviews", "the heads of news", "random heads")
    ways = ["as it is", *(f"when {heads} are ablated" for heads in closed)]
    assert study["trust"]["collapsed"] == [f"{task} {way}" for task in ("reviews", "news") for way in ways]


def test_two_trainings_in_one_folder_stay_apart(place, copy, finished, calls):
    first = checkpoint_hash(copy / "model")
    other = run(place, copy, replace(SMALL, plan=replace(PLAN, lr=5e-3)))
    assert calls["fit"] == 2 and checkpoint_hash(copy / "model") != first
    assert other["importance"]["news"]["scores"] != finished[1]["importance"]["news"]["scores"]
    back = run(place, copy)
    assert checkpoint_hash(copy / "model") == first, "the model beside the records is that of the settings asked for"
    assert back["iat"] == finished[1]["iat"]


def test_a_lost_model_is_taken_from_its_checkpoint(place, copy):
    first = checkpoint_hash(copy / "model")
    shutil.rmtree(copy / "model")
    run(place, copy)
    assert checkpoint_hash(copy / "model") == first


def test_records_of_a_training_that_is_gone_are_not_those_of_another(place, copy, monkeypatch):
    """Where the same training does not give the same weights, as on accelerators."""
    train = verb("fit")

    def otherwise(model, *args, **options):
        history = train(model, *args, **options)
        next(model.parameters()).data += 1e-3
        return history

    shutil.rmtree(copy / "model")
    shutil.rmtree(copy / "train")
    monkeypatch.setattr(VERBS["fit"], otherwise)
    with pytest.raises(HeadwiseError, match="gave other weights than its records"):
        run(place, copy)


@pytest.mark.parametrize("delta", [0.5, 1.0])
def test_another_delta_is_as_in_a_fresh_folder(place, copy, tmp_path, delta):
    changed = run(place, copy, replace(SMALL, delta=delta))
    fresh = run(place, tmp_path / "fresh", replace(SMALL, delta=delta))
    assert changed["iat"] == fresh["iat"]
    [made] = {checkpoint_hash(p) for p in (tmp_path / "fresh" / "iat").glob("*/model")}
    assert made in {checkpoint_hash(p) for p in (copy / "iat").glob("*/model")}


def test_what_was_interrupted_goes_on(place, tmp_path, monkeypatch, calls):
    measure = verb("importance")

    def fails(model, task, *args, **kwargs):
        if task == "news":
            raise KeyboardInterrupt
        return measure(model, task, *args, **kwargs)

    monkeypatch.setattr(VERBS["importance"], fails)
    with pytest.raises(KeyboardInterrupt):
        run(place, tmp_path / "s")
    monkeypatch.setattr(VERBS["importance"], measure)
    calls.clear()
    run(place, tmp_path / "s")
    assert calls["fit"] == 1 and calls["importance"] == 1, "IAT's training and the task that was missing"


# -- stages that fail


@pytest.mark.parametrize(
    ("stage", "name"), [("lesions", "dissociate"), ("attention", "attention_patterns"), ("prune", "trials")]
)
def test_a_late_stage_that_fails_leaves_the_rest(place, tmp_path, monkeypatch, stage, name):
    def fails(*args, **kwargs):
        raise RuntimeError("no\nroom")

    measure = verb(name)
    monkeypatch.setattr(VERBS[name], fails)
    made = Study(place / "bert-tiny", tasks_in(place), SMALL, tmp_path)
    study = made.run()
    assert study["failed"] == {stage: "RuntimeError: no room"} and isinstance(made.errors[stage], RuntimeError)
    assert json.loads((tmp_path / "study.json").read_text())["failed"] == study["failed"]
    assert f"Stage <b>{stage}</b> failed" in render([study])
    parts = {"lesions": "dissociation", "attention": "attention", "prune": "prune"}
    assert {name for name, part in parts.items() if part not in study} == {stage}
    assert {"iat", "trust", "verdict"} <= set(study)
    monkeypatch.setattr(VERBS[name], measure)
    again = run(place, tmp_path)
    assert parts[stage] in again, "what failed is tried again"


def test_without_importance_there_is_no_page(place, tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("no room")

    monkeypatch.setattr(VERBS["importance"], fails)
    with pytest.raises(RuntimeError):
        run(place, tmp_path)


def test_ctrl_c_stops_a_late_stage_too(place, copy, monkeypatch):
    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(VERBS["trials"], stopped)
    with pytest.raises(KeyboardInterrupt):
        run(place, copy, replace(SMALL, dev=17, skip=("lesions", "attention", "iat")))


# -- what is said of how it was made


def test_the_plan_is_shown_where_it_was_used(finished, place, tmp_path):
    folder, whole = finished
    assert whole["reproduce"]["plan"]["steps"] == PLAN.steps
    skip = ("train", "attention", "prune")
    study = run(place, tmp_path, replace(SMALL, skip=skip, plan=replace(PLAN, max_examples=5)), model=folder / "model")
    assert "plan" not in study["reproduce"] and study["tasks"][0]["train"] == whole["tasks"][0]["train"] > 5
    used = study["reproduce"]["settings"]
    assert used["skip"] == list(skip) and used["fractions"] == [0.3, 0.5] and not {"delta", "prune"} & set(used)
    assert '<pre id="plan-' not in (tmp_path / "report.html").read_text()


def test_a_study_keeps_what_its_page_needs(finished):
    _, study = finished
    d = study["dissociation"]
    for cells in d["cells"]:
        for task in ("reviews", "news"):
            for cell in cells[task].values():
                assert cell["low"] <= cell["change"] <= cell["high"] and 0 <= cell["p"] <= cell["p_holm"] <= 1
    assert d["random"] == 10 and d["matched"] == 10 and d["null"] == "random heads" and set(d["n"].values()) == {24}
    for task, entry in study["importance"].items():
        chances = torch.tensor(entry["top_probability"])
        assert chances.sum() == pytest.approx(2, abs=0.01), "30 % of 8 heads"
        assert study["trust"]["stability"][task]["used"] == 48
    assert set(study["scores"]) == {"reviews", "news"}
    assert set(study["withheld"]) >= {task for task, score in study["scores"].items() if not score["learned"]}


# -- leaving out, starting later


def test_stages_left_out(place, tmp_path):
    study = run(place, tmp_path / "s", replace(SMALL, skip=("lesions", "attention", "iat", "prune")))
    assert not {"dissociation", "attention", "iat", "prune"} & set(study)
    assert (tmp_path / "s" / "report.html").exists() and study["verdict"]


@pytest.mark.parametrize(("share", "cut"), [(0.1, False), (0.25, True)])
def test_a_share_that_is_no_head_is_no_cut(place, tmp_path, monkeypatch, share, cut):
    """10 % of 8 heads is none; a cut that costs nothing is written."""
    chosen = {"rows": [free(0.0, 8), free(share, 6 if cut else 8)], "chosen": share if cut else None, "held out": {}}
    monkeypatch.setattr(VERBS["trials"], lambda *args: chosen)
    monkeypatch.setattr(VERBS["against_baseline"], learned)
    told = []
    settings = replace(SMALL, prune=(share,), skip=("train", "lesions", "attention", "iat"))
    Study(place / "bert-tiny", tasks_in(place), settings, tmp_path, log=told.append).run()
    assert (tmp_path / "small").exists() == any("heads pruned" in line for line in told) == cut


def learned(score):
    return against_baseline(score) | {"learned": True}


def free(share, kept):
    return {"fraction": share, "kept": kept, "task scores": {"reviews": 0.9, "news": 0.9}}


def test_a_cut_of_other_settings_does_not_stay(place, copy, monkeypatch):
    monkeypatch.setattr(VERBS["against_baseline"], learned)
    for number, cut in enumerate((0.25, None)):
        made = {"rows": [free(0.0, 8), free(0.25, 6)], "chosen": cut, "held out": {}}
        monkeypatch.setattr(VERBS["trials"], lambda *args, made=made: made)
        run(place, copy, replace(SMALL, prune=(0.25,), dev=19 - number, skip=("lesions", "attention", "iat")))
        assert (copy / "small").exists() == bool(cut)


def test_a_cut_is_measured_again_on_other_test_rows(place, tmp_path, monkeypatch):
    """Nothing else of a study reads them, so the rest is read back."""
    seen = []
    monkeypatch.setattr(VERBS["trials"], lambda *args: seen.append(1) or {"rows": [free(0.0, 8)], "chosen": None})
    lines = (place / "reviews.csv").read_text().splitlines()

    def study(last):
        for name, part in (("train", lines), ("dev", lines), ("test", [lines[0], *lines[1:last]])):
            (tmp_path / f"reviews.{name}.csv").write_text("\n".join(part) + "\n")
        task = own(f"reviews={tmp_path / 'reviews.train.csv'}:text,label")
        assert task.splits == ["train", "dev", "test"]
        only = replace(SMALL, skip=("train", "lesions", "attention", "iat"))
        Study(place / "bert-tiny", [task], only, tmp_path / "out").run()

    for last in (20, 20, 30):
        study(last)
    assert len(seen) == 2


def test_a_trained_model_is_the_start(place, finished, tmp_path, calls):
    folder, whole = finished
    study = run(place, tmp_path / "s", replace(SMALL, skip=("train",)), model=folder / "model")
    assert not calls["fit"] and "iat" not in study and "training" not in study
    assert study["importance"] == whole["importance"]
    assert study["dissociation"] == whole["dissociation"]


@pytest.fixture(scope="module")
def three(place, tmp_path_factory):
    """A model of three tasks, of which a third is in no catalog."""
    more = own(f"more={place / 'news'}.csv:text,label")
    torch.manual_seed(0)
    model = MultiTaskModel(*load_encoder(place / "bert-tiny"), [more, *tasks_in(place)], max_length=16)
    return model.save_pretrained(tmp_path_factory.mktemp("three") / "model")


def test_some_tasks_of_a_trained_model_are_studied_as_if_it_had_no_others(place, three, tmp_path):
    settings = replace(SMALL, skip=("train", "lesions", "attention", "iat", "prune"))
    study = run(place, tmp_path / "s", settings, model=three)
    alone = MultiTaskModel.load(three, [own(f"more={place / 'news'}.csv:text,label"), *tasks_in(place)])
    assert list(study["importance"]) == ["reviews", "news"]
    scores = importance(alone, "news", examples=48).scores
    assert torch.allclose(torch.tensor(study["importance"]["news"]["scores"]), scores)


def test_training_goes_on_with_tasks_the_model_has_not(place, three, tmp_path):
    tasks = [tasks_in(place)[0], own(f"other={place / 'news'}.csv:text,label")]
    settings = replace(SMALL, skip=("lesions", "attention", "prune"))
    study = Study(three, tasks, settings, tmp_path).run()
    assert set(study["training"]["tasks"]) == {"reviews", "other"} and len(study["iat"]["rows"]) == 2
    with pytest.raises(HeadwiseError, match="not trained for 'other'"):
        Study(three, tasks, replace(settings, skip=("train",)), tmp_path)


@pytest.mark.parametrize("asked", [{"pooling": "mean"}, {"max_length": 12}])
def test_a_trained_model_brings_its_pooling_and_length(place, finished, tmp_path, asked):
    told = []
    settings = replace(SMALL, skip=("train",))
    made, own = (
        Study(finished[0] / "model", tasks_in(place), s, tmp_path, log=told.append)
        for s in (replace(settings, **asked), settings)
    )
    assert made.base == own.base, "what is recorded is what is done"
    assert told == ["using the trained model's pooling cls and max length 16"], (
        "told where it differs from what was asked"
    )


def test_random_output_heads_are_told_once(place, finished, tmp_path):
    told = {}
    settings = replace(SMALL, skip=("train", "lesions", "attention", "iat", "prune"))
    for model in (place / "bert-tiny", finished[0] / "model"):
        lines = told[model.name] = []
        Study(model, tasks_in(place), settings, tmp_path, log=lines.append).run()
    random = {name: sum("output heads are random" in line for line in lines) for name, lines in told.items()}
    assert random == {"bert-tiny": 1, "model": 0}


def test_an_untrained_study_never_lends_its_records(place, tmp_path, calls):
    untrained = run(place, tmp_path / "s", replace(SMALL, skip=("train", "iat")))
    trained = run(place, tmp_path / "s")
    assert calls["importance"] == 4
    assert untrained["importance"] != trained["importance"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"skip": ("lesion",)}, "lesions"),
        ({"skip": ("importance",)}, "cannot skip 'importance'"),
        ({"alpha": 30.0}, "alpha=30"),
        ({"delta": -0.1}, "delta"),
        ({"by": "gradeint"}, "gradient"),
        ({"probes": ("corpus.past_presnt",)}, "corpus.past_present"),
        ({"probes": ("corpus.past_present", "corpus.pos")}, "corpus.pos is of kind Tag"),
    ],
)
def test_mistakes_are_told_before_training(change, said):
    with pytest.raises(HeadwiseError, match=said):
        replace(SMALL, **change)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 1), (7, 1), (1, 24)])
def test_a_share_of_no_head_is_told_with_one_that_is(place, tmp_path, shape):
    layers, heads = shape
    tiny("bert", num_hidden_layers=layers, num_attention_heads=heads).save_pretrained(tmp_path / "few")
    for file in (place / "bert-tiny").glob("tokenizer*"):
        shutil.copy(file, tmp_path / "few")
    with pytest.raises(HeadwiseError, match=f"none of {layers * heads} heads") as told:
        Study(tmp_path / "few", tasks_in(place), replace(SMALL, alpha=0.9 / (layers * heads)), tmp_path)
    least = float(told.value.hint.removeprefix("--alpha "))
    Study(tmp_path / "few", tasks_in(place), replace(SMALL, alpha=least), tmp_path)


def test_every_stage_reads_settings_there_are_and_needs_stages_before_it():
    names = list(STAGES)
    for place, stage in enumerate(STAGES.values()):
        assert set(stage.reads) <= set(vars(SMALL)) and set(stage.needs) <= set(names[:place]) and stage.title


@pytest.mark.parametrize("nothing", [1, 2])
def test_tasks_that_score_nothing_have_no_d_and_are_named(place, tmp_path, nothing):
    """Matthews' correlation is 0 where all answers are of one class, whatever the model says."""
    tasks = tasks_in(place)
    for i in range(nothing):
        task = tasks[i].ready()
        alike = [row for row in task.rows("dev") if row["label"] == task.kind.labels[0]]
        tasks[i] = replace(task, source=Rows(train=task.rows("train"), dev=alike), metric="mcc")
    settings = replace(SMALL, skip=("train", "attention", "iat", "prune"))
    study = Study(place / "bert-tiny", tasks, settings, tmp_path).run()
    table = study["dissociation"]["D"][0]
    assert [table["tasks"][name]["value"] is None for name in ("reviews", "news")] == [True, nothing == 2]
    assert (table["mean"]["value"] is None) == (nothing == 2)
    assert "score 0 or less" not in " ".join(study["verdict"]), "what was not learned is said to be so once"
    assert study["verdict"][0].startswith("Not learned: reviews (mcc 0.00") and set(study["withheld"]) >= {"reviews"}
    assert "<html" in render([study])[:2000]


def test_a_model_that_has_lost_most_heads_is_studied_with_those_it_has(place, tmp_path):
    model = toy_model()
    prune(model.encoder, torch.tensor([[True, True, True, False], [True, True, False, False]]))
    folder, said = model.save_pretrained(tmp_path / "cut"), []
    with pytest.raises(HeadwiseError, match=r"alpha=0.5 is 4 of 8 heads, of which 3 exist.*--alpha 0\.37"):
        Study(folder, toy_tasks(), replace(SMALL, alpha=0.5), tmp_path)
    settings = replace(SMALL, alpha=0.25, fractions=(0.25, 0.5), prune=(0.25, 0.5), skip=("iat", "attention"))
    study = Study(folder, toy_tasks(), settings, tmp_path / "out", log=said.append).run()
    assert any("3 of 8 heads remain" in line for line in said)
    assert [row["kept"] for row in study["prune"]["rows"]] == [3, 1]
    assert study["dissociation"]["fractions"] == [0.25]
    written = (tmp_path / "out/study.json").read_text()
    assert json.loads(written, parse_constant=pytest.fail) == study  # where NaN would be no JSON
    assert study["importance"]["toy0"]["scores"][0][0] is None


def test_a_vocabulary_of_thirty_tokens_is_enough(tmp_path):
    words = [f"w{i}" for i in range(20)] + [f"m{i}{c}" for i in range(2) for c in "ab"]
    tiny("bert", vocab_size=30).save_pretrained(tmp_path / "model")
    tiny_tokenizer(words, 30).save_pretrained(tmp_path / "model")
    study = Study(tmp_path / "model", toy_tasks(2, 48), SMALL, tmp_path / "out").run()
    assert [row["fraction"] for row in study["prune"]["rows"]] == [0.0, 0.25]
    assert (tmp_path / "out/study.json").exists() and "<html" in render([study])[:2000]
