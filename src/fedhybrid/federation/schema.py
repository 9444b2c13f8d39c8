"""Reading TOML files strictly: every key is known, of its type and within its range, or the error names it."""

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..status import InvalidConfig

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")
LARGEST_FILE = 1 << 20


class Key(NamedTuple):
    """One key of a section: how its value is read, and what stands where it is missing."""

    read: Callable[[str, Any], Any]
    default: Any = ...  # none: it has to be there


Section = Mapping[str, Key]


def load(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise InvalidConfig(f"{path} is larger than {LARGEST_FILE} bytes; it holds settings only.")
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidConfig(f"{path} is not a TOML file: {error}.") from None
    except OSError as error:
        raise InvalidConfig(f"{path} could not be read: {error.strerror}.") from None


def read_section(where: str, given: Any, section: Section) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidConfig(f"{where} must be a section, not {type(given).__name__}.")
    refuse_unknown(where, given, section)
    found = {}
    for name, key in section.items():
        if name in given:
            found[name] = key.read(f"{where} {name}", given[name])
        elif key.default is ...:
            raise InvalidConfig(f"{where} needs {name}.")
        else:
            found[name] = key.default
    return found


def refuse_unknown(where: str, given: Mapping[str, Any], known: Any) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidConfig(f"{where} has no key {name!r}.{hint} Its keys are: {', '.join(known)}.")


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 4096 or "\0" in value:
        raise InvalidConfig(f"{name} must be a text, not {value!r}.")
    return value


def site_name(name: str, value: Any) -> str:
    """Letters, digits, _ and -: a name is also a folder."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidConfig(f"{name}: {str(value)[:80]!r} is no name for a site: 1 to 64 letters, digits, _ and -.")
    return value


def address(name: str, value: Any) -> str:
    host_of(value, name)
    return str(value)


def host_of(value: Any, name: str = "") -> str:
    """The host in "host:port" or "[host]:port"."""
    match = ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if not match or not 0 < int(match[3]) < 65536:
        raise InvalidConfig(f"{name}{': ' * bool(name)}{str(value)[:80]!r} is not an address: give host:port, as in fl.example.org:9443.")
    return match[1] or match[2]


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidConfig(f"{name} must be true or false, not {value!r}.")
    return value


def number(low: float, high: float = math.inf, *, open_low: bool = False) -> Callable[[str, Any], float]:
    def read(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or (open_low and value == low):
            raise InvalidConfig(f"{name} must be a number {'above' if open_low else 'from'} {low:g} to {high:g}, not {value!r}.")
        return float(value)

    return read


def whole(low: int, high: int = 2**53) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidConfig(f"{name} must be a whole number from {low} to {high}, not {value!r}.")
        return value

    return read


def one_of(*choices: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        if value not in choices:
            raise InvalidConfig(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
        return str(value)

    return read


def texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or len(set(map(str, value))) != len(value):
        raise InvalidConfig(f"{name} must be a list of different texts.")
    return tuple(text(f"{name}[{k}]", entry) for k, entry in enumerate(value))


def labels(name: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) < 2 or any(isinstance(v, bool) or not isinstance(v, int | float) for v in value):
        raise InvalidConfig(f"{name} must be a list of at least two numbers.")
    if len(set(value)) < len(value) or not all(map(math.isfinite, value)):
        raise InvalidConfig(f"{name} must be different finite numbers.")
    return tuple(map(float, value))


def penalty(name: str, value: Any) -> float | tuple[float, ...]:
    read = number(0.0, 1e150)
    return tuple(read(f"{name}[{k}]", entry) for k, entry in enumerate(value)) if isinstance(value, list) else read(name, value)
