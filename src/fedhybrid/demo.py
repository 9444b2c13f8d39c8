"""The demonstration: real data that eight very different sites hold, fitted by four methods, against the pooled fit."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from .algorithms.base import Algorithm
from .algorithms.fedhybrid import fedhybrid
from .algorithms.gd import gd
from .fleet import Fleet
from .losses import logistic
from .partition import by_shares
from .result import Result
from .solve import solve

REG = 0.1
TOL = 1e-8
SEED = 0
# Each site's part of the benign and of the malignant rows: two hold benign ones only, two malignant ones only.
SHARES = {
    "Aarhus": (0.30, 0.00),
    "Bergen": (0.12, 0.00),
    "Cork": (0.00, 0.22),
    "Delft": (0.00, 0.06),
    "Evora": (0.25, 0.40),
    "Faro": (0.20, 0.10),
    "Graz": (0.10, 0.20),
    "Hanko": (0.03, 0.02),
}
NEWTON_SITES = ("Aarhus", "Cork", "Evora", "Graz")  # half of them have the machines for it


class Data(NamedTuple):
    sites: dict[str, tuple[np.ndarray, np.ndarray]]
    A_test: np.ndarray
    y_test: np.ndarray


class Fit(NamedTuple):
    """One method's run."""

    name: str
    newton_sites: tuple[str, ...]
    result: Result
    distance: np.ndarray  # to the pooled fit, relative, after each step
    accuracy: float


class Demo(NamedTuple):
    data: Data
    pooled_accuracy: float
    fits: list[Fit]

    def to_csv(self, path: Path) -> None:
        """Every method's trace in one tidy table."""
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("method", "round", "floats_up", "floats_down", "distance"))
            for fit in self.fits:
                trace = fit.result.trace
                columns = (trace.rounds, trace.floats_up, trace.floats_down, fit.distance)
                writer.writerows((fit.name, *row) for row in zip(*(column.tolist() for column in columns), strict=True))


def breast_cancer() -> Data:
    """scikit-learn's breast cancer data, standardised, a fifth kept for testing, the rest dealt to the sites by label."""
    A, y = load_breast_cancer(return_X_y=True)
    A_train, A_test, y_train, y_test = train_test_split(A, y, test_size=0.2, random_state=SEED, stratify=y)
    centre, scale = A_train.mean(axis=0), A_train.std(axis=0)
    A_train, A_test = (A_train - centre) / scale, (A_test - centre) / scale
    benign, malignant = zip(*SHARES.values(), strict=True)
    held = by_shares({1: benign, 0: malignant})(y_train, len(SHARES), SEED)  # in these data 1 is benign
    sites = {name: (A_train[rows], y_train[rows].astype(float)) for name, rows in zip(SHARES, held, strict=True)}
    return Data(sites, A_test, y_test)


def methods() -> list[tuple[str, tuple[str, ...], Algorithm]]:
    """Name, the sites that do Newton work, and the method; each with the best parameters of a small grid, once found, now fixed."""
    everyone = tuple(SHARES)
    return [
        ("GD", (), gd(step_size=2.0)),
        ("FedH-G", (), fedhybrid(mu=0.05, a=5.0, b=0.005)),
        ("FedH-4", NEWTON_SITES, fedhybrid(mu=0.05, a=(5.0, 1.0), b=(0.005, 0.1))),
        ("FedH-N", everyone, fedhybrid(mu=0.03, a=1.0, b=0.3)),
    ]


def demo() -> Demo:
    """Run everything; takes seconds, most of them compilation."""
    data = breast_cancer()
    A = np.concatenate([A for A, _ in data.sites.values()])
    y = np.concatenate([y for _, y in data.sites.values()])
    pooled = LogisticRegression(C=1 / (REG * len(y)), solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(A, y)
    x_pooled = np.append(pooled.coef_[0], pooled.intercept_)
    fits = []
    for name, newton_sites, algorithm in methods():
        update = ["newton" if site in newton_sites else "gradient" for site in data.sites]
        fleet = Fleet(data.sites, loss=logistic, reg=REG, intercept=True, update=update)
        result = solve(fleet, algorithm, tol=TOL)
        assert result.trace.x0 is not None  # 31 coordinates are always kept
        distance = np.linalg.norm(result.trace.x0 - x_pooled, axis=1) / np.linalg.norm(x_pooled)
        predicted = data.A_test @ result.x[:-1] + result.x[-1] > 0
        fits.append(Fit(name, newton_sites, result, distance, float(np.mean(predicted == data.y_test))))
    return Demo(data, float(pooled.score(data.A_test, data.y_test)), fits)
