import itertools
import secrets

import pytest

from fedhybrid.secure import shamir
from fedhybrid.secure.errors import Reason, SecureError


def test_the_field_is_one():
    for base in range(2, 40):  # Miller and Rabin's test; composite numbers pass it with a chance of 4^-38
        d, r = shamir.PRIME - 1, 0
        while d % 2 == 0:
            d, r = d // 2, r + 1
        x = pow(base, d, shamir.PRIME)
        assert x == 1 or any(pow(x, 2**k, shamir.PRIME) == shamir.PRIME - 1 for k in range(r))


@pytest.mark.parametrize("n", range(1, 7))
def test_every_subset_that_is_large_enough_gives_the_secret(n):
    for threshold in range(1, n + 1):
        for secret in (bytes(32), b"\xff" * 32, secrets.token_bytes(32)):
            shares = dict(enumerate(shamir.split(secret, threshold, n), start=1))
            for size in range(threshold, n + 1):
                for holders in itertools.combinations(shares, size):
                    assert shamir.join({holder: shares[holder] for holder in holders}, threshold) == secret


def test_one_share_too_few_fits_every_secret():
    shares = shamir.split(secrets.token_bytes(32), 4, 6)
    three = {holder: int.from_bytes(shares[holder - 1], "little") for holder in (2, 3, 5)}
    for guess in (0, 1, 2**256 - 1):  # there is a polynomial of degree 3 through the three shares and any secret at all
        points = {0: guess} | three
        fourth = sum(value * _lagrange(x, points, 6) for x, value in points.items()) % shamir.PRIME
        joined = shamir.join({h: shares[h - 1] for h in (2, 3, 5)} | {6: fourth.to_bytes(33, "little")}, 4)
        assert int.from_bytes(joined, "little") == guess


def _lagrange(i, points, at):
    weight = 1
    for j in points:
        if j != i:
            weight = weight * (at - j) * pow(i - j, -1, shamir.PRIME) % shamir.PRIME
    return weight


def test_below_the_threshold_there_is_an_error_and_no_number():
    shares = dict(enumerate(shamir.split(bytes(32), 3, 5), start=1))
    with pytest.raises(SecureError) as caught:
        shamir.join({1: shares[1], 4: shares[4]}, 3)
    assert caught.value.reason == Reason.BELOW_THRESHOLD


@pytest.mark.parametrize("share", [b"", bytes(32), b"\xff" * 33])
def test_what_is_no_share_is_refused(share):
    shares = dict(enumerate(shamir.split(bytes(32), 2, 3), start=1))
    with pytest.raises(SecureError):
        shamir.join({1: share, 2: shares[2]}, 2)


def test_a_secret_of_another_size_is_a_mistake():
    with pytest.raises(ValueError, match="32 bytes"):
        shamir.split(b"short", 2, 3)
