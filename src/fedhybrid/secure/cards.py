"""A site's card: the public keys of its present state, signed by its identity. Its bundles: masks for one round each, signed by the card.

A bundle is a fresh X25519 key for pairwise masks and a seed for the site's own mask. The secrets of both are shared t of n among all
sites; every share travels through the server, encrypted for its holder.
"""

import hashlib
import secrets
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from . import shamir
from .agreement import SIGNATURE, Agreement, signed, verify
from .errors import Reason, SecureError
from .masks import KEY, agreed, derived
from .wire import Reader, Writer

ID, SERIAL, ED = 16, 16, 64
SEALED = 2 * shamir.SHARE + 16  # a share of the seed, one of the key, and the tag of the cipher
ONCE = bytes(12)  # the nonce: every sealing key is used once


class Card(NamedTuple):
    site: int
    exchange: bytes
    signing: bytes
    serial: bytes
    signature: bytes

    def body(self, tag: bytes) -> bytes:
        return b"fedhybrid card" + tag + self.site.to_bytes(2, "little") + self.exchange + self.signing + self.serial

    def id(self, tag: bytes) -> bytes:
        return hashlib.sha256(self.body(tag)).digest()[:ID]

    def write(self, to: Writer) -> None:
        to.number("H", self.site).raw(self.exchange).raw(self.signing).raw(self.serial).raw(self.signature)

    @staticmethod
    def read(reader: Reader, agreement: Agreement, known: "dict[int, Card] | None" = None) -> "Card":
        card = Card(reader.number("H"), reader.raw(KEY), reader.raw(KEY), reader.raw(SERIAL), reader.raw(SIGNATURE))
        if card.site >= agreement.n:
            raise SecureError(Reason.MALFORMED, f"A card claims to be of site number {card.site} of {agreement.n}.")
        if known is None or known.get(card.site) != card:
            name = agreement.names[card.site]
            verify(agreement.roster[name], card.signature, card.body(agreement.tag), name)
        return card


class Bundle(NamedTuple):
    """What everyone may see of a bundle."""

    site: int
    card: bytes
    number: int
    mask: bytes
    commitment: bytes  # to the seed, so that a wrong share is noticed
    signature: bytes

    def body(self, tag: bytes) -> bytes:
        head = b"fedhybrid bundle" + tag + self.site.to_bytes(2, "little") + self.card
        return head + self.number.to_bytes(4, "little") + self.mask + self.commitment

    def write(self, to: Writer) -> None:
        to.number("H", self.site).raw(self.card).number("I", self.number).raw(self.mask).raw(self.commitment).raw(self.signature)

    @staticmethod
    def read(reader: Reader) -> "Bundle":
        return Bundle(reader.number("H"), reader.raw(ID), reader.number("I"), reader.raw(KEY), reader.raw(32), reader.raw(ED))

    def verify(self, card: Card, tag: bytes) -> None:
        if self.site != card.site or self.card != card.id(tag):
            raise SecureError(Reason.UNKNOWN_CARD, f"A bundle of site number {self.site} belongs to a card that is not known here.")
        verify_by_card(card, self.signature, self.body(tag))


def verify_by_card(card: Card, signature: bytes, body: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(card.signing).verify(signature, body)
    except (InvalidSignature, ValueError):
        raise SecureError(
            Reason.UNVERIFIED, f"Something said to be from site number {card.site} is not signed by it. It was not used."
        ) from None


def commitment(seed: bytes, tag: bytes, card: bytes, number: int) -> bytes:
    return hashlib.sha256(b"fedhybrid own mask" + tag + card + number.to_bytes(4, "little") + seed).digest()


class Keys:
    """A site's own half of a card, and the secrets that it shares with others by it."""

    def __init__(self, agreement: Agreement, card: Card, exchange: bytes, signing: bytes) -> None:
        self.agreement, self.card = agreement, card
        self.id = card.id(agreement.tag)
        self.exchange, self.signing = exchange, signing
        self._secrets: dict[bytes, bytes] = {}

    @classmethod
    def fresh(cls, agreement: Agreement, site: int, identity: EllipticCurvePrivateKey) -> "Keys":
        exchange, signing = X25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        public = exchange.public_key().public_bytes_raw(), signing.public_key().public_bytes_raw()
        blank = Card(site, *public, secrets.token_bytes(SERIAL), b"")
        card = blank._replace(signature=signed(identity, blank.body(agreement.tag)))
        return cls(agreement, card, exchange.private_bytes_raw(), signing.private_bytes_raw())

    def sign(self, body: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.signing).sign(body)

    def secret(self, other: Card) -> bytes:
        """What this site and the other one share for as long as both keep their cards."""
        if other.exchange not in self._secrets:
            self._secrets[other.exchange] = agreed(X25519PrivateKey.from_private_bytes(self.exchange), other.exchange)
        return self._secrets[other.exchange]

    def bundle(self, number: int, cards: dict[int, Card]) -> tuple[Bundle, bytes, bytes, bytes]:
        """A new bundle, the sealed shares of it (for all n sites, one after the other), its mask key, and its seed."""
        agreement, tag = self.agreement, self.agreement.tag
        mask, seed = X25519PrivateKey.generate(), secrets.token_bytes(KEY)
        key = mask.private_bytes_raw()
        blank = Bundle(self.card.site, self.id, number, mask.public_key().public_bytes_raw(), commitment(seed, tag, self.id, number), b"")
        bundle = blank._replace(signature=self.sign(blank.body(tag)))
        of_seed = shamir.split(seed, agreement.threshold, agreement.n)
        of_key = shamir.split(key, agreement.threshold, agreement.n)
        sealed = [self._sealed(bundle, cards.get(j), of_seed[j] + of_key[j]) for j in range(agreement.n)]
        return bundle, b"".join(sealed), key, seed

    def _sealed(self, bundle: Bundle, holder: Card | None, shares: bytes) -> bytes:
        if holder is None:  # it has not introduced itself yet; the others' shares will do
            return bytes(SEALED)
        key = self._sealing_key(bundle, self.id, holder, holder)
        return ChaCha20Poly1305(key).encrypt(ONCE, shares, None)

    def unsealed(self, bundle: Bundle, owner: Card, sealed: bytes) -> tuple[bytes, bytes] | None:
        """This site's shares of the seed and of the mask key; None where they are not for its present card."""
        try:
            shares = ChaCha20Poly1305(self._sealing_key(bundle, bundle.card, self.card, owner)).decrypt(ONCE, sealed, None)
        except InvalidTag:
            return None
        return shares[: shamir.SHARE], shares[shamir.SHARE :]

    def _sealing_key(self, bundle: Bundle, owner: bytes, holder: Card, other: Card) -> bytes:
        # The mask key is fresh in every bundle, so no sealing key comes twice, even if a number did.
        tag = self.agreement.tag
        return derived(self.secret(other), b"share", tag, owner, bundle.number.to_bytes(4, "little"), bundle.mask, holder.id(tag))
