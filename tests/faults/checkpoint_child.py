"""What the fault tests run in a process of its own: `checkpoint_child.py SRC DIRECTORY TASK [NUMBER …]`.

It imports `fedhybrid.checkpoint` without the package's `__init__`, as jax would cost a second at each of 200 deaths.
It reports with writev: `write` is then called by the checkpoint alone, and strace can count on it.
"""

import os
import resource
import sys
import types

source, directory, task, *numbers = sys.argv[1:]
package = types.ModuleType("fedhybrid")
package.__path__ = [os.path.join(source, "fedhybrid")]
sys.modules["fedhybrid"] = package

import numpy as np  # noqa: E402  (after the stub package is in place)

from fedhybrid.checkpoint import Snapshot, load, lock, save  # noqa: E402  (likewise)
from fedhybrid.status import CheckpointError  # noqa: E402  (likewise)

IDENTITY = {"problem": "p", "algorithm": "a"}


def snapshot(k: int, size: int = 1500) -> Snapshot:
    """All of it says k, so a mixture of two would show."""
    return Snapshot({"k": k, "again": [float(k), str(k)]}, {"x": np.full(size, k, float), "n": np.full(7, k)})


def say(text: object) -> None:
    os.writev(1, [f"{text}\n".encode()])


def save_or_say_why(k: int, size: int = 1500) -> None:
    try:
        save(directory, IDENTITY, snapshot(k, size))
        say(f"saved {k}")
    except CheckpointError as error:
        say(error)


def stored() -> str:
    found = load(directory, IDENTITY)
    return f"holds {found.scalars['k'] if found else None} and {sorted(os.listdir(directory))}"


if task == "save":  # a line after each one that is on the disk
    for k in range(int(numbers[0]), int(numbers[1])):
        save(directory, IDENTITY, snapshot(k))
        say(k)
elif task == "try":  # the sizes of successive snapshots; what became of each
    for k, size in enumerate(map(int, numbers), start=1):
        save_or_say_why(k, size)
    say(stored())
elif task == "limit":
    save_or_say_why(1, 10)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    save_or_say_why(2, 1500)
    say(stored())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    save_or_say_why(3, 1500)
    say(stored())
elif task == "hold":
    with lock(directory):
        say("held")
        sys.stdin.read()
elif task == "fork":
    inlet, outlet = os.pipe()
    with lock(directory):
        say("held")
        if os.fork() == 0:
            os.close(outlet)
            os.read(inlet, 1)  # until the parent has ended
            os._exit(0)
    with lock(directory):
        say("held again")
