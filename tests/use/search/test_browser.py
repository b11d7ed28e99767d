"""The page in a real browser: type, filter, upload, click, see."""

import os
import re
import signal
import subprocess
import sys

import pytest
from indexes import build, load, write_table

from big_align.use.search.metadata import MetadataTable
from tests import browsers
from tests.data.samples import encode_image, make_pixels

pytest.importorskip("uvicorn", reason="the server needs .[serve]")
pytest.importorskip("selenium.webdriver", reason="the browser needs selenium")
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

pytestmark = [pytest.mark.slow, browsers.needed]


@pytest.fixture(scope="module")
def index(weights, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    table = write_table(folder / "photos", 20)
    build(model, table, folder / "index", metadata=MetadataTable(table))
    return load(folder / "index", model)


@pytest.fixture(scope="module")
def address(index, weights):
    command = [sys.executable, "-m", "big_align.tools.serve", f"--index={index._address}"]
    process = subprocess.Popen(
        [*command, f"--model={weights}", "--port=0", "--max_pixels=10000"],
        stdout=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    try:
        line = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", line)
        yield line
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsers.open_browser(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def page(browser, address):
    browser.get(address)
    yield Page(browser)
    # What the policy of the page forbids, or a script that fails, stands in the console.
    told = [entry["message"] for entry in browser.get_log("browser")]
    assert [text for text in told if "Content Security" in text or "Uncaught" in text] == []


class Page:
    """What a person does and sees."""

    def __init__(self, browser):
        self.browser = browser

    def find(self, selector):
        return self.browser.find_element("css selector", selector)

    def find_all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def run(self, script):
        return self.browser.execute_script(f"return {script}")

    def wait(self, text):
        WebDriverWait(self.browser, 60).until(
            lambda _: text in self.find("#told").text, f"no {text!r}"
        )

    def names(self):
        texts = self.run("[...document.querySelectorAll('figcaption small')].map(e => e.innerText)")
        return [text.partition(" · ")[0] for text in texts]

    def wait_for(self, hits):
        names = [hit.name for hit in hits]
        WebDriverWait(self.browser, 60).until(lambda _: self.names() == names, f"no {names}")


def test_typing_shows_what_the_index_finds(page, index):
    page.find("#texts input[type=text]").send_keys("a dog\n")
    page.wait_for(index.search("a dog", k=20))
    page.wait("20 results")
    scores = [float(div.text) for div in page.find_all(".score")]
    assert len(scores) == 20 and scores == sorted(scores, reverse=True)
    widths = "[...document.querySelectorAll('#grid img')].slice(0, 4).map(i => i.naturalWidth)"
    WebDriverWait(page.browser, 60).until(lambda _: page.run(widths) == [40] * 4)

    page.find("#filters").send_keys("year>=2004, place=Bern\n")
    page.wait_for(index.search("a dog", filters=["year>=2004", "place=Bern"]))
    page.find("#filters").clear()
    page.find("#filters").send_keys("place!=Zürich, CH, year>=2004\n")
    page.wait_for(index.search("a dog", k=20, filters=["place!=Zürich, CH", "year>=2004"]))
    page.find("#filters").clear()
    page.find("#filters").send_keys("yaer=3\n")
    page.wait("did you mean 'year'?")

    page.find("#filters").clear()
    page.find("#more").click()
    page.find_all("#texts input[type=text]")[1].send_keys("-a red cat")
    page.find_all("#texts input[type=number]")[1].send_keys("0.5\n")
    page.wait_for(index.search(["a dog", "-a red cat"], weights=[1, 0.5], k=20))


def test_a_phone_shows_the_page_without_scrolling_sideways(page, index):
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.find("#texts input[type=text]").send_keys("a dog\n")
        page.wait_for(index.search("a dog", k=20))
        page.find_all("button.add")[0].click()
        page.wait_for(index.search("a dog", like=[page.names()[0]], k=20))
        assert page.run("document.documentElement.scrollWidth") == 390
        columns = {card.location["x"] for card in page.find_all("#grid figure")}
        assert len(columns) == 2
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_an_empty_query_says_what_to_do(page):
    page.find("#go").click()
    page.wait("the query is empty: write a text, or choose an image")


def test_upload_add_and_more_like_this(page, index):
    photo = index.store.contents.images["name"][6].as_py()
    page.find("#file").send_keys(photo)
    hits = index.search(images=photo, k=20)
    page.wait_for(hits)
    assert hits[0].row == 6

    page.find("#texts input[type=text]").send_keys("a cat\n")
    hits = index.search("a cat", photo, k=20)
    page.wait_for(hits)
    page.find_all("button.like")[2].click()
    third = hits[2].name
    hits = index.search(like=[third], k=20)
    page.wait_for(hits)
    assert len(page.find_all("#images .part")) == 1 and hits[0].name == third
    page.find_all("button.add")[5].click()
    page.wait_for(index.search(like=[third, hits[5].name], k=20))

    page.find("#of").send_keys("captions")
    page.find("#go").click()
    page.wait("5 results")


def test_an_image_that_is_too_large_is_told(browser, address, tmp_path):
    browser.get(address)
    (tmp_path / "large.png").write_bytes(encode_image(make_pixels(1, 101)))
    page = Page(browser)
    page.find("#file").send_keys(str(tmp_path / "large.png"))
    page.wait("101 x 101 pixels, which is more than max_pixels=10000")
    browser.get_log("browser")  # the refusal stands there
