"""A fitted model as one HTML file that needs nothing else: its summary."""

import html
from pathlib import Path
from typing import TYPE_CHECKING

from .summary import summary

if TYPE_CHECKING:
    from ..inference.fit import Fit


def write_report(fit: "Fit", path: Path) -> None:
    title = html.escape(f"{fit.family_name} model, {len(fit.sites)} sites")
    head = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
    path.write_text(f"{head}<pre>{html.escape(summary(fit))}</pre>\n</html>\n", encoding="utf-8")
