"""The server's cupboard: every site's card, and the bundles that it has made ahead."""

from .agreement import Agreement
from .cards import ED, ID, SEALED, Bundle, Card, verify_by_card
from .errors import Reason, SecureError
from .messages import MOST_BUNDLES
from .wire import Reader, Writer, malformed

MOST_KEPT = 4 * MOST_BUNDLES


class Registry:
    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.cards: dict[int, Card] = {}
        self.stock: dict[int, list[tuple[Bundle, bytes]]] = {}  # with the sealed shares, for all sites one after the other
        self.newest: dict[bytes, int] = {}  # card → number of its newest bundle

    def id(self, site: int) -> bytes:
        return self.cards[site].id(self.agreement.tag)

    def verify(self, site: int, signature: bytes, body: bytes) -> None:
        verify_by_card(self.cards[site], signature, body)

    def receive_card(self, site: int, reader: Reader) -> bool:
        """Whether it is a new one. A new card means that the site has lost what it knew: its bundles are worth nothing now."""
        card = Card.read(reader, self.agreement, self.cards)
        reader.end()
        if card.site != site:
            raise SecureError(Reason.UNVERIFIED, f"{self.agreement.names[site]} sent the card of another site. It was not used.")
        new = self.cards.get(site) != card
        if new:
            self.cards[site], self.stock[site] = card, []
        return new

    def receive_bundles(self, site: int, data: bytes, reader: Reader) -> bool:
        """Whether there was a new one among them."""
        if site not in self.cards:
            raise SecureError(Reason.UNKNOWN_CARD, f"{self.agreement.names[site]} sent bundles before its card: send hello().")
        self.verify(site, data[-ED:], data[:-ED])
        return self.store(site, self.read_bundles(site, reader))

    def read_bundles(self, site: int, reader: Reader) -> list[tuple[Bundle, bytes]]:
        """Bundles at the end of a signed message."""
        count = reader.number("B")
        if count > MOST_BUNDLES:
            raise malformed(f"{count} bundles")
        found = [(Bundle.read(reader), reader.raw(SEALED * self.agreement.n)) for _ in range(count)]
        reader.raw(ED)
        reader.end()
        for bundle, _ in found:
            bundle.verify(self.cards[site], self.agreement.tag)
        return found

    def store(self, site: int, bundles: list[tuple[Bundle, bytes]]) -> bool:
        """Whether there was a new one among them."""
        new = 0
        for bundle, sealed in bundles:
            if bundle.number > self.newest.get(bundle.card, 0):
                self.newest[bundle.card] = bundle.number
                self.stock[site] = [*self.stock[site], (bundle, sealed)][-MOST_KEPT:]
                new += 1
        return new > 0

    def write(self, to: Writer) -> None:
        to.number("I", len(self.cards))
        for site, card in self.cards.items():
            card.write(to)
            to.number("I", len(self.stock[site]))
            for bundle, sealed in self.stock[site]:
                bundle.write(to)
                to.raw(sealed)
        to.number("I", len(self.newest))
        for card_id, number in self.newest.items():
            to.raw(card_id).number("I", number)

    @staticmethod
    def read(reader: Reader, agreement: Agreement) -> "Registry":
        registry = Registry(agreement)
        for _ in range(reader.count(agreement.n)):
            card = Card.read(reader, agreement)
            registry.cards[card.site] = card
            count = reader.count(MOST_KEPT)
            registry.stock[card.site] = [(Bundle.read(reader), reader.raw(SEALED * agreement.n)) for _ in range(count)]
        registry.newest = {reader.raw(ID): reader.number("I") for _ in range(reader.count(2**31))}
        return registry
