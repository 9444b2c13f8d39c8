"""How many digits are right: NIST's linear regressions, dealt to sites, against exact fractions."""

import csv
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import fedhybrid as fh
from fedhybrid.tables.read import read_table

FILES = Path(__file__).parents[3] / "shared" / "data" / "nist"
SITES = (2, 4, 16)
STANDING = (fh.Status.SOLVED, fh.Status.SOLVED_INACCURATE)


def polynomial(degree):
    return "y ~ x" + "".join(f" + I(x**{power})" for power in range(2, degree + 1))


MODELS = {
    "norris": "y ~ x",
    "pontius": polynomial(2),
    "noint1": "y ~ x - 1",
    "noint2": "y ~ x - 1",
    "longley": "y ~ x1 + x2 + x3 + x4 + x5 + x6",
    **{f"wampler{k}": polynomial(5) for k in range(1, 6)},
    "filip": polynomial(10),
}
DIGITS = {"norris": 11, "pontius": 11, "noint1": 11, "noint2": 11, "longley": 10, **{f"wampler{k}": 6 for k in range(1, 6)}}

pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason=f"the NIST sets are not in {FILES}")


def exact(path, formula):
    """Least squares in rational numbers, from the decimals in the file, the powers included; rounded once at the end."""
    with open(path, newline="") as file:
        header, *lines = csv.reader(file)
    numbers = {name: [Fraction(line[k]) for line in lines] for k, name in enumerate(header)}
    one = [Fraction(1)] * len(lines)
    if formula.endswith("- 1"):
        columns = [numbers["x"]]
    elif "x1" in formula:
        columns = [one, *(numbers[f"x{k}"] for k in range(1, 7))]
    else:
        columns = [[x**power for x in numbers["x"]] for power in range(formula.count("I(") + 2)]
    p = len(columns)
    system = [[sum(map(Fraction.__mul__, a, b)) for b in [*columns, numbers["y"]]] for a in columns]
    for c in range(p):
        system[c] = [entry / system[c][c] for entry in system[c]]
        for r in range(p):
            if r != c:
                factor = system[r][c]
                system[r] = [entry - factor * above for entry, above in zip(system[r], system[c], strict=True)]
    return np.array([float(system[c][p]) for c in range(p)])


def dealt(frame, sites, how):
    """In a row, as when sites differ; or each row to the next site."""
    parts = [frame.iloc[k::sites] for k in range(sites)] if how == "in turn" else np.array_split(np.arange(len(frame)), sites)
    parts = [part if how == "in turn" else frame.iloc[part] for part in parts]
    return {f"site {k}": part for k, part in enumerate(parts) if len(part)}


def digits(found, truth):
    """The log relative error of the worst coefficient."""
    return float(np.min(-np.log10(np.maximum(np.abs(found - truth) / np.abs(truth), 1e-16))))


@pytest.mark.parametrize("name", MODELS)
def test_correct_digits_of_the_sets_of_nist_at_two_four_and_sixteen_sites(name):
    frame, truth = read_table(FILES / f"{name}.csv"), exact(FILES / f"{name}.csv", MODELS[name])
    for how in ("in a row", "in turn"):
        for sites in SITES:
            fit = fh.fit(dealt(frame, sites, how), MODELS[name])
            found = digits(fit.params.to_numpy(), truth)
            print(f"{name:<9} {sites:>2} sites, {how:<9} {fit.status!s:<18} {found:4.1f} digits")
            if name == "filip":  # its Gram matrix is singular in double precision
                assert found >= 6.0 or (fit.status is fh.Status.ILL_CONDITIONED and fit.why_no_errors)
            else:
                assert fit.status in STANDING
                assert found >= DIGITS[name]
                assert np.all(np.abs(fit.x - truth) <= fit.error_bounds + 4.0 * np.spacing(np.abs(truth)))  # what was proved holds
