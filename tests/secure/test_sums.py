"""The secure sum is the plain int64 sum, bit for bit, whoever answers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import WHAT, Party, plain

from fedhybrid.secure.sums import Mode, Phase, Reason, SecureError


def fill(party, d, rng, *, part=1.0):
    """Normal values, and in between ones that are this part of the largest that may be sent."""
    edge = part * np.ldexp((2**62 // party.agreement.n) * (1 - 2.0**-50), -40)
    for name in party.names:
        values = rng.normal(size=d)
        values[:: max(d // 3, 1)] = rng.choice([-edge, edge])
        party.values[name] = [values]


LONG = pytest.param(50, 1, marks=pytest.mark.slow)


@pytest.mark.parametrize(("n", "d"), [(3, 1), (3, 10_000), (4, 3), (7, 100), (16, 1000), LONG, (50, 10_000)])
def test_masked_sums_are_plain_sums(n, d):
    rng = np.random.default_rng(n * d)
    party = Party(n, bundles=1)
    fill(party, d, rng)
    assert np.array_equal(party.everyone(1, [(d, 40)]).whole, plain(party, 40))
    assert np.array_equal(party.everyone(2, [(d, 40)], Mode.BASE).whole, plain(party, 40))
    before = dict(party.values)
    half = {name: [v / 2 for v in leaves] for name, leaves in before.items()}
    party.values = half
    new = plain(party, 40)
    party.values = before
    old = plain(party, 40)
    party.values = half
    assert np.array_equal(party.changes(3, [(d, 40)]).whole, new - old)


@given(st.data())
@settings(max_examples=8)
def test_masked_sums_are_plain_sums_for_any_values_and_scales(data):
    n, sizes = data.draw(st.integers(3, 6)), data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any))
    scales = [data.draw(st.integers(0, 58)) for _ in sizes]
    party = Party(n, bundles=0)
    for name in party.names:
        numbers = [data.draw(st.lists(st.floats(-1, 1), min_size=size, max_size=size)) for size in sizes]
        party.values[name] = [np.array(part, np.float64) for part in numbers]
    got = party.everyone(1, list(zip(sizes, scales, strict=True))).whole
    want = [
        sum(np.rint(np.ldexp(party.values[name][j], s)).astype(np.int64) for name in party.names) if size else np.zeros(0, np.int64)
        for j, (size, s) in enumerate(zip(sizes, scales, strict=True))
    ]
    assert np.array_equal(got, np.concatenate(want))


@pytest.mark.parametrize(("n", "t"), [(4, 3), (5, 4), (6, 4)])
def test_whoever_drops_out_at_either_stage_the_sum_is_that_of_the_survivors(n, t):
    rng = np.random.default_rng(n)
    party = Party(n, t, bundles=16)
    fill(party, 5, rng, part=0.4)
    party.everyone(1, [(5, 40)], Mode.BASE)
    step = 1
    enough = max(t, 3)
    for size in range(enough, n + 1):
        for k, sites in enumerate(itertools.combinations(party.names, size)):
            step += 1
            before = {name: party.sites[name].changes.values(party.server.total.accepted[party.agreement.number(name)]) for name in sites}
            fill(party, 5, rng, part=0.4)
            silent = sites[: size - t] if k % 2 else sites[t:]  # after the vectors, as many more go as may
            got = party.changes(step, [(5, 40)], away=set(party.names) - set(sites), silent=silent)
            assert got.sites == sites
            want = sum(_ints(party.values[name][0]) - _ints(before[name][0]) for name in sites)
            assert np.array_equal(got.whole, want)
            assert np.array_equal(got.leaves[0], _kept(party))


def _ints(values):
    return np.rint(np.ldexp(values, 40)).astype(np.int64)


def _kept(party):
    """The sum of what the sites hold as accepted."""
    accepted = party.server.total.accepted
    leaves = [party.sites[name].changes.held[accepted[party.agreement.number(name)]][0] for name in party.names]
    finest = max(leaf.scale for leaf in leaves)
    return np.array([int(v) / 2**finest for v in sum(leaf.finer(finest).whole for leaf in leaves)])


def test_below_the_threshold_nothing_is_opened():
    party = Party(5, 4)
    party.values = {name: [np.ones(2)] for name in party.names}
    party.everyone(1, [(2, 40)], Mode.BASE)
    party.deliver(party.server.ask(2, WHAT, [(2, 40)], Mode.CHANGES), lost=party.names[:2])
    with pytest.raises(SecureError, match="3 of 5 sites have answered round 2, and 4 are needed") as caught:
        party.server.close()
    assert caught.value.reason == Reason.TOO_FEW
    party.deliver(party.server.pending())  # the two were only late
    party.deliver(party.server.close(), lost=party.names[:2])
    with pytest.raises(SecureError, match="cannot be opened") as caught:
        party.server.finish()
    assert caught.value.reason == Reason.BELOW_THRESHOLD
    assert party.server.phase == Phase.OPENING
    party.deliver(party.server.pending())
    assert np.array_equal(party.server.finish().leaves[0], [5.0, 5.0])


def test_a_vector_that_comes_after_the_round_was_closed_is_of_no_use():
    party = Party(5, 4)
    party.values = {name: [np.ones(2)] for name in party.names}
    party.everyone(1, [(2, 40)], Mode.BASE)
    questions = party.server.ask(2, WHAT, [(2, 40)], Mode.CHANGES)
    late = party.names[0]
    answer = party.say(late, questions.pop(late))
    party.deliver(questions)
    party.deliver(party.server.close())
    with pytest.raises(SecureError, match="after it was closed"):
        party.server.receive(late, answer)
    assert party.server.finish().sites == party.names[1:]


def test_wrong_shares_are_found_out_and_enough_right_ones_still_open_the_sum():
    party = Party(6, 4, bundles=3)
    party.values = {name: [np.ones(2)] for name in party.names}
    party.everyone(1, [(2, 40)], Mode.BASE)
    for liars, opens in ((1, True), (3, False)):
        party.deliver(party.server.ask(2 + liars, WHAT, [(2, 40)], Mode.CHANGES), lost=party.names[5:])
        party.deliver(party.server.close())
        for liar in range(liars):
            party.server.open.shares[liar] = [bytes([1]) + share[1:] for share in party.server.open.shares[liar]]
        if opens:
            assert np.array_equal(party.server.finish().leaves[0], [6.0, 6.0])
        else:
            with pytest.raises(SecureError, match="wrong ones"):
                party.server.finish()


def test_the_order_of_answers_does_not_matter():
    sums = set()
    for seed in range(4):
        party = Party(6, bundles=1)
        values = np.random.default_rng(0)
        party.values = {name: [values.normal(size=9)] for name in party.names}
        questions = party.server.ask(1, WHAT, [(9, 40)])
        order = np.random.default_rng(seed).permutation(party.names)
        party.deliver({name: questions[name] for name in order})
        sums.add(party.server.finish().whole.tobytes())
    assert len(sums) == 1


@pytest.mark.parametrize(("n", "d", "leaves"), [(3, 10, 1), (9, 10, 3), (20, 200, 3)])
def test_messages_are_as_long_as_the_docstring_says(n, d, leaves):
    party = Party(n, max(3, n // 2 + 2), bundles=2)
    sizes = [(d, 40)] + [(1, 40)] * (leaves - 1)
    total, away = d + leaves - 1, min(n - 3, 2)
    party.values = {name: [np.ones(size) for size, _ in sizes] for name in party.names}
    party.sent.clear()
    party.everyone(1, sizes, Mode.BASE)
    assert {(len(down), len(up)) for _, down, up in party.sent} == {(111 + 6 * leaves + 18 * n, 164 + 8 * total)}
    party.sent.clear()
    party.changes(2, sizes, away=party.names[:away])
    asked = (111 + 6 * leaves + 150 * n, 164 + 8 * total + 150 + 82 * n)
    opened = (81 + 2 * (n - away) + 82 * n, 195 + 34 * n)
    assert {(len(down), len(up)) for _, down, up in party.sent} == {asked, opened}
