"""A page with a password: the browser sends it with everything that the page's scripts load and post."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, HttpCredentials, expect

from tests.browser.conftest import Opener, PageOf
from tests.browser.stub_api import StubApi
from tests.browser.stub_models import SENTIMENT
from tests.servers import free_port, running

pytestmark = pytest.mark.slow

PASSWORD = "wörd:s"
VISITOR: HttpCredentials = {"username": "anyone", "password": PASSWORD}


@pytest.fixture(scope="module")
def guarded_url(session_stub: StubApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a page with a password."""
    file = tmp_path_factory.mktemp("password") / "password"
    file.write_text(f"{PASSWORD}\n", "utf-8")
    url = f"http://127.0.0.1:{(port := free_port())}"
    env = {"UI_PORT": str(port), "UI_API_URL": session_stub.url, "UI_PASSWORD_FILE": str(file)}
    with running(["tests.fake.forgetful_page"], f"{url}/healthz", env):
        yield url


@pytest.mark.parametrize("in_address", [False, True])
def test_a_photo(open_page: Opener, guarded_url: str, in_address: bool) -> None:
    options: dict[str, Any] = {"url": guarded_url, "http_credentials": VISITOR}
    if in_address:
        options = {"url": guarded_url.replace("//", "//anyone:w%C3%B6rd%3As@")}
    page = open_page(**options)
    page.get_by_role("button", name="Soup").click()
    expect(page.locator(".card")).to_have_attribute("data-state", "done")
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")


def test_a_text(page_of: PageOf, guarded_url: str) -> None:
    page = page_of(SENTIMENT, url=guarded_url, http_credentials=VISITOR)
    page.get_by_label("Your text").fill("wonderful")
    expect(page.locator(".card-sentence")).to_have_text("Positive, 97 %")


def test_nobody_gets_in_without_it(browser: Browser, stub: StubApi, guarded_url: str) -> None:
    with browser.new_context(http_credentials={**VISITOR, "password": "wrong"}) as context:
        page = context.new_page()
        page.goto(guarded_url)
        expect(page.locator("h1")).to_have_text("This page needs a password.")
    assert not stub.asked
