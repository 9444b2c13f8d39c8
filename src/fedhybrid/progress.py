"""A bar for long solves in a terminal: round, residual and rate."""

from collections.abc import Mapping

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from .callbacks import Callback

LOOK_BACK = 16  # steps over which the rate is taken, at least


class Progress(Callback):
    def __init__(self, max_rounds: int) -> None:
        self.bar = Bar(
            TextColumn("round {task.completed:>6,}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("", total=max_rounds, note="compiling …")
        self.before = np.zeros(0)

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()

    def advance(self, rows: Mapping[str, np.ndarray]) -> None:
        if not len(rows["residual"]):
            return
        residuals = np.concatenate([self.before[-LOOK_BACK:], rows["residual"]])
        self.before = rows["residual"]
        first, last = residuals[0], residuals[-1]
        note = f"residual {last:.1e}"
        if len(residuals) > 1 and first > 0:
            note += f"  ×{(last / first) ** (1 / (len(residuals) - 1)):.4f} a round"
        self.bar.update(self.task, completed=int(rows["rounds"][-1]), note=note)
