"""Fixtures of the browser tests: a real Chromium, the page as a process, a stub in place of the API."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.stub_api import StubApi, stub_api
from tests.browser.stub_models import serve
from tests.servers import free_port, running

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Opener = Callable[..., Page]
PageOf = Callable[..., Page]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Starts Chromium with a fresh profile, for this folder only.

    While Playwright runs, its event loop occupies the tests' thread.
    """
    executable = os.environ.get("SERVING_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), ""
    )
    if not executable:
        reason = "no Chromium: set SERVING_TEST_CHROMIUM or install one"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        running_browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield running_browser
        running_browser.close()


@contextmanager
def page_before(api_url: str, program: str = "flask_app", **env: str) -> Iterator[str]:
    """Runs a page before a service; yields its address."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with running([program], f"{url}/healthz", {"UI_PORT": str(port), "UI_API_URL": api_url, **env}):
        yield url


@pytest.fixture(scope="session")
def feedback_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the page keeps feedback."""
    return tmp_path_factory.mktemp("feedback")


@pytest.fixture(scope="session")
def session_stub() -> Iterator[StubApi]:
    with stub_api() as made:
        yield made


@pytest.fixture
def stub(session_stub: StubApi) -> Iterator[StubApi]:
    """Shared stub, reset after the previous test."""
    session_stub.reset()
    yield session_stub
    session_stub.reset()


@pytest.fixture(scope="session")
def base_url(session_stub: StubApi, feedback_dir: Path) -> Iterator[str]:
    feedback = {"UI_FEEDBACK_DIR": str(feedback_dir), "UI_FEEDBACK_PER_MINUTE": "1000"}
    with page_before(session_stub.url, **feedback) as url:
        yield url


@pytest.fixture
def open_page(browser: Browser, base_url: str, stub: StubApi) -> Iterator[Opener]:
    """Opens the page in its own context; fails the test when it breaks the policy or the script."""
    assert stub.port
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def opener(
        path: str = "/",
        url: str = base_url,
        state: str = "ready",
        **options: Any,  # Playwright's
    ) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url + path)
        if options.get("java_script_enabled", True) and path == "/":
            expect(page.locator("#service")).to_have_attribute("data-state", state)
        return page

    yield opener
    for context in contexts:
        context.close()
    # Chromium logs every answer of 400 and more, and every lost connection, by itself.
    assert [text for text in complaints if not text.startswith("Failed to load resource")] == []


@pytest.fixture(scope="session")
def forgetful_url(session_stub: StubApi) -> Iterator[str]:
    """Address of a page that follows the stub from model to model."""
    with page_before(session_stub.url, "tests.fake.forgetful_page") as url:
        yield url


@pytest.fixture
def page_of(open_page: Opener, stub: StubApi, forgetful_url: str) -> PageOf:
    """Opens the forgetful page in front of a stub with this model."""

    def opener(model: dict[str, Any], url: str = forgetful_url, **options: Any) -> Page:
        serve(stub, model)
        return open_page(url=url, **options)

    return opener
