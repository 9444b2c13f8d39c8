"""What a site keeps of a run, on its disk before an answer leaves: so that a killed site goes on as if it had only been late."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import checkpoint as files
from ..checkpoint import Snapshot
from ..curvature import Derived
from ..status import CheckpointError


@dataclass
class Memory:
    """What a site keeps of one run, and what it last answered."""

    name: str  # drawn when it was made
    round: int
    question: str
    answer: np.ndarray
    begun: np.ndarray  # what came along with the start: the state can be begun again
    sites: tuple[str, ...]
    local: Any


def last_begun(state: Path) -> str:
    """The run in which a site took part last; "" if there is none."""
    files_of_runs = [file for file in state.glob(f"*/{files.CURRENT}") if not file.parent.is_symlink()]
    return max(files_of_runs, key=lambda file: file.stat().st_mtime_ns).parent.name.rpartition("-")[0] if files_of_runs else ""


class Store:
    """The folder of one run and epoch, among those of a site. What D needs is large and changes seldom: a file of its own."""

    def __init__(self, state: Path, run: str, epoch: int, identity: dict[str, str]) -> None:
        self.state, self.folder, self.identity = state, state / f"{run}-{epoch}", identity
        self.derived: tuple[np.ndarray, ...] = ()  # as it is on the disk

    def save(self, memory: Memory) -> None:
        """On the disk when this returns."""
        leaves = jax.tree.leaves(memory.local, is_leaf=_is_derived)
        kept = [np.asarray(leaf) for leaf in leaves if not _is_derived(leaf)]
        derived = tuple(np.asarray(part) for leaf in leaves if _is_derived(leaf) for part in jax.tree.leaves(leaf))
        same = len(derived) == len(self.derived) and all(map(np.array_equal, derived, self.derived))
        if not same:
            files.save(self.folder / "derived", self.identity, Snapshot({}, {f"derived.{k}": part for k, part in enumerate(derived)}))
            self.derived = derived
        scalars = {"name": memory.name, "round": memory.round, "question": memory.question, "sites": list(memory.sites)}
        scalars["derived"] = _digest(self.derived)
        arrays = {"answer": memory.answer, "begun": memory.begun} | {f"local.{k}": leaf for k, leaf in enumerate(kept)}
        files.save(self.folder, self.identity, Snapshot(scalars, arrays))

    def load(self, begin: Callable[[tuple[str, ...], np.ndarray], Any]) -> Memory | None:
        """The memory; None where there is none. `begin(sites, begun)`: a state like the one that was saved."""
        try:
            found = files.load(self.folder, self.identity)
            derived = files.load(self.folder / "derived", self.identity) if found is not None else None
        except CheckpointError:  # damaged, or another site's: as good as lost, and said so
            return None
        if found is None:
            return None
        scalars, arrays = found
        sites = tuple(scalars["sites"])
        self.derived = tuple(derived.arrays.values()) if derived else ()
        if scalars["derived"] != _digest(self.derived):  # one of the two files is older than the other
            return None
        local = _restored(begin(sites, arrays["begun"]), arrays, list(self.derived))
        return Memory(scalars["name"], scalars["round"], scalars["question"], arrays["answer"], arrays["begun"], sites, local)

    def forget_older_runs(self) -> None:
        """Other runs' states: none can be asked for again, but the last one, by a server that was put back."""
        if not self.state.is_dir():
            return
        others = [folder for folder in self.state.iterdir() if folder.is_dir() and not folder.is_symlink() and folder != self.folder]
        for folder in sorted(others, key=lambda folder: folder.stat().st_mtime)[:-1]:
            shutil.rmtree(folder, ignore_errors=True)


def _digest(arrays: tuple[np.ndarray, ...]) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def _is_derived(node: Any) -> bool:
    return isinstance(node, Derived)


def _restored(template: Any, arrays: dict[str, np.ndarray], derived: list[np.ndarray]) -> Any:
    leaves, structure = jax.tree.flatten(template, is_leaf=_is_derived)
    kept = (arrays[f"local.{k}"] for k in range(sum(not _is_derived(leaf) for leaf in leaves)))
    rest = iter(derived)

    def derived_like(leaf: Derived) -> Derived:
        return jax.tree.map(lambda part: jax.numpy.asarray(next(rest)), leaf)

    return jax.tree.unflatten(structure, [derived_like(leaf) if _is_derived(leaf) else jax.numpy.asarray(next(kept)) for leaf in leaves])
