"""How to get a fit again: the call in Python and, where it says the same, the command."""

import shlex
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..inference.fit import Fit

INDENT = "    "
WIDTH = 88
MANY = 8  # sites beyond which the command names them by a wildcard


def python_call(fit: "Fit") -> str:
    names = [site.site for site in fit.sites]
    lines = ["import fedhybrid as fh"]
    options = _options(fit)
    if fit.design is not None:
        lines += ["import pandas as pd", "", _assigned("names", names), 'tables = {name: pd.read_csv(f"{name}.csv") for name in names}', ""]
        arguments = ["tables", repr(fit.design.formula)]
    else:
        lines += [
            "",
            _assigned("names", names),
            "sites = {name: ... for name in names}  # of each (A, y), (A, y, w) or (A, y, w, offset)",
            "",
        ]
        arguments = ["sites"]
    arguments += [f"{name}={value}" for name, value in options.items()]
    body = "".join(f"{INDENT}{argument},\n" for argument in arguments)
    return "\n".join([*lines, f"fit = fh.fit(\n{body})"])


def command(fit: "Fit") -> str | None:
    """None where the command has no way to say it."""
    if fit.design is None or np.ndim(fit.penalty):
        return None
    names = [site.site for site in fit.sites]
    files = [f"{name}.csv" for name in names] if len(names) <= MANY else None
    parts = ["fedhybrid fit " + (shlex.join(files) if files else "*.csv"), f"--formula {shlex.quote(fit.design.formula)}"]
    parts.append(f"--family {fit.family_name}")
    updates = {site.update for site in fit.sites}
    if len(updates) == 1:
        parts += [f"--update {shlex.quote(update)}" for update in updates if update != "newton"]
    elif updates == {"newton", "gradient"}:
        parts.append(f"--newton {shlex.quote(','.join(site.site for site in fit.sites if site.update == 'newton'))}")
    else:
        return None
    parts += [f"--{name} {shlex.quote(str(value))}" for name, value in _columns(fit).items()]
    chosen = references(fit)
    if chosen:
        parts.append(f"--reference {shlex.quote(','.join(f'{column}={level}' for column, level in chosen.items()))}")
    parts += [f"--reg {fit.penalty!r}"] if fit.penalty else []
    parts += ["--counts"] if fit.counted else []
    parts += [f"--covariance {fit.kind}"] if fit.kind != "model" else []
    parts += [f"--min-rows {fit.min_rows}"] if fit.min_rows != 5 else []
    parts += [f"--tol {tol!r}"] if (tol := _tolerance(fit)) is not None else []
    said_in_lists = [*chosen, *chosen.values(), *(names if len(updates) > 1 else [])]
    return None if any("," in each or "=" in each for each in said_in_lists) else " \\\n  ".join(parts)


def references(fit: "Fit") -> dict[str, str]:
    """Levels that were chosen as references, by column: those that are not the first in sorted order and not named in the formula."""
    from ..tables.columns import sorted_levels

    design = fit.design
    if design is None:
        return {}
    chosen = {
        factor.columns[0]: str(design.levels[factor.name][0])
        for factor in design.parsed.factors
        if factor.name in design.levels
        and factor.reference is None
        and design.levels[factor.name] != tuple(sorted_levels(design.levels[factor.name]))
    }
    labels = design.response_levels
    if labels and tuple(labels) != tuple(sorted_levels(labels)) and design.parsed.response.expression is None:
        chosen[design.response] = str(labels[0])
    return chosen


def _tolerance(fit: "Fit") -> float | None:
    """None where it is the usual one."""
    asked = fit.about.get("asked")
    tol = asked.get("tol") if isinstance(asked, dict) else None
    return tol if isinstance(tol, float) and tol != 1e-10 else None


def _columns(fit: "Fit") -> dict[str, str]:
    """Columns that are no part of the formula."""
    design = fit.design
    given = {} if design is None else {"weights": design.weights, "offset": design.offset}
    return {name: column for name, column in given.items() if column is not None}


def _options(fit: "Fit") -> dict[str, str]:
    options = {"family": repr(fit.family_name)}
    penalty = list(fit.penalty) if isinstance(fit.penalty, tuple) else fit.penalty
    options |= {"reg": repr(penalty)} if np.any(np.asarray(penalty)) else {}
    options |= {name: repr(column) for name, column in _columns(fit).items()}
    options |= {"reference": repr(chosen)} if (chosen := references(fit)) else {}
    updates = {site.update for site in fit.sites}
    options["update"] = repr(updates.pop()) if len(updates) == 1 else _wrapped("[", [repr(site.update) for site in fit.sites], "]")
    options |= {"counts": "True"} if fit.counted else {}
    options |= {"covariance": repr(fit.kind)} if fit.kind != "model" else {}
    if fit.design is None:
        options |= {} if fit.intercept else {"intercept": "False"}
        options |= {"columns": _wrapped("[", [repr(name) for name in own], "]")} if (own := _own_names(fit)) else {}
    options |= {"min_rows": repr(fit.min_rows)} if fit.min_rows != 5 else {}
    options |= {"tol": repr(tol)} if (tol := _tolerance(fit)) is not None else {}
    return options


def _own_names(fit: "Fit") -> list[str]:
    """Names that columns of arrays were given."""
    if fit.classes:
        return []
    names = list(fit.names[1:] if fit.intercept else fit.names)
    return [] if names == [f"x{k + 1}" for k in range(len(names))] else names


def _assigned(name: str, values: list[str]) -> str:
    return f"{name} = " + _wrapped("[", [repr(value) for value in values], "]", indent="")


def _wrapped(opening: str, entries: list[str], closing: str, indent: str = INDENT) -> str:
    """On one line if they fit there; else on as many as it takes."""
    whole = opening + ", ".join(entries) + closing
    if len(whole) <= WIDTH:
        return whole
    lines: list[str] = [""]
    for entry in entries:
        if lines[-1] and len(lines[-1]) + len(entry) + 2 > WIDTH:
            lines.append("")
        lines[-1] += f"{entry}, "
    inner = "".join(f"{indent}{INDENT}{line.rstrip()}\n" for line in lines)
    return f"{opening}\n{inner}{indent}{closing}"
