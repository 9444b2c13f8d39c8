"""How much arithmetic a client function does, counted in what it traces to: never declared, also inside loops whose length depends on data.

One floating-point addition, multiplication or elementary function is one flop; comparisons and moving data are free. A product of
matrices is 2·m·n·k, a Cholesky factorisation n³/3, a triangular solve n² a column, an eigendecomposition 9n³ (as LAPACK counts them).
What is counted is what runs: the rows that a client is padded with are among it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

Array = Any
# fmt: off
FREE = {  # no arithmetic on floats
    "reshape", "slice", "gather", "broadcast_in_dim", "convert_element_type", "select_n", "copy", "concatenate", "pad", "transpose",
    "dynamic_slice", "dynamic_update_slice", "squeeze", "expand_dims", "split", "rev", "scatter", "sort", "top_k", "stop_gradient",
    "reduce_max", "reduce_min", "max", "min", "clamp", "abs", "neg", "sign", "bitcast_convert_type", "optimization_barrier",
}
# fmt: on
OF_ITS_INPUT = {"reduce_sum", "reduce_prod", "cumsum", "cumprod"}
INNER = ("jaxpr", "call_jaxpr", "call")  # where a call keeps what it calls


def with_flops(fn: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """fn(*args), and the flops it took: a number, or an array where loops decide."""
    closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    leaves, flops = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(shape), leaves), flops


def count_flops(fn: Callable[..., Any], *args: Any) -> float:
    """The flops of fn(*args), whose arguments may be shapes; where only running can tell, those of a run with ones."""
    closed = jax.make_jaxpr(fn)(*args)
    known = _static_total(closed.jaxpr)
    if known is not None:
        return known
    ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), args)
    return float(jax.jit(lambda *args: jnp.asarray(with_flops(fn, *args)[1], jnp.float64))(*ones))


def _evaluate(jaxpr: Jaxpr, consts: Any, args: Any) -> tuple[list, Any]:
    values: dict = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    flops: Any = 0.0

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        static = _static(eqn)
        if static is not None:
            outputs = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
            outputs = outputs if eqn.primitive.multiple_results else [outputs]
            more = static
        else:
            outputs, more = _LOOPS.get(eqn.primitive.name, _call)(eqn, inputs)
        flops = flops + more
        values.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars], flops


# ── what is known from shapes ─────────────────────────────────────────────────────────────────────────────────────────────────


def _static(eqn: Any) -> float | None:
    """The flops of an equation, or None where only running it can tell."""
    name = eqn.primitive.name
    if name in ("while", "custom_linear_solve"):
        return None
    if name == "scan":
        body = _static_total(eqn.params["jaxpr"].jaxpr)
        return None if body is None else eqn.params["length"] * body
    if name == "cond":
        branches = {_static_total(branch.jaxpr) for branch in eqn.params["branches"]}
        return branches.pop() if len(branches) == 1 else None
    inner = _inner(eqn)
    if inner is not None:
        return _static_total(inner)
    return _own_cost(eqn)


def _static_total(jaxpr: Jaxpr) -> float | None:
    total = 0.0
    for eqn in jaxpr.eqns:
        flops = _static(eqn)
        if flops is None:
            return None
        total += flops
    return total


def _inner(eqn: Any) -> Jaxpr | None:
    for key in INNER:
        if key in eqn.params:
            inner = eqn.params[key]
            return inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
    return None


def _own_cost(eqn: Any) -> float:
    name, size = eqn.primitive.name, eqn.outvars[0].aval.size
    shape: tuple[int, ...] = eqn.invars[0].aval.shape if eqn.invars else ()
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2.0 * size * math.prod(shape[axis] for axis in contracted)
    if name == "cholesky":
        return math.prod(shape) * shape[-1] / 3.0
    if name == "triangular_solve":
        return float(size * shape[-1])
    if name in ("eigh", "svd", "lu", "geqrf", "householder_product"):
        return math.prod(shape) * shape[-1] * {"eigh": 9.0, "svd": 20.0, "lu": 2 / 3}.get(name, 2.0)
    if name == "scatter-add":
        return float(eqn.invars[2].aval.size)
    if name in OF_ITS_INPUT:
        return float(eqn.invars[0].aval.size)
    return 0.0 if name in FREE or not _is_float(eqn.outvars[0]) else float(size)


def _is_float(atom: Any) -> bool:
    return bool(jnp.issubdtype(getattr(atom.aval, "dtype", jnp.int32), jnp.floating))


# ── what only running can tell ────────────────────────────────────────────────────────────────────────────────────────────────


def _call(eqn: Any, inputs: list) -> tuple[list, Any]:
    inner = _inner(eqn)
    assert inner is not None
    closed = next(eqn.params[key] for key in INNER if key in eqn.params)
    return _evaluate(inner, closed.consts if isinstance(closed, ClosedJaxpr) else (), inputs)


def _while(eqn: Any, inputs: list) -> tuple[list, Any]:
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    a, b = eqn.params["cond_nconsts"], eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
    asking = _static_total(cond.jaxpr) or 0.0

    def going(carry: tuple) -> Array:
        return _evaluate(cond.jaxpr, cond.consts, (*inputs[:a], *carry[1:]))[0][0]

    def once(carry: tuple) -> tuple:
        outputs, flops = _evaluate(body.jaxpr, body.consts, (*inputs[a:b], *carry[1:]))
        return (carry[0] + flops + asking, *outputs)

    flops, *outputs = lax.while_loop(going, once, (_zero(), *inputs[b:]))
    return outputs, flops + asking


def _scan(eqn: Any, inputs: list) -> tuple[list, Any]:
    body = eqn.params["jaxpr"]
    if "num_consts" in eqn.params:
        a, b = eqn.params["num_consts"], eqn.params["num_consts"] + eqn.params["num_carry"]
    else:  # jax 0.11
        consts, carried, _ = eqn.params["ft_in"].update(inputs).unpack()
        a, b = len(list(consts)), len(list(consts)) + len(list(carried))

    def once(carry: tuple, row: tuple) -> tuple:
        outputs, flops = _evaluate(body.jaxpr, body.consts, (*inputs[:a], *carry[1:], *row))
        return (carry[0] + flops, *outputs[: b - a]), tuple(outputs[b - a :])

    stacked: Any
    options = {key: eqn.params[key] for key in ("length", "reverse", "unroll")}
    (flops, *carry), stacked = lax.scan(once, (_zero(), *inputs[a:b]), tuple(inputs[b:]), **options)
    return [*carry, *stacked], flops


def _cond(eqn: Any, inputs: list) -> tuple[list, Any]:
    def branch(closed: ClosedJaxpr) -> Callable:
        def run(*operands: Any) -> tuple:
            outputs, flops = _evaluate(closed.jaxpr, closed.consts, operands)
            return (flops + _zero(), *outputs)

        return run

    index, *operands = inputs
    flops, *outputs = lax.switch(index, [branch(closed) for closed in eqn.params["branches"]], *operands)
    return outputs, flops


def _linear_solve(eqn: Any, inputs: list) -> tuple[list, Any]:
    """jax.scipy's cg keeps its loop in here, beside what only differentiating it would need."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    begin = lengths.matvec + lengths.vecmat
    operands = (*inputs[begin : begin + lengths.solve], *inputs[sum(lengths) :])
    return _evaluate(solve.jaxpr, solve.consts, operands)


def _zero() -> Array:
    return jnp.zeros((), jnp.float64)


_LOOPS = {"while": _while, "scan": _scan, "cond": _cond, "custom_linear_solve": _linear_solve}
