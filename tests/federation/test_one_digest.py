"""One digest of a run: in whatever order and threads the sites answer, and wherever it was stopped and begun again."""

import queue
import random
import threading
import time

import numpy as np
import pytest
from harness import UPDATES, Federation, digest_of, rows_of, terms_of

from fedhybrid.federation.link import Loopback
from fedhybrid.federation.rules import Rules
from fedhybrid.federation.simulate import simulate

CASES = {"krylov": ("krylov", "logistic", "wait"), "fedhybrid": ("fedhybrid", "squared", "bridge")}
FEW = [("krylov", False, 3), ("krylov", True, 2), ("fedhybrid", False, 1)]
MANY = [pytest.param(case, secure, 20, marks=pytest.mark.slow) for case in CASES for secure in (False, True)]


class Stopped(BaseException):
    """The run ends here."""


class AnyOrder(Loopback):
    """Whoever is next is drawn by lot; after so many answers nothing goes on."""

    def __init__(self, federation, seed, last=10**9):
        super().__init__({name: federation._answer(name) for name in federation.terms.names})
        self.chance, self.left = random.Random(seed), last

    def pull(self, timeout):
        self.left -= 1
        if self.left < 0:
            raise Stopped
        self.waiting.rotate(self.chance.randrange(1 + len(self.waiting)))
        return super().pull(timeout)


class Threads:
    """Every site in a thread of its own, which takes its time."""

    def __init__(self, federation, seed):
        self.answers, self.asked = queue.Queue(), {name: queue.Queue() for name in federation.terms.names}
        self.threads = [threading.Thread(target=self._site, args=(name, federation, seed)) for name in self.asked]
        for thread in self.threads:
            thread.start()

    def _site(self, name, federation, seed):
        chance = random.Random(f"{name} {seed}")
        while (message := self.asked[name].get()) is not None:
            time.sleep(chance.uniform(0.0, 0.01))
            answer = federation.answer(name, message)
            time.sleep(chance.uniform(0.0, 0.01))
            self.answers.put((name, answer))

    def push(self, messages):
        for name, message in messages.items():
            self.asked[name].put(message)

    def pull(self, timeout):
        try:
            return [self.answers.get(timeout=timeout)]
        except queue.Empty:
            return []

    def present(self):
        return frozenset(self.asked)

    def close(self):
        for name in self.asked:
            self.asked[name].put(None)
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize(("case", "secure", "orders"), [*FEW, *MANY])
def test_every_way_of_running_it_gives_one_digest(case, secure, orders, tmp_path):
    if secure:
        pytest.importorskip("cryptography")
    method, loss, absent = CASES[case]
    terms = terms_of(method, loss, secure, absent=absent)
    digests, alone = {}, set()

    def note(what, federation, result):
        digests[what] = digest_of(result, federation.folder)
        alone.add(digest_of(result))

    for seed in range(orders):
        federation = Federation(tmp_path / f"order {seed}", terms)
        note(f"order {seed}", federation, federation.run(AnyOrder(federation, seed)))
        answers = sum(1 for _ in (tmp_path / f"order {seed}" / "server").iterdir())
        assert answers >= 2  # the record, and the events
    for seed in range(max(1, orders // 10)):
        federation = Federation(tmp_path / f"threads {seed}", terms)
        link = Threads(federation, seed)
        try:
            note(f"threads {seed}", federation, federation.run(link))
        finally:
            link.close()
    for last in (6, 23, 41):
        federation = Federation(tmp_path / f"resumed {last}", terms)
        with pytest.raises(Stopped):
            federation.run(AnyOrder(federation, last, last))
        for name in federation.terms.names:
            federation.restart(name)
        note(f"resumed after {last} answers", federation, federation.run(AnyOrder(federation, last + 1)))

    rules = {}
    for name, (A, y) in rows_of(loss).items():
        np.savetxt(tmp_path / f"{name}.csv", np.column_stack([A, y]), "%.17g", ",", header="u,v,w,y", comments="")
        rules[name] = Rules(name, tmp_path / f"{name}.csv", UPDATES[name])
    alone.add(digest_of(simulate(terms, rules)))
    print(f"{case}, {'masked' if secure else 'open'}: {len(digests)} runs and a simulation, {len(set(digests.values()))} digest")
    assert len(set(digests.values())) == 1
    assert len(alone) == 1
