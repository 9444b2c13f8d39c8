"""A site's half of secure sums, on its disk: its keys and what it has given away, before anything leaves that follows from them."""

import hashlib
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from ..secure.sums import Agreement, Question, SecureError, SecureSite
from .agreed import split
from .envelope import Refused
from .kept import Kept

FILE = "sums"
Row = Callable[[], tuple[np.ndarray, tuple[int, ...]]]  # what the site would send in the open, and the sizes of its parts


class Vault:
    """One run's and epoch's."""

    def __init__(self, agreement: Agreement, name: str, identity: EllipticCurvePrivateKey, least: int, kept: Kept) -> None:
        self.agreement, self.kept = agreement, kept
        state = kept.load()
        whole = len(state) > 64 and hashlib.sha256(state[:-32]).digest() == state[-32:]
        if whole and state[:32] != agreement.tag:
            raise Refused("sites", "was asked for sums over other sites before, in the same epoch: their difference would tell too much.")
        try:
            self.site = SecureSite(agreement, name, identity, least=least, state=state if whole else b"")
        except SecureError:  # as good as lost: it begins anew, with new keys
            self.site = SecureSite(agreement, name, identity, least=least)

    def reply(self, data: bytes, what: bytes, round_: int, row: Row) -> np.ndarray:
        """The answer to a message of the masks' protocol, as bytes. `row` is called where it takes the site's numbers."""

        def values(question: Question) -> list[np.ndarray]:
            if question.step != round_:
                raise Refused("question", "is asked to sum another round than the question's; it opens one sum of each.")
            return split(*row())

        answer = self.site.reply(data, what, values)
        self.kept.save(self.site.state())
        return np.frombuffer(answer, np.uint8)
