"""The sections of a report, each from a fit to markup; None where there is nothing to tell."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import again, charts, scales, words
from .markup import Markup, element, name_of, together
from .summary import number, p_value

if TYPE_CHECKING:
    from ..inference.fit import Fit

NOT_TOLD = "–"
LONG = 24  # rows of a table beyond which it scrolls in a box of its own; printed, it is whole
WIDEST = 50.0  # intervals wider than so many times the middle one do not stretch a forest's axis


def section(name: str, title: str, *children: Any) -> Markup:
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def paragraph(*text: Any, kind: str | None = None) -> Markup:
    return element("p", *text, class_=kind)


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Any]], kind: str | None = None, foot: Any = None) -> Markup:
    """The first cell of a row is its name. A table that is long, or of no kind whose columns fit a phone, scrolls: by keys too."""
    top = element("thead", element("tr", [element("th", head, scope="col") for head in heads]))
    body = [element("tr", element("th", row[0], scope="row"), [element("td", cell) for cell in row[1:]]) for row in rows]
    whole = element("table", element("caption", caption), top, element("tbody", body), foot, class_=kind)
    box = {"tabindex": "0", "role": "region", "aria_label": caption} if len(rows) > LONG or kind is None else {}
    return element("div", whole, class_="box long" if len(rows) > LONG else "box", **box)


def facts(pairs: Sequence[tuple[str, Any]], kind: str) -> Markup:
    return element("dl", [element("div", element("dt", name), element("dd", value)) for name, value in pairs], class_=kind)


# ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def head(fit: "Fit") -> Markup:
    kind, sign = words.kind_of_end(fit.status)
    family = f"{fit.family_name} family, {fit.family.link} link"
    formula = element("p", element("code", fit.design.formula), class_="formula") if fit.design else None
    own = fit.message.strip()
    ended = element(
        "div",
        element("span", sign, class_="sign", aria_hidden="true"),
        element("div", element("strong", str(fit.status)), paragraph(own or f"{fit.status.sentence[0].upper()}{fit.status.sentence[1:]}.")),
        class_=f"status {kind}",
    )
    classes = f" Classes: {words.listed(fit.classes)}; the first is the reference." if fit.classes else ""
    return element("header", element("h1", words.title(fit)), formula, paragraph(f"{family}.{classes}", kind="muted"), ended)


def key_figures(fit: "Fit") -> Markup:
    enough = fit.rows >= fit.min_rows  # else every count of the fit is one of so few rows
    rows = f"{fit.rows:,}" if enough else f"<{fit.min_rows}"
    first = [
        ("Rows", rows),
        ("Rows left out", NOT_TOLD if math.isnan(fit.missing) else f"{fit.missing:,}"),
        ("Sites", f"{len(fit.sites):,}"),
        ("Coefficients", f"{len(fit.names):,}"),
        ("Rounds", f"{fit.rounds:,}"),
        ("Seconds", f"{fit.seconds:.3g}"),
    ]
    share = ("R²", f"{fit.rsquared:.4f}") if fit.uses_t else ("Pseudo R²", f"{fit.pseudo_rsquared:.4f}")
    second = [
        ("Log-likelihood", f"{fit.llf:.6g}"),
        ("AIC", f"{fit.aic:.6g}"),
        ("BIC", f"{fit.bic:.6g}" if enough else NOT_TOLD),
        ("Deviance", f"{fit.deviance:.6g}"),
        ("Null deviance", f"{fit.null_deviance:.6g}"),
        ("Residual df", number(fit.df_resid) if enough else NOT_TOLD),
        share,
        ("Dispersion", f"{fit.dispersion:.6g}") if fit.uses_t else ("Pearson χ²", f"{fit.pearson:.6g}"),
    ]
    return section("figures", "At a glance", facts(first, "tiles"), facts(second, "tiles small"))


# ── coefficients ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def coefficients(fit: "Fit", level: float) -> Markup:
    percent = f"{100 * level:g} %"
    forest = _forest(fit, level, percent)
    return section("coefficients", "Coefficients", paragraph(words.errors(fit)), forest, _all_figures(fit, level, percent))


def _forest(fit: "Fit", level: float, percent: str) -> Markup | None:
    from ..inference.fit import INTERCEPT

    drawn = [k for k, name in enumerate(fit.names) if name != INTERCEPT and not name.startswith(f"{INTERCEPT}[")]
    if not drawn:
        return None
    ratio = fit.family.ratio
    ends, pvalues = fit.conf_int(level).to_numpy(), fit.pvalues.to_numpy()
    axis = _axis([(fit.x[k], *ends[k]) for k in drawn], bool(ratio))
    rows = []
    for k in drawn:
        shown = _shown(fit.x[k], ends[k], bool(ratio))
        label = f"{fit.names[k]}: {ratio or 'coefficient'} {shown}, p {_equals(pvalues[k])}"
        rows.append([name_of(fit.names[k]), charts.interval(axis, label, fit.x[k], *ends[k]), shown, p_value(pvalues[k])])
    what = f"{ratio[0].upper()}{ratio[1:]}" if ratio else "Coefficient"
    told = f"{what} ({percent} interval)" if fit.covariance is not None else what
    end = element("tfoot", element("tr", element("td"), element("td", charts.ruler(axis)), element("td", colspan="2")))
    picture = table(
        f"{what}s, {percent} intervals", ("Term", "logarithmic scale" if ratio else "", told, "p"), rows, kind="forest", foot=end
    )
    beyond = any(not axis.holds(value) for k in drawn for value in (fit.x[k], *ends[k]) if not math.isnan(value))
    return together([picture, paragraph("‹ and › go on beyond the picture; « and » lie beyond it.", kind="muted") if beyond else None])


def _axis(rows: Sequence[tuple[float, float, float]], ratio: bool) -> scales.Axis:
    halves = [upper - middle for middle, _, upper in rows]
    finite = sorted(half for half in halves if math.isfinite(half))
    usual = WIDEST * finite[(len(finite) - 1) // 2] if finite else math.inf
    kept = [row for row, half in zip(rows, halves, strict=True) if not half > usual]
    values = [0.0, *(value for row in kept for value in row if math.isfinite(value))]
    return scales.ratios(values) if ratio else scales.linear(values)


def _shown(x: float, ends: Any, ratio: bool) -> str:
    with np.errstate(over="ignore"):
        middle, lower, upper = (float(np.exp(value) if ratio else value) for value in (x, *ends))
    return _short(middle) if math.isnan(lower) else f"{_short(middle)} ({_short(lower)} to {_short(upper)})"


def _short(value: float) -> str:
    """Three digits that count."""
    if not math.isfinite(value):
        return number(value)
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e6 else f"{value:#.3g}".rstrip(".")


def _equals(p: float) -> str:
    return "not known" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"= {p:.4f}"


def _all_figures(fit: "Fit", level: float, percent: str) -> Markup:
    ratio, test = fit.family.ratio, str(fit.tvalues.name)
    heads = ["Term", "Estimate", "Std err", test, "p", f"{percent} from", "to", *([ratio] if ratio else []), "Proved within"]
    bounds = [math.nan] * len(fit.names) if fit.error_bounds is None else list(fit.error_bounds)
    ends = fit.conf_int(level).to_numpy()
    with np.errstate(over="ignore"):
        ratios = np.exp(fit.x)
    rows = []
    for k, (error, t, p) in enumerate(zip(fit.bse, fit.tvalues, fit.pvalues, strict=True)):
        figures = [_figure(fit.x[k], "g"), _figure(error, ".5g"), _figure(t, ".3f"), p_value(p), *(_figure(end, ".6g") for end in ends[k])]
        figures += [_figure(ratios[k], ".5g")] if ratio else []
        bound = f"{bounds[k]:.0e}" if math.isfinite(bounds[k]) else NOT_TOLD
        rows.append([name_of(fit.names[k]), *figures, bound])
    return table("Every coefficient in figures", heads, rows)


def _figure(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else number(value)


# ── sites ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def sites(fit: "Fit") -> Markup:
    """Counts of small sites are not in the file at all."""
    hidden = [math.isnan(site.rows) for site in fit.sites]
    events = any(not math.isnan(site.events) for site in fit.sites)
    shares = any(not math.isnan(site.share) for site in fit.sites)
    told = [site for site, hides in zip(fit.sites, hidden, strict=True) if not hides]
    most_rows, most = max((site.rows for site in told), default=1), max((site.share for site in told), default=1.0)
    rows = []
    for site, hides in zip(fit.sites, hidden, strict=True):
        counted = [NOT_TOLD] * 3 if hides else [f"{site.rows:,}", number(site.events), f"{site.missing:,}"]
        cells: list[Any] = [name_of(site.site), element("span", site.update, class_=f"update {_update_class(site.update)}")]
        cells.append(_with_bar(None if hides else site.rows / most_rows, counted[0], f"{site.site}: {counted[0]} rows"))
        cells += [counted[1]] if events else []
        cells.append(counted[2])
        if shares:
            share = NOT_TOLD if hides or math.isnan(site.share) else f"{100 * site.share:.1f} %"
            known = None if share == NOT_TOLD else site.share / most
            cells.append(_with_bar(known, share, f"{site.site}: {share} of the information"))
        rows.append(cells)
    heads = ["Site", "Update", "Rows", *(["Events"] if events else []), "Left out", *(["Share"] if shares else [])]
    said = ["Left out are rows in which something is missing."]
    if shares:
        said.append("Share is a site's part of what all rows say about the coefficients. Bars are relative to the longest.")
    if any(hidden):
        said.append(f"Counts of a site with fewer than {fit.min_rows} rows are not told, nor others from which they would follow.")
    return section("sites", "Sites", paragraph(" ".join(said)), table("What every site brings", heads, rows, kind="sites"))


def _with_bar(part: float | None, text: str, label: str) -> list[Any]:
    return [element("span", text, class_="count"), None if part is None else charts.bar(part, label)]


def _update_class(update: str) -> str:
    return update if update in ("newton", "newton-cg", "diagonal", "gradient") else "other"


def heterogeneity(fit: "Fit") -> Markup:
    said = [paragraph(words.agreement(fit))]
    found = fit.heterogeneity
    if found is not None and found.sites > 1:
        said.append(
            paragraph(
                f"Cochran's Q compares the coefficients that each of {words.plural(found.sites, 'site')} would have by itself. I² is the "
                "part of their spread that chance does not explain: 0 % where sites agree."
            )
        )
        each = zip(fit.names, found.Q, found.pvalues, found.I2, strict=True)
        rows = [
            [name_of(name), number(Q, 4), p_value(p), _with_bar(I2, f"{100 * I2:.0f} %", f"{name}: I² {100 * I2:.0f} %")]
            for name, Q, p, I2 in each
        ]
        said.append(table("Every coefficient between sites", ("Term", "Q", "p", "I²"), rows, kind="agreement"))
    return section("heterogeneity", "Do sites agree?", *said)


def calibration(fit: "Fit") -> Markup | None:
    """Tenths with few rows are treated as sites with few are."""
    found = fit.calibration
    if found is None:
        return None
    told = [(rows, p, y) for rows, p, y in zip(found.rows, found.predicted, found.observed, strict=True) if rows > 0]
    said = (
        "Rows by tenths of their predicted probability: where the model is calibrated, points lie on the dashed line; larger ones hold "
        "more rows."
    )
    if any(map(math.isnan, found.rows)):
        said += f" Tenths with fewer than {fit.min_rows} rows are left out, and others from which their counts would follow."
    if not told:
        return section("calibration", "Calibration", paragraph(said))
    rows = [[f"{100 * p:.1f} %", f"{100 * y:.1f} %", f"{count:,}"] for count, p, y in told]
    figures = table("Predicted and observed", ("Predicted", "Observed", "Rows"), rows, kind="bins")
    return section("calibration", "Calibration", paragraph(said), element("div", charts.calibration(told), figures, class_="beside"))


# ── how it was done ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def convergence(fit: "Fit") -> Markup:
    drawn = charts.convergence(fit.convergence)
    said = (
        "The residual is what the sites' messages say about the gradient before each round. It tells when to ask for the certificate, and "
        "proves nothing itself."
    )
    costs = (
        f"{words.plural(fit.rounds, 'round')} in all, those of the certificate and of the statistics included; "
        f"{fit.floats_up:,} numbers sent by all sites together."
    )
    return section(
        "convergence", "Convergence", paragraph(said), drawn or paragraph("No residual was recorded."), paragraph(costs, kind="muted")
    )


def data_quality(fit: "Fit") -> Markup:
    notes = [element("li", note) for note in fit.notes]
    body = element("ul", notes) if notes else paragraph("Nothing was found that wants a remark.")
    return section("data", "Notes on the data", body)


def certificate(fit: "Fit") -> Markup:
    return section("certificate", "What is proved", [paragraph(sentence) for sentence in words.certificate(fit)])


def privacy(fit: "Fit") -> Markup:
    label = paragraph("Label: ", element("code", fit.privacy))
    holds = (
        "The numbers in this file are themselves results on people's data: give it to those who may see what it shows. "
        f"Counts of sites with fewer than {fit.min_rows} rows are nowhere in it."
    )
    return section("privacy", "Privacy", label, paragraph(words.privacy(fit.privacy)), paragraph(holds))


def reproduction(fit: "Fit") -> Markup:
    about = fit.about
    versions, asked = ({} if not isinstance(each, dict) else each for each in (about.get("versions"), about.get("asked")))
    pairs = [
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or NOT_TOLD),
        ("Machine", about.get("machine", NOT_TOLD)),
        ("When", about.get("when", NOT_TOLD)),
        ("Method", element("code", asked.get("method") or NOT_TOLD)),
        ("Seed", "none: nothing in this fit is drawn at random"),
    ]
    command = again.command(fit)
    parts: list[Any] = [paragraph("The same tables give the same digits, on this machine and with these versions.")]
    if command is not None:
        parts += [element("h3", "As a command"), _code(command)]
    parts += [element("h3", "In Python"), _code(again.python_call(fit)), facts(pairs, "about")]
    return section("again", "How to get it again", *parts)


def _code(text: str) -> Markup:
    return element("pre", element("code", text), tabindex="0")
