"""Every file that a run leaves, damaged in every way: an error names it, or the run goes on and ends with the same bits. Nothing else."""

import os
import random
import shutil
from collections import Counter

import numpy as np
import pytest
from harness import Faulty, Federation, terms_of
from samples import same_bits

import fedhybrid as fh
from fedhybrid import checkpoint

pytest.importorskip("cryptography")

CASES = {"open": ("krylov", "logistic", False, "wait"), "masked": ("krylov", "logistic", True, "wait")}
SECURE_CASES = {"masked": CASES["masked"], "masked changes": ("fedhybrid", "squared", True, "bridge")}
pytestmark = pytest.mark.filterwarnings("ignore::fedhybrid.status.CheckpointWarning")


class Stopped(BaseException):
    """The server ends here; the sites' processes too."""


def terms(case):
    method, loss, secure, absent = (CASES | SECURE_CASES)[case]
    return terms_of(method, loss, secure, absent=absent, strikes=2, deadline=30.0, patience=30.0)


class Interrupted:
    """A run that was stopped halfway, as it lies on the disk; with copies of it from before and of another run."""

    def __init__(self, folder, case):
        self.folder, self.case, self.terms = folder, case, terms(case)
        self.whole = Federation(folder / "whole", self.terms).run()
        for name, count in (("other", 7), ("begun", 9)):
            self._until(folder / name, count)

    def _until(self, folder, last):
        federation, count = Federation(folder / "now", self.terms), Counter()

        def meddle(name, answer, _):
            count[name] += 1
            if name == "d" and count[name] == last - 3:
                shutil.copytree(folder / "now", folder / "older")
            if name == "d" and count[name] == last:
                raise Stopped
            return [answer]

        with pytest.raises(Stopped):
            federation.run(Faulty(federation, meddle))

    def files(self, part):
        now = self.folder / "begun" / "now"
        return sorted(
            path.relative_to(now) for path in (now / part).rglob("*") if path.is_file() and path.suffix in (".log", ".sums", ".fhc", "")
        )


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    made = {}

    def get(case):
        if case not in made:
            made[case] = Interrupted(tmp_path_factory.mktemp("interrupted"), case)
        return made[case]

    return get


def ways(path, interrupted, rng, flips):
    """Name and action, on a copy of the file."""
    good = (interrupted.folder / "begun" / "now" / path).read_bytes()

    def write(data):
        return lambda target: target.write_bytes(data)

    def flipped(bit):
        return good[: bit // 8] + bytes([good[bit // 8] ^ 1 << bit % 8]) + good[bit // 8 + 1 :]

    regions = {
        bit for at in (0, 8, 12, 16, 24, 44, 64, len(good) // 2, len(good) - 33, len(good) - 1) for bit in [8 * at + rng.randrange(8)]
    }
    for bit in sorted({bit for bit in regions if bit < 8 * len(good)} | {rng.randrange(8 * len(good)) for _ in range(flips)}):
        yield f"bit {bit} flipped", write(flipped(bit))
    for _ in range(max(1, flips // 4)):
        yield "cut short", write(good[: rng.randrange(1, len(good))])
    yield "empty", write(b"")
    yield "longer", write(good + b"\0" * rng.randrange(1, 100))
    yield "zeros", write(bytes(len(good)))
    yield "of another version", write(good[:8] + bytes([good[8] + 1]) + good[9:])
    for name in ("other/now", "begun/older"):
        found = [
            file
            for file in (interrupted.folder / name / path.parts[0]).rglob(path.name)
            if file.parent.name == "derived" or "derived" not in path.parts
        ]
        if found and found[0].is_file():
            yield f"from {name}", write(found[0].read_bytes())
    yield "missing", lambda target: target.unlink()
    yield "a directory", lambda target: (target.unlink(), target.mkdir())
    yield "a link", lambda target: (target.rename(target.with_name("elsewhere")), target.symlink_to(target.with_name("elsewhere")))
    yield "a link to nothing", lambda target: (target.unlink(), target.symlink_to("nowhere"))
    yield "a pipe", lambda target: (target.unlink(), os.mkfifo(target))


def outcome(interrupted, folder, named, part):
    """What becomes of the run; anything but a named error or the same bits fails."""
    federation, events = Federation(folder, interrupted.terms), set()
    try:
        result = federation.run(None, lambda what, details: events.add((what, details.get("why"))))
        error = result.message if result.status is fh.Status.CHECKPOINT_ERROR else ""
    except fh.CheckpointError as raised:
        error = str(raised)
    if error:
        assert named in error or (part == "server" and "epoch-000." in error)  # two files that do not fit: one of them is named
        return "an error that names the file"
    if result.status is fh.Status.QUORUM_LOST:
        return "the run ends: " + result.message.split(". ")[1][:60]
    if result.names != interrupted.terms.names:  # it could not keep its state: something stands where its file belongs
        assert any("b took no part to the end" in note for note in result.notes)
        return "the site is put out, and the result says so"
    anew = {("asked again", why) for why in ("unknown_card", "stream_lost", "reused")}
    if anew & events and interrupted.terms.rounds.absent == "bridge":  # sums of changes begin anew, at other scales
        assert result.status is fh.Status.SOLVED
        assert np.linalg.norm(result.x - interrupted.whole.x) <= 1e-10 * np.linalg.norm(result.x)
        return "sums began anew, which was said, and the answer is the same to 1e-10"
    assert same_bits(result.x, interrupted.whole.x), f"another answer: {events}"
    assert same_bits(result.trace.x0, interrupted.whole.trace.x0), "another way to it"
    return "the same bits"


def try_all(interrupted, part, flips, tmp_path, monkeypatch):
    for module in ("exchange", "sums"):
        monkeypatch.setattr(f"fedhybrid.federation.{module}.RESEND", 0.02)
    rng, told = random.Random(0), Counter()
    for path in interrupted.files(part):
        if path.name in ("lock", "node"):
            continue
        for what, act in ways(path, interrupted, rng, flips):
            folder = tmp_path / "now"
            shutil.copytree(interrupted.folder / "begun" / "now", folder)
            act(folder / path)
            ended = outcome(interrupted, folder, path.name, part)
            print(f"    {path} {what}: {ended}") if "run ends" in ended else None
            told[ended] += 1
            shutil.rmtree(folder)
    return told


def tiers(*quick):
    """Some damages of these cases always; of the others, and many, in the long tier."""
    cases = SECURE_CASES | CASES
    some = [pytest.param(case, 1, marks=[] if case in quick else pytest.mark.slow, id=f"{case}-some") for case in cases]
    many = [pytest.param(case, 60, marks=pytest.mark.slow, id=f"{case}-many") for case in cases]
    return pytest.mark.parametrize(("case", "flips"), some + many)


@tiers("open", "masked")
def test_no_damaged_record_of_the_server_is_used_unseen(case, flips, tmp_path, monkeypatch, interrupted):
    told = try_all(interrupted(case), "server", 4 * flips, tmp_path, monkeypatch)
    print(f"{case}, server: {sum(told.values())} damaged files: {dict(told)}")
    assert told["an error that names the file"] > 0


@tiers("open")
def test_no_damaged_memory_of_a_site_is_used_unseen(case, flips, tmp_path, monkeypatch, interrupted):
    told = try_all(interrupted(case), "b", flips, tmp_path, monkeypatch)
    print(f"{case}, site: {sum(told.values())} damaged files: {dict(told)}")
    assert told["the same bits"] > 0


def test_a_file_of_another_site_or_under_other_terms_is_not_used(tmp_path, interrupted, monkeypatch):
    monkeypatch.setattr("fedhybrid.federation.exchange.RESEND", 0.02)
    begun = interrupted("open")
    shutil.copytree(begun.folder / "begun" / "now", tmp_path / "now")
    run = next((tmp_path / "now" / "a").glob("*-0"))
    for name in (checkpoint.CURRENT, checkpoint.PREVIOUS):
        shutil.copy(run / name, tmp_path / "now" / "b" / run.name / name)
    assert outcome(begun, tmp_path / "now", checkpoint.CURRENT, "b") == "the same bits"
    other = Federation(tmp_path / "now", terms_of("krylov", "logistic", tol=1e-7))
    with pytest.raises(fh.CheckpointError, match=r"epoch-000\.log is of other terms"):
        other.run()
