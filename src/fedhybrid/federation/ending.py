"""How a run ended, told to the sites: each keeps a copy of its own, result.json in the folder of its state.

A site may be told twice, by a server that was started again; its copy is then the same. What becomes of the message changes nothing
at the server: it is sent once, and answers are waited for a short while. A site that is away then can ask the server's people.
"""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..result import Result
from ..status import CheckpointError, FedHybridError, Status
from .envelope import Question, Refused, digest, read_answer, read_floats, seal, unseal
from .events import Events
from .kept import Kept
from .link import Link
from .terms import Terms

RESULT = "result.json"
TO_BE_CONTINUED = (Status.INTERRUPTED, Status.QUORUM_LOST, Status.CHECKPOINT_ERROR)  # such a run has not ended
FAREWELL = 20.0  # seconds; a stock site takes six
HEADER = {"ended": str, "run": str, "epoch": int, "rounds": int, "sites": list, "privacy": str, "terms": str}
LONGEST_LABEL = 200


class Ending(NamedTuple):
    """What a site is told."""

    terms: str  # digest of what was agreed
    run: str
    epoch: int
    status: str
    rounds: int
    sites: tuple[str, ...]  # whose answer it is
    privacy: str
    error_bound: float  # infinite where none was proved
    x: np.ndarray

    @property
    def question(self) -> Question:
        """What an answer to it answers."""
        return Question("ended", self.terms, self.run, self.epoch, self.rounds, (), self.sites, np.zeros(0))


def seal_ending(ending: Ending) -> bytes:
    header = {name: list(value) if name == "sites" else value for name, value in ending._asdict().items() if name in HEADER}
    return seal(header | {"ended": ending.status}, np.append(ending.error_bound, ending.x).astype("<f8").tobytes())


def read_ending(data: Any) -> Ending | None:
    """None where the message is of another kind; whoever reads it as a question says what is wrong with it."""
    try:
        header, body = unseal(data, HEADER)
    except Refused:
        return None
    row, status = read_floats(body), header.pop("ended")
    if status not in Status.__members__ or Status[status] in TO_BE_CONTINUED:
        raise Refused("question", "tells of an end that is none.")
    if len(header["privacy"]) > LONGEST_LABEL or not header["privacy"].isprintable():
        raise Refused("question", "tells of an end with a label that is none.")
    if not all(type(name) is str for name in header["sites"]):
        raise Refused("question", "tells of an end with sites that are no names.")
    if not row.size or math.isnan(row[0]) or row[0] < 0.0 or not np.all(np.isfinite(row[1:])):
        raise Refused("question", "tells of an end whose numbers cannot be used.")
    return Ending(**header | {"sites": tuple(header["sites"])}, status=status, error_bound=float(row[0]), x=row[1:])


# ── at the server ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tell_all(link: Link, terms: Terms, agreed: str, run: str, epoch: int, result: Result, events: Events) -> None:
    """Also those that took no part to the end are told, though not waited for. `agreed`: the digest that is in the sites' files."""
    if result.status in TO_BE_CONTINUED:
        return
    label, bound = result.privacy, float(result.error_bound)
    ending = Ending(agreed, run, epoch, result.status.name, result.rounds, result.names, label, bound, np.asarray(result.x))
    data = seal_ending(ending)
    waiting, asked = set(result.names), {digest(data): 0}
    until = time.monotonic() + min(FAREWELL, terms.rounds.deadline)
    try:
        link.push(dict.fromkeys(terms.names, data))
        while waiting and (left := until - time.monotonic()) > 0:
            for name, raw in link.pull(min(0.5, left)):
                try:
                    answer = read_answer(raw, asked)
                except Refused:
                    continue
                if answer is not None and answer.site == name:
                    waiting.discard(name)
                    if answer.refused:
                        events.tell("not told", site=name, why=answer.message)
    except (FedHybridError, OSError) as error:
        events.tell("not told", site="", why=str(error))
    events.tell("told", sites=sorted(set(result.names) - waiting), away=sorted(waiting))


# ── at a site ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def keep_ending(ending: Ending, names: tuple[str, ...], folder: Path) -> None:
    """As a file that people read. `names`: of the coefficients."""
    told = ending._asdict() | {"error_bound": ending.error_bound if math.isfinite(ending.error_bound) else "inf"}
    del told["epoch"]
    values = ending.x.tolist()
    text = json.dumps(told | {"x": values, "coefficients": dict(zip(names, values, strict=True))}, indent=2, ensure_ascii=False)
    Kept(folder / RESULT).save(f"{text}\n".encode())


def read_kept(folder: Path) -> Mapping[str, Any] | None:
    """What is in that file, and None where there is none."""
    data = Kept(folder / RESULT).load()
    try:
        return dict(json.loads(data)) if data else None
    except ValueError:
        raise CheckpointError(f"{folder / RESULT} is damaged.") from None


def sentence_of(told: Mapping[str, Any], name: str, folder: Path) -> str:
    """One line for the site's people."""
    bound = float(told["error_bound"])
    near = f", at most {bound:.1e} from the optimum" if math.isfinite(bound) else ""
    without = "" if name in told["sites"] else f" This site is not in the answer: it is that of {', '.join(told['sites'])}."
    ended = f"The run has ended: {told['status']} after {told['rounds']} rounds{near}. Privacy: {told['privacy']}."
    return f"{ended}{without} The coefficients: {folder / RESULT}"
