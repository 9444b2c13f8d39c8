"""Every piece of Python and every command in the documents runs as it stands."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedhybrid as fh

ROOT = Path(__file__).parents[1]
PAGES = (
    "index",
    "quickstart",
    "statistician",
    "researcher",
    "engineer",
    "updates",
    "acceleration",
    "methods",
    "notation",
    "privacy",
    "report",
)
NOT_HERE = {
    "docs/deploy.md": "commands of other machines: systemd, ss, sha256sum",
    "docs/reproduce.md": "minutes of search; tests/test_reproduction.py runs the parts",
    "README.md": "its commands need three sites at once: tests/federation types them",
}


def blocks_in(name):
    """(language, text) of every fenced block."""
    return re.findall(r"```(python|console)\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def run_page(name, folder, console=True):
    """All blocks of a page in order, in one folder; Python in one namespace, commands by a shell."""
    names = {}
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    with contextlib.chdir(folder):
        for language, text in blocks_in(name):
            if language == "python":
                exec(text, names)
            elif console:
                done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], env=environment, capture_output=True, text=True)
                assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return names


def test_the_readme_runs_as_typed(tmp_path, capsys):
    names = run_page("README.md", tmp_path, console=False)
    assert names["result"].status is fh.Status.SOLVED
    assert names["trace"].x0.shape == (100, 3)
    assert "SOLVED" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_as_typed(page, tmp_path):
    run_page(f"docs/{page}.md", tmp_path)


def test_no_page_with_blocks_is_left_out():
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} | {"README.md"}
    untried = {name for name in pages - {f"docs/{page}.md" for page in PAGES} if blocks_in(name)}
    assert untried <= set(NOT_HERE), untried - set(NOT_HERE)


@pytest.mark.parametrize("transport", [fh.Stacked, fh.Serial])
def test_the_method_that_is_added_in_contributing_reaches_the_pooled_fit(transport, tmp_path):
    heavyball = run_page("CONTRIBUTING.md", tmp_path, console=False)["heavyball"]
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


def test_the_site_of_the_documents_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the site is built with the extra docs")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in ("index", "commands", "api"):
        html = (tmp_path / f"{page}.html").read_text()
        assert "fedhybrid" in html
        assert not re.search(r'(?:src|href)="(?:https?:)?//(?!arxiv\.org|squidfunk)[^"]*\.(?:js|css|woff2?)"', html), (
            "fetched from elsewhere"
        )
    commands = (tmp_path / "commands.html").read_text()
    assert "fedhybrid federation init" in commands
    assert "--absent" in commands or "absent" in commands
