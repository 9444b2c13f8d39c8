"""Sums in twice the precision, against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse

from fedhybrid.inference.families import gaussian
from fedhybrid.inference.polish import slope
from fedhybrid.inference.sums import Table


def exactly(table, z):
    """Σw·(a·z + offset − y)·a in rational numbers."""
    A, y, w, offset = (
        [[*map(Fraction, row)] for row in np.atleast_2d(part).tolist()] for part in (table.A, table.y, table.w, table.offset)
    )
    z = [*map(Fraction, z.tolist())]
    off = [sum(map(Fraction.__mul__, a, z)) + o - b for a, b, o in zip(A, y[0], offset[0], strict=True)]
    return [sum(a[c] * r * v for a, r, v in zip(A, off, w[0], strict=True)) for c in range(len(z))]


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_a_score_has_twice_the_digits(rows):
    rng = np.random.default_rng(rows)
    A, z = rng.normal(size=(rows, 3)) * [1.0, 1e8, 1e-8], rng.normal(size=3) * [1.0, 1e-8, 1e8]
    offset = rng.normal(size=rows)
    y = A @ z + offset + 1e-9 * rng.normal(size=rows)  # what is left has seven digits in single residuals
    table = Table(A, y, rng.uniform(0.5, 2.0, rows), offset)
    found = slope(table, gaussian, z)
    for score, rest, truth in zip(found.score.tolist(), found.rest.tolist(), exactly(table, z), strict=True):
        assert abs(Fraction(score) + Fraction(rest) - truth) <= Fraction(1, 10**19) * abs(truth)
        assert score == float(truth)


def test_no_row_has_no_slope_and_sparse_rows_have_a_plain_one():
    none = slope(Table(np.zeros((0, 2)), np.zeros(0), np.zeros(0), np.zeros(0)), gaussian, np.ones(2))
    np.testing.assert_array_equal(none.score, [0.0, 0.0])
    rng = np.random.default_rng(0)
    A, y, one = rng.normal(size=(9, 2)), rng.normal(size=9), np.ones(9)
    dense, sparse = (slope(Table(rows, y, one, 0.0 * one), gaussian, np.ones(2)) for rows in (A, scipy.sparse.csr_array(A)))
    np.testing.assert_allclose(dense.score, sparse.score, rtol=1e-13)
