"""What the commands of a federation do: server, site, simulate, status, result. Each returns its exit status.

0  solved, or done what was asked     1  ended otherwise     2  the caller's mistake, raised as InvalidConfig or InvalidData
"""

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from ..curvature import UPDATES
from ..result import Result
from ..status import InvalidConfig, Status
from .envelope import ANSWER, Refused, read_question, unseal
from .folder import RUN, TERMS_FILE, check_registered, need_flower, terms_of
from .schema import one_of
from .server import serve
from .simulate import RULES, rules_beside
from .simulate import simulate as run_simulation
from .site import Rules, Site, read_rules
from .terms import Terms, read_terms
from .view import Lines, ServerView, clock, show_answer, story_of

RESULT, EVENTS, AGREED, STOCK = "result.json", "events.jsonl", "terms", "FEDHYBRID_SITE"
TO_BE_CONTINUED = (Status.INTERRUPTED, Status.QUORUM_LOST, Status.CHECKPOINT_ERROR)  # the same command goes on after them


class Stopped(BaseException):
    """SIGTERM or Ctrl-C. Not a KeyboardInterrupt, which a solver answers with one more round: all is on the disk already."""


def server(folder: Path, host: str | None, port: int | None, insecure: bool, console: Console) -> int:
    need_flower()
    from .connection import host_of, is_loopback
    from .processes import Server

    terms = terms_of(folder)
    if (ended := _ended(folder, terms)) is not None:
        show_answer(ended, console)
        again = f"mv {folder / RUN} {folder / RUN}-1"
        console.print(f"\nThis run has ended. To begin another one, put its record away:\n  {again}", highlight=False, soft_wrap=True)
        return _exit_status(ended)
    revoked = check_registered(folder, terms)
    if host is None:
        host = "127.0.0.1" if insecure or is_loopback(host_of(terms.address)) else "0.0.0.0"
    port = int(terms.address.rpartition(":")[2]) if port is None else port
    try:
        with _stopped_by_signals(), Server(folder, host, port, insecure=insecure) as running:
            _keep_to(folder / RUN, terms)
            with ServerView(running.link, terms, console) as view:
                tls = " without TLS" if insecure else ""
                view.say(f"Listening on {host}:{running.port}{tls} for {', '.join(terms.names)}. Ctrl-C ends it.")
                for name in revoked:
                    view.say(f"{name} was revoked: its key is not let in.")
                result = serve(terms, view, folder / RUN, view)
    except Stopped:
        console.print(f"Stopped. Nothing is lost: fedhybrid server {folder} goes on from here.", highlight=False, soft_wrap=True)
        return 1
    answer = answer_of(result, terms)
    _write(folder / RUN / RESULT, answer)
    show_answer(answer, console)
    if not answer["finished"]:
        console.print(f"\nNothing is lost: fedhybrid server {folder} goes on from here.", highlight=False, soft_wrap=True)
    return _exit_status(answer)


def site(folder: Path, name: str | None, data: Path | None, update: str | None, engine: str, insecure: bool) -> int:
    need_flower()
    from .keys import CA

    one_of("direct", "stock")("--engine", engine)
    if update is not None:
        one_of(*UPDATES)("--update", update)
    if insecure and engine == "stock":
        raise InvalidConfig("--insecure: a stock SuperNode is started with TLS only.")
    place = _place_of_site(folder, name)
    terms, rules = terms_of(place), _own_rules(place, data, update)
    if rules.key is None:
        raise InvalidConfig(f"{place / RULES} needs key, the file of this site's private key.")
    lines, stop = Lines(), threading.Event()
    with _stop_set_by_signals(stop), contextlib.closing(lines):
        here = Site(terms, rules)
        held = here.fleet.sites[0].A.shape[0]
        lines.say(f"{rules.name}: {held:,} rows of {rules.data}, update {rules.update}, {terms.n} sites. Ctrl-C ends it.")
        lines.say(f"Connecting to {terms.address} …")
        if engine == "stock":
            _serve_by_supernode(terms, rules, place, stop)
        else:
            with here.locked():
                _serve(here, terms, rules, None if insecure else place / CA, stop, lines)
        lines.say("Ended.")
    return 0


def simulate(path: Path, data: Mapping[str, Path], console: Console) -> int:
    path = path / TERMS_FILE if path.is_dir() else path
    terms = read_terms(path)
    if unknown := [name for name in data if name not in terms.names]:
        raise InvalidConfig(f"--data {unknown[0]}=…: the sites are {', '.join(terms.names)}.")
    rules = rules_beside(path, terms)
    rules |= {name: replace(rules.get(name, Rules(name, table)), data=table) for name, table in data.items()}
    if missing := [name for name in terms.names if name not in rules]:
        raise InvalidConfig(f"No {RULES} was found of {', '.join(missing)} beside {path}: give --data {missing[0]}=table.csv.")
    with console.status("compiling …") as line:

        def listen(what: str, details: dict[str, Any]) -> None:
            if what == "round":
                line.update(f"round {details['round']}")

        result = run_simulation(terms, rules, listen)
    answer = answer_of(result, terms)
    show_answer(answer, console)
    return _exit_status(answer)


def status(folder: Path, console: Console) -> int:
    terms = terms_of(folder)
    run = folder / RUN
    if not (run / EVENTS).is_file():
        console.print(f"No run has begun: fedhybrid server {folder} begins one.", highlight=False, soft_wrap=True)
        return 0
    story, holder = story_of(run / EVENTS), _holder(run)
    answer = _read(run / RESULT)
    if answer is not None and answer["finished"]:
        state = f"Ended: {answer['status']} after {answer['rounds']} rounds. The answer: fedhybrid result {folder}"
    elif holder:
        state = f"Running, process {holder}. {story.sentence()}"
    else:
        state = f"No server is running since {clock(story.last)}; {story.round} rounds are on record.\nTo go on: fedhybrid server {folder}"
    console.print(state, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Begun {clock(story.began)}, last heard of {clock(story.last)}. {terms.n} sites.\n", highlight=False)
    console.print(story.table(), highlight=False)
    for remark in story.remarks():
        console.print(remark, markup=False, highlight=False)
    return 0


def result(folder: Path, as_json: bool, console: Console) -> int:
    path = folder / RUN / RESULT
    answer = _read(path)
    if answer is None:
        raise InvalidConfig(f"{path} is not there: no run has ended yet. fedhybrid status {folder} says how far it is.")
    if as_json:
        print(json.dumps(answer, indent=2))
    else:
        show_answer(answer, console)
    return _exit_status(answer)


# ── the answer as a file ──────────────────────────────────────────────────────────────────────────────────────────────────────


def answer_of(result: Result, terms: Terms) -> dict[str, Any]:
    answer = result.to_dict()
    names = (*terms.problem.features, *(("(intercept)",) if terms.problem.intercept else ()))
    return answer | {
        "coefficients": dict(zip(names, answer["x"], strict=True)),
        "sites": list(result.names),
        "privacy": getattr(result, "privacy", "plain"),
        "finished": result.status not in TO_BE_CONTINUED,
        "terms": terms.digest(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _exit_status(answer: Mapping[str, Any]) -> int:
    return 0 if answer["status"] == Status.SOLVED.name else 1


def _write(path: Path, answer: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with open(temporary, "x", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600), encoding="utf-8") as file:
        file.write(json.dumps(answer, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
        Status[answer["status"]], answer["finished"], answer["coefficients"]
        return dict(answer)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidConfig(f"{path} could not be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidConfig(f"{path} is damaged. Delete it: the server makes it again from its record.") from None


def _ended(folder: Path, terms: Terms) -> dict[str, Any] | None:
    answer = _read(folder / RUN / RESULT)
    if answer is None or not answer["finished"]:
        return None
    if answer["terms"] != terms.digest():
        raise _other_terms(folder / RUN)
    return answer


def _keep_to(run: Path, terms: Terms) -> None:
    """A run ends by the terms that it began with."""
    run.mkdir(mode=0o700, exist_ok=True)
    path = run / AGREED
    if not path.is_file():
        path.write_text(terms.digest())
    elif path.read_text() != terms.digest():
        raise _other_terms(run)


def _other_terms(run: Path) -> InvalidConfig:
    return InvalidConfig(
        f"{run} holds a run by other terms than {TERMS_FILE} has now. Put the terms back; or put the run away (mv {run} {run}-1), and give "
        "every site the new terms."
    )


def _holder(run: Path) -> str:
    """The process that has the run's lock; "" if none. It does not try the lock, which could be in a starting server's way."""
    try:
        inode, holder = os.stat(run / "lock").st_ino, (run / "lock").read_text().strip()
        held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
        return holder if any(len(lock) > 5 and lock[5].endswith(f":{inode}") for lock in held) else ""
    except OSError:
        return ""


# ── a site ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _place_of_site(folder: Path, name: str | None) -> Path:
    """The folder itself, or the site's in a federation's."""
    place = folder / name if name is not None and not (folder / RULES).is_file() else folder
    if not (place / RULES).is_file():
        hint = " Which site? Give --name." if name is None and (folder / TERMS_FILE).is_file() else ""
        raise InvalidConfig(f"{place} holds no {RULES}: name the folder that was made for this site.{hint}")
    if name is not None and (said := read_rules(place / RULES).name) != name:
        raise InvalidConfig(f"{place / RULES} is of {said}, not of {name}.")
    return place


def _own_rules(place: Path, data: Path | None, update: str | None) -> Rules:
    rules = read_rules(place / RULES)
    return replace(rules, data=data or rules.data, update=update or rules.update)


def _serve(here: Site, terms: Terms, rules: Rules, ca: Path | None, stop: threading.Event, lines: Lines) -> None:
    from .fleet_api import DirectSite

    assert rules.key is not None
    direct = DirectSite(terms.address, ca, rules.key, memory=rules.state / "node")
    direct.connected = _Connected(lines, stop)
    reporter = _Reporter(lines)
    log = logging.getLogger("fedhybrid.federation.fleet_api")
    log.setLevel(logging.INFO)
    log.addHandler(reporter)
    try:
        direct.serve(_Told(here, lines), stop)
    finally:
        log.removeHandler(reporter)


class _Told:
    """A site's answers, with a line for each."""

    def __init__(self, site: Site, lines: Lines) -> None:
        self.site, self.lines, self.run = site, lines, ("", -1)

    def __call__(self, data: bytes) -> bytes:
        answer = self.site.answer(data)
        with contextlib.suppress(Refused):
            header, _ = unseal(answer, ANSWER)
            if header["refused"]:
                self.lines.say(f"Not answered: {self.site.rules.name} {header['message']}")
                return answer
            question = read_question(data)
            if (question.run, question.epoch) != self.run:
                self.run = (question.run, question.epoch)
                self.lines.say(f"A run with {', '.join(question.sites)}.")
            if question.kind == "again":
                self.lines.say(f"Its state was given back, up to round {question.round}.")
            elif question.round:
                self.lines.pass_by(f"Round {question.round} answered.")
        return answer


class _Connected(threading.Event):
    def __init__(self, lines: Lines, stop: threading.Event) -> None:
        super().__init__()
        self.lines, self.stop = lines, stop

    def set(self) -> None:
        super().set()
        self.lines.say("Connected.")

    def clear(self) -> None:
        if self.is_set() and not self.stop.is_set():
            self.lines.say("The server is away.")
        super().clear()


class _Reporter(logging.Handler):
    """Why there is no connection: said once, and then now and then."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self.lines, self.said = lines, ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        reason = text.partition(" (")[0]
        if reason != self.said:
            self.said = reason
            self.lines.say(text)
        else:
            self.lines.pass_by(text)


def _serve_by_supernode(terms: Terms, rules: Rules, place: Path, stop: threading.Event) -> None:
    from .keys import CA
    from .processes import stock_site

    assert rules.key is not None
    given = {"place": str(place.absolute()), "data": str(rules.data.absolute()), "update": rules.update}
    with stock_site(terms.address, place / CA, rules.key, f"{__name__}:stock_answer", {STOCK: json.dumps(given)}) as process:
        while not stop.wait(1.0):
            process.check()


def stock_answer(data: bytes) -> bytes:
    """What a SuperNode calls, in a new process for every question."""
    given = json.loads(os.environ[STOCK])
    place = Path(given["place"])
    site = Site(terms_of(place), _own_rules(place, Path(given["data"]), given["update"]))
    with site.locked():
        return site.answer(data)


# ── signals ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    def raise_once(number: int, frame: Any) -> NoReturn:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise Stopped

    with _handled(raise_once):
        yield


@contextlib.contextmanager
def _stop_set_by_signals(stop: threading.Event) -> Iterator[None]:
    with _handled(lambda number, frame: stop.set()):
        yield


@contextlib.contextmanager
def _handled(handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
