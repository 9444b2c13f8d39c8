"""Anderson acceleration of a primal–dual method: each step goes on from the best mix of the last images, not from the last one alone.

The method's step is a map T of all clients' (xᵢ, λᵢ), and its answer a fixed point. With h = `memory`, and Δ for consecutive differences:

    client    (xᵢ, λᵢ) = tᵢ − Σⱼ γⱼ·Δtᵢⱼ           tᵢⱼ: its own last h + 1 images, tᵢ the newest
              tᵢ⁺ = Tᵢ((xᵢ, λᵢ), x₀)               the method's own round, unchanged
              sends what the method sends, and rᵢ·rᵢⱼ for its last h + 1 residuals r = (x⁺ − x, (λ⁺ − λ)/μ)
    server    γ = argmin ‖r − Σⱼ γⱼ·Δrⱼ‖            by the mean of those products, all of it that it ever sees
              x₀ = u − Σⱼ γⱼ·Δuⱼ                   uⱼ: its own last images, the x₀ that the method would have gone on with

x₀ is linear in the images, so that this is the x₀ of the mixed clients. Cost of a step: the method's, and h + 1 floats a client more each
way (a row of products up; γ and an epoch down). The fixed point is the method's. For quadratics its
first h moves are in essence those of GMRES; later ones see only the last h.

Going back: a mix whose ‖r‖ is not finite, or more than twice the least since the memory was last empty, is dropped. γ = 0 and a new epoch
tell so: whoever sees a new epoch forgets its newest image and begins from the one before it, which was accepted; and the server from that
one's x₀. The memory is empty then. A step from a plain image is not dropped, as it is the method's own; except while somebody
is away and ‖r‖ is not finite or a thousand times its least: a client that left after a round that was dropped counts with its reply of
that round, and then the server waits for it. Three mixes in a row without a lower ‖r‖ are kept, but empty the memory: far from
the answer, where T is far from linear, old differences can hold a run near one place for hundreds of rounds.

Absence: acceleration pauses while somebody is away. Whoever missed a round has not mixed, and its row of products is an old one; so after
a round with a reply missing the memory is empty and γ = 0, and all begin from their own newest image, as in the method itself: also
those who come back, from the image they left with. If that one was dropped while they were away, the epoch tells them. They may go back
one image too many where the round that they missed was dropped; every older image was accepted too. Images that are older than the memory
have γⱼ = 0: nobody needs to forget them, and they need not be of the same rounds everywhere.

D. G. Anderson, "Iterative procedures for nonlinear integral equations", 1965; H. F. Walker and P. Ni, "Anderson acceleration for
fixed-point iterations", 2011. Going back is as in B. O'Donoghue's SCS.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import linalg
from ..arguments import whole
from ..clients.base import Client, Clients
from ..status import InvalidConfig, refuse_unknown_keywords
from .base import Algorithm, Array, Spec, Vec, number

RIDGE = 1e-10  # of the small system, whose diagonal is 1
GROWTH = 2.0  # what a mix may make of the least ‖r‖
IDLE = 3  # rounds without a lower ‖r‖ after which the memory says nothing
AWAY = 1e3  # and a plain step while somebody is away
PENALTIES = ("mu", "rho", "eta")  # what methods call it; η is 1/μ


class Local(NamedTuple):
    method: Any  # what the client keeps for the method itself: x and lam are its newest image
    images: Array  # (h + 1, 2, d), the newest last
    residuals: Array
    epoch: Array  # of the newest image

    @property
    def x(self) -> Vec:
        return self.method.x

    @property
    def lam(self) -> Vec:
        return self.method.lam


@dataclass(frozen=True)
class Start:
    """The method's start, with a memory. Frozen, as are the two below: equal ones are one program."""

    method: Callable[..., Any]
    memory: int

    def __call__(self, me: Client, *down: Any) -> Local:
        method = self.method(me, *down)
        images = jnp.tile(jnp.stack([method.x, method.lam]), (self.memory + 1, 1, 1))
        return Local(method, images, jnp.zeros_like(images), jnp.zeros((), jnp.int64))


@dataclass(frozen=True)
class Update:
    """The method's update, of the mix of this client's images."""

    method: Callable[..., Any]

    def __call__(self, me: Client, local: Local, gamma: Vec, epoch: Array, *down: Any) -> tuple[Local, tuple[Any, Vec]]:
        dropped = epoch != local.epoch
        images, residuals = (jnp.where(dropped, _without_newest(ring), ring) for ring in (local.images, local.residuals))
        x, lam = _mix(images, gamma)
        method, up = self.method(me, local.method._replace(x=x, lam=lam), *down)
        residual = jnp.stack([method.x - x, (method.lam - lam) / _penalty(local.method)])
        images, residuals = _with_newest(images, jnp.stack([method.x, method.lam])), _with_newest(residuals, residual)
        return Local(method, images, residuals, epoch), (up, jnp.sum(residuals * residual[None], axis=(1, 2)))


def _penalty(local: Any) -> Array:
    name = next(name for name in PENALTIES if hasattr(local, name))
    return 1.0 / local.eta if name == "eta" else getattr(local, name)


def _with_newest(ring: Array, entry: Array) -> Array:
    return jnp.concatenate([ring[1:], entry[None]])


def _without_newest(ring: Array) -> Array:
    return jnp.concatenate([ring[:1], ring[:-1]])


def _mix(images: Array, gamma: Vec) -> Array:
    return images[-1] - jnp.tensordot(gamma, jnp.diff(images, axis=0), axes=1)


class AndersonState(NamedTuple):
    x0: Vec
    local: Any
    residual: Array  # the method's, of the last step that was not dropped
    method: Any  # the method's own state, less these three
    images: Array  # (h + 1, 1 or 2, d): x₀ and, where the method's server follows it, the mean of λ
    products: Array  # (h + 1, h + 1), means of rᵢⱼ·rᵢₖ
    count: Array  # of the newest of them that may be used
    best: Array  # least ‖r‖² since the memory was empty
    idle: Array  # rounds since then
    gamma: Vec
    epoch: Array  # how many steps have been dropped


class _Mixing:
    """The clients as the method sees them. What they reply beside the method's own stays here."""

    def __init__(self, clients: Clients, memory: int, gamma: Any = None, epoch: Any = None) -> None:
        self.n, self.d = clients.n, clients.d
        self.clients, self.memory, self.gamma, self.epoch = clients, memory, gamma, epoch
        self.row: Any = None
        self.missed: Any = None

    def start(self, fn: Callable[..., Any], *down: Any, bridged: tuple | None = None) -> Any:
        if bridged is not None:
            round, *asked = bridged
            bridged = (Update(round), jnp.zeros(self.memory), jnp.zeros((), jnp.int64), *asked)
        return self.clients.start(Start(fn, self.memory), *down, bridged=bridged)

    def mean(self, fn: Callable[..., Any], local: Any, *down: Any, stale: bool = False, implied: Any = None) -> tuple[Any, Any]:
        says = None if implied is None else lambda up: implied(up[0])
        local, (up, self.row) = self.clients.mean(Update(fn), local, self.gamma, self.epoch, *down, stale=stale, implied=says)
        self.missed = self.clients.missed(local)
        return local, up


@dataclass(frozen=True)
class Step:
    method: Callable[..., Any]

    def __call__(self, clients: Clients, state: AndersonState) -> AndersonState:
        slots = state.images.shape[0]
        mixing: Any = _Mixing(clients, slots - 1, state.gamma, state.epoch)
        method = self.method(mixing, state.method._replace(x0=state.x0, local=state.local, residual=state.residual))

        size = mixing.row[-1]
        plain, here = state.count <= 1, mixing.missed == 0
        accept = (size <= jnp.where(plain, AWAY, GROWTH) ** 2 * state.best) | (plain & here)
        images = jnp.where(accept, _with_newest(state.images, _own(method)), state.images)
        products = _with_row(state.products, mixing.row)
        idle = jnp.where(plain | (size < state.best), 0, state.idle + 1)
        count = jnp.where(accept & here & (idle < IDLE), jnp.minimum(state.count + 1, slots), 0)
        gamma = _coefficients(products, count)
        method = method._replace(**dict(zip(_names(method), _mix(images, gamma), strict=True)))
        return AndersonState(
            x0=method.x0,
            local=method.local,
            residual=jnp.where(accept, method.residual, state.residual),
            method=_rest(method),
            images=images,
            products=products,
            count=count,
            best=jnp.where(accept, jnp.where(plain, size, jnp.minimum(state.best, size)), state.best),
            idle=idle,
            gamma=gamma,
            epoch=state.epoch + jnp.where(accept, 0, 1),
        )


def _names(method: Any) -> list[str]:
    return [name for name in ("x0", "lam") if name in method._fields]


def _own(method: Any) -> Array:
    return jnp.stack([getattr(method, name) for name in _names(method)])


def _rest(method: Any) -> Any:
    return method._replace(x0=(), local=(), residual=())


def _with_row(products: Array, row: Vec) -> Array:
    return jnp.block([[products[1:, 1:], row[:-1, None]], [row[None, :]]])


def _coefficients(products: Array, count: Array) -> Vec:
    """γ by the newest `count` residuals; zeros where they say nothing."""
    slots = len(products)
    known = jnp.arange(slots) >= slots - count
    products = jnp.where(known[:, None] & known[None, :], products, 0.0)
    G, v = jnp.diff(jnp.diff(products, axis=0), axis=1), jnp.diff(products[:, -1])
    used = known[:-1] & (jnp.diag(G) > 0)
    scale = jnp.sqrt(jnp.where(used, jnp.diag(G), 1.0))
    G = jnp.where(used[:, None] & used[None, :], G / jnp.outer(scale, scale), 0.0) + RIDGE * jnp.eye(slots - 1)
    gamma = linalg.solve(G, jnp.where(used, v, 0.0) / scale) / scale
    return jnp.where(jnp.all(jnp.isfinite(gamma)), gamma, 0.0)


@refuse_unknown_keywords
def anderson(algorithm: Algorithm, *, memory: int = 10) -> Algorithm:
    """`algorithm`, accelerated: one whose clients keep an x and a λ and answer once a step, such as fedhybrid, pn_dg, admm or fedpd.

    memory   moves that are remembered, at every client and at the server
    """
    memory = whole("anderson: memory", memory)
    _refuse_unsuited(algorithm)
    start, update = algorithm.on_client

    def init(clients: Clients, x0: Vec) -> AndersonState:
        mixing: Any = _Mixing(clients, memory)
        method = algorithm.init(mixing, x0)
        inf, zero = number(jnp.inf), jnp.zeros((), jnp.int64)
        return AndersonState(
            x0=method.x0,
            local=method.local,
            residual=method.residual,
            method=_rest(method),
            images=jnp.tile(_own(method), (memory + 1, 1, 1)),
            products=jnp.zeros((memory + 1, memory + 1)),
            count=zero,
            best=inf,
            idle=zero,
            gamma=jnp.zeros(memory),
            epoch=zero,
        )

    name, parameters = algorithm.spec
    spec = Spec("anderson", {"algorithm": name, **parameters, "memory": memory})
    return algorithm._replace(init=init, step=Step(algorithm.step), on_client=(Start(start, memory), Update(update)), spec=spec, warm=None)


def _refuse_unsuited(algorithm: Any) -> None:
    if not isinstance(algorithm, Algorithm):
        raise InvalidConfig("anderson: the first argument must be made by a call, such as fedhybrid.fedhybrid(mu=…, a=…, b=…).")
    name = algorithm.spec.name
    if isinstance(algorithm.step, Step):
        raise InvalidConfig("anderson: this algorithm is accelerated already; for more of it, raise memory.")
    if len(algorithm.on_client) != 2:
        raise InvalidConfig(
            f"anderson: clients of {name} answer {len(algorithm.on_client) - 1} kinds of question; one a step can be mixed."
        )
    kept = getattr(inspect.signature(algorithm.on_client[0]).return_annotation, "_fields", ())
    if not {"x", "lam"} <= set(kept) or not set(PENALTIES) & set(kept):
        raise InvalidConfig(
            f"anderson: clients of {name} keep {', '.join(kept) or 'nothing that is declared'}; it needs x, lam and a penalty "
            f"({', '.join(PENALTIES)}) to mix, as fields of the NamedTuple that their start is declared to return."
        )
