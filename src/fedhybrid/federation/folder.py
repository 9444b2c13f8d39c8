"""The federation's folder at the server, and the folders that are carried from it to the sites.

    FOLDER/federation.toml          what everyone has agreed on
    FOLDER/ca.crt … sites/          the keys (keys.py): of the sites the public ones only
    FOLDER/NAME/                    for the site NAME: site.toml, federation.toml, ca.crt and its private key; to be carried there
    FOLDER/run/                     what the server keeps of the run: journal, events.jsonl, result.json
    FOLDER/flower/                  what Flower's processes write

Nothing is overwritten but what a key's rotation and `share` replace.
"""

import importlib.util
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..status import InvalidConfig
from .schema import host_of
from .simulate import RULES
from .terms import Terms, read_terms

TERMS_FILE, RUN = "federation.toml", "run"
RESERVED = ("sites", "run", "flower")  # folders beside the sites' own
MISSING = "Federations run over Flower, which is not installed here: pip install 'fedhybrid[flower]'"

TERMS = """\
# What everyone in this federation has agreed on. The same file lies at the
# server and at every site; each question carries its digest, and a site answers
# those of its own copy only. After a change: fedhybrid federation share FOLDER

[problem]
features = {features}
response = {response}
# weight = "…"              # columns of every table, if there are such
# offset = "…"
loss = {loss}{loss_pad}  # squared, logistic, poisson, huber, softmax
{classes}
reg = {reg}{reg_pad}  # penalty ½·reg·‖x‖², not on the intercept
weighting = "row"           # row: the pooled fit; client: sites count alike
intercept = true

[method]
name = {method}{method_pad}  # parameters, if any, are further lines here

[rounds]
tol = 1e-8                  # SOLVED: proved to be so near the optimum
most = 10000                # rounds
absent = "wait"             # of a site: wait, bridge, drop, abort
deadline = 60.0             # seconds that a round waits for a late site
patience = 3600.0           # seconds that a site may be away, if needed
strikes = 3                 # unusable replies; then a site is put out
# largest_gradient = 10.0   # a site's reply that implies more is not used
# private = true            # sites may add noise: just as many rounds as `most`

[secure]
sums = {sums}{sums_pad}  # the server sees sums over sites only
bits = 40                   # of their fixed point
# threshold = 2             # sites that together undo a mask; usual: ⅔

[network]
address = {address}{address_pad}  # where sites find the server

[sites]                     # names and public keys
{sites}
"""

SITE = """\
# This site's own rules. They stay here; no question of the server changes them.
# Paths are relative to this file.

name = {name}
data = "data.csv"           # the table: CSV with a header, numbers only
update = "newton"           # newton, newton-cg, diagonal, gradient
minimum_rows = 10           # with fewer rows it takes no part
minimum_sites = 3           # nor in a federation of fewer sites
key = {key}
state = "state"             # what it has answered, so that nothing is lost

# Differential privacy, where the federation's terms say private = true:
# [privacy]                 # every answer is clipped and gets noise, here
# clip = 1.0                # the largest gradient that an answer may imply
# epsilon = 8.0             # what all answers may tell, in all runs together;
# delta = 1e-5              # then this site sends nothing more
# rounds = 100              # answers that it is to last for; usual: one run's
# sigma = 20.0              # or the noise on each entry of such a gradient
"""


@dataclass(frozen=True)
class Plan:
    """What `init` is told."""

    sites: tuple[str, ...]
    response: str
    loss: str
    features: tuple[str, ...]
    reg: float = 0.01
    method: str = "krylov"
    address: str = "127.0.0.1:9092"
    secure: bool = True
    classes: tuple[float, ...] | None = None


def need_flower() -> None:
    for name in ("flwr", "cryptography"):
        try:
            found = importlib.util.find_spec(name)
        except ValueError:  # in sys.modules as None: as good as not there
            found = None
        if found is None:
            raise InvalidConfig(MISSING)


def init(folder: Path, plan: Plan) -> Terms:
    """Make the folder: keys, terms, and a folder for every site. All is checked before anything is written."""
    need_flower()
    from . import keys

    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidConfig(f"{folder} is there already, and nothing is overwritten: name a new folder.")
    host = host_of(plan.address)
    names = keys.site_names(plan.sites)
    if len(names) < len(plan.sites):
        raise InvalidConfig(f"--sites: a name is given twice: {', '.join(plan.sites)}.")
    if taken := [name for name in names if name.lower() in RESERVED]:
        raise InvalidConfig(f"--sites: {taken[0]!r} is the name of a folder that the server needs; call the site otherwise.")
    if plan.secure and len(names) < 3:
        raise InvalidConfig("Secure sums need three sites: of two, each can work out the other's numbers. Or give --insecure-plain-sums.")
    _check(terms_text(plan, {name: f"key of {name}" for name in names}))
    keys.create(folder, names, [host])
    text = terms_text(plan, {name: public_key(folder, name) for name in names})
    keys.write_private(folder / TERMS_FILE, text.encode())
    for name in names:
        (folder / name).mkdir(mode=0o700)
        private = f"{name}.key"
        keys.write_private(folder / name / RULES, SITE.format(name=_toml(name), key=_toml(private)).encode())
        _hand_over(folder, name)
    return share(folder)


def features_of(table: Path, response: str) -> tuple[str, ...]:
    """The columns of a table like the sites' ones, but for the response."""
    try:
        with open(table, encoding="utf-8-sig") as file:
            header = [name.strip().strip('"') for name in file.readline(1 << 20).split(",")]
    except OSError as error:
        raise InvalidConfig(f"--like {table} could not be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidConfig(f"--like {table} is not a CSV file in UTF-8.") from None
    if response not in header:
        raise InvalidConfig(f"--like {table} has no column {response!r}, the response; it has {', '.join(header)}.")
    return tuple(name for name in header if name != response)


def labels_of(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(label) for label in text.split(","))
    except ValueError:
        raise InvalidConfig(f"--classes {text}: the response's values are numbers, with commas between: 0,1,2.") from None


def terms_text(plan: Plan, public: Mapping[str, str]) -> str:
    values = {
        "loss": _toml(plan.loss),
        "reg": repr(float(plan.reg)),
        "method": _toml(plan.method),
        "sums": _toml(plan.secure),
        "address": _toml(plan.address),
    }
    classes = "# classes = [0, 1, 2]       # with softmax: the response's values"
    if plan.classes is not None:
        labels = ", ".join(f"{label:g}" for label in plan.classes)
        classes = f"{f'classes = [{labels}]':<27} # the response's values"
    pads = {f"{name}_pad": " " * (26 - len(name if name != "method" else "name") - 3 - len(value)) for name, value in values.items()}
    sites = "\n".join(f"{name} = {_toml(key)}" for name, key in public.items())
    return TERMS.format(features=_wrapped(plan.features), response=_toml(plan.response), classes=classes, sites=sites, **values, **pads)


def terms_of(folder: Path) -> Terms:
    """The terms in a federation's or a site's folder."""
    if not (folder / TERMS_FILE).is_file():
        raise InvalidConfig(f"{folder} holds no {TERMS_FILE}: name the folder that fedhybrid federation init made, or a site's.")
    return read_terms(folder / TERMS_FILE)


def check_method(terms: Terms) -> None:
    """That secure sums can carry what the method sends, before anybody connects."""
    if terms.secure.sums:
        from .agreed import refuse_what_no_sum_can_carry
        from .protocol import protocol_of

        algorithm = terms.algorithm()
        refuse_what_no_sum_can_carry(terms, protocol_of(algorithm, terms.stand_in(), terms.n), str(algorithm.spec))


def check_registered(folder: Path, terms: Terms) -> tuple[str, ...]:
    """That the keys in the terms are those that the server lets in. Returns the sites that are no longer let in, where the run can do
    without."""
    from . import keys

    registered = keys.registered(folder)
    revoked = tuple(name for name in terms.names if name not in registered)
    if revoked and terms.rounds.absent != "drop":
        raise InvalidConfig(
            f"{', '.join(revoked)} stands in {folder / TERMS_FILE}, but has no key in {folder / keys.SITES}: it was revoked. Take its line "
            f"out of [sites], run fedhybrid federation share {folder}, and begin another run."
        )
    for name, key in terms.sites:
        if name not in revoked and key != public_key(folder, name):
            raise InvalidConfig(f"{name}: the key in {folder / TERMS_FILE} is not the one in {folder / keys.SITES / name}.pub.")
    return revoked


def public_key(folder: Path, name: str) -> str:
    """As in its file, less the comment."""
    from . import keys

    try:
        return " ".join((folder / keys.SITES / f"{name}.pub").read_text(encoding="ascii").split()[:2])
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{folder / keys.SITES / name}.pub could not be read: {getattr(error, 'strerror', 'it is no key')}.") from None


def share(folder: Path) -> Terms:
    """Put the terms, as they are now, into the sites' folders here. They are still to be carried to the sites."""
    from . import keys

    terms = terms_of(folder)
    for name in terms.names:
        if (folder / name).is_dir():
            for file in (TERMS_FILE, keys.CA):
                keys.write_private(folder / name / file, (folder / file).read_bytes(), replace=True)
    return terms


def rotate(folder: Path, name: str) -> Path:
    """A new key pair for a site, also in the terms. Returns the folder that is to be carried to it."""
    need_flower()
    from . import keys

    terms, old = terms_of(folder), public_key(folder, name)
    if name not in terms.names:
        raise InvalidConfig(f"{name} is none of the sites of this federation: {', '.join(terms.names)}.")
    keys.rotate_site(folder, name)
    text = (folder / TERMS_FILE).read_text(encoding="utf-8")
    keys.write_private(folder / TERMS_FILE, text.replace(old, public_key(folder, name)).encode(), replace=True)
    (folder / name).mkdir(mode=0o700, exist_ok=True)
    _hand_over(folder, name)
    share(folder)
    return folder / name


def _hand_over(folder: Path, name: str) -> None:
    """A private key goes from the server's keys to the site's folder."""
    from . import keys

    os.replace(folder / keys.SITES / name, folder / name / f"{name}.key")


def _check(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TERMS_FILE
        path.write_text(text, encoding="utf-8")
        check_method(read_terms(path))


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _wrapped(values: Iterable[str]) -> str:
    """A list, in lines of 80 columns."""
    items = [_toml(value) for value in values]
    if len(line := f"[{', '.join(items)}]") <= 68:
        return line
    lines = ["    "]
    for item in items:
        if len(lines[-1]) + len(item) > 77 and lines[-1].strip():
            lines.append("    ")
        lines[-1] += f"{item}, "
    return "[\n" + "\n".join(line.rstrip() for line in lines) + "\n]"
