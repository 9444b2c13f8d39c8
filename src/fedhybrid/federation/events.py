"""What happened, as it happens: one line of JSON each in events.jsonl, and whoever else wants to hear of it."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Listener = Callable[[str, dict[str, Any]], None]


class Events:
    """Written, not synced: they tell a story, and nothing is restored from them."""

    def __init__(self, path: Path | None = None, *listeners: Listener) -> None:
        self.file = None if path is None else open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 (it stays open as long as the run)
        self.listeners = list(listeners)
        self.counts: Counter[str] = Counter()

    def tell(self, what: str, **details: Any) -> None:
        self.counts[what] += 1
        if self.file is not None:
            self.file.write(json.dumps({"time": round(time.time(), 3), "what": what, **details}) + "\n")
        for listener in self.listeners:
            listener(what, details)

    def advance(self, rows: Mapping[str, np.ndarray]) -> None:
        """As a listener of the driver's."""
        if len(rows["residual"]):
            self.tell("residual", round=int(rows["rounds"][-1]), residual=float(rows["residual"][-1]))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
