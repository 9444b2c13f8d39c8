"""Every piece of Python in the documents runs as it stands."""

import re
from pathlib import Path

import numpy as np
import pytest

import fedhybrid as fh

ROOT = Path(__file__).parents[1]


def python_in(name):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks, f"{name} holds no Python"
    names = {}
    for block in blocks:
        exec(block, names)
    return names


def test_the_readme_runs_as_typed(capsys):
    names = python_in("README.md")
    assert names["result"].status is fh.Status.SOLVED
    assert names["trace"].x0.shape == (100, 3)
    assert "SOLVED" in capsys.readouterr().out


@pytest.mark.parametrize("transport", [fh.Stacked, fh.Serial])
def test_the_method_that_is_added_in_contributing_reaches_the_pooled_fit(transport):
    heavyball = python_in("CONTRIBUTING.md")["heavyball"]
    rng = np.random.default_rng(0)
    sites = [(A := rng.normal(size=(rows, 3)), A @ np.ones(3) + rng.normal(size=rows)) for rows in (9, 20)]
    A, y = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    result = fh.solve(fh.Fleet(sites, loss=fh.squared), heavyball(s=0.5, t=0.3), transport=transport, tol=1e-10)
    assert result.status is fh.Status.SOLVED
    np.testing.assert_allclose(result.x, np.linalg.lstsq(A, y)[0], atol=1e-9)


def test_every_method_has_its_line_in_the_table_of_methods():
    text = (ROOT / "docs" / "methods.md").read_text()
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `")}
    assert set(rows) == set(fh.ALGORITHMS)
    for name, entry in fh.ALGORITHMS.items():
        assert entry.limit in rows[name], name
