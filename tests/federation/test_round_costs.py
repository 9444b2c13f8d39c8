"""What a round of a fit costs beside an empty one, and what Flower and HTTP add to its bytes. By `make faults`."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from deployment import Deployment
from fitting_site_child import EMPTY, empty_answer
from harness import NAMES

from fedhybrid.federation import peer
from tests.federation.conftest import wait_until

pytestmark = pytest.mark.faults
ROUNDS, WARM = 80, 10
CHILD = Path(__file__).with_name("fitting_site_child.py")


@pytest.mark.parametrize("secure", [False, True])
def test_a_round_of_a_fit_takes_hardly_longer_than_an_empty_one(secure, tmp_path, monkeypatch, record_property):
    """After each round of the fit an empty one: as many bytes, to the same sites and back, under the same load."""
    slow = 'name = "fedhybrid"\nmu = 1.0\na = 0.01\nb = 0.01'
    counted = Counter()
    read, answered = peer.Peer.body, peer.Peer.answer

    async def body(self, most):
        found = await read(self, most)
        counted["up"] += len(found)
        return found

    async def answer(self, status, body, *rest, **options):
        counted["down"] += len(body)
        await answered(self, status, body, *rest, **options)

    monkeypatch.setattr(peer.Peer, "body", body)
    monkeypatch.setattr(peer.Peer, "answer", answer)
    with contextlib.ExitStack() as stack:
        deployment = Deployment(tmp_path / "fl", stack, method=slow, sums=secure, most=ROUNDS)
        link = deployment.listen().link
        for name in NAMES:
            child = subprocess.Popen([sys.executable, str(CHILD), str(deployment.folder / name)])
            stack.callback(child.wait, 30)
            stack.callback(child.kill)
        wait_until(lambda: link.present() == set(NAMES), "sites present", 120)
        fits, empties, bytes_of, last = [], [], {"fit": [], "told": []}, [time.monotonic(), Counter(), 0]

        def listen(what, details):
            if what != "round":
                return
            fits.append(time.monotonic() - last[0])
            bytes_of["fit"].append(counted["up"] - last[1]["up"])
            bytes_of["told"].append(details["bytes_up"] - last[2])
            size = round(bytes_of["told"][-1] / len(NAMES))
            question = EMPTY + len(fits).to_bytes(size - len(EMPTY))  # another one each time
            started, waiting = time.monotonic(), set(NAMES)
            link.push(dict.fromkeys(NAMES, question))
            while waiting:
                for name, found in link.pull(1.0):
                    assert found == empty_answer(name, question)
                    waiting.discard(name)
            empties.append(time.monotonic() - started)
            last[:] = [time.monotonic(), Counter(counted), details["bytes_up"]]

        result = deployment.run(listen)
    assert len(fits) >= ROUNDS, result.message
    figures = {
        "secure": secure,
        "a round of the fit": round(statistics.median(fits[WARM:]), 3),
        "an empty round": round(statistics.median(empties[WARM:]), 3),
        "ratio": round(statistics.median(fits[WARM:]) / statistics.median(empties[WARM:]), 3),
        "bytes of a site's answer": round(statistics.median(bytes_of["told"]) / len(NAMES)),
        "bytes in its HTTP bodies": round(statistics.median(bytes_of["fit"]) / len(NAMES)),
        "load": os.getloadavg()[0],
    }
    print(json.dumps(figures))
    record_property("figures", figures)
    assert figures["ratio"] <= 1.2
