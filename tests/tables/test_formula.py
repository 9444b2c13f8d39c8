"""Formulas mean what formulaic means by them, and nothing in one is ever run."""

import contextlib
import json

import formulaic
import numpy as np
import pandas as pd
import pytest
from formulaic.parser import DefaultFormulaParser

import fedhybrid as fh
from fedhybrid.tables.agree import agree
from fedhybrid.tables.design import Design
from fedhybrid.tables.formula import parse

TOUCH = "__import__('pathlib').Path('{canary}').touch()"
ATTACKS = {
    "a call": "y ~ " + TOUCH,
    "a call in I": f"y ~ I({TOUCH})",
    "a call in C": f"y ~ C({TOUCH})",
    "a call in a log": f"y ~ np.log(x + {TOUCH})",
    "a call that is called": f"y ~ ({TOUCH})(x)",
    "a call while the left side is read": f"I({TOUCH}()) ~ x",
    "a call on the left": f"{TOUCH} ~ x",
    "a function made on the left": f"(lambda: {TOUCH})() ~ x",
    "in braces": "y ~ {{" + TOUCH + "}}",
    "in braces on the left": "{{" + TOUCH + "}} ~ x",
    "a lambda": f"y ~ I((lambda: {TOUCH})())",
    "a comprehension": f"y ~ I([{TOUCH} for i in [1]])",
    "a generator": f"y ~ I(max({TOUCH} for i in [1]))",
    "a walrus": f"y ~ I((q := {TOUCH}))",
    "a conditional": f"y ~ I(x if {TOUCH} else x)",
    "or": f"y ~ I(x or {TOUCH})",
    "a subscript": f"y ~ x[{TOUCH}]",
    "a slice": f"y ~ I(x[{TOUCH}:])",
    "a dict": f"y ~ C(x, {{{{'a': {TOUCH}}}}})",
    "a list of contrasts": f"y ~ C(x, [{TOUCH}])",
    "levels": f"y ~ C(x, levels=[{TOUCH}])",
    "a reference": f"y ~ C(x, Treatment({TOUCH}))",
    "a reference by name": f"y ~ C(x, Treatment(reference={TOUCH}))",
    "more arguments": f"y ~ np.log(x, {TOUCH})",
    "keywords": f"y ~ np.log(x, out={TOUCH})",
    "star arguments": f"y ~ np.log(*[{TOUCH}])",
    "double stars": f"y ~ np.log(**{{{{'x': {TOUCH}}}}})",
    "an f-string": f"y ~ C(f'{{{{{TOUCH}}}}}')",
    "an f-string as a reference": f"y ~ C(x, Treatment(f'{{{{{TOUCH}}}}}'))",
    "eval": "y ~ eval(\"open('{canary}', 'w')\")",
    "exec": "y ~ exec(\"open('{canary}', 'w')\")",
    "open": "y ~ open('{canary}', 'w')",
    "NumPy writes a file": "y ~ np.savetxt('{canary}', x)",
    "NumPy's array writes a file": "y ~ x.tofile('{canary}')",
    "pandas writes a file": "y ~ x.to_csv('{canary}')",
    "NumPy reads a pickle": "y ~ np.load('{canary}', allow_pickle=True)",
    "NumPy's own modules": "y ~ np.lib.npyio.DataSource('.').open('{canary}', 'w')",
    "NumPy's builtins": "y ~ np.__builtins__['open']('{canary}', 'w')",
    "up the classes": "y ~ I(().__class__.__base__.__subclasses__())",
    "from a column up": "y ~ x.__class__.__init__.__globals__",
    "an attribute": "y ~ I(x.values)",
    "a method": "y ~ x.sum()",
    "a dunder": "y ~ __builtins__",
    "a dunder in backticks": "y ~ `__builtins__`",
    "a dunder in an expression": "y ~ I(__file__)",
    "a backtick that closes late": "y ~ log(`x), " + TOUCH + ", (`x`)",
    "a new line": "y ~ log(x\n), " + TOUCH,
    "a semicolon": "y ~ I(x); " + TOUCH,
    "a comment": "y ~ I(x # )\n)" + "+" + TOUCH,
    "quoting by name": "y ~ Q(" + TOUCH + ")",
    "formulaic's state": "y ~ I(__FORMULAIC_CONTEXT__)",
    "formulaic's hidden argument": "y ~ C(x, _context=1)",
    "a second stage": "y ~ [z ~ " + TOUCH + "]",
    "two parts": "y ~ x | " + TOUCH,
    "await": "y ~ I(await x)",
    "a yield": "y ~ I((yield x))",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_and_leaves_no_trace(attack, tmp_path):
    canary = tmp_path / "canary"
    formula = ATTACKS[attack].format(canary=canary)
    frame = pd.DataFrame({"y": [1.0, 2, 3], "x": [1.0, 2, 4], "z": [0.0, 1, 1]})
    with pytest.raises(fh.InvalidConfig, match="formula"):
        agree({"a": frame}, formula, family="gaussian")
    written = agree({"a": frame}, "y ~ x", family="gaussian")[0].to_dict() | {"formula": formula}
    with pytest.raises(fh.InvalidConfig, match="formula"):
        Design.from_dict(json.loads(json.dumps(written)))
    assert not canary.exists()


SUCCEED = ["a call in I", "a call in C", "a call in a log", "in braces", "a call while the left side is read", "NumPy writes a file"]


@pytest.mark.parametrize("attack", SUCCEED)
def test_the_same_attack_does_succeed_on_formulaic_alone(attack, tmp_path):
    """So that the test above could fail."""
    canary = tmp_path / "canary"
    formula = ATTACKS[attack].format(canary=canary)
    if "read" in attack:
        DefaultFormulaParser().get_terms(formula, context={})
    else:
        with contextlib.suppress(Exception):  # what comes back is no column; by then it has been called
            formulaic.model_matrix(formula, pd.DataFrame({"y": [1.0, 2.0], "x": [1.0, 3.0]}))
    assert canary.exists()


def test_nothing_is_evaluated_as_python(monkeypatch):
    def refuse(*_):
        raise AssertionError("evaluated")

    frame = pd.DataFrame({"y": [1.0, 2, 3], "x": [1.0, 2, 4], "s": ["a", "b", "a"]})
    monkeypatch.setattr("builtins.eval", refuse)
    monkeypatch.setattr("builtins.exec", refuse)
    monkeypatch.setattr("formulaic.materializers.base.stateful_eval", refuse)
    design, _ = agree({"a": frame}, "np.log(y) ~ C(s, Treatment('b')) * np.log(x + 1) + I(`x` ** 2)", family="gaussian")
    assert design.rows("a", frame).A.shape == (3, 4)


@pytest.mark.parametrize("name", ["center", "scale", "standardize", "poly", "bs", "cs", "cr", "cc", "lag", "rank", "mean", "np.mean", "te"])
def test_what_depends_on_the_other_rows_is_refused_with_the_reason(name):
    with pytest.raises(fh.InvalidConfig, match=rf"{name.removeprefix('np.')} in .*depends on all rows, and a site has its own only"):
        parse(f"y ~ x + {name}(x)")


BAD = {
    "": "1 to .* characters",
    "x": "needs a response",
    "~ x": "needs a response",
    "y + z ~ x": "one response",
    "C(y) ~ x": "one response",
    "1 ~ x": "one response",
    "y ~": "no term",
    "y ~ 0": "no term",
    "y ~ .": "write the names",
    "y ~ x z": "Missing operator between `x` and `z`",
    "y ~ x + (": "could not be read",
    "y ~ x ~ z": "could not be read",
    "y ~ 2:x": r"arithmetic goes into I\(…\)",
    "y ~ x + 3": r"arithmetic goes into I\(…\)",
    "y ~ 'x'": "cannot stand by itself",
    "y ~ (a + b)**9": "a power is at most 5",
    "y ~ I(3)": "names no column",
    "y ~ I(x > 1)": "Compare cannot be used",
    "y ~ I(x % 2)": "BinOp cannot be used",
    "y ~ I(x * True)": "Constant cannot be used",
    "y ~ I(x * 1j)": "Constant cannot be used",
    "y ~ I(x ** 1e999)": "Constant cannot be used",
    "y ~ tanh(x)": "Allowed are columns, numbers",
    "y ~ log(C(x))": "Allowed are columns",
    "y ~ C(x, Sum)": "C.column, Treatment",
    "y ~ C(log(x))": "C.column, Treatment",
    "y ~ offset(x)": "an offset is given as a column",
    "y ~ `1`": "a column cannot be called",
    "y ~ Intercept": "a column cannot be called",
    "y ~ `C(x)` + C(x)": "both the name of a column and an expression",
}


@pytest.mark.parametrize("formula", BAD)
def test_a_formula_that_means_nothing_says_what_to_do(formula):
    with pytest.raises(fh.InvalidConfig, match=BAD[formula]):
        parse(formula)


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ " + "*".join(f"(a{k} + b{k})" for k in range(40)),
        "y ~ " + "(" * 200 + "a + b" + ")**5" * 200,
        "y ~ I(" + "(" * 240 + "x" + ")" * 240 + ")",
        "y ~ I(" + "-" * 480 + "x)",
        "y ~ I(" + "x+" * 5000 + "x)",
        "y ~ I(x ** " + "9" * 400 + ")",
        "y ~ " + "x" * 30_000,
        "y ~ " + "C(" * 5000,
    ],
    ids=["products", "powers of powers", "brackets", "signs", "a long sum", "a long number", "a long name", "open brackets"],
)
def test_a_formula_that_would_take_for_ever_is_refused_at_once(formula):
    with pytest.raises(fh.InvalidConfig) as caught:
        parse(formula)
    assert len(str(caught.value)) < 500


def test_terms_columns_and_names():
    formula = parse("`blood pressure` ~ a*C(s, Treatment('f')) + np.log(`größe (m²)` + `größe`)/z - a:z - 1")
    assert formula.response.name == "blood pressure"
    assert not formula.intercept
    names = [":".join(factor.name for factor in term) for term in formula.terms]
    log = "np.log(`größe (m²)` + `größe`)"
    assert names == ["a", "C(s, Treatment('f'))", "a:C(s, Treatment('f'))", log, f"{log}:z"]
    assert formula.columns == ("blood pressure", "a", "s", "größe (m²)", "größe", "z")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("np.log(x)", np.log),
        ("log2(x)", np.log2),
        ("np.log10(x)", np.log10),
        ("log1p(x)", np.log1p),
        ("exp(-x)", lambda x: np.exp(-x)),
        ("np.expm1(x)", np.expm1),
        ("sqrt(x)", np.sqrt),
        ("np.abs(1 - x)", lambda x: np.abs(1 - x)),
        ("I(sin(6.28 * x) + cos(x))", lambda x: np.sin(6.28 * x) + np.cos(x)),
        ("I(+x / 3 - 2 ** 2 * x ** 3)", lambda x: x / 3 - 4 * x**3),
        ("{x + 1}", lambda x: x + 1),
        ("I(2 ** x)", lambda x: 2**x),
        ("I(x * 2 ** 0.5)", lambda x: x * 2**0.5),
    ],
)
def test_expressions_have_numpys_values_to_the_last_bit(expression, value):
    x = np.random.default_rng(0).uniform(0.1, 3, 41)
    frame = pd.DataFrame({"y": x, "x": x})
    design, _ = agree({"a": frame}, f"y ~ {expression}", family="gaussian")
    np.testing.assert_array_equal(design.rows("a", frame).A[:, 0], value(x))
