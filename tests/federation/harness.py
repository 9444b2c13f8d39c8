"""Federations in one process: the very bytes of a deployment, with whatever goes wrong on the way between."""

import functools
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

import fedhybrid as fh
from fedhybrid import checkpoint
from fedhybrid.federation.link import Loopback
from fedhybrid.federation.server import serve
from fedhybrid.federation.site import Rules, Site
from fedhybrid.federation.terms import Problem, Rounds, Secure, Terms

NAMES = ("a", "b", "c", "d")
UPDATES = {"a": "newton", "b": "gradient", "c": "newton", "d": "gradient"}
METHODS = {
    "krylov": (("name", "krylov"),),
    "fedhybrid": (("name", "fedhybrid"),),
}
LOSSES = {"logistic": fh.logistic, "squared": fh.squared}


def rows_of(loss="logistic", seed=0):
    """Unequal sites, shifted against each other."""
    rng = np.random.default_rng(seed)
    data = {}
    for k, name in enumerate(NAMES):
        A = rng.normal(size=(24 + 8 * k, 3)) + 0.3 * k
        z = A @ [1.0, -1.0, 0.5]
        data[name] = (A, z + rng.normal(size=len(A)) if loss == "squared" else (z + rng.logistic(size=len(A)) > 0).astype(float))
    return data


@functools.cache
def identity(name):
    """A site's key pair: the same in every test; a real one comes from the folder of the federation."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.derive_private_key(1000 + NAMES.index(name), ec.SECP384R1())


def public(name, secure):
    if not secure:
        return f"key of {name}"
    from fedhybrid.federation.agreed import public_text

    return public_text(identity(name))


def terms_of(method="krylov", loss="logistic", secure=False, **rounds):
    problem = Problem(("u", "v", "w"), "y", None, None, loss, 0.1, "row", True)
    chosen = {"tol": 1e-9, "most": 2000, "deadline": 60.0, "patience": 120.0, "absent": "wait", "strikes": 3, "largest_gradient": None}
    sites = tuple((name, public(name, secure)) for name in NAMES)
    return Terms(problem, METHODS[method], Rounds(**chosen | rounds), Secure(secure, None, 40), "127.0.0.1:0", sites)


def pooled(terms, data, without=()):
    """The same fit by one process that has all rows."""
    data = {name: rows for name, rows in data.items() if name not in without}
    p = terms.problem
    updates = {name: UPDATES[name] for name in data}
    fleet = fh.Fleet(data, loss=LOSSES[p.loss], reg=p.reg, weighting=p.weighting, intercept=p.intercept, update=updates)
    return fh.solve(fleet, terms.algorithm(), transport=fh.Serial, tol=terms.rounds.tol)


class Federation:
    """Terms, sites with their states on disk, and runs of the server; either can be ended and begun again."""

    def __init__(self, folder: Path, terms, data=None):
        self.folder, self.terms = folder, terms
        self.data = rows_of(terms.problem.loss) if data is None else data
        self.sites = {}
        for name in terms.names:
            self.restart(name)

    def restart(self, name, *, without_state=False):
        rules = Rules(name, Path("none"), UPDATES[name], state=self.folder / name)
        if without_state:
            shutil.rmtree(rules.state, ignore_errors=True)
        self.sites[name] = Site(self.terms, rules, self.data[name], identity(name) if self.terms.secure.sums else None)

    def answer(self, name, message):
        return self.sites[name].answer(message)

    def run(self, link=None, *listeners):
        return serve(
            self.terms, link or Loopback({name: self._answer(name) for name in self.terms.names}), self.folder / "server", *listeners
        )

    def _answer(self, name):
        return lambda message: self.answer(name, message)


def digest_of(result, folder=None):
    """One number for a run: the way of x0, the answer, and what every site has kept of its last reply and of its state.

    folder    the sites' folders of state lie in it, each of its site's name; None: the result alone
    """
    seen = hashlib.sha256()
    for array in (result.trace.x0, result.x, result.trace.rounds, result.trace.residual):
        seen.update(np.ascontiguousarray(array, dtype=np.float64).tobytes())
    for name in result.names if folder is not None else ():
        current = max((Path(folder) / name).glob(f"*/{checkpoint.CURRENT}"), key=lambda file: file.stat().st_mtime_ns)
        _, scalars, arrays = _stored(current)
        seen.update(f"{name} {scalars['round']}".encode())
        for key in sorted(arrays):
            seen.update(f"{key} {arrays[key].dtype.str}".encode() + arrays[key].tobytes())
    return seen.hexdigest()


def _stored(path):
    """A checkpoint as it is in the file, whosever it is."""
    data = path.read_bytes()
    *_, header, body = checkpoint.PREAMBLE.unpack(data[: checkpoint.PREAMBLE.size])
    text, rest = data[checkpoint.PREAMBLE.size :][:header], data[checkpoint.PREAMBLE.size + header :][:body]
    identity, scalars, listed = json.loads(text)
    arrays, at = {}, 0
    for name, dtype, shape in listed:
        arrays[name] = np.frombuffer(rest, dtype, int(np.prod(shape, dtype=int)), at).reshape(shape)
        at += arrays[name].nbytes
    return dict(identity), dict(scalars), arrays


class Faulty(Loopback):
    """`meddle(name, answer, count)`: the answers that arrive, count being this site's so far. `away(name, count)`: it gets no question."""

    def __init__(self, federation, meddle=None, away=None):
        super().__init__({name: federation._answer(name) for name in federation.terms.names})
        self.meddle, self.away = meddle or (lambda name, answer, count: [answer]), away or (lambda name, count: False)
        self.counts = dict.fromkeys(self.sites, 0)
        self.asked = dict.fromkeys(self.sites, 0)
        self.arrived = []

    def push(self, messages):
        for name in messages:
            self.asked[name] += 1
        super().push({name: message for name, message in messages.items() if not self.away(name, self.asked[name])})

    def pull(self, timeout):
        if not self.arrived:
            for name, answer in super().pull(timeout):
                self.counts[name] += 1
                self.arrived += [(name, each) for each in self.meddle(name, answer, self.counts[name])]
        return [self.arrived.pop(0)] if self.arrived else []


class IdleClock:
    """Time that passes only while nobody has anything to say: no deadline of a test depends on the machine."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in ("exchange", "sums", "link"):
            monkeypatch.setattr(f"fedhybrid.federation.{module}.time", self)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 1e-6)  # what is added to a large number must not vanish


def changed(terms, **rounds):
    return replace(terms, rounds=replace(terms.rounds, **rounds))
