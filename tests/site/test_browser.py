"""A real browser shows the site: home page, navigation, search, an API page, both colours, and
nothing from elsewhere.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.browser import started

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("tests/site"),
    pytest.mark.may_leak("the browser keeps connections to the web server of all tests open"),
]
DEADLINE_S = 60.0
DESKTOP = (1400, 1000)
PHONE = (500, 900)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """No line for each request."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of a web server of the built pages."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(site))
    ) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as driven:
        yield driven


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """`opened(page)` shows a page. At the end nothing was loaded from elsewhere, and the console
    has no error.
    """

    def show(page: str) -> Any:
        browser.set_window_size(*DESKTOP)
        browser.get(f"{address}/{page}")
        return browser

    browser.get_log("performance"), browser.get_log("browser")
    yield show
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = {
        each["params"]["request"]["url"]
        for each in messages
        if each["method"] == "Network.requestWillBeSent"
    }
    assert requests
    assert {
        url for url in requests if urlsplit(url).netloc not in (urlsplit(address).netloc, "")
    } == set()
    errors = [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"
    ]
    assert [each for each in errors if "favicon" not in each] == []


def until(browser: Any, condition: Callable[[Any], Any]) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, DEADLINE_S, poll_frequency=0.05).until(condition)


def overflow_px(browser: Any) -> int:
    """Pixels by which the page is wider than its window."""
    width: int = browser.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return width


def test_the_first_page_says_when_to_use_it_and_leads_to_the_first_steps(
    opened: Callable[..., Any],
) -> None:
    browser = opened("index.html")
    text = browser.find_element("css selector", "article").text
    assert "When to use it" in text
    assert "Do not use it" in text
    browser.find_element("link text", "first steps").click()
    until(browser, lambda shown: shown.title.startswith("First steps"))
    browser.find_element("link text", "Comparison with other stores").click()
    until(browser, lambda shown: shown.title.startswith("Comparison"))


def test_the_search_finds_a_page_and_a_name(opened: Callable[..., Any]) -> None:
    browser = opened("index.html")
    for wanted, page in (
        ("dead letters", "recipes.html"),
        ("create_partitions", "reference/log.html"),
    ):
        field = browser.find_element("css selector", "input.md-search__input")
        field.click()
        field.clear()
        field.send_keys(wanted)
        until(browser, partial(found_page, page))


def test_the_search_works_in_a_page_that_is_opened_as_a_file(site: Path) -> None:
    with started() as browser:
        browser.get((site / "index.html").as_uri())
        field = browser.find_element("css selector", "input.md-search__input")
        field.click()
        field.send_keys("dead letters")
        until(browser, partial(found_page, "recipes.html"))


def found_page(page: str, browser: Any) -> bool:
    script = (
        "return [...document.querySelectorAll('a.md-search-result__link')].map(each => each.href)"
    )
    # in one step: each key replaces the results
    return any(page in each for each in browser.execute_script(script))


def test_a_name_of_the_reference_has_signature_text_and_example(opened: Callable[..., Any]) -> None:
    browser = opened("reference/producer.html#embedlog.Producer.send")
    heading = browser.find_element("id", "embedlog.Producer.send")
    part = heading.find_element("xpath", "..")
    assert "timestamp_ms: int | None = None" in part.text
    assert "Send one record" in part.text
    example = part.find_element("xpath", "following::div[contains(@class, 'highlight')][1]")
    assert "producer.send(" in example.text
    browser = opened("reference/types.html")
    assert (
        "high_watermark"
        in browser.find_element(
            "xpath", "//h3[@id='embedlog.PartitionDescription']/following::table[1]"
        ).text
    )


def test_the_colours_change_and_diagrams_follow(opened: Callable[..., Any]) -> None:
    browser = opened("concepts/partition.html")
    colour = "return getComputedStyle(document.querySelector('{}')).{}"
    light = browser.execute_script(colour.format(".diagram svg text", "fill"))
    shown = next(
        each
        for each in browser.find_elements("css selector", "label[for^=__palette]")
        if each.is_displayed()
    )
    shown.click()
    until(
        browser,
        lambda page: (
            page.find_element("css selector", "body").get_attribute("data-md-color-scheme")
            == "slate"
        ),
    )
    until(
        browser,
        lambda page: page.execute_script(colour.format(".diagram svg text", "fill")) != light,
    )
    next(
        each
        for each in browser.find_elements("css selector", "label[for^=__palette]")
        if each.is_displayed()
    ).click()
    until(
        browser,
        lambda page: (
            page.find_element("css selector", "body").get_attribute("data-md-color-scheme")
            == "default"
        ),
    )


def test_no_page_is_wider_than_the_window_of_a_desktop_or_a_phone(
    opened: Callable[..., Any], site: Path
) -> None:
    addresses = sorted(
        str(path.relative_to(site)) for path in site.rglob("*.html") if path.name != "404.html"
    )
    assert len(addresses) > 40
    wide = set()
    for page in addresses:
        browser = opened(page)
        for size in (DESKTOP, PHONE):
            browser.set_window_size(*size)
            if overflow_px(browser) > 0:
                wide.add((page, size))
    assert wide == set()
