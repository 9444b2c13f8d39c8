"""The site's half of secure sums: reply(message) → message. It decides by itself what it gives away.

It answers a round once: asked the same again it sends the same bytes, asked otherwise it refuses. It opens at most one sum per step.
Of a site's bundle it gives out its share of the seed or of the mask key, never both. Persist state() before sending what reply returned.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from . import fixedpoint, masks
from .agreement import FEWEST, Agreement
from .cards import Card, Keys
from .changes import Changes
from .errors import Reason, SecureError
from .messages import MOST_BUNDLES, Kind, Mode, Question, refusal, survivors_digest
from .shamir import SHARE
from .wire import Reader, Writer, malformed, message, opened

Values = Callable[[Question], Sequence[np.ndarray]]
MOST_KEPT = 2**31


class SecureSite:
    """One site. `identity` is the key that it is registered by; `least`: sites that a sum must have, if more than was agreed on."""

    def __init__(
        self, agreement: Agreement, name: str, identity: EllipticCurvePrivateKey, *, least: int = FEWEST, state: bytes = b""
    ) -> None:
        self.agreement, self.name, self.me = agreement, name, agreement.number(name)
        self.least = max(least, agreement.least)
        self.refused: SecureError | None = None  # why the last message was refused, for the site's own log
        if state:
            self._restore(state)
            return
        self.keys = Keys.fresh(agreement, self.me, identity)
        self.cards: dict[int, Card] = {self.me: self.keys.card}
        self.unused: dict[int, tuple[bytes, bytes]] = {}  # my bundles: number → mask key and seed
        self.bundles_made = 0
        self.seen: dict[bytes, int] = {}  # card → number of its last bundle in a round that I answered
        self.enrolled = tuple(range(agreement.n))
        self.round, self.everyones_step, self.opened_step = 0, -1, -1
        self.asked, self.answer = b"", b""  # the last round's question and what I said
        self.survivors: tuple[int, ...] = ()  # of the last round, once I helped to open it
        self.changes = Changes()

    def reply(self, data: bytes, what: bytes = b"", values: Values | None = None) -> bytes:
        """The answer to one message; a refusal is an answer too.

        what     SHA-256 of the rest of the question that came with it, by this site's own reckoning
        values   gives the leaves of the vector, flat float64 arrays; called for a new round only, after every check
        """
        self.refused, round_ = None, 0
        try:
            kind, reader = opened(data, self.agreement.tag)
            if kind == Kind.HELLO:
                reader.end()
                return self._card()
            if kind == Kind.CARDS:
                return self._bundles(reader)
            if kind == Kind.ROUND:
                question = Question.read(reader, data, self.agreement)
                round_ = question.round
                return self._vector(data, question, what, values)
            if kind == Kind.UNMASK:
                round_ = reader.number("Q")
                return self._shares(round_, reader)
            raise malformed(f"kind {kind} is not for a site")
        except SecureError as error:
            self.refused = error
            return refusal(self.agreement.tag, self.me, round_, error)

    # Keys -----------------------------------------------------------------------------------------------------------------------

    def _card(self) -> bytes:
        to = message(Kind.CARD, self.agreement.tag)
        self.keys.card.write(to)
        return to.bytes()

    def _bundles(self, reader: Reader) -> bytes:
        cards = {card.site: card for card in (Card.read(reader, self.agreement, self.cards) for _ in range(reader.count(self.agreement.n)))}
        wanted = reader.number("B")
        reader.end()
        if cards.get(self.me) != self.keys.card:
            raise SecureError(Reason.UNKNOWN_CARD, f"The server has another card of {self.name} than this one: it has to say hello again.")
        if len(cards) < max(self.agreement.enough, self.least):
            raise SecureError(Reason.TOO_FEW, f"Cards of {len(cards)} sites came; {max(self.agreement.enough, self.least)} are needed.")
        self.cards |= cards
        to = message(Kind.BUNDLES, self.agreement.tag).number("H", self.me)
        self._write_bundles(to, wanted)
        body = to.bytes()
        return body + self.keys.sign(body)

    def _write_bundles(self, to: Writer, wanted: int) -> None:
        if wanted > MOST_BUNDLES:
            raise SecureError(Reason.NOT_ALLOWED, f"{wanted} bundles were asked for; at most {MOST_BUNDLES} are made at a time.")
        to.number("B", wanted)
        for _ in range(wanted):
            self.bundles_made += 1
            bundle, sealed, key, seed = self.keys.bundle(self.bundles_made, self.cards)
            self.unused[self.bundles_made] = key, seed
            bundle.write(to)
            to.raw(sealed)
        for number in sorted(self.unused)[: -4 * MOST_BUNDLES]:  # a server that asks and asks fills no disk
            del self.unused[number]

    # A round --------------------------------------------------------------------------------------------------------------------

    def _vector(self, data: bytes, question: Question, what: bytes, values: Values | None) -> bytes:
        if question.round == self.round:
            if data == self.asked:
                return self.answer
            raise SecureError(Reason.EQUIVOCATION, f"Round {question.round} was asked in two ways. {self.name} answers the first one only.")
        self._check(question, what)
        if values is None:
            raise malformed("a round came where none was expected")
        leaves = values(question)
        if [np.shape(leaf) for leaf in leaves] != [(size,) for size, _ in question.leaves]:
            raise SecureError(Reason.NOT_ALLOWED, f"{self.name} has values of other sizes than round {question.round} asks for.")
        n = self.agreement.n
        if question.mode == Mode.CHANGES:
            whole = self.changes.change(question.base, question.accepted, leaves, question.leaves, n)
        else:
            parts = zip(leaves, question.leaves, strict=True)
            whole = np.concatenate([fixedpoint.encode(leaf, scale, n, leaf=j) for j, (leaf, (_, scale)) in enumerate(parts)])
        words = self._masked(question, whole.view(np.uint64))

        to = message(Kind.VECTOR, self.agreement.tag).number("H", self.me).raw(self.keys.id).number("Q", question.round)
        to.raw(question.digest).number("I", len(words)).raw(words.astype("<u8").tobytes())
        self._write_bundles(to, question.refill if question.mode == Mode.CHANGES else 0)
        body = to.bytes()
        self._commit(data, question, whole)
        self.answer = body + self.keys.sign(body)
        return self.answer

    def _check(self, question: Question, what: bytes) -> None:
        cohort = tuple(seat.site for seat in question.seats)
        if question.round < self.round:
            raise SecureError(Reason.WRONG_ROUND, f"Round {question.round} is over: {self.name} has answered round {self.round}.")
        if question.what != what:
            raise SecureError(Reason.EQUIVOCATION, f"The secure part of round {question.round} belongs to another question.")
        if self.me not in cohort:
            raise SecureError(Reason.NOT_ALLOWED, f"{self.name} was asked in round {question.round}, but is not among its sites.")
        for seat in question.seats:
            card = self.cards.get(seat.site)
            if card is None or card.id(self.agreement.tag) != seat.card:
                name = self.agreement.names[seat.site]
                raise SecureError(Reason.UNKNOWN_CARD, f"Round {question.round} is with keys of {name} that are new here: send cards.")
        if question.mode == Mode.CHANGES:
            self._check_changes(question, cohort)
        else:
            self._check_everyone(question, cohort)

    def _check_everyone(self, question: Question, cohort: tuple[int, ...]) -> None:
        if len(cohort) < self.least:
            raise self._too_few(question.round, len(cohort), self.least)
        if question.step <= self.opened_step:
            raise self._summed(question)
        if cohort != self.enrolled:
            if not self.agreement.departures or not set(cohort) < set(self.enrolled):
                raise SecureError(Reason.NOT_ALLOWED, f"Round {question.round} is not with all sites; nobody may leave or return.")
            if question.step <= self.everyones_step:
                raise self._summed(question)

    def _check_changes(self, question: Question, cohort: tuple[int, ...]) -> None:
        fewest = max(self.agreement.enough, self.least)
        if len(cohort) < fewest:
            raise self._too_few(question.round, len(cohort), fewest)
        if not set(cohort) <= set(self.enrolled):
            raise SecureError(Reason.NOT_ALLOWED, f"Round {question.round} is with a site that has left.")
        if question.step <= max(self.opened_step, self.everyones_step):
            raise self._summed(question)
        for seat in question.seats:
            if seat.bundle is None:
                raise malformed("a round of changes without bundles")
            seat.bundle.verify(self.cards[seat.site], self.agreement.tag)
            if seat.bundle.number <= self.seen.get(seat.card, 0):
                name = self.agreement.names[seat.site]
                raise SecureError(Reason.REUSED, f"Round {question.round} is with masks of {name} that were in an earlier one.")
            if seat.site == self.me and seat.bundle.number not in self.unused:
                raise SecureError(Reason.REUSED, f"Round {question.round} is with masks that {self.name} has used or does not have.")

    def _masked(self, question: Question, words: np.ndarray) -> np.ndarray:
        digest, size = question.digest, len(words)
        seats = {seat.site: seat for seat in question.seats}
        mine = seats[self.me].bundle
        words = words.copy()
        key = None
        if mine is not None:
            raw, seed = self.unused[mine.number]
            key = X25519PrivateKey.from_private_bytes(raw)
            words += masks.own_mask(seed, digest, size)
        for other, seat in seats.items():
            if other != self.me:
                secret = self.keys.secret(self.cards[other]) if key is None or seat.bundle is None else masks.agreed(key, seat.bundle.mask)
                mask = masks.pairwise(secret, digest, min(self.me, other), max(self.me, other), size)
                words = words + mask if self.me < other else words - mask
        return words

    def _commit(self, data: bytes, question: Question, whole: np.ndarray) -> None:
        """Nothing of a round is remembered until it is certain to be answered."""
        if question.mode == Mode.BASE:
            self.changes.begin(question.round, whole, question.leaves)
        if question.mode == Mode.CHANGES:
            self.changes.sent(question.accepted, question.round, whole, question.leaves)
        if question.mode != Mode.CHANGES:
            self.enrolled, self.everyones_step = tuple(seat.site for seat in question.seats), question.step
        for seat in question.seats:
            if seat.bundle is not None:
                self.seen[seat.card] = seat.bundle.number
                if seat.site == self.me:
                    self.unused = {number: kept for number, kept in self.unused.items() if number > seat.bundle.number}
        self.round, self.asked, self.survivors = question.round, data, ()

    # Opening its sum ------------------------------------------------------------------------------------------------------------

    def _shares(self, round_: int, reader: Reader) -> bytes:
        digest, survivors = reader.raw(32), reader.numbers("H", self.agreement.n)
        question = self._question()
        if question is None or round_ != self.round or digest != question.digest or question.mode != Mode.CHANGES:
            raise SecureError(Reason.WRONG_ROUND, f"Round {round_} is to be opened, but {self.name} did not answer it, or not like this.")
        sealed = [reader.raw(2 * SHARE + 16) for _ in question.seats]
        reader.end()
        if survivors != tuple(sorted(set(survivors))) or not {self.me} <= set(survivors) <= {seat.site for seat in question.seats}:
            raise SecureError(Reason.NOT_ALLOWED, f"Round {round_} is to be opened for sites that are not those that were asked.")
        fewest = max(self.agreement.enough, self.least)
        if len(survivors) < fewest:
            raise self._too_few(round_, len(survivors), fewest)
        if question.step <= self.opened_step and survivors != self.survivors:
            raise self._summed(question)

        to = message(Kind.SHARES, self.agreement.tag).number("H", self.me).raw(self.keys.id).number("Q", round_)
        to.raw(digest).raw(survivors_digest(survivors)).number("I", len(sealed))
        for seat, box in zip(question.seats, sealed, strict=True):
            shares = None if seat.bundle is None else self.keys.unsealed(seat.bundle, self.cards[seat.site], box)
            to.number("B", shares is not None).raw(bytes(SHARE) if shares is None else shares[seat.site not in survivors])
        body = to.bytes()
        self.opened_step, self.survivors = question.step, survivors
        return body + self.keys.sign(body)

    def _question(self) -> Question | None:
        return Question.read(opened(self.asked, self.agreement.tag)[1], self.asked, self.agreement) if self.asked else None

    def _too_few(self, round_: int, there: int, fewest: int) -> SecureError:
        return SecureError(
            Reason.TOO_FEW, f"Round {round_} would be a sum of {there} sites; {self.name} takes part in sums of {fewest} or more."
        )

    def _summed(self, question: Question) -> SecureError:
        return SecureError(
            Reason.ALREADY_SUMMED,
            f"{self.name} has taken part in a sum of step {question.step} or a later one. Another, over other sites, would tell too much.",
        )

    # Between processes ----------------------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Everything that must survive this process. It holds secret keys: keep it in a file that nobody else can read, never restore an
        older copy of it (delete it instead), and never run two sites from one."""
        to = Writer().raw(self.agreement.tag).number("H", self.me)
        self.keys.card.write(to)
        to.raw(self.keys.exchange).raw(self.keys.signing).number("I", len(self.cards))
        for card in self.cards.values():
            card.write(to)
        to.number("I", self.bundles_made).number("I", len(self.unused))
        for number, (key, seed) in self.unused.items():
            to.number("I", number).raw(key).raw(seed)
        to.number("I", len(self.seen))
        for card_id, number in self.seen.items():
            to.raw(card_id).number("I", number)
        to.numbers("H", self.enrolled).number("Q", self.round).number("q", self.everyones_step).number("q", self.opened_step)
        to.block(self.asked).block(self.answer).numbers("H", self.survivors)
        self.changes.write(to)
        body = to.bytes()
        return body + hashlib.sha256(body).digest()

    def _restore(self, state: bytes) -> None:
        body, agreement = state[:-32], self.agreement
        reader = Reader(body)
        if hashlib.sha256(body).digest() != state[-32:] or reader.raw(32) != agreement.tag or reader.number("H") != self.me:
            raise SecureError(Reason.WRONG_RUN, f"The kept state is damaged, or not of {self.name} in this run. Delete it to begin anew.")
        card = Card.read(reader, agreement)
        self.keys = Keys(agreement, card, reader.raw(masks.KEY), reader.raw(masks.KEY))
        cards = [Card.read(reader, agreement) for _ in range(reader.count(agreement.n))]
        self.cards = {card.site: card for card in cards}
        self.bundles_made = reader.number("I")
        self.unused = {reader.number("I"): (reader.raw(masks.KEY), reader.raw(masks.KEY)) for _ in range(reader.count(MOST_KEPT))}
        self.seen = {reader.raw(16): reader.number("I") for _ in range(reader.count(MOST_KEPT))}
        self.enrolled, self.round = reader.numbers("H", agreement.n), reader.number("Q")
        self.everyones_step, self.opened_step = reader.number("q"), reader.number("q")
        self.asked, self.answer = reader.block(MOST_KEPT), reader.block(MOST_KEPT)
        self.survivors = reader.numbers("H", agreement.n)
        self.changes = Changes.read(reader)
        reader.end()
