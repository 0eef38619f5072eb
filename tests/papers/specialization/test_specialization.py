"""The specialization recipe: the paper's own numbers as records give the paper's tables, and the jobs hold together."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp

from headwise.dissociation.result import Dissociation
from headwise.errors import HeadwiseError
from headwise.experiments.jobs import in_order
from headwise.heads.gates import Heads
from headwise.heads.selection import top
from headwise.io.files import plain
from headwise.io.records import Results
from headwise.papers.pages import pages
from headwise.papers.recipe import Scale, recipes
from headwise.papers.specialization import estimating, figures, news, ours, sweeps, training
from headwise.papers.specialization import published as paper
from headwise.papers.specialization import tables as apart
from headwise.papers.specialization.records import LABELS, Records, beside, trained
from headwise.papers.specialization.settings import CONTROLS, FIVE, GLUE, OWN, RELEASED, SIZES, UNSAID
from headwise.papers.specialization.similarity import similarities, similarity_table
from headwise.papers.specialization.transfer import Transfer
from headwise.papers.specialization.works import halve
from headwise.reporting import tables
from headwise.testing import tiny, tiny_batch
from headwise.training.plan import Plan

NAME = {label: name for name, label in LABELS.items()}


def config(tasks, seed=0, train="all", sampling="proportional", method=None, model="bert-base", **rest):
    plan = plain(asdict(Plan(seed=seed, train=train, sampling=sampling, **rest)))
    return {"model": model, "weights": None, "tasks": dict.fromkeys(tasks), "plan": plan, "method": method}


def save_lesions(results, tasks, performance, scores=None, fell=False, accuracy=None, **rest):
    """A record as the work ``lesions`` writes it; performances in percent, none first, then each task's heads."""
    found = Dissociation.of(tasks, np.array(performance) / 100, undefined="leave")
    if accuracy is not None:
        found = found.beside(np.array(accuracy) / 100)
    found = replace(found, collapsed=np.full(found.collapsed.shape, fell))
    rng = np.random.default_rng(len(tasks))
    maps = scores or {task: rng.random((12, 12)) for task in tasks}
    result = {"importance": {t: {"scores": np.asarray(m).tolist()} for t, m in maps.items()}}
    full = {"of": str(rest), "training": config(tasks, **rest), "trained": True, "by": "gradient"}
    results.save("lesions", full, result | {"dissociation": found.to_record()})


def pair_performance(d_a, d_b):
    """Performances of A and B (none, A's heads, B's heads) that have these scores."""
    return [[80.0, 40.0, 40.0 + 0.8 * d_a], [80.0, 40.0 + 0.8 * d_b, 40.0]]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Records that hold what the paper printed."""
    results = Results(tmp_path_factory.mktemp("paper"))
    rows = [[paper.TABLE_3[row][i] for row in ("none", *paper.TASKS, "random")] for i in range(5)]
    for seed in range(3):
        save_lesions(results, FIVE, rows, _overlapping(seed), seed=seed)
    for train, name in (("all", "bert-base"), ("heads", "bert-base frozen")):
        for pair, d_a, d_b in zip(paper.PAIRS, *paper.TABLE_9[name]):
            save_lesions(results, [NAME[t] for t in pair], pair_performance(d_a, d_b), train=train)
    for b in ("qnli", "sst2"):
        a_cells, b_cells, _ = paper.TABLE_4["AG-Pair", LABELS[b]]
        save_lesions(results, ["agpair", b], [a_cells, b_cells])
    return Records(results)


def _overlapping(seed: int) -> dict[str, np.ndarray]:
    """Scores with MNLI and QQP sharing 35 of their 43 top heads: 81.40 %."""
    order = np.random.default_rng(seed).permutation(144)
    maps = {task: np.random.default_rng([seed, i]).random(144) for i, task in enumerate(FIVE)}
    maps["mnli"][order[:43]] += 1
    maps["qqp"][order[8:51]] += 1
    return {task: scores.reshape(12, 12) for task, scores in maps.items()}


def assert_equal_beside(table, columns, tolerance=0.02):
    assert table["published"] is not None
    compared = 0
    for row, other in zip(table["rows"], table["published"]):
        for name, mine, theirs in zip(table["columns"], row, other):
            if theirs is not None and name in columns:
                assert mine == pytest.approx(theirs, abs=tolerance), (row, name)
                compared += 1
    assert compared


# -- the paper's numbers through our tables


def test_table_3_through_our_tables_is_table_3(published):
    table = apart.five_table(published, "bert-base")
    assert_equal_beside(table, [LABELS[task] for task in FIVE], 0.01)
    d = dict(zip(table["columns"], next(row for row in table["rows"] if row[0] == "D")))
    assert [round(d[task], 2) for task in paper.TASKS] == [7.24, 5.26, 9.83, 11.08, 3.28]
    assert "exchanged" in table["note"], "the erratum is told"


def test_table_9_through_our_tables_is_table_9(published):
    for frozen, mean in ((False, 8.80), (True, 2.49)):
        table = apart.pair_table(published, "bert-base", frozen)
        assert_equal_beside(table, ["D_A", "D_B", "D"])
        assert table["rows"][-1][4] == pytest.approx(mean, abs=0.006)
        assert len(table["rows"]) == 11, "AG-Pair is no task of Table 9"
    (row,) = apart.rise_table(published)["rows"]
    assert row[3] == pytest.approx(6.31, abs=0.005)


def test_training_and_a_frozen_encoder_are_compared_over_the_same_pairs(tmp_path):
    results = Results(tmp_path)
    save_lesions(results, ["mnli", "qqp"], pair_performance(10.0, 20.0))
    for pair, d in ((["mnli", "qqp"], 1.0), (["agnews", "sst2"], 50.0)):
        save_lesions(results, pair, pair_performance(d, d), train="heads")
    (row,) = apart.rise_table(Records(results))["rows"]
    assert row[1:] == [pytest.approx(15.0), pytest.approx(1.0), pytest.approx(14.0), 1]
    assert apart.paradigm_table(Records(results)) is None, "one pair of two tasks tells nothing of paradigms"


def test_input_paradigms_as_the_paper_has_them(published):
    table = apart.paradigm_table(published)
    assert_equal_beside(table, ["D across", "D within"])
    assert table["rows"][0][4] == pytest.approx(0.1), "no exchange of tasks does as well: one of ten"


def test_a_difference_of_paradigms_that_is_not_there_is_not_found():
    """Under exchangeable pairs the exact test is at or below its level as often as it says."""
    tasks, rng, small = list("abcde"), np.random.default_rng(0), 0
    for _ in range(300):
        d = {pair: rng.normal() for pair in combinations(tasks, 2)}
        small += apart.paradigm_test(d, {"a", "b", "c"})[2] <= 0.2
    assert small / 300 == pytest.approx(0.2, abs=0.07)


def test_table_4_through_our_tables_is_table_4(published):
    table = news.ag_pair_table(published, "bert-base")
    paired = {"columns": table["columns"]}
    chosen = [i for i, row in enumerate(table["rows"]) if row[0] == "AG-Pair"]
    paired |= {part: [table[part][i] for i in chosen] for part in ("rows", "published")}
    assert len(chosen) == 2
    assert_equal_beside(paired, [c for c in table["columns"] if c not in ("A", "B", "seeds")], 0.02)


def test_the_claim_of_table_4_is_tested_over_seeds(tmp_path):
    """The form of the input adds eight points to D beside one task, in each seed, and nothing beside the other."""
    results = Results(tmp_path)
    for seed in range(3):
        for other, more in (("qnli", 8.0), ("sst2", 0.0)):
            for news_task, add in (("agnews", 0.0), ("agpair", more)):
                d = 10 + 0.3 * seed + add + (0.1 * seed if add else 0.0)
                save_lesions(results, (news_task, other), pair_performance(d, d), seed=seed)
    table = news.news_test(Records(results), "bert-base")
    rows = {row[0]: dict(zip(table["columns"], row)) for row in table["rows"]}
    assert rows["QNLI"]["D of pairs - D of texts"] == pytest.approx(8.1) and rows["QNLI"]["p (Holm)"] < 0.01
    assert rows["SST-2"]["D of pairs - D of texts"] == pytest.approx(0) and rows["QNLI"]["seeds"] == 3
    assert rows["QNLI"]["published difference"] == pytest.approx(10.590 - 10.088)


def test_numbers_of_bert_base_alone_do_not_stand_beside_the_papers_other_models(tmp_path):
    results = Results(tmp_path)
    rows = np.full((5, 7), 50.0)
    rows[:, 0] = 80
    for model in ("roberta-base", "minilm-l6"):
        save_lesions(results, FIVE, rows, model=model)
        save_lesions(results, ("mnli", "qqp"), pair_performance(5, 5), model=model)
    records = Records(results)
    for make in (apart.five_table, apart.mutual_table, apart.overlap_table):
        assert make(records, "roberta-base")["published"] is None and make(records, "minilm-l6")["published"]
    assert apart.pair_table(records, "roberta-base", frozen=False)["published"][0][2] == 8.56
    assert beside("gpt", paper.TABLE_13["annealed"]) == "" and beside("mine", paper.TABLE_13["annealed"]) == "bert-base"


def test_overlap_and_layers(published):
    table = apart.overlap_table(published, "bert-base")
    assert table["rows"][0][:3] == ["MNLI", "QQP", pytest.approx(81.40, abs=0.01)]
    assert table["published"][0][2] == 81.40 and "83.72" in table["note"]
    layers = apart.layer_table(published, "bert-base")
    assert sum(row[-2] for row in layers["rows"]) == pytest.approx(43)
    one = published.five("bert-base")[0]
    assert (one.top("qnli") == top(torch.tensor(one.scores("qnli")), 0.3).numpy()).all()


def test_similarity_that_goes_with_shared_heads(tmp_path):
    """Planted: the more heads two tasks share, the smaller their D."""
    results, order = Results(tmp_path), np.arange(144)
    shift = {"mnli": 0, "qqp": 5, "qnli": 12, "agnews": 30, "sst2": 43}
    maps = {task: np.isin(order, np.arange(s, s + 43)) + 0.001 * order[::-1] for task, s in shift.items()}
    far = {(a, b): abs(shift[a] - shift[b]) for a in FIVE for b in FIVE}
    rows = [[80, *(40 + 0.5 * far[a, b] for b in FIVE)] for a in FIVE]
    save_lesions(results, FIVE, rows, {task: scores.reshape(12, 12) for task, scores in maps.items()})
    found = {row[0]: row[1:] for row in similarity_table(Records(results), "bert-base")["rows"]}
    assert found["overlap"][:2] == [None, None], "no D on accuracy is stored"
    assert found["overlap"][2] < -0.9 and found["overlap"][3] <= 0.05


def test_similarity_is_set_against_d_on_accuracy(tmp_path):
    """Planted: D on accuracy falls where tasks share heads, while F1 jumps at random."""
    results, order, rng = Results(tmp_path), np.arange(144), np.random.default_rng(0)
    shift = {"mnli": 0, "qqp": 5, "qnli": 12, "agnews": 30, "sst2": 43}
    maps = {task: (np.isin(order, np.arange(s, s + 43)) + 0.001 * order[::-1]) for task, s in shift.items()}
    far = {(a, b): abs(shift[a] - shift[b]) for a in FIVE for b in FIVE}
    exact = [[80, *(40 + 0.5 * far[a, b] for b in FIVE)] for a in FIVE]
    jumping = [[80, *rng.uniform(0, 80, 5)] for _ in FIVE]
    scores = {task: values.reshape(12, 12) for task, values in maps.items()}
    save_lesions(results, FIVE, jumping, scores, accuracy=exact)
    table = similarity_table(Records(results), "bert-base")
    assert table["columns"] == ["measure", "r (accuracy)", "p (accuracy)", "r (own metric)", "p (own metric)"]
    found = {row[0]: row[1:] for row in table["rows"]}
    assert found["overlap"][0] < -0.9 and found["overlap"][1] <= 0.05
    assert found["overlap"][2] > -0.9
    axis = figures.scatter(Records(results), ["bert-base"], "overlap").axes[0]
    assert "accuracy" in axis.get_ylabel() and float(axis.get_title().split()[-1]) == round(found["overlap"][0], 2)


def test_all_encoders_stand_in_one_table_and_figure(tmp_path):
    """Planted: 10 % for every task in one model, 0 and 20 % in two seeds of another, which has fewer heads."""
    results = Results(tmp_path)
    rows = lambda d: [[80, *(40 if a == b else 40 + 0.8 * d for b in FIVE)] for a in FIVE]  # noqa: E731
    few = {task: np.random.default_rng(i).random((6, 12)) for i, task in enumerate(FIVE)}
    for seed in (0, 1):
        save_lesions(results, FIVE, rows(20 * seed), few, seed=seed, model="small")
    assert apart.encoders_table(apart.encoders(Records(results))) is None, "one model has its own tables"
    save_lesions(results, FIVE, rows(10), model="large")
    every = apart.encoders(Records(results))
    large, small = apart.encoders_table(every)["rows"]
    assert large[:8] == ["large", 144, *[pytest.approx(10.0)] * 6] and large[8:10] == [None, None]
    assert small[:8] == ["small", 72, *[pytest.approx(10.0)] * 6] and small[8] < -100 and small[9] > 100
    assert (large[-1], small[-1]) == (1, 2)
    assert len(figures.encoders(every).axes) == 1


def test_a_training_that_failed_stands_in_a_table_of_its_own_and_moves_no_other(published, tmp_path):
    results = Results(tmp_path)
    rows = [[paper.TABLE_3[row][i] for row in ("none", *paper.TASKS, "random")] for i in range(5)]
    for seed in range(3):
        save_lesions(results, FIVE, rows, _overlapping(seed), seed=seed)
    before = [apart.five_table(published, "bert-base"), apart.mutual_table(published, "bert-base")]
    save_lesions(results, FIVE, [[33.0] * 7, [0.0] * 7, *[[50.0] * 7] * 3], fell=True, seed=3)
    found = Records(results)
    assert [apart.five_table(found, "bert-base"), apart.mutual_table(found, "bert-base")] == before
    assert apart.fell_table(published) is None
    assert apart.fell_table(found)["rows"] == [["bert-base", "MNLI, QQP, QNLI, AG, SST-2", "multi", 3]]


def test_a_d_that_one_seed_does_not_have_is_the_mean_of_the_others(published, tmp_path):
    """A task that scores 0 has no D; the other tasks of its seed have."""
    results = Results(tmp_path)
    rows = [[paper.TABLE_3[row][i] for row in ("none", *paper.TASKS, "random")] for i in range(5)]
    save_lesions(results, FIVE, rows, _overlapping(0), seed=0)
    save_lesions(results, FIVE, [rows[0], [0.0] * 7, *rows[2:]], _overlapping(1), seed=1)
    found, whole = (apart.mutual_table(records, "bert-base") for records in (Records(results), published))
    for row, expected in zip(found["rows"], whole["rows"]):
        assert row[1:] == pytest.approx(expected[1:])


def test_a_d_that_no_seed_has_is_an_empty_cell(tmp_path):
    results = Results(tmp_path)
    rows = [[paper.TABLE_3[row][i] for row in ("none", *paper.TASKS, "random")] for i in range(5)]
    save_lesions(results, FIVE, [rows[0], [0.0] * 7, *rows[2:]], _overlapping(0))
    records = Records(results)
    cells = {row[0]: row[1:] for row in apart.mutual_table(records, "bert-base")["rows"]}
    assert all(cells[task][1] is None for task in cells), "QQP has no D against any task"
    assert None not in (cells["QQP"][0], *cells["QQP"][2:]), "the others have theirs against QQP"
    assert set(similarities(records, "bert-base")) == {"overlap", "rank"}  # these need no other record


def test_agreement_of_estimators_is_spearmans_over_tasks_and_seeds(tmp_path):
    """Planted: twice the order of `gradient`, once its reverse in one seed of two, cut heads left out."""
    results, order = Results(tmp_path), np.arange(8.0).reshape(2, 4)
    order[1, 3] = np.nan
    maps = {"gradient": (order, order), "fisher": (order**3, -order), "l0": (None, order), "random": (-order, None)}
    for by, seeds in maps.items():
        for seed, scores in enumerate(seeds):
            if scores is not None:
                tasks = {"qqp": {"scores": scores.tolist(), "seconds": 1.0, "curve": [1.0, 0.5]}}
                config = {"model": "m", "by": by, "seed": seed, "examples": 9}
                home = "specialization.estimator"
                results.save(home, config, {"tasks": tasks, "fractions": [0.0, 0.5], "D": 0.1})
    found = estimating.agreement_table(Records(results), "m")
    assert found["columns"] == ["", "gradient", "fisher", "l0", "random"] == ["", *(row[0] for row in found["rows"])]
    assert [row[1:3] for row in found["rows"]] == [pytest.approx(r) for r in ([1, 0], [0, 1], [1, -1], [-1, -1])]
    assert found["rows"][2][4] is found["rows"][3][3] is None, "l0 and random have no seed in common"


def test_three_seeds_cannot_be_sure_that_rounds_help(tmp_path):
    """All three gain: by exchange of signs that happens by chance once in four, so p < 0.001 would be a lie."""
    results = Results(tmp_path)
    for seed, gain in enumerate((0.01, 0.08, 0.03)):
        found = {"curve": {"mnli": []}, "area": {"mnli": [0.5 + gain, 0.5]}}
        results.save("specialization.rounds", {"model": "bert-base", "seed": seed}, found)
    ((task, anew, once, gap, p),) = estimating.rounds_table(Records(results), "bert-base")["rows"]
    assert (task, anew, once, gap) == ("MNLI", pytest.approx(54.0), pytest.approx(50.0), pytest.approx(4.0))
    assert 0.1 < p < 0.3


# -- GLUE


def save_glue(results, name, gains, sampling="annealed", method=None, **rest):
    for seed, gain in enumerate(gains):
        scores = {task: {"value": 0.7 + gain + 0.01 * seed, "metric": "accuracy"} for task in GLUE}
        full = config(GLUE, seed, sampling=sampling, method=method, **rest)
        results.save("train", full, {"scores": scores, "steps": 1})


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    results = Results(tmp_path_factory.mktemp("glue"))
    iat = {"name": "iat", "alpha": 0.3, "delta": 0.1, "choose": "top", "freeze": "update"}
    save_glue(results, "multi", (0.0, 0.0, 0.0))
    save_glue(results, "iat", (0.011, 0.010, 0.012), method=iat)
    save_glue(results, "random", (0.001, -0.001, 0.0), method={**iat, "choose": "random"})
    for alpha in (0.1, 0.5):
        save_glue(results, "alpha", (alpha / 100,) * 3, method={**iat, "alpha": alpha})
    save_glue(results, "delta", (0.0, 0.0, 0.0), method={**iat, "alpha": 0.5, "delta": 0.15})
    save_glue(results, "own", (0.02, 0.021, 0.019), method={**OWN["a rate per head and task"], "examples": 10})
    for switches in (RELEASED | CONTROLS).values():
        save_glue(results, "released", (0.02, 0.02, 0.02), method={"name": "iat_released", "alpha": 0.3, **switches})
    save_glue(results, "other plain", (-0.3, -0.3, -0.3), lr=1e-3)
    save_glue(results, "other iat", (-0.28, -0.27, -0.29), method=iat, lr=1e-3)
    return Records(results)


def test_methods_are_set_against_plain_training_seed_by_seed(trainings):
    rows = {row[0]: row for row in training.glue_table(trainings, "bert-base", "annealed")["rows"]}
    columns = training.glue_table(trainings, "bert-base", "annealed")["columns"]
    cell = lambda name, column: rows[name][columns.index(column)]  # noqa: E731
    assert cell("multi", "mean") == pytest.approx(71.0) and cell("multi", "sd") == pytest.approx(1.0)
    assert cell("iat", "against plain") == pytest.approx(1.1) and cell("iat", "p") < 0.01
    assert cell("random heads", "p") > 0.5 and cell("iat", "tasks better") == 8
    beside = training.glue_table(trainings, "bert-base", "annealed")["published"]
    assert beside[[*rows].index("iat")][columns.index("CoLA")] == 53.5


def test_seeds_that_plain_training_has_alone_do_not_move_a_gap(tmp_path):
    """A lucky fourth seed of plain training, which IAT does not have, says nothing of IAT: in tables and figures."""
    results = Results(tmp_path)
    save_glue(results, "multi", (0.0, 0.0, 0.0, 0.2))
    save_glue(results, "iat", (0.01, 0.01, 0.04), method={"name": "iat", "alpha": 0.3, "delta": 0.1, "choose": "top"})
    records = Records(results)
    assert training.method_gaps(records, "bert-base") == {"iat": pytest.approx([1.0, 1.0, 4.0])}
    base, swept = sweeps.sweep_points(records, "bert-base")
    assert not swept and not sweeps.sweep_tables(records, "bert-base"), "one point is no sweep"
    save_glue(results, "0.5", (0.0, 0.0, 0.0), method={"name": "iat", "alpha": 0.5, "delta": 0.1, "choose": "top"})
    base, swept = sweeps.sweep_points(records := Records(results), "bert-base")
    (points,) = swept.values()
    assert training.gaps(points[0.3], base) == pytest.approx([1.0, 1.0, 4.0])
    (table,) = sweeps.sweep_tables(records, "bert-base")
    assert table["rows"][1][3] == pytest.approx(2.0)


def test_a_sweep_holds_what_has_its_fixed_setting(tmp_path):
    """Ticket-Share is important-head training from the first step on, and no point of either axis."""
    results = Results(tmp_path)
    save_glue(results, "multi", (0.0, 0.0))
    for alpha, delta in ((0.3, 0.1), (0.5, 0.1), (0.5, 0.2), (0.3, 1.0), (0.5, 1.0)):
        method = {"name": "iat", "alpha": alpha, "delta": delta, "choose": "top"}
        save_glue(results, f"{alpha} {delta}", (0.01, 0.02), method=method)
    save_glue(results, "other", (0.0, 0.0), method={"name": "prune_least", "alpha": 0.5, "delta": 0.3})
    _, swept = sweeps.sweep_points(Records(results), "bert-base")
    assert {axis.sign: list(points) for axis, points in swept.items()} == {"δ": [0.1, 0.2], "α": [0.3, 0.5]}


def test_methods_are_pooled_over_models_by_their_own_plain_training(tmp_path):
    """Models differ by far more than the method gains: only a comparison within each of them can show it."""
    results, iat = Results(tmp_path), {"name": "iat", "alpha": 0.3, "delta": 0.1, "choose": "top"}
    best, other = OWN["a factor per head and task"], OWN["a rate per head and task"]
    for model, level in (("bert-base", 0.0), ("other", 0.2)):
        save_glue(results, "multi", (level, level), model=model)
        save_glue(results, "own", (level + 0.01, level + 0.02), method=best, model=model)
        save_glue(results, "random", (level + 0.01, level - 0.02), method={**iat, "choose": "random"}, model=model)
    save_glue(results, "iat", (0.0, 0.0), method=iat)
    save_glue(results, "rate", (0.5, 0.5), method=other)  # in one model alone, nothing to pool
    made = ours.pooled_table(Records(results))
    random, row = [dict(zip(made["columns"], cells)) for cells in made["rows"]]
    assert random["method"] == "random heads" and random["better in"] == "2 of 4"
    assert row["method"] == "a factor per head and task" and row["against"] == "multi"
    assert row["difference"] == pytest.approx(1.5) and row["better in"] == "4 of 4" and row["models"] == 2
    wanted = ttest_1samp([1, 2, 1, 2], 0)
    assert row["p"] == pytest.approx(wanted.pvalue) and row["p (Holm)"] == pytest.approx(2 * wanted.pvalue)
    assert [row["low"], row["high"]] == pytest.approx(list(wanted.confidence_interval()))


def test_methods_are_pooled_under_one_setting_at_a_time(tmp_path):
    """One model was mostly trained with clipping, the other mostly without, and a third with another rate as well."""
    results, best = Results(tmp_path), OWN["a factor per head and task"]
    gains = {None: (0.01, 0.02), 1.0: (0.03, 0.05)}
    for model, level, often in (("bert-base", 0.0, None), ("other", 0.2, 1.0)):
        for clip, gain in gains.items():
            save_glue(results, "multi", (level, level), model=model, clip=clip)
            save_glue(results, "own", [level + one for one in gain], method=best, model=model, clip=clip)
        save_glue(results, "pruned", (level, level), method={"name": "prune_least"}, model=model, clip=often)
    for rate, level in ((1e-4, 0.1), (5e-4, -0.1)):
        save_glue(results, "multi", (level,), model="third", lr=rate)
        save_glue(results, "own", (level + 0.1,), method=best, model="third", lr=rate)
    table = ours.pooled_table(Records(results))
    made = [dict(zip(table["columns"], row)) for row in table["rows"]]
    found = {row["clipped at"]: row["difference"] for row in made if row["method"] == "a factor per head and task"}
    assert found == {"–": pytest.approx(1.5), "1": pytest.approx(4.0)}
    assert not [row for row in made if row["method"] == "prune least"], "never under the same setting"


def test_sweeps_and_switches_come_in_order(trainings):
    delta, alpha = sweeps.sweep_tables(trainings, "bert-base")
    assert [row[0] for row in alpha["rows"]] == ["plain", "0.1", "0.3", "0.5"] and alpha["columns"][0] == "α"
    assert [row[0] for row in delta["rows"]] == ["plain", "0.1", "0.15"]
    released = training.released_table(trainings, "bert-base")
    assert [row[0] for row in released["rows"]] == ["as the paper says", *RELEASED, *CONTROLS]
    steps = [row[released["columns"].index("against the row above")] for row in released["rows"]]
    assert steps[1:3] == pytest.approx([0.9, 0.0]) and steps[-1] is None, "the control adds nothing to the row above"
    assert training.ablation_table(trainings, "bert-base")["published"][-1][1] == 83.41


def test_a_training_that_failed_moves_no_table_of_scores(tmp_path):
    """Answers of one class for all rows have an MCC and an F1 of exactly 0."""
    results, iat = Results(tmp_path), {"name": "iat", "alpha": 0.3, "delta": 0.1, "choose": "top", "freeze": "update"}
    save_glue(results, "multi", (0.0, 0.0, 0.0))
    save_glue(results, "iat", (0.011, 0.010, 0.012), method=iat)
    before = training.glue_table(Records(results), "bert-base", "annealed")
    for method in (None, iat):
        scores = {t: {"value": 0.0 if t in ("cola", "qqp") else 0.5, "metric": "accuracy"} for t in GLUE}
        results.save("train", config(GLUE, 3, sampling="annealed", method=method), {"scores": scores, "steps": 1})
    found = Records(results)
    assert training.glue_table(found, "bert-base", "annealed") == before
    assert [row[2:] for row in apart.fell_table(found)["rows"]] == [["multi", 3], ["iat", 3]]


def test_tables_tell_which_seeds_branched_off_from_the_plain_training_beside_them(tmp_path):
    """Planted: losses as in plain training until nine tenths in two seeds of three, from the start others in one."""
    results, iat = Results(tmp_path), {"name": "iat", "alpha": 0.3, "delta": 0.1, "choose": "top", "freeze": "update"}
    steps = list(range(5, 101, 5))
    for seed in range(3):
        losses = [1 - step / 200 + seed for step in steps]
        branched = [loss if step < 90 else loss + 0.1 for step, loss in zip(steps, losses)]
        for method, shown in ((None, losses), (iat, branched if seed else [loss + 0.001 for loss in losses])):
            scores = {task: {"value": 0.7 + 0.01 * seed} for task in GLUE}
            curves = {"cola": {"step": steps, "loss": shown}}
            full = config(GLUE, seed, sampling="annealed", method=method)
            results.save("train", full, {"scores": scores, "steps": 100, "curves": curves})
    found = training.ablation_table(Records(results), "bert-base")
    assert [row[-1] for row in found["rows"]] == [None, 2] and found["columns"][-1] == "same start"


def test_the_grid_says_what_is_left_of_the_best_where_other_seeds_choose_it(tmp_path):
    """Appendix F with planted gains: one point is best in the first two seeds by luck, and chosen for the third."""
    results = Results(tmp_path)
    save_glue(results, "multi", (0.0, 0.0, 0.0))
    gains = {(0.05, 0.1): (0.01, 0.01, 0.01), (0.05, 0.2): (0.0, 0.0, 0.0), (0.1, 0.1): (0.05, 0.05, -0.08)}
    gains[0.1, 0.2] = (0.0, 0.0, 0.0)
    for (delta, alpha), each in gains.items():
        save_glue(results, f"{delta} {alpha}", each, method={"name": "iat", "delta": delta, "alpha": alpha})
    save_glue(results, "line", (0.2, 0.2, 0.2), method={"name": "iat", "delta": 0.3, "alpha": 0.9})
    table = sweeps.grid_table(Records(results), "bert-base")
    assert [(float(row[0]), float(row[1])) for row in table["rows"]] == sorted(gains), "the line is no part of a grid"
    against = {(float(row[0]), float(row[1])): row[4] for row in table["rows"]}
    assert against[0.1, 0.1] == pytest.approx(100 * (0.05 + 0.05 - 0.08) / 3)
    # without seed 0 or 1 the best of the others is 0.05, 0.1; without seed 2 it is 0.1, 0.1
    assert f"{100 * (0.01 + 0.01 - 0.08) / 3:+.2f} points" in table["note"]


def test_settings_the_paper_does_not_name_have_a_row_each(tmp_path):
    results = Results(tmp_path)
    for told in UNSAID.values():
        for alpha, gains in ((1.0, (0.01, 0.02, 0.03)), (0.3, (0.02, 0.03, 0.04))):
            method = {"name": "released_settings", "alpha": alpha, "delta": 0.1, **told.get("method", {})}
            for seed, gain in enumerate(gains):
                scores = {task: {"value": 0.7 + gain + 0.01 * seed, "metric": "accuracy"} for task in GLUE}
                full = config(GLUE, seed, method=method, sampling="annealed", **told.get("plan", {}))
                results.save("train", full | told.get("shape", {}), {"scores": scores, "steps": 1})
    save_glue(results, "multi annealed", (0.0, 0.0, 0.0), sampling="annealed")
    table = training.unsaid_table(Records(results), "bert-base")
    rows = {row[0]: dict(zip(table["columns"], row)) for row in table["rows"]}
    assert list(rows) == ["as the paper says", *UNSAID]
    assert all(rows[name]["against plain"] == pytest.approx(2.0) for name in UNSAID)
    assert all(rows[name]["IAT − plain"] == pytest.approx(1.0) and rows[name]["seeds"] == 3 for name in UNSAID)


def test_d_on_glue_is_set_beside_d_with_important_head_training(tmp_path):
    """Figure 8: IAT raises D of one task by ten points in each seed; a task that scores nothing has no D."""
    results, iat = Results(tmp_path), {"name": "iat", "alpha": 0.3, "delta": 0.1, "choose": "top", "freeze": "update"}
    for seed in range(3):
        for method, own in ((None, 40.0), (iat, 32.0 + seed)):
            rows = np.full((len(GLUE), len(GLUE) + 1), 60.0)
            rows[:, 0] = 80.0
            rows[0] = 0.0
            rows[1, 2] = own
            save_lesions(results, GLUE, rows, seed=seed, method=method, sampling="annealed")
    records = Records(results)
    table = sweeps.glue_d_table(records, "bert-base")
    rows = {row[0]: dict(zip(table["columns"], row)) for row in table["rows"]}
    assert rows["MNLI"]["difference"] == pytest.approx(100 * np.mean([8, 7, 6]) / 80) and rows["MNLI"]["p"] < 0.05
    assert rows["CoLA"]["D plain"] is None and rows["mean"]["seeds"] == 3
    assert rows["mean"]["difference"] == pytest.approx(rows["MNLI"]["difference"] / 7), "CoLA is not in the mean"
    assert figures.raised({"bert-base": sweeps.on_glue(records, "bert-base")}).axes


def test_methods_of_our_own_are_set_against_plain_training_and_iat(trainings):
    (found,) = ours.own_tables(trainings, "bert-base")
    rows = {row[0]: row for row in found["rows"]}
    assert list(rows) == ["multi", "iat", "a rate per head and task"]
    own = rows["a rate per head and task"]
    assert own[3] == pytest.approx(2.0) and own[6] == pytest.approx(0.9)
    assert own[4] <= own[5] == pytest.approx(2 * min(own[4], own[7])), "two tests, the smaller p-value doubled"
    assert rows["iat"][3] == pytest.approx(1.1) and rows["multi"][3] is None


def test_the_best_of_our_own_is_set_against_what_it_is_made_of(tmp_path):
    """Planted: 3 points above its tied kin and 1 above clipping alone."""
    results, best = Results(tmp_path), ours.BEST
    tied = "a factor per head, faster"
    for name, gains, more in (
        ("multi", (0.0, 0.001), {}),
        (best, (0.03, 0.032), {"method": OWN[best]}),
        (tied, (0.0, 0.003), {"method": OWN[tied]}),
        ("multi clipped", (0.02, 0.021), {"clip": 1.0}),
        (f"{best} clipped", (0.03, 0.033), {"clip": 1.0, "method": OWN[best]}),
    ):
        save_glue(results, name, gains, **more)
    rows = {tuple(row[:3]): row[3] for row in ours.direct_table(Records(results), "bert-base")["rows"]}
    assert rows["–", tied, "–"] == pytest.approx(2.95) and rows["–", "multi", "1"] == pytest.approx(1.05)
    assert rows["1", "multi", "1"] == pytest.approx(1.1) and ("1", tied, "–") not in rows


def test_methods_of_our_own_have_a_table_without_iat_as_well(tmp_path):
    results = Results(tmp_path)
    save_glue(results, "multi", (0.0, 0.0))
    save_glue(results, "own", (0.02, 0.03), method=OWN["a factor per head and task"])
    (found,) = ours.own_tables(Records(results), "bert-base")
    own = found["rows"][1]
    assert own[0] == "a factor per head and task" and own[3] == pytest.approx(2.5) and own[4] == own[5]
    assert own[6:9] == [None] * 3


def test_another_learning_rate_stands_in_a_table_of_its_own(trainings):
    rows = training.condition_table(trainings, "bert-base")["rows"]
    assert [row[1] for row in rows] == ["2e-05", "0.001"]
    assert rows[0][7] == pytest.approx(1.1) and rows[1][7] == pytest.approx(2.0)
    assert rows[1][4] == pytest.approx(41.0), "and does not move the mean of plain training elsewhere, 71"


def test_a_decoder_is_read_at_its_last_token(tmp_path):
    """Its first one sees nothing else."""
    (tmp_path / "config.json").write_text('{"model_type": "opt"}')
    found = {
        model: {
            job.config["pooling"]
            for job in recipes["specialization"].jobs(Scale("small", {model: str(where)}))
            if "pooling" in job.config
        }
        for model, where in {"mine": tmp_path, "stories15m": tmp_path / "a", "minilm-l6": tmp_path / "b"}.items()
    }
    assert found == {"mine": {"last"}, "stories15m": {"last"}, "minilm-l6": {"cls"}}


def test_every_variant_has_a_name_of_its_own():
    made = [
        job
        for job in recipes["specialization"].jobs(Scale("full"))
        if job.work == "train" and "cola" in job.config["tasks"]
    ]
    main = [job for job in made if job.config["model"] == "bert-base" and job.config["plan"]["seed"] == 0]
    seen = {(trained(j.config).method, j.config["plan"]["sampling"]): j.key for j in main if len(j.config["tasks"]) > 1}
    assert len(set(seen.values())) == len({job.key for job in main if len(job.config["tasks"]) > 1})


# -- few-shot


def test_few_shot_seeds_of_several_trainings_are_put_together(tmp_path):
    results, rng = Results(tmp_path), np.random.default_rng(0)
    luck = rng.normal(0.7, 0.1, 30)
    for start, gain in (("iat", 0.05), ("multi", 0.0)):
        for turn in range(3):
            seeds = tuple(range(turn, 30, 3))
            scores = (luck[list(seeds)] + gain + rng.normal(0, 0.01, 10))[None, None]
            record = Transfer("scitail", "accuracy", (start,), (4,), seeds, scores, 100).to_record()
            key = {"model": "bert-base", "start": start, "task": "scitail", "turn": turn}
            results.save("specialization.few_shot", key, record)
    found = training.few_shot(Records(results), "bert-base")["scitail"]
    assert found.starts == ("multi", "iat") and found.seeds == tuple(range(30))
    assert found.scores[0, 0] == pytest.approx(luck, abs=0.05)
    table = training.few_shot_table(Records(results), "bert-base")
    assert table["rows"][1][8] == "*" and table["published"][1][3] == 75.66
    drawn = table["columns"].index("p over draws")
    assert table["rows"][0][drawn] is None and 0 < table["rows"][1][drawn] < 0.01
    starred = table["columns"].index("starred in Table 6")
    assert table["rows"][1][starred] == "", "75.66 has no star"
    assert all(len(row) == len(table["columns"]) for row in (*table["rows"], *table["published"]))
    assert table["published"][0][3:5] == [69.44, 8.9]


# -- jobs


@pytest.fixture(scope="module")
def full():
    return in_order(recipes["specialization"].jobs(Scale("full")))


@pytest.fixture(scope="module", params=["full", "small"])
def everything(request):
    return in_order(recipes["specialization"].jobs(Scale(request.param, models={"bert-base": "someone/bert"})))


def test_the_published_size_needs_nothing_on_this_machine(full):
    assert {job.config.get("weights") for job in full} == {None}
    kinds = Counter(job.work.rpartition(".")[2] for job in full)
    pairs = [
        j for j in full if j.work == "train" and len(j.config["tasks"]) == 2 and j.config["plan"]["train"] == "all"
    ]
    assert len(pairs) == 3 * 7 * 12, "ten pairs and AG-Pair with two, seven models, three seeds"
    assert kinds["few_shot"] == 7 * 2 * 5 * 3 and kinds["mtdnn"] == kinds["distilled"] == 7 * 3


def test_the_published_size_is_the_same_for_every_model_in_any_order():
    """Once it was whole for the first model alone."""
    names = {"bert-base": "a/bert-base", "roberta-base": "a/roberta-base", "gpt2-medium": "a/gpt2-medium"}
    listed = []
    for order in (list(names), list(names)[::-1]):
        made = in_order(
            recipes["specialization"].jobs(Scale("full", {name: names[name] for name in order}, seeds=(0,)))
        )
        listed += [Counter(j.title.replace(name, "MODEL") for j in made if f"{name} " in j.title) for name in order]
    assert all(one == listed[0] for one in listed) and sum(listed[0].values()) > 100


def test_tinybert_is_distilled_under_a_tuned_bert_base():
    """Whoever asks for TinyBERT gets its teacher's training too; other models teach half of themselves."""
    for models in ({"tinybert": "x/tinybert"}, {"bert-base": "x/bert", "tinybert": "x/tinybert"}):
        made = in_order(recipes["specialization"].jobs(Scale("full", models, seeds=(0,)), ["table-5"]))
        by_key = {job.key: job for job in made}
        taught = {job.config["model"]: job.config for job in made if job.work.endswith("distilled")}
        teachers = {name: by_key[one["of"]].config["model"] for name, one in taught.items()}
        assert teachers == {name: "bert-base" for name in models}
        assert taught["tinybert"]["whole"] and not any(one.get("whole") for n, one in taught.items() if n != "tinybert")
        assert taught["tinybert"]["share"] * taught["tinybert"]["plan"]["epochs"] == 2


def test_important_head_training_goes_on_from_a_mark_of_plain_training(everything):
    by_key = {job.key: job for job in everything}
    branched = 0
    for job in everything:
        method = job.config.get("method") or {} if job.work == "train" else {}
        delta = method.get("delta")  # a word if the method chooses it: no mark to branch off
        if isinstance(delta, float) and delta < 1:
            plain_job = by_key[job.at["branch"]]
            assert str(method["delta"]) in plain_job.at["marks"].split(","), job.title
            assert {**plain_job.config, "method": method} == job.config
            branched += 1
        elif job.work == "train":
            assert "branch" not in job.at
    assert branched > 50


def test_few_shot_seeds_are_shared_out_evenly(full):
    shots = [j for j in full if j.work.endswith("few_shot") and j.config["start"] == "iat"]
    shots = [j for j in shots if j.config["model"] == "bert-base"]
    for task in ("scitail", "imdb"):
        seeds = [seed for j in shots if j.config["task"] == task for seed in j.config["seeds"]]
        assert sorted(seeds) == list(range(30))
    starts = {j.config["training"]["plan"]["seed"]: j.config["seeds"][0] for j in shots}
    assert starts == {0: 0, 1: 1, 2: 2}


def test_every_job_reads_only_what_runs_before_it(everything):
    for job in everything:
        before = {earlier.key for earlier in job.after}
        named = [job.config.get("of"), job.config.get("lesions")]
        named += list(job.config["of"].values()) if isinstance(job.config.get("of"), dict) else []
        assert {key for key in named if isinstance(key, str)} <= before, job.title


def test_models_and_seeds_of_one_s_own():
    made = recipes["specialization"].jobs(Scale("full", models={"mine": "someone/mine"}, seeds=(7,)))
    assert {job.config["model"] for job in made if "model" in job.config} == {"mine"}
    seeds = {job.config["plan"]["seed"] for job in made if job.work == "train"}
    assert seeds == {7}
    with pytest.raises(HeadwiseError, match="size"):
        Scale("huge")


# -- works


def test_half_an_encoder_is_its_every_second_layer():
    whole, half = tiny("bert", num_hidden_layers=4), tiny("bert", num_hidden_layers=4)
    halve(half)
    assert Heads.of(half).num_layers == half.config.num_hidden_layers == 2
    for mine, theirs in zip(half.encoder.layer, (1, 3)):
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), whole.encoder.layer[theirs].parameters()))
    assert half(**tiny_batch(half)).last_hidden_state.shape[0] == 3


@pytest.mark.slow
def test_the_smoke_size_runs_whole(tmp_path):
    from headwise.experiments.sweep import run

    recipe = recipes["specialization"]
    made = recipe.jobs(Scale("smoke"))
    swept = run(made, tmp_path, workers=2, device="cpu")
    assert not swept.failed, str(swept)
    page = pages(recipe, Results(tmp_path / "records"), tmp_path / "pages").read_text()
    parts = recipe.parts(Results(tmp_path / "records"))
    assert len(parts) == len(recipe.sections) - 1 and all(part.title in page for part in parts)  # one compares models
    for part in parts:
        for table in part.tables:
            assert tables.cells(table), table["title"]
    assert set(SIZES) == {"smoke", "small", "full"}


def test_a_double_dissociation_is_tested_over_trainings(tmp_path):
    """Rows of one training say nothing of another: the p-value is over three seeds, of both sides, over all pairs."""
    results = Results(tmp_path)
    sides = {("mnli", "agnews"): ([20, 22, 21], [15, 16, 14]), ("mnli", "sst2"): ([20, 22, 21], [15, -10, 4])}
    for pair, (d_a, d_b) in sides.items():
        for seed in range(3):
            save_lesions(results, pair, pair_performance(d_a[seed], d_b[seed]), seed=seed)
    table = apart.pair_table(Records(results), "bert-base", frozen=False)
    rows = {(row[0], row[1]): dict(zip(table["columns"], row)) for row in table["rows"]}
    clear, unclear = (max(ttest_1samp(side, 0, alternative="greater").pvalue for side in sides[pair]) for pair in sides)
    assert rows["MNLI", "AG"]["p"] == pytest.approx(2 * clear) and rows["MNLI", "AG"]["p"] < 0.05
    assert rows["MNLI", "SST-2"]["p"] == pytest.approx(unclear) and rows["MNLI", "SST-2"]["verdict"] == "distinct"
    assert "over trainings" in table["note"] and "2 pairs" in table["note"]


def test_one_training_has_no_p(published):
    assert all(row[9] is None for row in apart.pair_table(published, "bert-base", frozen=False)["rows"])
