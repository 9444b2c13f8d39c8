"""docs/images/report.png, from the report of examples/hospitals.py: its top in light colours beside its middle in dark ones.

python docs/build_site/report_picture.py        needs Chromium
"""

import contextlib
import io
import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "report"))
from browser import Browser  # noqa: E402 - it lives with the tests that it serves

WIDTH, HEIGHT, GAP = 860, 1555, 24


def draw(to: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        with contextlib.chdir(here), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(ROOT / "examples" / "hospitals.py"))
        browser = Browser(shutil.which("chromium") or "chromium", here / "profile")
        shots = []
        for scheme, start in (("light", "header"), ("dark", "#heterogeneity")):
            page = browser.open(here / "tumours.html", width=WIDTH, scheme=scheme)
            top = page.value(f"document.querySelector('{start}').getBoundingClientRect().top") - 28
            page.screenshot(here / f"{scheme}.png")
            with Image.open(here / f"{scheme}.png") as shot:
                shots.append(shot.convert("RGB").crop((0, int(top), WIDTH, int(top) + HEIGHT)))
        browser.close()
    both = Image.new("RGB", (2 * WIDTH + GAP, HEIGHT), "#8a94a0")
    for k, shot in enumerate(shots):
        both.paste(shot, (k * (WIDTH + GAP), 0))
    both.quantize(160, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(to, optimize=True)


if __name__ == "__main__":
    draw(ROOT / "docs" / "images" / "report.png")
    print(f"{os.path.getsize(ROOT / 'docs' / 'images' / 'report.png'):,} bytes")
