"""From shares to the masks that are left in a sum: those of the survivors' own, and those that they share with sites that dropped out."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from . import masks, shamir
from .agreement import Agreement
from .cards import Bundle, commitment
from .errors import Reason, SecureError
from .messages import Question

TRIES = 200  # subsets of the shares, before it is given up that enough of them are right


def masks_left(
    agreement: Agreement,
    question: Question,
    survivors: Sequence[int],
    shares: Mapping[int, Sequence[bytes | None]],
) -> np.ndarray:
    """What must be subtracted from the survivors' masked sum."""
    digest, size = question.digest, question.size
    bundles = {seat.site: seat.bundle for seat in question.seats if seat.bundle is not None}
    left = np.zeros(size, np.uint64)
    for k, (site, bundle) in enumerate(bundles.items()):
        here = {holder + 1: share for holder, given in shares.items() if (share := given[k]) is not None}
        name = agreement.names[site]
        if site in survivors:
            seed = _joined(here, agreement.threshold, name, functools.partial(_is_seed, bundle, agreement.tag))
            left = left + masks.own_mask(seed, digest, size)
            continue
        key = _joined(here, agreement.threshold, name, functools.partial(_is_key, bundle))
        for other in survivors:
            secret = masks.agreed(X25519PrivateKey.from_private_bytes(key), bundles[other].mask)
            mask = masks.pairwise(secret, digest, min(site, other), max(site, other), size)
            left = left + mask if other < site else left - mask
    return left


def _joined(shares: dict[int, bytes], threshold: int, name: str, right: Callable[[bytes], bool]) -> bytes:
    """The secret that fits what the site has published; a wrong share among enough right ones does no harm."""
    for holders in itertools.islice(itertools.combinations(sorted(shares), threshold), TRIES):
        try:
            secret = shamir.join({holder: shares[holder] for holder in holders}, threshold)
        except SecureError:
            continue
        if right(secret):
            return secret
    raise SecureError(
        Reason.UNVERIFIED,
        f"The shares of {name}'s masks do not give what {name} published: {name} dealt wrong ones, or sites returned wrong ones. "
        "The sum of this round is lost; ask another step.",
    )


def _is_seed(bundle: Bundle, tag: bytes, seed: bytes) -> bool:
    return commitment(seed, tag, bundle.card, bundle.number) == bundle.commitment


def _is_key(bundle: Bundle, key: bytes) -> bool:
    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw() == bundle.mask
