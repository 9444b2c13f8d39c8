"""A fitted model as a table in plain text, 80 columns wide."""

import math
from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..inference.fit import Fit

WIDTH = 80
KINDS = {
    "model": "",
    "site": "Standard errors allow for rows of a site that belong together (site as cluster).",
} | {kind: f"Standard errors are robust against a wrong variance ({kind})." for kind in ("HC0", "HC1", "HC2", "HC3")}


def summary(fit: "Fit", level: float = 0.95) -> str:
    fit = fit.told
    parts = [_head(fit), _coefficients(fit, level), _sites(fit)]
    return "\n".join([*parts, *_sentences(fit)]) + "\n"


def number(value: float, digits: int = 6) -> str:
    """As short as it can be; whole numbers as such."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else f"{value:.{digits}g}"


def p_value(p: float) -> str:
    return "–" if math.isnan(p) else "<0.0001" if p < 1e-4 else f"{p:.4f}"


def few(count: float) -> str:
    return "–" if math.isnan(count) else number(count)


def _head(fit: "Fit") -> str:
    gaussian = fit.uses_t
    left = [
        ("Family", f"{fit.family_name}, {fit.family.link} link"),
        ("Response", fit.design.response if fit.design else "y"),
        ("Rows", f"{fit.rows:,}" + (f" ({fit.missing:,} more had gaps)" if fit.missing > 0 else "")),
        ("Sites", number(len(fit.sites))),
        ("Residual df", number(fit.df_resid)),
        ("Rounds", number(fit.rounds)),
    ]
    right = [
        ("Log-likelihood", f"{fit.llf:.6g}"),
        ("AIC", f"{fit.aic:.6g}"),
        ("BIC", f"{fit.bic:.6g}"),
        ("Deviance", f"{fit.deviance:.6g}"),
        ("Null deviance", f"{fit.null_deviance:.6g} (df {number(fit.df_null)})"),
        ("R²", f"{fit.rsquared:.5f}") if gaussian else ("Pseudo R²", f"{fit.pseudo_rsquared:.5f}"),
    ]
    if gaussian:
        right.append(("Dispersion", f"{fit.dispersion:.6g}"))
        left.append(("Status", str(fit.status)))
    else:
        right.append(("Pearson χ²", f"{fit.pearson:.6g}"))
        left.append(("Status", str(fit.status)))
    rule = "═" * WIDTH
    lines = [f"{a:<12} {b:<27.27} {c:>15} {d:>23}" for (a, b), (c, d) in zip(left, right, strict=True)]
    return "\n".join([rule, *lines, rule])


def _coefficients(fit: "Fit", level: float) -> str:
    """As wide as its numbers need; what is left of the line is for the names."""
    ratio = fit.family.ratio
    head = ["coef", "std err", fit.tvalues.name, "p", f"{100 * level:g} % from", "to", *([ratio] if ratio else [])]
    intervals = fit.conf_int(level).to_numpy()
    with np.errstate(over="ignore"):
        ratios = np.exp(fit.x)
    rows = [head]
    for x, error, t, p, (lower, upper), exp in zip(fit.x, fit.bse, fit.tvalues, fit.pvalues, intervals, ratios, strict=True):
        cells = [f"{x:.5g}", _or_dash(error, ".4g"), _or_dash(t, ".3f"), p_value(p), _or_dash(lower, ".5g"), _or_dash(upper, ".5g")]
        rows.append([*cells, f"{exp:.4g}"] if ratio else cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    longest = max(10, *(len(name) for name in fit.names))
    gap = next((gap for gap in (3, 2) if longest + sum(widths) + gap * len(widths) <= WIDTH), 1)
    wide = max(10, min(longest, WIDTH - sum(widths) - gap * len(widths)))
    lines = []
    for name, cells in zip(["", *fit.names], rows, strict=True):
        shown = name if len(name) <= wide else name[: wide - 1] + "…"
        lines.append(f"{shown:<{wide}}" + "".join(f"{cell:>{gap + width}}" for cell, width in zip(cells, widths, strict=True)))
    lines.insert(1, "─" * WIDTH)
    return "\n".join([*lines, "─" * WIDTH])


def _or_dash(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def _sites(fit: "Fit") -> str:
    events = any(not math.isnan(site.events) for site in fit.sites)
    head = f"{'site':<24}{'rows':>9}{'gaps':>7}{'events' if events else '':>9}{'information':>14}  update"
    lines = [head]
    for site in fit.sites:
        cells = [few(site.rows), few(site.missing), few(site.events) if events else ""]
        share = "–" if math.isnan(site.share) else f"{100 * site.share:.1f} %"
        lines.append(f"{site.site:<24.24}{cells[0]:>9}{cells[1]:>7}{cells[2]:>9}{share:>14}  {site.update}")
    return "\n".join([*lines, "─" * WIDTH])


def _sentences(fit: "Fit") -> Iterable[str]:
    said = [f"{fit.status}: {fit.message or fit.status.sentence}"]
    if fit.why_no_errors:
        said.append(f"No standard errors. {fit.why_no_errors}")
    if KINDS[fit.kind] and not fit.why_no_errors:
        said.append(KINDS[fit.kind])
    agreement = fit.heterogeneity
    if agreement is not None and agreement.df != 0:
        statistic = "" if math.isnan(agreement.df) else f"χ²({agreement.df}) = {agreement.statistic:.4g}, "
        said.append(f"Do the sites have the same coefficients? {statistic}p = {p_value(agreement.pvalue)} (Rao's score test).")
    said.append(f"Privacy: {fit.privacy}.")
    said += fit.notes
    for sentence in said:
        yield from wrap(sentence, WIDTH, subsequent_indent="  ")
