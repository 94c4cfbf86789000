"""A page with a password: the browser sends it with everything that the page's scripts load and post."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import HttpCredentials, expect

from tests.browser.conftest import Opener, page_before
from tests.browser.stub_api import StubApi

pytestmark = pytest.mark.slow

PASSWORD = "wörd:s"
VISITOR: HttpCredentials = {"username": "anyone", "password": PASSWORD}


@pytest.fixture(scope="module")
def guarded_url(session_stub: StubApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a page with a password."""
    file = tmp_path_factory.mktemp("password") / "password"
    file.write_text(f"{PASSWORD}\n", "utf-8")
    program = "tests.fake.forgetful_page"
    with page_before(session_stub.url, program, UI_PASSWORD_FILE=str(file)) as url:
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
