"""The page as headless Chromium shows it: no request, no complaint, buttons that copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from ddoctor.report import html
from tests.report.sample import SAMPLES

BROWSER = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="no chromium and chromedriver: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, sample in SAMPLES.items():
        (folder / f"{name}.html").write_text(html.render(*sample()), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    assert BROWSER is not None
    assert DRIVER is not None
    options = ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    chrome = Chrome(options=options, service=Service(DRIVER))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def server(pages: Path) -> Iterator[str]:
    """The pages over HTTP on this machine, where a page may read the clipboard."""
    handler = partial(_Silent, directory=str(pages))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def show(browser: Chrome, address: str, *, width: int = 1400, scheme: str = "light") -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    for log in ("performance", "browser"):
        told(browser, log)
    browser.get(address)
    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")


def told(browser: Chrome, log: str) -> list[dict[str, Any]]:
    """What the browser wrote to one of its logs since the last look."""
    entries: list[dict[str, Any]] = browser.get_log(log)  # type: ignore[no-untyped-call]
    return entries


@pytest.mark.parametrize("name", SAMPLES)
def test_no_request_leaves_it_and_nothing_is_complained_of(
    browser: Chrome, server: str, name: str
) -> None:
    address = f"{server}/{name}.html"
    show(browser, address)
    events = [json.loads(entry["message"])["message"] for entry in told(browser, "performance")]
    requests = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert requests[0] == address
    assert all(url == address or url.startswith("data:") for url in requests), requests
    assert told(browser, "browser") == []


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [400, 1400])
def test_it_is_no_wider_than_the_window(
    browser: Chrome, pages: Path, name: str, width: int
) -> None:
    show(browser, (pages / f"{name}.html").as_uri(), width=width)
    page, window = browser.execute_script(
        "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
    )
    assert page <= window <= width


@pytest.mark.parametrize("name", ["sick", "late-rank", "slow-loader"])
@pytest.mark.parametrize(("width", "shown"), [(400, "narrow"), (1400, "wide")])
def test_the_text_of_the_chart_is_as_large_as_that_of_the_page(
    browser: Chrome, pages: Path, name: str, width: int, shown: str
) -> None:
    show(browser, (pages / f"{name}.html").as_uri(), width=width)
    heights = browser.execute_script(
        "return [...document.querySelectorAll('.chart svg text')]"
        ".map(t => [t.closest('div').className, t.getBoundingClientRect().height])"
    )
    visible = [height for _, height in heights if height]
    assert {where for where, height in heights if height} == {shown}
    assert min(visible) >= 12
    assert max(visible) <= 24


@pytest.mark.parametrize("width", [400, 1400])
def test_the_bars_of_all_ranks_are_on_one_scale(browser: Chrome, pages: Path, width: int) -> None:
    """Equal steps have equal bars, and the late rank's backward is the longest."""
    show(browser, (pages / "late-rank.html").as_uri(), width=width)
    bars, backwards = browser.execute_script(
        "const widths = what => [...document.querySelectorAll(what)]"
        ".map(one => one.getBoundingClientRect().width);"
        "return [widths('.stack-bar'), widths('.stack-bar > .backward')]"
    )
    assert len(bars) == len(backwards) == 8
    assert max(bars) - min(bars) < 1
    assert max(bars) > width / 3
    assert max(backwards) == backwards[5]
    assert backwards[5] > 1.4 * backwards[0] > 0.4 * bars[0]


def test_light_and_dark_differ(browser: Chrome, pages: Path) -> None:
    def colours() -> tuple[str, str]:
        style = "getComputedStyle(document.querySelector('svg text')).fill"
        paper = "getComputedStyle(document.body).backgroundColor"
        return tuple(browser.execute_script(f"return [{style}, {paper}]"))

    address = (pages / "sick.html").as_uri()
    show(browser, address)
    light = colours()
    show(browser, address, scheme="dark")
    dark = colours()
    assert light[0] != dark[0]
    assert light[1] == "rgb(255, 255, 255)"
    assert dark[1] == "rgb(20, 23, 27)"


@pytest.mark.parametrize("clipboard", ["asynchronous", "none"])
def test_the_copy_buttons_copy(browser: Chrome, server: str, clipboard: str) -> None:
    """With the clipboard of a secure page, and with the old command where a page has none."""
    browser.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"origin": server, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    show(browser, f"{server}/sick.html")
    browser.execute_script("window.real = navigator.clipboard")
    if clipboard == "none":
        browser.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    report, _ = SAMPLES["sick"]()
    pastes = [fix.paste.rstrip("\n") for finding in report.findings for fix in finding.fixes]
    buttons = browser.find_elements(By.CSS_SELECTOR, "button.copy")
    assert len(buttons) == len(pastes)
    for button, paste in zip(buttons, pastes, strict=True):
        browser.execute_async_script("window.real.writeText('nothing').then(arguments[0])")
        button.click()
        copied = browser.execute_async_script(
            "const done = arguments[1], button = arguments[0];"
            "const ready = () => button.textContent === 'Copy' ? setTimeout(ready, 10)"
            " : window.real.readText().then(done);"
            "ready()",
            button,
        )
        assert copied == paste
        assert button.text == "Copied"
    assert not browser.find_elements(By.CSS_SELECTOR, "textarea")


def test_the_keyboard_reaches_the_buttons_and_sees_where_it_is(
    browser: Chrome, pages: Path
) -> None:
    show(browser, (pages / "sick.html").as_uri())
    button = browser.find_element(By.CSS_SELECTOR, "button.copy")
    browser.execute_script("arguments[0].focus({focusVisible: true})", button)
    assert browser.switch_to.active_element == button
    assert button.value_of_css_property("outline-style") == "solid"
