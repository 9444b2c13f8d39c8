"""What `solve` does between two looks at the compiled loop: ask for a certificate, judge, save, go on.

Stopping rests on what a server can see: the residual that rides along with the clients' messages. When it is small, one round at x₀
gives ‖Σ∇fᵢ(x₀)‖ and a bound (certificate.py); SOLVED means that the bound holds. If it does not, the run goes on and asks again later.
Nothing here depends on the clock except when to look, which changes no number.
"""

import hashlib
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from . import certificate as cert
from . import checkpoint as files
from .algorithms import limit_of
from .algorithms.base import Algorithm, durable_leaves, number, with_durable_leaves
from .checkpoint import Checkpoint, Snapshot
from .clients.base import Client, Clients
from .fleet import Objective
from .linalg import eigvalsh
from .result import Result, TraceBuilder
from .status import CheckpointError, QuorumLost, Status
from .watch import Halt, Watch, advance, norm

Array = Any
Outcome = tuple[Status, str]  # how it ended, and advice
FIRST_LOOK = 1e-2  # ask first when the residual has fallen to this part of its largest,
LAST_LOOK = 1e-11  # or, where it is known what to wait for, at this part of it: rounding allows little more
FIRST_CHECK = 16  # steps after which a direction without minimiser is first looked for
MOST_CERTIFICATES = 100
POLISHING = 20  # rounds without progress that are enough, where no more can be proved
ILL_SCALED = 1e10  # condition number of the summed Hessian that seldom comes from anything but units
FLOOR = 10.0  # a gradient of so many times its own rounding gets no smaller
BETWEEN_LOOKS = 0.25  # seconds
SAVING = 0.1  # the part of the time that may go into writing checkpoints

SINGULAR = (
    "The summed Hessian is singular (constant or duplicate columns, or too few rows) and the penalty is zero: many x fit equally well. "
    "From a zero start this is the one of least norm. Drop columns or set reg > 0."
)


class Limits(NamedTuple):
    tol: float
    max_rounds: int
    max_seconds: float


class Listener(Protocol):
    """What is told of the trace's new rows."""

    def advance(self, rows: Mapping[str, np.ndarray]) -> None: ...


class Driver:
    """One call of `solve`."""

    def __init__(
        self,
        fleet: Objective,
        clients: Clients,
        algorithm: Algorithm,
        start: Array,
        limits: Limits,
        place: Checkpoint | None,
        listener: Listener | None,
        start_given: bool = False,
        warm: bool = False,
    ) -> None:
        self.fleet, self.clients, self.algorithm = fleet, clients, algorithm
        self.limits, self.place, self.listener = limits, place, listener
        self.deadline = time.monotonic() + limits.max_seconds
        self.capacity = int(np.clip(2**20 // fleet.d, 16, 256))  # rows of the trace per look
        self.pace = 16.0  # steps that fit between two looks
        self.certifier = cert.Certifier(fleet, clients)
        self.certificate: cert.Certificate | None = None
        self.certificates = 0
        self.direction: np.ndarray | None = None
        self.x_checked = np.asarray(start)
        self.warm = warm and algorithm.warm is not None
        self.state = (algorithm.warm if warm and algorithm.warm is not None else algorithm.init)(clients, start)
        m = self.certifier.known_curvature()
        first_look = LAST_LOOK if m > 0 and algorithm.residual_is_gradient else FIRST_LOOK
        if start_given:  # perhaps the answer itself: look after the first step
            first_look = math.inf
        self.watch = Watch.begin(self.state.x0, limits.tol * m, first_look)
        self.next_check = FIRST_CHECK
        self.saved_steps, self.saved_time, self.saving = 0, time.monotonic(), 0.0
        self.trace = TraceBuilder(np.asarray(self.state.x0))
        if place is not None:
            self._resume(place, start)

    def finish(self) -> Result:
        while True:
            try:
                self._advance()
                if self.rounds >= self.limits.max_rounds:
                    self._save(last=True)  # before judging, which costs rounds: with a higher limit the run goes on from here
                outcome = self._judge()
                if outcome is not None:
                    return self._result(*outcome)
                out_of_time = time.monotonic() > self.deadline
                self._save(last=out_of_time)
                if out_of_time:
                    return self._result(Status.TIME_LIMIT)
            except KeyboardInterrupt:
                return self._result(Status.INTERRUPTED, f"The same call goes on from {self.place.directory}." if self.place else "")
            except (CheckpointError, QuorumLost) as error:
                return self._result(error.status, str(error))

    @property
    def rounds(self) -> int:
        return int(self.state.local.meter.rounds)

    def _advance(self) -> None:
        most = min(self.capacity, int(self.pace), self.next_check - int(self.watch.steps))
        if self.place is not None:
            most = min(most, self.place.every)
        began = time.monotonic()
        limits = jnp.asarray(max(1, most)), jnp.asarray(self.limits.max_rounds)
        static = (self.algorithm.step, self.capacity)
        self.state, self.watch, rows, filled = self.clients.call(advance, static, self.state, self.watch, *limits)
        steps = int(filled)
        new = {name: np.asarray(column)[:steps].copy() for name, column in rows._asdict().items()}
        self.trace.extend(new)
        seconds = time.monotonic() - began
        self.pace = max(1.0, min(2.0 * self.pace, BETWEEN_LOOKS * max(1, steps) / max(seconds, 1e-9)))
        if self.listener is not None:
            self.listener.advance(new)

    # ── judging ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _judge(self) -> Outcome | None:
        """The outcome, if there is one; otherwise the loop is told what to wait for next."""
        halt = Halt(int(self.watch.halt))
        if halt is Halt.DIVERGED and self.algorithm.descends:  # a hill of the gradient, not of F: count anew from here
            zero = jnp.zeros((), jnp.int64)
            self.watch = self.watch._replace(best=self.state.residual, best_x0=self.state.x0, grown=zero, halt=zero)
            halt = Halt.NO
        if halt in (Halt.DIVERGED, Halt.NONFINITE):
            return self._broken(halt)
        if halt in (Halt.ASK, Halt.STALLED):
            outcome = self._certify(self._stands_still())
            if outcome is not None:
                return outcome
        if self.rounds >= self.limits.max_rounds:
            return self._without_minimiser(self.state.x0) or (Status.MAX_ROUNDS, self._out_of_rounds())
        if int(self.watch.steps) >= self.next_check:
            self.next_check *= 2
            moved = np.linalg.norm(np.asarray(self.state.x0) - self.x_checked)
            if moved > 1e-2 * np.linalg.norm(self.x_checked):
                return self._without_minimiser(self.state.x0)
        return None

    def _stands_still(self) -> bool:
        return int(self.watch.idle) >= int(self.watch.patience) or float(self.trace.recent()[-1]) == 0.0

    def _out_of_rounds(self) -> str:
        if limit_of(self.algorithm) == "biased":
            return f"{self.algorithm.spec.name} goes elsewhere where clients differ; fedhybrid.lbfgs(), say, goes to the optimum."
        if self.clients.partial:
            return "Where clients are away more rounds are needed: raise max_rounds, or let more of them take part."
        parameters = self.algorithm.spec.parameters
        if parameters.get("batch") and not parameters.get("reduced"):
            return "With reduced=False the samples' noise keeps x at a distance: reduced=True takes it out, a larger batch makes it less."
        others = "" if self.algorithm.spec.name in ("krylov", "lbfgs") else ", or try fedhybrid.krylov(), which needs no parameter"
        return f"Raise max_rounds{others}."

    def _broken(self, halt: Halt) -> Outcome:
        outcome = self._without_minimiser(self.watch.best_x0)
        if outcome is not None:
            return outcome
        smaller = "Try smaller step sizes a and b, or a larger mu" if "mu" in self.algorithm.spec.parameters else "Try a smaller step size"
        if halt is Halt.DIVERGED:
            return Status.DIVERGED, f"{smaller}."
        if sites := self._sites_that_do_not_factor():
            return Status.ILL_CONDITIONED, f"∇²f + μI could not be factored at {', '.join(sites)}; use a larger mu, or a penalty."
        return Status.NONFINITE, f"{smaller}; a custom loss must be finite wherever it is evaluated."

    def _sites_that_do_not_factor(self) -> list[str]:
        mu = self.algorithm.spec.parameters.get("mu")
        if mu is None:
            return []
        broken = self.clients.observe(_does_not_factor, self.state.local, self.watch.best_x0, jnp.asarray(mu))
        return [] if broken is None else [self.fleet.names[i] for i in np.flatnonzero(np.asarray(broken))]

    def _without_minimiser(self, x: Array) -> Outcome | None:
        """NO_MINIMISER if x is on its way to infinity along a direction that proves it."""
        if not self.fleet.loss.can_recede or self.fleet.reg.min() > 0 or not bool(jnp.all(jnp.isfinite(x))):
            return None
        before, self.x_checked = self.x_checked, np.asarray(x)
        local, self.direction = cert.falling_direction(self.clients, self.state.local, self.fleet, x, before)
        self.state = self.state._replace(local=local)
        if self.direction is None:
            return None
        return Status.NO_MINIMISER, "The data are separable along `direction`, which the penalty leaves free. Set reg > 0."

    # ── certificates ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _target(self, x: Array) -> float:
        return self.limits.tol * max(1.0, float(norm(x)))

    def _certify(self, stalled: bool) -> Outcome | None:
        x = self.state.x0
        self.certificates += 1
        near_rounding = float(self.trace.recent()[-1]) <= LAST_LOOK * float(self.watch.largest)
        found = self._measure(x, closing=stalled or near_rounding)
        target = self._target(x)
        if found.error_bound <= target < math.inf:
            return self._solved(found, x)
        at_the_floor = found.gradient.norm <= FLOOR * found.gradient.rounding
        closing = (stalled and at_the_floor) or self.certificates >= MOST_CERTIFICATES
        unprovable = found.singular or self.fleet.loss.bend is None or self.fleet.d > cert.LARGEST_HESSIAN
        reached = found.estimate <= target
        if closing or (unprovable and reached):
            self.certificate = found
            outcome = self._without_minimiser(x)
            if outcome is not None:
                return outcome
            if found.singular:
                return Status.ILL_CONDITIONED, SINGULAR
            return Status.SOLVED_INACCURATE, self._about(found, reached)
        reach = min(found.error_bound, found.estimate)
        if reach * found.gradient.rounding > target * (found.gradient.norm + found.gradient.rounding):
            # Rounding alone is too much for a proof: rounds can only polish x, and need not be waited for long.
            self.watch = self.watch._replace(patience=jnp.minimum(self.watch.patience, POLISHING))
        self._ask_later(x, target / reach, stalled)
        return None

    def _solved(self, found: cert.Certificate, x: Array) -> Outcome:
        self.certificate = found
        if not self.fleet.loss.own:
            return Status.SOLVED, ""
        local, sites = self.certifier.not_convex(self.state.local, x)
        self.state = self.state._replace(local=local)
        if sites == 0:
            return Status.SOLVED, "The bound rests on your promise that the custom loss is convex everywhere; it is at x."
        self.certificate = found._replace(error_bound=math.inf)
        return (
            Status.SOLVED_INACCURATE,
            f"The custom loss is not convex at x (at {sites} sites): nothing is proved, but x is stationary.",
        )

    def _ask_later(self, x: Array, ratio: float, stalled: bool) -> None:
        """Wait until the residual is smaller by the factor that the error must fall by; but by ten at most, unless it is the gradient
        itself: another residual may fall far more slowly than the error does, and asking costs one round."""
        factor = min(0.5, 0.5 * ratio) if ratio > 0 else 0.1
        factor = factor if self.algorithm.residual_is_gradient else max(factor, 0.1)
        reached = float(self.trace.recent()[-1]) / max(1.0, float(norm(x)))
        zero = jnp.zeros((), jnp.int64)
        self.watch = self.watch._replace(ask=number(reached * factor), ask_relative=number(0.0), halt=zero)
        if stalled:  # slow, but not at the floor
            self.watch = self.watch._replace(idle=zero, patience=2 * self.watch.patience)

    def _measure(self, x: Array, closing: bool) -> cert.Certificate:
        local, found = self.certifier.measure(self.state.local, x, self._target(x), closing)
        self.state = self.state._replace(local=local)
        return found

    def _last_measure(self, x: Array, status: Status) -> cert.Certificate:
        """What can be said of the point that is given back; nothing, where nobody answers any more."""
        if status is Status.QUORUM_LOST:
            return cert.NOTHING_PROVED
        try:
            return self._measure(x, closing=status is not Status.INTERRUPTED)
        except (CheckpointError, QuorumLost):
            return cert.NOTHING_PROVED

    def _about(self, found: cert.Certificate, reached: bool) -> str:
        if not reached:
            bound = f"the proved bound is {found.error_bound:.1e}" if math.isfinite(found.error_bound) else "it proves no bound"
            scales = found.kappa_hat is not None and found.kappa_hat > ILL_SCALED
            return f"Rounding allows no smaller residual; {bound}.{' Are columns of very different scale? Scale them alike.' * scales}"
        return f"No bound is known for this problem; by the curvature at x the error is about {found.estimate:.1e}."

    # ── the result ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _best_point(self) -> Array:
        """The last x₀, unless the run has gone astray since its best."""
        x, recent = self.state.x0, self.trace.recent()
        astray = int(self.watch.halt) in (Halt.DIVERGED, Halt.NONFINITE) or not bool(jnp.all(jnp.isfinite(x)))
        if self.algorithm.descends and not astray:
            return x
        return self.watch.best_x0 if astray or (len(recent) and recent[-1] > 10.0 * float(self.watch.best)) else x

    def _result(self, status: Status, advice: str = "") -> Result:
        x = self._best_point() if self.certificate is None else self.state.x0
        found = self.certificate or self._last_measure(x, status)
        if status is Status.MAX_ROUNDS and found.error_bound <= self._target(x) < math.inf:
            status = Status.SOLVED
        values = [np.asarray(value) for value in self.clients.observe(_own_values, self.state.local) or ()]
        has_values = len(values) == 2 and all(np.all(np.isfinite(value)) for value in values)
        meter = self.state.local.meter
        return Result(
            x=np.asarray(x),
            status=status,
            message=" ".join([status.sentence[0].upper() + status.sentence[1:] + ".", *([advice] if advice else [])]),
            rounds=self.rounds,
            floats_up=int(meter.floats_up),
            floats_down=int(meter.floats_down),
            flops=float(meter.flops),
            seconds=float(meter.seconds),
            gradient_norm=found.gradient.norm,
            rounding=found.gradient.rounding,
            error_bound=found.error_bound if math.isfinite(found.error_bound) else math.inf,
            m_hat=found.m_hat,
            kappa_hat=found.kappa_hat,
            trace=self.trace.finish(),
            x_clients=values[0] if has_values else None,
            lam_clients=values[1] if has_values else None,
            direction=self.direction,
            algorithm=str(self.algorithm.spec),
            notes=self.fleet.notes,
            names=self.fleet.names,
        )

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _identity(self, start: Array) -> dict[str, str]:
        return {
            "problem": self.fleet.fingerprint,
            "algorithm": self.algorithm.spec.digest(),
            "start": hashlib.sha256(np.asarray(start).tobytes()).hexdigest(),
            "transport": self.clients.identity + (" warm" if self.warm else ""),
        }

    def _save(self, last: bool = False) -> None:
        """Write a checkpoint, if one is due; `last`: nothing more will be computed after this state."""
        if self.place is None:
            return
        steps, now = int(self.watch.steps), time.monotonic()
        due = steps - self.saved_steps >= self.place.every
        affordable = self.place.every == 1 or self.saving <= SAVING * (now - self.saved_time)
        if not (due and affordable) and not (last and steps > self.saved_steps):
            return
        arrays = {f"state.{k}": leaf for k, leaf in enumerate(durable_leaves(self.state))}
        arrays |= {f"watch.{name}": np.asarray(value) for name, value in self.watch._asdict().items()}
        arrays |= {f"trace.{name}": column for name, column in self.trace.arrays().items()}
        arrays |= {"x_checked": self.x_checked}
        scalars = {
            "tol": self.limits.tol,
            "next_check": self.next_check,
            "certificates": self.certificates,
            "curvature": None if self.certifier.curvature is None else list(self.certifier.curvature),
        }
        files.save(self.place.directory, self.identity, Snapshot(scalars, arrays))
        self.saved_steps, self.saved_time = steps, time.monotonic()
        self.saving = self.saved_time - now

    def _resume(self, place: Checkpoint, start: Array) -> None:
        self.identity = self._identity(start)
        snapshot = files.load(place.directory, self.identity)
        if snapshot is None:
            return
        scalars, arrays = snapshot
        saved = [arrays[f"state.{k}"] for k in range(len(durable_leaves(self.state)))]
        self.state = with_durable_leaves(self.state, saved)
        self.watch = Watch(*(jnp.asarray(arrays[f"watch.{name}"]) for name in Watch._fields))
        self.trace = TraceBuilder.from_arrays({name[6:]: column for name, column in arrays.items() if name.startswith("trace.")})
        self.x_checked = arrays["x_checked"]
        self.next_check, self.certificates = scalars["next_check"], scalars["certificates"]
        self.certifier.curvature = None if scalars["curvature"] is None else cert.Curvatures(*scalars["curvature"])
        self.saved_steps = int(self.watch.steps)
        if scalars["tol"] != self.limits.tol:  # another tolerance: ask at once how this point stands
            self.watch = self.watch._replace(ask=number(jnp.inf))


def _own_values(me: Client, local: Any) -> tuple:
    return (local.x, local.lam) if hasattr(local, "x") and hasattr(local, "lam") else ()


def _does_not_factor(me: Client, local: Any, x: Array, mu: Array) -> Array:
    w = eigvalsh(me.f.hess(x) + mu * jnp.eye(x.shape[0], dtype=x.dtype))
    return ~(w[0] > jnp.finfo(x.dtype).eps * w[-1])  # to working precision; also where it is not finite
