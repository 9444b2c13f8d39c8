"""A fitted model as one HTML file that needs nothing else: no network, no other file. Light and dark, on a phone and on paper."""

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from . import sections, words
from .markup import Markup, element, together

if TYPE_CHECKING:
    from ..inference.fit import Fit


def write_report(fit: "Fit", path: Path, level: float = 0.95) -> None:
    path.write_text(page(fit, level), encoding="utf-8")


def page(fit: "Fit", level: float = 0.95) -> str:
    fit = fit.told
    parts = [
        sections.key_figures(fit),
        sections.coefficients(fit, level),
        sections.sites(fit),
        sections.heterogeneity(fit),
        sections.calibration(fit),
        sections.convergence(fit),
        sections.certificate(fit),
        sections.data_quality(fit),
        sections.privacy(fit),
        sections.reproduction(fit),
    ]
    body = element("body", element("main", sections.head(fit), parts), element("script", _asset("report.js")))
    return f"<!doctype html>\n{element('html', _head(fit), body, lang='en')}\n"


def _head(fit: "Fit") -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", words.title(fit)),
        element("style", _asset("report.css")),
    )


def _policy() -> str:
    """Nothing may be fetched, and no script run but this page's own, which is known by its digest."""
    script, style = (_digest(_asset(name)) for name in ("report.js", "report.css"))
    allowed = {"default-src": "'none'", "script-src": script, "style-src": style, "base-uri": "'none'", "form-action": "'none'"}
    return "; ".join(f"{what} {where}" for what, where in allowed.items())


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> Markup:
    return together([Markup(files(__package__).joinpath(name).read_text(encoding="utf-8"))])
