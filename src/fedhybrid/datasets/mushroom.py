"""Mushroom: 22 letters about each of 8,124 mushrooms, edible or poisonous."""

import numpy as np

from .fetch import raw

ATTRIBUTES = (
    *("cap-shape", "cap-surface", "cap-color", "bruises", "odor", "gill-attachment", "gill-spacing", "gill-size", "gill-color"),
    *("stalk-shape", "stalk-root", "stalk-surface-above-ring", "stalk-surface-below-ring", "stalk-color-above-ring"),
    *("stalk-color-below-ring", "veil-type", "veil-color", "ring-number", "ring-type", "spore-print-color", "population", "habitat"),
)


def letters() -> tuple[np.ndarray, np.ndarray]:
    """The table as it is: (8124, 22) letters, columns in the order of `ATTRIBUTES`, and e (edible) or p (poisonous)."""
    table = np.array([line.split(",") for line in raw("agaricus-lepiota.data").decode("ascii").split()])
    return table[:, 1:], table[:, 0]


def mushroom() -> tuple[np.ndarray, np.ndarray]:
    """Mushroom as (A, y): one 0/1 column for each letter of each attribute; y is 0 for edible and 1 for poisonous.

    The 2,480 rows whose stalk-root is unknown are left out: 5,644 stay, with 98 columns, one of them constant (veil-type). The columns
    have rank 62, so that a fit needs a penalty. UCI Machine Learning Repository, 1987.
    """
    table, labels = letters()
    known = table[:, ATTRIBUTES.index("stalk-root")] != "?"
    table, labels = table[known], labels[known]
    columns = [column == letter for column in table.T for letter in np.unique(column)]
    return np.stack(columns, axis=1).astype(float), (labels == "p").astype(float)
