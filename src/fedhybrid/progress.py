"""A bar for long solves in a terminal: round, residual and rate."""

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    def __init__(self, max_rounds: int) -> None:
        self.bar = Bar(
            TextColumn("round {task.completed:>6,}"),
            BarColumn(bar_width=20),
            TextColumn("residual {task.fields[residual]:.1e}  ×{task.fields[rate]:.4f} a round"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("", total=max_rounds, residual=float("inf"), rate=float("nan"))

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()

    def show(self, rounds: int, residuals: np.ndarray) -> None:
        """`residuals`: the last few, oldest first."""
        if len(residuals) == 0:
            return
        first, last = residuals[0], residuals[-1]
        rate = (last / first) ** (1 / (len(residuals) - 1)) if len(residuals) > 1 and first > 0 else float("nan")
        self.bar.update(self.task, completed=rounds, residual=float(last), rate=float(rate))
