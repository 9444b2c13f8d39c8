"""Sites' designs are rows of the pooled one, column by column and bit by bit; what cannot be used is refused without telling an entry."""

import json

import formulaic
import numpy as np
import pandas as pd
import patsy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedhybrid as fh
from fedhybrid.tables.agree import agree, describe, settle
from fedhybrid.tables.design import Design
from fedhybrid.tables.formula import parse

# ── the pooled design ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FORMULAS = [
    "y ~ x + sex",
    "y ~ x + C(k) + C(flag)",
    "y ~ 0 + sex + C(k)",
    "y ~ sex * x",
    "y ~ sex * C(k) - 1",
    "y ~ sex:x + z",
    "y ~ sex:C(k) + C(k)",
    "y ~ (x + z + sex)**2 - x:z",
    "y ~ np.log(z) + I(x**2) + I(x / z - 1):sex",
    "y ~ x + sex/z",
    "np.log(z) ~ flag + x:z + C(sex):C(k):x",
    "y ~ `blood type` * `länge (m²)`",
    "y ~ C(sex, Treatment('m')) * C(k, Treatment(3))",
]
CATEGORIES = {"sex": ["f", "m", "x"], "k": [1, 2, 3], "flag": [False, True], "blood type": ["0", "A", "B", "AB"]}


def table(rng, n):
    frame = pd.DataFrame({name: rng.choice(levels, n) for name, levels in CATEGORIES.items()})
    for name, levels in CATEGORIES.items():
        frame.loc[: len(levels) - 1, name] = levels  # every level somewhere
    numbers = {name: rng.normal(size=n) for name in ("y", "x", "länge (m²)")}
    return frame.assign(**numbers, z=rng.uniform(0.5, 3, n), note="free text")


def split(rng, frame, by):
    """Sites of unequal size that lack levels: rows sorted by a category are cut at random places."""
    frame = frame.sort_values(by, kind="stable") if by else frame
    cuts = np.sort(rng.choice(np.arange(1, len(frame)), 4, replace=False))
    return {f"site {i}": frame.iloc[rows] for i, rows in enumerate(np.split(np.arange(len(frame)), cuts))}


def with_levels(frame, design):
    """The pooled table, in which the categories have the agreed levels in the agreed order."""
    frame = frame.copy()
    for factor in design.parsed.factors:
        if factor.name in design.levels:
            frame[factor.columns[0]] = pd.Categorical(frame[factor.columns[0]], categories=list(design.levels[factor.name]))
    return frame


@pytest.mark.parametrize("formula", FORMULAS)
@given(seed=st.integers(0, 10**6), by=st.sampled_from(["", *CATEGORIES]), reference=st.booleans())
def test_the_sites_rows_are_those_of_the_pooled_design(formula, seed, by, reference):
    rng = np.random.default_rng(seed)
    pooled = table(rng, 40)
    sites = split(rng, pooled, by)
    pooled = pd.concat(sites.values())
    choice = {"sex": "m"} if reference and "sex" in formula and "Treatment" not in formula else {}
    design, _ = agree(sites, formula, family="gaussian", reference=choice)
    rows = [design.rows(site, frame) for site, frame in sites.items()]
    A, y = np.vstack([each.A for each in rows]), np.concatenate([each.y for each in rows])

    levelled = with_levels(pooled, design)
    wanted = formulaic.model_matrix(formula.replace(", Treatment('m')", "").replace(", Treatment(3)", ""), levelled)
    names = [str(name).replace("C(sex,)", "C(sex)") for name in wanted.rhs.columns if name != "Intercept"]
    told = [name.replace(", Treatment('m')", "").replace(", Treatment(3)", "") for name in design.columns]
    assert told == names
    np.testing.assert_array_equal(A, wanted.rhs[names].to_numpy(float))
    np.testing.assert_array_equal(y, wanted.lhs.to_numpy(float)[:, 0])
    assert design.intercept == ("Intercept" in wanted.rhs.columns)
    np.testing.assert_array_equal(design.matrix(pooled), A)


@pytest.mark.parametrize("formula", [formula for formula in FORMULAS if "`" not in formula and "flag" not in formula])
def test_the_pooled_design_is_patsys_too(formula):
    """Another program, the one that statsmodels came with; it keeps another order of columns."""
    rng = np.random.default_rng(3)
    pooled = table(rng, 60)
    sites = split(rng, pooled, "sex")
    pooled = pd.concat(sites.values())
    design, _ = agree(sites, formula, family="gaussian")
    y, wanted = patsy.dmatrices(formula, with_levels(pooled, design) if "Treatment" not in formula else pooled, return_type="dataframe")
    assert sorted(design.columns) == sorted(name for name in wanted.columns if name != "Intercept")
    rows = [design.rows(site, frame) for site, frame in sites.items()]
    np.testing.assert_array_equal(np.vstack([each.A for each in rows]), wanted[list(design.columns)].to_numpy())
    np.testing.assert_array_equal(np.concatenate([each.y for each in rows]), y.to_numpy()[:, 0])


def test_the_order_of_sites_changes_nothing():
    rng = np.random.default_rng(0)
    sites = split(rng, table(rng, 40), "k")
    forward, _ = agree(sites, "y ~ sex * C(k) + C(flag)", family="gaussian")
    backward, _ = agree(dict(reversed(sites.items())), "y ~ sex * C(k) + C(flag)", family="gaussian")
    assert forward == backward


def test_levels_are_the_union_sorted_and_the_reference_comes_first():
    sites = {
        "a": pd.DataFrame({"y": [1.0, 2], "s": ["m", "x"], "k": [10, 9]}),
        "b": pd.DataFrame({"y": [1.0, 2], "s": ["f", "f"], "k": [2.0, 9.5]}),
    }
    design, notes = agree(sites, "y ~ s + C(k)", family="gaussian", reference={"s": "m", "k": 9})
    assert design.levels == {"s": ("m", "f", "x"), "C(k)": (9, 2, 9.5, 10)}
    assert design.columns == ("s[T.f]", "s[T.x]", "C(k)[T.2.0]", "C(k)[T.9.5]", "C(k)[T.10.0]")
    assert design.rows("b", sites["b"]).A.tolist() == [[1, 0, 1, 0, 0], [1, 0, 0, 1, 0]]
    assert any("s: not all levels occur at a, b" in note for note in notes)


def test_categories_of_pandas_and_truth_values_are_understood():
    frame = pd.DataFrame(
        {"y": [1.0, 2, 3], "grade": pd.Categorical([1, 2, 3]), "s": pd.Categorical(["b", "a", "b"]), "ok": [True, False, True]}
    )
    nullable = pd.DataFrame({"y": [1, 2, None], "grade": pd.Categorical([1, 2, 3]), "s": ["b", "a", "c"], "ok": [True, None, False]})
    nullable = nullable.astype({"y": "Int64", "ok": "boolean"})
    design, _ = agree({"a": frame, "b": nullable}, "y ~ grade + s + ok", family="gaussian")
    assert design.columns == ("grade[T.2]", "grade[T.3]", "s[T.b]", "ok")
    assert design.rows("a", frame).A.tolist() == [[0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 1, 1]]
    assert design.rows("b", nullable).A.tolist() == [[0, 0, 1, 1]]


def test_a_formula_of_the_intercept_alone_has_no_column():
    frame = pd.DataFrame({"y": [1.0, 2, 3]})
    design, _ = agree({"a": frame}, "y ~ 1", family="gaussian")
    assert design.intercept
    assert design.rows("a", frame).A.shape == (3, 0)
    assert design.matrix(frame).shape == (3, 0)


# ── what is missing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_gaps():
    return pd.DataFrame(
        {
            "y": [1.0, 2, 3, 4, None, 6],
            "x": [None, None, 3.0, 4, 5, 6],
            "s": ["a", "b", None, "a", "b", "c"],
            "w": [1.0, 1, 1, 2, 1, 3],
            "o": [0.5, 0, 0, 0, 0, None],
            "unused": None,
        }
    )


def test_rows_with_something_missing_are_dropped_counted_and_told():
    design, notes = agree({"a": with_gaps(), "b": with_gaps().dropna(subset=["x"])}, "y ~ x + s", family="gaussian", weights="w")
    rows = design.rows("a", with_gaps())
    assert rows.y.tolist() == [4, 6]
    assert rows.A.tolist() == [[4, 0], [6, 1]]
    assert rows.w.tolist() == [2, 3]
    assert rows.offset is None
    assert (rows.missing, rows.missing_by_column) == (4, {"y": 1, "x": 2, "s": 1})
    assert "a: 4 of 6 rows were dropped, because something is missing in them: y in 1, x in 2, s in 1." in notes
    assert design.levels == {"s": ("a", "c")}  # b stands in rows that are dropped only


def test_a_missing_offset_or_weight_drops_its_row_too():
    design, notes = agree({"a": with_gaps()}, "y ~ x", family="gaussian", weights="w", offset="o")
    rows = design.rows("a", with_gaps())
    assert (rows.y.tolist(), rows.offset.tolist(), rows.w.tolist()) == ([3, 4], [0, 0], [1, 2])
    assert rows.missing_by_column == {"y": 1, "x": 2, "o": 1}
    assert any("o in 1" in note for note in notes)
    np.testing.assert_array_equal(design.offsets(with_gaps()), [0.5, 0, 0, 0, 0, np.nan])


def test_new_rows_need_no_response_and_those_with_something_missing_are_nan():
    design, _ = agree({"a": with_gaps()}, "y ~ x + s", family="gaussian")
    new = pd.DataFrame({"s": ["c", None, "a"], "x": [1.0, 2, None]}, index=[7, 7, 7])
    np.testing.assert_array_equal(design.matrix(new), [[1, 1], [np.nan] * 2, [np.nan] * 2])
    assert design.matrix(new.iloc[:0]).shape == (0, 2)
    np.testing.assert_array_equal(design.matrix(pd.DataFrame({"s": [None], "x": [1.0]})), [[np.nan] * 2])
    assert design.offsets(new) is None


# ── the response ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def responses(*values):
    return {name: pd.DataFrame({"y": y, "x": np.arange(len(y)) * 1.0}) for name, y in zip("abc", values, strict=False)}


@pytest.mark.parametrize(
    ("values", "reference", "levels", "coded", "note"),
    [
        (([0, 1], [1, 1]), None, None, [[0, 1], [1, 1]], None),
        (([0, 1], [1, 1]), 1, (1, 0), [[1, 0], [0, 0]], "y: 0 counts as 1, 1 as 0."),
        (([0.0, 0.0], [0.0]), None, None, [[0, 0], [0]], None),
        (([True, False], [True]), None, (False, True), [[1, 0], [1]], "y: True counts as 1, False as 0."),
        (([True, True], [True]), None, (False, True), [[1, 1], [1]], "y: True counts as 1, False as 0."),
        (([True, False], [1, 1]), None, None, [[1, 0], [1, 1]], None),
        ((["yes", "no"], ["no"]), None, ("no", "yes"), [[1, 0], [0]], "y: yes counts as 1, no as 0."),
        ((["yes", "yes"], ["no"]), "yes", ("yes", "no"), [[0, 0], [1]], "y: no counts as 1, yes as 0."),
        (([-1, 1], [1]), None, (-1, 1), [[0, 1], [1]], "y: 1 counts as 1, -1 as 0."),
        (([1, 2], [2]), "1", (1, 2), [[0, 1], [1]], "y: 2 counts as 1, 1 as 0."),
    ],
)
def test_a_response_of_two_values_is_coded_alike_at_all_sites_and_the_coding_is_told(values, reference, levels, coded, note):
    sites = responses(*values)
    design, notes = agree(sites, "y ~ x", family="binomial", reference={} if reference is None else {"y": reference})
    assert design.response_levels == levels
    assert [design.rows(site, frame).y.tolist() for site, frame in sites.items()] == coded
    assert [each for each in notes if "counts as" in each] == ([note] if note else [])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (([1, 2], [2, 2]), r"two values that are not 0 and 1; write 0 and 1, or say which of the two is the 0"),
        (([0, 1], [0, 2]), r"3 different values over all sites \(a 2, b 2\)"),
        (([0, 0.5, 1], [0]), r"a: the response y has 3 different values; binomial needs two"),
        ((["yes", "no"], ["ja", "nein"]), r"4 different values over all sites \(a 2, b 2\)"),
        ((["yes", "yes"], ["yes"]), "one value only"),
        (([5, 5], [5]), "one value only"),
        ((["yes", "no"], [0, 1]), "the column y is text at a but number at b"),
    ],
)
def test_a_response_that_is_not_of_two_values_is_refused(values, message):
    with pytest.raises(fh.InvalidData, match=message):
        agree(responses(*values), "y ~ x", family="binomial")


def test_classes_are_numbered_alike_at_all_sites():
    sites = responses(["red", "blue"], ["green", "red"])
    design, notes = agree(sites, "y ~ x", family="multinomial", reference={"y": "red"})
    assert design.response_levels == ("red", "blue", "green")
    assert [design.rows(site, frame).y.tolist() for site, frame in sites.items()] == [[0, 1], [2, 0]]
    assert "y: the class that the others are compared with is red." in notes
    assert agree(responses([3, 1], [2]), "y ~ x", family="multinomial")[0].response_levels == (1, 2, 3)
    with pytest.raises(fh.InvalidData, match="b: the response y is no whole number in 1 of 2 rows"):
        agree(responses([3, 1], [2, 2.5]), "y ~ x", family="multinomial")
    with pytest.raises(fh.InvalidData, match="two classes or more"):
        agree(responses([3, 3], [3]), "y ~ x", family="multinomial")


def test_counts_are_not_negative_and_fractions_are_told():
    design, notes = agree(responses([3, 1.5], [0.0]), "y ~ x", family="poisson")
    assert notes[0] == "a: the response y is no whole number in some rows; they were taken as they are."
    with pytest.raises(fh.InvalidData, match="b: the response y is negative in 2 of 3 rows"):
        agree(responses([3, 1], [-1, 2, -3]), "y ~ x", family="poisson")
    with pytest.raises(fh.InvalidData, match="b: the response y is negative in 1 of 1 rows"):
        design.rows("b", responses([0], [-1.0])["b"])


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

SECRET = "7734"


def two_sites(**of_b):
    """Two good tables, of which b's is changed; every entry of a, and none that is agreed on, holds the secret."""
    n = 60
    rng = np.random.default_rng(0)
    a = pd.DataFrame({"y": rng.normal(size=n) + 7734, "age": rng.normal(size=n) + 7734, "s": rng.choice(["m", "f"], n), "w": 1.0, "o": 0.0})
    a["name"] = [f"Jane{SECRET}{k}" for k in range(n)]
    b = a.assign(**of_b)
    return {"a": a, "b": b.drop(columns=[name for name, values in of_b.items() if values is None])}


def first(value, column="age"):
    """b's column with another first entry."""
    values = two_sites()["b"][column].astype(object)
    values.iloc[0] = value
    return values


BAD = {
    "a missing column": ("y ~ age + s", {"s": None}, r"b: there is no column s\. Its columns are"),
    "a misspelt column": ("y ~ aeg", {}, r"a: there is no column aeg\. Did you mean age\?"),
    "a column of another type": ("y ~ age", {"age": first("7734,5").astype(str)}, "b: in age each of 60 rows.*decimal comma"),
    "a column of few texts": ("y ~ age", {"age": "unknown"}, "the column age is number at a but text at b.*decimal comma"),
    "text in a logarithm": ("y ~ np.log(s)", {}, r"a: the column s is text, but np\.log\(s\) needs numbers"),
    "a mixed column": ("y ~ age", {"age": first("7734,5")}, "b: the column age holds entries of kind mixed"),
    "a date": ("y ~ age", {"age": pd.Timestamp("2020-01-01")}, "b: the column age holds entries of kind datetime64"),
    "a column twice": ("y ~ age", "twice", "b: 2 columns are called age"),
    "a category with one level": ("y ~ C(w)", {}, "the category w has one level only, at all sites"),
    "a category of names": ("y ~ name", {}, "a: in name each of 60 rows has a level of its own.*must not leave the site"),
    "a response of names": ("name ~ age", {}, "a: in name each of 60 rows", "multinomial"),
    "nothing left": ("y ~ age", {"age": np.nan}, "b: there is no row to use: something is missing in all 60, age in 60"),
    "an infinite entry": ("y ~ age", {"age": first(np.inf).astype(float)}, "b: age is not a finite number in 1 of 60 rows"),
    "an infinite level": ("y ~ C(age)", {"age": first(np.inf).astype(float)}, "a: in age each of 60 rows"),
    "an infinite response": ("y ~ age", {"y": first(-np.inf, "y").astype(float)}, "b: y is not a finite number in 1 of 60 rows"),
    "the logarithm of 0": (
        "y ~ np.log(age)",
        {"age": first(0.0).astype(float)},
        r"b: np\.log\(age\) is not a finite number in 1 of 60 rows",
    ),
    "a division by 0": ("y ~ I(1/age):s", {"age": first(0.0).astype(float)}, r"b: I\(1 / age\) is not a finite number in 1 of 60 rows"),
    "text as a response": ("s ~ age", {}, "a: the response s is text.*family gaussian needs numbers"),
    "negative weights": ("y ~ age", {"w": -7734.0}, "b: the weight w is negative in 60 of 60 rows"),
    "text as weights": ("y ~ age", {"w": "heavy"}, "b: the weight w is text, but must be numbers"),
    "an infinite offset": ("y ~ age", {"o": np.inf}, "b: the offset o is infinite in 60 of 60 rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_site_and_column_and_no_entry(case):
    formula, of_b, message, *family = BAD[case]
    sites = two_sites(**(of_b if of_b != "twice" else {}))
    if of_b == "twice":
        sites["b"] = pd.concat([sites["b"], sites["b"][["age"]]], axis=1)
    with pytest.raises(fh.InvalidData, match=message) as caught:
        agree(sites, formula, family=family[0] if family else "gaussian", weights="w", offset="o")
    error = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"s": "n"}, r"reference of s: 'n' is a level at no site\..* Its levels are f, m\."),
        ({"S": "f"}, r"reference: S is no category of this formula\..* Categories are s\."),
        ({"age": "1"}, "reference: age is no category"),
        ({"y": "1"}, "reference: y is no category"),
    ],
)
def test_a_reference_that_is_none_lists_what_there_is(reference, message):
    with pytest.raises(fh.InvalidConfig, match=message):
        agree(two_sites(), "y ~ age + s", family="gaussian", reference=reference)


def test_two_references_for_one_category_are_refused():
    with pytest.raises(fh.InvalidConfig, match="names another one"):
        agree(two_sites(), "y ~ C(s, Treatment('m'))", family="gaussian", reference={"s": "f"})


def test_a_level_that_was_not_agreed_on_is_refused_and_not_told():
    design, _ = agree(two_sites(), "y ~ age + s", family="gaussian")
    new = two_sites(s=first(SECRET, "s"))["b"]
    for use in (lambda: design.rows("b", new), lambda: design.matrix(new, site="b")):
        with pytest.raises(fh.InvalidData, match=r"b: s has a level that was not agreed on in 1 of 60 rows\. Known are f, m\.$"):
            use()
    with pytest.raises(fh.InvalidData, match="b: the column s was agreed on as text, but is numbers here"):
        design.matrix(two_sites(s=1.0)["b"], site="b")


def test_sites_need_names_of_their_own_and_tables():
    part = describe("a", two_sites()["a"], parse("y ~ age"), family="gaussian")
    with pytest.raises(fh.InvalidConfig, match="two sites are called a"):
        settle([part, part], parse("y ~ age"), family="gaussian")
    with pytest.raises(fh.InvalidConfig, match="no site"):
        agree({}, "y ~ age", family="gaussian")
    with pytest.raises(fh.InvalidData, match="a: a pandas DataFrame is needed, not dict"):
        agree({"a": {}}, "y ~ age", family="gaussian")


def test_fewer_rows_than_columns_is_a_note_and_a_constant_column_is_not_refused():
    sites = {site: frame.head(2 if site == "b" else 60) for site, frame in two_sites().items()}
    _, notes = agree(sites, "y ~ age + s + w", family="gaussian")
    assert "fewer rows than coefficients (4) at b (2); no harm is done, as all rows are fitted together." in notes
    _, notes = agree({site: frame.head(2).assign(s=["f", "m"]) for site, frame in sites.items()}, "y ~ age*s*w", family="gaussian")
    assert "there are fewer rows at all sites together (4) than coefficients (8): the data do not determine them." in notes


def test_a_product_that_is_too_large_for_a_float_is_refused_by_its_name():
    frame = pd.DataFrame({"y": [1.0, 2], "x": [1.0, 1e200], "z": [1.0, 1e200]})
    design, _ = agree({"a": frame}, "y ~ x:z", family="gaussian")
    with pytest.raises(fh.InvalidData, match="a: x:z is too large for a float in 1 of 2 rows"):
        design.rows("a", frame)


def test_two_terms_of_one_name_are_refused():
    frame = pd.DataFrame({"y": [1.0, 2], "x": [1.0, 2], "z": [2.0, 3], "x:z": [0.0, 1]})
    with pytest.raises(fh.InvalidConfig, match="two of its terms make a column called x:z"):
        agree({"a": frame}, "y ~ x:z + `x:z`", family="gaussian")


def test_what_a_site_tells_holds_no_entry_but_levels():
    sites = two_sites(age=first(None))
    part = describe("b", sites["b"], parse("y ~ age * s + np.log(w)"), family="gaussian", offset="o")
    assert SECRET in repr(sites["b"])
    assert SECRET not in repr(part)
    assert (part.rows, part.missing, part.levels, part.labels) == (59, 1, {"s": ("f", "m")}, None)
    assert part.kinds == {"y": "number", "age": "number", "s": "text", "w": "number", "o": "number"}


# ── on paper ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_design_comes_back_from_json_and_means_the_same(formula):
    rng = np.random.default_rng(1)
    frame = table(rng, 30)
    design, _ = agree({"a": frame}, formula, family="gaussian", weights="z")
    again = Design.from_dict(json.loads(json.dumps(design.to_dict())))
    assert again == design
    np.testing.assert_array_equal(again.matrix(frame), design.matrix(frame))
    np.testing.assert_array_equal(again.rows("a", frame).A, design.rows("a", frame).A)


def written():
    frame = pd.DataFrame({"y": ["no", "yes"] * 3, "x": np.arange(6.0), "s": ["a", "b", "c"] * 2, "k": [1, 2, 3] * 2})
    return agree({"a": frame}, "y ~ x + s + C(k)", family="binomial")[0].to_dict()


CHANGES = {
    "a key more": {"more": 1},
    "another formula": {"formula": "y ~ x + s + C(s)"},
    "no formula": {"formula": 3},
    "a formula that is none": {"formula": "y ~ open('x')"},
    "other columns": {"columns": ["x", "s[T.b]", "s[T.d]", "C(k)[T.2]", "C(k)[T.3]"]},
    "columns in another order": {"columns": ["s[T.b]", "x", "s[T.c]", "C(k)[T.2]", "C(k)[T.3]"]},
    "columns of numbers": {"columns": [1, 2, 3, 4, 5]},
    "no intercept": {"intercept": False},
    "an intercept of 1": {"intercept": 1},
    "a level less": {"levels": {"s": ["a", "b"], "C(k)": [1, 2, 3]}},
    "one level": {"levels": {"s": ["a"], "C(k)": [1, 2, 3]}},
    "a level twice": {"levels": {"s": ["a", "b", "b"], "C(k)": [1, 2, 3]}},
    "levels of two kinds": {"levels": {"s": ["a", "b", 3], "C(k)": [1, 2, 3]}},
    "levels that are no levels": {"levels": {"s": ["a", "b", None], "C(k)": [1, 2, 3]}},
    "levels in levels": {"levels": {"s": [["a"], ["b"], ["c"]], "C(k)": [1, 2, 3]}},
    "a level of NaN": {"levels": {"s": ["a", "b", "c"], "C(k)": [1, 2, float("nan")]}},
    "levels of a fraction": {"levels": {"s": ["a", "b", "c"], "C(k)": [1, 2.0, 3.5]}},
    "no levels": {"levels": {"s": ["a", "b", "c"]}},
    "levels of another column": {"levels": {"s": ["a", "b", "c"], "C(k)": [1, 2, 3], "z": [1, 2]}},
    "one label": {"response_levels": ["yes"]},
    "labels in a text": {"response_levels": "no"},
    "a weight of 3": {"weights": 3},
    "a family that is none": {"family": None},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_design_that_does_not_fit_together_is_refused(change):
    assert Design.from_dict(written()).response_levels == ("no", "yes")
    with pytest.raises(fh.InvalidConfig, match=r"design|formula"):
        Design.from_dict(written() | CHANGES[change])


@pytest.mark.parametrize("key", written())
def test_a_design_without_one_of_its_keys_is_refused(key):
    given = written()
    del given[key]
    for wrong in (given, [*given.items()], None, "y ~ x"):
        with pytest.raises(fh.InvalidConfig, match="its keys must be"):
            Design.from_dict(wrong)


@pytest.mark.parametrize("entries", [["27,5", "31.2", "18.9"], ["27,5", "31,2", "18,9"], ["1", "2", "unknown"]])
def test_numbers_that_are_text_by_an_accident_are_no_category(entries):
    frames = {name: pd.DataFrame({"y": [1.0, 2.0, 4.0], "bmi": entries}) for name in ("north", "south")}
    with pytest.raises(
        fh.InvalidData, match=r"north: the column bmi is text, but most of its different entries read as numbers\..*C\(bmi\)"
    ):
        agree(frames, "y ~ bmi", family="gaussian")
    design, _ = agree(frames, "y ~ C(bmi)", family="gaussian")
    assert len(design.columns) == 2


@pytest.mark.parametrize("entries", [["1", "2", "3"], ["I", "II", "3"]])
def test_texts_that_are_meant_as_such_stay_a_category(entries):
    frame = pd.DataFrame({"y": [1.0, 2.0, 4.0], "ward": entries})
    assert len(agree({"north": frame}, "y ~ ward", family="gaussian")[0].columns) == 2
