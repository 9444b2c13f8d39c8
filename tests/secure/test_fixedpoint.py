from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhybrid.secure import fixedpoint
from fedhybrid.secure.errors import Reason, SecureError

FLOATS = st.floats(-1e6, 1e6)


def half_even(value):
    return round(Fraction(value))  # exact in Python


@given(st.lists(FLOATS, max_size=20), st.integers(-30, 40))
def test_values_are_rounded_half_to_even_and_exactly(values, scale):
    got = fixedpoint.encode(np.array(values, np.float64), scale, 3)
    assert got.tolist() == [half_even(Fraction(v) * Fraction(2) ** scale) for v in values]


@given(st.lists(st.floats(-1e30, 1e30), max_size=20), st.integers(-30, 100))
def test_integers_of_any_size_are_exact(values, scale):
    got = fixedpoint.integers(np.array(values, np.float64), scale)
    assert got.tolist() == [half_even(Fraction(v) * Fraction(2) ** scale) for v in values]


@given(st.lists(st.integers(-(2**200), 2**200), max_size=20), st.integers(1, 150))
def test_a_coarser_grid_is_reached_by_rounding_half_to_even(values, bits):
    assert fixedpoint.coarser(fixedpoint.as_objects(values), bits).tolist() == [half_even(Fraction(v, 2**bits)) for v in values]


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20), st.integers(-50, 100))
def test_a_total_is_decoded_with_one_rounding(values, scale):
    right = [float(Fraction(v) / Fraction(2) ** scale) for v in values]
    assert fixedpoint.decode(np.array(values, np.int64), scale).tolist() == right
    assert fixedpoint.real(fixedpoint.as_objects(values), scale).tolist() == right


@pytest.mark.parametrize("n", [3, 7, 50, 1000])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_sum_that_could_overflow_is_refused_and_the_largest_that_cannot_is_not(n, sign):
    fits = (2**62 - 1) // n
    largest = np.nextafter(np.ldexp(float(fits), -40), 0.0)
    assert abs(int(fixedpoint.encode(np.array([sign * largest]), 40, n)[0])) * n < 2**62
    for value in (np.nextafter(np.ldexp(2.0**62 / n, -40), np.inf), 2.0**23, 1e300):
        with pytest.raises(SecureError, match="too large") as caught:
            fixedpoint.encode(np.array([0.0, sign * value]), 40, n, leaf=2)
        assert (caught.value.reason, caught.value.leaf) == (Reason.OVERFLOW, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(SecureError) as caught:
        fixedpoint.encode(np.array([value]), 40, 3)
    assert caught.value.reason == Reason.NOT_FINITE
    assert "nan" not in str(caught.value)


@pytest.mark.parametrize("array", [np.ones(2, np.float32), np.ones((1, 2)), np.ones(2, np.int64), np.ones(2, complex)])
def test_other_types_and_shapes_are_refused(array):
    with pytest.raises(SecureError):
        fixedpoint.encode(array, 40, 3)


@given(st.floats(1e-60, 1e12), st.integers(3, 1000), st.integers(0, 120))
def test_the_proposed_scale_leaves_its_margin_and_wastes_at_most_three_bits(last, n, scale):
    s = fixedpoint.next_scale(np.array([last]), scale, n, (0, 120), margin=12)
    if s > 0:
        assert Fraction(last) * 2**12 * n * 2**s < 2**62
    if 0 < s < 120:
        assert Fraction(last) * 2**12 * n * Fraction(2) ** (s + 3) >= 2**61


def test_scales_stay_within_what_was_agreed_on():
    zero, limits = np.zeros(1), (10, 60)
    assert fixedpoint.next_scale(zero, 40, 5, limits, margin=12) == 52
    assert fixedpoint.next_scale(zero, 55, 5, limits) == 60
    assert fixedpoint.next_scale(np.array([1e30]), 40, 5, limits) == 10
    assert fixedpoint.lowered(40, limits) == 28
    assert fixedpoint.lowered(12, limits) == 10
    with pytest.raises(SecureError, match="coarsest"):
        fixedpoint.lowered(10, limits)


def test_a_residual_that_falls_by_thirty_orders_is_followed_without_a_refusal():
    n, scale, limits = 5, 10, (0, 160)
    for k in range(60):
        residual = 1e4 * 10.0 ** (-k / 2)
        total = n * fixedpoint.encode(np.array([residual]), scale, n)
        assert abs(fixedpoint.decode(total, scale)[0] - n * residual) <= 2e-9 * n * residual
        scale = fixedpoint.next_scale(fixedpoint.decode(total, scale), scale, n, limits)
