"""Sums of sites' messages, against exact fractions: the nearest float, in every order."""

from fractions import Fraction

import numpy as np
import pytest

from fedhybrid.inference.exact import exact_sum

rng = np.random.default_rng(5)


def hard(n, count=400):
    """Numbers of all sizes that nearly cancel, or end half way between two floats."""
    parts = rng.normal(size=(n, count)) * 10.0 ** rng.integers(-30, 30, size=(n, count))
    parts[n // 2 :, : count // 2] = -parts[: n - n // 2, : count // 2] * (
        1.0 + 2.0**-52 * rng.integers(-2, 3, size=(n - n // 2, count // 2))
    )
    half_way = np.array([1.0, 2.0**-53, 2.0**-110, -(2.0**-110)])[:, None] * np.array([1.0, -1.0, 3.0, 2.0**60])
    return np.hstack([parts, np.resize(half_way, (n, 4)), np.full((n, 1), 5e-324), np.zeros((n, 1))])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 57])
def test_a_sum_over_sites_is_the_nearest_float_in_every_order(n):
    parts = hard(n)
    found = exact_sum(list(parts))
    assert found.tolist() == [float(sum(map(Fraction, column))) for column in parts.T.tolist()]
    for _ in range(3):
        assert np.array_equal(exact_sum(list(rng.permutation(parts))), found)


def test_shapes_stay_and_what_is_not_finite_is_told():
    assert exact_sum([np.ones((2, 3)), np.ones((2, 3))]).shape == (2, 3)
    assert exact_sum([1.0, 2.0]) == 3.0
    np.testing.assert_array_equal(exact_sum([np.array([np.nan, np.inf]), np.ones(2)]), [np.nan, np.inf])
