"""Dataclasses as pytrees.

Not by `jax.tree_util.register_dataclass`: the tree structures that it makes compare equal across classes of the same fields (jax 0.10),
so that a compiled program could be taken for another class's. A client would then run another client's update.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

C = TypeVar("C")


def pytree(*data: str, static: tuple[str, ...] = ()) -> Callable[[type[C]], type[C]]:
    """Class decorator: `data` fields are children, `static` ones part of the structure. The class itself is part of it too."""

    def register(cls: type[C]) -> type[C]:
        def flatten(value: Any) -> tuple[tuple, tuple]:
            return tuple(getattr(value, name) for name in data), (cls, *(getattr(value, name) for name in static))

        def unflatten(structure: tuple, children: Any) -> Any:
            _, *values = structure
            return cls(**dict(zip(data, children, strict=True)), **dict(zip(static, values, strict=True)))

        jax.tree_util.register_pytree_node(cls, flatten, unflatten)
        return cls

    return register
