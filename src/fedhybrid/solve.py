"""The driver: start values, stopping, certificate, checkpoint → Result. And `run`, for researchers: exactly so many steps.

Stopping rests on what a server can see: the residual that rides along with the clients' messages. When it is small, one round at x₀
gives ‖Σ∇fᵢ(x₀)‖ and a bound (certificate.py); SOLVED means that the bound holds. If it does not, the run goes on and asks again later.
"""

import contextlib
import hashlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import certificate as cert
from . import checkpoint as files
from .algorithms.base import Algorithm
from .algorithms.defaults import Attempts
from .checkpoint import Checkpoint, Snapshot
from .clients.base import Clients
from .clients.stacked import Stacked
from .curvature import Derived
from .fleet import Fleet
from .progress import Progress
from .result import Result, Trace
from .status import CheckpointError, InvalidConfig, Status, refuse_unknown_keywords
from .watch import Halt, Rows, Watch, advance

Array = Any
KEEP_X0 = 1e8  # floats of trace.x0
FIRST_LOOK = 1e-2  # before the curvature is known: ask first when the residual has fallen to this part of its largest
MOST_CERTIFICATES = 50


@refuse_unknown_keywords
def run(algorithm: Algorithm, clients: Clients, steps: int, x0: Any = None) -> tuple[Any, Trace]:
    """Exactly `steps` steps, without stopping: the last state, and a trace with one row per step."""
    steps = _whole("steps", steps)
    with jax.enable_x64(True):
        start = _start_value(x0, clients.d)
        state = algorithm.init(clients, start)
        first = state.x0
        state, rows = clients.call(_steps, (algorithm.step, steps), state)
        if isinstance(rows.x0, jax.core.Tracer):
            return state, Trace(first, *rows)
        return state, Trace(np.asarray(first), *(np.asarray(column) for column in rows))


def _steps(clients: Clients, step: Callable, length: int, state: Any) -> tuple[Any, Rows]:
    def once(state: Any) -> tuple[Any, Rows]:
        state = step(clients, state)
        return state, Rows(state.x0, state.residual, *state.local.meter)

    return clients.scan(once, state, length)


@refuse_unknown_keywords
def solve(
    fleet: Fleet,
    algorithm: Algorithm | None = None,
    *,
    transport: Callable[[Fleet], Clients] = Stacked,
    tol: float = 1e-8,
    max_rounds: int = 10_000,
    max_seconds: float = math.inf,
    x0: Any = None,
    checkpoint: str | Path | Checkpoint | None = None,
    progress: bool = False,
) -> Result:
    """Minimise Σfᵢ to a proved ‖x − x*‖ ≤ tol·max(1, ‖x‖).

    algorithm    default: FedHybrid with step sizes from the clients' curvatures
    max_rounds   bounds the rounds before the closing certificate, which takes one or two more
    checkpoint   a directory: killed at any instant, the same call goes on from there and ends with the same bits
    progress     a bar in the terminal
    """
    if not isinstance(fleet, Fleet):
        raise InvalidConfig(f"solve: the first argument must be a Fleet, not {type(fleet).__name__}.")
    if algorithm is not None and not isinstance(algorithm, Algorithm):
        raise InvalidConfig("solve: algorithm must be made by a factory such as fedhybrid.fedhybrid(mu=…, a=…, b=…).")
    tol = _tolerance(tol)
    max_rounds = _whole("max_rounds", max_rounds)
    if not isinstance(max_seconds, int | float) or math.isnan(max_seconds) or max_seconds <= 0:
        raise InvalidConfig(f"solve: max_seconds must be positive, not {max_seconds!r}.")
    place = None if checkpoint is None else Checkpoint.of(checkpoint)
    with jax.enable_x64(True), contextlib.ExitStack() as stack:
        start = _start_value(x0, fleet.d)
        if place is not None:
            stack.enter_context(files.lock(place.directory))
        bar = stack.enter_context(Progress(max_rounds)) if progress else None
        return _Run(fleet, algorithm, transport, tol, max_rounds, max_seconds, start, place, bar).finish()


class _Run:
    """One call of `solve`: all that is carried between two looks at the compiled loop."""

    def __init__(self, fleet, algorithm, transport, tol, max_rounds, max_seconds, start, place, bar) -> None:
        self.fleet, self.tol, self.max_rounds, self.place, self.bar = fleet, tol, max_rounds, place, bar
        self.clients = transport(fleet)
        self.attempts = Attempts(algorithm, fleet, start)
        self.identity = {
            "problem": fleet.fingerprint,
            "algorithm": _digest(self.attempts.spec(0), start),
            "transport": type(self.clients).__name__,
        }
        self.deadline = time.monotonic() + max_seconds
        self.capacity = int(np.clip(2**20 // fleet.d, 16, 256))
        self.curvature: cert.Curvatures | None = None
        self.next_check = 16  # steps after which a direction without minimiser is looked for; doubled each time
        self.x_checked = np.asarray(start)
        self.certificates = 0
        self.pace = 16.0  # steps that fit into the time between two looks
        self.trace = _Trace(np.asarray(start))
        self.saved_at = 0
        self._begin(0, start)
        self._resume()

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, attempt: int, start: Array) -> None:
        """A new attempt; with an algorithm of the caller's own there is only one."""
        self.attempt = attempt
        self.algorithm = self.attempts.algorithm(attempt)
        meter = self.state.local.meter if attempt else None
        self.state = self.algorithm.init(self.clients, start)
        if meter is None:
            self.trace.start = np.asarray(self.state.x0)
        else:
            self.state = self.state._replace(local=self.state.local._replace(meter=meter))
        m = cert.penalty_floor(self.fleet) or (self.curvature.visible if self.curvature else 0.0)
        self.watch = Watch.begin(self.state.x0, self.tol * m, 0.0 if m else FIRST_LOOK)

    def finish(self) -> Result:
        while True:
            try:
                self._advance()
                outcome = self._judge()
                if outcome is not None:
                    return self._result(*outcome)
                self._save()
            except KeyboardInterrupt:
                return self._result(Status.INTERRUPTED, "")
            except CheckpointError as error:
                return self._result(Status.CHECKPOINT_ERROR, str(error))
            if time.monotonic() > self.deadline:
                return self._result(Status.TIME_LIMIT, "")

    @property
    def rounds(self) -> int:
        return int(self.state.local.meter.rounds)

    def _advance(self) -> None:
        most = min(self.capacity, max(1, int(self.pace)), self.next_check - int(self.watch.steps))
        if self.place is not None:
            most = min(most, self.place.every)
        began = time.monotonic()
        limits = jnp.asarray(max(1, most)), jnp.asarray(self.max_rounds)
        static = (self.algorithm.step, self.capacity)
        self.state, self.watch, rows, filled = self.clients.call(advance, static, self.state, self.watch, *limits)
        filled = int(filled)
        self.trace.extend(rows, filled)
        seconds = time.monotonic() - began
        self.pace = max(1.0, min(2.0 * self.pace, 0.25 * max(1, filled) / max(seconds, 1e-9)))
        if self.bar is not None:
            self.bar.show(self.rounds, self.trace.residuals())

    def _judge(self) -> tuple[Status, str] | None:
        """The outcome, if there is one; otherwise what the loop waits for next."""
        halt = Halt(int(self.watch.halt))
        if halt in (Halt.DIVERGED, Halt.NONFINITE):
            return self._broken(halt)
        if halt in (Halt.ASK, Halt.STALLED):
            outcome = self._certify(stalled=halt is Halt.STALLED)
            if outcome is not None:
                return outcome
        if self.rounds >= self.max_rounds:
            return self._without_minimiser() or (Status.MAX_ROUNDS, "")
        if int(self.watch.steps) >= self.next_check:
            self.next_check *= 2
            return self._without_minimiser(only_if_moving=True)
        return None

    def _broken(self, halt: Halt) -> tuple[Status, str] | None:
        outcome = self._without_minimiser(self.watch.best_x0)
        if outcome is not None:
            return outcome
        if self.attempts.more(self.attempt):
            self._begin(self.attempt + 1, self.watch.best_x0)
            self.next_check += int(self.watch.steps)
            return None
        if halt is Halt.NONFINITE:
            unfactored = self._clients_that_do_not_factor()
            if unfactored:
                return Status.ILL_CONDITIONED, f"∇²f + μI could not be factored at {', '.join(unfactored)}; use a larger mu, or a penalty."
            return Status.NONFINITE, "Try smaller step sizes or a larger mu; a custom loss must be finite wherever it is evaluated."
        return Status.DIVERGED, "Try smaller step sizes a and b, or a larger mu."

    def _clients_that_do_not_factor(self) -> list[str]:
        mu = self.algorithm.spec.parameters.get("mu")
        if mu is None:
            return []
        broken = self.clients.observe(_does_not_factor, self.state.local, self.watch.best_x0, jnp.asarray(mu))
        return [self.fleet.names[i] for i in np.flatnonzero(np.asarray(broken))]

    # ── certificates ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _target(self, x: Array) -> float:
        return self.tol * max(1.0, float(jnp.linalg.norm(x)))

    def _measure(self, x: Array, closing: bool = False) -> cert.Certificate:
        """The certificate at x: a round for the gradient, and one for the sum of Hessians where the bound needs it."""
        local, norm = cert.gradient_norm(self.clients, self.state.local, x)
        self.state = self.state._replace(local=local)
        constant = self.fleet.loss.bend == 0.0
        penalised = cert.penalty_floor(self.fleet) > 0
        current = self.curvature if constant else None
        found = cert.certify_point(self.fleet, norm, current)
        target = self._target(x)
        if found.error_bound <= target or self.fleet.d > cert.LARGEST_HESSIAN or (constant and self.curvature is not None):
            return found
        useful = not penalised or (closing and self.fleet.loss.bend is not None)
        promising = closing or self.curvature is None or norm <= 2.0 * self.curvature.visible * target
        if not math.isfinite(norm) or not useful or not promising:
            return found._replace(estimate=norm / self.curvature.visible) if self.curvature else found
        local, self.curvature = cert.curvatures(self.clients, self.state.local, x)
        self.state = self.state._replace(local=local)
        return cert.certify_point(self.fleet, norm, self.curvature)

    def _certify(self, stalled: bool) -> tuple[Status, str] | None:
        x = self.state.x0
        self.certificates += 1
        closing = stalled or self.certificates >= MOST_CERTIFICATES
        found = self._measure(x, closing)
        target = self._target(x)
        if found.error_bound <= target:
            self.certificate = found
            return Status.SOLVED, ""
        unprovable = found.singular or self.fleet.loss.bend is None or self.fleet.d > cert.LARGEST_HESSIAN
        reached = found.estimate <= target
        if closing or (unprovable and reached):
            self.certificate = found
            if found.singular:
                return self._without_minimiser() or (Status.ILL_CONDITIONED, self._about_singular())
            outcome = self._without_minimiser() if closing else None
            return outcome or (Status.SOLVED_INACCURATE, self._about_inaccurate(found, reached))
        wanting = min(found.error_bound, found.estimate)
        ratio = target / wanting if 0 < wanting < math.inf else 0.1
        reached_residual = float(self.trace.residuals()[-1]) / max(1.0, float(jnp.linalg.norm(x)))
        lower = reached_residual * min(0.5, max(0.5 * ratio, 1e-6))
        self.watch = self.watch._replace(ask=jnp.asarray(lower), ask_relative=jnp.asarray(0.0), halt=jnp.zeros((), jnp.int64))
        return None

    def _about_singular(self) -> str:
        return (
            "The summed Hessian is singular (constant or duplicate columns, or too few rows) and the penalty is zero: many x fit equally "
            "well. From a zero start this is the one of least norm. Drop columns or set reg > 0."
        )

    def _about_inaccurate(self, found: cert.Certificate, reached: bool) -> str:
        if reached:
            return f"No bound is known for {self.fleet.loss.name} without a penalty; by the curvature at x the error is about {found.estimate:.1e}."
        return f"Rounding allows no smaller residual; the proved bound is {found.error_bound:.1e}."

    def _without_minimiser(self, x: Array | None = None, only_if_moving: bool = False) -> tuple[Status, str] | None:
        """NO_MINIMISER if x is on its way to infinity along a direction that proves it."""
        loss = self.fleet.loss
        if not loss.recession_known or loss.ell == 1.0 or self.fleet.reg.min() > 0:
            return None  # squared and Huber losses always have a minimiser
        x = self.state.x0 if x is None else x
        if not bool(jnp.all(jnp.isfinite(x))):
            return None
        before, self.x_checked = self.x_checked, np.asarray(x)
        if only_if_moving and np.linalg.norm(before - self.x_checked) <= 1e-2 * np.linalg.norm(self.x_checked):
            return None
        local, direction = cert.falling_direction(self.clients, self.state.local, self.fleet, x, before)
        self.state = self.state._replace(local=local)
        if direction is None:
            return None
        self.direction = direction
        return Status.NO_MINIMISER, "The data are separable along `direction`, which the penalty leaves free. Set reg > 0."

    # ── the result ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _result(self, status: Status, advice: str) -> Result:
        x = self.state.x0
        residuals = self.trace.residuals()
        astray = not bool(jnp.all(jnp.isfinite(x))) or status in (Status.DIVERGED, Status.NONFINITE, Status.ILL_CONDITIONED)
        if astray or (len(residuals) and residuals[-1] > 10.0 * float(self.watch.best)):
            x = x if getattr(self, "certificate", None) else self.watch.best_x0
        found = getattr(self, "certificate", None) or self._measure(x, closing=status is not Status.INTERRUPTED)
        if status is Status.MAX_ROUNDS and found.error_bound <= self._target(x):
            status = Status.SOLVED
        x_clients, lam_clients = self._client_values()
        meter = self.state.local.meter
        message = f"{status.sentence[0].upper()}{status.sentence[1:]}." + (f" {advice}" if advice else "")
        return Result(
            x=np.asarray(x),
            status=status,
            message=message,
            rounds=self.rounds,
            floats_up=int(meter.floats_up),
            floats_down=int(meter.floats_down),
            gradient_norm=_finite(found.gradient_norm),
            error_bound=_finite(found.error_bound),
            m_hat=_finite(found.m_hat),
            kappa_hat=found.kappa_hat,
            trace=self.trace.freeze(),
            x_clients=x_clients,
            lam_clients=lam_clients,
            direction=getattr(self, "direction", None),
            algorithm=str(self.algorithm.spec),
            notes=self.fleet.notes,
        )

    def _client_values(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        seen = self.clients.observe(_own_values, self.state.local)
        values = tuple(np.asarray(v) for v in seen)
        if len(values) != 2 or not all(np.all(np.isfinite(v)) for v in values):
            return None, None
        return values

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _save(self) -> None:
        steps = int(self.watch.steps)
        if self.place is None or steps - self.saved_at < self.place.every:
            return
        self.saved_at = steps
        arrays = {f"state.{k}": leaf for k, leaf in enumerate(_durable(self.state))}
        arrays |= {f"watch.{k}": np.asarray(leaf) for k, leaf in enumerate(self.watch)}
        arrays |= {f"trace.{name}": column for name, column in self.trace.arrays().items()} | {"x_checked": self.x_checked}
        scalars = {
            "tol": self.tol,
            "attempt": self.attempt,
            "next_check": self.next_check,
            "certificates": self.certificates,
            "curvature": None if self.curvature is None else list(self.curvature),
        }
        files.save(self.place.directory, self.identity, Snapshot(scalars, arrays))

    def _resume(self) -> None:
        snapshot = None if self.place is None else files.load(self.place.directory, self.identity)
        if snapshot is None:
            return
        scalars, arrays = snapshot
        if scalars["attempt"] > 0:
            self._begin(scalars["attempt"], jnp.asarray(self.trace.start))
        self.state = _restored(self.state, arrays)
        self.watch = Watch(*(jnp.asarray(arrays[f"watch.{k}"]) for k in range(len(Watch._fields))))
        self.trace.restore({name.removeprefix("trace."): column for name, column in arrays.items() if name.startswith("trace.")})
        self.x_checked = arrays["x_checked"]
        self.next_check, self.certificates = scalars["next_check"], scalars["certificates"]
        self.curvature = None if scalars["curvature"] is None else cert.Curvatures(*scalars["curvature"])
        self.saved_at = int(self.watch.steps)
        if scalars["tol"] != self.tol:  # another tolerance: ask at once where this one stands
            self.watch = self.watch._replace(ask=jnp.asarray(jnp.inf))


class _Trace:
    """Rows as they come, in NumPy."""

    def __init__(self, start: np.ndarray) -> None:
        self.start = start
        self.parts: list[Rows] = []
        self.kept = 0
        self.keeps_x0 = True

    def extend(self, rows: Rows, filled: int) -> None:
        self.kept += filled
        if self.kept * self.start.size > KEEP_X0 and self.keeps_x0:
            self.keeps_x0 = False
            self.parts = [part._replace(x0=part.x0[:, :0]) for part in self.parts]
        part = Rows(*(np.asarray(column[:filled]) for column in rows))
        self.parts.append(part if self.keeps_x0 else part._replace(x0=part.x0[:, :0]))

    def residuals(self) -> np.ndarray:
        return np.concatenate([part.residual for part in self.parts[-2:]]) if self.parts else np.zeros(0)

    def arrays(self) -> dict[str, np.ndarray]:
        columns = zip(*self.parts, strict=True) if self.parts else [(np.zeros((0, self.start.size)),)] + [(np.zeros(0),)] * 4
        whole = {name: np.concatenate(column) for name, column in zip(Rows._fields, columns, strict=True)}
        self.parts = [Rows(**whole)] if self.parts else []
        return whole | {"start": self.start}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self.start = arrays.pop("start")
        self.parts = [Rows(**arrays)]
        self.kept = len(arrays["rounds"])
        self.keeps_x0 = arrays["x0"].shape[1] == self.start.size

    def freeze(self) -> Trace:
        whole = self.arrays()
        if not self.keeps_x0:
            return Trace(**(whole | {"x0": None}))
        return Trace(**whole)


def _own_values(me: Any, local: Any) -> tuple:
    return (local.x, local.lam) if hasattr(local, "x") and hasattr(local, "lam") else ()


def _does_not_factor(me: Any, local: Any, x: Array, mu: Array) -> Array:
    H = me.f.hess(x)
    return ~jnp.all(jnp.isfinite(jnp.linalg.cholesky(H + mu * jnp.eye(x.shape[0], dtype=x.dtype))))


def _is_derived(node: Any) -> bool:
    return isinstance(node, Derived)


def _durable(state: Any) -> list[np.ndarray]:
    leaves = jax.tree.leaves(state, is_leaf=_is_derived)
    return [np.asarray(leaf) for leaf in leaves if not _is_derived(leaf)]


def _restored(state: Any, arrays: dict[str, np.ndarray]) -> Any:
    leaves, structure = jax.tree.flatten(state, is_leaf=_is_derived)
    saved = iter(arrays[f"state.{k}"] for k in range(len(leaves)) if f"state.{k}" in arrays)
    return jax.tree.unflatten(structure, [leaf if _is_derived(leaf) else jnp.asarray(next(saved)) for leaf in leaves])


def _digest(spec: Any, start: Array) -> str:
    digest = hashlib.sha256(spec.name.encode())
    for key, value in spec.parameters.items():
        digest.update(key.encode())
        for leaf in jax.tree.leaves(value):
            digest.update(np.asarray(leaf).tobytes())
    digest.update(np.asarray(start).tobytes())
    return digest.hexdigest()


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else float(value)


def _start_value(x0: Any, d: int) -> Array:
    if x0 is None:
        return jnp.zeros(d)
    start = jnp.asarray(x0, jnp.float64)
    if start.shape != (d,):
        raise InvalidConfig(f"x0 has shape {start.shape}, but the fleet needs ({d},).")
    if not isinstance(start, jax.core.Tracer) and not bool(jnp.all(jnp.isfinite(start))):
        raise InvalidConfig("x0 must be finite.")
    return start


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value < 2**53:
        raise InvalidConfig(f"{name} must be a positive whole number, not {value!r}.")
    return int(value)


def _tolerance(tol: Any) -> float:
    if isinstance(tol, bool) or not isinstance(tol, int | float | np.floating) or not 0 < tol < math.inf:
        raise InvalidConfig(f"tol must be a positive number, not {tol!r}.")
    return float(tol)
