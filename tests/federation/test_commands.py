"""The commands as people type them: what they write, what they say, and a whole federation of processes."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedhybrid as fh
from fedhybrid.cli import app
from fedhybrid.federation.terms import read_terms

pytest.importorskip("flwr")

from fedhybrid.federation import commands, keys
from fedhybrid.federation.processes import _free_port

NAMES = ("hospital-a", "hospital-b", "hospital-c")
FEATURES = ("age", "dose", "marker")


def run(*arguments, expect=0):
    """Output of a command in this process, as lines of at most 80 columns joined again."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert not isinstance(done.exception, Exception), done.exception
    assert done.exit_code == expect, done.output
    return done.output


def rows_of(name):
    rng = np.random.default_rng(NAMES.index(name))
    A = rng.normal(size=(40 + 20 * NAMES.index(name), len(FEATURES)))
    return A, (A @ [1.0, -1.0, 0.5] + rng.logistic(size=len(A)) > 0).astype(float)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for name in NAMES:
        header = ",".join((*FEATURES, "outcome"))
        np.savetxt(folder / f"{name}.csv", np.column_stack(rows_of(name)), delimiter=",", header=header, comments="", fmt="%.17g")
    return folder


def init(folder, tables, *more, expect=0):
    given = ["--sites", ",".join(NAMES), "--response", "outcome", "--loss", "logistic", "--like", tables / "hospital-a.csv"]
    return run("federation", "init", folder, *given, *more, expect=expect)


@pytest.fixture
def federation(tmp_path, tables):
    folder = tmp_path / "fl"
    init(folder, tables, "--insecure-plain-sums", "--host", f"127.0.0.1:{_free_port()}")
    change(folder, "tol = 1e-8", "tol = 1e-11")
    run("federation", "share", folder)
    return folder


def change(folder, old, new):
    path = folder / "federation.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def pooled():
    rows = [rows_of(name) for name in NAMES]
    A, y = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return fh.solve(fh.Fleet([(A, y)], loss=fh.logistic, reg=0.01, intercept=True, update="newton"), tol=1e-11).x


# ── init ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_init_writes_a_folder_for_every_site_and_keeps_no_private_key(tmp_path, tables):
    folder = tmp_path / "fl"
    said = init(folder, tables, "--host", "fl.example.org:9443", "--reg", "0.5")
    assert str(folder / "hospital-b") in said
    for name in NAMES:
        assert {path.name for path in (folder / name).iterdir()} == {"site.toml", "federation.toml", "ca.crt", f"{name}.key"}
        assert (folder / name / "federation.toml").read_bytes() == (folder / "federation.toml").read_bytes()
        keys.private_key(folder / name / f"{name}.key")
    assert {path.name for path in (folder / "sites").iterdir()} == {f"{name}.pub" for name in NAMES}
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    terms = read_terms(folder / "federation.toml")
    assert terms.names == NAMES
    assert terms.problem.features == FEATURES
    assert (terms.problem.reg, terms.address, terms.secure.sums) == (0.5, "fl.example.org:9443", True)
    assert max(len(line) for line in (folder / "federation.toml").read_text().splitlines() if "ecdsa" not in line) <= 80


def test_init_overwrites_nothing(federation, tables):
    before = {path: path.read_bytes() for path in federation.rglob("*") if path.is_file()}
    assert "nothing is overwritten" in init(federation, tables, expect=2)
    assert before == {path: path.read_bytes() for path in federation.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--loss", "hinge"], "[problem] loss must be one of"),
        (["--sites", "a,b,../c"], "'../c'"),
        (["--sites", "a,b,run"], "'run' is the name of a folder"),
        (["--sites", "a,b"], "--insecure-plain-sums"),
        (["--method", "krylow"], "[method] name: 'krylow' is not known"),
        (["--reg", "-1"], "[problem] reg must be a number"),
        (["--host", "nowhere"], "host:port"),
        (["--response", "result"], "no column 'result'"),
        (["--features", "age"], "either by --features or by --like"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_no_folder(given, said, tmp_path, tables):
    output = init(tmp_path / "fl", tables, *given, expect=2)
    assert said in output
    assert output.startswith("Error: ")
    assert not (tmp_path / "fl").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tol = 1e-11", "tolerance = 1e-8", "[rounds] has no key 'tolerance'"),
        ('absent = "wait"', 'absent = "hope"', "[rounds] absent must be one of wait, bridge, drop, abort"),
        ("most = 10000", "most = -1", "[rounds] most must be a whole number"),
        ("[network]", "[net]", "'net'"),
        ("hospital-c =", "hospital-A =", "capital letters"),
    ],
)
def test_a_mistake_in_the_terms_names_the_key(old, new, said, federation):
    path = federation / "federation.toml"
    change(federation, old, new)
    for command in (["server", federation], ["simulate", path], ["federation", "share", federation], ["status", federation]):
        assert said in run(*command, expect=2)


def test_what_all_have_agreed_on_is_not_changed_on_the_command_line(federation):
    assert "[rounds] absent" in run("server", federation, "--absent", "drop", expect=2)


def test_changed_terms_are_shared_and_a_rotated_key_is_in_them(federation):
    path = federation / "federation.toml"
    change(federation, "tol = 1e-11", "tol = 1e-9")
    run("federation", "share", federation)
    assert read_terms(federation / "hospital-a" / "federation.toml").rounds.tol == 1e-9
    old = (federation / "hospital-b" / "hospital-b.key").read_bytes()
    run("federation", "rotate", federation, "hospital-b")
    assert (federation / "hospital-b" / "hospital-b.key").read_bytes() != old
    assert not (federation / "sites" / "hospital-b").exists()
    assert read_terms(path) == read_terms(federation / "hospital-c" / "federation.toml")
    run("federation", "renew", federation, "--host", "other.example.org")
    run("federation", "revoke", federation, "hospital-c")
    assert "hospital-c" in run("server", federation, expect=2)


def test_without_tls_the_commands_stay_on_this_machine(federation, tables):
    said = run("server", federation, "--insecure", "--host", "0.0.0.0", expect=2)
    assert "without TLS the server listens on this machine only" in said
    change(federation, read_terms(federation / "federation.toml").address, "fl.example.org:9443")
    run("federation", "share", federation)
    said = run("site", federation / "hospital-a", "--insecure", "--data", tables / "hospital-a.csv", expect=2)
    assert "without a CA certificate nothing is encrypted, which is allowed on this machine only" in said


def test_without_flower_the_commands_say_what_to_install(federation):
    code = "import sys; sys.modules['flwr'] = None; from fedhybrid.cli import app; app()"
    for command in (["server", str(federation)], ["site", str(federation / "hospital-a")]):
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
        assert done.returncode == 2
        assert "pip install 'fedhybrid[flower]'" in done.stderr
        assert "Traceback" not in done.stderr


# ── simulate, status, result ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_simulation_equals_the_pooled_fit(federation, tables, monkeypatch):
    kept = []
    monkeypatch.setattr(commands, "show_answer", lambda answer, console: kept.append(answer))
    run("simulate", federation / "federation.toml", *(f"--data={name}={tables / name}.csv" for name in NAMES))
    assert kept[0]["status"] == "SOLVED"
    assert list(kept[0]["coefficients"]) == [*FEATURES, "(intercept)"]
    np.testing.assert_allclose(list(kept[0]["coefficients"].values()), pooled(), rtol=0, atol=1e-10)


def test_a_simulation_says_whose_table_is_missing(federation, tables):
    assert "there is no table" in run("simulate", federation, expect=2)  # data.csv, which site.toml names
    assert "hospital-d" in run("simulate", federation, "--data", "hospital-d=d.csv", expect=2)
    assert "hospital-a=a.csv" in run("simulate", federation, "--data", "d.csv", expect=2)


ANSWER = {
    "status": "SOLVED",
    "message": "The certificate holds.",
    "algorithm": "krylov()",
    "rounds": 7,
    "error_bound": 1e-10,
    "notes": ["hospital-b took no part to the end: gone."],
    "coefficients": {"age": 0.5, "dose[1]": -1.25},
    "sites": ["hospital-a", "hospital-c"],
    "privacy": "secagg(3, 3)",
    "finished": True,
}
TOLD = [
    ("epoch", {"run": "ab", "epoch": 0, "sites": list(NAMES), "rounds_on_record": 0}),
    ("round", {"round": 1, "answered": 3, "of": 3, "sites": list(NAMES), "bytes_up": 10, "bytes_down": 20}),
    ("bridged", {"round": 2, "sites": ["hospital-b"]}),
    ("unusable", {"site": "hospital-c", "why": "holds 3 numbers that are NaN or infinite.", "strikes": 1}),
    ("round", {"round": 2, "answered": 2, "of": 3, "sites": ["hospital-a", "hospital-c"], "bytes_up": 20, "bytes_down": 40}),
    ("waiting", {"round": 3, "sites": ["hospital-b"], "seconds": 5.0}),
]


def tell(folder, told):
    (folder / "run").mkdir(exist_ok=True)
    lines = [json.dumps({"time": time.time(), "what": what, **details}) + "\n" for what, details in told]
    (folder / "run" / "events.jsonl").write_text("".join(lines) + '{"time": 1, "wha')  # cut short


def test_status_tells_the_story_of_the_events(federation):
    assert "No run has begun" in run("status", federation)
    tell(federation, TOLD)
    said = run("status", federation)
    assert "No server is running" in said
    assert "2 rounds are on record" in said
    assert re.search(r"hospital-b +1 +\S+ +1 +0", said)
    assert re.search(r"hospital-c +2 +\S+ +0 +1", said)
    assert "hospital-c holds 3 numbers" in said


def test_a_finished_run_is_shown_and_not_run_again(federation):
    assert "no run has ended" in run("result", federation, expect=2)
    tell(federation, TOLD)
    answer = ANSWER | {"terms": read_terms(federation / "federation.toml").digest()}
    (federation / "run" / "result.json").write_text(json.dumps(answer))
    said = run("result", federation)
    for part in ("SOLVED after 7 rounds", "1.0e-10", "secagg(3, 3)", "dose[1]", "-1.25", "took no part"):
        assert part in said
    assert json.loads(run("result", federation, "--json")) == answer
    assert "Ended: SOLVED" in run("status", federation)
    said = run("server", federation)
    assert "-1.25" in said
    assert f"mv {federation / 'run'}" in said
    (federation / "run" / "result.json").write_text(json.dumps(answer | {"status": "MAX_ROUNDS"}))
    run("server", federation, expect=fh.Status.MAX_ROUNDS.exit_status)
    (federation / "run" / "result.json").write_text(json.dumps(answer | {"terms": "others"}))
    assert "other terms" in run("server", federation, expect=2)
    (federation / "run" / "result.json").write_text("{")
    assert "damaged" in run("result", federation, expect=2)


def test_a_site_says_what_is_wrong_with_its_own_folder(federation, tables):
    site = federation / "hospital-a"
    assert "Which site?" in run("site", federation, expect=2)
    assert "is of hospital-a, not of hospital-b" in run("site", site, "--name", "hospital-b", expect=2)
    assert "--update must be one of" in run("site", site, "--update", "magic", expect=2)
    assert "--engine must be one of" in run("site", site, "--engine", "v8", expect=2)
    assert "there is no table" in run("site", site, expect=2)
    (site / "hospital-a.key").chmod(0o644)
    assert "chmod 600" in run("site", site, "--data", tables / "hospital-a.csv", expect=2)


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Child:
    """A command in a process group of its own, which is ended with the test."""

    def __init__(self, stack, output, *arguments):
        self.output = output
        with open(output, "wb") as file:
            code = "from fedhybrid.cli import app; app()"
            command = [sys.executable, "-c", code, *map(str, arguments)]
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        stack.callback(self.kill)

    @property
    def said(self):
        return self.output.read_text()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def start_sites(stack, federation, tables, *more):
    updates = dict(zip(NAMES, ("newton", "gradient", "newton"), strict=True))
    given = {name: (federation / name, "--data", tables / f"{name}.csv", "--update", update) for name, update in updates.items()}
    return {name: Child(stack, federation / f"{name}.log", "site", *where, *more) for name, where in given.items()}


def check_answer(federation):
    answer = json.loads((federation / "run" / "result.json").read_text())
    assert answer["status"] == "SOLVED"
    np.testing.assert_allclose(list(answer["coefficients"].values()), pooled(), rtol=0, atol=1e-10)
    assert stat.S_IMODE((federation / "run" / "result.json").stat().st_mode) == 0o600
    return answer


def test_a_server_and_three_sites_give_the_pooled_fit(federation, tables):
    with contextlib.ExitStack() as stack:
        sites = start_sites(stack, federation, tables, "--once")
        server = Child(stack, federation / "server.log", "server", federation)
        assert server.process.wait(120) == 0, server.said
        for site in sites.values():
            assert site.process.wait(30) == 0, site.said
            assert "Connected." in site.said
            assert site.said.count("The run has ended: SOLVED after") == 1
            assert site.said.rstrip().endswith("Ended.")
    answer = check_answer(federation)
    for name in NAMES:
        assert json.loads((federation / name / "state" / "result.json").read_text())["coefficients"] == answer["coefficients"]
    assert "SOLVED after" in server.said
    assert "marker" in server.said
    assert not re.search(r"Traceback|\x1b", server.said + "".join(site.said for site in sites.values()))
    assert "Ended: SOLVED" in run("status", federation)
    run("server", federation)


@pytest.mark.faults
def test_a_server_killed_again_and_again_goes_on_by_the_same_command(federation, tables):
    change(federation, '"krylov"', '"fedhybrid"')
    run("federation", "share", federation)
    with contextlib.ExitStack() as stack:
        start_sites(stack, federation, tables)
        done = []
        for kills in range(5):
            server = Child(stack, federation / f"server-{kills}.log", "server", federation)
            deadline = time.monotonic() + 120
            while server.process.poll() is None and time.monotonic() < deadline:
                done = (federation / "run" / "events.jsonl").read_text() if (federation / "run" / "events.jsonl").exists() else ""
                if kills < 4 and re.search(rf'"round": {3 + 5 * kills},', done):
                    server.kill()
            if kills < 4:
                assert server.process.returncode == -signal.SIGKILL, server.said
                assert "No server is running" in run("status", federation)
        assert server.process.returncode == 0, server.said
        assert "rounds are on record" in server.said
    check_answer(federation)


@pytest.mark.faults
def test_a_server_that_is_stopped_leaves_no_process_and_says_how_to_go_on(federation, tables):
    with contextlib.ExitStack() as stack:
        server = Child(stack, federation / "server.log", "server", federation)
        while "Listening" not in server.said:
            time.sleep(0.1)
            assert server.process.poll() is None, server.said
        time.sleep(1.0)
        assert server.end() == fh.Status.INTERRUPTED.exit_status
        assert "goes on from here" in server.said
        assert "No server is running" in run("status", federation)
        home = f"FLWR_HOME={federation}".encode()
        environments = (path / "environ" for path in Path("/proc").iterdir() if path.name.isdigit())
        for environment in environments:
            with contextlib.suppress(OSError):
                assert home not in environment.read_bytes()
