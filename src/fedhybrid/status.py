"""How a run can end: a closed list, a sentence each; and the errors that carry one of them.

Numerical outcomes are values: they stand in a `Result`. A caller's mistake is raised, before anything has been computed.
"""

import difflib
import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Status(Enum):
    """Why a run ended. `status.sentence` says it in words."""

    SOLVED = "the certificate holds: the error bound, recomputed outside the loop, is within the tolerance"
    SOLVED_INACCURATE = "the run can get no further, and no bound as tight as the tolerance could be proved"
    MAX_ROUNDS = "the limit on rounds was reached before the tolerance"
    TIME_LIMIT = "the limit on seconds was reached before the tolerance"
    DIVERGED = "the residual grew to more than a thousand times its best value"
    NONFINITE = "a client's reply was not finite"
    ILL_CONDITIONED = "the problem does not determine x to this precision"
    NO_MINIMISER = "the objective keeps falling along a direction that was found and checked: there is no minimiser"
    INVALID_DATA = "the data cannot be used as they are"
    INVALID_CONFIG = "a parameter cannot be used as it is"
    QUORUM_LOST = "too few clients answered"
    STATE_LOST = "a client lost the state that it keeps between rounds"
    CHECKPOINT_ERROR = "a checkpoint could not be written, or none that is left can be used"
    INTERRUPTED = "the run was interrupted"

    @property
    def sentence(self) -> str:
        return self.value

    @property
    def exit_status(self) -> int:
        """What a command ends with."""
        return EXIT_STATUSES[self.name]

    def __repr__(self) -> str:
        return f"Status.{self.name}"

    def __str__(self) -> str:
        return self.name


# 1 is left to what has no status: an unexpected failure, and a check that found a difference.
EXIT_STATUSES = {
    "SOLVED": 0,
    "INVALID_DATA": 2,
    "INVALID_CONFIG": 2,
    "SOLVED_INACCURATE": 3,
    "MAX_ROUNDS": 4,
    "TIME_LIMIT": 5,
    "DIVERGED": 6,
    "NONFINITE": 7,
    "ILL_CONDITIONED": 8,
    "NO_MINIMISER": 9,
    "QUORUM_LOST": 10,
    "STATE_LOST": 11,
    "CHECKPOINT_ERROR": 12,
    "INTERRUPTED": 130,
}


class FedHybridError(ValueError):
    """A caller's mistake. `.status` is the matching member of `Status`."""

    status: Status


class InvalidData(FedHybridError):
    """Data that cannot be used. The message names site and column and counts; it never prints a value."""

    status = Status.INVALID_DATA


class InvalidConfig(FedHybridError):
    """A parameter that cannot be used. The message names it and says what would do."""

    status = Status.INVALID_CONFIG


class CheckpointError(FedHybridError):
    """A checkpoint that cannot be written or read. The message names the file."""

    status = Status.CHECKPOINT_ERROR


class QuorumLost(FedHybridError):
    """Too few sites answered, or one will not. The message names them."""

    status = Status.QUORUM_LOST


class CheckpointWarning(UserWarning):
    """The newest checkpoint could not be used, and the one before it was."""


def refuse_unknown_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make a misspelt or missing argument an `InvalidConfig` that lists the ones there are."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            known = [name for name in signature.parameters if name != "self"]
            unknown = next((name for name in kwargs if name not in known), "")
            near = difflib.get_close_matches(unknown, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            name = function.__qualname__.removesuffix(".__init__")
            raise InvalidConfig(f"{name}: {error}.{hint} Its arguments are: {', '.join(known)}.") from None
        return function(*args, **kwargs)

    return checked
