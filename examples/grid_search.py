"""scikit-learn's own tools around a federated estimator: a pipeline, cross-validation, a grid of penalties.

python examples/grid_search.py

The rows are the 178 wines of three growers that come with scikit-learn, held by three cellars of which each has seen two growers at most.
"""

import numpy as np
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler

import fedhybrid as fh

X, y = load_wine(return_X_y=True)
rng = np.random.default_rng(0)
cellars = np.array(["first", "second", "third"])
sites = cellars[(y + rng.integers(0, 2, len(y))) % 3]  # every row is at one of two cellars
for cellar in cellars:
    held = np.bincount(y[sites == cellar], minlength=3)
    print(f"{cellar:<8}{held.sum():>4} wines, by grower: {held}")

search = GridSearchCV(
    fh.FederatedLogisticRegression(tol=1e-8).set_fit_request(sites=True),
    {"C": [0.01, 0.1, 1.0, 10.0]},
    cv=StratifiedKFold(5, shuffle=True, random_state=0),
)
search.fit(X, y, sites=sites)
print(f"\nbest C = {search.best_params_['C']:g}, accuracy {search.best_score_:.3f} on rows that were left out")

model = search.best_estimator_
print(f"{model.n_iter_} rounds, {model.result_.status}")

Z = StandardScaler().fit_transform(X)  # the same fit in other units, by scikit-learn from one table
central = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(Z, y)
federated = fh.FederatedLogisticRegression(C=1.0, tol=1e-10).fit(Z, y, sites=sites)
off = np.abs(federated.predict_proba(Z) - central.predict_proba(Z)).max()
print(f"largest difference of a probability from scikit-learn's on the pooled table: {off:.1e}")
assert off < 1e-6
