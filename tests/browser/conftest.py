"""A real browser, in front of a real dashboard, with real workers behind it.

Run by `python3 dev.py test --browser`; the plain test command leaves this folder alone, and needs no browser.
"""

import importlib
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.processes import BIN, MakeStage, Program, Stage, make_stage

__all__ = ["make_stage"]

# Playwright's own types are not needed to check the rest, and are not always installed.
Page = Any
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--no-sandbox",  # which root may not have
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
READY = "The dashboard is running on "


def find_browser() -> str:
    given = os.environ.get("OUTBOX_TEST_BROWSER")
    found = given or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(
            f"There is no browser: install Chromium (Debian: apt install chromium), so that one of {', '.join(NAMES)} "
            "is on the PATH, or say where one is: OUTBOX_TEST_BROWSER=/path/to/it",
            pytrace=False,
        )
    return found


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=find_browser(), args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    return make_stage(publish_seconds=0.5)


def found_in(program: Program, pattern: str) -> str:
    """What it has printed last of this kind."""
    found: list[str] = re.findall(pattern, program.said())
    return found[-1]


class Dashboard:
    """Pages of one dashboard, and whatever they did that they should not do."""

    def __init__(self, chromium: Any, program: Program) -> None:
        self._chromium = chromium
        self._program = program
        self.address = found_in(program, rf"{READY}(http://127\.0\.0\.1:\d+)/")
        self.trouble: list[str] = []
        self._contexts: list[Any] = []

    @property
    def link(self) -> str:
        """The one that signs in the next browser."""
        return found_in(self._program, rf"{self.address}(/login\?token=\S+)")

    def page(self, **options: Any) -> Page:
        """A page of a browser that has just signed in."""
        page = self.stranger(**options)
        page.goto(self.link)
        return page

    def stranger(self, **options: Any) -> Page:
        """A page of a browser that knows nothing yet."""
        context = self._chromium.new_context(base_url=self.address, **options)
        context.set_default_timeout(20_000)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("dialog", self._alarmed)
        page.on("request", self._requested)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _heard(self, message: Any) -> None:
        # A browser tells by itself of answers that are errors; those are the tests' own business.
        if message.type in ("error", "warning") and "status of" not in message.text:
            self.trouble.append(f"{message.type}: {message.text}")

    def _alarmed(self, dialog: Any) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _requested(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https") and f"{parts.scheme}://{parts.netloc}" != self.address:
            self.trouble.append(f"request: {request.url}")


@pytest.fixture
def dashboard(stage: Stage, chromium: Any) -> Iterator[Dashboard]:
    """At the end: no error, no dialog, nothing that the policy had to stop, no request to anybody else."""
    program = stage.start("dashboard", BIN / "outbox", "dashboard", "--port", "0", ready=READY)
    opened = Dashboard(chromium, program)
    yield opened
    opened.close()
    assert opened.trouble == []
    assert "Traceback" not in program.said()
