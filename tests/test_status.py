"""The status is true: every way in which a run can end, provoked and checked from outside."""

import csv
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from reference import objective
from reference.pooled import least_squares_exact, logistic_high_precision, minimum_norm

import fedhybrid as fh
from fedhybrid import Status

N, D, n = 8, 3, 3
METHODS = {"default": lambda: None, "newton": fh.newton, "lbfgs": fh.lbfgs}


def rows(seed=0, shift=0.3):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(N, D)) + shift * i for i in range(n)], rng


def squares(seed=0, noise=1.0):
    tables, rng = rows(seed)
    return [(A, A @ np.array([1.0, -0.5, 0.25]) + noise * rng.normal(size=N)) for A in tables]


def binary(seed=0):
    tables, rng = rows(seed)
    return [(A, (A @ np.array([1.0, -0.5, 0.25]) + 2 * rng.logistic(size=N) > 0).astype(float)) for A in tables]


SITES = {"squared": squares, "logistic": binary}
LOSSES = {"squared": fh.squared, "logistic": fh.logistic}


def with_ones(sites):
    return [(np.hstack([A, np.ones((len(A), 1))]), *rest) for A, *rest in sites]


def everything_is_finite(result):
    """No NaN in any field, and x and the trace finite."""
    assert np.all(np.isfinite(result.x))
    for column in (result.trace.start, result.trace.x0, *result.trace.columns().values()):
        assert np.all(np.isfinite(column))
    for number in (result.gradient_norm, result.error_bound, result.m_hat, result.kappa_hat or 0.0):
        assert not math.isnan(number)
    for values in (result.x_clients, result.lam_clients, result.direction):
        assert values is None or np.all(np.isfinite(values))
    assert result.message.startswith(result.status.sentence[0].upper() + result.status.sentence[1:])
    return result


def solve(*args, **kwargs):
    return everything_is_finite(fh.solve(*args, **kwargs))


def rounds_after_growth(trace):
    """Steps from the first residual above 1e3 × the best before it to the end; 0 if there is none."""
    best = np.minimum.accumulate(trace.residual)
    grown = np.flatnonzero(trace.residual > 1e3 * best)
    return len(trace) - 1 - grown[0] if len(grown) else 0


# ── divergence (N-04) ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def good_setting(loss, update):
    """Step sizes that converge: mu of the order of the curvature, a below 1/(ell + mu)."""
    sites = SITES[loss]()
    ell = max(float(np.linalg.eigvalsh(client.hess(np.zeros(D)))[-1]) for client in objective.clients(sites, loss, reg=0.1))
    mu = ell
    return {"mu": mu, "a": 1.0 / (ell + mu) if update == "gradient" else 1.0, "b": 0.25 * mu / 2 if update == "gradient" else 0.25}


WRONG = {
    "a×2": ("a", 2.0),
    "a×4": ("a", 4.0),
    "a×8": ("a", 8.0),
    "mu×1e6": ("mu", 1e6),
    "mu×1e-6": ("mu", 1e-6),
    "b×100": ("b", 100.0),
}


@pytest.mark.parametrize("update", ["gradient", "newton"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_good_setting_is_good(loss, update):
    fleet = fh.Fleet(SITES[loss](), loss=LOSSES[loss], reg=0.1, update=update)
    assert solve(fleet, fh.fedhybrid(**good_setting(loss, update))).status is Status.SOLVED


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("update", ["gradient", "newton"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_wrong_setting_ends_in_a_true_status_soon_and_at_the_best_point(loss, update, wrong):
    key, factor = WRONG[wrong]
    setting = good_setting(loss, update)
    sites = SITES[loss]()
    fleet = fh.Fleet(sites, loss=LOSSES[loss], reg=0.1, update=update)
    result = solve(fleet, fh.fedhybrid(**setting | {key: setting[key] * factor}), max_rounds=2000)
    after = rounds_after_growth(result.trace)
    print(f"{loss} {update} {wrong}: {result.status} after {result.rounds} rounds, {after} after the residual had grown 1e3 times")
    truth = least_squares_exact(sites, 0.1) if loss == "squared" else logistic_high_precision(sites, 0.1)
    assert np.linalg.norm(result.x - truth) <= result.error_bound * (1 + 1e-6)
    if result.status is Status.SOLVED:
        assert np.linalg.norm(result.x - truth) <= 1e-8 * max(1.0, np.linalg.norm(result.x))
    else:
        assert result.status in (Status.DIVERGED, Status.NONFINITE, Status.MAX_ROUNDS)
        assert after <= 25
        # the best iterate: the residual there was the least of the trace
        if result.status is Status.DIVERGED:
            at = int(np.argmin(result.trace.residual))
            before = result.trace.start if at == 0 else result.trace.x0[at - 1]
            np.testing.assert_array_equal(result.x, before)
    if wrong in ("a×8", "b×100") and update == "gradient":
        assert result.status is Status.DIVERGED
        assert "smaller step sizes" in result.message


def test_the_same_divergence_is_seen_through_either_transport():
    setting = good_setting("squared", "gradient")
    setting["a"] *= 8
    fleet = fh.Fleet(squares(), loss=fh.squared, reg=0.1, update="gradient")
    stacked, serial = (solve(fleet, fh.fedhybrid(**setting), transport=transport) for transport in (fh.Stacked, fh.Serial))
    assert stacked.status is serial.status is Status.DIVERGED
    assert stacked.rounds == serial.rounds


# ── one label (N-07) and no minimiser (N-08) ──────────────────────────────────────────────────────────────────────────────────


def test_clients_of_one_label_each_give_the_right_optimum():
    tables, _ = rows(4, shift=0.0)
    sites = [(A, np.full(N, float(i % 2))) for i, A in enumerate(tables)]
    result = solve(fh.Fleet(sites, loss=fh.logistic, reg=0.05))
    assert result.status is Status.SOLVED
    assert np.linalg.norm(result.x - logistic_high_precision(sites, reg=0.05)) <= 1e-8


def separable():
    tables, _ = rows(5, shift=0.0)
    return [(A, (A @ np.array([1.0, -1.0, 0.5]) > 0).astype(float)) for A in tables]


def margins(sites, v):
    """y(a·v) of every row, y in {−1, 1}."""
    return np.concatenate([(2 * y - 1) * (A @ v) for A, y in sites])


@pytest.mark.parametrize("method", METHODS)
def test_separable_data_without_penalty_have_no_minimiser_and_a_direction_that_shows_it(method):
    sites = separable()
    result = solve(fh.Fleet(sites, loss=fh.logistic), METHODS[method]())
    assert result.status is Status.NO_MINIMISER
    margin = margins(sites, result.direction)
    assert np.all(margin >= 0)
    assert np.any(margin > 0)
    assert "reg > 0" in result.message


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("reg", [0.0, 0.1])
@pytest.mark.parametrize("method", METHODS)
def test_one_pooled_label_and_an_intercept_without_penalty_have_no_minimiser(method, reg, label):
    sites = [(A, np.full(N, label)) for A in rows(4, shift=0.0)[0]]
    result = solve(fh.Fleet(sites, loss=fh.logistic, reg=reg, intercept=True), METHODS[method]())
    assert result.status is Status.NO_MINIMISER
    margin = margins(with_ones(sites), result.direction)
    assert np.all(margin >= 0)
    assert np.any(margin > 0)
    if reg > 0:
        np.testing.assert_array_equal(result.direction[:D], 0)


def test_one_pooled_label_with_every_coordinate_penalised_is_solved():
    sites = [(A, np.ones(N)) for A in rows(4, shift=0.0)[0]]
    result = solve(fh.Fleet(sites, loss=fh.logistic, reg=0.1))
    assert result.status is Status.SOLVED
    assert np.linalg.norm(result.x - logistic_high_precision(sites, reg=0.1)) <= 1e-8


def quasi_separable():
    sites = binary(6)
    for A, y in sites:
        y[:4] = [1, 1, 0, 0]
        A[:, 2] = 0
        A[0, 2] = 1  # the column occurs only with label 1
    return sites


@pytest.mark.parametrize("method", METHODS)
def test_a_column_that_occurs_with_one_label_only_leaves_no_minimiser(method):
    sites = quasi_separable()
    result = solve(fh.Fleet(sites, loss=fh.logistic), METHODS[method]())
    assert result.status is Status.NO_MINIMISER
    margin = margins(sites, result.direction)
    assert np.all(margin >= 0)
    assert np.any(margin > 0)


@pytest.mark.parametrize("method", METHODS)
def test_a_mixture_of_columns_that_occurs_with_one_label_only_is_never_called_solved(method):
    # the direction is oblique, so rounding may hide it from an exact check: any true status will do
    sites = [(A @ np.linalg.qr(np.arange(9.0).reshape(3, 3) + np.eye(3))[0], y) for A, y in quasi_separable()]
    result = solve(fh.Fleet(sites, loss=fh.logistic), METHODS[method](), max_rounds=1000)
    assert result.status not in (Status.SOLVED, Status.SOLVED_INACCURATE)
    if result.direction is not None:
        assert np.all(margins(sites, result.direction) >= 0)


@pytest.mark.parametrize("method", METHODS)
def test_a_category_whose_counts_are_all_zero_leaves_no_poisson_minimiser(method):
    tables, rng = rows(7)
    sites = []
    for A in tables:
        y = rng.poisson(2.0, size=N).astype(float)
        A[:, 2] = 0
        A[:2, 2], y[:2] = 1, 0
        sites.append((A, y))
    result = solve(fh.Fleet(sites, loss=fh.poisson), METHODS[method]())
    assert result.status is Status.NO_MINIMISER
    slope = np.concatenate([A @ result.direction for A, _ in sites])
    y = np.concatenate([y for _, y in sites])
    assert np.all(slope[y > 0] == 0)
    assert np.all(slope[y == 0] <= 0)
    assert np.any(slope[y == 0] < 0)


@pytest.mark.parametrize("method", METHODS)
def test_separable_classes_leave_no_softmax_minimiser(method):
    B = np.array([[1.0, 0, -1], [0, 1, -1], [0.5, 0.5, 0]])
    sites = [(A, np.argmax(A @ B, axis=1).astype(float)) for A in rows(8, shift=0.0)[0]]
    assert set(np.concatenate([y for _, y in sites])) == {0.0, 1.0, 2.0}
    result = solve(fh.Fleet(sites, loss=fh.softmax), METHODS[method]())
    assert result.status is Status.NO_MINIMISER
    V = np.hstack([np.zeros((D, 1)), result.direction.reshape(D, 2)])  # class 0 is the reference
    for A, y in sites:
        slope = A @ V
        lead = slope[np.arange(N), y.astype(int)][:, None] - slope
        assert np.all(lead >= 0)
    assert np.any(lead > 0)


def test_data_that_are_nearly_separable_are_solved_not_called_without_minimiser():
    sites = separable()
    sites[1][1][3] = 1 - sites[1][1][3]
    sites[2][1][0] = 1 - sites[2][1][0]
    truth = logistic_high_precision(sites)
    result = solve(fh.Fleet(sites, loss=fh.logistic), fh.newton())
    assert result.status is Status.SOLVED
    assert np.linalg.norm(result.x - truth) <= 1e-8 * max(1.0, np.linalg.norm(truth))


# ── what does not determine x (N-09), small and strange sizes (N-10), weak curvature (N-12) ────────────────────────────────────


def deficient(kind):
    sites = squares(9)
    if kind == "rank 1":
        return [(np.outer(A[:, 0], [1.0, 2.0, -0.5]), y) for A, y in sites]
    for A, _ in sites:
        A[:, 2] = {"duplicate": A[:, 0], "zero": 0.0, "sum": A[:, 0] + A[:, 1], "triple": A[:, 0] * 3}[kind]
    return sites


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["duplicate", "zero", "sum", "triple", "rank 1"])
def test_columns_that_do_not_determine_x_are_ill_conditioned_and_x_is_of_least_norm(kind, method):
    sites = deficient(kind)
    result = solve(fh.Fleet(sites, loss=fh.squared), METHODS[method]())
    assert result.status is Status.ILL_CONDITIONED
    assert result.error_bound == math.inf
    assert np.linalg.norm(result.x - minimum_norm(sites)) <= 1e-8


@pytest.mark.parametrize("kind", ["duplicate", "zero", "sum", "rank 1"])
def test_with_a_penalty_deficient_columns_are_solved_exactly(kind):
    sites = deficient(kind)
    result = solve(fh.Fleet(sites, loss=fh.squared, reg=0.1), tol=1e-10)
    assert result.status is Status.SOLVED
    assert np.linalg.norm(result.x - least_squares_exact(sites, reg=0.1)) <= 1e-10


def test_a_constant_column_beside_an_intercept_is_ill_conditioned():
    sites = squares(9)
    for A, _ in sites:
        A[:, 2] = 1.0
    result = solve(fh.Fleet(sites, loss=fh.squared, intercept=True))
    assert result.status is Status.ILL_CONDITIONED
    assert np.linalg.norm(result.x - minimum_norm(with_ones(sites))) <= 1e-8


@pytest.mark.parametrize("method", METHODS)
def test_a_duplicate_column_in_logistic_regression_is_ill_conditioned(method):
    sites = binary(1)
    for A, _ in sites:
        A[:, 2] = A[:, 0]
    result = solve(fh.Fleet(sites, loss=fh.logistic), METHODS[method]())
    assert result.status is Status.ILL_CONDITIONED
    truth = logistic_high_precision([(A[:, :2], y) for A, y in sites])
    assert np.linalg.norm(result.x - [truth[0] / 2, truth[1], truth[0] / 2]) <= 1e-8


def test_where_rounding_forbids_a_proof_no_rounds_are_spent_on_waiting_for_one():
    scale = np.array([1.0, 1e3, 1e5])
    sites = [(A * scale, y) for A, y in squares(4)]
    result = solve(fh.Fleet(sites, loss=fh.squared))
    assert result.status is Status.SOLVED_INACCURATE
    assert "Scale them alike" in result.message
    truth = least_squares_exact(sites)
    errors = np.linalg.norm((result.trace.x0 - truth) * scale, axis=1) / np.linalg.norm(truth * scale)
    there = result.trace.first_below(1e-8, errors)
    assert there is not None
    assert result.rounds <= there + 60


def test_random_deficient_problems_are_never_called_solved():
    rng = np.random.default_rng(11)
    for trial in range(20):
        mix = rng.normal(size=(2, D)) if trial % 2 else rng.integers(-3, 4, size=(2, D)) / 7
        sites = [(rng.normal(size=(N, 2)) @ mix, rng.normal(size=N)) for _ in range(n)]
        for algorithm in (None, fh.newton()):
            result = solve(fh.Fleet(sites, loss=fh.squared), algorithm, max_rounds=3000)
            assert result.status not in (Status.SOLVED, Status.DIVERGED), trial


def test_sites_with_fewer_rows_than_columns_are_solved_together():
    sites = [(A[:2], y[:2]) for A, y in squares()]
    result = solve(fh.Fleet(sites, loss=fh.squared), tol=1e-10)
    assert result.status is Status.SOLVED
    assert np.linalg.norm(result.x - least_squares_exact(sites)) <= 1e-10 * max(1, np.linalg.norm(result.x))


def strange(kind):
    sites = squares(3)
    return {
        "an empty client": lambda: [*sites[:2], (np.zeros((0, D)), np.zeros(0))],
        "one client": lambda: sites[:1],
        "one row each": lambda: [(A[:1], y[:1]) for A, y in sites],
        "one feature": lambda: [(A[:, :1], y) for A, y in sites],
        "one number": lambda: [(sites[0][0][:1, :1], sites[0][1][:1])],
        "duplicate rows": lambda: [(np.tile(A[:4], (2, 1)), np.tile(y[:4], 2)) for A, y in sites],
        "equal responses": lambda: [(A, np.full(N, 2.5)) for A, _ in sites],
        "zero responses": lambda: [(A, np.zeros(N)) for A, _ in sites],
        "weights of zero": lambda: [(A, y, (np.arange(N) < 4).astype(float)) for A, y in sites],
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    [
        "an empty client",
        "one client",
        "one row each",
        "one feature",
        "one number",
        "duplicate rows",
        "equal responses",
        "zero responses",
        "weights of zero",
    ],
)
def test_small_and_strange_sizes_are_exact(kind):
    sites = strange(kind)
    result = solve(fh.Fleet(sites, loss=fh.squared, reg=0.01), tol=1e-10)
    truth = least_squares_exact(sites, reg=0.01)
    assert result.status is Status.SOLVED
    assert np.linalg.norm(result.x - truth) <= 1e-10 * max(1.0, np.linalg.norm(truth))


def test_more_columns_than_rows_is_exact_with_a_penalty_and_of_least_norm_without():
    sites = [(A[:1], y[:1]) for A, y in squares(3)[:2]]
    exact = solve(fh.Fleet(sites, loss=fh.squared, reg=0.01), tol=1e-10)
    assert exact.status is Status.SOLVED
    assert np.linalg.norm(exact.x - least_squares_exact(sites, reg=0.01)) <= 1e-10 * max(1.0, np.linalg.norm(exact.x))
    least = solve(fh.Fleet(sites, loss=fh.squared))
    assert least.status is Status.ILL_CONDITIONED
    assert np.linalg.norm(least.x - minimum_norm(sites)) <= 1e-8


@pytest.mark.parametrize("mu", [1e-300, 1e-30])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_singular_local_hessian_with_a_vanishing_mu_ends_in_a_true_status_that_names_the_site(loss, mu):
    sites = SITES[loss]()
    sites[1][0][:, 1] = 0.0
    sites[1][0][:, 2] = 0.0
    fleet = fh.Fleet(dict(zip(["north", "south", "west"], sites, strict=True)), loss=LOSSES[loss])
    result = solve(fleet, fh.fedhybrid(mu=mu, a=1.0, b=0.25), max_rounds=500)
    assert result.status in (Status.ILL_CONDITIONED, Status.NONFINITE, Status.DIVERGED, Status.MAX_ROUNDS)
    if result.status in (Status.ILL_CONDITIONED, Status.NONFINITE):
        assert "south" in result.message
        assert "north" not in result.message


def test_huber_without_penalty_is_solved_inaccurate_and_with_one_solved():
    sites = squares(2)
    free = solve(fh.Fleet(sites, loss=fh.huber))
    assert free.status is Status.SOLVED_INACCURATE
    assert free.error_bound == math.inf
    gradient = sum(client.grad(free.x) for client in objective.clients(sites, "huber"))
    assert np.linalg.norm(gradient) <= 1e-7
    assert solve(fh.Fleet(sites, loss=fh.huber, reg=0.1)).status is Status.SOLVED


def softplus(z, y):
    return jnp.logaddexp(0.0, z) - y * z


def test_a_custom_loss_without_penalty_is_solved_inaccurate_and_right():
    sites = binary(1)
    free = solve(fh.Fleet(sites, loss=softplus))
    assert free.status is Status.SOLVED_INACCURATE
    assert np.linalg.norm(free.x - logistic_high_precision(sites)) <= 1e-7
    held = solve(fh.Fleet(sites, loss=softplus, reg=0.1))
    assert held.status is Status.SOLVED
    assert np.linalg.norm(held.x - logistic_high_precision(sites, reg=0.1)) <= 1e-8


def test_full_rank_that_is_weak_is_solved_only_with_the_curvature_that_was_summed():
    sites = squares(2)
    for A, _ in sites:
        A[:, 2] = A[:, 0] + 1e-3 * A[:, 2]
    truth = least_squares_exact(sites)
    for algorithm in (None, fh.newton()):
        result = solve(fh.Fleet(sites, loss=fh.squared), algorithm)
        error = np.linalg.norm(result.x - truth)
        assert result.kappa_hat is not None
        assert error <= result.error_bound * (1 + 1e-6)
        if result.status is Status.SOLVED:
            assert result.m_hat > 0
            assert error <= 1e-8 * max(1.0, np.linalg.norm(truth))
        else:
            assert result.status in (Status.MAX_ROUNDS, Status.SOLVED_INACCURATE)
        if result.status is Status.SOLVED_INACCURATE:  # "the run can get no further" must be so: more rounds do not help
            g = sum(client.grad(result.x) for client in objective.clients(sites, "squared"))
            assert np.linalg.norm(g) <= 1e-12, "a slow run was called a finished one"


# ── overflow, underflow, cancellation (N-16) ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("loss", "A_scale", "y_scale"),
    [
        ("squared", 1.0, 1e150),
        ("squared", 1.0, 1e200),
        ("squared", 1e-150, 1.0),
        ("squared", 1e-140, 1e-30),
        ("squared", 1e-200, 1.0),
        ("squared", 1e80, 1.0),
        ("squared", 1e200, 1.0),
        ("squared", 5e-320, 1.0),
        ("squared", 1.0, 5e-320),
        ("logistic", 1e-150, 1.0),
        ("logistic", 1e4, 1.0),
        ("logistic", 1e80, 1.0),
        ("logistic", 1e200, 1.0),
        ("logistic", 5e-320, 1.0),
    ],
)
def test_extreme_scales_end_in_a_true_status_without_warnings(loss, A_scale, y_scale, method):
    reg = 0.1 if loss == "logistic" else 0.0
    base = SITES[loss]()
    sites = [(A * A_scale, y * y_scale) for A, y in base]
    try:
        fleet = fh.Fleet(sites, loss=LOSSES[loss], reg=reg)
        result = solve(fleet, METHODS[method](), max_rounds=300)
    except fh.InvalidData:
        assert max(A_scale, y_scale) > 1e75  # "too large" is a fair answer, if it names the data
        return
    if result.status is Status.SOLVED:
        if loss == "squared":
            truth = least_squares_exact(sites)
        elif A_scale <= 1e4:
            truth = logistic_high_precision(sites, reg)
        else:
            return
        error = np.linalg.norm((result.x - truth) / max(1.0, np.abs(truth).max()))
        assert error <= 2e-8, f"called SOLVED with a relative error of {error:.1e}"


def test_logits_of_ten_thousand_are_solved():
    sites = [(A * 1e4, y) for A, y in binary(1)]
    result = solve(fh.Fleet(sites, loss=fh.logistic, reg=1.0), fh.newton(), x0=np.ones(D))
    assert result.status is Status.SOLVED
    assert np.linalg.norm(result.x - logistic_high_precision(sites, reg=1.0)) <= 1e-8


@pytest.mark.parametrize("offset", [800.0, -800.0])
def test_a_poisson_offset_beyond_the_range_of_exp_ends_in_a_true_status(offset):
    sites = [(A, np.arange(N) % 3 * 1.0, np.ones(N), np.full(N, offset)) for A in rows(1)[0]]
    result = solve(fh.Fleet(sites, loss=fh.poisson), max_rounds=500)
    assert result.status is not Status.SOLVED


def test_a_poisson_start_beyond_the_range_of_exp_ends_in_a_true_status():
    sites = [(A, np.arange(N) % 3 * 1.0) for A in rows(1)[0]]
    result = solve(fh.Fleet(sites, loss=fh.poisson), x0=np.full(D, 1e4), max_rounds=500)
    assert result.status is not Status.SOLVED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("level", [1e8, 1e10, 1e12])
def test_responses_of_a_high_level_do_not_make_a_false_solved(level, method):
    # Aᵀy cancels to a part of 1e-level: its rounding error is invisible in the computed gradient, and must be in the bound
    sites = []
    for A, y in squares(1, noise=0.1):
        sites.append((A - A.mean(axis=0), y + level))
    truth = least_squares_exact(sites, reg=0.1)
    result = solve(fh.Fleet(sites, loss=fh.squared, reg=0.1), METHODS[method](), max_rounds=1000)
    error = np.linalg.norm(result.x - truth)
    assert error <= result.error_bound * (1 + 1e-6)
    if result.status is Status.SOLVED:
        assert error <= 1e-8 * max(1.0, np.linalg.norm(truth))


def test_the_bound_holds_on_nearly_collinear_columns():
    # a Gram matrix squares the condition number: rounding in forming it must not fall outside the bound
    worst = 0.0
    for seed in range(12):
        sites = squares(seed)
        for A, _ in sites:
            A[:, 2] = A[:, 0] + A[:, 1] + 1e-5 * A[:, 2]
        result = solve(fh.Fleet(sites, loss=fh.squared), fh.newton(), tol=1e-3, max_rounds=300)
        error = np.linalg.norm(result.x - least_squares_exact(sites))
        worst = max(worst, error / result.error_bound)
    print(f"worst error/bound {worst:.2f}")
    assert worst <= 1.0 + 1e-6


def concave(z, y):
    return -((z - y) ** 2)


def log_of_negative(z, y):
    return jnp.log(z - 1000.0)


@pytest.mark.parametrize("loss", [concave, log_of_negative])
def test_a_custom_loss_that_breaks_its_promise_ends_in_a_true_status(loss):
    fleet = fh.Fleet(squares(), loss=loss, reg=0.0)
    for method in METHODS:
        result = solve(fleet, METHODS[method](), max_rounds=200)
        assert result.status not in (Status.SOLVED, Status.SOLVED_INACCURATE), method


# ── the certificate, recomputed (N-20) ────────────────────────────────────────────────────────────────────────────────────────


class Counting(fh.Serial):
    """A transport that counts for itself what passes."""

    def __init__(self, fleet):
        super().__init__(fleet)
        self.seen, self.looks = [0, 0, 0], 0

    def mean(self, fn, local, *down, stale=False, implied=None):
        local, answer = super().mean(fn, local, *down)
        up = answer
        size = lambda tree: sum(np.size(leaf) for leaf in tree) if isinstance(tree, tuple) else np.size(tree)  # noqa: E731  (one line, used on the next)
        if getattr(fn, "__name__", "") == "look":  # while there are k moves, M has k(k + 1)/2 entries
            moves = min(self.looks, round((2 * up[2].size) ** 0.5 - 0.5))
            up, self.looks = (*up[:2], np.zeros(moves * (moves + 1) // 2), *up[3:]), self.looks + 1
        self.seen[0] += 1
        self.seen[1] += self.n * size(up)
        self.seen[2] += self.n * size(down)
        return local, answer


@pytest.mark.parametrize("max_rounds", [4, 10_000])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reg", [0.0, 0.1])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_certificate_equals_one_computed_outside(loss, reg, method, max_rounds):
    sites = SITES[loss](2)
    made = []

    def transport(fleet):
        made.append(Counting(fleet))
        return made[-1]

    result = solve(fh.Fleet(sites, loss=LOSSES[loss], reg=reg), METHODS[method](), transport=transport, max_rounds=max_rounds)
    assert [result.rounds, result.floats_up, result.floats_down] == made[0].seen
    clients = objective.clients(sites, loss, reg)
    grads = [client.grad(result.x) for client in clients]
    scale = sum(np.linalg.norm(g) for g in grads)
    g = np.linalg.norm(sum(grads))
    # at the optimum the clients' gradients cancel: two ways to sum them differ by a few eps of what cancels
    assert abs(result.gradient_norm - g) <= max(1e-12 * g, 1e-14 * scale)
    w = np.linalg.eigvalsh(sum(client.hess(result.x) for client in clients))
    m_hat = reg if result.kappa_hat is None or result.m_hat == reg else w[0]
    assert result.m_hat == pytest.approx(m_hat, rel=1e-12)
    if result.kappa_hat is not None:
        assert result.kappa_hat == pytest.approx(w[-1] / w[0], rel=1e-12)
    R = max(np.linalg.norm(a) for A, _ in sites for a in A)
    by_penalty = result.gradient_norm / reg if reg > 0 else math.inf
    reach = R * result.gradient_norm / w[0]
    by_curvature = result.gradient_norm / w[0] if loss == "squared" else (-math.log1p(-reach) / R if reach < 1 else math.inf)
    expected = by_penalty if result.kappa_hat is None else min(by_penalty, by_curvature)
    # what is added for rounding may make the bound larger, never smaller
    assert result.error_bound >= expected * (1 - 1e-12)
    assert result.error_bound <= expected * (1 + 1e-12) + 1e-12 * max(1.0, scale / result.m_hat)
    truth = least_squares_exact(sites, reg) if loss == "squared" else logistic_high_precision(sites, reg)
    assert np.linalg.norm(result.x - truth) <= result.error_bound * (1 + 1e-6) + 1e-15


# ── limits and interruption ───────────────────────────────────────────────────────────────────────────────────────────────────


def honest_certificate(result, sites, reg):
    assert np.linalg.norm(result.x - logistic_high_precision(sites, reg)) <= result.error_bound * (1 + 1e-6)
    g = np.linalg.norm(sum(client.grad(result.x) for client in objective.clients(sites, "logistic", reg)))
    assert result.gradient_norm == pytest.approx(g, rel=1e-10)
    assert math.isfinite(result.error_bound)


@pytest.mark.parametrize("max_rounds", [1, 2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_the_limit_on_rounds_gives_a_finite_point_and_its_certificate(method, max_rounds):
    sites = binary(2)
    result = solve(fh.Fleet(sites, loss=fh.logistic, reg=0.1), METHODS[method](), max_rounds=max_rounds, tol=1e-12)
    assert result.status is Status.MAX_ROUNDS
    assert result.trace.rounds[-1] <= max_rounds + 1  # Newton's step is two rounds
    honest_certificate(result, sites, 0.1)


def test_the_limit_on_seconds_gives_a_finite_point_and_its_certificate():
    sites = binary(2)
    slow = fh.gd(step_size=0.1)
    result = solve(fh.Fleet(sites, loss=fh.logistic, reg=0.1), slow, tol=1e-13, max_seconds=1e-9, transport=fh.Serial)
    assert result.status is Status.TIME_LIMIT
    honest_certificate(result, sites, 0.1)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_an_interrupt_gives_a_finite_point_and_its_certificate(after):
    class Interrupted(fh.Serial):
        steps = 0

        def mean(self, fn, local, *down, stale=False, implied=None):
            if getattr(fn, "__name__", "") == "look":
                self.steps += 1
                if self.steps == after + 1:
                    raise KeyboardInterrupt
            return super().mean(fn, local, *down)

    sites = binary(2)
    result = solve(fh.Fleet(sites, loss=fh.logistic, reg=0.1), transport=Interrupted)
    assert result.status is Status.INTERRUPTED
    honest_certificate(result, sites, 0.1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("loss", "reg"), [("squared", 0.0), ("squared", 0.1), ("logistic", 0.0), ("logistic", 0.1)])
def test_a_start_at_the_exact_optimum_is_solved_and_soon(loss, reg, method):
    sites = SITES[loss](2)
    truth = least_squares_exact(sites, reg) if loss == "squared" else logistic_high_precision(sites, reg)
    fleet = fh.Fleet(sites, loss=LOSSES[loss], reg=reg)
    cold = solve(fleet, METHODS[method]())
    warm = solve(fleet, METHODS[method](), x0=truth)
    print(f"{loss} {reg} {method}: {cold.rounds} rounds from zero, {warm.rounds} from the optimum")
    assert warm.status is Status.SOLVED
    assert warm.rounds <= cold.rounds + 20
    assert np.linalg.norm(warm.x - truth) <= 1e-8 * max(1.0, np.linalg.norm(truth))


def test_one_site_started_at_its_optimum_is_solved_at_once():
    sites = binary(2)[:1]
    sites[0] = (np.vstack([sites[0][0], -sites[0][0]]), np.tile(sites[0][1], 2))  # not separable
    truth = logistic_high_precision(sites)
    for method in METHODS:
        result = solve(fh.Fleet(sites, loss=fh.logistic), METHODS[method](), x0=truth)
        assert result.status is Status.SOLVED, method
        assert result.rounds <= 50, method


@pytest.mark.parametrize("tol", [1e3, 1e300])
def test_a_huge_tolerance_is_met_at_once_with_a_true_bound(tol):
    sites = binary(2)
    result = solve(fh.Fleet(sites, loss=fh.logistic, reg=0.1), tol=tol)
    assert result.status is Status.SOLVED
    assert result.rounds <= 5
    honest_certificate(result, sites, 0.1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("loss", "reg"), [("squared", 0.0), ("squared", 0.1), ("logistic", 0.0), ("logistic", 0.1)])
def test_a_tolerance_below_rounding_ends_in_a_true_status_without_spinning(loss, reg, method):
    sites = SITES[loss](2)
    result = solve(fh.Fleet(sites, loss=LOSSES[loss], reg=reg), METHODS[method](), tol=1e-19)
    assert result.status in (Status.SOLVED_INACCURATE, Status.SOLVED)
    assert result.rounds < 6000
    truth = least_squares_exact(sites, reg) if loss == "squared" else logistic_high_precision(sites, reg)
    error = np.linalg.norm(result.x - truth)
    assert error <= 1e-13
    if result.status is Status.SOLVED:
        assert error <= 1e-19


def test_a_tolerance_below_rounding_from_the_optimum_does_not_spin():
    sites = binary(2)
    truth = logistic_high_precision(sites, 0.1)
    result = solve(fh.Fleet(sites, loss=fh.logistic, reg=0.1), fh.newton(), tol=1e-19, x0=truth)
    assert result.status in (Status.SOLVED_INACCURATE, Status.SOLVED)
    assert result.rounds < 3000


# ── writers ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_trace_written_as_csv_reads_back_to_the_same_bits(tmp_path):
    trace = solve(fh.Fleet(binary(2), loss=fh.logistic, reg=0.1)).trace
    trace.to_csv(tmp_path / "trace.csv")
    with open(tmp_path / "trace.csv", newline="") as file:
        header, *lines = csv.reader(file)
    assert len(lines) == len(trace)
    for k, name in enumerate(header):
        np.testing.assert_array_equal(np.array([float(line[k]) for line in lines]), trace.columns()[name])


@pytest.mark.parametrize("kind", ["solved", "singular", "no minimiser", "stopped"])
def test_a_result_written_as_json_reads_back_to_the_same_numbers(tmp_path, kind):
    result = {
        "solved": lambda: solve(fh.Fleet(binary(2), loss=fh.logistic, reg=0.1)),
        "singular": lambda: solve(fh.Fleet(deficient("zero"), loss=fh.squared)),
        "no minimiser": lambda: solve(fh.Fleet(separable(), loss=fh.logistic)),
        "stopped": lambda: solve(fh.Fleet(binary(2), loss=fh.logistic), max_rounds=1),
    }[kind]()
    result.to_json(tmp_path / "result.json")

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    read = json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)
    assert Status[read["status"]] is result.status
    assert read["message"] == result.message
    np.testing.assert_array_equal(read["x"], result.x)
    for name in ("rounds", "floats_up", "floats_down", "gradient_norm", "error_bound", "m_hat"):
        assert float(read[name]) == getattr(result, name)
    assert (read["kappa_hat"] is None) == (result.kappa_hat is None)
    assert (read["direction"] is None) == (result.direction is None)


@pytest.mark.parametrize("loss", [lambda z, y: jnp.sin(3.0 * z) + 0.0 * y, fh.custom(lambda x, a, y: jnp.sin(3.0 * (a @ x)) + 0.0 * y, 3)])
def test_a_loss_that_is_not_convex_at_x_is_never_called_solved(loss):
    result = solve(fh.Fleet(squares(0), loss=loss, reg=0.01), fh.gd(step_size=0.1), max_rounds=2000)
    assert result.status in (Status.SOLVED_INACCURATE, Status.MAX_ROUNDS)
    if result.status is Status.SOLVED_INACCURATE:
        assert result.error_bound == math.inf
        assert "not convex" in result.message


def test_a_loss_of_ones_own_is_solved_on_its_promise_to_be_convex():
    result = solve(fh.Fleet(squares(0), loss=lambda z, y: jnp.log(jnp.cosh(z - y)), reg=0.1), fh.lbfgs())
    assert result.status is Status.SOLVED
    assert "promise" in result.message


def test_advice_at_the_limit_is_of_use_to_this_run():
    fleet = fh.Fleet(binary(), loss=fh.logistic, reg=0.01)
    absent = fh.solve(fleet, transport=fh.absent(rate=0.3), max_rounds=3)
    default = fh.solve(fleet, max_rounds=2)
    tuned = fh.solve(fleet, fh.gd(step_size=1e-3), max_rounds=3)
    assert {each.status for each in (absent, default, tuned)} == {fh.Status.MAX_ROUNDS}
    assert "away" in absent.message
    assert "krylov" not in default.message
    assert "krylov" in tuned.message
