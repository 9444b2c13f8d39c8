"""Theorem 1: which step sizes it admits, and the rate ρ that it proves for them.

With m = min mᵢ, ℓ = max ℓᵢ, J₁ the gradient clients and J₂ the Newton clients,

    i ∈ J₁   aᵢ ≤ 1/(22μ/9 + 2ℓ)            bᵢ ≤ min{μ/9, α̲m²/21}
    i ∈ J₂   aᵢ ≤ (mᵢ + μ)/(22μ/9 + 2ℓ)     bᵢ ≤ min{μ/9, α̲m²/21}/(ℓᵢ + μ)

    α̲ = min{aᵢ over J₁, aᵢ/(ℓᵢ + μ) over J₂}      β̲ = min{bᵢ over J₁, bᵢ(mᵢ + μ) over J₂}
    ρ = min{3β̲/(13(μ + ℓ)), mα̲/2}                 as proved; the theorem's statement has m for ℓ

Everywhere m and ell are numbers or one per client (theory.bounds), kinds is one of "gradient", "diagonal", "newton", "newton-cg" per client
(fleet.updates), and a and b are what `fedhybrid` takes: a number, a tuple (gradient, newton), or an array with one per client.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arguments import numeric, positive
from ..curvature import UPDATES
from ..status import InvalidConfig


class Steps(NamedTuple):
    """Primal and dual step sizes, one per client."""

    a: np.ndarray
    b: np.ndarray


class _Setting(NamedTuple):
    """What the theorem's inequalities are made of, checked."""

    mu: float
    m: np.ndarray
    ell: np.ndarray
    newton: np.ndarray  # who is in J₂

    def a_limit(self) -> np.ndarray:
        return np.where(self.newton, self.m + self.mu, 1.0) / (22 * self.mu / 9 + 2 * self.ell.max())

    def b_limit(self, a: np.ndarray) -> np.ndarray:
        common = min(self.mu / 9, self.alpha(a) * self.m.min() ** 2 / 21)
        return common / np.where(self.newton, self.ell + self.mu, 1.0)

    def alpha(self, a: np.ndarray) -> float:
        return float(np.min(np.where(self.newton, a / (self.ell + self.mu), a)))

    def beta(self, b: np.ndarray) -> float:
        return float(np.min(np.where(self.newton, b * (self.m + self.mu), b)))


def theorem_steps(mu: float, m: Any, ell: Any, kinds: Sequence[str]) -> Steps:
    """The largest step sizes that Theorem 1 admits: the largest a give the largest α̲, and so the largest b.

    >>> a, b = theorem_steps(1.0, 1.0, 1.0, ["gradient", "newton"])
    >>> print(a.round(3), b.round(4))
    [0.225 0.45 ] [0.0107 0.0054]
    """
    setting = _setting(mu, m, ell, kinds)
    a = setting.a_limit()
    return Steps(a, setting.b_limit(a))


def violations(mu: float, a: Any, b: Any, m: Any, ell: Any, kinds: Sequence[str]) -> list[str]:
    """A sentence for every inequality of Theorem 1 that does not hold; none if the step sizes are admissible."""
    setting = _setting(mu, m, ell, kinds)
    a, b = _per_client("a", a, setting.newton), _per_client("b", b, setting.newton)
    a_limit, b_limit = setting.a_limit(), setting.b_limit(a)
    sentences = []
    for i, newton in enumerate(setting.newton):
        kind, a_rule, b_rule = "gradient", "1/(22μ/9 + 2ℓ)", "min{μ/9, α̲m²/21}"
        if newton:
            kind, a_rule, b_rule = "newton", "(mᵢ + μ)/(22μ/9 + 2ℓ)", "min{μ/9, α̲m²/21}/(ℓᵢ + μ)"
        for name, size, rule, limit in (("a", a[i], a_rule, a_limit[i]), ("b", b[i], b_rule, b_limit[i])):
            if not size <= limit:
                sentences.append(f"client {i} ({kind}): {name} = {float(size)!r} is above {rule} = {float(limit)!r}.")
    return sentences


def check_steps(mu: float, a: Any, b: Any, m: Any, ell: Any, kinds: Sequence[str]) -> None:
    """Raise InvalidConfig, with all that is violated, unless Theorem 1 admits the step sizes."""
    found = violations(mu, a, b, m, ell, kinds)
    if found:
        raise InvalidConfig(f"Theorem 1 does not admit these step sizes; theory.theorem_steps gives the largest. {' '.join(found)}")


def rate(mu: float, a: Any, b: Any, m: Any, ell: Any, kinds: Sequence[str]) -> float:
    """ρ of Δᵏ⁺¹ ≤ (1 − ρ)Δᵏ, as proved; it is proved for step sizes without `violations`."""
    setting = _setting(mu, m, ell, kinds)
    alpha = setting.alpha(_per_client("a", a, setting.newton))
    beta = setting.beta(_per_client("b", b, setting.newton))
    return min(3 * beta / (13 * (setting.mu + float(setting.ell.max()))), float(setting.m.min()) * alpha / 2)


def _setting(mu: float, m: Any, ell: Any, kinds: Sequence[str]) -> _Setting:
    if isinstance(kinds, str) or not kinds or any(kind not in UPDATES for kind in kinds):
        raise InvalidConfig(f"kinds must list one of {', '.join(UPDATES)} for every client, as fleet.updates does; not {kinds!r}.")
    newton = np.array([kind != "gradient" for kind in kinds])
    m, ell = (_one_each(name, value, len(newton)) for name, value in (("m", m), ("ell", ell)))
    flat = np.flatnonzero(~(m > 0))
    if len(flat):
        raise InvalidConfig(
            f"client {flat[0]} has m = {float(m[flat[0]])!r}: Theorem 1 needs every client's fᵢ strongly convex. Give every coordinate a "
            "penalty (reg > 0, also for an intercept), or choose step sizes without the theorem."
        )
    if not np.all(np.isfinite(ell)) or np.any(ell < m):
        raise InvalidConfig("ell must be finite and, client by client, at least m.")
    return _Setting(positive("theory: mu", mu), m, ell, newton)


def _one_each(name: str, value: Any, n: int) -> np.ndarray:
    array = numeric(f"theory: {name}", value)
    if array.ndim > 1 or (array.ndim == 1 and array.size != n):
        raise InvalidConfig(f"{name} has shape {array.shape}; it must be a number or one per client ({n}).")
    return np.broadcast_to(array, n).copy()


def _per_client(name: str, value: Any, newton: np.ndarray) -> np.ndarray:
    if isinstance(value, tuple) and len(value) == 2:
        gradient_size, newton_size = (positive(f"theory: {name}", entry) for entry in value)
        return np.where(newton, newton_size, gradient_size)
    return _one_each(name, positive(f"theory: {name}", value, per_client=True), len(newton))
