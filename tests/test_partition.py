"""Every row goes to exactly one client, in the sizes and mixtures that were asked for."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import fedhybrid as fh
from fedhybrid import partition
from fedhybrid.demo import SHARES, breast_cancer
from fedhybrid.report.partitions import draw_partition


@st.composite
def labelled(draw):
    """Responses of up to four labels, a number of clients that they are enough for, and a seed."""
    y = np.array(draw(st.lists(st.integers(0, 3), min_size=1, max_size=120)), float)
    return y, draw(st.integers(1, min(len(y), 9))), draw(st.integers(0, 2**32))


def label_rule(y, n):
    """Clients of one label for the most frequent ones, as many as there may be, and the last of all labels."""
    found, counts = np.unique(y, return_counts=True)
    room = {label: int(count) - 1 for label, count in zip(found.tolist(), counts, strict=True)}
    one_label = {}
    for k in range(n - 1):
        label = sorted(room, key=room.get)[-1 - k % len(room)]
        if room[label] > 0:
            room[label] -= 1
            one_label[label] = one_label.get(label, 0) + 1
    return one_label


RULES = {
    "iid": lambda y, n: partition.iid,
    "lognormal_sizes": lambda y, n: partition.lognormal_sizes(),
    "by_response": lambda y, n: partition.by_response(),
    "by_response, equal": lambda y, n: partition.by_response(shares=None),
    "by_shares": lambda y, n: partition.by_shares(dict.fromkeys(range(4), np.full(n, 1 / n))),
    "dirichlet, nearly one label": lambda y, n: partition.dirichlet(1e-3),
    "dirichlet, nearly iid": lambda y, n: partition.dirichlet(1e6),
}


def assert_every_row_once(parts, N):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(N))
    for rows in parts:
        assert rows.dtype.kind == "i"
        assert np.all(np.diff(rows) > 0)


@pytest.mark.parametrize("rule", RULES)
@given(labelled())
def test_every_row_is_held_exactly_once_and_a_seed_gives_the_same_rows_again(rule, case):
    y, n, seed = case
    make = RULES[rule](y, n)
    parts = make(y, n, seed)
    assert len(parts) == n
    assert_every_row_once(parts, len(y))
    if rule != "by_shares":
        assert min(map(len, parts)) >= 1
    for again in (make(y, n, seed), make(y, n, np.random.default_rng(seed))):
        assert all(np.array_equal(rows, others) for rows, others in zip(parts, again, strict=True))


@given(labelled(), st.booleans())
def test_clients_of_one_label_hold_that_label_only_and_the_others_all(case, equal):
    y, n, seed = case
    one_label = label_rule(y, n)
    n = sum(one_label.values()) + 1
    parts = partition.by_label(one_label=one_label, both=1, shares=None if equal else (0.1, 1.0))(y, n, seed)
    assert_every_row_once(parts, len(y))
    owners = [label for label, count in one_label.items() for _ in range(count)]
    for label, rows in zip(owners, parts, strict=False):
        assert set(y[rows]) == {label}
    assert set(y[parts[-1]]) == set(y)


@given(labelled())
def test_groups_are_the_values_of_a_column(case):
    column, _, seed = case
    names = np.unique(column)
    parts = partition.groups(column.astype(int).astype(str))(np.zeros(len(column)), len(names), seed)
    assert_every_row_once(parts, len(column))
    assert [set(column[rows]) for rows in parts] == [{name} for name in names]


def test_iid_parts_are_equal_to_one_row_and_look_like_the_whole():
    y = np.repeat([0.0, 1.0], 5000)
    parts = partition.iid(y, 3, 0)
    assert sorted(map(len, parts)) == [3333, 3333, 3334]
    assert all(abs(y[rows].mean() - 0.5) < 0.04 for rows in parts)


def test_blocks_by_response_do_not_overlap_and_ascend():
    y = np.random.default_rng(1).normal(size=500)
    parts = partition.by_response()(y, 8, 0)
    assert all(y[low].max() <= y[high].min() for low, high in itertools.pairwise(parts))


def test_sizes_by_response_are_in_proportion_to_uniform_shares():
    sizes = np.array([[len(rows) for rows in partition.by_response()(np.arange(10_000.0), 8, seed)] for seed in range(40)])
    ratio = sizes.max(axis=1) / sizes.min(axis=1)
    assert ratio.max() <= 10.01
    assert ratio.mean() > 2.5
    assert len(np.unique(sizes[:, 0])) > 30


def test_equal_responses_are_not_dealt_in_the_order_of_the_file():
    first, _ = partition.by_response(shares=None)(np.zeros(100), 2, 0)
    assert not np.array_equal(first, np.arange(50))


def test_lognormal_sizes_spread_as_a_lognormal_does():
    sizes = [len(rows) for rows in partition.lognormal_sizes(mean=4, sigma=2)(np.zeros(10**6), 400, 0)]
    assert abs(np.std(np.log(sizes)) - 2.0) < 0.15
    assert min(len(rows) for rows in partition.lognormal_sizes(least=50)(np.zeros(2000), 20, 0)) >= 50


def test_a_small_alpha_gives_one_label_a_client_and_a_large_one_the_mixture_of_the_whole():
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(5.0), (500, 400, 300, 200, 100)))
    whole = np.bincount(y.astype(int)) / len(y)

    def distance(alpha):
        parts = partition.dirichlet(alpha)(y, 10, 0)
        assert {len(rows) for rows in parts} == {150}
        return np.mean([np.abs(np.bincount(y[rows].astype(int), minlength=5) / 150 - whole).sum() / 2 for rows in parts])

    distances = [distance(alpha) for alpha in (1e-300, 0.3, 3.0, 1e300)]
    assert distances == sorted(distances)[::-1]
    assert distances[0] > 0.6
    assert distances[-1] < 0.1


def test_the_mixtures_have_the_mean_of_the_whole():
    """Dirichlet(alpha · frequencies) has them as its mean; the first client is not affected by labels that run out."""
    y = np.repeat([0.0, 1.0], (9000, 3000))
    first = [y[partition.dirichlet(1.0)(y, 12, seed)[0]].mean() for seed in range(300)]
    assert abs(np.mean(first) - 0.25) < 0.06
    assert abs(np.var(first) - 0.25 * 0.75 / 2) < 0.03


def test_shares_by_table_are_met_to_one_row():
    y = np.repeat([0, 1], (200, 50))
    parts = partition.by_shares({1: [0.5, 0.5, 0.0], 0: [0.1, 0.0, 0.9]})(y, 3, 7)
    assert [(int(np.sum(y[rows] == 0)), int(np.sum(y[rows] == 1))) for rows in parts] == [(20, 25), (0, 25), (180, 0)]


def test_the_demo_deals_by_its_table():
    sites = breast_cancer().sites
    assert list(sites) == list(SHARES)
    assert [len(y) for _, y in sites.values()] == [86, 34, 37, 11, 139, 74, 62, 12]
    assert {name for name, (_, y) in sites.items() if len(set(y)) == 1} == {"Aarhus", "Bergen", "Cork", "Delft"}


@pytest.mark.parametrize("table", [np.asarray, scipy.sparse.csr_array, scipy.sparse.coo_matrix])
def test_rows_are_cut_from_dense_and_from_sparse_tables(table):
    A, y = np.arange(12.0).reshape(6, 2), np.arange(6.0)
    sites = partition.cut(table(A), y, [np.array([0, 5]), np.array([], int), [1, 2, 3, 4]])
    np.testing.assert_array_equal(sites[0][1], [0, 5])
    np.testing.assert_array_equal(np.asarray(sites[2][0].todense() if scipy.sparse.issparse(sites[2][0]) else sites[2][0]), A[1:5])
    assert sites[1][0].shape == (0, 2)
    assert fh.Fleet(sites, loss=fh.squared).n == 3


LABELS = np.repeat([0.0, 1.0], (5, 2))
CONFIG, DATA = fh.InvalidConfig, fh.InvalidData


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: partition.iid(LABELS, 8, 0), DATA, "7 rows cannot be dealt to 8 clients"),
        (lambda: partition.iid(LABELS, 0, 0), CONFIG, "n must be a positive whole number"),
        (lambda: partition.iid(LABELS, 2, None), CONFIG, "rng must be"),
        (lambda: partition.iid(LABELS, 2, True), CONFIG, "rng must be"),
        (lambda: partition.iid(LABELS, 2, -1), CONFIG, "rng must be"),
        (lambda: partition.iid([1.0, np.nan], 1, 0), DATA, "1 of 2 entries that are NaN"),
        (lambda: partition.iid([[1.0]], 1, 0), DATA, "one entry per row"),
        (lambda: partition.iid([], 1, 0), DATA, "one entry per row"),
        (lambda: partition.lognormal_sizes(sigma=0), CONFIG, "sigma must be positive"),
        (lambda: partition.lognormal_sizes(mean=np.inf), CONFIG, "mean must be one finite"),
        (lambda: partition.lognormal_sizes(least=4)(LABELS, 2, 0), DATA, "at least 4 each"),
        (lambda: partition.lognormal_sizes(mu=4), CONFIG, "Its arguments are"),
        (lambda: partition.by_response(shares=(1.0, 0.1)), CONFIG, "low, high"),
        (lambda: partition.by_response(shares=0.1), CONFIG, "low, high"),
        (lambda: partition.by_response()(["a", "b"], 2, 0), DATA, "must hold numbers"),
        (lambda: partition.by_label(one_label={0: 2, 1: 3})(LABELS, 5, 0), DATA, "2 rows for 3 clients"),
        (lambda: partition.by_label(one_label={0: 2, 1: 1}, both=1)(LABELS, 3, 0), CONFIG, "3 \\+ 1 clients, and n is 3"),
        (lambda: partition.by_label(one_label={0: 2})(LABELS, 2, 0), CONFIG, "no client is to hold"),
        (lambda: partition.by_label(one_label={0: 1, 7: 2}, both=1)(LABELS, 4, 0), DATA, "no row has label 7"),
        (lambda: partition.by_label(one_label={0: 0}), CONFIG, "positive whole number"),
        (lambda: partition.by_label(one_label={0: 1}, both=-1), CONFIG, "both must be"),
        (lambda: partition.by_label(one_label={0: 1}, both=1)(LABELS + 0.5, 2, 0), DATA, "fractions, not labels"),
        (lambda: partition.by_shares({0: [0.5, 0.4]}), CONFIG, "sum to 1"),
        (lambda: partition.by_shares({0: [1.5, -0.5]}), CONFIG, "not negative"),
        (lambda: partition.by_shares({}), CONFIG, "needs a dict"),
        (lambda: partition.by_shares({0: [0.5, 0.5]})(LABELS, 2, 0), DATA, "1 labels for which no shares"),
        (lambda: partition.by_shares({0: [1.0], 1: [1.0]})(LABELS, 2, 0), CONFIG, "each of the 2 clients"),
        (lambda: partition.dirichlet(0.0), CONFIG, "alpha must be positive"),
        (lambda: partition.dirichlet("1"), CONFIG, "alpha must be a number"),
        (lambda: partition.dirichlet(np.nan), CONFIG, "alpha must be positive"),
        (lambda: partition.dirichlet(1.0)(LABELS / 3, 2, 0), DATA, "fractions, not labels"),
        (lambda: partition.groups([1, 2, 3])(LABELS, 3, 0), DATA, "3 entries and y has 7"),
        (lambda: partition.groups(["ward"] * 7)(LABELS, 3, 0), CONFIG, "1 different values"),
        (lambda: partition.groups(np.array(["a", None] * 3 + [1], object))(LABELS, 3, 0), DATA, "different kinds"),
        (lambda: partition.cut(np.ones((3, 2)), LABELS, []), DATA, "same rows"),
        (lambda: partition.cut(np.ones((7, 2)), LABELS, [[0, 7]]), DATA, "part 0"),
        (lambda: partition.cut(np.ones((7, 2)), LABELS, [[0], [-1]]), DATA, "part 1"),
        (lambda: partition.cut(np.ones((7, 2)), LABELS, [[0.5]]), DATA, "part 0"),
    ],
)
def test_a_mistake_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_partition_can_be_drawn_from_sites_and_from_row_numbers(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90).astype(float)
    parts = partition.dirichlet(0.5)(y, 4, 0)
    sites = partition.cut(np.ones((90, 1)), y, parts)
    named = {f"ward {i}": site for i, site in enumerate(sites)}
    empty = [*partition.cut(np.ones((90, 1)), rng.normal(size=90), parts), (np.ones((0, 1)), np.zeros(0))]
    pictures = []
    for k, data in enumerate(((y, parts), sites, named, empty)):
        draw_partition(data, tmp_path / f"{k}.png", title="A title")
        pictures.append((tmp_path / f"{k}.png").read_bytes())
    assert pictures[0] == pictures[1]
    assert len(set(pictures)) == 3
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    with pytest.raises(fh.InvalidData, match="no client has a row"):
        draw_partition([(np.ones((0, 1)), np.zeros(0))], tmp_path / "none.png")
