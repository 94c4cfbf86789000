"""Swagger's page: with a key, which it asks for, and without; behind a proxy's prefix; accessibility."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Request, Route, expect

from tests import servers
from tests.browser.conftest import Opener
from tests.browser.test_access import violations

pytestmark = pytest.mark.slow

KEY = "sesame"


@pytest.fixture(scope="module", params=["", KEY])
def api(request: Any) -> Iterator[tuple[str, str]]:  # Any: pytest's
    """Address of a service and its key, if it has one."""
    env = {"SERVING_API_KEY": request.param} if request.param else {}
    with servers.api("tests.fake", {**env, "SERVING_LOG_LEVEL": "error"}) as url:
        yield url, request.param


def enter(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Show").click()


@pytest.mark.parametrize("prefix", ["", "/a/b"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_request_from_the_page(
    open_page: Opener, api: tuple[str, str], prefix: str, scheme: str
) -> None:
    url, key = api
    paths: list[str] = []

    def forward(route: Route, request: Request) -> None:
        """As a proxy that removes the prefix."""
        path = request.url.removeprefix(url)
        assert path.startswith(f"{prefix}/")
        paths.append(path)
        route.fulfill(response=route.fetch(url=url + path.removeprefix(prefix)))

    page = open_page("about:blank", "", color_scheme=scheme)
    page.route("**", forward)
    page.goto(f"{url}{prefix}/docs")
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
    background = page.locator("html").evaluate("root => getComputedStyle(root).backgroundColor")
    assert (background == "rgba(0, 0, 0, 0)") == (scheme == "light")
    if key:
        expect(page.get_by_label("API key")).to_be_focused()
        assert violations(page) == []
        enter(page, "wrong")
        expect(page.get_by_role("alert")).not_to_be_empty()
        expect(page.locator(".opblock")).to_have_count(0)
        enter(page, key)
    call = page.locator(".opblock-post").first
    call.click()
    expect(page.locator("form")).to_be_hidden()
    call.get_by_role("button", name="Try it out").click()
    call.get_by_role("button", name="Execute").click()
    expect(call.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    assert f"{prefix}/predict" in paths
