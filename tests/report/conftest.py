"""Fits to report on: one for every family, and what else changes what a report says."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from browser import Browser

import fedhybrid as fh

HOSTILE = '<script>alert("owned")</script>'


def wards():
    """Three tables with gaps, a factor of three levels, and names that want escaping."""
    rng = np.random.default_rng(3)

    def table(rows):
        age, dose = rng.normal(60, 10, rows), rng.exponential(1.0, rows)
        stage = rng.choice(["I", "II & III", "<IV>"], rows)
        risk = -3 + 0.04 * age + 0.5 * (stage == "<IV>")
        dead = (rng.random(rows) < 1 / (1 + np.exp(-risk))).astype(int)
        frame = pd.DataFrame({"dead": dead, "age": age, "dose": dose, "stage": stage, "visits": rng.poisson(np.exp(0.3 * dose))})
        frame.loc[2, "age"] = np.nan
        return frame

    return {HOSTILE: table(90), 'Ward "B" & sons': table(70), "עברית": table(50)}


@pytest.fixture(scope="session")
def fits():
    """Three are fitted; the others are these with some of it changed, since a report computes nothing."""
    tables = wards()
    rng = np.random.default_rng(5)
    X = rng.normal(size=(80, 2))
    classes = np.argmax(X @ np.array([[0.0, 1.0, -1.0], [0.0, 0.5, 1.0]]) + rng.gumbel(size=(80, 3)), axis=1).astype(float)
    halves = {"a": (X[:40], classes[:40]), "b": (X[40:], classes[40:])}
    mixed = ["newton", "gradient", "newton"]
    gaussian = fh.fit(tables, "visits ~ age + dose + C(stage)", covariance="HC1")
    unproved = {"covariance": None, "kind": "model", "heterogeneity": None}
    return {
        "gaussian": gaussian,
        "binomial": fh.fit(tables, "dead ~ age + dose + stage", family="binomial", update=mixed, reference={"stage": "II & III"}),
        "multinomial": fh.fit(halves, family="multinomial"),
        "poisson": replace(gaussian, family_name="poisson", kind="site"),
        "penalised": replace(gaussian, penalty=0.1, why_no_errors="The fit is penalised.", **unproved),
        "unfinished": replace(
            gaussian,
            status=fh.Status.MAX_ROUNDS,
            message="Raise max_rounds.",
            why_no_errors="The fit did not come to its end.",
            error_bounds=np.full(len(gaussian.names), np.inf),
            convergence=((1, 0.5), (2, 0.25)),
            **unproved,
        ),
        "one site": replace(gaussian, sites=gaussian.sites[:1], heterogeneity=None),
        "intercept alone": replace(
            gaussian,
            names=gaussian.names[:1],
            x=gaussian.x[:1],
            covariance=gaussian.covariance[:1, :1],
            error_bounds=gaussian.error_bounds[:1],
            heterogeneity=None,
        ),
    }


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium on PATH to look at pages with")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
