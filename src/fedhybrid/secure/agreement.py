"""What all sites have agreed on before the first secure sum, and what a site signs with the key that it is registered by."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ..status import InvalidConfig
from .errors import Reason, SecureError
from .fixedpoint import HIGHEST, LOWEST

FEWEST = 3  # with two sites, each knows the other's vector from the sum
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
SIGNATURE = 96
MOST_SITES = 4096


def usual_threshold(n: int) -> int:
    """More than two thirds: with up to n/3 sites on its side, even a server that tells every site something else opens one sum only."""
    return 2 * n // 3 + 1


def fewest_summed(n: int, threshold: int, accomplices: int = 0) -> int:
    """The fewest sites whose sum a server can open that tells every site of another set of survivors.

    Each site that it wants out takes `threshold` shares of its key. Every honest site believes in `threshold` survivors or more, so that
    it gives such shares for n − threshold sites at most; accomplices give all.
    """
    if 2 * threshold <= n + accomplices:
        return 1
    return n - (n - accomplices) * (n - threshold) // (threshold - accomplices)


@dataclass(frozen=True)
class Agreement:
    """The terms of secure sums. Server and sites make it from the same file; messages under other terms are refused.

    run         name of the run
    contract    SHA-256 of everything else that was agreed on
    roster      every site's name and public key (EC P-384): where the server cannot put itself in between
    threshold   shares that open a sum; more than half of the sites, so that two different sums of one step cannot be opened
    least       sites that a sum must consist of
    scales      the coarsest and the finest scale exponent that the server may ask for
    most        numbers that a vector may have
    departures  whether sums over everyone may go on without a site that has left for good
    """

    run: str
    contract: bytes
    roster: Mapping[str, ec.EllipticCurvePublicKey]
    threshold: int
    least: int = FEWEST
    scales: tuple[int, int] = (0, 120)
    most: int = 10**6
    departures: bool = False

    def __post_init__(self) -> None:
        n = len(self.roster)
        for name in (self.run, *self.roster):
            if not NAME.fullmatch(name):
                raise InvalidConfig(f"secure sums: the name {name!r} must be 1 to 64 letters, digits, '_' or '-'.")
        if not FEWEST <= n <= MOST_SITES:
            raise InvalidConfig(
                f"secure sums need {FEWEST} to {MOST_SITES} sites, not {n}: with two, each could compute the other's vector."
            )
        if not n // 2 < self.threshold <= n:
            raise InvalidConfig(f"secure sums: the threshold must be from {n // 2 + 1} to {n} for {n} sites, not {self.threshold}.")
        if fewest_summed(n, self.threshold) < FEWEST:
            raise InvalidConfig(
                f"secure sums: with the threshold {self.threshold} of {n} sites, a server that tells each something else could open "
                f"a sum of two. Use {usual_threshold(n)}, which also stands up to accomplices."
            )
        if not FEWEST <= self.least <= n:
            raise InvalidConfig(f"secure sums: the fewest sites in a sum must be from {FEWEST} to {n}, not {self.least}.")
        if not LOWEST <= self.scales[0] <= self.scales[1] <= HIGHEST:
            raise InvalidConfig(f"secure sums: the scales must be from {LOWEST} to {HIGHEST}, the coarsest first, not {self.scales}.")
        if len(self.contract) != 32 or not 1 <= self.most <= 10**9:
            raise InvalidConfig("secure sums: the contract is a SHA-256 digest, and a vector has 1 to 10⁹ numbers.")
        if any(not isinstance(key.curve, ec.SECP384R1) for key in self.roster.values()):
            raise InvalidConfig("secure sums: the sites' identity keys must be on the curve P-384.")

    @property
    def n(self) -> int:
        return len(self.roster)

    @property
    def enough(self) -> int:
        """The fewest survivors of a sum in which sites may be missing."""
        return max(self.threshold, self.least)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """In the order in which sites are numbered."""
        return tuple(sorted(self.roster))

    @cached_property
    def tag(self) -> bytes:
        """A digest of all of it, at the beginning of every message and in every key."""
        head = f"fedhybrid secure sums 1\n{self.run}\n{self.threshold} {self.least} {self.scales} {self.most} {self.departures}\n"
        keys = (self.roster[name].public_bytes(Encoding.X962, PublicFormat.UncompressedPoint) for name in self.names)
        members = b"".join(f"{name}\n".encode() + key for name, key in zip(self.names, keys, strict=True))
        return hashlib.sha256(head.encode() + self.contract + members).digest()

    def number(self, name: str) -> int:
        if name not in self.roster:
            raise InvalidConfig(f"secure sums: {name!r} is not among the {self.n} sites that were agreed on.")
        return self.names.index(name)


def signed(identity: ec.EllipticCurvePrivateKey, body: bytes) -> bytes:
    r, s = decode_dss_signature(identity.sign(body, ec.ECDSA(SHA384())))
    return r.to_bytes(48, "big") + s.to_bytes(48, "big")


def verify(key: ec.EllipticCurvePublicKey, signature: bytes, body: bytes, name: str) -> None:
    der = encode_dss_signature(int.from_bytes(signature[:48], "big"), int.from_bytes(signature[48:], "big"))
    try:
        key.verify(der, body, ec.ECDSA(SHA384()))
    except InvalidSignature:
        raise SecureError(Reason.UNVERIFIED, f"The keys said to be those of {name} are not signed by {name}. They were not used.") from None
