"""What every algorithm promises, on every problem that it is for and every transport. A new algorithm is one more row in table.py.

Every cell: reaches x* (or, if it is biased, does not); makes the same trace on both transports; measures the cost that its docstring
states; compiles nothing the second time; can be vmapped over its parameters; ignores the order of the clients; survives the smallest
fleets. The logistic problem is run always, least squares for some methods, the rest in the long tier.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from reference.pooled import least_squares_exact, logistic_high_precision, poisson_high_precision
from samples import error, same_bits, sample
from table import TABLE, Curvature

import fedhybrid as fh

TRANSPORTS = [fh.Stacked, fh.Serial]
FIRST = 5  # steps that are compared one by one
UPDATES = ("gradient", "newton", "newton", "gradient", "newton-cg")
SIZES = (9, 0, 1, 14, 6)


class Problem(NamedTuple):
    data: Any
    x_star: np.ndarray
    curvature: Curvature


def fleet_for(algorithm, data, updates=UPDATES):
    return data.fleet(update=updates, keep_rows="rows" in fh.ALGORITHMS[algorithm].requires)


@functools.cache
def problem(name):
    data = sample(name, sizes=SIZES, reg=0.5, weights=name != "softmax", offset=name != "softmax")
    oracle = data.oracle()
    if name == "softmax":
        x_star = np.zeros(12)
        for _ in range(12):  # full steps: no line search stops them at the rounding of F
            x_star = x_star - np.linalg.solve(sum(f.hess(x_star) for f in oracle), sum(f.grad(x_star) for f in oracle))
    else:
        exact = {"squared": least_squares_exact, "logistic": logistic_high_precision, "poisson": poisson_high_precision}[name]
        x_star = exact(data.plain_sites, data.plain_reg)
    hessians = [f.hess(x_star) for f in oracle]
    own = np.array([np.linalg.eigvalsh(H)[-1] for H in hessians])
    is_gradient = np.array([update == "gradient" for update in UPDATES])
    return Problem(data, x_star, Curvature(len(oracle), np.linalg.eigvalsh(sum(hessians))[-1], own, is_gradient))


def steps_of(algorithm, transport):
    """To the end; but one client at a time only the first few, as that is slow and the long tier goes on."""
    return TABLE[algorithm].steps if transport is fh.Stacked else min(TABLE[algorithm].steps, 2 * FIRST)


@functools.cache
def trace(algorithm, name, transport, steps=None):
    chosen = problem(name)
    clients = transport(fleet_for(algorithm, chosen.data))
    return fh.run(TABLE[algorithm].make(chosen.curvature), clients, steps or steps_of(algorithm, transport))[1]


CORE = ("fedhybrid", "gd", "krylov", "lbfgs", "newton")


def always(algorithm, name):
    """Whether a cell is in the default tier: every method on the logistic problem, and CORE on least squares, by their statistics, too."""
    return name == "logistic" or (name == "squared" and algorithm in CORE)


def cell(algorithm, name):
    marks = [pytest.mark.xdist_group(f"contract {algorithm} {name}")]
    return pytest.param(algorithm, name, marks=marks if always(algorithm, name) else [*marks, pytest.mark.slow])


every_cell = pytest.mark.parametrize(
    ("algorithm", "name"), [cell(algorithm, name) for algorithm, row in TABLE.items() for name in row.problems]
)
every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
every_algorithm = pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=pytest.mark.xdist_group(f"contract {name} logistic")) for name in TABLE]
)


def these(*always):
    """Of all algorithms; the others are in the long tier."""
    return pytest.mark.parametrize("algorithm", [pytest.param(name, marks=[] if name in always else pytest.mark.slow) for name in TABLE])


def test_every_algorithm_has_a_row():
    assert set(TABLE) == set(fh.ALGORITHMS)


@pytest.mark.parametrize("transport", [fh.Stacked, pytest.param(fh.Serial, marks=pytest.mark.slow)])
@every_cell
def test_it_reaches_the_optimum_unless_it_is_biased(algorithm, name, transport):
    away = error(trace(algorithm, name, transport, TABLE[algorithm].steps).x0[-1], problem(name).x_star)
    if fh.ALGORITHMS[algorithm].limit == "biased":
        assert away > TABLE[algorithm].reach
    else:
        assert away <= TABLE[algorithm].reach


@every_cell
def test_the_trace_is_the_same_on_both_transports(algorithm, name):
    stacked, serial = (trace(algorithm, name, transport) for transport in TRANSPORTS)
    for k in range(FIRST):
        assert error(stacked.x0[k], serial.x0[k]) <= 1e-12
    assert error(stacked.residual[:FIRST], serial.residual[:FIRST]) <= 1e-12
    for count in ("rounds", "floats_up", "floats_down"):
        assert np.array_equal(getattr(stacked, count)[:FIRST], getattr(serial, count)[:FIRST])


@every_transport
@every_cell
def test_it_measures_the_cost_that_its_docstring_states(algorithm, name, transport):
    row, got = TABLE[algorithm], trace(algorithm, name, transport)
    n, d = len(SIZES), got.x0.shape[1]
    rounds = np.diff(got.rounds, prepend=0)
    if row.rounds is None:
        assert rounds.min() >= 2
    else:
        assert set(rounds) <= set(np.atleast_1d(row.rounds))
    up, stated = np.diff(got.floats_up, prepend=0), np.array([row.up(n, d, int(r)) for r in rounds])
    assert np.array_equal(up[row.settled :], stated[row.settled :])
    assert np.all(up[: row.settled] < stated[: row.settled])
    assert np.diff(got.floats_down, prepend=0).tolist() == [row.down(n, d, int(r)) for r in rounds]
    assert np.diff(got.flops, prepend=0.0).min() > 0


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: COMPILED.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
)


@every_transport
@every_cell
def test_nothing_is_compiled_for_a_second_call_with_other_data_and_other_parameters(algorithm, name, transport):
    row, chosen, steps = TABLE[algorithm], problem(name), steps_of(algorithm, transport)
    fh.run(row.make(chosen.curvature), transport(fleet_for(algorithm, chosen.data)), steps)
    before = len(COMPILED)
    again = fh.run(row.make(chosen.curvature), transport(fleet_for(algorithm, chosen.data)), steps)[1]
    other = sample(name, sizes=SIZES, reg=0.4, seed=1, weights=name != "softmax", offset=name != "softmax")
    changed = fh.run(row.make(chosen.curvature, 1.07), transport(fleet_for(algorithm, other)), steps)[1]
    assert COMPILED[before:] == []
    assert COMPILED  # somebody is listening
    assert same_bits(again.x0, trace(algorithm, name, transport).x0)
    assert not same_bits(changed.x0, again.x0)


@these("fedhybrid", "gd", "lbfgs", "newton")
def test_it_can_be_vmapped_over_its_parameters(algorithm):
    row, chosen = TABLE[algorithm], problem("logistic")
    clients = fh.Stacked(fleet_for(algorithm, chosen.data))
    factors = np.array([0.9, 1.0, 1.2])
    starts = 0.1 * np.random.default_rng(0).normal(size=(3, 4))

    def x0(factor, start, steps=FIRST):
        return fh.run(row.make(chosen.curvature, factor), clients, steps, start)[1].x0

    # as many steps as in the trace, whose program it then is
    one_by_one = np.array([x0(factor, start, row.steps)[:FIRST] for factor, start in zip(factors, starts, strict=True)])
    with jax.enable_x64(True):
        together = jax.vmap(x0)(factors, starts)
    assert error(together, one_by_one) <= 1e-12


@every_transport
@every_algorithm
def test_the_order_of_the_clients_does_not_change_a_bit(algorithm, transport):
    row, chosen = TABLE[algorithm], problem("logistic")
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(len(SIZES))
        fleet = fleet_for(algorithm, chosen.data.permuted(order), [UPDATES[i] for i in order])
        parameters = row.make(chosen.curvature).spec.parameters
        same = {key: value[order] if isinstance(value, np.ndarray) else value for key, value in parameters.items()}
        if "who" in same:  # the number of a client
            same["who"] = int(np.flatnonzero(order == same["who"])[0])
        permuted = fh.ALGORITHMS[algorithm].factory(**same)
        assert same_bits(
            fh.run(permuted, transport(fleet), steps_of(algorithm, transport))[1].x0, trace(algorithm, "logistic", transport).x0
        )


TINY = {
    "one client, one column, one row": {"sizes": (1,), "d": 1},
    "one client": {"sizes": (8,), "d": 4},
    "one column, with an empty client and a client of one row": {"sizes": (5, 0, 1), "d": 1},
    "more columns than rows": {"sizes": (1, 1, 0), "d": 4},
}


LONG = pytest.mark.slow
TINY_CELLS = [
    pytest.param("logistic", fh.Stacked),
    pytest.param("logistic", fh.Serial, marks=LONG),
    pytest.param("squared", fh.Stacked, marks=LONG),
    pytest.param("squared", fh.Serial, marks=LONG),
]


@pytest.mark.parametrize(("name", "transport"), TINY_CELLS)
@pytest.mark.parametrize("shape", TINY)
@these("fedhybrid", "krylov", "newton")
def test_it_survives_the_smallest_fleets(algorithm, shape, name, transport):
    data = sample(name, **TINY[shape], reg=0.5)
    n = len(TINY[shape]["sizes"])
    updates = ("newton", "gradient", "newton")[:n]
    x_star = (least_squares_exact if name == "squared" else logistic_high_precision)(data.plain_sites, 0.5)
    hessians = [f.hess(x_star) for f in data.oracle()]
    own = np.array([np.linalg.eigvalsh(H)[-1] for H in hessians])
    curvature = Curvature(n, np.linalg.eigvalsh(sum(hessians))[-1], own, np.array([update == "gradient" for update in updates]))
    row = TABLE[algorithm]
    got = fh.run(row.make(curvature), transport(fleet_for(algorithm, data, updates)), row.steps)[1]
    assert np.isfinite(got.x0).all()
    if fh.ALGORITHMS[algorithm].limit != "biased":
        assert error(got.x0[-1], x_star) <= row.reach
