"""One self-contained HTML page: pictures inside, no network, light and dark, readable on a phone."""

import base64
import html
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..algorithms import ALGORITHMS
from ..experiments.study import Measured
from ..tune import shown

LEVELS = (1e-4, 1e-8)


class Section(NamedTuple):
    name: str
    title: str
    measured: list[Measured]
    picture: Path | None


def write_page(path: Path, title: str, sections: list[Section], effort: str) -> None:
    contents = "".join(f'<li><a href="#{section.name}">{html.escape(section.title)}</a></li>' for section in sections)
    body = "".join(_section(section) for section in sections)
    path.write_text(
        f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><main>
<h1>{html.escape(title)}</h1>
<p>Each method runs with the best setting of its search ({html.escape(effort)}): least rounds to a gap of 1e-8, then the smaller gap.
The gap is F(x₀) − F*, relative to the start's. Floats and flops are counted where they happen, and are means per client;
a dash means not reached. Every line is in the CSV file of the same name.</p>
<nav><ol>{contents}</ol></nav>
{body}
</main></body></html>
""",
        encoding="utf-8",
    )


def _section(section: Section) -> str:
    picture = ""
    if section.picture is not None:
        data = base64.b64encode(section.picture.read_bytes()).decode()
        picture = f'<img alt="{html.escape(section.title)}" src="data:image/png;base64,{data}">'
    several = len({(one.problem, one.seed) for one in section.measured}) > 1
    table = _seeds_table(section.measured) if several else _table(section.measured)
    files = ", ".join(f'<a href="{section.name}.{kind}">{kind.upper()}</a>' for kind in (("csv", "png", "pdf") if picture else ("csv",)))
    return f'<section id="{section.name}"><h2>{html.escape(section.title)}</h2>{picture}{table}<p class="files">{files}</p></section>'


def _table(measured: list[Measured]) -> str:
    heads = (
        "method",
        "limit",
        *(f"rounds to {level:.0e}" for level in LEVELS),
        "floats to 1e-8",
        "flops to 1e-8",
        "last gap",
        "setting",
        "of",
    )
    rows = [row(one) for one in sorted(measured, key=lambda one: (one.rounds_to(LEVELS[1]), one.curve.gap[-1]))]
    return _html_table(heads, rows, text={0, 1, 7})


def row(one: Measured) -> list[str]:
    """A method's line in a table."""
    place = np.flatnonzero(one.curve.gap <= LEVELS[1])
    costs = [f"{column[place[0]] / one.n:.2e}" if len(place) else "–" for column in (one.curve.floats_up, one.curve.flops)]
    limit = ALGORITHMS[one.method].limit if one.method in ALGORITHMS else ""
    rounds = [number(one.rounds_to(level)) for level in LEVELS]
    return [one.label, limit, *rounds, *costs, f"{max(one.curve.gap[-1], 0.0):.1e}", shown(one.setting) or "none", f"{one.settings:,}"]


def _seeds_table(measured: list[Measured]) -> str:
    rows = seeds_rows(measured)
    problems = list(dict.fromkeys(one.problem for one in measured))
    return _html_table(("rounds to 1e-8", *problems), rows, text={0})


def seeds_rows(measured: list[Measured]) -> list[list[str]]:
    """A line per method: for each problem the median over seeds, and the range."""
    problems = list(dict.fromkeys(one.problem for one in measured))
    labels = list(dict.fromkeys(one.label for one in measured))
    rows = []
    for label in labels:
        cells = []
        for problem in problems:
            rounds = [one.rounds_to(LEVELS[1]) for one in measured if (one.label, one.problem) == (label, problem)]
            cells.append(f"{number(float(np.median(rounds)))} ({number(min(rounds))} to {number(max(rounds))})")
        rows.append([label, *cells])
    return rows


def number(rounds: float) -> str:
    return f"{rounds:,.0f}" if math.isfinite(rounds) else "–"


def _html_table(heads: tuple[str, ...], rows: list[list[str]], text: set[int]) -> str:
    def cells(tag: str, entries: list[str] | tuple[str, ...]) -> str:
        return "".join(
            f"<{tag}{' class=text' if place in text else ''}>{html.escape(entry)}</{tag}>" for place, entry in enumerate(entries)
        )

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", heads)}</tr></thead><tbody>{lines}</tbody></table></div>'


STYLE = """
:root{color-scheme:light dark;--ink:#1f2933;--paper:#fff;--line:#e4e7eb;--muted:#61707f}
@media(prefers-color-scheme:dark){:root{--ink:#e4e7eb;--paper:#14191f;--line:#323f4b;--muted:#9aa5b1}img{background:#fff;border-radius:6px}}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:75rem;margin:0 auto;padding:1.5rem}h1{font-size:1.7rem}h2{font-size:1.2rem;margin-top:2.5rem}
img{width:100%;height:auto}a{color:inherit}.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;margin:.8rem 0}
td,th{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.text,th.text{text-align:left}th{color:var(--muted);font-weight:600}.files{color:var(--muted);font-size:.85rem}
@media print{nav{display:none}section{break-inside:avoid}}
"""
