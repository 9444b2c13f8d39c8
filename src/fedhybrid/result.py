"""What a run gives back: `Trace`, step by step, and `Result`, the answer with its status and certificate."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .status import Status

KEEP_X0 = 1e8  # floats of trace.x0 beyond which it is given up
COLUMNS = ("x0", "residual", "rounds", "floats_up", "floats_down", "flops", "seconds")


@dataclass(frozen=True, repr=False)
class Trace:
    """One row per step. Counts are cumulative; floats and flops are summed over all clients."""

    start: np.ndarray  # (d,): x₀ before the first step
    x0: np.ndarray | None  # (steps, d): x₀ after each step; None where it would not fit (rounds·d > 1e8)
    residual: np.ndarray  # (steps,): what the server could see before the step
    rounds: np.ndarray
    floats_up: np.ndarray
    floats_down: np.ndarray
    flops: np.ndarray  # of the clients' work
    seconds: np.ndarray  # simulated, by the transport's clock; 0 without one

    def __len__(self) -> int:
        return len(self.rounds)

    def __repr__(self) -> str:
        return f"<Trace: {len(self)} steps, d={self.start.size}>"

    def first_below(self, tol: float, values: np.ndarray | None = None) -> int | None:
        """Rounds after which `values` (one per step; default: the residual) were first at or below tol; None if never."""
        below = np.flatnonzero(np.asarray(self.residual if values is None else values) <= tol)
        return int(self.rounds[below[0]]) if len(below) else None

    def columns(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ("rounds", "floats_up", "floats_down", "flops", "seconds", "residual")}

    def to_csv(self, path: str | Path) -> None:
        """Rounds, floats, flops, seconds, residual; one line per step, floats in full precision."""
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns())
            writer.writerows(zip(*(column.tolist() for column in self.columns().values()), strict=True))


class TraceBuilder:
    """A trace that is being written, block by block."""

    def __init__(self, start: np.ndarray) -> None:
        self.start = start
        self.blocks: list[dict[str, np.ndarray]] = []
        self.keeps_x0 = True

    def extend(self, block: dict[str, np.ndarray]) -> None:
        self.blocks.append(block)
        steps = sum(len(block["rounds"]) for block in self.blocks)
        if steps * self.start.size > KEEP_X0:
            self.keeps_x0 = False
        if not self.keeps_x0:
            self.blocks = [block | {"x0": np.zeros((0, self.start.size))} for block in self.blocks]

    def recent(self) -> np.ndarray:
        """The residuals of the last two blocks."""
        return np.concatenate([block["residual"] for block in self.blocks[-2:]]) if self.blocks else np.zeros(0)

    def arrays(self) -> dict[str, np.ndarray]:
        if not self.blocks:
            self.blocks = [{name: np.zeros((0, self.start.size) if name == "x0" else 0) for name in COLUMNS}]
        self.blocks = [{name: np.concatenate([block[name] for block in self.blocks]) for name in COLUMNS}]
        return self.blocks[0] | {"start": self.start}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> "TraceBuilder":
        builder = cls(arrays["start"])
        builder.blocks = [{name: arrays[name] for name in COLUMNS}]
        builder.keeps_x0 = len(arrays["x0"]) == len(arrays["rounds"])
        return builder

    def finish(self) -> Trace:
        columns = self.arrays()
        x0 = columns.pop("x0")
        return Trace(x0=x0 if self.keeps_x0 else None, **columns)


@dataclass(frozen=True, repr=False)
class Result:
    """The answer. `x` is always finite: the certified point, or the best that was reached."""

    x: np.ndarray
    status: Status
    message: str
    rounds: int
    floats_up: int  # by all clients together
    floats_down: int
    flops: float  # of all clients' work together
    seconds: float  # simulated, by the transport's clock; 0 without one
    gradient_norm: float  # ‖Σ∇fᵢ(x)‖, recomputed at x
    rounding: float  # what rounding may have hidden of that gradient; the bound allows for it
    error_bound: float  # proved: ‖x − x*‖ ≤ error_bound; inf where nothing is proved
    m_hat: float  # curvature at x that the bound rests on
    kappa_hat: float | None  # condition number of Σ∇²fᵢ(x), where that sum was formed
    trace: Trace
    x_clients: np.ndarray | None  # (n, d), in site order; None for methods whose clients keep no x
    lam_clients: np.ndarray | None
    direction: np.ndarray | None = None  # with NO_MINIMISER: the direction along which the objective falls for ever
    algorithm: str = ""
    notes: tuple[str, ...] = field(default=())
    names: tuple[str, ...] = field(default=())  # of the sites, in site order
    error_bounds: np.ndarray | None = None  # proved: one per coordinate of x; None where only the one for ‖x − x*‖ is known
    privacy: str = "plain"  # what a federation's server could see of single sites; docs/privacy.md

    def __str__(self) -> str:
        return f"{self.status} after {self.rounds} rounds, error bound {self.error_bound:.1e}. {self.message}"

    def __repr__(self) -> str:
        return f"<Result: {self}>"

    def to_dict(self) -> dict[str, Any]:
        """The answer in plain types, for JSON: infinities as the strings "inf"."""

        def plain(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return [plain(entry) for entry in value.tolist()]
            return str(value) if isinstance(value, float) and np.isinf(value) else value

        costs = ("rounds", "floats_up", "floats_down", "flops", "seconds")
        proofs = ("gradient_norm", "rounding", "error_bound", "error_bounds", "m_hat", "kappa_hat")
        names = ("x", *costs, *proofs, "direction")
        answer = {name: plain(getattr(self, name)) for name in names}
        return {
            "status": self.status.name,
            "message": self.message,
            "algorithm": self.algorithm,
            "notes": list(self.notes),
        } | answer

    def to_json(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")
