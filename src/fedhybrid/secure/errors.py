"""Why something is refused: a closed list. A refusal travels as its number alone, so that it says nothing about anyone's data."""

from enum import IntEnum


class Reason(IntEnum):
    MALFORMED = 1  # not a message of this protocol, or sizes that do not fit
    WRONG_RUN = 2  # of another run, or agreed on otherwise
    WRONG_ROUND = 3  # of a round that is over, or was never asked
    EQUIVOCATION = 4  # one round, two different questions
    UNVERIFIED = 5  # a signature, a commitment or a share that is not what it claims
    UNKNOWN_CARD = 6  # a site's keys are not known here, or are newer: send the cards again
    REUSED = 7  # masks that have been used, or are not known any more
    TOO_FEW = 8  # so few sites that the sum would say too much about one of them
    ALREADY_SUMMED = 9  # this step is in a sum already; a second sum over other sites would give the difference away
    NOT_ALLOWED = 10  # outside the limits that the site's own contract sets
    NOT_FINITE = 11  # a value is NaN or infinite
    OVERFLOW = 12  # a value does not fit at this scale: ask with a smaller one
    STREAM_LOST = 13  # the site does not have the values that its changes refer to: begin again with a base round
    BELOW_THRESHOLD = 14  # too few shares have arrived to open the sum


class SecureError(ValueError):
    """Something was refused; `.reason` says what kind, the message says where and what to do. Values are never printed."""

    def __init__(self, reason: Reason, message: str, leaf: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.leaf = leaf  # for OVERFLOW and NOT_FINITE: which part of the vector
