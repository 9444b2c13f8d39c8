"""D-02: the whole trace of a run has one digest, whatever the process, hash seed, directory, time zone or language.

Run as a script, this file prints the digests of all parts of it.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"


def digests():
    sys.path.insert(0, str(HERE))
    import numpy as np
    from samples import rounds_of, sample

    import fedhybrid as fh

    lines = []
    for transport in (fh.Stacked, fh.Serial):
        fleet = sample("logistic").fleet()
        lam = np.random.default_rng(0).normal(size=(fleet.n, fleet.d))
        rounds = rounds_of(fh.fedhybrid(mu=0.8, a=(0.3, 0.9), b=0.2, lam=lam), transport(fleet), 6)
        parts = {"x0": rounds.x0, "x": rounds.x, "lam": rounds.lam}
        lines += [f"{transport.__name__} {name} {hashlib.sha256(part.tobytes()).hexdigest()}" for name, part in parts.items()]
    return "\n".join(lines)


ENVIRONMENTS = [
    {"PYTHONHASHSEED": "0"},
    {"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LANG": "C"},
    {"PYTHONHASHSEED": "random", "LANG": "tr_TR.UTF-8", "LC_ALL": "C.UTF-8"},
    # compiled anew, not read from the cache
    {"PYTHONHASHSEED": "random", "TZ": "America/St_Johns", "JAX_ENABLE_COMPILATION_CACHE": "false"},
]


@pytest.mark.xdist_group("determinism")
def test_fresh_processes_in_any_environment_give_one_digest(tmp_path):
    places = [HERE, tmp_path, Path("/"), tmp_path]
    here = digests()  # first, so that what it compiles is in the cache for those that read it there
    seen = []
    for at_once in (slice(0, 2), slice(2, 4)):
        running = [
            subprocess.Popen(
                [sys.executable, str(HERE / "test_determinism.py")],
                cwd=place,
                env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(SOURCE)])},
                stdout=subprocess.PIPE,
                text=True,
            )
            for environment, place in zip(ENVIRONMENTS[at_once], places[at_once], strict=True)
        ]
        seen += [process.communicate(timeout=300)[0].strip() for process in running]
        assert all(process.returncode == 0 for process in running)
    for environment, there in zip(ENVIRONMENTS, seen, strict=True):
        assert there == here, environment


if __name__ == "__main__":
    print(digests())
