"""What `fedhybrid site` does: it takes part, by either engine, and says so in lines that a person understands."""

import contextlib
import json
import logging
import os
import threading
from dataclasses import replace
from pathlib import Path

from ..curvature import UPDATES
from ..status import InvalidConfig
from .ending import RESULT, read_ending, read_kept, sentence_of
from .envelope import ANSWER, Refused, read_masked, read_question, unseal
from .folder import TERMS_FILE, need_flower, terms_of
from .schema import one_of
from .signals import stop_set_by_signals
from .simulate import RULES
from .site import Rules, Site, read_rules
from .terms import Terms
from .view import Lines

STOCK = "FEDHYBRID_SITE"
STOCK_REPLY = 8.0  # seconds in which a SuperNode has sent an answer that is ready


def attend(folder: Path, name: str | None, data: Path | None, update: str | None, engine: str, insecure: bool, once: bool = False) -> int:
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
    with stop_set_by_signals(stop), contextlib.closing(lines):
        here = Site(terms, rules)
        held = here.fleet.sites[0].A.shape[0]
        lines.say(f"{rules.name}: {held:,} rows of {rules.data}, update {rules.update}, {terms.n} sites. Ctrl-C ends it.")
        if here.private is not None:
            lines.say(here.private.sentence)
        lines.say(f"Connecting to {terms.address} …")
        if engine == "stock":
            _serve_by_supernode(terms, rules, place, stop, lines, once)
        else:
            with here.locked():
                _serve(here, terms, rules, None if insecure else place / CA, stop, lines, once)
        lines.say("Ended.")
    return 0


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


def _serve(here: Site, terms: Terms, rules: Rules, ca: Path | None, stop: threading.Event, lines: Lines, once: bool) -> None:
    from .fleet_api import DirectSite

    assert rules.key is not None
    direct = DirectSite(terms.address, ca, rules.key, memory=rules.state / "node")
    direct.connected = _Connected(lines, stop)
    reporter = _Reporter(lines)
    log = logging.getLogger("fedhybrid.federation.fleet_api")
    log.setLevel(logging.INFO)
    log.addHandler(reporter)
    try:
        direct.serve(_Told(here, lines, stop if once else threading.Event()), stop)
    finally:
        log.removeHandler(reporter)


class _Told:
    """A site's answers, with a line for each. `ended` is set when a run has."""

    def __init__(self, site: Site, lines: Lines, ended: threading.Event) -> None:
        self.site, self.lines, self.ended, self.run = site, lines, ended, ("", -1)

    def __call__(self, data: bytes) -> bytes:
        answer = self.site.answer(data)
        with contextlib.suppress(Refused):
            header, _ = unseal(answer, ANSWER)
            if header["refused"]:
                self.lines.say(f"Not answered: {self.site.rules.name} {header['message']}")
                return answer
            if read_ending(data) is not None:
                _say_ending(self.lines, self.site.rules)
                self.ended.set()
                return answer
            masked = read_masked(data)
            question = read_question(data if masked is None else masked[0])
            if (question.run, question.epoch) != self.run:
                self.run = (question.run, question.epoch)
                self.lines.say(f"A run with {', '.join(question.sites)}.")
            if question.kind == "again":
                self.lines.say(f"Its state was given back, up to round {question.round}.")
            elif question.round:
                self.lines.pass_by(f"Round {question.round} answered.")
        return answer


def _say_ending(lines: Lines, rules: Rules) -> None:
    if (told := read_kept(rules.state)) is not None:
        lines.say(sentence_of(told, rules.name, rules.state))


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


def _serve_by_supernode(terms: Terms, rules: Rules, place: Path, stop: threading.Event, lines: Lines, once: bool) -> None:
    """Questions are answered in other processes; that a run has ended shows in the file that they write."""
    from .keys import CA
    from .processes import stock_site

    assert rules.key is not None
    given = {"place": str(place.absolute()), "data": str(rules.data.absolute()), "update": rules.update}
    before = _version(rules.state / RESULT)
    with stock_site(terms.address, place / CA, rules.key, f"{__name__}:stock_answer", {STOCK: json.dumps(given)}) as process:
        while not stop.wait(1.0):
            process.check()
            if (now := _version(rules.state / RESULT)) != before:
                before = now
                _say_ending(lines, rules)
                if once:
                    stop.wait(STOCK_REPLY)
                    return


def _version(path: Path) -> tuple[int, int]:
    """Another one after each time that the file was written."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def stock_answer(data: bytes) -> bytes:
    """What a SuperNode calls, in a new process for every question."""
    given = json.loads(os.environ[STOCK])
    place = Path(given["place"])
    site = Site(terms_of(place), _own_rules(place, Path(given["data"]), given["update"]))
    with site.locked():
        return site.answer(data)
