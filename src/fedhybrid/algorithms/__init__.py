"""What is computed: pure, one paper per file. `ALGORITHMS` is the one table of them."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from .base import Algorithm
from .fedhybrid import fedhybrid
from .gd import gd
from .lbfgs import lbfgs
from .newton import newton


class Entry(NamedTuple):
    """A method: how to make one, what it needs of a fleet, and where it goes on data that are not IID."""

    factory: Callable[..., Algorithm]
    requires: frozenset[str] = frozenset()  # of: rows, reg, quadratic, hessians
    limit: Literal["exact", "biased", "may fail"] = "exact"


ALGORITHMS: dict[str, Entry] = {
    "fedhybrid": Entry(fedhybrid),
    "gd": Entry(gd),
    "lbfgs": Entry(lbfgs),
    "newton": Entry(newton, requires=frozenset({"hessians"})),
}
