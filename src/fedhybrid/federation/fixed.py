"""A private run: as many rounds as were agreed on, and no certificate, since what would prove one carries no noise. And its label."""

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..algorithms.base import Algorithm
from ..clients.remote import Remote
from ..result import Result, TraceBuilder
from ..secure import privacy
from ..status import CheckpointError, QuorumLost, Status
from ..watch import norm
from .ending import TO_BE_CONTINUED
from .events import Events
from .exchange import BudgetSpent
from .kept import Kept
from .private import penalty_of
from .terms import Terms

WHY = "Sites may add noise, so that the number of rounds was fixed and nothing can be proved of x."


class FixedRounds:
    """In the driver's place."""

    def __init__(self, terms: Terms, remote: Remote, algorithm: Algorithm, start: Any, events: Events) -> None:
        self.terms, self.remote, self.algorithm, self.events = terms, remote, algorithm, events
        self.penalty = penalty_of(terms, remote.protocol.questions[0].fn)
        self.state = algorithm.init(remote, start)
        self.trace = TraceBuilder(np.asarray(self.state.x0))

    def finish(self) -> Result:
        try:
            while self.rounds < self.terms.rounds.most:
                self._step()
        except KeyboardInterrupt:
            return self._result(Status.INTERRUPTED, "")
        except BudgetSpent as error:
            return self._result(Status.MAX_ROUNDS if self.rounds else error.status, f"{WHY} {error}")
        except (CheckpointError, QuorumLost) as error:
            return self._result(error.status, str(error))
        return self._result(Status.MAX_ROUNDS, WHY)

    @property
    def rounds(self) -> int:
        return int(self.state.local.meter.rounds)

    def _step(self) -> None:
        before = self.state.x0
        self.state = self.algorithm.step(self.remote, self.state)
        # what the answers imply, noise and all: the residual that the method knows may have been left out
        implied = self.state.residual if self.penalty is None else self.remote.n * self.penalty * norm(self.state.x0 - before)
        row = {"x0": self.state.x0, "residual": implied, **self.state.local.meter._asdict()}
        new = {name: np.asarray(jnp.asarray(value))[None] for name, value in row.items()}
        self.trace.extend(new)
        self.events.advance(new)

    def _result(self, status: Status, advice: str) -> Result:
        message = f"{status.sentence[0].upper()}{status.sentence[1:]}. {advice}".strip()
        return unproved(status, message, self.trace, np.asarray(self.state.x0), str(self.algorithm.spec), self.terms)


def unproved(status: Status, message: str, trace: TraceBuilder, x: np.ndarray, algorithm: str, terms: Terms) -> Result:
    """A result without a certificate."""
    rows = trace.finish()
    spent = {
        name: getattr(rows, name)[-1] if len(rows.rounds) else 0 for name in ("rounds", "floats_up", "floats_down", "flops", "seconds")
    }
    return Result(
        x=x,
        status=status,
        message=message,
        rounds=int(spent["rounds"]),
        floats_up=int(spent["floats_up"]),
        floats_down=int(spent["floats_down"]),
        flops=float(spent["flops"]),
        seconds=float(spent["seconds"]),
        gradient_norm=math.inf,
        rounding=0.0,
        error_bound=math.inf,
        m_hat=0.0,
        kappa_hat=None,
        trace=rows,
        x_clients=None,
        lam_clients=None,
        algorithm=algorithm,
        names=terms.names,
    )


# ── the label ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def noise_of(remote: Remote, kept: Kept, result: Result) -> dict[str, tuple[float, float]]:
    """(ε, δ) of what every site has told, in all runs, by its own account; (∞, 0) where it adds no noise.

    Asked when the run ends; of a site that is away then it is the budget, which is more.
    """
    ended = result.status not in TO_BE_CONTINUED
    if ended and (data := kept.load()):
        return {name: (float(eps), float(delta)) for name, (eps, delta) in json.loads(data).items()}
    found = {name: _told(*row) for name, row in remote.noise.items()}
    if ended:
        with contextlib.suppress(QuorumLost):
            found |= {name: _told(*row) for name, row in remote.declared(frozenset(remote.names)).items()}
        kept.save(json.dumps(found).encode())
    return found


def _told(budget: float, delta: float, spent: float) -> tuple[float, float]:
    return (min(budget, spent), delta) if budget else (math.inf, 0.0)


def labelled(noise: Mapping[str, tuple[float, float]], otherwise: str, names: tuple[str, ...]) -> tuple[str, list[str]]:
    """The run's label, which is the worst of the sites', and which of them are private. `otherwise`: what protects sites without noise."""
    private = {name: found for name, found in noise.items() if math.isfinite(found[0])}
    if not private:
        return otherwise, ["The terms allow for noise, and no site is known to have added any."]
    each = "; ".join(f"{name} {privacy.label(*found)}" for name, found in private.items())
    told = f"Noise at the site, for all that it has told so far: {each}."
    if others := [name for name in names if name not in private]:
        return otherwise, [f"{told} None at {', '.join(others)}: the label is theirs."]
    worst = privacy.label(max(eps for eps, _ in private.values()), max(delta for _, delta in private.values()))
    return worst, [told if otherwise == "plain" else f"{told} Beside it the sums were secure: {otherwise}."]
