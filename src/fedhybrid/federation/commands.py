"""What the commands at the server do: server, simulate, status, result. Each returns its exit status, `Status.exit_status`."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ..result import Result
from ..status import InvalidConfig, Status
from .ending import RESULT, TO_BE_CONTINUED
from .folder import RUN, TERMS_FILE, check_method, check_registered, need_flower, terms_of
from .schema import host_of
from .server import serve
from .signals import Stopped, stopped_by_signals
from .simulate import RULES, rules_beside
from .simulate import simulate as run_simulation
from .site import Rules
from .terms import Terms, read_terms
from .view import ServerView, clock, show_answer, story_of

EVENTS, AGREED = "events.jsonl", "terms"


def server(folder: Path, host: str | None, port: int | None, insecure: bool, console: Console) -> int:
    need_flower()
    from .connection import is_loopback
    from .processes import Server

    terms = terms_of(folder)
    if (ended := _ended(folder, terms)) is not None:
        show_answer(ended, console)
        again = f"mv {folder / RUN} {folder / RUN}-1"
        console.print(f"\nThis run has ended. To begin another one, put its record away:\n  {again}", highlight=False, soft_wrap=True)
        return _exit_status(ended)
    check_method(terms)
    revoked = check_registered(folder, terms)
    if host is None:
        host = "127.0.0.1" if insecure or is_loopback(host_of(terms.address)) else "0.0.0.0"
    port = int(terms.address.rpartition(":")[2]) if port is None else port
    try:
        with stopped_by_signals(), Server(folder, host, port, insecure=insecure) as running:
            _keep_to(folder / RUN, terms)
            with ServerView(running.link, terms, console) as view:
                tls = " without TLS" if insecure else ""
                view.say(f"Listening on {host}:{running.port}{tls} for {', '.join(terms.names)}. Ctrl-C ends it.")
                for name in revoked:
                    view.say(f"{name} was revoked: its key is not let in.")
                result = serve(terms, view, folder / RUN, view)
    except Stopped:
        console.print(f"Stopped. Nothing is lost: fedhybrid server {folder} goes on from here.", highlight=False, soft_wrap=True)
        return Status.INTERRUPTED.exit_status
    answer = answer_of(result, terms)
    _write(folder / RUN / RESULT, answer)
    show_answer(answer, console)
    if not answer["finished"]:
        console.print(f"\nNothing is lost: fedhybrid server {folder} goes on from here.", highlight=False, soft_wrap=True)
    return _exit_status(answer)


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
    return answer | {
        "notes": [note for note in answer["notes"] if not note.startswith("Privacy: ")],  # it stands in its own place
        "coefficients": dict(zip(terms.coefficients, answer["x"], strict=True)),
        "sites": list(result.names),
        "privacy": result.privacy,
        "finished": result.status not in TO_BE_CONTINUED,
        "terms": terms.digest(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _exit_status(answer: Mapping[str, Any]) -> int:
    return Status[answer["status"]].exit_status


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
