"""A run as TensorBoard's event files: `tensorboard --logdir …` draws them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..callbacks import Callback
from ..result import Result
from ..status import InvalidConfig
from . import CURVES, FIGURES


class TensorBoard(Callback):
    """folder   a new one for every run, such as runs/krylov-1"""

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise InvalidConfig("TensorBoard needs the package tensorboardX: pip install fedhybrid[tensorboard].") from None
        self.writer = SummaryWriter(str(folder))

    def begin(self, run: Mapping[str, Any]) -> None:
        self.writer.add_text("run", "\n".join(f"    {name}: {value}" for name, value in run.items()))

    def advance(self, rows: Mapping[str, np.ndarray]) -> None:
        for name in CURVES:
            for step, value in zip(rows["rounds"].tolist(), rows[name].tolist(), strict=True):
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self, result: Result) -> None:
        self.writer.add_text("result", f"    {result}")
        for name in FIGURES:
            self.writer.add_scalar(name, getattr(result, name), result.rounds)
        self.writer.close()
