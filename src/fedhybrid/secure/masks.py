"""Masks that cancel in the sum: for every pair of sites one stream of words, which one adds and the other subtracts, mod 2⁶⁴.

X25519 → HKDF-SHA256 → ChaCha20, of the package cryptography. Keys and seeds come from the operating system; no key is used for two
streams, because what a stream is for goes into its derivation.
"""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .errors import Reason, SecureError

KEY = 32


def agreed(own: X25519PrivateKey, other: bytes) -> bytes:
    """The secret that two sites share, from one's private and the other's public key."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # a point of small order: the "secret" would be zero
        raise SecureError(Reason.UNVERIFIED, "A public key is not usable: it would make a secret that everyone knows.") from None


def derived(secret: bytes, *purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose only."""
    info = b"".join(len(part).to_bytes(4, "little") + part for part in purpose)
    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=info).derive(secret)


def stream(key: bytes, size: int) -> np.ndarray:
    """`size` words of 64 bits."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * size)), dtype="<u8").astype(np.uint64, copy=False)


def pairwise(secret: bytes, digest: bytes, first: int, second: int, size: int) -> np.ndarray:
    """What the site that comes first adds and the second one subtracts, in the round with this digest."""
    pair = first.to_bytes(2, "little") + second.to_bytes(2, "little")
    return stream(derived(secret, b"pairwise mask", digest, pair), size)


def own_mask(seed: bytes, digest: bytes, size: int) -> np.ndarray:
    """What a site adds for itself alone, so that its vector stays hidden when it comes after others have given up its pairwise key."""
    return stream(derived(seed, b"own mask", digest), size)
