"""A fitted model: coefficients by name, and everything that statistics says of them. Plain numbers, so that a file holds it whole.

errors    φ·H⁻¹ with H = Σᵢ Hᵢ, one sum over sites at x̂; or a sandwich of it
tests     coefficient / error against z, or against t where the dispersion φ is estimated; Wald and likelihood-ratio tests of more
"""

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from ..disclosure import total, withheld
from ..status import InvalidConfig, Status
from .families import Family, family_of

if TYPE_CHECKING:
    from ..result import Result
    from ..tables.design import Design

Array = np.ndarray
INTERCEPT = "Intercept"
LEVEL = re.compile(r"\[[^\]]*\]")  # of a factor, or the class, in a coefficient's name: without it, the term's name is left
KINDS = ("model", "HC0", "HC1", "HC2", "HC3", "site")  # of a covariance


def between_0_and_1(level: Any) -> float:
    """The level of an interval, checked."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise InvalidConfig(f"level must lie between 0 and 1, such as 0.95, not {level!r}.")
    return float(level)


def _numbers_for(hypotheses: int, values: Any) -> Array:
    """The values that combinations of coefficients are tested for, checked."""
    try:
        found = np.broadcast_to(np.asarray(values, float), hypotheses)
    except (TypeError, ValueError):
        found = np.array([math.nan])
    if not np.all(np.isfinite(found)):
        raise InvalidConfig(f"wald: values must be one finite number, or one for each of {hypotheses} hypotheses.")
    return found


def _as_numbers(what: str, given: Any) -> Array:
    try:
        return np.asarray(given, float)
    except (TypeError, ValueError):
        raise InvalidConfig(f"predict: {what} must be numbers.") from None


class SiteLine(NamedTuple):
    """What is told of one site."""

    site: str
    rows: float  # this and the other numbers are NaN where they are not told (disclosure.py)
    missing: float  # rows that were dropped because something was missing
    events: float  # NaN where there is no such thing
    update: str
    share: float  # of the information about the coefficients: tr(H⁻¹Hᵢ)/q

    @property
    def untold(self) -> "SiteLine":
        return self._replace(rows=math.nan, missing=math.nan, events=math.nan, share=math.nan)


class Heterogeneity(NamedTuple):
    """Do sites have the same coefficients? Rao's score test of them all, and Cochran's Q of each from one step at every site."""

    statistic: float
    df: float
    pvalue: float
    sites: int  # whose rows alone determine every coefficient; Q is of these
    Q: tuple[float, ...]
    pvalues: tuple[float, ...]
    I2: tuple[float, ...]  # the part of the spread that chance does not explain


class Calibration(NamedTuple):
    """By tenths of the predicted probability: rows, and the means of what was predicted and observed."""

    rows: tuple[float, ...]
    predicted: tuple[float, ...]
    observed: tuple[float, ...]

    def told(self, least: int) -> "Calibration":
        """Tenths with few rows are treated as sites with few are."""
        hidden = withheld(self.rows, least)
        return Calibration(*(tuple(math.nan if hides else one for one, hides in zip(part, hidden, strict=True)) for part in self))


class Verdict(NamedTuple):
    """A test of several hypotheses at once."""

    statistic: float
    df: int
    df_resid: float  # inf: χ², else F
    pvalue: float

    def __str__(self) -> str:
        against = f"χ²({self.df})" if math.isinf(self.df_resid) else f"F({self.df}, {self.df_resid:g})"
        return f"{against} = {self.statistic:.6g}, p = {self.pvalue:.4g}"


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """What `fedhybrid.fit` gives back."""

    family_name: str
    classes: tuple[Any, ...]  # of a multinomial model, the reference first
    names: tuple[str, ...]
    x: Array
    covariance: Array | None
    why_no_errors: str
    kind: str  # of the covariance: model, HC0 … HC3, site
    dispersion: float
    rows: int
    missing: float  # rows that were dropped because something was missing; NaN where it is not told
    weight: float  # of all rows: what counts as n where weights count rows
    counted: bool  # weights count rows
    deviance: float
    null_deviance: float
    llf: float
    llnull: float
    pearson: float
    intercept: bool
    penalty: float | tuple[float, ...]
    sites: tuple[SiteLine, ...]
    heterogeneity: Heterogeneity | None
    calibration: Calibration | None
    design: "Design | None"
    status: Status
    message: str
    error_bounds: Array | None  # proved, one per coefficient
    rounds: int
    floats_up: int
    seconds: float
    privacy: str
    notes: tuple[str, ...]
    min_rows: int  # below it counts of a site are not told
    about: dict[str, Any]  # versions, platform, when, how to reproduce
    convergence: tuple[tuple[int, float], ...]  # rounds and residual
    result: "Result | None" = None  # the solver's own; not in a file

    # ── what statsmodels calls it ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def family(self) -> Family:
        return family_of(self.family_name, len(self.classes))

    @property
    def converged(self) -> bool:
        return self.status is Status.SOLVED

    @property
    def params(self) -> pd.Series:
        return pd.Series(self.x, self.names, name="coef")

    @property
    def cov(self) -> pd.DataFrame:
        q = len(self.names)
        return pd.DataFrame(np.full((q, q), np.nan) if self.covariance is None else self.covariance, self.names, self.names)

    @property
    def bse(self) -> pd.Series:
        return pd.Series(np.sqrt(np.diag(self.cov)), self.names, name="std err")

    @property
    def uses_t(self) -> bool:
        return self.family.estimates_dispersion

    @property
    def df_inference(self) -> float:
        """Of t and F; inf where the normal distribution serves. Sites that are clusters are few: their number counts, not the rows'."""
        if not self.uses_t:
            return math.inf
        return float(sum(site.rows != 0 for site in self.sites) - 1) if self.kind == "site" else self.df_resid

    @property
    def _distribution(self) -> Any:
        return stats.t(self.df_inference) if self.uses_t else stats.norm

    @property
    def tvalues(self) -> pd.Series:
        return (self.params / self.bse).rename("t" if self.uses_t else "z")

    @property
    def pvalues(self) -> pd.Series:
        return pd.Series(2.0 * self._distribution.sf(np.abs(self.tvalues)), self.names, name="p")

    def conf_int(self, level: float = 0.95) -> pd.DataFrame:
        """Wald intervals, a row for every coefficient."""
        reach = self._reach(level) * self.bse
        return pd.DataFrame({"lower": self.params - reach, "upper": self.params + reach})

    def _reach(self, level: float) -> float:
        return float(self._distribution.ppf(0.5 + 0.5 * between_0_and_1(level)))

    @property
    def ratios(self) -> pd.DataFrame:
        """exp(coefficient) with its interval: odds ratios of a binomial model, rate ratios of a Poisson one."""
        if not self.family.ratio:
            raise InvalidConfig(f"ratios: exp(coefficient) means nothing in a {self.family_name} model.")
        with np.errstate(over="ignore"):
            return np.exp(pd.concat([self.params.rename(self.family.ratio), self.conf_int()], axis=1))

    @property
    def nobs(self) -> float:
        return self.weight if self.counted else float(self.rows)

    @property
    def df_model(self) -> int:
        return len(self.names) - self.intercept * self.family.m

    @property
    def df_resid(self) -> float:
        return self.nobs - len(self.names)

    @property
    def df_null(self) -> float:
        return self.nobs - self.intercept * self.family.m

    @property
    def aic(self) -> float:
        return -2.0 * self.llf + 2.0 * len(self.names)

    @property
    def bic(self) -> float:
        return -2.0 * self.llf + math.log(self.nobs) * len(self.names)

    @property
    def rsquared(self) -> float:
        """The part of the deviance that the columns explain; of a gaussian model, R²."""
        return 1.0 - self.deviance / self.null_deviance if self.null_deviance > 0 else math.nan

    @property
    def pseudo_rsquared(self) -> float:
        """McFadden's, 1 − llf/llnull."""
        return 1.0 - self.llf / self.llnull if self.llnull != 0 else math.nan

    # ── tests ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def wald(self, hypotheses: str | Sequence[str] | Array, values: Any = 0.0) -> Verdict:
        """That coefficients, or linear combinations of them, have these values.

        hypotheses   a name; a term, such as "C(sex)", for all that belongs to it; a list of such; or a matrix R of R·x = values
        """
        R = self._combinations(hypotheses)
        if self.covariance is None:
            raise InvalidConfig(f"wald: there are no standard errors. {self.why_no_errors}")
        off = R @ self.x - _numbers_for(len(R), values)
        spread = R @ self.covariance @ R.T
        size = np.sqrt(np.diag(spread))
        size = np.where(size > 0, size, 1.0)  # units are taken out before ranks are judged
        spread, off = spread / np.outer(size, size), off / size
        if np.linalg.matrix_rank(spread, hermitian=True) < len(R):
            raise InvalidConfig("wald: some of the hypotheses follow from the others; leave them out.")
        statistic = float(off @ np.linalg.solve(spread, off))
        if self.uses_t:
            df = self.df_inference
            return Verdict(statistic / len(R), len(R), df, float(stats.f.sf(statistic / len(R), len(R), df)))
        return Verdict(statistic, len(R), math.inf, float(stats.chi2.sf(statistic, len(R))))

    def _combinations(self, hypotheses: Any) -> Array:
        if isinstance(hypotheses, str):
            hypotheses = [hypotheses]
        if isinstance(hypotheses, Sequence) and hypotheses and all(isinstance(each, str) for each in hypotheses):
            places: list[int] = []
            for each in hypotheses:
                found = [k for k, name in enumerate(self.names) if each in (name, LEVEL.sub("", name))]
                if not found:
                    raise InvalidConfig(f"there is no coefficient or term {each!r}; coefficients are {', '.join(self.names)}.")
                places += [k for k in found if k not in places]
            return np.eye(len(self.names))[places]
        try:
            R = np.atleast_2d(np.asarray(hypotheses, float))
        except (TypeError, ValueError):
            raise InvalidConfig(f"hypotheses must be names, or a matrix with {len(self.names)} columns.") from None
        if R.ndim != 2 or R.shape[1] != len(self.names) or not np.all(np.isfinite(R)):
            raise InvalidConfig(f"hypotheses must be names, or a matrix with {len(self.names)} columns.")
        return R

    def lr_test(self, smaller: "Fit") -> Verdict:
        """The likelihood-ratio test of a model whose columns are some of these, on the same rows."""
        if not isinstance(smaller, Fit) or (smaller.family_name, smaller.nobs) != (self.family_name, self.nobs):
            raise InvalidConfig("lr_test: both models must be of one family and fitted to the same rows.")
        if not set(smaller.names) < set(self.names):
            raise InvalidConfig("lr_test: the other model must have some of this one's coefficients, and no others.")
        if np.any(np.asarray(self.penalty)) or np.any(np.asarray(smaller.penalty)):
            raise InvalidConfig("lr_test: a penalised fit is no maximum of the likelihood; fit both without a penalty.")
        df = len(self.names) - len(smaller.names)
        statistic = 2.0 * (self.llf - smaller.llf)
        return Verdict(statistic, df, math.inf, float(stats.chi2.sf(statistic, df)))

    # ── prediction ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def predict(self, rows: Any, *, offset: Any = None, interval: str | None = None, level: float = 0.95) -> Any:
        """Means of new rows: a data frame, where the model has a formula, else an array of its columns.

        offset     one entry per row; default: the design's own column of the frame, where the model was fitted with one
        interval   "confidence": of the mean. "prediction": of a new response (gaussian). Either gives a frame: mean, its std err, lower,
                   upper; an interval is one of the linear prediction, carried over, so that it stays where means can be
        """
        A = self.design.matrix(rows) if self.design is not None else _as_numbers("rows", rows)
        width = len(self.x) // self.family.m - self.intercept
        if A.ndim != 2 or A.shape[1] != width:
            raise InvalidConfig(f"predict: rows have shape {A.shape}; the model has {width} columns.")
        if self.intercept:
            A = np.hstack([np.ones((len(A), 1)), A])
        if offset is None and self.design is not None:
            offset = self.design.offsets(rows)
        shift = np.zeros(len(A)) if offset is None else _as_numbers("offset", offset)
        if shift.shape != (len(A),):
            raise InvalidConfig(f"predict: offset has shape {shift.shape} for {len(A)} rows; it needs one entry per row.")
        eta = A @ self.x.reshape(A.shape[1], self.family.m) + shift[:, None]
        mean = self.family.mean(eta)
        if interval is None:
            return mean if self.classes else mean[:, 0]
        if interval not in ("confidence", "prediction"):
            raise InvalidConfig(f"interval must be 'confidence' or 'prediction', not {interval!r}.")
        if interval == "prediction" and not self.uses_t:
            raise InvalidConfig("interval='prediction' is for gaussian models; 'confidence' is of the mean.")
        if self.classes or self.covariance is None:
            raise InvalidConfig(f"interval: {self.why_no_errors or 'a model of several classes has none.'}")
        return self._with_interval(A, eta[:, 0], interval, level)

    def _with_interval(self, A: Array, eta: Array, interval: str, level: float) -> pd.DataFrame:
        assert self.covariance is not None
        variance = np.maximum(np.einsum("jp,pq,jq->j", A, self.covariance, A), 0.0)
        spread = np.sqrt(variance + (self.dispersion if interval == "prediction" else 0.0))
        reach = self._reach(level) * spread
        lower, middle, upper = (self.family.mean(end[:, None])[:, 0] for end in (eta - reach, eta, eta + reach))
        slope = self.family.bends(eta[:, None], middle)[:, 0, 0]  # of the mean, by the linear prediction: all links are canonical
        return pd.DataFrame({"mean": middle, "std err": slope * np.sqrt(variance), "lower": lower, "upper": upper})

    @functools.cached_property
    def told(self) -> "Fit":
        """The same without counts of sites with fewer than `min_rows` rows, and without those from which they would follow: what
        summaries, reports and files are made of."""
        if any(math.isnan(site.rows) for site in self.sites):
            return self  # it came out of a file
        hidden = withheld([site.rows for site in self.sites], self.min_rows)
        sites = tuple(site.untold if hides else site for site, hides in zip(self.sites, hidden, strict=True))
        agreement = self.heterogeneity
        if agreement is not None and any(hidden):  # its degrees of freedom count a small site's rows
            agreement = agreement._replace(statistic=math.nan, df=math.nan)
        missing = total([site.missing for site in self.sites], hidden, self.min_rows)
        bins = None if self.calibration is None else self.calibration.told(self.min_rows)
        return replace(self, sites=sites, heterogeneity=agreement, calibration=bins, missing=missing)

    # ── telling ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def summary(self, level: float = 0.95) -> str:
        """A table like statsmodels', 80 columns wide."""
        from ..report.summary import summary

        return summary(self, level)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"<Fit: {self.family_name}, {len(self.names)} coefficients, {self.rows} rows at {len(self.sites)} sites, {self.status}>"

    def report(self, path: str | Path, level: float = 0.95) -> None:
        """Everything, as one HTML file to open in a browser; it needs no network."""
        from ..report.html import write_report

        write_report(self, Path(path), level)

    def to_dict(self) -> dict[str, Any]:
        """In plain types, for JSON."""
        from .file import to_dict

        return to_dict(self)

    def to_json(self, path: str | Path) -> None:
        from .file import write

        write(self, Path(path))

    @classmethod
    def read(cls, path: str | Path) -> "Fit":
        """A fit that `to_json` wrote."""
        from .file import read

        return read(Path(path))

    def to_csv(self, path: str | Path, level: float = 0.95) -> None:
        """The coefficients: estimate, error, statistic, p, interval; in full precision."""
        self.table(level).to_csv(path, index_label="term")

    def table(self, level: float = 0.95) -> pd.DataFrame:
        table = pd.concat([self.params, self.bse, self.tvalues, self.pvalues, self.conf_int(level)], axis=1)
        return table.assign(**{self.family.ratio.replace(" ", "_"): np.exp(self.x)}) if self.family.ratio else table
