"""Tables of every family, dealt to sites, and the pooled model by statsmodels."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import statsmodels.api as sm

FORMULA = "y ~ age + C(sex) + bmi"
FAMILIES = {"gaussian": sm.families.Gaussian(), "binomial": sm.families.Binomial(), "poisson": sm.families.Poisson()}
TRUTH = {"gaussian": (3.0, 0.4, -2.0, 0.7), "binomial": (-2.3, 0.03, 0.6, 0.02), "poisson": (-0.4, 0.02, 0.3, -0.01)}


class Variant(NamedTuple):
    """Which weights and offsets rows have."""

    weights: str | None = None
    counts: bool = False
    offset: str | None = None


VARIANTS = {
    "plain": Variant(),
    "prior weights": Variant(weights="w"),
    "counted weights": Variant(weights="k", counts=True),
    "offset": Variant(offset="o"),
    "prior weights and offset": Variant(weights="w", offset="o"),
}


def table(family, rows=157, seed=0):
    rng = np.random.default_rng([seed, len(family)])
    frame = pd.DataFrame(
        {
            "site": rng.choice(["north", "east", "south", "west"], rows, p=[0.5, 0.3, 0.15, 0.05]),
            "age": rng.normal(60.0, 11.0, rows),
            "sex": rng.choice(["f", "m"], rows),
            "bmi": rng.normal(26.0, 4.0, rows),
            "w": rng.uniform(0.2, 3.0, rows),
            "k": rng.integers(1, 5, rows).astype(float),
            "o": rng.normal(0.0, 0.5, rows),
        }
    )
    frame["age"] += frame["site"].map({"north": 0.0, "east": 8.0, "south": -9.0, "west": 15.0})  # sites differ
    intercept, *slopes = TRUTH[family]
    eta = intercept + slopes[0] * frame["age"] + slopes[1] * (frame["sex"] == "m") + slopes[2] * frame["bmi"] + frame["o"]
    if family == "gaussian":
        frame["y"] = eta + rng.normal(0.0, 3.0, rows)
    elif family == "binomial":
        frame["y"] = (rng.uniform(size=rows) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    else:
        frame["y"] = rng.poisson(np.exp(eta)).astype(float)
    return frame


def by_site(frame):
    return {name: part.drop(columns="site") for name, part in frame.groupby("site")}


def matrix(frame):
    """Columns in the order in which coefficients are told."""
    return np.column_stack([np.ones(len(frame)), frame["age"], frame["sex"] == "m", frame["bmi"]]).astype(float)


def statsmodels_of(frame, family, variant, columns=slice(None), **fit):
    """GLM; for gaussian models with prior weights the same by WLS, whose likelihood is at its best dispersion, as ours."""
    X, y = matrix(frame)[:, columns], frame["y"].to_numpy()
    options = {}
    if variant.offset:
        options["offset"] = frame[variant.offset].to_numpy()
    if variant.weights:
        options["freq_weights" if variant.counts else "var_weights"] = frame[variant.weights].to_numpy()
    if family == "gaussian":
        fit = {"use_t": True, **fit}
    return sm.GLM(y, X, family=FAMILIES[family], **options).fit(method="IRLS", tol=1e-14, tol_criterion="params", maxiter=100, **fit)
