"""What a site and the server refuse, from an honest network, a lying server, and somebody in between."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from parties import CONTRACT, WHAT, Party, agreement, identity

from fedhybrid.secure.cards import SEALED, Keys
from fedhybrid.secure.messages import Kind, Mode, Question
from fedhybrid.secure.sums import Agreement, Reason, SecureError, SecureServer, SecureSite, fewest_summed, usual_threshold
from fedhybrid.secure.wire import message, opened
from fedhybrid.status import InvalidConfig

LEAVES = [(2, 40)]


@pytest.fixture
def party():
    party = Party(6, 4, bundles=4)
    party.values = {name: [np.array([1.0, k])] for k, name in enumerate(party.names)}
    party.everyone(1, LEAVES, Mode.BASE)
    return party


def refused(party, name, data, what=WHAT):
    """The reason for which a site refuses a message, as the server learns it."""
    before = party.sites[name].state()
    answer = party.say(name, data, what)
    assert party.sites[name].state() == before  # a refusal leaves no trace
    assert answer[4] == Kind.REFUSED
    return party.server.receive(name, answer).refused


def altered(party, name, **changes):
    """The open round's question, with some fields as a lying server would have them."""
    question = party.server.open.question._replace(**changes)
    question = question._replace(shared=question.sealed(party.agreement.tag))
    return question.to_site(party.server.total.accepted.get(party.agreement.number(name), 0), 0)


def unmask(party, name, survivors, round_=None):
    """The message that opens the last round for these survivors, whatever the server's state says."""
    open_round, site = party.server.open, party.agreement.number(name)
    to = message(Kind.UNMASK, party.agreement.tag).number("Q", round_ or open_round.question.round).raw(open_round.question.digest)
    to.numbers("H", [party.agreement.number(each) for each in survivors])
    for seat in open_round.question.seats:
        to.raw(open_round.sealed[seat.site][SEALED * site : SEALED * (site + 1)])
    return to.bytes()


# Agreements ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_sites_have_no_secure_sum(n):
    with pytest.raises(InvalidConfig, match="with two, each could compute"):
        agreement(n, 2)


def test_no_lie_about_who_survived_opens_the_sum_of_two():
    """Every allowed threshold against the best lie there is: as many as possible left out, by telling each site something else."""
    for n in range(3, 30):
        for threshold in range(n // 2 + 1, n + 1):
            votes = n * (n - threshold)  # each site gives shares of the keys of at most so many others
            out = max(k for k in range(n + 1) if k * threshold <= votes)
            assert fewest_summed(n, threshold) == n - out
            if n - out < 3:
                with pytest.raises(InvalidConfig, match="could open a sum of two"):
                    agreement(n, threshold)
        for accomplices in range((n + 2) // 3):
            assert fewest_summed(n, usual_threshold(n), accomplices) - accomplices >= 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 3},
        {"threshold": 7},
        {"least": 2},
        {"least": 7},
        {"scales": (50, 40)},
        {"scales": (0, 500)},
        {"contract": b"short"},
        {"run": "../x"},
        {"run": "ü"},
        {"most": 0},
        {"roster": {"a": 1, "b/c": 2, "d": 3}},
        {"roster": {name: ec.generate_private_key(ec.SECP256R1()).public_key() for name in "abcdef"}},
    ],
)
def test_an_agreement_that_would_not_protect_is_refused(wrong):
    terms = {"run": "run-1", "contract": CONTRACT, "roster": dict(agreement(6).roster), "threshold": 4}
    with pytest.raises(InvalidConfig, match="secure sums"):
        Agreement(**(terms | wrong))


def test_messages_of_another_run_contract_or_roster_are_refused(party):
    roster = dict(party.agreement.roster)
    for other in (
        Agreement("run-2", CONTRACT, roster, 4),
        Agreement("run-1", hashlib.sha256(b"").digest(), roster, 4),
        Agreement("run-1", CONTRACT, roster | {"site-00": identity(99).public_key()}, 4),
        Agreement("run-1", CONTRACT, roster, 5),
    ):
        assert refused(party, "site-00", SecureServer(other).hello()["site-00"]) == Reason.WRONG_RUN
        with pytest.raises(SecureError) as caught:
            party.server.receive("site-00", SecureSite(other, "site-00", identity(0)).reply(SecureServer(other).hello()["site-00"]))
        assert caught.value.reason == Reason.WRONG_RUN


# A server in the middle ---------------------------------------------------------------------------------------------------------


def test_the_server_cannot_put_its_own_keys_in_a_sites_place(party):
    forged = Keys.fresh(party.agreement, 5, identity(99)).card
    party.server.registry.cards[5] = forged
    assert refused(party, "site-00", party.server.introduce()["site-00"]) == Reason.UNVERIFIED
    party.server.ask(2, WHAT, LEAVES)
    assert refused(party, "site-00", party.server.pending()["site-00"]) == Reason.UNKNOWN_CARD


def test_the_server_cannot_put_its_own_masks_in_a_sites_place(party):
    party.server.ask(2, WHAT, LEAVES, Mode.CHANGES)
    seats = list(party.server.open.question.seats)
    keys = party.sites["site-04"].keys
    for changed in (
        seats[5].bundle._replace(mask=bytes(31) + b"\1"),
        seats[5].bundle._replace(number=99),
        seats[5].bundle._replace(commitment=bytes(32)),
        keys.bundle(99, {})[0]._replace(site=5),
        keys.bundle(99, {})[0]._replace(site=5, card=seats[5].card),
    ):
        forged = (*seats[:5], seats[5]._replace(bundle=changed, card=changed.card))
        assert refused(party, "site-00", altered(party, "site-00", seats=forged)) in (Reason.UNVERIFIED, Reason.UNKNOWN_CARD)


def test_a_key_that_makes_a_secret_everyone_knows_is_refused(party):
    party.server.ask(2, WHAT, LEAVES, Mode.CHANGES)
    seats, traitor = list(party.server.open.question.seats), party.sites["site-05"].keys
    weak = seats[5].bundle._replace(mask=bytes(32))
    weak = weak._replace(signature=traitor.sign(weak.body(party.agreement.tag)))
    forged = (*seats[:5], seats[5]._replace(bundle=weak))
    assert refused(party, "site-00", altered(party, "site-00", seats=forged)) == Reason.UNVERIFIED


def test_sites_that_were_told_different_things_have_masks_that_do_not_cancel(party):
    party.server.ask(2, WHAT, LEAVES, Mode.SUM)
    questions = party.server.pending()
    other = hashlib.sha256(b"another question").digest()
    answer = party.say("site-00", altered(party, "site-00", what=other), other)
    with pytest.raises(SecureError, match="not open"):
        party.server.receive("site-00", answer)
    party.deliver(questions, lost=["site-00"])
    words = np.frombuffer(answer[4 + 1 + 32 + 2 + 16 + 8 + 32 + 4 :][:16], "<u8")
    whole = (party.server.open.whole + words).view(np.int64)
    assert np.all(np.abs(whole) > 2**50)  # nothing like 6 and 15 at scale 2^40


# Rounds that would say too much -------------------------------------------------------------------------------------------------


def test_a_round_with_too_few_sites_is_refused(party):
    party.server.ask(2, WHAT, LEAVES, Mode.CHANGES)
    seats = party.server.open.question.seats
    for count in (0, 1, 2, 3):
        reason = Reason.NOT_ALLOWED if count == 0 else Reason.TOO_FEW
        assert refused(party, "site-00", altered(party, "site-00", seats=seats[:count])) == reason
    party.server.ask(2, WHAT, LEAVES, Mode.SUM)
    for count in (1, 2):
        few = party.server.open.question.seats[:count]
        assert refused(party, "site-00", altered(party, "site-00", seats=few)) == Reason.TOO_FEW


def test_a_sum_over_everyone_is_not_taken_over_some(party):
    party.server.ask(2, WHAT, LEAVES, Mode.SUM)
    most = party.server.open.question.seats[:5]
    assert refused(party, "site-00", altered(party, "site-00", seats=most)) == Reason.NOT_ALLOWED


def test_a_site_can_ask_for_more_company_than_was_agreed_on():
    party = Party(6, 4)
    party.sites["site-00"].least = 6
    party.values = {name: [np.ones(2)] for name in party.names}
    party.everyone(1, LEAVES, Mode.BASE)
    party.server.ask(2, WHAT, LEAVES, Mode.CHANGES, cohort=party.names[:5])
    assert refused(party, "site-00", party.server.pending()["site-00"]) == Reason.TOO_FEW


def test_a_sum_is_opened_for_enough_of_those_who_were_asked_and_for_nobody_else(party):
    party.deliver(party.server.ask(2, WHAT, LEAVES, Mode.CHANGES, cohort=party.names[:5]))
    for survivors in ([], ["site-00"], party.names[:3]):
        assert refused(party, "site-00", unmask(party, "site-00", survivors)) in (Reason.TOO_FEW, Reason.NOT_ALLOWED)
    assert refused(party, "site-00", unmask(party, "site-00", party.names)) == Reason.NOT_ALLOWED  # site-05 was not asked
    assert refused(party, "site-00", unmask(party, "site-00", party.names[1:5])) == Reason.NOT_ALLOWED  # nor does it help without itself
    assert refused(party, "site-00", unmask(party, "site-00", ["site-00"] * 4)) == Reason.NOT_ALLOWED
    assert refused(party, "site-00", unmask(party, "site-00", party.names[:5], round_=1)) == Reason.WRONG_ROUND


def test_a_site_gives_one_share_of_another_and_never_both(party):
    party.deliver(party.server.ask(2, WHAT, LEAVES, Mode.CHANGES))
    first = party.say("site-00", unmask(party, "site-00", party.names))
    assert first[4] == Kind.SHARES
    for k in range(1, 6):
        fewer = [name for name in party.names if name != party.names[k]]
        assert refused(party, "site-00", unmask(party, "site-00", fewer)) == Reason.ALREADY_SUMMED
    assert party.say("site-00", unmask(party, "site-00", party.names)) == first
    party.restart("site-00")
    assert refused(party, "site-00", unmask(party, "site-00", party.names[:5])) == Reason.ALREADY_SUMMED


def test_a_step_is_summed_once_also_when_the_cohort_changes_by_one(party):
    party.changes(2, LEAVES)
    for step in (0, 1, 2):
        party.server.ask(step, WHAT, LEAVES, Mode.CHANGES, cohort=party.names[:5])
        assert refused(party, "site-00", party.server.pending()["site-00"]) == Reason.ALREADY_SUMMED


def test_masks_are_used_in_one_round_only(party):
    party.server.ask(2, WHAT, LEAVES, Mode.CHANGES)
    seats = party.server.open.question.seats
    party.deliver(party.server.pending())
    party.server.ask(3, WHAT, LEAVES, Mode.CHANGES)
    fresh = party.server.open.question.seats
    for old in (0, 3):  # its own, another one's
        mixed = tuple(seats[k] if k == old else fresh[k] for k in range(6))
        assert refused(party, "site-00", altered(party, "site-00", seats=mixed)) == Reason.REUSED


def test_going_back_to_an_older_card_does_not_make_its_masks_new(party):
    party.server.ask(2, WHAT, LEAVES, Mode.CHANGES)
    old_card, old_seats = party.server.registry.cards[5], party.server.open.question.seats
    party.deliver(party.server.pending())
    party.server.abandon()
    party.sites["site-05"] = SecureSite(party.agreement, "site-05", identity(5))
    party.deliver(party.server.hello(["site-05"]))
    party.deliver(party.server.introduce(2))
    party.server.registry.cards[5] = old_card
    party.say("site-00", party.server.introduce()["site-00"])
    party.server.ask(3, WHAT, LEAVES, Mode.CHANGES, cohort=party.names[:5])
    mixed = (*party.server.open.question.seats, old_seats[5])
    assert refused(party, "site-00", altered(party, "site-00", seats=mixed)) == Reason.REUSED


# Repeats, replays and tampering -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.SUM, Mode.CHANGES])
def test_a_repeated_question_gets_the_same_bytes_and_another_one_of_the_round_gets_none(party, mode):
    party.server.ask(2, WHAT, LEAVES, mode)
    question = party.server.pending()["site-00"]
    first = party.say("site-00", question)
    party.values["site-00"] = [np.array([7.0, 7.0])]  # not looked at again
    assert party.say("site-00", question) == first
    party.restart("site-00")
    assert party.say("site-00", question) == first
    for change in ({"step": 9}, {"what": bytes(32)}, {"leaves": ((2, 41),)}):
        assert refused(party, "site-00", altered(party, "site-00", **change), bytes(32)) == Reason.EQUIVOCATION


def test_a_round_that_is_over_is_not_answered_again(party):
    old = party.server.ask(2, WHAT, LEAVES)["site-00"]
    party.deliver(party.server.pending())
    party.server.finish()
    party.everyone(3, LEAVES)
    assert refused(party, "site-00", old) == Reason.WRONG_ROUND


def test_the_secure_part_of_one_question_does_not_serve_another(party):
    question = party.server.ask(2, WHAT, LEAVES)["site-00"]
    assert refused(party, "site-00", question, hashlib.sha256(b"else").digest()) == Reason.EQUIVOCATION


def test_a_duplicate_answer_changes_nothing(party):
    party.deliver(party.server.ask(2, WHAT, LEAVES, Mode.CHANGES))
    answers = [(name, answer) for name, _, answer in party.sent if answer[4] == Kind.VECTOR][-6:]
    before = party.server.state()
    assert not any(party.server.receive(name, answer).new for name, answer in answers)
    party.deliver(party.server.close())
    shares = [(name, answer) for name, _, answer in party.sent if answer[4] == Kind.SHARES][-6:]
    assert not any(party.server.receive(name, answer).new for name, answer in shares)
    assert len(before) > 0
    total = party.server.finish().leaves[0]
    for name, answer in answers + shares:
        with pytest.raises(SecureError, match="none is open"):
            party.server.receive(name, answer)
    assert np.array_equal(total, party.server.total.real()[0])


def test_a_replayed_answer_is_refused_in_every_later_round(party):
    party.deliver(party.server.ask(2, WHAT, LEAVES, Mode.CHANGES))
    party.deliver(party.server.close())
    party.server.finish()
    old = [(name, answer) for name, _, answer in party.sent if answer[4] in (Kind.VECTOR, Kind.SHARES)]
    party.server.ask(3, WHAT, LEAVES, Mode.CHANGES)
    before = party.server.state()
    for name, answer in old:
        with pytest.raises(SecureError) as caught:
            party.server.receive(name, answer)
        assert caught.value.reason == Reason.WRONG_ROUND
    assert party.server.state() == before


def test_an_answer_in_anothers_name_is_refused(party):
    questions = party.server.ask(2, WHAT, LEAVES)
    answer = party.say("site-00", questions["site-00"])
    with pytest.raises(SecureError, match="from another site"):
        party.server.receive("site-01", answer)
    with pytest.raises(SecureError, match="card of another site"):
        party.server.receive("site-01", party.say("site-00", party.server.hello(["site-00"])["site-00"]))
    with pytest.raises(InvalidConfig, match="not among"):
        party.server.receive("stranger", answer)


def test_an_answer_with_one_bit_changed_is_refused_wherever_the_bit_is(party):
    def attempts(kind, questions):
        rng = np.random.default_rng(kind)
        answer = party.say("site-00", questions["site-00"])
        before = party.server.state()
        for at in rng.choice(len(answer), min(150, len(answer)), replace=False):
            broken = bytearray(answer)
            broken[at] ^= 1 << int(rng.integers(8))
            with pytest.raises(SecureError):
                party.server.receive("site-00", bytes(broken))
        assert party.server.state() == before

    attempts(1, party.server.ask(2, WHAT, LEAVES))
    attempts(2, party.server.ask(3, WHAT, LEAVES, Mode.CHANGES))
    party.deliver(party.server.pending())
    attempts(3, party.server.close())


def test_rubbish_is_refused_on_both_sides_and_nothing_is_allocated_for_it(party):
    rng = np.random.default_rng(1)
    party.deliver(party.server.ask(2, WHAT, LEAVES, Mode.CHANGES))
    party.deliver(party.server.close())
    questions = [question for _, question, _ in party.sent]
    answers = [answer for _, _, answer in party.sent]
    site, server = party.sites["site-00"].state(), party.server.state()
    for k in range(600):
        base = bytearray((questions if k % 2 else answers)[rng.integers(len(answers))])
        match k % 5:
            case 0:
                base = base[: rng.integers(len(base))]
            case 1:
                base += rng.bytes(int(rng.integers(1, 50)))
            case 2:
                at = int(rng.integers(4, max(len(base) - 4, 5)))
                base[at : at + 4] = b"\xff\xff\xff\xff"  # a length that claims gigabytes
            case 3:
                base = bytearray(rng.bytes(int(rng.integers(200))))
            case 4:
                base[4] = int(rng.integers(9, 256))
        if k % 2:
            answer = party.sites["site-00"].reply(bytes(base), WHAT, lambda _: [np.ones(2)])
            assert answer[4] in (Kind.REFUSED, Kind.SHARES)  # shares: without the one whose box was broken
        else:
            with pytest.raises(SecureError):
                party.server.receive("site-00", bytes(base))
    assert party.server.state() == server
    assert party.sites["site-00"].state() == site


@pytest.mark.parametrize("data", [None, 5, "text", [], bytearray(40)])
def test_what_is_not_bytes_is_refused(party, data):
    assert party.sites["site-00"].reply(data)[4] == Kind.REFUSED
    with pytest.raises(SecureError):
        party.server.receive("site-00", data)


def test_a_question_outside_the_sites_contract_is_refused(party):
    party.server.ask(2, WHAT, LEAVES)
    for change in ({"leaves": ((10**6 + 1, 40),)}, {"leaves": ((2, 121),)}, {"leaves": ((2, -1),)}, {"leaves": ()}):
        assert refused(party, "site-00", altered(party, "site-00", **change)) == Reason.NOT_ALLOWED
    assert refused(party, "site-00", altered(party, "site-00", leaves=((3, 40),))) == Reason.NOT_ALLOWED  # its vector has two numbers
    assert refused(party, "site-00", altered(party, "site-00", leaves=((1, 40), (1, 40)))) == Reason.NOT_ALLOWED


def test_an_overflow_is_a_refusal_that_names_the_part_and_no_number(party):
    party.values["site-00"] = [np.array([1.0, 1e9])]
    party.server.ask(2, WHAT, LEAVES)
    answer = party.say("site-00", party.server.pending()["site-00"])
    got = party.server.receive("site-00", answer)
    assert (got.refused, got.leaf) == (Reason.OVERFLOW, 0)
    assert len(answer) == 4 + 1 + 32 + 2 + 8 + 1 + 2
    party.everyone(3, [(2, 20)])  # the server asks again, more coarsely


def test_nobody_is_asked_a_round_alone_by_our_own_server(party):
    with pytest.raises(SecureError, match="2 sites can take part"):
        party.server.ask(2, WHAT, LEAVES, Mode.CHANGES, cohort=party.names[:2])
    with pytest.raises(ValueError, match="Only rounds of changes"):
        party.server.ask(2, WHAT, LEAVES, Mode.SUM, cohort=party.names[:4])
    with pytest.raises(ValueError, match="There is no round"):
        party.server.close() if party.server.ask(2, WHAT, LEAVES) else None


def test_a_question_reads_back_as_it_was_written(party):
    for mode in (Mode.SUM, Mode.CHANGES):
        data = party.server.ask(5, WHAT, LEAVES, mode)["site-00"]
        question = Question.read(opened(data, party.agreement.tag)[1], data, party.agreement)
        assert question._replace(accepted=0, refill=0) == party.server.open.question


def test_a_cohort_out_of_order_or_with_a_site_twice_is_refused(party):
    party.server.ask(2, WHAT, LEAVES, Mode.CHANGES)
    seats = party.server.open.question.seats
    for wrong in (seats[::-1], (*seats[:5], seats[4]), (seats[0], *seats[:5])):
        assert refused(party, "site-00", altered(party, "site-00", seats=wrong)) == Reason.MALFORMED


def test_a_site_that_has_left_is_not_let_in_by_a_round_of_changes():
    party = Party(6, 4, departures=True)
    party.values = {name: [np.ones(2)] for name in party.names}
    party.server.depart("site-05")
    party.everyone(1, LEAVES, Mode.BASE)
    party.server.enrolled = tuple(range(6))
    party.server.total.accepted[5] = 1
    party.server.ask(2, WHAT, LEAVES, Mode.CHANGES)
    assert refused(party, "site-00", party.server.pending()["site-00"]) == Reason.NOT_ALLOWED


def test_bundles_that_come_twice_are_kept_once(party):
    party.server.introduce(2)
    answer = party.say("site-00", party.server.introduce(2)["site-00"])
    assert party.server.receive("site-00", answer).new
    before = party.server.state()
    assert not party.server.receive("site-00", answer).new
    assert party.server.state() == before


def test_a_server_that_asks_for_masks_without_end_fills_no_disk_and_old_ones_are_refused(party):
    party.server.ask(2, WHAT, LEAVES, Mode.CHANGES)
    for _ in range(6):
        party.say("site-00", party.server.introduce(16)["site-00"])
    assert len(party.sites["site-00"].unused) == 64
    assert refused(party, "site-00", party.server.pending()["site-00"]) == Reason.REUSED


def test_changes_refer_to_the_base_and_the_round_that_the_server_has_named_last(party):
    for step in (2, 3):
        party.changes(step, LEAVES)
    assert len(party.sites["site-00"].changes.held) == 2
    party.server.ask(4, WHAT, LEAVES, Mode.CHANGES)
    assert refused(party, "site-00", altered(party, "site-00", base=2)) == Reason.STREAM_LOST
    party.server.total.accepted[0] = 1  # it has named a later one since
    assert refused(party, "site-00", party.server.pending()["site-00"]) == Reason.STREAM_LOST
