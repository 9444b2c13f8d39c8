"""A server and its sites in one process, with a network between them that a test can disturb."""

import functools
import hashlib

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedhybrid.secure.sums import Agreement, Mode, SecureServer, SecureSite, usual_threshold

WHAT = hashlib.sha256(b"a question").digest()
CONTRACT = hashlib.sha256(b"a contract").digest()


@functools.cache
def identity(k):
    return ec.derive_private_key(10_000 + k, ec.SECP384R1())  # the same in every test; a real one comes from the folder of the federation


def agreement(n, threshold=None, **others):
    roster = {f"site-{k:02}": identity(k).public_key() for k in range(n)}
    return Agreement("run-1", CONTRACT, roster, threshold or usual_threshold(n), **others)


class Party:
    def __init__(self, n, threshold=None, *, bundles=2, **others):
        self.agreement = agreement(n, threshold, **others)
        self.names = self.agreement.names
        self.server = SecureServer(self.agreement)
        self.sites = {name: SecureSite(self.agreement, name, identity(k)) for k, name in enumerate(self.names)}
        self.values = {}
        self.sent = []  # (name, question, answer), all that went over the network
        self.deliver(self.server.hello())
        self.deliver(self.server.introduce(bundles))

    def say(self, name, data, what=WHAT):
        answer = self.sites[name].reply(data, what, lambda _: self.values[name])
        self.sent.append((name, data, answer))
        return answer

    def deliver(self, messages, lost=()):
        """Every question to its site and the answer back, but for the sites whose answers are lost."""
        received = {}
        for name, data in messages.items():
            answer = self.say(name, data)
            if name not in lost:
                received[name] = self.server.receive(name, answer)
        return received

    def everyone(self, step, leaves, mode=Mode.SUM):
        self.deliver(self.server.ask(step, WHAT, leaves, mode))
        return self.server.finish()

    def changes(self, step, leaves, *, away=(), silent=(), cohort=None):
        """`away` do not answer the question; `silent` answer it, but do not help to open its sum."""
        self.deliver(self.server.ask(step, WHAT, leaves, Mode.CHANGES, cohort=cohort), lost=away)
        self.deliver(self.server.close(), lost=silent)
        return self.server.finish()

    def restart(self, name):
        k = self.agreement.number(name)
        self.sites[name] = SecureSite(self.agreement, name, identity(k), state=self.sites[name].state())

    def restart_server(self):
        self.server = SecureServer(self.agreement, state=self.server.state())


def plain(party, scale, names=None):
    """The int64 sum of one leaf, without any masks."""
    return sum(np.rint(np.ldexp(party.values[name][0], scale)).astype(np.int64) for name in names or party.names)
