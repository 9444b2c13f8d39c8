"""A whole fit by secure sums with sites missing: the pooled answer, to the grid, with residuals that keep their digits on the way down."""

import numpy as np
import pytest
from parties import WHAT, Party

from fedhybrid.secure import fixedpoint
from fedhybrid.secure.sums import Mode, Reason

D, MU, A, B = 4, 0.5, 0.4, 0.35


class Site:
    """FedHybrid's gradient client on its own least squares."""

    def __init__(self, rng):
        rows = np.linalg.qr(rng.normal(size=(8, D)))[0] * np.sqrt(rng.uniform(0.6, 1.4, D))
        self.H, self.c = rows.T @ rows, rows.T @ (5 * rng.normal(size=8))
        self.x, self.lam = np.zeros(D), np.zeros(D)

    def step(self, x0):
        r = self.H @ self.x - self.c - self.lam + MU * (self.x - x0)
        self.x, self.lam = self.x - A * r, self.lam + B * (x0 - self.x)
        return [self.x - self.lam / MU, np.array([r @ r])]


@pytest.mark.parametrize(("scale", "rounds", "floor"), [(40, 180, 3e-12), pytest.param(50, 280, 3e-15, marks=pytest.mark.slow)])
def test_a_fit_with_absence_reaches_the_pooled_answer_to_the_grid(scale, rounds, floor):
    rng = np.random.default_rng(0)
    party = Party(6, 4, bundles=2)
    sites = {name: Site(rng) for name in party.names}
    pooled = np.linalg.solve(sum(s.H for s in sites.values()), sum(s.c for s in sites.values()))
    limits, fine, x0 = party.agreement.scales, 10, np.zeros(D)
    mode, refused, seen = Mode.BASE, 0, []
    for step in range(1, rounds):
        # Whoever is away misses the question; its last values stand in.
        here = [name for name in party.names if mode == Mode.BASE or step > rounds - 10 or rng.random() > 0.2]
        if len(here) < 4:
            continue
        short = [name for name in here if not party.server.registry.stock[party.agreement.number(name)]]
        party.deliver(party.server.introduce(2, short))
        leaves = [(D, scale), (1, fine)]
        party.values = {name: sites[name].step(x0) if name in here else [] for name in party.names}
        got = party.deliver(party.server.ask(step, WHAT, leaves, mode, cohort=None if mode == Mode.BASE else here))
        if any(received.refused == Reason.OVERFLOW for received in got.values()):
            refused, fine = refused + 1, fixedpoint.lowered(fine, limits)
            continue
        if mode == Mode.CHANGES:
            party.deliver(party.server.close())
        total, residual = party.server.finish().leaves
        mode, x0 = Mode.CHANGES, total / 6
        fine = fixedpoint.next_scale(residual, fine, 6, limits)
        seen.append(residual[0])
    error = np.linalg.norm(x0 - pooled) / np.linalg.norm(pooled)
    print(f"scale {scale}: relative error {error:.1e}, residual² from {seen[0]:.1e} to {seen[-1]:.1e}, refusals {refused}")
    assert error <= floor
    assert refused <= 3  # once the residual was zero on its grid
    assert 0 < seen[-1] < 1e-18 * seen[0]
