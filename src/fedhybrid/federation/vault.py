"""A site's half of secure sums, on its disk: its keys and what it has given away, before anything leaves that follows from them."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from ..secure import sums
from ..secure.sums import SecureError, SecureSite
from ..status import InvalidConfig
from .agreed import agreement_of, public_key
from .envelope import Question, Refused
from .kept import Kept
from .keys import private_key
from .terms import Terms

FILE = "sums"


def identified(terms: Terms, name: str, path: Path | None, identity: EllipticCurvePrivateKey | None) -> EllipticCurvePrivateKey:
    """The private key of the public one that everyone has agreed on."""
    if identity is None:
        if path is None:
            raise InvalidConfig(f"{name}: secure sums need the site's private key: key = … in its own file.")
        identity = private_key(path)
    if identity.public_key() != public_key(name, dict(terms.sites)[name]):
        raise InvalidConfig(f"{name}: its private key is not that of the public key in federation.toml.")
    return identity


class Vault:
    """One run's and epoch's."""

    def __init__(self, terms: Terms, first: Question, name: str, identity: EllipticCurvePrivateKey, least: int, folder: Path) -> None:
        agreement = agreement_of(terms, first.run, first.epoch, first.sites)
        self.names, self.kept = agreement.names, Kept(folder / FILE)
        state = self.kept.load()
        whole = len(state) > 64 and hashlib.sha256(state[:-32]).digest() == state[-32:]
        if whole and state[:32] != agreement.tag:
            raise self._other_sites()
        least = max(least, agreement.least)
        try:
            self.site = SecureSite(agreement, name, identity, least=least, state=state if whole else b"")
        except SecureError:  # as good as lost: it begins anew, with new keys
            self.site = SecureSite(agreement, name, identity, least=least)

    def reply(
        self,
        message: bytes,
        question: Question,
        asked: str,
        answer: Callable[[Question, str], np.ndarray],
        sizes: Callable[[Question], tuple[int, ...]],
    ) -> np.ndarray:
        """The answer to a message of the masks' protocol, as bytes. `answer` gives the site's numbers, where they are to go into a sum."""
        if tuple(sorted(question.sites)) != self.names:
            raise self._other_sites()

        def values(secure: sums.Question) -> list[np.ndarray]:
            if question.kind not in ("census", "ask"):
                raise Refused("question", "is of a kind that has no sum.")
            if secure.step != question.round:
                raise Refused("question", "is asked to sum another round than the question's; it opens one sum of each.")
            row = answer(question, asked)
            return [np.ascontiguousarray(part) for part in np.split(row, np.cumsum(sizes(question))[:-1])]

        reply = self.site.reply(message, bytes.fromhex(asked), values)
        self.kept.save(self.site.state())
        return np.frombuffer(reply, np.uint8)

    @staticmethod
    def _other_sites() -> Refused:
        return Refused("sites", "was asked for sums over other sites before, in the same epoch: their difference would tell too much.")
