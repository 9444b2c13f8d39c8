"""A federation as people run it: the folder of `federation init`, tables, a SuperLink behind its front, and sites over TLS with keys.

Sites are threads of this process, so that a test can meddle with what they answer, or processes of their own, which a test can kill.
"""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from harness import NAMES, UPDATES, rows_of

from fedhybrid.federation import folder as folders
from fedhybrid.federation import keys
from fedhybrid.federation.fleet_api import DirectSite
from fedhybrid.federation.processes import Server, _free_port
from fedhybrid.federation.server import serve
from fedhybrid.federation.simulate import rules_beside, simulate
from fedhybrid.federation.site import Site
from fedhybrid.federation.terms import read_terms
from tests.federation.conftest import PATIENCE, wait_until

FEATURES, REG = ("u", "v", "w"), 0.1
CODE = "from fedhybrid.cli import app; app()"


class Deployment:
    """`agreed`: lines of federation.toml that differ from the usual. `stack` ends what has been started."""

    def __init__(self, folder, stack, loss="squared", **agreed):
        self.folder, self.stack, self.loss = Path(folder), stack, loss
        plan = folders.Plan(NAMES, "y", loss, FEATURES, REG, "krylov", f"127.0.0.1:{_free_port()}", False)
        folders.init(self.folder, plan)
        self.agree(**{"tol": 1e-10, "deadline": 30.0, "patience": 60.0} | agreed)
        self.data = rows_of(loss)
        for name, (A, y) in self.data.items():
            np.savetxt(self.folder / name / "data.csv", np.column_stack([A, y]), "%.17g", ",", header="u,v,w,y", comments="")
            path = self.folder / name / "site.toml"
            path.write_text(path.read_text().replace('update = "newton"', f'update = "{UPDATES[name]}"'))
        self.runs = 0

    @property
    def terms(self):
        return read_terms(self.folder / folders.TERMS_FILE)

    def agree(self, method=None, **lines):
        """Other lines of federation.toml, for everyone. `method`: its name, or all of its section."""
        path = self.folder / folders.TERMS_FILE
        text = path.read_text()
        if method is not None:
            section = method if "=" in method else f'name = "{method}"'
            text = re.sub(r"(?<=\[method\]\n).*?(?=\n\[rounds\])", f"{section}\n", text, flags=re.DOTALL)
        for name, value in lines.items():
            text, found = re.subn(rf"^(# )?{name} = .*$", f"{name} = {json.dumps(value)}", text, flags=re.MULTILINE)
            assert found == 1, name
        path.write_text(text)
        folders.share(self.folder)

    def simulated(self):
        """The same file in one process; with a longer deadline, for there everything is compiled while the first round waits."""
        terms = self.terms
        patient = replace(terms, rounds=replace(terms.rounds, deadline=60.0))
        return simulate(patient, rules_beside(self.folder / folders.TERMS_FILE, terms))

    def site(self, name):
        return Site(self.terms, rules_beside(self.folder / folders.TERMS_FILE, self.terms)[name])

    def optimum(self, without=()):
        return optimum({name: rows for name, rows in self.data.items() if name not in without}, self.loss)

    # ── over the network ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def listen(self):
        """The server's end, in this process."""
        self.server = self.stack.enter_context(Server(self.folder, port=int(self.terms.address.rpartition(":")[2])))
        return self.server

    def connected(self, answers=None):
        """A direct site for each name, in a thread; they stop at the end, or when the event is set."""
        stop = threading.Event()
        answers = {name: self.site(name).answer for name in NAMES} if answers is None else answers
        for name, answer in answers.items():
            where = {"ca": self.folder / name / keys.CA, "key": self.folder / name / f"{name}.key", "memory": self.folder / f"{name}.node"}
            thread = threading.Thread(target=DirectSite(self.terms.address, **where).serve, args=(answer, stop))
            thread.start()
            self.stack.callback(thread.join, PATIENCE)
        self.stack.callback(stop.set)
        if hasattr(self, "server"):
            wait_until(lambda: set(answers) <= self.server.link.present(), "sites present")
        return stop

    def run(self, *listeners, link=None, folder="run"):
        """The server's half of a run, in this process."""
        return serve(self.terms, link or self.server.link, self.folder / folder, *listeners)

    def child(self, *arguments, log):
        return Child(self.stack, self.folder / f"{log}.log", *arguments)

    def site_child(self, name, *more):
        self.runs += 1
        return self.child("site", self.folder / name, *more, log=f"{name}-{self.runs}")

    def server_child(self):
        self.runs += 1
        return self.child("server", self.folder, log=f"server-{self.runs}")


class Child:
    """A command in a process group of its own, which is ended with the test."""

    def __init__(self, stack, output, *arguments):
        self.output = output
        with open(output, "wb") as file:
            command = [sys.executable, "-c", CODE, *map(str, arguments)]
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        stack.callback(self.kill)

    @property
    def said(self):
        return self.output.read_text()

    def wait_for(self, words, seconds=PATIENCE):
        wait_until(lambda: words in self.said or self.process.poll() is not None, words, seconds)
        assert words in self.said, self.said

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


class Clocked:
    """A listener: when each event was told, and what it said."""

    def __init__(self):
        self.events = []

    def __call__(self, what, details):
        self.events.append((time.monotonic(), what, details))

    def of(self, kind):
        return [details for _, what, details in self.events if what == kind]

    def times(self, kind):
        return [when for when, what, _ in self.events if what == kind]


def optimum(data, loss, reg=REG):
    """Of all rows together by Newton's method in NumPy, the intercept last and not penalised: mean loss + ½·reg·‖x‖²."""
    A, y = (np.concatenate(parts) for parts in zip(*data.values(), strict=True))
    A, penalty = np.column_stack([A, np.ones(len(A))]), reg * np.diag([1.0] * A.shape[1] + [0.0])
    x = np.zeros(A.shape[1])
    for _ in range(50):
        p = A @ x if loss == "squared" else 1.0 / (1.0 + np.exp(-(A @ x)))
        curvature = np.ones(len(A)) if loss == "squared" else p * (1.0 - p)
        x = x - np.linalg.solve(A.T @ (curvature[:, None] * A) / len(A) + penalty, A.T @ (p - y) / len(A) + penalty @ x)
    return x


def distance(x, optimum):
    """Relative."""
    return float(np.linalg.norm(np.asarray(x) - optimum) / np.linalg.norm(optimum))
