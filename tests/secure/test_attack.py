"""What our own attack gets out of the messages of a fit: everything from plain ones, nothing from masked ones."""

import jax
import numpy as np
import pytest
from parties import Party

import fedhybrid as fh
from fedhybrid.numerics import scope
from fedhybrid.secure import attack, privacy
from fedhybrid.secure.messages import Mode

MU, A, B, D = 0.5, 0.15, 0.1, 5
NAMES = [f"site-{k:02}" for k in range(5)]
ROUNDS = 6 * D


def fleet(seed=0):
    """Five sites that differ; the first one has a single row."""
    rng = np.random.default_rng(seed)
    sites = {}
    for k, (name, rows) in enumerate(zip(NAMES, (1, 12, 30, 9, 20), strict=True)):
        table = rng.normal(size=(rows, D)) * np.linspace(0.5, 1.2, D) / (np.sqrt(D) if rows == 1 else 1)
        sites[name] = (table, table @ rng.normal(size=D) + k)
    return fh.Fleet(sites, loss=fh.squared, reg=0.0, weighting="client", update="gradient")


def z_of(me, local):
    return local.x - local.lam / local.mu


def hessian_of(me, local):
    return me.f.hess(local.x)


def linear_of(me, local):
    return -me.f.grad(local.x * 0.0)


@pytest.fixture(scope="module")
def recorded():
    """x₀ and every site's z of every round, as a server that keeps its messages has them; and the truth."""
    clients = fh.Serial(fleet())
    algorithm = fh.fedhybrid(mu=MU, a=A, b=B)
    with scope():
        state = algorithm.init(clients, jax.numpy.zeros(D))
        truth = np.asarray(clients.observe(hessian_of, state.local)), np.asarray(clients.observe(linear_of, state.local))
        x0, z = [], []
        for _ in range(ROUNDS):
            x0.append(np.asarray(state.x0))
            state = algorithm.step(clients, state)
            z.append(np.asarray(clients.observe(z_of, state.local)))
        assert np.allclose(np.mean(z[-1], axis=0), state.x0, atol=1e-12)  # these are the messages indeed
        assert np.linalg.norm(x0[-1] - x0[-2]) < 0.1 * np.linalg.norm(x0[1] - x0[0])  # of a fit that converges
    return np.array(x0), np.array(z), *truth


def errors(x0, views, H):
    """The attack on every site: relative errors of the Gram matrix."""
    return np.array(
        [attack.relative_error(attack.gram(*attack.replay(x0, view, mu=MU, a=A, b=B))[0], H[i]) for i, view in enumerate(views)]
    )


def test_from_plain_messages_it_recovers_every_gram_matrix(recorded):
    x0, z, H, c = recorded
    found = errors(x0, z.transpose(1, 0, 2), H)
    print("plain, after 6d rounds:", found)
    assert np.all(found <= 1e-6)
    first = errors(x0[: D + 2], z[: D + 2].transpose(1, 0, 2), H)
    print("plain, after d + 2 rounds:", first)
    for i in range(5):
        _, linear = attack.gram(*attack.replay(x0, z[:, i], mu=MU, a=A, b=B))
        assert attack.relative_error(linear, c[i]) <= 1e-6
        gradients = attack.replay(x0[:1], z[:1, i], mu=MU, a=A, b=B)[1]
        assert attack.relative_error(-gradients[0], c[i]) <= 1e-12  # Aᵀy, after one round


def test_from_plain_messages_it_recovers_the_row_of_a_site_that_has_one(recorded):
    x0, z, H, _ = recorded
    row = attack.row(attack.gram(*attack.replay(x0, z[:, 0], mu=MU, a=A, b=B))[0])
    true = attack.row(H[0])
    error = min(attack.relative_error(row, true), attack.relative_error(-row, true))
    print("the row:", error)
    assert error <= 1e-6


def secure_views(z, away=lambda step: ()):
    """The same fit's messages under secure sums, and what is left to the server: masked words by site, and the means."""
    party = Party(5, 4, bundles=3)
    words, means = {name: [] for name in NAMES}, []
    for step, row in enumerate(z, start=1):
        party.values = {name: [value] for name, value in zip(NAMES, row, strict=True)}
        party.sent.clear()
        if step == 1:
            got = party.everyone(step, [(D, 40)], Mode.BASE)
        else:
            party.deliver(party.server.introduce(1, [n for n in NAMES if not party.server.registry.stock[party.agreement.number(n)]]))
            party.sent.clear()
            got = party.changes(step, [(D, 40)], away=away(step))
        means.append(got.leaves[0] / 5)
        for name, _, answer in party.sent:
            if answer[4] == 6:  # a vector
                words[name].append(np.frombuffer(answer[99 : 99 + 8 * D], "<u8").copy())
    return words, np.array(means)


@pytest.mark.parametrize("away", [(), ("site-03",)], ids=["everyone", "with absence"])
def test_from_masked_messages_and_their_sums_it_recovers_nothing(recorded, away):
    x0, z, H, _ = recorded
    words, means = secure_views(z, lambda step: away if step % 3 == 0 else ())
    assert np.allclose(means if not away else means[:2], np.mean(z, axis=1)[: len(means) if not away else 2], atol=1e-11)
    masked = errors(x0, [attack.seen(words[name], 40) for name in NAMES], H)
    print("secure sums, each site's masked words:", masked)
    assert np.all(masked >= 0.5)
    averages = errors(x0, [means] * 5, H)
    print("secure sums, the mean in place of each site:", averages)
    assert np.all(averages >= 0.5)
    found = attack.row(attack.gram(*attack.replay(x0, attack.seen(words["site-00"], 40), mu=MU, a=A, b=B))[0])
    true = attack.row(H[0])
    assert min(attack.relative_error(found, true), attack.relative_error(-found, true)) >= 0.5


def test_masked_words_look_like_noise(recorded):
    _, z, *_ = recorded
    words, _ = secure_views(z)
    bits = np.unpackbits(np.concatenate([w for name in NAMES for w in words[name]]).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))


def answer(H, c, sigma, rounds=2500):
    """Relative error of the answer when every z has this noise: the iteration of the paper, in a few lines."""
    rng = np.random.default_rng(0)
    x, lam, x0 = np.zeros_like(c), np.zeros_like(c), np.zeros(D)
    for _ in range(rounds):
        gradients = np.einsum("ijk,ik->ij", H, x) - c
        x, lam = x - A * (gradients - lam + MU * (x - x0)), lam + B * (x0 - x)
        x0 = np.mean(x - lam / MU + sigma * rng.normal(size=c.shape), axis=0)
    return attack.relative_error(x0, np.linalg.solve(H.sum(axis=0), c.sum(axis=0)))


def test_noise_spoils_the_attack_and_the_answer_by_degrees(recorded):
    """Noise alone is no guarantee; this is what it does."""
    x0, z, H, c = recorded
    rng = np.random.default_rng(0)
    curve = []
    for sigma in (0.0, 1e-8, 1e-6, 1e-4, 1e-2):
        found = errors(x0, (z + sigma * rng.normal(size=z.shape)).transpose(1, 0, 2), H)
        curve.append((np.median(found), answer(H, c, sigma)))
        print(f"noise {sigma:g} on every number of z: attack {found}, answer {curve[-1][1]:.1e}")
    assert np.all(np.diff(curve, axis=0) > 0)
    assert curve[0][0] <= 1e-6 < 0.5 < curve[-1][0]
    assert curve[0][1] <= 1e-10


def test_a_private_release_spoils_the_attack(recorded):
    x0, z, H, _ = recorded
    delta, G = 1e-5, 2.0
    radius = G / MU
    rho = privacy.rho_for(8.0, delta)
    sigma = privacy.sensitivity(radius, D, 40) * np.sqrt(ROUNDS / (2 * rho))
    sent = np.array([[privacy.release(v, c, radius=radius, sigma=sigma, scale=40) for v in row] for c, row in zip(x0, z, strict=True)])
    found = errors(x0, sent.transpose(1, 0, 2), H)
    print(f"dp(8, {delta:g}) over {ROUNDS} rounds, sigma {sigma:.2g}:", found)
    assert np.all(found >= 0.5)
