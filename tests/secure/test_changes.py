"""Absent sites, lost and repeated messages, crashes: the server's total is the plain sum of the last accepted values, bit for bit."""

import contextlib

import numpy as np
import pytest
from parties import WHAT, Party, identity

from fedhybrid.secure import fixedpoint
from fedhybrid.secure.sums import Kind, Mode, Reason, SecureError, SecureServer, SecureSite

D = 3
LEAVES = [(D, 40)]


def whole(values, scale=40):
    return np.rint(np.ldexp(values, scale)).astype(np.int64)


def started(n, threshold, **others):
    party = Party(n, threshold, bundles=3, **others)
    party.values = {name: [np.ones(D)] for name in party.names}
    party.everyone(1, LEAVES, Mode.BASE)
    return party


class Network:
    """Loses, repeats and delays messages; restarts sites and the server from what they had kept before they last sent something."""

    def __init__(self, party, rng, rate):
        self.party, self.rng, self.rate = party, rng, rate
        self.late = []
        self.saved = party.server.state()
        self.stale = 0

    def bad(self):
        return self.rng.random() < self.rate

    def send(self, messages):
        party = self.party
        self.saved = party.server.state()
        for name in self.rng.permutation(sorted(messages)):
            if self.bad():  # the question is lost
                continue
            if self.bad():
                party.restart(name)
            answers = [party.say(name, messages[name]) for _ in range(1 + self.bad())]
            assert len(set(answers)) == 1 or messages[name][4] == Kind.CARDS  # which asks for new masks each time
            if self.bad():  # the answer comes in some later round, or never
                self.late.append((name, answers[0]))
                continue
            for answer in answers:
                self.receive(name, answer)
        if self.bad():  # the server dies with all that it has received since it sent
            party.server = SecureServer(party.agreement, state=self.saved)
        while self.late and self.bad():
            self.receive(*self.late.pop(int(self.rng.integers(len(self.late)))))

    def receive(self, name, answer):
        try:
            received = self.party.server.receive(name, answer)
            assert received.kind != Kind.REFUSED or received.refused is not None
        except SecureError as error:
            if error.reason != Reason.WRONG_ROUND:
                raise
            self.stale += 1


@pytest.mark.parametrize("seed", range(2))
def test_under_all_faults_the_total_is_the_plain_sum_of_what_was_accepted(seed):
    rng = np.random.default_rng(seed)
    party = started(8, 5)
    network = Network(party, rng, 0.2)
    accepted = {name: whole(np.ones(D)) for name in party.names}
    finished = 0
    for step in range(2, 42):
        party.values = {name: [rng.normal(size=D) * 10.0 ** rng.integers(-6, 3)] for name in party.names}
        present = [name for name in party.names if not network.bad()]
        short = [name for name in party.names if not party.server.registry.stock[party.agreement.number(name)]]
        network.send(party.server.introduce(3, short))
        try:
            network.send(party.server.ask(step, WHAT, LEAVES, Mode.CHANGES, cohort=present))
            network.send(party.server.pending())
            network.send(party.server.close())
            for _ in range(12):
                if not party.server.ready:
                    network.send(party.server.pending())
            result = party.server.finish()
        except SecureError as error:
            if error.reason not in (Reason.TOO_FEW, Reason.BELOW_THRESHOLD):
                raise
            continue
        finished += 1
        for name in result.sites:
            accepted[name] = whole(party.values[name][0])
        assert [int(v) for v in party.server.total.leaves[0].whole] == [int(v) for v in sum(accepted.values())]
        assert np.array_equal(result.leaves[0], fixedpoint.decode(sum(accepted.values()), 40))
    assert finished >= 15
    assert network.stale > 5


def test_a_scale_that_changes_in_every_round_leaves_no_error_behind():
    rng = np.random.default_rng(0)
    party = started(6, 4, scales=(0, 200))
    for step in range(2, 40):
        scale = int(rng.integers(10, 150)) if step < 39 else 150
        size = 2.0 ** (55 - max(scale, 0)) if step < 39 else 2.0**-96
        away = party.names[: rng.integers(3)] if step < 39 else ()
        last = party.server.total.real()[0] / 6
        party.values = {name: [last + size * rng.normal(size=D)] for name in party.names}
        took_part = ()
        with contextlib.suppress(SecureError):  # where changes are too large for this scale, sites refuse
            took_part = party.changes(step, [(D, scale)], away=away).sites
        kept = []
        for name in party.names:
            leaf = party.sites[name].changes.held[party.server.total.accepted[party.agreement.number(name)]][0]
            kept.append(leaf.finer(200).whole)
            if name in took_part:
                assert np.max(np.abs(fixedpoint.real(leaf.whole, leaf.scale) - party.values[name][0])) <= 0.51 * 2.0**-scale + 1e-15
        assert [int(v) for v in party.server.total.leaves[0].finer(200).whole] == [int(v) for v in sum(kept)]


def test_a_refused_round_is_bridged_and_a_coarser_one_catches_up():
    party = started(5, 4)
    party.values["site-02"] = [np.full(D, 1e7)]
    got = party.deliver(party.server.ask(2, WHAT, [(D, 41)], Mode.CHANGES))
    assert got["site-02"].refused == Reason.OVERFLOW
    party.deliver(party.server.close())
    assert np.array_equal(party.server.finish().leaves[0], np.full(D, 5.0))
    scale = fixedpoint.lowered(41, party.agreement.scales)
    assert np.array_equal(party.changes(3, [(D, scale)]).leaves[0], np.full(D, 4.0 + 1e7))


def test_a_site_that_has_lost_its_state_says_so_and_a_base_round_begins_anew():
    party = started(5, 4)
    party.sites["site-02"] = SecureSite(party.agreement, "site-02", identity(2))
    got = party.deliver(party.server.ask(2, WHAT, LEAVES, Mode.CHANGES))
    assert {name: received.refused for name, received in got.items() if received.refused} == {"site-02": Reason.UNKNOWN_CARD}
    party.deliver(party.server.close())
    assert len(party.server.finish().sites) == 4  # bridged by its last values
    party.deliver(party.server.hello(["site-02"]))
    party.deliver(party.server.introduce(3))
    got = party.deliver(party.server.ask(3, WHAT, LEAVES, Mode.CHANGES))
    assert got["site-02"].refused == Reason.STREAM_LOST
    party.values = {name: [np.full(D, 2.0)] for name in party.names}
    assert np.array_equal(party.everyone(4, LEAVES, Mode.BASE).leaves[0], np.full(D, 10.0))
    assert party.changes(5, LEAVES).sites == party.names


def test_a_base_round_that_failed_is_asked_again_and_counts_once():
    party = started(4, 3)
    party.values = {name: [np.full(D, 2.0)] for name in party.names}
    party.deliver(party.server.ask(2, WHAT, LEAVES, Mode.BASE), lost=["site-01"])
    assert not party.server.ready
    assert np.array_equal(party.everyone(2, LEAVES, Mode.BASE).leaves[0], np.full(D, 8.0))
    assert np.array_equal(party.changes(3, LEAVES, away=["site-01"]).leaves[0], np.full(D, 8.0))


def test_sums_of_everyone_in_between_leave_the_total_alone():
    party = started(4, 3)
    party.values = {name: [np.full(D, 7.0)] for name in party.names}
    assert np.array_equal(party.everyone(2, LEAVES).leaves[0], np.full(D, 28.0))
    party.values = {name: [np.full(D, 2.0)] for name in party.names}
    assert np.array_equal(party.changes(3, LEAVES, away=["site-01"]).leaves[0], np.full(D, 7.0))


def test_a_site_that_leaves_for_good_is_out_of_the_next_base_round_where_that_was_agreed():
    party = started(5, 4, departures=True)
    party.server.depart("site-04")
    with pytest.raises(SecureError, match="0 sites can take part"):
        party.server.ask(2, WHAT, LEAVES, Mode.CHANGES)
    assert np.array_equal(party.everyone(2, LEAVES, Mode.BASE).leaves[0], np.full(D, 4.0))
    assert party.changes(3, LEAVES).sites == party.names[:4]
    party.server.enrolled = tuple(range(5))  # nobody comes back: each toggle would give one site's vector away
    got = party.deliver({name: data for name, data in party.server.ask(4, WHAT, LEAVES).items() if name != "site-04"})
    assert {received.refused for received in got.values()} == {Reason.NOT_ALLOWED}


def test_a_step_that_was_summed_with_everyone_is_not_summed_again_without_one():
    party = started(5, 4, departures=True)
    party.everyone(2, LEAVES)
    party.server.depart("site-04")
    got = party.deliver(party.server.ask(2, WHAT, LEAVES))
    assert {received.refused for received in got.values()} == {Reason.ALREADY_SUMMED}
    assert party.everyone(3, LEAVES).sites == party.names[:4]


def test_a_long_absence_needs_new_bundles_and_nothing_else():
    party = started(5, 4)
    for step in range(2, 8):
        party.values = {name: [np.full(D, float(step))] for name in party.names}
        party.changes(step, LEAVES, cohort=party.names[:4])
    for step in range(8, 13):
        party.changes(step, LEAVES, away=["site-04"])
    assert party.server.ready_for_changes() == party.names[:4]
    party.deliver(party.server.introduce(2, ["site-04"]))
    assert party.changes(20, LEAVES).sites == party.names
    assert np.array_equal(party.server.total.real()[0], np.full(D, 35.0))


def test_states_are_small_and_what_comes_back_from_them_is_the_same():
    party = started(5, 4)
    for step in range(2, 30):
        party.changes(step, LEAVES, away=[party.names[step % 5]])
    for name in party.names:
        before = party.sites[name].state()
        party.restart(name)
        assert party.sites[name].state() == before
        assert len(before) < 5000
    before = party.server.state()
    party.restart_server()
    assert party.server.state() == before
    for state in (before, party.sites["site-00"].state()):
        for broken in (state[:-1], state[:40] + b"\1" + state[41:], b"x"):
            with pytest.raises(SecureError):
                SecureServer(party.agreement, state=broken)
            with pytest.raises(SecureError):
                SecureSite(party.agreement, "site-00", identity(0), state=broken)
    with pytest.raises(SecureError, match="Delete it"):
        SecureSite(party.agreement, "site-01", identity(1), state=party.sites["site-00"].state())
