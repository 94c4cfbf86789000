"""Page, API and model together: a sample goes all the way to the real classifier."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opener
from tests.servers import free_port, running


@pytest.fixture(scope="module")
def real_page(onnx_url: str) -> Iterator[str]:
    """Address of a page in front of the ONNX service."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    env = {"UI_PORT": str(port), "UI_API_URL": onnx_url}
    with running(["flask_app"], f"{url}/healthz", env):
        yield url


def test_a_sample_is_classified(open_page: Opener, real_page: str) -> None:
    page = open_page(url=real_page)
    labels = page.locator("#labels li").all_inner_texts()
    assert len(labels) == 11
    page.get_by_role("button", name="Soup").click()
    expect(page.locator(".card")).to_have_attribute("data-state", "done")
    one = "|".join(map(re.escape, labels))
    sentence = rf"({one}), >?\d+ %|Not sure: ({one}) \d+ %, ({one}) [<\d]+ %"
    expect(page.locator(".card-sentence")).to_have_text(re.compile(f"^({sentence})$"))
    page.get_by_text("Details").click()
    assert page.locator(".times-legend li").all_inner_texts()[2] != "inference 0.0 ms"
    expect(page.locator(".json")).to_contain_text('"prediction"')


def test_the_test_address(open_page: Opener, real_page: str) -> None:
    page = open_page("/test", url=real_page)
    expect(page.locator("main")).to_contain_text("Page, API and model work together.")
