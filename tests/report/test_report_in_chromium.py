"""Reports in a real browser: nothing is fetched or complained of, points speak, and everything fits on a phone and on paper."""

import re

import pytest
from conftest import HOSTILE

SIZES = [(1000, "light"), (1000, "dark"), (390, "light"), (390, "dark")]
KINDS = ["gaussian", "binomial", "poisson", "multinomial", "penalised", "unfinished", "one site", "intercept alone"]

OVERLAPS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg")) {
    const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    boxes.forEach(([one, a], k) => boxes.slice(k + 1).forEach(([other, b]) => {
      if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) found.push(one + " | " + other);
    }));
  }
  return found;
})()"""

CONTRASTS = """(() => {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = luminance(getComputedStyle(document.body).backgroundColor);
  const of = (query, property) => [...document.querySelectorAll(query)].map((element) => {
    const lights = [luminance(getComputedStyle(element)[property]), paper].sort((a, b) => b - a);
    return [query, (lights[0] + 0.05) / (lights[1] + 0.05)];
  });
  return [...of("p, dt, dd, th, td, h1, h2, h3, strong, .sign, .update", "color"), ...of("svg text, .dot, .filled", "fill")];
})()"""


@pytest.fixture
def opened(chromium, fits, tmp_path):
    pages = []

    def open_page(kind, **how):
        path = tmp_path / "report.html"
        fits[kind].report(path)
        pages.append(chromium.open(path, **how))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_loads_in_silence_fetches_nothing_and_fits_the_window(opened, kind):
    for width, scheme in SIZES:
        page = opened(kind, width=width, scheme=scheme)
        assert page.value("document.title")
        assert page.value("document.querySelectorAll('section').length") > 6
        assert page.value("document.documentElement.scrollWidth") <= width
        assert page.value(OVERLAPS) == []
        assert page.complaints == []
        assert page.requests == [page.address]


def test_names_that_are_scripts_are_read_and_not_run(opened):
    page = opened("binomial")
    assert page.value("document.scripts.length") == 1
    assert HOSTILE in page.value("document.querySelector('#sites').textContent")


def test_hovering_over_a_point_shows_what_it_says_and_leaving_hides_it(opened):
    page = opened("binomial")
    for query in ("#convergence .dot", "#coefficients .dot", "#calibration .dot", "#sites .filled"):
        page.value(f"document.querySelector('{query}').scrollIntoView({{block: 'center'}})")
        box = page.value(f"document.querySelector('{query}').getBoundingClientRect().toJSON()")
        page.value("new Promise(requestAnimationFrame)")
        page.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        said = page.value(f"document.querySelector('{query}').closest('.point').getAttribute('aria-label')")
        assert page.value("document.querySelector('#tip').hidden") is False, query
        assert page.value("document.querySelector('#tip').textContent") == said != ""
        tip = page.value("document.querySelector('#tip').getBoundingClientRect().toJSON()")
        assert tip["left"] >= 0
        assert tip["right"] <= 1000
        assert tip["top"] >= 0
        page.move(2, 2)
        assert page.value("document.querySelector('#tip').hidden") is True


def test_points_are_reached_by_tabulator_and_arrows(opened, fits):
    page = opened("binomial")
    stops = page.value("document.querySelectorAll('.point[tabindex=\"0\"]').length")
    assert stops == 5  # one for every picture: forest, sites, agreement, calibration, convergence
    page.value("document.querySelector('#convergence h2').setAttribute('tabindex', '0'); document.querySelector('#convergence h2').focus()")
    page.press("Tab")
    for rounds, residual in fits["binomial"].convergence[:3]:
        assert page.value("document.querySelector('#tip').textContent") == f"Round {rounds}: residual {residual:.2e}"
        page.press("ArrowRight")
    page.press("Escape")
    assert page.value("document.querySelector('#tip').hidden") is True


@pytest.mark.parametrize("kind", ["binomial", "unfinished"])
def test_light_and_dark_have_contrast(opened, kind):
    page = opened(kind, scheme="light")
    papers = []
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        papers.append(page.value("getComputedStyle(document.body).backgroundColor"))
        contrasts = page.value(CONTRASTS)
        assert len(contrasts) > 50
        assert min(ratio for _, ratio in contrasts) >= 4.5, min(contrasts, key=lambda each: each[1])
    assert len(set(papers)) == 2


def test_paper_is_white_and_nothing_on_it_is_cut_off(opened):
    page = opened("binomial", width=680, scheme="dark")
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.ask("Emulation.setEmulatedMedia", media="print", features=features)
    assert page.value("getComputedStyle(document.body).getPropertyValue('--paper')").strip() == "#ffffff"
    assert page.value("document.documentElement.scrollWidth") <= 682  # A4 between its margins
    assert page.value("[...document.querySelectorAll('.box')].every((box) => getComputedStyle(box).overflowY === 'visible')")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", page.pdf())) <= 6


def test_the_policy_of_a_page_refuses_other_scripts_and_every_fetch(opened):
    page = opened("one site")
    page.value(
        "{ const script = document.createElement('script'); script.textContent = 'window.ran = true'; document.body.append(script); }"
    )
    page.value("{ const image = new Image(); image.src = 'http://127.0.0.1:9/x.png'; document.body.append(image); }")
    assert page.value("window.ran") is None
    page.value("new Promise((done) => setTimeout(done, 50))")
    assert len(page.complaints) == 2
    assert all("Content Security Policy" in seen["entry"]["text"] for seen in page.complaints)
