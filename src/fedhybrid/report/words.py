"""What a report says in sentences: of the model, of its certificate, of privacy."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..status import Status
from .summary import KINDS

if TYPE_CHECKING:
    from ..inference.fit import Fit

MODELS = {
    "gaussian": "Linear regression",
    "binomial": "Logistic regression",
    "poisson": "Poisson regression",
    "multinomial": "Multinomial logistic regression",
}
PRIVACY = {
    "plain": (
        "Rows stayed with their sites, but nothing was hidden from the coordinating server: it saw every site's own vectors in every "
        "round, from which that site's data can be computed. Where all tables were read on one machine, nothing has travelled at all."
    ),
    "secagg": (
        "The server saw sums over sites and no site's own vectors. What sums tell in themselves is not hidden: with few sites, or with "
        "one that outweighs the others, a sum says much about one of them."
    ),
    "dp": (
        "The server saw sums over sites, to which every site had added noise of its own: ε and δ bound what anybody can learn of a "
        "site's data from what it has sent."
    ),
}


def title(fit: "Fit") -> str:
    return f"{MODELS[fit.family_name]} of {fit.design.response}" if fit.design else MODELS[fit.family_name]


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def kind_of_end(status: Status) -> tuple[str, str]:
    """A class for its colour, and a sign that says the same without colour."""
    if status is Status.SOLVED:
        return "good", "✓"
    return ("fair", "≈") if status is Status.SOLVED_INACCURATE else ("bad", "✗")


def certificate(fit: "Fit") -> list[str]:
    bounds = None if fit.error_bounds is None else np.asarray(fit.error_bounds, float)
    proved = bounds is not None and len(bounds) > 0 and bool(np.all(np.isfinite(bounds)))
    if not proved:
        said = ["No bound on the error is proved: treat the coefficients as unfinished."]
        if fit.status is Status.SOLVED_INACCURATE:
            said = ["The fit could get no further, which is often exact to rounding; but no bound on the error is proved."]
        return [*said, "What can be done about it is said above."] if fit.message else said
    assert bounds is not None
    worst = int(np.argmax(bounds))
    how = (
        "After the last round the sum of all sites' gradients was computed anew at these coefficients, together with a lower bound on how "
        "strongly the objective bends there. From these two follows, rounding allowed for, how far the coefficients can be from the exact "
        "optimum, which is the fit of one pooled table."
    )
    at = f"{bounds[worst]:.1e} ({fit.names[worst]})"
    said = [how, f"Proved: no coefficient is off by more than {at}; the bound of each stands in the table of coefficients."]
    errors = fit.bse.to_numpy()
    usable = np.isfinite(errors) & (errors > 0)
    if np.any(usable):
        said.append(f"That is at most {np.max(bounds[usable] / errors[usable]):.0e} of a coefficient's standard error.")
    asked = fit.about.get("asked")
    if isinstance(asked, dict) and isinstance(asked.get("tol"), float):
        said.append(f"The tolerance that was asked for is {asked['tol']:g}, relative to the coefficients of standardised columns.")
    if fit.status is not Status.SOLVED:
        said.append(f"This is wider than the tolerance that was asked for, so that the status is {fit.status}.")
    said.append("It proves that the arithmetic is right. Whether the model suits the data is another question, and not answered by it.")
    return said


def privacy(label: str) -> str:
    kind = label.partition("(")[0].strip()
    return PRIVACY.get(kind, "docs/privacy.md says what the labels protect, and what they leak.")


def errors(fit: "Fit") -> str:
    """Where the standard errors come from, or why there are none."""
    if fit.covariance is None:
        return f"No standard errors. {fit.why_no_errors}".strip()
    if fit.kind != "model":
        return KINDS[fit.kind]
    return "Standard errors are those of the model, from one sum of all sites' Hessians."


def agreement(fit: "Fit") -> str:
    """The test of all coefficients at once. Its degrees of freedom count the rows of sites that have few, and are not told with those."""
    found = fit.heterogeneity
    if found is None or found.df == 0 or math.isnan(found.pvalue):
        return "Not tested: that takes a fit that came to its end, without a penalty, and two sites at least."
    p = "p < 0.0001" if found.pvalue < 1e-4 else f"p = {found.pvalue:.4f}"
    statistic = "" if math.isnan(found.df) else f"χ²({found.df}) = {found.statistic:.4g}, "
    verdict = (
        "the sites' data speak against one set of coefficients for all of them."
        if found.pvalue < 0.05
        else "the data do not speak against one set of coefficients for all sites."
    )
    return f"Rao's score test of all coefficients at once: {statistic}{p}; {verdict}"


def listed(values: Any, most: int = 12) -> str:
    values = [str(value) for value in values]
    return ", ".join(values[:most]) + (f" and {len(values) - most} more" if len(values) > most else "")
