"""A fit in a file: JSON, numbers in full precision, read strictly. Nothing in it is ever run."""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ..status import InvalidData, Status
from .families import NAMES
from .fit import INTERCEPT, KINDS, Calibration, Fit, Heterogeneity, SiteLine

SCHEMA = "fedhybrid.fit/1"
LARGEST = 1 << 28  # bytes
LEFT_OUT = ("result",)
TEXTS = ("why_no_errors", "message", "privacy")
COUNTS = ("rows", "rounds", "floats_up", "min_rows")
TRUTHS = ("counted", "intercept")
LARGEST_COUNT = 1 << 53


def to_dict(fit: Fit) -> dict[str, Any]:
    """In plain types: infinities and NaN as texts, which JSON has no numbers for. Counts of small sites are not in it."""
    fit = fit.told
    given = {field.name: getattr(fit, field.name) for field in fields(fit) if field.name not in LEFT_OUT}
    given |= {"status": fit.status.name, "design": None if fit.design is None else fit.design.to_dict()}
    given["sites"] = [site._asdict() for site in fit.sites]
    for name in ("heterogeneity", "calibration"):
        given[name] = None if given[name] is None else given[name]._asdict()
    derived = {
        "params": fit.params.to_dict(), "bse": fit.bse.to_dict(), "tvalues": fit.tvalues.to_dict(), "pvalues": fit.pvalues.to_dict(),
        "conf_int": fit.conf_int().T.to_dict("list"), "aic": fit.aic, "bic": fit.bic, "df_model": fit.df_model,
        "df_resid": fit.df_resid, "df_null": fit.df_null, "nobs": fit.nobs, "converged": fit.converged,
    }  # fmt: skip
    return _plain({"schema": SCHEMA} | given | {"derived": derived})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write(fit: Fit, path: Path) -> None:
    path.write_text(json.dumps(to_dict(fit), indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> Fit:
    try:
        if path.stat().st_size > LARGEST:
            raise InvalidData(f"{path} is larger than {LARGEST:,} bytes: it is no fit of ours.")
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidData(f"{path} could not be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise InvalidData(f"{path} is not a JSON file.") from None
    if not isinstance(given, dict) or given.get("schema") != SCHEMA:
        raise InvalidData(f"{path} is no fit, or one of another version: its schema must be {SCHEMA}.")
    try:
        return _fit_of(given)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidData(f"{path} does not hold what a fit holds ({type(error).__name__}: {error}).") from None


def _fit_of(given: dict[str, Any]) -> Fit:
    names = tuple(_text(name) for name in given["names"])
    q = len(names)
    held = {field.name: given[field.name] for field in fields(Fit) if field.name not in LEFT_OUT}
    held |= {
        "family_name": given["family_name"] if given["family_name"] in NAMES else _fail("family_name"),
        "names": names,
        "classes": tuple(given["classes"]),
        "x": _array(given["x"], (q,)),
        "covariance": None if given["covariance"] is None else _array(given["covariance"], (q, q)),
        "error_bounds": None if given["error_bounds"] is None else _array(given["error_bounds"], (q,)),
        "status": Status[given["status"]],
        "design": None if given["design"] is None else _design_of(given["design"]),
        "sites": tuple(SiteLine(**_numbers(site, "site", "update")) for site in given["sites"]),
        "heterogeneity": None if given["heterogeneity"] is None else Heterogeneity(**_numbers(given["heterogeneity"])),
        "calibration": None if given["calibration"] is None else Calibration(**_numbers(given["calibration"])),
        "penalty": tuple(given["penalty"]) if isinstance(given["penalty"], list) else float(given["penalty"]),
        "notes": tuple(_text(note) for note in given["notes"]),
        "convergence": tuple((int(round), float(residual)) for round, residual in given["convergence"]),
    }
    for name in ("dispersion", "weight", "missing", "deviance", "null_deviance", "llf", "llnull", "pearson", "seconds"):
        held[name] = float(held[name])
    held |= {name: _text(given[name]) for name in TEXTS} | {name: _count(given[name], name) for name in COUNTS}
    for name in TRUTHS:
        held[name] = given[name] if isinstance(given[name], bool) else _fail(f"{given[name]!r} for {name}")
    held["kind"] = given["kind"] if given["kind"] in KINDS else _fail(f"{given['kind']!r} for a kind of covariance")
    held["about"] = given["about"] if isinstance(given["about"], dict) else _fail("about")
    _check_design(held)
    return Fit(**held)


def _check_design(held: dict[str, Any]) -> None:
    """Names and what a prediction is made of must be of one model."""
    design, classes = held["design"], held["classes"]
    if design is None:
        return
    columns = [*([INTERCEPT] if held["intercept"] else []), *design.columns]
    names = [f"{name}[{label}]" for name in columns for label in classes[1:]] if classes else columns
    same = held["names"] == tuple(names) and held["intercept"] == design.intercept and held["family_name"] == design.family
    if not same or (classes and classes != design.response_levels):
        _fail("names that are not those of its design")


def _design_of(given: dict[str, Any]) -> Any:
    from ..tables.design import Design

    return Design.from_dict(given)


def _numbers(given: dict[str, Any], *texts: str) -> dict[str, Any]:
    """Texts stay, numbers become numbers, lists become tuples of them."""

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(number(entry) for entry in value)
        return float(value) if isinstance(value, str) else value

    return {key: value if key in texts else number(value) for key, value in given.items()}


def _array(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.array(values, dtype=float)
    return array if array.shape == shape else _fail(f"an array of shape {array.shape}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _fail(f"{value!r} for a text")


def _count(value: Any, name: str) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT
    return int(value) if whole else _fail(f"{str(value)[:40]!r} for {name}")


def _fail(what: str) -> Any:
    raise ValueError(what)
