"""What is printed, and what a notebook shows: every number stands in its place."""

import re

import numpy as np
import pytest

from headwise.dissociation.result import Counts, Dissociation
from headwise.papers.specialization import published

TASKS = published.TASKS
TWO = [[0.80, 0.40, 0.70, 0.60, 0.50], [0.50, 0.40, 0.25, 0.45, 0.40]]  # none, a, b, and two random lesions


def table_3() -> Dissociation:
    columns = [published.TABLE_3[lesion] for lesion in ("none", *TASKS, "random")]
    return Dissociation.of(TASKS, np.array(columns).T / 100)


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
