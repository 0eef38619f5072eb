"""Eq. 5-7 against the published tables, their laws, and intervals that cover."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from scipy import stats as scipy_stats

from headwise.dissociation.result import Counts, Dissociation
from headwise.dissociation.significance import draws_for, mean_defined, pairwise, verdict
from headwise.errors import HeadwiseError
from headwise.measuring.stats import above_zero
from headwise.papers.specialization import published

TASKS = published.TASKS


def table_3() -> Dissociation:
    columns = [published.TABLE_3[lesion] for lesion in ("none", *TASKS, "random")]
    return Dissociation.of(TASKS, np.array(columns).T / 100)


def accuracy(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def drawn(generator: np.random.Generator, truth: np.ndarray, n: int) -> Counts:
    """One task's right and wrong answers under every lesion; an example's difficulty is the same under all."""
    hard = scipy_stats.norm.cdf((generator.normal(size=(n, 1, 1)) + generator.normal(size=(n, *truth.shape))) / 2**0.5)
    return Counts(np.stack([hard < truth, np.ones((n, *truth.shape))], -1).astype(float), accuracy)


# golden


def test_table_3_gives_the_scores_of_eq_7_and_its_printed_row_swaps_two():
    d = 100 * table_3().scores()
    np.testing.assert_allclose(d, [7.24, 5.26, 9.83, 11.08, 3.28], atol=0.005)
    printed = dict(zip(TASKS, published.TABLE_3["D"]))
    printed["QNLI"], printed["AG"] = printed["AG"], printed["QNLI"]
    np.testing.assert_allclose(d, [printed[t] for t in TASKS], atol=0.05)
    assert "table 3" in published.ERRATA


def test_averaging_over_tasks_in_place_of_lesions_is_not_eq_7():
    """The mistake of the released program: all tasks under one lesion, where Eq. 7 has one task under all lesions."""
    base, lesioned = table_3().performance[0][:, 0], table_3().performance[0][:, 1:6]
    own = lesioned.diagonal()
    mistaken = ((lesioned.sum(0) - own) / 4 - own) / base
    np.testing.assert_allclose(100 * mistaken, [23.03, 6.36, 21.74, -6.20, -6.09], atol=0.01)
    assert np.abs(mistaken - table_3().scores()).min() > 0.01


@pytest.mark.parametrize("pair", published.TABLE_4)
def test_table_4(pair):
    on_a, on_b, (d_a, d_b, d) = published.TABLE_4[pair]
    found = Dissociation.of(pair, np.array([on_a, on_b]) / 100)
    scores = found.pairs()[pair]
    np.testing.assert_allclose([100 * scores[k] for k in ("d_a", "d_b", "d")], [d_a, d_b, d], atol=0.01)
    np.testing.assert_allclose(100 * found.scores(), [d_a, d_b], atol=0.01)  # Eq. 7 of two tasks is Eq. 6
    assert scores["verdict"] == ("distinct" if "QNLI" in pair else "double")


def test_table_9_averages():
    means = {model: np.mean(scores) for model, scores in published.TABLE_9.items()}
    told = {"roberta-base": 13.445, "deberta-v3-base": 10.88, "bert-base": 8.80, "bert-base frozen": 2.49}
    for model, mean in told.items():
        assert means[model] == pytest.approx(mean, abs=0.005)
    assert means["bert-base"] - means["bert-base frozen"] == pytest.approx(6.31, abs=0.005)
    both = np.mean(published.TABLE_9["bert-base"], axis=0)
    across = np.array([(a in published.PAIR_INPUT) != (b in published.PAIR_INPUT) for a, b in published.PAIRS])
    np.testing.assert_allclose([both[across].mean(), both[~across].mean()], [12.654, 3.015], atol=0.002)


def test_table_9_verdicts_are_the_ones_the_paper_tells():
    verdicts = {model: [verdict(a / 100, b / 100) for a, b in zip(*d)] for model, d in published.TABLE_9.items()}
    assert verdicts["bert-base"].count("distinct") == 4
    tuned = [v for model, vs in verdicts.items() if "frozen" not in model for v in vs]
    assert set(tuned) == {"double", "distinct"}
    assert verdicts["bert-base frozen"].count("none") == 3


def test_table_10_is_the_pairwise_score_of_table_3():
    printed = np.array([[np.nan if d is None else d for d in row] for row in published.TABLE_10.values()]).T  # [A, B]
    found = 100 * pairwise(table_3().performance[0])
    np.fill_diagonal(found, np.nan)
    np.testing.assert_allclose((found + found.T) / 2, (printed + printed.T) / 2, atol=0.05)  # D of the pairs
    np.testing.assert_allclose(100 * table_3().scores(), np.nanmean(printed, 1), atol=0.05)  # D of the tasks
    np.testing.assert_allclose(found[1:], printed[1:], atol=0.015)
    assert 0.06 < np.nanmax(np.abs(found[0] - printed[0])) < 0.07  # MNLI's cells follow another base: an erratum
    np.testing.assert_allclose(found[0] * 83.91 / 83.5, printed[0], atol=0.015)
    assert "83.5" in published.ERRATA["table 10"]


def test_table_11_counts_shared_heads_of_three_seeds():
    off = {}
    for pair, printed in published.TABLE_11.items():
        exact = 100 * round(printed / 100 * 129) / 129
        assert printed == pytest.approx(exact, abs=0.03)
        if abs(printed - exact) > 0.005:
            off[pair] = round(exact, 2)
    assert off == {("MNLI", "QNLI"): 83.72} and "83.72" in published.ERRATA["table 11"]


def test_published_means_agree_with_their_columns():
    tables = [published.TABLE_5, published.TABLE_12, *published.TABLE_13.values()]
    off = [key for table in tables for key, row in table.items() if abs(np.mean(row[:9]) - row[9]) > 0.0501]
    assert off == [("bert-large", "adapters")] and "adapters" in published.ERRATA["table 5"]
    for table, told in zip(tables[:2], published.IN_TEXT["mean gain of IAT, annealed and proportional"]):
        gains = [table[m, "iat"][9] - table[m, "multi"][9] for m, method in table if method == "iat"]
        assert np.mean(gains) == pytest.approx(told, abs=0.05)


# laws


@pytest.mark.parametrize(
    ("d_a", "d_b", "word"),
    [
        (0.10, 0.10, "distinct"),
        (0.30, 0.01, "distinct"),
        (0.09, 0.10, "double"),
        (0.11, -0.01, "single"),
        (-0.2, 0.2, "single"),
        (0.10, -0.01, "none"),
        (0.2, 0.0, "none"),
        (0.0, 0.0, "none"),
        (-0.1, -0.3, "both negative"),
        (math.nan, 0.1, "undefined"),
    ],
)
def test_verdicts(d_a, d_b, word):
    assert verdict(d_a, d_b) == verdict(d_b, d_a) == word


# uncertainty

TRUE = np.array([[[0.9, 0.5, 0.8, 0.85], [0.8, 0.7, 0.4, 0.75]]])  # (F, T, K)


def test_relabelled_lesions_are_the_null_of_d():
    generator = np.random.default_rng(5)
    null = generator.uniform(0.4, 0.8, (99, 2, 2))
    found = Dissociation.of(["a", "b"], [[0.9, 0.3, 0.9], [0.9, 0.9, 0.3]]).permutation_test(null)
    assert found == {"mean": 0.01, "tasks": {"a": 0.01, "b": 0.01}}
    p = [Dissociation.of(["a", "b"], np.c_[[0.9, 0.9], x]).permutation_test(null)["mean"] for x in null]
    assert scipy_stats.kstest(p, "uniform").pvalue > 0.05
    with pytest.raises(HeadwiseError, match="null of shape"):
        table_3().permutation_test(null)


# what is shown


def test_the_record_has_its_shape_and_is_json():
    counts = [drawn(np.random.default_rng(6), np.repeat(TRUE[:, i], 2, 0), 300) for i in range(2)]
    found = Dissociation.of(["a", "b"], fractions=(0.1, 0.3), counts=counts, collapsed=np.eye(2, 4, dtype=bool))
    record = json.loads(json.dumps(found.beside(counts=counts, chance=[0.5, 0.3]).to_record(), allow_nan=False))
    shown = {"fractions", "default", "lesions", "performance", "low", "high", "collapsed", "cells", "D", "on"}
    assert set(record) == shown | {"n", "random", "matched", "matched_performance", "null", "withheld"}
    assert record["n"] == {"a": 300, "b": 300} and record["null"] is None
    few = "only 1 random head sets were closed; 10 are needed"
    assert record["withheld"] == {"a": few, "b": few} and record["random"] == 1 and record["matched"] == 0
    assert record["lesions"] == ["none", "a", "b", "random 1"] and record["default"] == 0.3
    for part in ("performance", "low", "high", "collapsed"):
        assert np.shape(record[part]) == (2, 2, 4)
    assert record["collapsed"][1][1] == [False, True, False, False]
    assert (np.array(record["low"]) <= record["performance"]).all() and (
        record["performance"] <= np.array(record["high"])
    ).all()
    assert set(record["on"]) == {"accuracy", "chance_corrected"} and record["on"]["accuracy"] == record["D"]
    for d in (*record["D"], *record["on"]["chance_corrected"]):
        tests = {"p", "p_rows", "p_layers"}
        assert set(d) == {"fraction", "tasks", "mean", "pairs"} and set(d["mean"]) == {"value", "low", "high"} | tests
        assert set(d["tasks"]) == {"a", "b"} and set(d["tasks"]["a"]) == {"value", "low", "high", "p_holm"} | tests
        assert [set(p) for p in d["pairs"]] == [{"a", "b", "d_a", "d_b", "d", "verdict"} | tests]
    for cells in record["cells"]:
        assert set(cells) == set(cells["a"]) == {"a", "b"}
        assert set(cells["a"]["b"]) == {"change", "low", "high", "p", "p_holm"}


def test_without_counts_the_unknown_is_none():
    record = table_3().to_record()
    assert record["fractions"] == [0.3]  # the paper's
    assert record["low"][0][0][0] is None and record["D"][0]["mean"]["p_rows"] is None and record["on"] == {}
    assert record["D"][0]["mean"]["value"] == pytest.approx(0.0734, abs=1e-4)


def test_a_task_at_chance_or_without_accuracy_is_left_out_there():
    performance = np.array([[0.9, 0.5, 0.8, 0.7], [0.8, 0.7, 0.4, 0.6], [0.6, 0.5, 0.5, 0.4]])
    shown = performance.copy()
    shown[2] = np.nan
    found = Dissociation.of(["a", "b", "c"], performance).beside(shown, chance=[0.5, 0.8, math.nan])
    plain, lifted = found.on["accuracy"], found.on["chance_corrected"]
    assert np.isnan(plain.scores()).tolist() == [False, False, True]
    assert np.isnan(lifted.scores()).tolist() == [False, True, True]
    assert plain.mean() == pytest.approx(plain.scores()[:2].mean()) and lifted.mean() == lifted.scores()[0]
    record = found.to_record()["on"]["chance_corrected"][0]
    assert record["tasks"]["b"]["value"] is None and record["pairs"][0]["verdict"] == "undefined"
    assert np.isnan(mean_defined(np.array([np.nan, np.nan])))
    counts = [drawn(np.random.default_rng(0), TRUE[:, i], 50) for i in range(2)]
    partly = Dissociation.of(["a", "b"], counts=counts, resamples=50).beside(counts=[counts[0], None], resamples=50)
    assert np.isnan(partly.on["accuracy"].scores()).tolist() == [False, True]


def test_a_task_that_may_be_at_chance_has_no_d_above_it():
    """53 % of two classes in 400 rows may be luck; in 40,000 rows it is not."""
    just = np.array([0.53, 0.51, 0.50])
    for size, known in ((400, False), (40_000, True)):
        counts = [drawn(np.random.default_rng(3), each[None], size) for each in (just, np.array([0.9, 0.8, 0.6]))]
        found = Dissociation.of(["a", "b"], counts=counts).beside(counts=counts, chance=[0.5, 0.5])
        assert np.isnan(found.on["chance_corrected"].scores()).tolist() == [not known, False]
        assert not np.isnan(found.on["accuracy"].scores()).any()


def test_a_draw_at_chance_is_none_above_it():
    """14 of 20 right: 4.8 % of the draws have 10 or fewer, 1.7 % have 9 or fewer."""
    right = np.repeat((np.arange(20) < 14)[:, None, None], 3, 2)
    few = Counts(np.stack([right, np.ones_like(right)], -1).astype(float), accuracy)
    found = Dissociation.of(["a", "b"], counts=[few, few]).beside(counts=[few, few], chance=[0.5, 0.5])
    assert np.isnan(found.on["chance_corrected"].scores()).all()


def test_a_lesion_may_take_a_task_down_to_chance():
    """What is asked to be above chance is the whole model."""
    counts = [drawn(np.random.default_rng(1), np.array([each]), 2000) for each in ([0.9, 0.5, 0.9], [0.9, 0.9, 0.5])]
    found = Dissociation.of(["a", "b"], counts=counts).beside(counts=counts, chance=[0.5, 0.5])
    assert (found.on["chance_corrected"].scores() > 0.9).all()


def test_chance_correction_by_hand():
    found = Dissociation.of(["a", "b"], TRUE).beside(TRUE, chance=[0.5, 0.2])
    np.testing.assert_allclose(found.on["chance_corrected"].scores(), [0.75 - 0, 0.5 / 0.6 - 0.2 / 0.6])
    floor = np.array([0.5, 0.2])[:, None]
    np.testing.assert_allclose(found.on["chance_corrected"].performance, (np.array(TRUE) - floor) / (1 - floor))
    without = Dissociation.of(["a", "b"], TRUE).beside(TRUE, chance=[0.0, 0.0])  # nothing is got by chance
    np.testing.assert_allclose(without.on["chance_corrected"].performance, without.performance)


def test_the_best_fraction_of_a_pair_is_by_both_of_its_tasks():
    both = [[1, 0.8, 1, 1], [1, 1, 0.8, 1]]  # each task loses a fifth by its own heads
    one = [[1, 0.7, 1, 1], [1, 1, 1, 1]]  # one task loses more, the other nothing
    assert Dissociation.of(["a", "b"], [both, one], fractions=[0.1, 0.3]).best()["a", "b"] == 0.1


def test_tasks_without_d_have_no_best_fraction():
    """``b`` scores 0 whole: neither it nor a pair with it has a D, and ``a`` and ``c`` keep theirs."""
    grid = [[[1, 1 - x, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1 - y]] for x, y in ((0.1, 0.3), (0.2, 0.1))]
    found = Dissociation.of(["a", "b", "c"], grid, fractions=[0.1, 0.3], undefined="leave").best()
    assert {name: found[name] for name in ("a", "c")} == {"a": 0.3, "c": 0.1}
    assert "b" not in found and all("b" not in name for name in found if isinstance(name, tuple))


def test_several_fractions_have_a_default_a_best_and_a_band():
    curves = np.stack(
        [[[0.9, 0.9 - a, 0.9 - b, 0.8, 0.6], [0.5, 0.4, 0.4, 0.45, 0.35]] for a, b in [(0, 0), (0.4, 0.1), (0.6, 0.5)]]
    )
    found = Dissociation.of(["a", "b"], curves, [0.1, 0.25, 0.9])
    assert found.default == 0.25 and found.best() == {"a": 0.25, "b": 0.1, ("a", "b"): 0.25}
    np.testing.assert_allclose(
        [x[0] for x in found.random_band()], [[0.6 / 0.9, 0.7], [0.7 / 0.9, 0.8], [0.8 / 0.9, 0.9]]
    )
    assert found.mean(0.1) == 0 and found.mean() == found.mean(0.25) > 0
    with pytest.raises(HeadwiseError, match="fraction"):
        found.mean(0.5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Dissociation.of(["a", "b"], [[0.0, 0.5, 0.5], [0.9, 0.5, 0.5]]),
        lambda: Dissociation.of(["a", "b"], [[-0.1, 0.5, 0.5], [0.9, 0.5, 0.5]]),
        lambda: Dissociation.of(["a", "b"], [[0.5, math.nan, 0.5], [0.9, 0.5, 0.5]]),
        lambda: Dissociation.of(["a"], [[0.5, 0.5]]),
        lambda: Dissociation.of(["a", "b"], [[0.5, 0.5], [0.5, 0.5]]),
        lambda: Dissociation.of(["a", "b"], TRUE, [0.1, 0.3]),
        lambda: Dissociation.of(["a", "b"]),
        lambda: Dissociation.of(["a", "b"], TRUE).beside(TRUE[..., :3]),
        lambda: Dissociation.of(["a", "b"], TRUE).beside(TRUE, chance=[0.5]),
        lambda: Dissociation.of(["a", "b"], TRUE).beside(TRUE, chance=[0.5, 1.0]),
        lambda: Dissociation.of(["a", "b"], TRUE[..., :3]).random_band(),
    ],
)
def test_wrong_calls_are_refused(call):
    with pytest.raises(HeadwiseError):
        call()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("fractions", [(0.3,), (0.1, 0.3, 0.5)])
def test_a_base_of_zero_says_which_task_and_what_to_do(place, fractions):
    rows = np.full((len(fractions), 2, 3), 0.5)
    rows[-1, place, 0] = 0
    with pytest.raises(HeadwiseError, match=r"CoLA scores 0 without a lesion; expected a base above 0.*another metric"):
        Dissociation.of(["CoLA", "b"] if place == 0 else ["b", "CoLA"], rows, fractions)


def test_a_task_without_a_base_is_refused_or_left_without_d():
    rows = [[0.0, 0.1, 0.2], [0.8, 0.7, 0.4]]
    with pytest.raises(HeadwiseError, match="scores 0 without a lesion"):
        Dissociation.of(["a", "b"], rows)
    found = Dissociation.of(["a", "b"], rows, undefined="leave")
    assert np.isnan(found.scores()[0]) and found.mean() == pytest.approx(found.scores()[1])
    assert found.pairs()["a", "b"]["verdict"] == "undefined"
    assert found.to_record()["D"][0]["tasks"]["a"]["value"] is None


def test_the_mean_over_draws_has_the_tasks_of_the_mean():
    """Planted: B is all lost in some draws; the mean of A alone there would be another number's interval."""
    rng = np.random.default_rng(0)
    right = np.zeros((40, 1, 3))
    right[:, 0] = rng.random((40, 3)) < [0.9, 0.4, 0.8]
    a = np.stack([right, np.ones_like(right)], -1)
    rare = np.zeros((40, 1, 3))
    rare[:3, 0], rare[:1, 0, 2] = [1, 0, 1], 1  # three right answers: a draw in twenty has none
    b = np.stack([rare[..., [0, 2, 1]], np.ones_like(rare)], -1)
    found = Dissociation.of(["a", "b"], counts=[Counts(c, accuracy) for c in (a, b)], resamples=2000, undefined="leave")
    draws = found.rows.drawn[:, 0]
    assert np.isnan(draws[:, 1]).any() and not np.isnan(draws[:, 0]).any()
    both = draws[~np.isnan(draws).any(1)].mean(1)
    entry = found.to_record()["D"][0]["mean"]
    assert entry["p_rows"] == pytest.approx(float(above_zero(entry["value"], both)))
    assert entry["low"] <= np.quantile(both, 0.025) and np.quantile(both, 0.975) <= entry["high"]


@pytest.mark.parametrize("tasks", [2, 5, 10, 11, 16, 22])
def test_a_pair_that_is_apart_in_every_draw_can_be_called_so_however_many_there_are(tasks):
    assert math.comb(tasks, 2) / (draws_for(tasks) + 1) < 0.05
    assert draws_for(1000) == 1000  # a million cells, each with its draws, must fit a machine


def test_where_no_task_has_a_d_there_is_no_mean_and_no_word_of_it():
    nothing = Counts(np.stack([np.zeros((5, 1, 3)), np.ones((5, 1, 3))], -1), accuracy)
    found = Dissociation.of(["a", "b"], counts=[nothing, nothing], undefined="leave")
    assert set(found.to_record()["D"][0]["mean"].values()) == {None}


TWO = [[0.80, 0.40, 0.70, 0.60, 0.50], [0.50, 0.40, 0.25, 0.45, 0.40]]  # none, a, b, and two random lesions


def read(html: str) -> list[list[str]]:
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", html)]


def test_the_table_printed_holds_what_one_wants():
    text = str(table_3().beside(table_3().performance))
    assert [line.split()[0] for line in text.splitlines()[1:6]] == list(TASKS)
    assert "83.91" in text and "11.08 %" in text and "random" in text and "MNLI × AG: 10.90 %, distinct" in text
    assert "mean D 7.34 %; mean D on accuracy 7.34 %" in text and "*" not in text and "p " not in text
    marked = Dissociation.of(["a", "b"], TWO, collapsed=np.array(TWO) < 0.3)
    assert "25.00*" in str(marked) and "one class" in str(marked)
    drawn = np.zeros((2, 5), bool)
    drawn[0, 4] = True  # of a's random lesions, the second
    said = str(Dissociation.of(["a", "b"], TWO, collapsed=drawn))
    assert "55.00*" in said and "42.50*" not in said and "one class" in said


@pytest.mark.parametrize(("random", "head", "means"), [(2, ["random"], [["55.00"], ["42.50"]]), (0, [], [[], []])])
def test_the_printed_table_by_hand(random, head, means):
    lines = str(Dissociation.of(["a", "b"], np.array(TWO)[:, : 3 + random])).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["α", "=", "0.3", "none", "a", "b", *head, "D"],
        ["a", "80.00", "40.00", "70.00", *means[0], "37.50", "%"],
        ["b", "50.00", "40.00", "25.00", *means[1], "30.00", "%"],
    ]
    assert lines[3:] == ["mean D 33.75 %", "a × b: 33.75 %, distinct"]


def test_p_values_say_what_they_are_over():
    """Twenty random sets between the tasks' own: own and other stand at the ends of 22, in both tasks."""
    random = np.linspace(0.42, 0.68, 20)
    rows = np.array([[0.8, 0.4, 0.7, *random], [0.8, 0.7, 0.4, *random]])
    lines = str(Dissociation.of(["a", "b"], rows)).splitlines()
    assert lines[3] == "mean D 37.50 %, p = 0.00216" and lines[4] == "a × b: 37.50 %, p = 0.00216, distinct"
    assert lines[5:] == ["p: one-sided, over 20 random head sets of the same size; of pairs after Holm"]


def test_the_notebooks_table_by_hand():
    html = Dissociation.of(["a", "b"], TWO)._repr_html_()
    assert read(html) == [
        ["task", "intact", "a closed", "b closed", "D"],
        ["a", "80.000", "40.000", "70.000", "37.50 %"],
        ["b", "50.000", "40.000", "25.000", "30.00 %"],
    ]
    assert "Performance in percent, α = 0.3<" in html
    assert ">mean D 33.75 %; a × b: 33.75 %, distinct<" in html


def test_intervals_stand_beside_their_values():
    answers = np.zeros((10, 1, 3, 2))  # examples, fraction, lesions, (right, all): alike in all examples, so no noise
    answers[..., 1], answers[:, 0, :, 0] = 1, [0.8, 0.4, 0.6]
    counts = [
        Counts(answers[:, :, order], lambda sums: sums[..., 0] / sums[..., 1]) for order in ([0, 1, 2], [0, 2, 1])
    ]
    lines = str(Dissociation.of(["a", "b"], counts=counts, resamples=99)).splitlines()
    low, high = re.fullmatch(r"25.00 % \[(.*), (.*)\]", lines[1].split("  ")[-1]).groups()
    assert float(low) + float(high) == pytest.approx(50) and float(low) < 0, "ten rows alike may not be all there are"
    assert lines[3].startswith("mean D 25.00 % [") and lines[4] == "a × b: 25.00 %, distinct"
    assert lines[5:] == [f"no p for {task}: only 10 rows; 20 are needed" for task in "ab"]


def test_what_is_not_defined_is_said():
    rows = [[0.0, 0.1, 0.2], [0.8, 0.7, 0.4]]
    found = Dissociation.of(["a", "b"], rows, undefined="leave")
    assert [row[-1] for row in read(found._repr_html_())] == ["D", "undefined", "37.50 %"]
    assert str(found).splitlines()[3:] == ["mean D (of b) 37.50 %", "a × b: undefined, undefined"]


def test_a_mean_of_fewer_tasks_says_of_which():
    """A task without accuracy, and one not above chance: each mean is of the others."""
    rows = [[0.8, 0.4, 0.7, 0.7], [0.5, 0.4, 0.25, 0.4], [0.9, 0.8, 0.8, 0.6]]
    accuracy = [rows[0], [float("nan")] * 4, rows[2]]
    found = Dissociation.of(["a", "b", "c"], rows).beside(accuracy, [0.8, 0.5, 0.5])
    (line,) = [line for line in str(found).splitlines() if line.startswith("mean D")]
    own, plain, lifted = line.split("; ")
    assert own == f"mean D {100 * found.mean():.2f} %"
    assert plain == f"mean D on accuracy (of a, c) {100 * found.on['accuracy'].mean():.2f} %"
    assert lifted == f"mean D on chance corrected (of c) {100 * found.on['chance_corrected'].mean():.2f} %"
    assert str(Dissociation.of(["a", "b"], [[0.0] * 3] * 2, undefined="leave")).splitlines()[3] == "mean D undefined"
