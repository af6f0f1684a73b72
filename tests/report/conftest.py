"""A browser for tests of the report's page, and pages that record what a reader would never see."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# Programs that Playwright can drive; a test machine has at most one of them as a rule.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "the page is tested in a browser: apt-get install chromium fonts-dejavu-core (CONTRIBUTING.md)"


@dataclass
class Opened:
    """A page in the browser, with what it printed to its console, what it asked for and what it ran."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)


class Browser:
    """Opens files in one browser."""

    def __init__(self, driven: Any) -> None:
        self._driven = driven
        self._contexts: list[Any] = []

    def open(self, path: Path, *, anchor: str = "", width: int = 1440, height: int = 900, **settings: Any) -> Opened:
        """Open a file in a new window, and wait until it is loaded."""
        context = self._driven.new_context(viewport={"width": width, "height": height}, **settings)
        self._contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.on("console", lambda message: opened.messages.append(message.text))
        opened.page.on("pageerror", lambda error: opened.messages.append(str(error)))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("dialog", lambda dialog: (opened.dialogs.append(dialog.message), dialog.dismiss()))
        opened.page.goto(path.as_uri() + anchor)
        opened.requests = [url for url in opened.requests if not url.startswith((path.as_uri(), "data:"))]
        return opened

    def close_windows(self) -> None:
        """Close every window."""
        while self._contexts:
            self._contexts.pop().close()


@pytest.fixture(scope="module")
def driven() -> Iterator[Any]:
    """Start one browser for the tests of a module; CI fails without one, and elsewhere the tests are skipped."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox of Chromium; the pages are the tests' own files.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browser(driven: Any) -> Iterator[Browser]:
    """Return the browser of the module, and close its windows after the test."""
    made = Browser(driven)
    yield made
    made.close_windows()
