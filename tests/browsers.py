"""Chromium without a window, for tests that look at pages."""

import contextlib
import shutil

import pytest

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needed = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="there is no chromium and chromedriver"
)


@contextlib.contextmanager
def open_browser(profile):
    """Opens a browser, with its profile in a folder."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the browser needs selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,1400"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    with webdriver.Chrome(options=options, service=service) as driver:
        driver.implicitly_wait(0)
        yield driver
