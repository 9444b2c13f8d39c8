"""What secure sums need of the terms: keys, thresholds, limits. Server and site each work it out from their own copy."""

from collections.abc import Iterable

from ..status import InvalidConfig
from .protocol import Protocol
from .terms import Terms

try:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import (
        SECP384R1,
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
        generate_private_key,
    )
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    from ..secure.sums import Agreement, usual_threshold
except ImportError:
    raise InvalidConfig("[secure] sums = true needs the package cryptography: pip install fedhybrid[flower].") from None

SCALES = (-100, 160)  # the coarsest and the finest: from values of 1e48 down to 1e-48
MOST = 10**8  # numbers in an answer


def agreement_of(terms: Terms, run: str, epoch: int, names: Iterable[str]) -> Agreement:
    """Of these sites, in one epoch of a run. A threshold that was chosen for all of them is never lowered below the usual one for fewer."""
    names = set(names)
    usual, chosen = usual_threshold(len(names)), terms.secure.threshold
    if len(names) < terms.n:
        chosen = None if chosen is None else min(max(chosen, usual), len(names))
    roster = {name: public_key(name, text) for name, text in terms.sites if name in names}
    return Agreement(f"{run}-{epoch}", bytes.fromhex(terms.digest()), roster, chosen or usual, scales=SCALES, most=MOST)


def public_key(name: str, text: str) -> EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise InvalidConfig(f"[sites] {name}: is not a public key like 'ecdsa-sha2-nistp384 AAAA…', the content of the site's .pub file.")
    return key


def fresh_key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP384R1())


def public_text(key: EllipticCurvePrivateKey) -> str:
    """As it stands in federation.toml."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def refuse_what_no_sum_can_carry(terms: Terms, protocol: Protocol, method: str) -> None:
    if terms.rounds.largest_gradient is not None:
        raise InvalidConfig(
            "[rounds] largest_gradient looks at single replies, and secure sums hide them: leave it out, or set [secure] sums = false."
        )
    if not all(question.summable for question in protocol.questions):
        raise InvalidConfig(
            f"{method} sends codes that only the single message can be read from, and the server sees sums: "
            "choose another method or compressor, or set [secure] sums = false."
        )
