"""What people see of a federation: a live view at the server, lines at a site, and the answer in sentences. 80 columns."""

import json
import math
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..status import InvalidConfig, Status
from .link import Link
from .terms import Terms

SELDOM = 30.0  # seconds between two lines of progress where there is no terminal
PRIVACY = {
    "plain": "the server saw every site's vectors, and could work out their data",
    "secagg": "the server saw sums over sites, and no site's vectors",
    "dp": "what the server saw carries every site's noise, which bounds what it tells",
}


class Story:
    """What the events tell so far: the live view's, and that of `fedhybrid status`."""

    def __init__(self) -> None:
        self.sites: dict[str, dict[str, Any]] = {}
        self.round, self.epoch, self.residual = 0, 0, math.nan
        self.waiting: tuple[str, ...] = ()
        self.began = self.last = self.since = 0.0
        self.bytes_up = self.bytes_down = 0
        self.recent: deque[tuple[int, float]] = deque(maxlen=12)  # rounds, and when they were done
        self.gone: dict[str, str] = {}
        self.ended: dict[str, Any] | None = None

    def hear(self, what: str, details: Mapping[str, Any], when: float) -> None:
        self.last, self.began = when, self.began or when
        if what == "epoch":
            self.epoch, self.ended, self.round, self.waiting = details["epoch"], None, 0, ()
            self.recent.clear()
            kept = self.sites
            self.sites = {name: kept.get(name, {"round": 0, "when": 0.0, "late": 0, "strikes": 0, "why": ""}) for name in details["sites"]}
        elif what == "round":
            self.round, self.waiting = details["round"], ()
            self.recent.append((self.round, when))
            self.bytes_up, self.bytes_down = details.get("bytes_up", 0), details.get("bytes_down", 0)
            for name in details.get("sites", ()):
                self.sites[name] |= {"round": self.round, "when": when}
        elif what == "waiting":
            self.waiting, self.since = tuple(details["sites"]), when - details["seconds"]
        elif what == "residual":
            self.residual = details["residual"]
        elif what in ("bridged", "missing"):
            for name in details["sites"]:
                self.sites[name]["late"] += 1
        elif what == "unusable" and details["site"] in self.sites:
            self.sites[details["site"]] |= {"strikes": details["strikes"], "why": details["why"]}
        elif what == "refused" and details["site"] in self.sites:
            self.sites[details["site"]]["why"] = details["why"]
        elif what == "gone":
            self.gone |= dict.fromkeys(details["sites"], details["why"])
        elif what in ("ended", "result"):
            self.ended, self.waiting = dict(details), ()

    def sentence(self) -> str:
        if self.waiting:
            return f"Round {self.round + 1} waits for {', '.join(self.waiting)}, since {clock(self.since)}."
        return f"Round {self.round} is done." if self.round else "No round is done yet."

    def table(self, present: frozenset[str] | None = None, now: float | None = None) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("site", no_wrap=True, max_width=30)
        if present is not None:
            table.add_column("here")
        for heading in ("round", "answered", "late", "strikes"):
            table.add_column(heading, justify="right")
        for name, site in self.sites.items():
            answered = "–" if not site["when"] else clock(site["when"]) if now is None else f"{max(0.0, now - site['when']):.0f} s ago"
            here = () if present is None else ("yes" if name in present else "no",)
            table.add_row(escape(name), *here, str(site["round"]), answered, str(site["late"]), str(site["strikes"]))
        for name in self.gone:
            table.add_row(escape(name), *(() if present is None else ("",)), "", "put out", "", "")
        return table

    def remarks(self) -> list[str]:
        remarks = [f"{name} takes no further part: {why}" for name, why in self.gone.items()]
        return remarks + [f"{name} {site['why']}" for name, site in self.sites.items() if site["why"]]


def story_of(path: Path) -> Story:
    """From events.jsonl; a line that was cut short or is none is left out."""
    story = Story()
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    event = json.loads(line)
                    story.hear(event.pop("what"), event, event.pop("time"))
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
    except OSError as error:
        raise InvalidConfig(f"{path} could not be read: {error.strerror}.") from None
    return story


class ServerView:
    """A listener to the run's events, and a Link in front of the real one which sees who is there.

    In a terminal it draws; elsewhere, under systemd say, it writes a line now and then.
    """

    def __init__(self, link: Link, terms: Terms, console: Console) -> None:
        self.link, self.terms, self.console = link, terms, console
        self.story, self.here, self.said = Story(), frozenset[str](), time.monotonic()
        self.told_waiting: tuple[str, ...] = ()
        self.live = Live(self, console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> "ServerView":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, what: str, details: dict[str, Any]) -> None:
        self.story.hear(what, details, time.time())
        if what == "epoch" and details["rounds_on_record"] > 1:
            self.say(f"Going on: {details['rounds_on_record'] - 2} rounds are on record.")
        elif what == "unusable":
            self.say(f"{details['site']}: a reply was not used (strike {details['strikes']}): it {details['why']}")
        elif what == "refused" and details["code"] not in ("lost", "old"):
            self.say(f"{details['site']} {details['why']}")
        elif what == "state lost":
            self.say(f"{details['site']} has lost its state, and is given it back.")
        elif what == "gone":
            self.say(f"{', '.join(details['sites'])}: takes no further part. {details['why']}")
        elif what == "told" and details["away"]:
            self.say(f"{', '.join(details['away'])}: away, and not told that the run has ended.")
        elif what == "waiting" and self.live is None and self.story.waiting != self.told_waiting:
            self.told_waiting = self.story.waiting
            self.say(self.story.sentence())
        elif what == "round" and self.live is None and (time.monotonic() - self.said > SELDOM or details["round"] == 1):
            self.told_waiting = ()
            self.say(f"Round {details['round']}: {len(details['sites'])} of {details['of']} sites answered.")

    def say(self, text: str) -> None:
        self.said = time.monotonic()
        self.console.print(f"{clock(time.time())} {text}", markup=False, highlight=False)

    def __rich__(self) -> Group:
        story, now = self.story, time.time()
        head = Text(f"round {story.round}", style="bold")
        residual = "" if math.isnan(story.residual) else f"   residual {story.residual:.1e}"
        (first, since), (last, until) = (story.recent[0], story.recent[-1]) if story.recent else ((0, 0.0), (0, 0.0))
        pace = f"   {(until - since) / (last - first):.2f} s a round" if last > first else ""
        head.append(f"{residual}   ↑ {amount(story.bytes_up)}  ↓ {amount(story.bytes_down)}{pace}", style="not bold")
        absent = [name for name in self.terms.names if name not in self.here and name not in story.gone]
        waiting = f"waiting for {', '.join(absent)} to connect" if absent else ""
        lines = [Text(line, style="yellow") for line in (waiting, *story.remarks()) if line]
        return Group(head, story.table(self.here, now), *lines)

    # ── as a Link ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def push(self, messages: Mapping[str, bytes]) -> None:
        self.link.push(messages)

    def pull(self, timeout: float) -> list[tuple[str, bytes]]:
        found = self.link.pull(timeout)
        here = self.link.present()
        for name in sorted(here ^ self.here):
            self.say(f"{name} is connected." if name in here else f"{name} is away.")
        self.here = here
        return found

    def present(self) -> frozenset[str]:
        return self.link.present()

    def close(self) -> None:
        self.link.close()


class Lines:
    """A site's lines. In a terminal the last one may be one that the next replaces."""

    def __init__(self) -> None:
        self.terminal, self.open, self.said = sys.stdout.isatty(), False, 0.0

    def say(self, text: str) -> None:
        self.said = time.monotonic()
        self._write(text, "\n")

    def pass_by(self, text: str) -> None:
        if self.terminal:
            self._write(text[:70], "")
        elif time.monotonic() - self.said > SELDOM:
            self.say(text)

    def close(self) -> None:
        if self.open:
            self._write("", "\n")

    def _write(self, text: str, end: str) -> None:
        stamp = f"{clock(time.time())} " if text else ""
        sys.stdout.write(f"{chr(13)}\x1b[K{stamp}{text}{end}" if self.open else f"{stamp}{text}{end}")
        sys.stdout.flush()
        self.open = end == ""


# ── the answer ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def show_answer(answer: Mapping[str, Any], console: Console) -> None:
    """From result.json."""
    status = Status[answer["status"]]

    def print_text(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    print_text(f"{status} after {answer['rounds']} rounds. {answer['message']}")
    bound = number(answer["error_bound"])
    far = f"At most {bound:.1e} from the optimum, which is proved." if math.isfinite(bound) else "No distance to the optimum is proved."
    print_text(f"{far} Sites: {', '.join(answer['sites'])}. Method: {answer['algorithm']}.")
    label = str(answer["privacy"])
    print_text(f"Privacy: {label}: {PRIVACY.get(label.partition('(')[0], 'see docs/privacy.md')}.")
    for note in answer["notes"]:
        print_text(note)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("column", max_width=50)
    table.add_column("coefficient", justify="right", no_wrap=True)
    for name, value in answer["coefficients"].items():
        table.add_row(escape(name), f"{value:#.9g}")
    console.print()
    console.print(table, highlight=False)


def number(value: Any) -> float:
    return float(value)  # infinities are texts in JSON


def clock(when: float) -> str:
    """The time of day; with the date where that is another."""
    then, today = time.localtime(when), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def amount(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
