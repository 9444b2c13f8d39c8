"""Every question that a server may put to a site, and the shape of each answer: found by tracing the method, on shapes alone.

Server and site each find it for themselves, from the terms. So nothing that comes over the network says what it is, how it is built
or how large: a message is the number of a question and as many floats as that question has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import certificate
from ..algorithms.base import Algorithm
from ..clients.base import Client, Local, Meter, decoded, summable
from ..fleet import Fleet
from ..numerics import scope
from ..status import InvalidConfig

Array = Any
LARGEST_WHOLE = 2**53  # beyond it floats do not hold every whole number


@dataclass(frozen=True)
class Shape:
    """A tree of arrays as one row of float64: how many, and back."""

    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, tree: Any) -> "Shape":
        leaves, structure = jax.tree.flatten(tree)
        return cls(structure, tuple(jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))

    @property
    def floats(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(leaf.size for leaf in self.leaves)

    def pack(self, tree: Any) -> np.ndarray:
        leaves = jax.tree.leaves(tree)
        if tuple(np.shape(leaf) for leaf in leaves) != tuple(leaf.shape for leaf in self.leaves):
            raise InvalidConfig("a message does not have the shape that its question has.")
        row = np.zeros(self.floats)
        at = 0
        for leaf in leaves:
            values = np.asarray(leaf).reshape(-1)
            row[at : at + values.size] = values
            at += values.size
        return row

    def whole_where_it_must_be(self, row: np.ndarray) -> bool:
        """Whether entries that stand for whole numbers are such, and of their type."""
        at = 0
        for leaf in self.leaves:
            values = row[at : at + leaf.size]
            at += leaf.size
            if leaf.dtype.kind != "f":
                low, high = (0, 1) if leaf.dtype.kind == "b" else (jnp.iinfo(leaf.dtype).min, jnp.iinfo(leaf.dtype).max)
                fits = (max(low, -LARGEST_WHOLE) <= values) & (values <= min(high, LARGEST_WHOLE)) & (values == np.rint(values))
                if not np.all(fits):
                    return False
        return True

    def unpack(self, row: np.ndarray) -> Any:
        parts, at = [], 0
        for leaf in self.leaves:
            values = row[at : at + leaf.size].reshape(leaf.shape)
            parts.append(jnp.asarray(values if leaf.dtype.kind == "f" else np.rint(values), leaf.dtype))
            at += leaf.size
        return jax.tree.unflatten(self.structure, parts)


class Question(NamedTuple):
    """A client function that the method may have run at every site, with the shapes of what comes along and of what is sent back."""

    fn: Callable[..., Any]
    down: Shape
    up: Shape
    summable: bool  # whether a sum of answers says as much as the answers


@dataclass(frozen=True)
class Protocol:
    start: tuple[Callable[..., Any], Shape]
    questions: tuple[Question, ...]

    def number_of(self, fn: Callable[..., Any]) -> int:
        for k, question in enumerate(self.questions):
            if question.fn == fn:
                return k
        raise InvalidConfig(f"{fn} is no question of this method; sites would not answer it.")


CERTIFICATE = (certificate.gradient_at, certificate.hessian_at, certificate.convexity_at, certificate.recession_of)


def protocol_of(algorithm: Algorithm, stand_in: Fleet, n: int, certified: bool = True) -> Protocol:
    """All questions of a method and of the certificate, if there is one, for n sites like this one."""
    with scope():
        me = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), stand_in.as_part_of(n, 1.0).client(0))
        recorder = Recorder(n, stand_in.d)

        def trace(me: Client, x0: Array) -> None:
            recorder.me = me
            state = algorithm.init(recorder, x0)
            algorithm.step(recorder, state)
            if algorithm.warm is not None:
                algorithm.step(recorder, algorithm.warm(recorder, x0))
            for fn in CERTIFICATE if certified else ():
                if fn is not certificate.recession_of or stand_in.loss.can_recede:
                    recorder.mean(fn, state.local, x0)

        jax.eval_shape(trace, me, jnp.zeros(stand_in.d))
    if recorder.begun is None:
        raise InvalidConfig(f"{algorithm.spec.name} never starts its clients.")
    return Protocol(recorder.begun, tuple(recorder.asked.values()))


class Recorder:
    """A transport of one client that stands for all, and notes what is asked. It is traced, never run."""

    partial, identity = False, "Recorder"

    def __init__(self, n: int, d: int) -> None:
        self.n, self.d = n, d
        self.me: Any = None
        self.begun: tuple[Callable[..., Any], Shape] | None = None
        self.asked: dict[Callable[..., Any], Question] = {}

    def start(self, fn: Callable[..., Any], *down: Any, bridged: tuple | None = None) -> Local:
        self.begun = (fn, Shape.of(down))
        zero, none = jnp.zeros((), jnp.int64), jnp.zeros(())
        return Local(fn(self.me, *down), Meter(zero, zero, zero, none, none))

    def mean(self, fn: Callable[..., Any], local: Local, *down: Any, stale: bool = False, implied: Any = None) -> tuple[Local, Any]:
        part, up = fn(self.me, local.parts, *down)
        self.asked.setdefault(fn, Question(fn, Shape.of(down), Shape.of(up), summable(up)))
        return local._replace(parts=part), decoded(up)

    def one(self, fn: Callable[..., Any], local: Local, who: Any, *down: Any) -> tuple[Local, Any]:
        return self.mean(fn, local, *down)

    def renew(self, local: Local) -> Local:
        return local

    def missed(self, local: Local) -> Array:
        return jnp.zeros((), jnp.int64)

    def observe(self, fn: Callable[..., Any], local: Local, *down: Any) -> Any:
        return None

    def while_loop(self, cond: Callable, body: Callable, carry: Any) -> Any:
        return lax.while_loop(cond, body, carry)

    def cond(self, pred: Any, yes: Callable, no: Callable, carry: Any) -> Any:
        return lax.cond(pred, yes, no, carry)

    def scan(self, body: Callable, carry: Any, length: int) -> tuple[Any, Any]:
        return lax.scan(lambda state, _: body(state), carry, None, length=length)

    def call(self, program: Callable, static: tuple, *args: Any) -> Any:
        return program(self, *static, *args)
