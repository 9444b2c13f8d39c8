"""A report as a file: well formed, self-contained, escaped, silent about small sites, and showing the numbers of its fit."""

import base64
import hashlib
import itertools
import json
import math
import re
import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from conftest import HOSTILE, wards
from typer.testing import CliRunner

import fedhybrid as fh
from fedhybrid.cli import app
from fedhybrid.disclosure import total, withheld
from fedhybrid.report import again, scales
from fedhybrid.report.html import page
from fedhybrid.report.markup import element

KINDS = ["gaussian", "binomial", "poisson", "multinomial", "penalised", "unfinished", "one site", "intercept alone"]
SECTIONS = ["figures", "coefficients", "sites", "heterogeneity", "calibration", "convergence", "certificate", "data", "privacy", "again"]
RAW = re.compile(r"(<(script|style)>)(.*?)(</\2>)", re.DOTALL)  # what is in these is no markup


def parsed(fit):
    """The page as XML, which forgives nothing: every tag closed, every attribute quoted, every & escaped."""
    text = RAW.sub(r"\1\4", page(fit).removeprefix("<!doctype html>"))
    return ElementTree.fromstring(text)


def find(root, kind, within=None):
    """All elements of a class."""
    start = root if within is None else root.find(f".//section[@id='{within}']")
    return [each for each in start.iter() if kind in each.get("class", "").split()]


def words_of(node):
    return " ".join("".join(node.itertext()).split())


def rows_of(root, section, place=0):
    """A table's cells as texts."""
    found = root.findall(f".//section[@id='{section}']//table")[place]
    return [[words_of(cell) for cell in row] for row in found.findall("./tbody/tr")]


# ── the file ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_is_well_formed_and_its_sections_have_headings(fits, kind):
    root = parsed(fits[kind])
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(set(ids)) == len(ids)
    expected = [name for name in SECTIONS if name != "calibration" or kind == "binomial"]
    assert [section.get("id") for section in root.iter("section")] == expected
    for section in root.iter("section"):
        heading = section.find("h2")
        assert heading.get("id") == section.get("aria-labelledby")
        assert words_of(heading)
    assert len(root.findall(".//h1")) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_refers_to_nothing_outside_itself(fits, kind):
    text = page(fits[kind])
    assert not re.search(r"https?:|url\(|@import|\bsrc\s*=|\bhref\s*=|\bon\w+\s*=\s*\"|\bstyle\s*=", text)
    policy = parsed(fits[kind]).find(".//meta[@http-equiv='Content-Security-Policy']").get("content")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_every_picture_and_point_has_a_label(fits):
    root = parsed(fits["binomial"])
    for svg in root.iter("svg"):
        points = find(svg, "point")
        assert all(point.get("aria-label") and point.get("tabindex") == "0" for point in points)
        assert svg.get("aria-hidden") == "true" or svg.get("aria-label") or len(points) == 1


def test_names_are_escaped_wherever_they_stand(fits):
    odd = "a\"b'c<d>&e\x00\x1b"
    hostile = replace(
        fits["gaussian"],
        names=tuple(f"{name}{odd}{HOSTILE}" for name in fits["gaussian"].names),
        notes=(HOSTILE + odd + "\ud800",),
        privacy=HOSTILE,
        message=HOSTILE + odd,
        about={"versions": {HOSTILE: odd}, "machine": HOSTILE, "when": odd, "asked": {"method": HOSTILE}},
    )
    for fit in (hostile, replace(hostile, classes=(HOSTILE, odd), family_name="multinomial")):
        text = page(fit)
        text.encode("utf-8")
        assert text.count("<script") == 1
        assert "\x00" not in text
        assert "\x1b" not in text
        assert HOSTILE in words_of(parsed(fit).find(".//section[@id='data']"))


def test_text_becomes_markup_by_no_way_but_markup():
    assert element("p", "<b>", element("i", "&"), 3, None, ["<", element("b")]) == "<p>&lt;b&gt;<i>&amp;</i>3&lt;<b></b></p>"
    assert element("p", class_='"><b>') == '<p class="&quot;&gt;&lt;b&gt;"></p>'
    assert element("line", x1="1%") == '<line x1="1%"/>'


def test_a_fit_from_a_file_gives_the_same_report(fits, tmp_path):
    for kind in ("gaussian", "binomial", "multinomial"):
        fits[kind].to_json(tmp_path / "fit.json")
        assert page(fh.inference.fit.Fit.read(tmp_path / "fit.json")) == page(fits[kind])


# ── small counts ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_counts_of_small_sites_are_nowhere_in_the_file(fits):
    fit = fits["binomial"]
    line = fit.sites[0]
    told = [line._replace(site="big", rows=98_713, missing=76_541, events=65_437.0, share=0.5)]
    small = [
        line._replace(site="small", rows=4_817, missing=3_907, events=4_391.0, share=0.12347),
        line._replace(site="next", rows=8_213, missing=6_229, events=7_841.0, share=0.23459),
    ]
    fit = replace(fit, min_rows=5_000, sites=(*told, *small), rows=98_713 + 4_817 + 8_213)
    for text in (page(fit), fit.summary()):
        plain = text.replace(",", "")
        for number in ("98713", "65437"):
            assert number in plain
        for number in ("4817", "3907", "4391", "8213", "6229", "7841", "12.3", "23.5", str(fit.heterogeneity.df) + ") ="):
            assert number not in plain, number
    written = fit.to_dict()
    assert [site["rows"] for site in written["sites"]] == [98_713, "nan", "nan"]
    assert written["heterogeneity"]["df"] == "nan"
    told = json.dumps([written["sites"], written["missing"], written["heterogeneity"]])
    assert not re.search("4817|3907|4391|8213|6229|7841|0.12347|0.23459", told)
    rows = {row[0]: row for row in rows_of(parsed(fit), "sites")}
    assert rows["small"][2:] == rows["next"][2:] == ["–", "–", "–", "–"]


def test_tenths_with_few_rows_are_nowhere_in_the_file(fits):
    fit = fits["binomial"]
    found = fit.calibration._replace(
        rows=(70_001, 0, 0, 0, 4_003, 0, 0, 9_007, 0, 60_013),
        predicted=(0.05, np.nan, np.nan, np.nan, 0.44321, np.nan, np.nan, 0.78911, np.nan, 0.95),
        observed=(0.06, np.nan, np.nan, np.nan, 0.41237, np.nan, np.nan, 0.76543, np.nan, 0.94),
    )
    root = parsed(replace(fit, min_rows=5_000, calibration=found))
    text = ElementTree.tostring(root, encoding="unicode").replace(",", "")
    assert "70001" in text
    assert "60013" in text
    assert not re.search("4003|9007|44.3|41.2|78.9|76.5", text)
    assert [row[2] for row in rows_of(root, "calibration")] == ["70,001", "60,013"]


def test_no_hidden_count_follows_from_the_total():
    for counts in itertools.chain.from_iterable(itertools.product(range(8), repeat=n) for n in (1, 2, 3, 4)):
        hidden = withheld(counts, 4)
        behind = [count for count, hides in zip(counts, hidden, strict=True) if hides]
        assert all(hides for count, hides in zip(counts, hidden, strict=True) if 0 < count < 4)
        if behind:
            assert all(hidden) or (len(behind) > 1 and sum(behind) >= 4)
        assert any(hidden) == any(0 < count < 4 for count in counts)
        told = total(counts, hidden, 4)
        assert told == sum(counts) if sum(behind) >= 4 or not behind else np.isnan(told)


def test_notes_on_tables_keep_counts_of_small_sites():
    tables = wards()
    few = tables[HOSTILE].iloc[:6].assign(age=[np.nan, np.nan, np.nan, 50.0, 60.0, 70.0])
    fit = fh.fit(tables | {"few": few}, "visits ~ age + dose", min_rows=60)
    said = [note for note in fit.notes if "few" in note]
    assert said == ["few: rows were dropped, because something is missing in them, of age."]
    assert f"{HOSTILE}: 1 of 90 rows were dropped, because something is missing in them: age in 1." in fit.notes


# ── what it shows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["gaussian", "binomial", "multinomial"])
def test_the_table_of_coefficients_holds_the_fit(fits, kind):
    fit = fits[kind]
    rows = rows_of(parsed(fit), "coefficients", -1)
    assert [row[0] for row in rows] == list(fit.names)
    expected = np.column_stack([fit.params, fit.bse, fit.tvalues, fit.conf_int()])
    shown = np.array([[float(cell) for cell in (*row[1:4], *row[5:7])] for row in rows])
    np.testing.assert_allclose(shown, expected, rtol=2e-5, atol=6e-4)
    assert [row[4] for row in rows] == [f"{p:.4f}" if p >= 1e-4 else "<0.0001" for p in fit.pvalues]
    np.testing.assert_allclose([float(row[-1]) for row in rows], fit.error_bounds, rtol=0.5)
    if fit.family.ratio:
        np.testing.assert_allclose([float(row[7]) for row in rows], np.exp(fit.x), rtol=1e-4)


@pytest.mark.parametrize("kind", ["gaussian", "binomial", "multinomial"])
def test_a_forest_is_drawn_to_scale(fits, kind):
    fit = fits[kind]
    root = parsed(fit)
    dots = [float(dot.get("cx").rstrip("%")) for dot in find(root, "dot", "coefficients")]
    whiskers = [line for line in find(root, "whisker", "coefficients") if line.get("y1") == line.get("y2")]
    ends = [[float(line.get(end).rstrip("%")) for end in ("x1", "x2")] for line in whiskers]
    drawn = [k for k, name in enumerate(fit.names) if not name.startswith("Intercept")]
    values = np.column_stack([fit.x, fit.conf_int()])[drawn]
    shown = np.column_stack([dots, ends])
    inside = (shown > 0) & (shown < 100)
    assert inside.all()
    slope, start = np.polyfit(values.ravel(), shown.ravel(), 1)
    np.testing.assert_allclose(start + slope * values, shown, atol=2e-3)
    reference = {float(line.get("x1").rstrip("%")) for line in find(root, "reference", "coefficients")}
    assert [*reference] == pytest.approx([start], abs=2e-3)


def test_intervals_are_of_the_level_that_is_asked_for(fits, tmp_path):
    fit = fits["binomial"]
    fit.report(tmp_path / "report.html", level=0.5)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "50 % from" in text
    assert "95 %" not in text.replace("95 %</td>", "")
    for lower, upper in np.exp(fit.conf_int(0.5).to_numpy()[1:]):
        assert f"({lower:.3g} to {upper:.3g})" in text


def test_what_goes_on_beyond_a_forest_has_an_arrow(fits):
    fit = fits["gaussian"]
    wide, far = fit.covariance.copy(), fit.x.copy()
    wide[1, 1], wide[2, 2], far[2] = 1e8, 1e8, 1e7
    root = parsed(replace(fit, covariance=wide, x=far))
    assert [words_of(sign) for sign in find(root, "beyond", "coefficients")] == ["‹", "›", "»"]
    assert "go on beyond the picture" in words_of(root.find(".//section[@id='coefficients']"))
    assert "go on beyond the picture" not in words_of(parsed(fit).find(".//section[@id='coefficients']"))


def test_a_factor_beside_columns_of_small_units_stays_in_the_picture(fits):
    fit = fits["binomial"]
    narrow, estimates = fit.covariance.copy(), fit.x.copy()
    narrow[1, :], narrow[:, 1] = 0.0, 0.0
    narrow[1, 1], narrow[2, 2], estimates[1] = 1e-4, 0.04, math.log(1.0041)  # a year of age, and a yes or no
    root = parsed(replace(fit, covariance=narrow, x=estimates))
    assert not find(root, "beyond", "coefficients")
    assert "1.00 (0.985 to 1.02)" in words_of(root.find(".//section[@id='coefficients']"))


def test_convergence_is_drawn_on_a_logarithmic_scale(fits):
    fit = fits["binomial"]
    dots = find(parsed(fit), "dot", "convergence")
    rounds, residuals = np.array(fit.convergence).T
    assert len(dots) == len(rounds)
    for values, shown in ((rounds, "cx"), (np.log10(residuals), "cy")):
        places = np.array([float(dot.get(shown).rstrip("%")) for dot in dots])
        slope, start = np.polyfit(values, places, 1)
        np.testing.assert_allclose(start + slope * values, places, atol=0.02)
        assert slope > 0 if shown == "cx" else slope < 0


def test_residuals_that_are_no_positive_numbers_and_long_runs_can_be_drawn(fits):
    fit = fits["gaussian"]
    odd = ((1, math.inf), (2, 1.0), (3, math.nan), (4, 0.0), (5, 1e-300))
    assert len(find(parsed(replace(fit, convergence=odd)), "dot", "convergence")) == 2
    for nothing in ((), ((1, 0.0),), ((1, math.nan),)):
        assert "No residual was recorded." in words_of(parsed(replace(fit, convergence=nothing)).find(".//section[@id='convergence']"))
    long = tuple((k, 10.0 ** (-k / 1000)) for k in range(1, 9_999))
    dots = find(parsed(replace(fit, convergence=long)), "point", "convergence")
    assert 100 <= len(dots) <= 200
    assert dots[-1].get("aria-label").startswith("Round 9,998:")


def test_calibration_lies_where_it_should(fits):
    fit = replace(fits["binomial"], min_rows=1)
    dots = find(parsed(fit), "dot", "calibration")
    held = [(p, y) for rows, p, y in zip(*fit.calibration, strict=True) if rows]
    np.testing.assert_allclose([float(dot.get("cx").rstrip("%")) / 100 for dot in dots], [p for p, _ in held], atol=1e-4)
    heights = np.array([float(dot.get("cy")) for dot in dots])
    np.testing.assert_allclose(1 - heights / 260, [y for _, y in held], atol=1e-4)


def test_without_standard_errors_the_reason_is_said_and_no_interval_drawn(fits):
    for kind in ("penalised", "unfinished"):
        root = parsed(fits[kind])
        section = root.find(".//section[@id='coefficients']")
        assert f"No standard errors. {fits[kind].why_no_errors}" in words_of(section)
        assert not find(root, "whisker")
        assert find(root, "dot", "coefficients")
        assert "interval" not in words_of(section.find(".//table/thead"))
        assert "Not tested" in words_of(root.find(".//section[@id='heterogeneity']"))


@pytest.mark.parametrize(
    ("status", "kind", "sign"),
    [(fh.Status.SOLVED, "good", "✓"), (fh.Status.SOLVED_INACCURATE, "fair", "≈"), (fh.Status.MAX_ROUNDS, "bad", "✗")],
)
def test_how_a_fit_ended_is_said_in_words_and_signs(fits, status, kind, sign):
    shown = find(parsed(replace(fits["gaussian"], status=status, message="")), "status")[0]
    assert kind in shown.get("class").split()
    text = words_of(shown)
    assert text.startswith(sign)
    assert status.name in text
    assert status.sentence[1:] in text


def test_the_certificate_tells_its_bound_or_that_there_is_none(fits):
    fit = fits["gaussian"]

    def said(**changes):
        return words_of(parsed(replace(fit, **changes)).find(".//section[@id='certificate']"))

    worst = int(np.argmax(fit.error_bounds))
    assert f"{fit.error_bounds[worst]:.1e} ({fit.names[worst]})" in said()
    assert "1e-10" in said()
    assert "No bound on the error is proved" in said(status=fh.Status.MAX_ROUNDS, error_bounds=None)
    assert "no bound on the error is proved" in said(status=fh.Status.SOLVED_INACCURATE, error_bounds=np.full(len(fit.x), np.inf))
    assert "wider than the tolerance" in said(status=fh.Status.SOLVED_INACCURATE)


def test_the_privacy_label_is_said_in_words(fits):
    heard = {label: words_of(parsed(replace(fits["gaussian"], privacy=label)).find(".//section[@id='privacy']")) for label in
             ("plain", "secagg(5, 4)", "dp(8, 1e-05)", "another")}  # fmt: skip
    for label, text in heard.items():
        assert label in text
    assert "nothing was hidden" in heard["plain"]
    assert "sums over sites and no site's own vectors" in heard["secagg(5, 4)"]
    assert "noise of its own" in heard["dp(8, 1e-05)"]


def test_many_sites_and_coefficients_scroll_in_boxes_of_their_own(fits):
    fit = fits["gaussian"]
    q, n = 300, 500
    many = replace(
        fit,
        names=("Intercept", *(f"x{k}" for k in range(1, q))),
        x=np.linspace(-1, 1, q),
        covariance=np.eye(q),
        error_bounds=np.full(q, 1e-11),
        sites=tuple(fit.sites[0]._replace(site=f"site {k}", share=1 / n) for k in range(n)),
        heterogeneity=fit.heterogeneity._replace(Q=(1.0,) * q, pvalues=(0.5,) * q, I2=(0.25,) * q),
        design=None,
    )
    root = parsed(many)
    boxes = find(root, "long")
    assert len(boxes) == 4
    assert all(box.get("tabindex") == "0" and box.get("aria-label") for box in boxes)
    assert [len(box.findall(".//tbody/tr")) for box in boxes] == [q - 1, q, n, q]
    assert len(page(many)) < 2_000_000


# ── axes ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("exponent", [-12, -5, -1, 0, 0.3, 1, 2, 7, 300])
@pytest.mark.parametrize("start", [-3.0, 0.0, 0.2])
def test_axes_hold_their_values_and_have_few_different_ticks(exponent, start):
    span = 10.0**exponent
    made = [scales.linear([start, start + span])]
    if exponent <= 2:
        made.append(scales.ratios([start, start + span]))
    for axis in made:
        assert axis.holds(start)
        assert axis.holds(start + span)
        assert 1 <= len(axis.ticks) <= 9
        assert all(axis.holds(tick.value) for tick in axis.ticks)
        if exponent >= -4:
            assert len({tick.label for tick in axis.ticks}) == len(axis.ticks)
    assert scales.linear([start, start]).holds(start)


@pytest.mark.parametrize(("least", "most"), [(1e-300, 1.0), (1e-16, 3.0), (0.5, 0.6), (1e-9, 1e9), (2e5, 3e5)])
def test_decades_hold_their_values_and_have_few_ticks(least, most):
    axis = scales.decades([most, least])
    assert axis.holds(math.log10(least))
    assert axis.holds(math.log10(most))
    assert 2 <= len(axis.ticks) <= 7
    assert len({round(before.value - after.value) for before, after in itertools.pairwise(axis.ticks)}) == 1


def test_labels_of_ratios_are_what_the_logarithms_stand_for():
    for ends in ((-0.1, 0.2), (-1.0, 1.0), (-3.0, 4.0), (-8.0, 2.0)):
        axis = scales.ratios(ends)
        assert len(axis.ticks) >= 2
        for tick in axis.ticks:
            digit, _, power = tick.label.rpartition("10")
            if "⁰" <= tick.label[-1] <= "⁹" or tick.label[-1] in "¹²³":
                exponent = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
                value = float(digit.rstrip("·") or 1) * 10.0**exponent
            else:
                value = float(tick.label)
            assert value == pytest.approx(math.exp(tick.value), rel=1e-6)


# ── how to get it again ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Every table in a file called as its site; names that are file names."""
    monkeypatch.chdir(tmp_path)
    tables = dict(zip(("ward a", "b", "c"), wards().values(), strict=True))
    for name, table in tables.items():
        table.to_csv(f"{name}.csv", index=False)
    mixed = {"ward a": "newton", "b": "gradient", "c": "newton"}
    reference = {"stage": "II & III"}
    return fh.fit(tables, "dead ~ age + dose + stage", family="binomial", update=mixed, reference=reference, tol=1e-9, covariance="HC0")


def test_the_call_in_python_gives_the_fit_again(written):
    names = {}
    exec(again.python_call(written), names)
    np.testing.assert_array_equal(names["fit"].x, written.x)
    np.testing.assert_array_equal(names["fit"].covariance, written.covariance)


def test_the_command_gives_the_fit_again(written):
    program, *arguments = shlex.split(again.command(written).replace("\\\n", ""))
    assert program == "fedhybrid"
    done = CliRunner().invoke(app, [*arguments, "--out", "out"])
    assert done.exit_code == 0, done.output
    found = fh.inference.fit.Fit.read("out/result.json")
    np.testing.assert_allclose(found.x, written.x, rtol=1e-12)
    np.testing.assert_allclose(found.covariance, written.covariance, rtol=1e-12)
    assert "report.html" in done.output


def test_a_fit_of_arrays_has_a_call_and_no_command(fits):
    fit = fits["multinomial"]
    assert again.command(fit) is None
    assert "(A, y)" in again.python_call(fit)
    compile(again.python_call(fit), "call", "exec")
    assert "As a command" not in words_of(parsed(fit).find(".//section[@id='again']"))
