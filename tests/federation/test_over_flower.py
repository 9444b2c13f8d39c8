"""Four sites over TLS with keys, a SuperLink and its front: the bits of the same file in one process, in the open and by secure sums."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from deployment import Clocked, Deployment, distance
from harness import NAMES
from samples import same_bits

import fedhybrid as fh
from fedhybrid.federation.ending import read_ending
from fedhybrid.federation.envelope import ANSWER, digest, read_masked, read_question, unseal
from fedhybrid.federation.protocol import protocol_of
from fedhybrid.secure.messages import Kind
from fedhybrid.secure.server import SecureServer
from fedhybrid.secure.site import SecureSite

ENVELOPE = 242  # bytes of an answer that are no number, but for the site's name and the digits of epoch and round; docs/deploy.md has it
MASK = 164  # and of a vector behind masks, which is the body of such an answer; docs/privacy.md has it


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with contextlib.ExitStack() as stack:
        deployment = Deployment(tmp_path_factory.mktemp("over") / "fl", stack, "logistic", tol=1e-12)
        deployment.listen()
        yield deployment


@pytest.fixture(scope="module", params=[pytest.param(False, id="plain", marks=pytest.mark.faults), pytest.param(True, id="secure")])
def run(request, deployment):
    """One run over Flower, and what was seen of it: at the sites before the masks, and at the server's link."""
    deployment.agree(sums=request.param)
    sent, sums, questions, answers, clocked = {}, [], {}, [], Clocked()
    masked, finish, link = SecureSite._masked, SecureServer.finish, deployment.server.link
    push, pull = link.push, link.pull

    def noted(self, question, words):
        sent[question.round, self.name] = words.view(np.int64).copy()
        return masked(self, question, words)

    def summed(self):
        found = finish(self)
        sums.append((found.whole, np.sum([sent[found.round, name] for name in found.sites], axis=0)))
        return found

    def pushed(messages):
        questions.update({digest(data): data for data in messages.values()})
        push(messages)

    def pulled(timeout):
        found = pull(timeout)
        answers.extend(found)
        return found

    stop = deployment.connected()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureSite, "_masked", noted)
        patch.setattr(SecureServer, "finish", summed)
        patch.setattr(link, "push", pushed)
        patch.setattr(link, "pull", pulled)
        result = deployment.run(clocked, folder=f"run-{request.param}")
    stop.set()
    seen = {"sums": sums, "questions": questions, "answers": answers, "rounds": clocked.of("round")}
    return SimpleNamespace(secure=request.param, result=result, simulated=deployment.simulated(), terms=deployment.terms, **seen)


def test_a_federation_over_flower_gives_the_bits_of_one_process_and_the_pooled_fit(run, deployment):
    far = distance(run.result.x, deployment.optimum())
    print(f"\nsecure={run.secure}: {run.result.rounds} rounds, {far:.1e} from the pooled fit, {len(run.sums)} sums of {len(NAMES)} sites")
    assert run.result.status is fh.Status.SOLVED
    assert same_bits(run.result.trace.x0, run.simulated.trace.x0)
    assert same_bits(run.result.x, run.simulated.x)
    assert far <= 1e-10


def test_a_secure_sum_is_that_of_the_fixed_point_numbers_bit_for_bit(run):
    assert bool(run.sums) == run.secure
    assert all(np.array_equal(opened, in_the_open) for opened, in_the_open in run.sums)


def test_an_answer_is_as_long_as_its_declared_shape_and_the_envelope(run):
    protocol = protocol_of(run.terms.algorithm(), run.terms.stand_in(), run.terms.n)
    seen = 0
    for name, raw in run.answers:
        header, body = unseal(raw, ANSWER)
        data = run.questions[header["question"]]
        behind = read_masked(data)
        if read_ending(data) is not None or (run.secure and (behind is None or body[4] != Kind.VECTOR)):
            continue  # how the run ended; the keys before it began
        question = read_question(data if behind is None else behind[0])
        if question.kind != "ask":
            continue
        floats = protocol.questions[question.numbers[0]].up.floats
        varying = len(name) + len(str(header["epoch"])) + len(str(header["round"]))
        assert len(raw) == 8 * floats + (MASK if run.secure else 0) + ENVELOPE + varying
        seen += 1
    assert seen >= len(NAMES) * run.result.rounds
    up = [round_["bytes_up"] for round_ in run.rounds]
    down = [round_["bytes_down"] for round_ in run.rounds]
    each = [np.median(np.diff(counted)) / len(NAMES) for counted in (up, down)]
    print(f"\nsecure={run.secure}: bytes a site and round: up {each[0]:.0f}, down {each[1]:.0f}")
