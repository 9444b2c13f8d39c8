"""Commands for people with tables, as they are typed: what they write, what they say and where, and what they end with."""

import contextlib
import glob
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import fedhybrid as fh
from fedhybrid.cli import app
from fedhybrid.inference.fit import Fit

DATA = Path(__file__).parents[2] / "shared" / "data"
FORMULA = "death ~ age + C(sex) + bmi"
FIT = ("fit", "site_a.csv", "site_b.csv", "site_c.csv", "--formula", FORMULA, "--family", "binomial")


def patients():
    rng = np.random.default_rng(7)
    rows = 300
    frame = pd.DataFrame({"age": rng.normal(60, 10, rows), "sex": rng.choice(["f", "m"], rows), "bmi": rng.normal(26, 4, rows)})
    eta = 0.08 * (frame["age"] - 60) + 0.5 * (frame["sex"] == "m") - 0.6
    frame = frame.assign(death=(rng.uniform(size=rows) < 1 / (1 + np.exp(-eta))).astype(int), days=rng.uniform(1, 9, rows))
    return frame.assign(log_days=np.log(frame["days"]))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    everyone = patients()
    everyone.to_csv(folder / "all.csv", index=False)
    everyone[:9].drop(columns="death").to_csv(folder / "new.csv", index=False)
    for name, part in zip("abc", np.split(np.arange(len(everyone)), [40, 130]), strict=True):
        everyone.iloc[part].to_csv(folder / f"site_{name}.csv", index=False)
        numbers = everyone.iloc[part][["age", "bmi"]].assign(outcome=everyone["death"])
        numbers.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def fitted(tables):
    """The folder after the command of the first example."""
    done = run(tables, *FIT)
    assert done.exit_code == 0, done.output
    return tables, done


def run(folder, *arguments):
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert not isinstance(done.exception, Exception), done.exception
    return done


# ── fit ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fit_shows_a_summary_and_writes_three_files(fitted):
    folder, done = fitted
    fit = Fit.read(folder / "fit" / "result.json")
    assert fit.summary() in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    for name in ("result.json", "coefficients.csv", "report.html"):
        assert f"fit/{name}" in done.stdout
        assert (folder / "fit" / name).stat().st_size > 0
    here = fh.fit({f"site_{name}": pd.read_csv(folder / f"site_{name}.csv") for name in "abc"}, FORMULA, family="binomial")
    np.testing.assert_allclose(fit.x, here.x, rtol=1e-12)
    assert [site.site for site in fit.sites] == ["site_a", "site_b", "site_c"]
    assert [site.update for site in fit.sites] == ["newton"] * 3


def test_coefficients_are_written_in_full_precision(fitted):
    folder, _ = fitted
    fit, table = Fit.read(folder / "fit" / "result.json"), pd.read_csv(folder / "fit" / "coefficients.csv", index_col="term")
    assert table.columns.tolist() == ["coef", "std err", "z", "p", "lower", "upper", "odds_ratio"]
    np.testing.assert_allclose(table["coef"], fit.x, rtol=1e-15)
    np.testing.assert_allclose(table["upper"], fit.conf_int()["upper"], rtol=1e-15)


def test_json_is_one_object_on_stdout_and_nothing_else_is(tables, tmp_path):
    command = [sys.executable, "-m", "fedhybrid", *FIT, "--newton", "site_a,site_b", "--json", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tables, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    given = json.loads(done.stdout)
    assert given == json.loads((tmp_path / "out" / "result.json").read_text())
    assert given["schema"] == "fedhybrid.fit/1"
    assert [site["update"] for site in given["sites"]] == ["newton", "newton", "gradient"]
    assert "result.json" in done.stderr


def test_a_bar_shows_the_way_in_a_terminal_and_nowhere_else(tables, tmp_path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    command = [sys.executable, "-m", "fedhybrid", *FIT, "--out", str(tmp_path / "out")]
    child = subprocess.Popen(command, cwd=tables, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    out, _ = child.communicate()
    assert child.returncode == 0
    assert re.search(r"round +[1-9]", shown.decode())
    assert b"residual" in shown
    assert out.decode().startswith("═" * 80)
    assert b"residual" not in out


ENDINGS = {
    "SOLVED": ((), 0),
    "MAX_ROUNDS": (("--max-rounds", "1"), 4),
    "ILL_CONDITIONED": (("--formula", "death ~ age + I(2 * age)"), 8),
    "NO_MINIMISER": (("--formula", "death ~ age + I(death * 2)"), 9),
    "INVALID_DATA": (("--formula", "death ~ height"), 2),
    "INVALID_CONFIG": (("--covariance", "HC7"), 2),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_has_its_exit_status(ending, tables, tmp_path):
    more, expected = ENDINGS[ending]
    done = run(tables, *FIT, "--out", tmp_path, *more)
    assert done.exit_code == expected == fh.Status[ending].exit_status, done.output
    if expected == 2:
        assert done.stderr.startswith("Error: ")
        assert not list(tmp_path.iterdir())
    else:
        assert ending in done.stdout
        assert json.loads((tmp_path / "result.json").read_text())["status"] == ending


BAD_FILES = {
    "not UTF-8": (
        lambda path: path.write_bytes(path.read_bytes() + "9,\xe4,1,0,1,1\n".encode("latin-1")),
        "site_b: .*is not UTF-8; save the file",
    ),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-20]), "site_b: .*line 91 has . cells.*Was all of it written"),
    "empty": (lambda path: path.write_text(""), "site_b: .*is empty; a header and at least one row are needed"),
    "no row": (lambda path: path.write_text("age,sex,bmi,death\n"), "site_b: .*has a header and no row"),
    "two columns of a name": (lambda path: path.write_text("age,sex,bmi,age\n1,f,2,3\n"), "site_b: .*two columns are called age"),
    "semicolons": (lambda path: path.write_text("age;sex;bmi;death\n1;f;2;1\n"), "site_b: .*cells must have commas between"),
    "another type": (
        lambda path: path.write_text("age,sex,bmi,death\nold,f,2,1\n"),
        "the column age is number at site_a, site_c but text at site_b",
    ),
    "no such column": (lambda path: path.write_text("age,sex,death\n1,f,1\n"), "site_b: there is no column bmi"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_is_named_with_what_to_do(what, tables, tmp_path):
    for name in "abc":
        (tmp_path / f"site_{name}.csv").write_bytes((tables / f"site_{name}.csv").read_bytes())
    spoil, words = BAD_FILES[what]
    spoil(tmp_path / "site_b.csv")
    done = run(tmp_path, *FIT)
    assert done.exit_code == 2
    assert not done.stdout
    assert re.search(words, done.stderr), done.stderr


def test_two_files_of_one_name_are_refused(tables, tmp_path):
    (tmp_path / "site_a.csv").write_bytes((tables / "site_a.csv").read_bytes())
    done = run(tables, "fit", "site_a.csv", tmp_path / "site_a.csv", "--formula", FORMULA)
    assert done.exit_code == 2
    assert "would both be the site site_a; rename one of the files" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--newton", "site_a,site_x"), "there is no site site_x; sites are site_a, site_b, site_c"),
        (("--reference", "sex"), "give a column and a level, as sex=female"),
        (("--weights", "w"), "there is no column w"),
        (("--level", "95"), "level must lie between 0 and 1"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(options, words, tables, tmp_path):
    done = run(tables, *FIT, "--out", tmp_path / "out", *options)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


# ── verify and predict ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options",
    [
        ("--family", "binomial", "--reference", "sex=m"),
        ("--family", "poisson", "--offset", "log_days", "--weights", "days"),
        ("--family", "poisson", "--weights", "days", "--counts"),
        ("--family", "gaussian", "--covariance", "HC3"),
        ("--family", "binomial", "--reg", "0.1"),
        ("--family", "multinomial"),
    ],
    ids=" ".join,
)
def test_a_fit_is_verified_by_a_central_one_on_the_pooled_table(options, tables, tmp_path):
    assert run(tables, *FIT[:-2], *options, "--out", tmp_path).exit_code == 0
    done = run(tables, "verify", tmp_path / "result.json", "--pooled", "all.csv")
    assert done.exit_code == 0, done.stdout
    assert "The same fit." in done.stdout
    parts = [argument for name in "abc" for argument in ("--pooled", f"site_{name}.csv")]
    assert run(tables, "verify", tmp_path / "result.json", *parts).exit_code == 0


def test_another_table_or_a_changed_result_is_not_the_same_fit(fitted, tmp_path):
    folder, _ = fitted
    done = run(folder, "verify", "fit/result.json", "--pooled", "site_c.csv")
    assert done.exit_code == 1
    assert "NOT the same fit: rows must be as many, and the tolerance is 1e-07." in done.stdout
    assert "170 in the pooled table, 300 in the fit" in done.stdout
    given = json.loads((folder / "fit" / "result.json").read_text())
    for change in ({"x": [given["x"][0] * (1 + 1e-6), *given["x"][1:]]}, {"covariance": (np.array(given["covariance"]) * 1.001).tolist()}):
        (tmp_path / "result.json").write_text(json.dumps(given | change))
        assert run(folder, "verify", tmp_path / "result.json", "--pooled", "all.csv").exit_code == 1
    assert run(folder, "verify", tmp_path / "result.json", "--pooled", "all.csv", "--tol", "0.1").exit_code == 0


def test_a_table_with_every_row_twice_is_not_the_same_fit(tmp_path):
    pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "y": [0.0, 2.0, 1.0, 4.0]}).to_csv(tmp_path / "a.csv", index=False)
    fh.fit({"a": pd.read_csv(tmp_path / "a.csv")}, "y ~ x", covariance="HC0").to_json(tmp_path / "result.json")
    once = run(tmp_path, "verify", "result.json", "--pooled", "a.csv")
    twice = run(tmp_path, "verify", "result.json", "--pooled", "a.csv", "--pooled", "a.csv")
    assert (once.exit_code, twice.exit_code) == (0, 1)


def test_predictions_are_the_fits_own(fitted, tmp_path):
    folder, _ = fitted
    done = run(folder, "predict", "fit/result.json", "new.csv")
    (tmp_path / "told.csv").write_text(done.stdout)
    fit, new = Fit.read(folder / "fit" / "result.json"), pd.read_csv(folder / "new.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "told.csv")["mean"], fit.predict(new), rtol=1e-14)
    done = run(
        folder, "predict", "fit/result.json", "new.csv", "--interval", "confidence", "--level", "0.8", "--out", tmp_path / "told.csv"
    )
    assert done.stdout == ""
    expected = fit.predict(new, interval="confidence", level=0.8)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "told.csv"), expected, rtol=1e-14)
    done = run(folder, "predict", "fit/result.json", "new.csv", "--interval", "prediction")
    assert done.exit_code == 2
    assert "for gaussian models" in done.stderr


# ── help ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def commands():
    """(words, command) of every command there is."""
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        if isinstance(command, click.Group) or hasattr(command, "commands"):
            yield from ((f"{name} {own}", inner) for own, inner in command.commands.items())
        else:
            yield name, command


COMMANDS = dict(commands())
IN_A_ROW = (  # each in the folder that those before it left
    "version", "fit", "verify", "predict", "federation init", "federation share", "simulate", "federation rotate", "federation renew",
    "federation revoke",
)  # fmt: skip
MINUTES = ("demo", "compare", "reproduce")
OF_A_RUN = ("server", "site", "status", "result")  # of several processes at once: tests/federation types them


def example_of(name):
    _, marker, example = COMMANDS[name].help.partition("Example:")
    assert marker, f"fedhybrid {name} --help has no example"
    words = shlex.split(example)
    assert words[: 1 + len(name.split())] == ["fedhybrid", *name.split()]
    return words[1:]


def test_every_command_has_an_example_that_can_be_typed():
    assert sorted(COMMANDS) == sorted((*IN_A_ROW, *MINUTES, *OF_A_RUN))
    for name, command in COMMANDS.items():
        arguments = example_of(name)[len(name.split()) :]
        command.make_context(name, list(arguments))  # raises where an option is unknown or an argument missing


def test_the_examples_work_one_after_the_other(tables, tmp_path):
    pytest.importorskip("flwr", reason="a federation's folder needs Flower")
    for path in tables.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for name in IN_A_ROW:
        with contextlib.chdir(tmp_path):
            words = [
                found for word in example_of(name) for found in (sorted(glob.glob(word)) if "*" in word and " " not in word else [word])
            ]
        done = run(tmp_path, *words)
        assert done.exit_code == 0, f"{name}: {done.output}"


@pytest.mark.slow
@pytest.mark.parametrize("name", MINUTES)
def test_the_examples_that_take_minutes_work(name, tmp_path, monkeypatch):
    if name == "reproduce":
        if not DATA.is_dir():
            pytest.skip(f"the paper's data are not in {DATA}")
        monkeypatch.setenv("FEDHYBRID_DATA", str(DATA))
    done = run(tmp_path, *example_of(name))
    assert done.exit_code == 0, done.output
