"""Shamir's secret sharing: a polynomial of degree t − 1 over a prime field, whose value at 0 is the secret and at 1 … n the shares.

Any t shares give the secret; t − 1 say nothing at all about it. A. Shamir, 1979.
"""

import secrets
from collections.abc import Mapping

from .errors import Reason, SecureError

PRIME = 2**256 + 297  # the smallest prime above 2²⁵⁶: any 32 bytes are an element
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, threshold: int, n: int) -> list[bytes]:
    """n shares, for holders 1 … n, of which any `threshold` suffice."""
    if len(secret) != SECRET or not 1 <= threshold <= n:
        raise ValueError(f"A secret of {SECRET} bytes and a threshold from 1 to n are needed, not {len(secret)} bytes, {threshold} of {n}.")
    coefficients = [int.from_bytes(secret, "little"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_value(coefficients, holder).to_bytes(SHARE, "little") for holder in range(1, n + 1)]


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the shares of at least `threshold` holders; the first ones are used."""
    if len(shares) < threshold:
        raise SecureError(Reason.BELOW_THRESHOLD, f"{len(shares)} shares have arrived, {threshold} are needed. Nothing was opened.")
    holders = tuple(sorted(shares)[:threshold])
    values = [int.from_bytes(shares[holder], "little") for holder in holders]
    if any(len(shares[holder]) != SHARE or value >= PRIME for holder, value in zip(holders, values, strict=True)):
        raise SecureError(Reason.MALFORMED, "A share is not an element of the field. It was not used.")
    secret = sum(weight * value for weight, value in zip(weights(holders), values, strict=True)) % PRIME
    if secret >> (8 * SECRET):
        raise SecureError(Reason.UNVERIFIED, "The shares do not belong together: one of their holders sent another.")
    return secret.to_bytes(SECRET, "little")


def weights(holders: tuple[int, ...]) -> list[int]:
    """Lagrange's weights at 0."""
    found = []
    for i in holders:
        above, below = 1, 1
        for j in holders:
            if j != i:
                above, below = above * j % PRIME, below * (j - i) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def _value(coefficients: list[int], at: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * at + coefficient) % PRIME
    return value
