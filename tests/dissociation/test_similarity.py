"""Every measure recovers a planted order of tasks; AHP by hand; what CRA must not see."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.dissociation.similarity import Similarity, cra, mantel, priorities, similarity, tournament
from headwise.errors import HeadwiseError
from headwise.papers.specialization import published

TASKS = ("near", "middle", "far")  # planted: near and middle most alike, near and far least
ORDER = [("near", "middle"), ("middle", "far"), ("near", "far")]


def planted(sentences: int = 120, width: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    """Sentence vectors of one scale that share parts of a code: near and middle most, near and far least."""
    generator = np.random.default_rng(seed)
    first, second = generator.normal(size=(2, sentences, width))
    noise = generator.normal(size=(3, sentences, width)) * 0.3
    mixed = [first, first + 0.5 * second, 0.4 * first + second]
    return {name: (code + own) / (code + own).std() for name, code, own in zip(TASKS, mixed, noise)}


def order_of(found: Similarity) -> list[tuple[str, str]]:
    pairs = found.pairs()
    return sorted(pairs, key=lambda pair: -pairs[pair])


def given_for(name: str) -> dict[str, np.ndarray]:
    """What each measure needs, with the same planted order."""
    if name in ("dse", "cra"):
        return planted()
    if name == "rank":
        return {task: vectors[:12, :12] for task, vectors in planted().items()}
    if name == "overlap":
        return {
            "near": np.arange(20) < 8,
            "middle": (np.arange(20) >= 1) & (np.arange(20) < 9),
            "far": np.arange(20) // 8 == 1,
        }
    generator = np.random.default_rng(1)  # ahp: the better the transfer, the higher the score of an example
    skill = np.array([[3, 1.5, 0.2], [1.5, 3, 0.8], [0.2, 0.8, 3]])
    return {task: skill[:, i, None] + generator.normal(size=(3, 400)) for i, task in enumerate(TASKS)}


@pytest.mark.parametrize("name", ["dse", "cra", "overlap", "rank", "ahp"])
def test_a_planted_order_is_recovered(name):
    found = similarity[name](given_for(name))
    assert order_of(found)[0] == ORDER[0] and found.pairs()[ORDER[2]] == min(found.pairs().values())
    np.testing.assert_allclose(found.matrix, found.matrix.T)
    assert found.tasks == TASKS and found.by == name


@pytest.mark.parametrize("rdm", ["correlation", "cosine", "euclidean", "cityblock"])
@pytest.mark.parametrize("compare", ["spearman", "pearson", "cosine", "jaccard"])
def test_cra_recovers_the_order_by_every_metric(rdm, compare):
    assert order_of(cra(planted(), rdm, compare)) == ORDER


def brain_data(vectors: dict[str, np.ndarray], seed: int = 3) -> list[np.ndarray]:
    """Two subjects; voxel groups are read from near and middle, from middle and far, and from nothing."""
    generator = np.random.default_rng(seed)
    near, middle, far = vectors.values()
    subjects = []
    for size in (20, 30):
        read = [(near[:, :4] + middle[:, :4]) @ generator.normal(size=(4, size))]
        read += [(middle[:, 4:8] + far[:, 4:8]) @ generator.normal(size=(4, size // 2))]
        noise = generator.normal(size=(len(near), 40)) * 3
        subjects.append(np.concatenate([*(r + generator.normal(size=r.shape) for r in read), noise], 1))
    return subjects


@pytest.mark.parametrize("model", ["ridge", pytest.param("mlp", marks=pytest.mark.slow)])
def test_brain_mapping_recovers_the_order(model):
    generator = np.random.default_rng(2)
    vectors = dict(zip(TASKS, generator.normal(size=(3, 150, 8))))
    found = similarity["cnm"](vectors, brain_data(vectors), model=model, folds=3, voxels=30)
    assert order_of(found) == ORDER
    np.testing.assert_allclose(found.matrix.diagonal(), 1)


def test_a_network_maps_to_brain_data_too():
    generator = np.random.default_rng(0)
    near, far = generator.normal(size=(2, 60, 3))
    brain = np.concatenate([near, far], 1)
    found = similarity["cnm"]({"near": near, "twin": near + 0.01, "far": far}, [brain], "mlp", folds=2, voxels=6)
    assert order_of(found)[0] == ("near", "twin") and found.pairs()["near", "far"] < 0.5


def test_only_informative_voxels_count():
    generator = np.random.default_rng(5)
    vectors = dict(zip(TASKS, generator.normal(size=(3, 150, 8))))
    few, all_ = (similarity["cnm"](vectors, brain_data(vectors), folds=3, voxels=v) for v in (30, None))
    assert not np.allclose(few.matrix, all_.matrix)
    silent = [np.concatenate([b, np.zeros((150, 5))], 1) for b in brain_data(vectors)]
    np.testing.assert_allclose(similarity["cnm"](vectors, silent, folds=3, voxels=30).matrix, few.matrix)


# invariances


def rotation(width: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0]


@given(st.integers(0, 100), st.floats(0.1, 10), st.sampled_from(["spearman", "pearson"]))
@settings(max_examples=15, deadline=None)
def test_cra_by_distance_does_not_see_rotation_shift_and_scale(seed, scale, compare):
    vectors = planted(40)
    moved = vectors | {"near": scale * vectors["near"] @ rotation(16, seed) + 3}
    np.testing.assert_allclose(
        cra(moved, "euclidean", compare).matrix, cra(vectors, "euclidean", compare).matrix, atol=1e-8
    )


@given(st.integers(0, 100))
@settings(max_examples=15, deadline=None)
def test_cra_by_angle_does_not_see_rotation_nor_the_length_of_a_sentence(seed):
    vectors = planted(40)
    lengths = np.random.default_rng(seed).uniform(0.5, 2, (40, 1))
    moved = vectors | {"far": lengths * vectors["far"] @ rotation(16, seed)}
    np.testing.assert_allclose(cra(moved, "cosine").matrix, cra(vectors, "cosine").matrix, atol=1e-8)


@pytest.mark.parametrize("name", ["dse", "cra"])
def test_the_order_of_sentences_and_of_dimensions_does_not_matter(name):
    vectors, generator = planted(40), np.random.default_rng(0)
    rows, columns = generator.permutation(40), generator.permutation(16)
    moved = {task: v[rows][:, columns] for task, v in vectors.items()}
    np.testing.assert_allclose(similarity[name](moved).matrix, similarity[name](vectors).matrix, atol=1e-8)


def test_cra_compares_models_of_different_width():
    vectors = planted(40)
    wide = vectors | {"far": np.concatenate([vectors["far"], np.zeros((40, 5))], 1)}
    np.testing.assert_allclose(cra(wide, "euclidean").matrix, cra(vectors, "euclidean").matrix)
    with pytest.raises(HeadwiseError, match="cra"):
        similarity["dse"](wide)


def test_dse_by_hand():
    vectors = {"a": [[1.0, 0.0], [0.0, 2.0]], "b": [[3.0, 0.0], [1.0, 1.0]], "c": [[-1.0, 0.0], [0.0, -1.0]]}
    found = similarity["dse"](vectors).pairs()
    assert found == pytest.approx({("a", "b"): (1 + 0.5**0.5) / 2, ("a", "c"): -1, ("b", "c"): -(1 + 0.5**0.5) / 2})


# AHP


def test_a_tournament_counts_wins_and_half_ties():
    scores = [[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]]
    np.testing.assert_allclose(tournament(scores), [[0.5, 0.75, 0.625], [0.25, 0.5, 0.375], [0.375, 0.625, 0.5]])


def test_ahp_of_three_sources_by_hand():
    """W / W^T = [[1, 2, 4], [1/2, 1, 2], [1/4, 1/2, 1]] has rank one: every column is (4, 2, 1) up to a factor."""
    wins = [[1 / 2, 2 / 3, 4 / 5], [1 / 3, 1 / 2, 2 / 3], [1 / 5, 1 / 3, 1 / 2]]
    np.testing.assert_allclose(priorities(wins), [4 / 7, 2 / 7, 1 / 7])


def test_ahp_of_an_inconsistent_tournament_by_hand():
    """A ring, i beats its follower 3 to 1, has equal rows sums 1 + 3 + 1/3: all sources transfer alike."""
    ring = [[1 / 2, 3 / 4, 1 / 4], [1 / 4, 1 / 2, 3 / 4], [3 / 4, 1 / 4, 1 / 2]]
    np.testing.assert_allclose(priorities(ring), [1 / 3] * 3)


def test_a_source_that_always_wins_is_clipped():
    """Wins of 1 and 0 become 0.999 and 0.001, a ratio of 999; the eigenvector of [[1, 999], [1/999, 1]] is (999, 1)."""
    np.testing.assert_allclose(priorities([[0.5, 1.0], [0.0, 0.5]]), [0.999, 0.001])


def test_ahp_averages_both_directions_and_may_miss_the_target_itself():
    scores = given_for("ahp")
    alone = {task: np.where(np.eye(3)[i][:, None] == 1, np.nan, rows) for i, (task, rows) in enumerate(scores.items())}
    found = similarity["ahp"](alone)
    assert np.isnan(found.matrix.diagonal()).all() and order_of(found) == ORDER
    to_middle = priorities(tournament(alone["middle"][[0, 2]]))
    to_near = priorities(tournament(alone["near"][[1, 2]]))
    assert found.pairs()["near", "middle"] == pytest.approx((to_middle[0] + to_near[0]) / 2)
    assert found.to_record()["matrix"][0][0] is None


# heads


def test_overlap_and_ranks_of_heads():
    masks = {"a": np.arange(8) < 4, "b": np.arange(8) >= 2, "c": np.arange(8) < 4}
    assert similarity["overlap"](masks).pairs() == {("a", "b"): 4 / 10, ("a", "c"): 1, ("b", "c"): 4 / 10}
    scores = {"a": [[1.0, 2.0, 3.0, math.nan]], "b": [[9.0, 5.0, 1.0, 0.0]], "c": [[1.0, 20.0, 300.0, 2.0]]}
    found = similarity["rank"](scores).pairs()
    assert found["a", "b"] == pytest.approx(-1) and found["a", "c"] == pytest.approx(1)


# similarity against D


def published_d() -> dict[tuple[str, str], float]:
    table = {(a, b): d for b, row in published.TABLE_10.items() for a, d in zip(published.TASKS, row)}
    return {(a, b): (table[a, b] + table[b, a]) / 2 for a, b in published.PAIRS}


def test_similarity_that_falls_with_d_is_found_whatever_the_order_of_names():
    d = published_d()
    matrix = np.eye(5)
    for (a, b), value in d.items():
        i, j = published.TASKS.index(a), published.TASKS.index(b)
        matrix[i, j] = matrix[j, i] = 1 - value / 20
    turned = {(b, a): value for (a, b), value in d.items()}
    found = Similarity("planted", published.TASKS, matrix).against(turned)
    assert (found.fit.r, found.fit.slope, found.fit.intercept) == pytest.approx((-1, -20, 20))
    assert found.p_mantel == pytest.approx(1 / 120) and len(found.pairs) == 10
    assert "planted against D" in str(found)


def test_a_scatter_is_a_part_of_a_study():
    d = published_d()
    matrix = np.eye(5) + np.random.default_rng(0).normal(size=(5, 5))
    found = Similarity("planted", published.TASKS, matrix + matrix.T).against(d)
    part = found.to_record()
    assert {(p["a"], p["b"]): p["d"] for p in part["points"]} == d and {p["measure"] for p in part["points"]} == {
        "planted"
    }
    assert [p["similarity"] for p in part["points"]] == list(found.similarity)
    fit = part["fits"]["planted"]
    assert (fit["r"], fit["slope"], fit["p_mantel"]) == (found.fit.r, found.fit.slope, found.p_mantel)
    assert json.loads(json.dumps(part)) == part


def test_published_overlap_of_heads_falls_with_published_d():
    matrix = np.eye(5)
    for (a, b), share in published.TABLE_11.items():
        i, j = published.TASKS.index(a), published.TASKS.index(b)
        matrix[i, j] = matrix[j, i] = share / 100
    found = Similarity("overlap", published.TASKS, matrix).against(published_d())
    assert found.fit.high < 0 and found.p_mantel < 0.1


def test_relabelling_tasks_keeps_its_level_where_pairs_share_tasks():
    """D and similarity that come only from each task's own level: the pairs' correlation is noise of few tasks."""
    generator, found, naive = np.random.default_rng(0), [], []
    names = tuple("abcde")
    for _ in range(150):
        x, y = (np.add.outer(level, level) for level in generator.normal(size=(2, 5)))
        one = Similarity("x", names, x).against(Similarity("y", names, y).pairs())
        found.append(one.p_mantel <= 0.1)
        naive.append(one.fit.p <= 0.1)
    assert np.mean(found) < 0.1 + 3 * math.sqrt(0.09 / 150) < np.mean(naive)


def test_many_tasks_are_relabelled_at_random():
    x = np.random.default_rng(0).normal(size=(9, 9))
    x, upper = x + x.T, np.triu_indices(9, 1)
    assert mantel(x, -2 * x[upper], rounds=499) == 1 / 500
    assert mantel(x, np.exp(x[upper]), "spearman", rounds=199) == 1 / 200


def test_matrices_print_and_names_are_known():
    text = str(similarity["cra"](planted()))
    assert text.splitlines()[0].split() == ["cra", *TASKS] and "1.000" in text
    assert list(similarity) == ["ahp", "cnm", "cra", "dse", "overlap", "rank"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: similarity["cka"],
        lambda: similarity["dse"]({"a": np.ones((4, 2))}),
        lambda: similarity["dse"]({"a": np.ones((4, 2)), "b": np.ones((5, 2))}),
        lambda: similarity["dse"]({"a": np.ones((4, 2)), "b": np.zeros((4, 2))}),
        lambda: similarity["dse"]({"a": np.ones((4, 2)), "b": np.full((4, 2), np.nan)}),
        lambda: cra(planted(), rdm="hamming"),
        lambda: cra(planted(), compare="magic"),
        lambda: cra({"a": np.ones((5, 3)), "b": np.eye(5, 3)}, "euclidean"),
        lambda: similarity["cnm"](planted(), [np.ones((7, 3))]),
        lambda: similarity["cnm"](planted(), [np.ones((120, 3))], model="forest"),
        lambda: similarity["ahp"]({"a": np.ones((2, 5)), "b": np.ones((3, 5))}),
        lambda: similarity["ahp"]({"a": [[1.0, 2.0], [math.nan, 1.0]], "b": np.ones((2, 2))}),
        lambda: similarity["ahp"]({"a": [[1.0], [math.nan]], "b": np.ones((2, 1))}),
        lambda: tournament([1.0, 2.0]),
        lambda: similarity["overlap"]({"a": np.ones(3), "b": np.zeros(3)}),
        lambda: similarity["rank"]({"a": np.ones(3), "b": np.ones(4)}),
        lambda: Similarity("x", ("a", "b"), np.eye(2)).against({}),
    ],
)
def test_wrong_calls_are_refused(call):
    with pytest.raises(HeadwiseError):
        call()


def test_whole_numbers_in_a_matrix_do_not_round_the_other_side():
    matrix = np.array([[9, 1, 2, 5], [1, 9, 3, 4], [2, 3, 9, 1], [5, 4, 1, 9]])
    values = np.array([0.3, 0.1, 0.7, 0.2, 0.6, 0.4])
    assert mantel(matrix, values) == mantel(matrix.astype(float), values)
