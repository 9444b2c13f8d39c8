"""Four sites over TLS with keys, a SuperLink and its front: the bits of the same file in one process, in the open and by secure sums."""

import contextlib

import numpy as np
import pytest

pytest.importorskip("flwr")

from deployment import Deployment, distance
from harness import NAMES
from samples import same_bits

import fedhybrid as fh
from fedhybrid.secure.server import SecureServer
from fedhybrid.secure.site import SecureSite


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """One for all tests of this file, each with terms of its own."""
    with contextlib.ExitStack() as stack:
        deployment = Deployment(tmp_path_factory.mktemp("over") / "fl", stack, "logistic", tol=1e-12)
        deployment.listen()
        yield deployment


@pytest.mark.parametrize("secure", [False, True])
def test_a_federation_over_flower_gives_the_bits_of_one_process_and_the_pooled_fit(secure, deployment, monkeypatch):
    deployment.agree(sums=secure)
    simulated = deployment.simulated()
    sent, sums = {}, []
    masked, finish = SecureSite._masked, SecureServer.finish

    def noted(self, question, words):
        sent[question.round, self.name] = words.view(np.int64).copy()  # before the masks
        return masked(self, question, words)

    def summed(self):
        found = finish(self)
        sums.append((found.whole, np.sum([sent[found.round, name] for name in found.sites], axis=0)))
        return found

    monkeypatch.setattr(SecureSite, "_masked", noted)
    monkeypatch.setattr(SecureServer, "finish", summed)
    stop = deployment.connected()
    result = deployment.run(folder=f"run-{secure}")
    stop.set()
    far = distance(result.x, deployment.optimum())
    print(f"\nsecure={secure}: {result.rounds} rounds, {far:.1e} from the pooled fit; {len(sums)} sums of {len(NAMES)} sites")
    assert result.status is fh.Status.SOLVED
    assert same_bits(result.trace.x0, simulated.trace.x0)
    assert same_bits(result.x, simulated.x)
    assert far <= 1e-10
    assert bool(sums) == secure
    assert all(np.array_equal(opened, in_the_open) for opened, in_the_open in sums)
