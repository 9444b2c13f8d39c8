"""The oracles check one another, and scikit-learn and NumPy check them."""

from fractions import Fraction

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from .companions import gradient_descent, lbfgs_direction, newton
from .fedhybrid import fedhybrid
from .objective import clients
from .pooled import least_squares_exact, logistic_high_precision, minimum_norm, poisson_high_precision
from .spectrum import QuadraticClient, iteration, spectral_radius

LOSSES = ["squared", "logistic", "poisson", "huber", "softmax"]


def make_sites(loss, d=4, sizes=(7, 0, 1, 12), seed=0):
    """Unequal sites with weights and offsets, one of them empty."""
    rng = np.random.default_rng(seed)
    sites = []
    for size in sizes:
        A = rng.normal(size=(size, d))
        y = {
            "squared": rng.normal(size=size),
            "huber": 3 * rng.normal(size=size),
            "logistic": rng.integers(0, 2, size=size),
            "poisson": rng.poisson(2.0, size=size),
            "softmax": rng.integers(0, 3, size=size),
        }[loss]
        offset = rng.normal(size=(size, 3)) if loss == "softmax" else rng.normal(size=size)
        sites.append((A, y, rng.uniform(0.5, 2.0, size=size), offset))
    return sites


def make_quadratics(n=4, d=3, seed=1):
    """One client without curvature in one direction: only the sum is strongly convex."""
    rng = np.random.default_rng(seed)
    H, c = [], []
    for i in range(n):
        R = rng.normal(size=(d, d)) if i > 0 else rng.normal(size=(d - 1, d))
        H.append(R.T @ R / d)
        c.append(rng.normal(size=d))
    return H, c


def stack(sites):
    return [np.concatenate([np.asarray(site[k], dtype=float) for site in sites]) for k in range(len(sites[0]))]


KINDS = ["newton", "gradient", "newton", "gradient"]
MU, A_STEPS, B_STEPS = 0.8, [0.9, 0.25, 1.0, 0.2], [0.35, 0.3, 0.25, 0.4]


@pytest.mark.parametrize("vector", [False, True], ids=["loops", "vector"])
@pytest.mark.parametrize("weighting", ["row", "client"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_and_hessians_are_finite_differences(loss, weighting, vector):
    rng = np.random.default_rng(2)
    reg = np.array([0.3, 0.0, 0.2, 0.0])
    for client in clients(make_sites(loss), loss, reg, weighting, delta=0.7, vector=vector, classes=3):
        x = 0.4 * rng.normal(size=10 if loss == "softmax" else 4)
        h = 1e-5
        for c, e in enumerate(np.eye(len(x))):
            slope = (client.value(x + h * e) - client.value(x - h * e)) / (2 * h)
            bend = (client.grad(x + h * e) - client.grad(x - h * e)) / (2 * h)
            np.testing.assert_allclose(client.grad(x)[c], slope, rtol=1e-6, atol=1e-9)
            np.testing.assert_allclose(client.hess(x)[c], bend, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("weighting", ["row", "client"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_vector_clients_equal_the_loops(loss, weighting):
    sites, reg = make_sites(loss), [0.3, 0.0, 0.2, 0.0]
    x = np.random.default_rng(3).normal(size=10 if loss == "softmax" else 4)
    loops = clients(sites, loss, reg, weighting, delta=0.7)
    vectors = clients(sites, loss, reg, weighting, delta=0.7, vector=True)
    for loop, vector in zip(loops, vectors, strict=True):
        np.testing.assert_allclose(vector.value(x), loop.value(x), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(vector.grad(x), loop.grad(x), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(vector.hess(x), loop.hess(x), rtol=1e-12, atol=1e-14)


def test_values_are_those_worked_out_by_hand():
    sites = [([[1.0, 2.0]], [1.0], [3.0], [0.5]), ([[1.0, 0.0], [0.0, 1.0]], [0.0, 1.0])]
    x = np.array([2.0, -1.0])
    # predictions 0.5 | 2, −1; residuals −0.5 | 2, −2; weights 3 | 1, 1; regulariser ½(4·0.4 + 1·0.2)/2 each
    penalty = 0.45
    for weighting, v in (("row", [0.6, 0.2, 0.2]), ("client", [1.0, 0.5, 0.5])):
        first, second = clients(sites, "squared", [0.4, 0.2], weighting)
        np.testing.assert_allclose(first.value(x), v[0] * 0.125 + penalty, rtol=1e-15)
        np.testing.assert_allclose(second.value(x), v[1] * 2 + v[2] * 2 + penalty, rtol=1e-15)
    first, second = clients(sites, "huber", [0.4, 0.2], "client", delta=1.5)
    np.testing.assert_allclose(first.value(x), 0.125 + penalty, rtol=1e-15)
    np.testing.assert_allclose(second.value(x), 1.5 * (2 - 0.75) + penalty, rtol=1e-15)
    np.testing.assert_allclose(second.grad(x), [0.75 + 0.4, -0.75 - 0.1], rtol=1e-15)
    logistic = clients([([[1.0]], [1.0]), ([[1.0]], [0.0])], "logistic", 0.0, "client")
    np.testing.assert_allclose([f.value(np.log([3.0])) for f in logistic], np.log([4 / 3, 4]), rtol=1e-15)
    (poisson,) = clients([([[1.0]], [2.0])], "poisson")
    np.testing.assert_allclose(poisson.value(np.log([3.0])), 3 - 2 * np.log(3), rtol=1e-15)
    (softmax,) = clients([([[1.0]], [2.0])], "softmax")
    np.testing.assert_allclose(softmax.value(np.log([2.0, 5.0])), np.log(8 / 5), rtol=1e-15)


def test_an_empty_site_has_its_share_of_the_regulariser_alone():
    empty = clients(make_sites("squared"), "squared", 0.8, "client")[1]
    x = np.arange(4.0)
    np.testing.assert_allclose(empty.value(x), 0.1 * (1 + 4 + 9), rtol=1e-15)
    np.testing.assert_allclose(empty.grad(x), 0.2 * x, rtol=1e-15)
    np.testing.assert_array_equal(empty.hess(x), 0.2 * np.eye(4))


def test_large_predictions_neither_overflow_nor_warn():
    for y in (0.0, 1.0):
        for loss, x in (("logistic", [1.0]), ("softmax", [1.0])):
            (f,) = clients([([[1000.0], [-1000.0]], [y, y])], loss, classes=2)
            np.testing.assert_allclose(f.value(np.array(x)), 500.0, rtol=1e-14)
            assert np.isfinite(f.grad(np.array(x))).all()


def test_two_classes_without_regulariser_are_logistic_regression():
    sites = [site[:3] for site in make_sites("logistic")]
    x = np.random.default_rng(4).normal(size=4)
    for two, one in zip(clients(sites, "softmax", classes=2), clients(sites, "logistic"), strict=True):
        np.testing.assert_allclose(two.value(x), one.value(x), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(two.grad(x), one.grad(x), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(two.hess(x), one.hess(x), rtol=1e-12, atol=1e-14)


def test_exact_least_squares_solves_the_cases_worked_out_by_hand():
    sites = [([[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0]), ([[1.0, 1.0]], [6.0])]
    assert least_squares_exact(sites).tolist() == [2.0, 3.0]
    assert least_squares_exact(sites, weighting="client").tolist() == [2.2, 3.2]
    assert least_squares_exact(sites, 0.5, "client").tolist() == [2.0, 2.5]
    assert least_squares_exact([*sites, (np.zeros((0, 2)), [])], 0.5, "client").tolist() == [2.0, 2.5]
    moved = [(A, np.asarray(y) + 7.0, None, [7.0] * len(y)) for A, y in sites]
    assert least_squares_exact(moved, 0.5, "client").tolist() == [2.0, 2.5]
    doubled = [sites[0], (*sites[1], [2.0])]
    # [[3, 2], [2, 3]] x = [13, 14]
    assert least_squares_exact(doubled).tolist() == [float(Fraction(11, 5)), float(Fraction(16, 5))]


@pytest.mark.parametrize("weighting", ["row", "client"])
def test_exact_least_squares_is_numpys(weighting):
    sites = make_sites("squared", d=5, sizes=(20, 3, 0, 30))
    reg = np.array([0.1, 0.0, 0.3, 0.0, 2.0])
    A, y, w, offset = stack(sites)
    own = np.concatenate([np.full(len(site[2]), site[2].sum()) for site in sites])
    root = np.sqrt(w / (w.sum() if weighting == "row" else own))
    table = np.concatenate([root[:, None] * A, np.diag(np.sqrt(reg))])
    expected = np.linalg.lstsq(table, np.concatenate([root * (y - offset), np.zeros(5)]), rcond=None)[0]
    x = least_squares_exact(sites, reg, weighting)
    np.testing.assert_allclose(x, expected, rtol=1e-12)
    total = sum(f.grad(x) for f in clients(sites, "squared", reg, weighting))
    np.testing.assert_allclose(total, np.zeros(5), atol=1e-14)


def test_exact_least_squares_refuses_a_rank_deficient_table():
    with pytest.raises(np.linalg.LinAlgError, match="minimum_norm"):
        least_squares_exact([([[1.0, 1.0]], [1.0])])


@pytest.mark.parametrize("weighting", ["row", "client"])
def test_the_minimum_norm_solution_is_the_limit_of_vanishing_regularisation(weighting):
    rng = np.random.default_rng(5)
    sites = [(site[0] @ rng.normal(size=(2, 4)), *site[1:]) for site in make_sites("squared", d=2)]
    x = minimum_norm(sites, weighting)
    np.testing.assert_allclose(x, least_squares_exact(sites, 1e-12, weighting), rtol=1e-9)
    np.testing.assert_allclose(minimum_norm([([[3.0, 4.0]], [25.0])]), [3.0, 4.0], rtol=1e-14)


def test_minimum_norm_is_least_squares_where_the_rank_is_full():
    sites = make_sites("squared")
    np.testing.assert_allclose(minimum_norm(sites), least_squares_exact(sites), rtol=1e-12)


@pytest.mark.parametrize("reg", [0.01, 1.0])
def test_logistic_is_scikit_learns(reg):
    A, y, w, _ = stack(make_sites("logistic", d=5, sizes=(60, 0, 1, 90)))
    model = LogisticRegression(C=1 / (reg * w.sum()), fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    model.fit(A, y, sample_weight=w)
    sites = [(A[:60], y[:60], w[:60]), (A[60:], y[60:], w[60:])]
    np.testing.assert_allclose(logistic_high_precision(sites, reg), model.coef_[0], rtol=1e-10)
    unweighted = LogisticRegression(C=1 / (reg * len(y)), fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    unweighted.fit(A, y)
    np.testing.assert_allclose(logistic_high_precision([(A, y)], reg), unweighted.coef_[0], rtol=1e-10)


def test_poisson_is_scikit_learns():
    A, y, w, _ = stack(make_sites("poisson", d=5, sizes=(60, 90)))
    model = PoissonRegressor(alpha=0.05, fit_intercept=False, tol=1e-12, solver="newton-cholesky")
    model.fit(A, y, sample_weight=w)
    np.testing.assert_allclose(poisson_high_precision([(A, y, w)], 0.05), model.coef_, rtol=1e-10)


def test_softmax_is_scikit_learns():
    A, y, _, _ = stack(make_sites("softmax", sizes=(40, 50)))
    model = LogisticRegression(C=1 / (0.2 * len(y)), fit_intercept=False, tol=1e-12, solver="newton-cholesky").fit(A, y)
    x, _ = newton(clients([(A[:40], y[:40]), (A[40:], y[40:])], "softmax", 0.2, vector=True), np.zeros(12), 12)
    np.testing.assert_allclose(x[-1].reshape(4, 3).T, model.coef_, rtol=1e-8)


@pytest.mark.parametrize("weighting", ["row", "client"])
@pytest.mark.parametrize(("loss", "solve"), [("logistic", logistic_high_precision), ("poisson", poisson_high_precision)])
def test_high_precision_leaves_no_gradient_and_newton_agrees(loss, solve, weighting):
    sites, reg = make_sites(loss), np.array([0.1, 0.02, 0.1, 0.3])
    x = solve(sites, reg, weighting)
    parts = clients(sites, loss, reg, weighting)
    np.testing.assert_allclose(sum(f.grad(x) for f in parts), np.zeros(4), atol=1e-14)
    trace, steps = newton(parts, np.zeros(4), 12)
    # the line search cannot see below √eps: near the minimum F changes by less than its rounding
    np.testing.assert_allclose(trace[-1], x, atol=1e-7)
    assert set(np.unique(steps)) <= {0.0, *(0.5**k for k in range(60))}


def test_poisson_survives_a_first_newton_step_that_overflows():
    sites = [(np.array([[1.0], [1.0]]), [1e6, 3e6])]
    np.testing.assert_allclose(poisson_high_precision(sites), np.log([2e6]), rtol=1e-15)
    np.testing.assert_allclose(newton(clients(sites, "poisson"), [0.0], 60)[0][-1], np.log([2e6]), rtol=1e-9)


def test_newton_takes_one_full_step_on_a_quadratic():
    sites = make_sites("squared")
    trace, steps = newton(clients(sites, "squared", 0.1), np.ones(4), 1)
    assert steps.tolist() == [1.0]
    np.testing.assert_allclose(trace[0], least_squares_exact(sites, 0.1), rtol=1e-12)


def test_gradient_descent_reaches_the_exact_solution():
    sites = make_sites("squared")
    parts = clients(sites, "squared", 0.1, vector=True)
    step = 1 / np.linalg.eigvalsh(sum(f.hess(np.zeros(4)) for f in parts))[-1]
    trace = gradient_descent(parts, np.ones(4), step, 500)
    np.testing.assert_allclose(trace[-1], least_squares_exact(sites, 0.1), rtol=1e-11)
    first = np.ones(4) - step * sum(f.grad(np.ones(4)) for f in parts)
    np.testing.assert_allclose(trace[0], first, rtol=1e-14)


@pytest.mark.parametrize("m", [0, 1, 3])
def test_the_two_loops_are_the_bfgs_matrix_written_out(m):
    rng = np.random.default_rng(6)
    R = rng.normal(size=(5, 5))
    s = [rng.normal(size=5) for _ in range(m)]
    y = [(R.T @ R + np.eye(5)) @ s_i for s_i in s]
    g = rng.normal(size=5)
    H = np.eye(5) * ((s[-1] @ y[-1]) / (y[-1] @ y[-1]) if m else 1.0)
    for s_i, y_i in zip(s, y, strict=True):
        V = np.eye(5) - np.outer(y_i, s_i) / (y_i @ s_i)
        H = V.T @ H @ V + np.outer(s_i, s_i) / (y_i @ s_i)
    np.testing.assert_allclose(lbfgs_direction(s, y, g), -H @ g, rtol=1e-11)


def test_the_first_round_is_the_one_worked_out_by_hand():
    # f₁ = x², f₂ = ½x² − 3x; D₁ = 1, D₂ = 1 + 2 = 3; x₀ = (1 + 2)/2 − (4 + 6)/(2·2) = −1
    pair = [QuadraticClient([[2.0]], [0.0]), QuadraticClient([[1.0]], [3.0])]
    trace = fedhybrid(pair, ["gradient", "newton"], 2.0, [0.5, 0.6], [0.25, 0.5], None, [[1.0], [2.0]], [[4.0], [6.0]], 1)
    # x₁⁺ = 1 − 0.5(2 − 4 + 2·2), λ₁⁺ = 4 + 0.25(−1 − 1); x₂⁺ = 2 − 0.6(−1 − 6 + 2·3)/3, λ₂⁺ = 6 + 0.5·3(−1 − 2)
    np.testing.assert_allclose(trace.x, [[[0.0], [2.2]]], rtol=1e-15)
    np.testing.assert_allclose(trace.lam, [[[3.5], [1.5]]], rtol=1e-15)
    np.testing.assert_allclose(trace.z, [[[-1.75], [1.45]]], rtol=1e-15)
    np.testing.assert_allclose(trace.x0, [[-0.15]], rtol=1e-14)


def test_the_newton_matrix_is_taken_at_the_clients_own_old_point():
    # f = eˣ at x = ln 2: ∇f = ∇²f = 2, D = 2 + 2 = 4; x₀ = x − 1/2; x⁺ = x − 0.5(2 − 1 + 2·½)/4, λ⁺ = 1 + 0.25·4·(−½)
    x = np.log([[2.0]])
    trace = fedhybrid(clients([([[1.0]], [0.0])], "poisson"), ["newton"], 2.0, [0.5], [0.25], None, x, [[1.0]], 1)
    np.testing.assert_allclose(trace.x[0], x - 0.25, rtol=1e-15)
    np.testing.assert_allclose(trace.lam[0], [[0.5]], rtol=1e-15)


def test_a_given_x0_is_used_in_the_first_round():
    pair = [QuadraticClient([[2.0]], [0.0]), QuadraticClient([[1.0]], [3.0])]
    start = ["gradient", "newton"], 2.0, [0.5, 0.6], [0.25, 0.5]
    x, lam = [[1.0], [2.0]], [[4.0], [6.0]]
    same, other = (fedhybrid(pair, *start, x0, x, lam, 2) for x0 in ([-1.0], [0.0]))
    np.testing.assert_array_equal(same.z, fedhybrid(pair, *start, None, x, lam, 2).z)
    # x₀ enters xᵢ⁺ as aᵢ μ Dᵢ⁻¹ x₀
    np.testing.assert_allclose(other.x[0] - same.x[0], [[0.5 * 2], [0.6 * 2 / 3]], rtol=1e-14)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'gradient', 'newton' or 'diagonal'"):
        fedhybrid([QuadraticClient([[2.0]], [0.0])], ["Newton"], 1.0, [1.0], [1.0], None, [[1.0]], [[0.0]], 1)


def test_the_server_averages_what_the_clients_send():
    parts = clients(make_sites("logistic"), "logistic", 0.1)
    rng = np.random.default_rng(7)
    x, lam = rng.normal(size=(2, 4, 4))
    trace = fedhybrid(parts, KINDS, MU, A_STEPS, B_STEPS, None, x, lam, 6)
    np.testing.assert_allclose(trace.x0, trace.z.mean(axis=1), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(trace.z, trace.x - trace.lam / MU, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("weighting", ["row", "client"])
def test_the_loop_reaches_the_exact_solution(weighting):
    sites = make_sites("squared")
    parts = clients(sites, "squared", 0.4, weighting, vector=True)
    expected = least_squares_exact(sites, 0.4, weighting)
    trace = fedhybrid(parts, KINDS, MU, A_STEPS, B_STEPS, None, np.zeros((4, 4)), np.zeros((4, 4)), 3000)
    np.testing.assert_allclose(trace.x0[-1], expected, rtol=1e-11)
    np.testing.assert_allclose(trace.x[-1], np.tile(expected, (4, 1)), rtol=1e-11)
    np.testing.assert_allclose(trace.lam[-1], [f.grad(expected) for f in parts], atol=1e-12)


@pytest.mark.parametrize(("loss", "solve"), [("logistic", logistic_high_precision), ("poisson", poisson_high_precision)])
def test_the_loop_reaches_the_high_precision_solution(loss, solve):
    sites = make_sites(loss)
    parts = clients(sites, loss, 0.4, vector=True)
    trace = fedhybrid(parts, KINDS, MU, A_STEPS, B_STEPS, None, np.zeros((4, 4)), np.zeros((4, 4)), 2000)
    np.testing.assert_allclose(trace.x0[-1], solve(sites, 0.4), rtol=1e-10)


def test_the_iteration_matrix_makes_the_loops_rounds():
    H, c = make_quadratics()
    x, lam = np.random.default_rng(8).normal(size=(2, 4, 3))
    parts = [QuadraticClient(*pair) for pair in zip(H, c, strict=True)]
    trace = fedhybrid(parts, KINDS, MU, A_STEPS, B_STEPS, None, x, lam, 8)
    M, q = iteration(H, c, KINDS, MU, A_STEPS, B_STEPS)
    state = np.concatenate([x.ravel(), lam.ravel()])
    for k in range(8):
        state = M @ state + q
        expected = np.concatenate([trace.x[k].ravel(), trace.lam[k].ravel()])
        np.testing.assert_allclose(state, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kinds", "a"),
    [(KINDS, A_STEPS), (["gradient"] * 4, [0.2, 0.25, 0.3, 0.2]), (["newton"] * 4, [0.9, 0.8, 1.0, 0.7])],
    ids=["mixed", "gradient", "newton"],
)
def test_the_measured_rate_is_the_spectral_radius(kinds, a):
    H, c = make_quadratics()
    rate = spectral_radius(H, kinds, MU, a, B_STEPS)
    assert rate < 1
    parts = [QuadraticClient(*pair) for pair in zip(H, c, strict=True)]
    solution = np.linalg.solve(sum(H), sum(c))
    # the last decades above rounding: from 1e-6 to 1e-11 of the start
    first, last = int(np.log(1e-6) / np.log(rate)), int(np.log(1e-11) / np.log(rate))
    trace = fedhybrid(parts, kinds, MU, a, B_STEPS, None, np.zeros((4, 3)), np.zeros((4, 3)), last + 1)
    lam = np.array([f.grad(solution) for f in parts])
    error = [np.hypot(np.linalg.norm(trace.x[k] - solution), np.linalg.norm(trace.lam[k] - lam)) for k in (first, last)]
    assert (error[1] / error[0]) ** (1 / (last - first)) == pytest.approx(rate, rel=0.01)


def test_an_eigenvalue_is_one_only_where_the_sum_is_singular():
    H, _ = make_quadratics()
    c = [np.zeros(3)] * 4
    M, _ = iteration(H, c, KINDS, MU, A_STEPS, B_STEPS)
    assert np.min(np.abs(np.linalg.eigvals(M) - 1)) > 1e-4
    flat = [np.diag([1.0, 2.0, 0.0])] * 4
    M, _ = iteration(flat, c, KINDS, MU, A_STEPS, B_STEPS)
    assert np.min(np.abs(np.linalg.eigvals(M) - 1)) < 1e-6
