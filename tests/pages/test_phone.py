"""Pages on a phone, in a real browser: nothing is cut, and everything can be read."""

import json

import numpy as np
import pytest

from big_align.evaluators.exhibits.cosines import show_cosines
from big_align.evaluators.exhibits.exhibit import Confusion, Examples, Finding, Item
from big_align.pages.run_report import report
from big_align.pages.run_report.gallery import Gallery
from big_align.pages.run_report.starts import record_start
from tests import browsers

pytestmark = [pytest.mark.slow, browsers.needed]
WIDTH = 390
OUTSIDE = """return [...document.querySelectorAll('body *')].filter((e) =>
  e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll')).length"""
LABELS = """return [...document.querySelectorAll('svg text')].map((e) =>
  parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)"""


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory):
    """Two runs of 20 classes with long names."""
    folders = [tmp_path_factory.mktemp(name) for name in ("a_run_with_a_long_name_1", "second")]
    for folder in folders:
        names = [f"American Staffordshire terrier {n}" for n in range(20)]
        counts = np.random.default_rng(0).integers(0, 60, (20, 21))
        image = np.zeros((32, 32, 3), np.uint8)
        gallery = Gallery(
            str(folder), 1, {"first batch": lambda image=image: [
                Examples("Examples", "", [Finding(Item(image), [Item(text="a dog")])] * 3)
            ]},
        )  # fmt: skip
        gallery.begin(1)
        gallery.add("set", lambda n=names, c=counts: [Confusion("Confused classes", "", n, c)])
        values = [np.linspace(0, 1, 99), np.linspace(-1, 0, 99)]
        gallery.add("pairs", lambda v=values: [show_cosines("Cosines", ["own", "another"], v)])
        gallery.finish(1_000_000)
        line = {"step": 1, "loss": 123456.0, "set/mean_per_class_recall": 0.98765}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        config = {"total_steps": 1, "data": {"source": {"name": "tar", "path": "/a/b" * 30}}}
        (folder / "config.json").write_text(json.dumps(config))
        changes = {f"data.source.field_{n}": [1, ["x"] * n] for n in range(9)}
        record_start(str(folder), {"config": "x.py", "changes": changes, "time": 0, "step": 0})
    return [str(folder) for folder in folders]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsers.open_browser(tmp_path_factory.mktemp("chromium")) as driver:
        metrics = {"width": WIDTH, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield driver


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_cut_and_labels_can_be_read(workdirs, browser, tmp_path, count):
    browser.get(f"file://{report.write_report(workdirs[:count], str(tmp_path / 'page.html'))}")
    assert browser.execute_script("return document.documentElement.scrollWidth") == WIDTH
    assert browser.execute_script(OUTSIDE) == 0
    labels = browser.execute_script(LABELS)
    assert labels and min(labels) >= 9


def test_a_matrix_that_is_too_wide_scrolls_in_its_box_beside_the_names_of_its_rows(
    workdirs, browser, tmp_path
):
    browser.get(f"file://{report.write_report(workdirs[:1], str(tmp_path / 'page.html'))}")
    table = browser.find_element("css selector", ".confusion")
    box = "arguments[0].parentElement"
    wide, seen = browser.execute_script(f"return [{box}.scrollWidth, {box}.clientWidth]", table)
    assert wide > seen
    name, last = (
        table.find_element("css selector", f"tr :{place}-child") for place in ("first", "last")
    )
    before = name.rect["x"]
    assert last.rect["x"] > WIDTH
    browser.execute_script(f"{box}.scrollLeft = 10000", table)
    assert name.rect["x"] == before and last.rect["x"] + last.rect["width"] <= WIDTH
