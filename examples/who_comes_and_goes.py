"""Clinics that are away, leave and join; errors that are robust; and whether the clinics agree.

python examples/who_comes_and_goes.py

The rows are the 442 patients of the diabetes data that comes with scikit-learn, at five clinics that differ in their patients' age.
"""

import numpy as np
from sklearn.datasets import load_diabetes

import fedhybrid as fh

X, y = load_diabetes(return_X_y=True, scaled=False)
columns = ["age", "sex", "bmi", "pressure", "s1", "s2", "s3", "s4", "s5", "s6"]
order = np.argsort(X[:, 0], kind="stable")  # the youngest are at the first clinic
clinics = {f"clinic {k}": (X[rows], y[rows]) for k, rows in enumerate(np.array_split(order, [60, 150, 250, 400]), 1)}

fit = fh.fit(clinics, columns=columns, covariance="HC3")
print(fit.summary())

print("Do the clinics agree, coefficient by coefficient?")
agreement = fit.heterogeneity
for name, Q, p, I2 in zip(fit.names, agreement.Q, agreement.pvalues, agreement.I2, strict=True):
    print(f"  {name:<10} Q = {Q:6.2f}   p = {p:.3f}   I² = {100 * I2:3.0f} %")

fleet, scaling = fh.standardised(fh.Fleet(clinics, loss=fh.squared, reg=1e-3, intercept=True))
everyone = fh.solve(fleet)
print(f"\nall five, always here:              {everyone.rounds} rounds")
bridged = fh.solve(fleet, transport=fh.absent(rate=0.2, seed=1))
print(f"a fifth of them away in any round:  {bridged.rounds} rounds, and off by {np.linalg.norm(bridged.x - everyone.x):.1e}")

after = fh.solve(fleet.without("clinic 5"))
print(f"clinic 5 has left:                  {after.rounds} rounds to the optimum of the other four")
assert np.linalg.norm(bridged.x - everyone.x) < 1e-6
