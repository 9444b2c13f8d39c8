"""Bad input gets a clear error before anything is computed; messages print no value; the caller's arrays stay as they are."""

import copy
import re

import numpy as np
import pytest
import scipy.sparse
from reference.pooled import least_squares_exact, logistic_high_precision

import fedhybrid as fh

CANARY = 12345.678
N, D = 8, 3


def label(value):
    """A test's name must be the same in every process: no addresses."""
    return re.sub(r" at 0x\w+", "", repr(value)).replace("\n", "")


def table(seed=0, n=3, binary=False):
    """Three sites of eight rows and three columns, each with the canary among its entries."""
    rng = np.random.default_rng(seed)
    sites = []
    for i in range(n):
        A, y = rng.normal(size=(N, D)) + 0.3 * i, rng.normal(size=N)
        if binary:
            y = (np.arange(N) % 2).astype(float)
        else:
            y[-1] = CANARY
        A[-1, -1] = CANARY
        sites.append((A, y, np.ones(N), np.zeros(N)))
    return sites


def small(binary=False, n=3, seed=1):
    rng = np.random.default_rng(seed)
    sites = []
    for i in range(n):
        A = rng.normal(size=(N, D)) + 0.3 * i
        y = (rng.random(N) < 0.5).astype(float) if binary else A @ np.ones(D) + rng.normal(size=N)
        sites.append((A, y))
    return sites


def refused(kind, build, *mentions):
    """The error that `build` raises: of the kind, with its status, mentioning these, and without the canary."""
    with pytest.raises(kind) as caught:
        build()
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.status is {fh.InvalidData: fh.Status.INVALID_DATA, fh.InvalidConfig: fh.Status.INVALID_CONFIG}[kind]
    chain = error
    while chain is not None:
        assert "12345" not in str(chain)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    for mention in mentions:
        assert str(mention) in str(error), str(error)
    return str(error)


# ── entries that are not finite ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["A", "y", "w", "offset"])
def test_an_entry_that_is_not_finite_is_refused_by_site_and_column(field, bad, sparse):
    sites = table()
    A, y, w, offset = (part.copy() for part in sites[1])
    {"A": A[:, 1], "y": y, "w": w, "offset": offset}[field][4] = bad
    sites[1] = (A, y, w, offset)
    if sparse:
        sites = [(scipy.sparse.csr_array(A), *rest) for A, *rest in sites]
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared), "site 1", "column 1" if field == "A" else field)


@pytest.mark.parametrize("sparse", [False, True])
def test_infinities_of_both_signs_are_refused_without_a_warning(sparse):
    sites = table()
    A = sites[2][0].copy()
    A[0, 0], A[1, 2] = np.inf, -np.inf
    sites[2] = (scipy.sparse.csr_array(A) if sparse else A, *sites[2][1:])
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared), "site 2", "0, 2")


def test_many_bad_columns_are_counted_and_the_first_few_named():
    A = np.full((4, 12), np.nan)
    message = refused(fh.InvalidData, lambda: fh.Fleet([(A, np.ones(4))], loss=fh.squared), "48", "0, 1, 2, 3, 4")
    assert "…" in message


def test_finite_entries_whose_sum_overflows_are_not_called_infinite_and_give_no_warning():
    sites = small()
    sites[0][0][0, 0] = sites[0][0][1, 0] = 1.7e308
    message = ""
    try:
        fh.Fleet(sites, loss=fh.squared)
    except fh.InvalidData as error:  # too large to square is a fair complaint, infinite is not
        message = str(error)
    assert "infinite" not in message


def test_weights_whose_sum_overflows_are_refused_or_used_without_a_warning():
    sites = [(A, y, np.full(N, 1e308)) for A, y in small()]
    try:
        result = fh.solve(fh.Fleet(sites, loss=fh.squared))
    except fh.InvalidData:
        return
    assert np.linalg.norm(result.x - least_squares_exact(small())) < 1e-7


# ── labels ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def relabelled(*codings):
    return [(A, np.asarray(coding)[y.astype(int)]) for (A, y), coding in zip(small(binary=True), codings, strict=True)]


def test_labels_minus_one_and_one_are_read_as_zero_and_one_and_said_so():
    plain = fh.solve(fh.Fleet(small(binary=True), loss=fh.logistic, reg=0.1))
    fleet = fh.Fleet(relabelled(*[[-1, 1]] * 3), loss=fh.logistic, reg=0.1)
    result = fh.solve(fleet)
    assert plain.notes == ()
    assert any("−1" in note and "0" in note for note in fleet.notes)
    assert result.notes == fleet.notes
    np.testing.assert_array_equal(result.x, plain.x)


@pytest.mark.parametrize(
    "codings",
    [
        [[1, 2]] * 3,
        [[0, 1], [0, 1], [0, 2]],
        [[0, 1], [0, 1], [0, 0.5]],
        [[0.5, 0.5]] * 3,
        [[0, 1], [-1, 1], [0, 1]],
        [[-1, 0]] * 3,
        [[-1, 1], [1, 2], [-1, 1]],
        [[0, 1 + 1e-12]] * 3,
    ],
    ids=label,
)
def test_labels_in_another_coding_are_refused_on_the_union_over_sites(codings):
    refused(fh.InvalidData, lambda: fh.Fleet(relabelled(*codings), loss=fh.logistic), "site", "labels")


def test_three_labels_are_refused_and_counted():
    sites = small(binary=True)
    sites[2] = (sites[2][0], np.array([0, 1, 2, 0, 1, 2, 0, 1]))
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.logistic), "site 2", "2 of 8")


@pytest.mark.parametrize("y", [["yes", "no"] * 4, [b"1", b"0"] * 4, np.array(["12345.678"] * N), np.array([None, 1] * 4, object)])
def test_labels_that_are_not_numbers_are_refused_without_being_printed(y):
    sites = small(binary=True)
    sites[1] = (sites[1][0], y)
    message = refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.logistic), "site 1", "y")
    assert "yes" not in message


def test_a_site_of_one_label_beside_one_of_the_other_is_fine():
    first, second, _ = small(binary=True)
    for low in (0.0, -1.0):
        fleet = fh.Fleet([(first[0], np.full(N, low)), (second[0], np.ones(N))], loss=fh.logistic, reg=0.1)
        truth = logistic_high_precision([(first[0], np.zeros(N)), (second[0], np.ones(N))], reg=0.1)
        result = fh.solve(fleet)
        assert result.status is fh.Status.SOLVED
        assert np.linalg.norm(result.x - truth) <= 1e-8


def test_boolean_and_integer_labels_are_numbers():
    plain = fh.Fleet(small(binary=True), loss=fh.logistic)
    for kind in (bool, np.int8, np.uint64, np.float16):
        fleet = fh.Fleet([(A, y.astype(kind)) for A, y in small(binary=True)], loss=fh.logistic)
        assert fleet.fingerprint == plain.fingerprint


@pytest.mark.parametrize("labels", [[0, 2], [-1, 0], [0.5, 1], [0, 1e12], [0, 0]], ids=str)
def test_softmax_refuses_classes_that_are_not_numbered_from_zero_without_gaps(labels):
    sites = [(A, np.resize(labels, N)) for A, _ in small()]
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.softmax), "class" if labels in ([0, 2], [0, 0]) else "y")


def test_a_huge_class_number_is_refused_before_memory_is_taken_for_it():
    tracemalloc = pytest.importorskip("tracemalloc")
    sites = [(A, np.resize([0, 10**7], N)) for A, _ in small()]
    tracemalloc.start()
    try:
        refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.softmax))
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_negative_counts_are_refused_by_site():
    sites = [(A, np.arange(N)) for A, _ in small()]
    sites[1] = (sites[1][0], np.arange(N) - 2)
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.poisson), "site 1", "2 negative")


# ── shapes and kinds ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["y", "w", "offset"])
def test_a_length_that_disagrees_is_refused_with_the_site_and_both_shapes(field):
    sites = table()
    at = ["A", "y", "w", "offset"].index(field)
    sites[1] = tuple(part[:-1] if k == at else part for k, part in enumerate(sites[1]))
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared), "site 1", "(8, 3)", "(7,)", field)


def test_a_column_vector_of_responses_is_refused_with_its_shape():
    sites = table()
    sites[0] = (sites[0][0], sites[0][1][:, None])
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared), "site 0", "(8, 1)")


def test_sites_with_different_columns_are_refused_with_both_shapes():
    sites = table()
    sites[2] = (sites[2][0][:, :2], *sites[2][1:])
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared, names=["a", "b", "north"]), "north", "(8, 2)", "(8, 3)")


@pytest.mark.parametrize(
    "A",
    [
        np.full(N, CANARY),
        np.full((2, 2, 2), CANARY),
        np.float64(CANARY),
        [[1.0, 2.0, 3.0], [CANARY]],
        np.full((N, D), CANARY, complex),
        np.full((N, D), CANARY, object),
        np.full((N, D), "12345.678"),
        np.zeros((N, D), "datetime64[D]"),
        np.zeros((N, D), [("a", float)]),
        scipy.sparse.csr_array(np.full((N, D), CANARY + 0j)),
        scipy.sparse.coo_array(np.full(N, CANARY)),
        None,
        {},
    ],
    ids=label,
)
def test_a_table_that_is_not_one_of_real_numbers_is_refused(A):
    sites = table()
    sites[1] = (A, *sites[1][1:])
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared), "site 1", "A")


def test_a_masked_array_is_refused_or_its_hidden_entries_are_not_used():
    sites = small()
    hidden = np.ma.masked_array(sites[0][1], mask=np.arange(N) == 0)
    sites[0] = (sites[0][0], hidden)
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared), "site 0", "y")


def test_a_number_too_large_for_float64_is_refused_without_a_warning():
    sites = small()
    sites[0] = (sites[0][0], np.array([np.longdouble("1e4000")] * N))
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared), "site 0", "y")


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
def test_every_kind_of_sparse_table_is_read_as_the_dense_one(kind):
    sparse = [(scipy.sparse.csr_array(np.where(np.abs(A) > 1, A, 0)).asformat(kind), y) for A, y in small()]
    plain = [(A.toarray(), y) for A, y in sparse]
    np.testing.assert_allclose(fh.Fleet(sparse, loss=fh.squared).client(1).f.H, fh.Fleet(plain, loss=fh.squared).client(1).f.H)


@pytest.mark.parametrize("sites", [[], {}, None, 3, "ab", [None], ["ab"], [(1,)], [()], [tuple(range(5))], [np.zeros((2, 3))]])
def test_what_is_not_a_list_of_sites_is_refused(sites):
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared), "site")


def test_a_fleet_without_a_single_row_is_refused():
    empty = (np.zeros((0, D)), np.zeros(0))
    refused(fh.InvalidData, lambda: fh.Fleet([empty, empty], loss=fh.squared), "no site has a row")


def test_a_table_without_columns_is_refused():
    refused(fh.InvalidData, lambda: fh.Fleet([(np.zeros((4, 0)), np.zeros(4))], loss=fh.squared), "no columns")


def test_an_empty_site_contributes_nothing_and_is_noted():
    sites = small()
    empty = (np.zeros((0, D)), [])
    with_empty = fh.Fleet({"a": sites[0], "nobody": empty, "b": sites[1]}, loss=fh.squared, reg=0.1)
    assert any("nobody" in note for note in with_empty.notes)
    result = fh.solve(with_empty)
    assert result.status is fh.Status.SOLVED
    assert np.linalg.norm(result.x - least_squares_exact(sites[:2], reg=0.1)) <= 1e-8


def test_one_site_alone_is_the_plain_fit():
    result = fh.solve(fh.Fleet(small()[:1], loss=fh.squared), tol=1e-9)
    assert result.status is fh.Status.SOLVED
    assert np.linalg.norm(result.x - least_squares_exact(small()[:1])) <= 1e-8


def test_negative_weights_are_refused_by_site_and_counted():
    sites = table()
    sites[1] = (*sites[1][:2], np.where(np.arange(N) < 3, -1.0, CANARY))
    refused(fh.InvalidData, lambda: fh.Fleet(sites, loss=fh.squared), "site 1", "3 negative")


def test_weights_that_are_all_zero_are_refused():
    refused(fh.InvalidData, lambda: fh.Fleet([(A, y, np.zeros(N)) for A, y in small()], loss=fh.squared), "weight")


# ── parameters of a fleet ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reg", [-1e-300, np.nan, np.inf, [0.1, 0.1], [0.1] * 4, [[0.1] * 3], [0.1, -0.1, 0.1], None, "much", {}, object()])
def test_a_penalty_that_cannot_be_is_refused(reg):
    refused(fh.InvalidConfig, lambda: fh.Fleet(small(), loss=fh.squared, reg=reg), "reg")


@pytest.mark.parametrize("reg", [1j, np.array([1j, 1, 1]), True, "0.1"], ids=label)
def test_a_penalty_that_is_not_a_real_number_is_refused_not_converted(reg):
    refused(fh.InvalidConfig, lambda: fh.Fleet(small(), loss=fh.squared, reg=reg), "reg")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("update", "newtn"),
        ("update", ["newton", "gradient"]),
        ("update", ["newton"] * 4),
        ("update", ["newton", "gradient", 3]),
        ("update", [["newton"]] * 3),
        ("update", 5),
        ("update", None),
        ("weighting", "rows"),
        ("weighting", None),
        ("weighting", np.array(["row", "client"])),
        ("names", ["a", "b", "a"]),
        ("names", ["a", "b"]),
        ("names", 5),
        ("names", "abc"),
        ("loss", "logistic"),
        ("loss", None),
        ("intercept", "no"),
        ("intercept", np.array([1, 0])),
        ("keep_rows", np.array([True, False])),
    ],
    ids=label,
)
def test_a_setting_of_a_fleet_that_cannot_be_is_refused_by_name(key, value):
    settings = {"loss": fh.squared} | {key: value}
    refused(fh.InvalidConfig, lambda: fh.Fleet(small(), **settings), key)


def test_names_beside_a_dict_of_sites_are_refused():
    refused(fh.InvalidConfig, lambda: fh.Fleet(dict(zip("abc", small(), strict=True)), loss=fh.squared, names=["x", "y", "z"]), "names")


def test_names_that_are_equal_as_text_are_refused():
    refused(fh.InvalidConfig, lambda: fh.Fleet({1: small()[0], "1": small()[1]}, loss=fh.squared), "same name")


# ── parameters of a run ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("tol", tol) for tol in (np.nan, -1e-8, 0, 0.0, np.inf, True, "1e-8", None, [1e-8], 1j)),
        *(("max_rounds", rounds) for rounds in (0, -1, 10.0, 1e4, True, None, "10", 2**53, 10**30, np.nan)),
        *(("max_seconds", seconds) for seconds in (0, -1, np.nan, True, "1", None)),
        *(("x0", x0) for x0 in (np.zeros(2), np.zeros((3, 1)), 0.0, [np.nan, 0, 0], [np.inf, 0, 0], "abc", [[1], [2, 3]], object())),
        ("x0", np.array([1j, 0, 0])),
        ("x0", ["1", "2", "3"]),
        *(("algorithm", algorithm) for algorithm in ("newton", fh.newton, 3, (1, 2, 3, 4))),
        ("checkpoint", 3),
        *(("transport", transport) for transport in ("serial", None, 3, fh.absent, lambda fleet: 3)),
        ("progress", np.array([1, 0])),
    ],
    ids=label,
)
def test_a_setting_of_solve_that_cannot_be_is_refused_by_name(key, value):
    fleet = fh.Fleet(small(), loss=fh.squared)
    refused(fh.InvalidConfig, lambda: fh.solve(fleet, **{key: value}), key)


@pytest.mark.parametrize("other", [None, 5, "x", [], {}, np.zeros(2), object()], ids=label)
def test_what_wants_a_fleet_says_so(other):
    for call in (fh.solve, fh.Stacked, fh.Serial, fh.choose, lambda given: fh.tune(fh.gd, {"s": [0.1]}, given)):
        refused(fh.InvalidConfig, lambda call=call: call(other), "Fleet", type(other).__name__)


def test_tune_says_what_it_takes_for_a_method_and_a_grid():
    fleet = fh.Fleet(small(), loss=fh.squared)
    for grid in (None, 5, "x", [5], {"s": 5}, {"s": None}, np.zeros(2)):
        refused(fh.InvalidConfig, lambda grid=grid: fh.tune(fh.gd, grid, fleet), "grid")
    for factory in (None, "gd", fh.gd(step_size=0.1)):
        refused(fh.InvalidConfig, lambda factory=factory: fh.tune(factory, {"s": [0.1]}, fleet), "fedhybrid.gd")


@pytest.mark.parametrize("steps", [0, -1, 2.0, True, None, "3"])
def test_a_number_of_steps_that_cannot_be_is_refused(steps):
    refused(fh.InvalidConfig, lambda: fh.run(fh.newton(), fh.Stacked(fh.Fleet(small(), loss=fh.squared)), steps), "steps")


def test_run_refuses_what_is_not_an_algorithm_a_transport_or_a_start():
    clients = fh.Stacked(fh.Fleet(small(), loss=fh.squared))
    refused(fh.InvalidConfig, lambda: fh.run("newton", clients, 3), "algorithm")
    refused(fh.InvalidConfig, lambda: fh.run(fh.newton(), clients, 3, x0=np.zeros(7)), "x0", "(7,)", "(3,)")
    refused(fh.InvalidConfig, lambda: fh.run(fh.newton(), fh.Fleet(small(), loss=fh.squared), 3), "clients")


GOOD = {"mu": 1.0, "a": 1.0, "b": 0.1}


@pytest.mark.parametrize("key", ["mu", "a", "b"])
@pytest.mark.parametrize("value", [0, 0.0, -1.0, np.nan, np.inf, "much", [[1.0]], object()], ids=label)
def test_a_parameter_of_fedhybrid_that_is_not_positive_is_refused_by_name(key, value):
    refused(fh.InvalidConfig, lambda: fh.fedhybrid(**GOOD | {key: value}), "fedhybrid", key)


@pytest.mark.parametrize("value", [1j, np.array(1j), True, "1"], ids=label)
def test_a_parameter_of_fedhybrid_that_is_not_a_real_number_is_refused_not_converted(value):
    refused(fh.InvalidConfig, lambda: fh.fedhybrid(**GOOD | {"mu": value}), "mu")


@pytest.mark.parametrize("value", [(1.0,), (1.0, 1.0, 1.0), (1.0, -1.0), (1.0, np.nan)])
def test_a_pair_of_step_sizes_must_be_two_positive_numbers(value):
    refused(fh.InvalidConfig, lambda: fh.fedhybrid(**GOOD | {"a": value}), "a")


@pytest.mark.parametrize(
    ("key", "value", "needed"),
    [
        ("a", np.ones(2), "(3,)"),
        ("b", np.ones(4), "(3,)"),
        ("a", [], "(3,)"),
        ("x", np.zeros((3, 2)), "(3, 3)"),
        ("lam", np.zeros((2, 3)), "(3, 3)"),
        ("x0", np.zeros(4), "(3,)"),
    ],
)
def test_an_array_of_the_wrong_length_is_refused_with_the_length_needed(key, value, needed):
    fleet = fh.Fleet(small(), loss=fh.squared)
    refused(fh.InvalidConfig, lambda: fh.solve(fleet, fh.fedhybrid(**GOOD | {key: value})), key, np.shape(value), needed)


@pytest.mark.parametrize(
    ("key", "value"), [("x", np.full((3, 3), np.nan)), ("lam", np.zeros(3)), ("x0", np.zeros((1, 3))), ("x", [[1], [2, 3]])]
)
def test_start_values_that_cannot_be_are_refused(key, value):
    refused(fh.InvalidConfig, lambda: fh.fedhybrid(**GOOD, **{key: value}), key)


@pytest.mark.parametrize("size", [0, -1.0, np.nan, np.inf, [0.1, 0.1], None, "x"], ids=label)
def test_a_step_size_of_gradient_descent_that_is_not_positive_is_refused(size):
    refused(fh.InvalidConfig, lambda: fh.gd(step_size=size), "step_size")


@pytest.mark.parametrize("memory", [0, -1, 2.0, True, None, "5"], ids=label)
def test_a_memory_of_lbfgs_that_is_not_a_positive_integer_is_refused(memory):
    refused(fh.InvalidConfig, lambda: fh.lbfgs(memory=memory), "memory")


@pytest.mark.parametrize("delta", [0, -1.0, np.nan, np.inf, None, "1", True], ids=label)
def test_a_delta_of_huber_that_is_not_positive_is_refused(delta):
    refused(fh.InvalidConfig, lambda: fh.huber(delta=delta), "delta")


@pytest.mark.parametrize("d", [0, -1, 2.0, True, None], ids=label)
def test_a_dimension_of_a_custom_loss_that_is_not_a_positive_integer_is_refused(d):
    refused(fh.InvalidConfig, lambda: fh.custom(lambda x, a, y: 0.0, d), "d")


@pytest.mark.parametrize(
    "call",
    [
        lambda: fh.Fleet(small(), loss=fh.squared, regg=1.0),
        lambda: fh.solve(fh.Fleet(small(), loss=fh.squared), regg=1.0),
        lambda: fh.run(fh.newton(), fh.Stacked(fh.Fleet(small(), loss=fh.squared)), 3, regg=1.0),
        lambda: fh.fedhybrid(**GOOD, regg=1.0),
        lambda: fh.gd(step_size=0.1, regg=1.0),
        lambda: fh.lbfgs(regg=1.0),
        lambda: fh.newton(regg=1.0),
        lambda: fh.huber(delta=1.0, regg=1.0),
        lambda: fh.custom(lambda x, a, y: 0.0, 3, regg=1.0),
    ],
    ids=["Fleet", "solve", "run", "fedhybrid", "gd", "lbfgs", "newton", "huber", "custom"],
)
def test_an_unknown_keyword_is_an_invalid_config_that_names_it(call):
    refused(fh.InvalidConfig, call, "regg")


def test_a_missing_argument_is_an_invalid_config_that_lists_the_arguments():
    refused(fh.InvalidConfig, lambda: fh.Fleet(small()), "loss", "weighting")
    refused(fh.InvalidConfig, fh.gd, "step_size")


@pytest.mark.parametrize(
    "loss",
    [lambda z: z, lambda z, y: np.array([1.0, 2.0]), lambda z, y: np.exp(z), fh.custom(lambda x, a, y: (a @ x - y) ** 2, 5)],
    ids=["one argument", "not a number", "NumPy inside", "wrong length of x"],
)
def test_a_custom_loss_that_cannot_be_evaluated_is_an_invalid_config(loss):
    refused(fh.InvalidConfig, lambda: fh.solve(fh.Fleet(small(), loss=loss)))


# ── nothing of the caller's is changed ────────────────────────────────────────────────────────────────────────────────────────


def bits(sites):
    def parts(A):
        return [A.data, A.indices, A.indptr] if scipy.sparse.issparse(A) else [A]

    return [[part.tobytes() for part in (*parts(A), *rest)] for A, *rest in sites]


@pytest.mark.parametrize("loss", [fh.squared, fh.logistic], ids=str)
def test_the_callers_dense_arrays_are_never_changed(loss):
    sites = [(A, np.where(y > 0, 1.0, -1.0), np.ones(N), np.zeros(N)) for A, y in small()]
    reg, x0, before = np.array([0.1, 0.2, 0.3]), np.ones(D), bits(sites)
    for site in sites:
        for part in site:
            part.setflags(write=False)
    fh.solve(fh.Fleet(sites, loss=loss, reg=reg), x0=x0)
    fh.solve(fh.Fleet(sites, loss=loss, reg=reg, intercept=True), fh.newton(), max_rounds=2)
    assert bits(sites) == before
    np.testing.assert_array_equal(reg, [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(x0, np.ones(D))


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
def test_the_callers_sparse_arrays_are_never_sorted_or_summed(kind):
    def unsorted():
        data, indices = np.tile([1.0, 2.0, 3.0, -1.0], N), np.tile([2, 0, 2, 1], N)
        return kind((data * np.repeat(np.arange(1, N + 1), 4), indices, 4 * np.arange(N + 1)), shape=(N, D))

    sites = [(unsorted(), np.arange(N) % 2 * 1.0) for _ in range(3)]
    before = bits(sites)
    result = fh.solve(fh.Fleet(sites, loss=fh.logistic, reg=0.5))
    assert bits(sites) == before
    assert sites[0][0].nnz == 4 * N
    truth = logistic_high_precision([(A.toarray(), y) for A, y in copy.deepcopy(sites)], reg=0.5)
    assert np.linalg.norm(result.x - truth) <= 1e-8


def test_a_refused_call_leaves_the_fleet_usable():
    fleet = fh.Fleet(small(), loss=fh.squared)
    for bad in ({"tol": -1}, {"x0": np.zeros(9)}, {"algorithm": fh.fedhybrid(mu=1.0, a=np.ones(2), b=1.0)}):
        refused(fh.InvalidConfig, lambda bad=bad: fh.solve(fleet, **bad))
    assert fh.solve(fleet).status is fh.Status.SOLVED
