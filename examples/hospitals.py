"""Four hospitals and one model: coefficients, standard errors and p-values of the table that nobody has.

python examples/hospitals.py        writes tumours.html, a report to open in a browser

The rows are the 569 tumours of the breast cancer data that comes with scikit-learn. They are dealt to four hospitals that differ in how
many malignant tumours they see, and in the work that they are able to do.
"""

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

import fedhybrid as fh

data = load_breast_cancer(as_frame=True).frame
table = pd.DataFrame(
    {
        "malignant": 1 - data["target"],
        "texture": data["mean texture"],
        "smoothness": 100 * data["mean smoothness"],
        "symmetry": 100 * data["mean symmetry"],
        "size": pd.cut(data["mean radius"], [0, 12, 15, 99], labels=["small", "middle", "large"]).astype(str),
    }
)

parts = fh.partition.dirichlet(1.0)(table["malignant"].to_numpy(), 4, 2)  # whose rows: unequal shares of malignant ones
hospitals = {name: table.iloc[rows] for name, rows in zip(["north", "east", "south", "west"], parts, strict=True)}

fit = fh.fit(
    hospitals,
    "malignant ~ texture + smoothness + symmetry + C(size)",
    family="binomial",
    reference={"size": "small"},
    update={"north": "newton", "east": "newton", "south": "gradient", "west": "gradient"},
)
print(fit.summary())

print("Does size matter at all?          ", fit.wald("C(size)"))
smaller = fh.fit(hospitals, "malignant ~ texture + smoothness + symmetry", family="binomial")
print("The same by likelihood ratio:     ", fit.lr_test(smaller))
print()
print("Odds ratios\n", fit.ratios.round(3), sep="")

pooled = fh.fit({"everyone": table}, fit.design.formula, family="binomial", reference={"size": "small"})
assert np.allclose(fit.params, pooled.params, rtol=1e-8, atol=1e-10)
assert np.allclose(fit.bse, pooled.bse, rtol=1e-8)
print("\nThe same, to 1e-8, as from one table.")

fit.report("tumours.html")
