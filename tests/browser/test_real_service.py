"""Page, API and model together: a sample goes all the way to the real model, of every kind."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from smallplates.settings import Settings
from tests import exports, graphs, servers
from tests.browser.conftest import Opener, page_before

NAMES = ["food11", "sentiment", "reader", "meanings", "search", "tagger", "intents", "own", "sums"]


@pytest.fixture(scope="module")
def real_page(onnx_url: str) -> Iterator[str]:
    """Address of a page in front of the ONNX service."""
    with page_before(onnx_url) as url:
        yield url


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a page in front of models of every kind, in one service."""
    folder = tmp_path_factory.mktemp("several")
    exports.each(folder, *NAMES[1:7])
    (folder / "own").mkdir()
    own = {"name": "own", "version": "1", "task": "tests.fake.python_task:Obedient"}
    (folder / "own/model.json").write_text(json.dumps(own))
    graphs.saved(graphs.two_by_two(), folder / "sums")
    folders = [Settings().model_dir, *(folder / name for name in NAMES[1:])]
    env = {"SERVING_MODELS": ",".join(map(str, folders)), "SERVING_LOG_LEVEL": "error"}
    env |= servers.UNMEASURED
    with servers.api("fastapi_onnx", env) as api_url, page_before(api_url) as url:
        servers.wait_for(lambda: servers.metric(api_url, "serving_ready_workers") >= len(folders))
        yield url


def answered(page: Page) -> None:
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)


def test_a_sample_is_classified(open_page: Opener, real_page: str) -> None:
    page = open_page(url=real_page)
    labels = page.locator("#labels li").all_inner_texts()
    assert len(labels) == 11
    page.get_by_role("button", name="Soup").click()
    expect(page.locator(".card")).to_have_attribute("data-state", "done")
    label = "|".join(map(re.escape, labels))
    sentence = rf"({label}), >?\d+ %|Not sure: ({label}) \d+ %, ({label}) [<\d]+ %"
    expect(page.locator(".card-sentence")).to_have_text(re.compile(f"^({sentence})$"))
    page.get_by_text("Details").click()
    assert page.locator(".times-legend li").all_inner_texts()[2] != "inference 0.0 ms"
    expect(page.locator(".json")).to_contain_text('"prediction"')


TEXT = "\u00c9t\u00e9 \U0001f600: the warm soup"
EACH: list[tuple[str, dict[str, str], str, str]] = [
    ("sentiment", {"Your text": "warm " * 100}, ".card-note", r"^The text has \d+ tokens"),
    ("sentiment", {"Your text": "the soup was wonderful"}, ".card-sentence", "^POSITIVE, "),
    ("reader", {"Text": TEXT, "Question": "what was cold"}, "mark.best", "^(warm )?soup$"),
    ("meanings", {"Texts": "the soup\nbread\nthe soup"}, ".card-sentence", "^Texts 1 and 3 .*: 1.00$"),
    ("meanings", {"Dimensions": "5000"}, ".card-note", "dimensions must be from 1 to 4"),
    ("meanings", {"Dimensions": "2"}, ".curl", '"dimensions": 2'),
    ("search", {"Query": "warm", "Texts": "soup\nbread\nwarm"}, ".bar-label", "^warm"),
    ("tagger", {"Text": "\U0001f600 Warm soup on\nthe table"}, "mark", r"^Warm soup\s*DISH"),
    ("intents", {"Text": "soup", "Labels": "bread, warm\nawful"}, ".bar-label", "^warm$"),
    ("own", {"Number": "7"}, ".card-sentence", "^Number: 7$"),
    ("own", {"Does": '"refuse"'}, ".card-note", r"^7 is refused\.$"),
    ("sums", {}, "code.json", '"outputs"'),
]
"""Model, what is filled in, and where its answer says what."""


@pytest.mark.slow
def test_a_tab_for_each_model(open_page: Opener, several: str) -> None:
    page = open_page(url=several)
    expect(page.get_by_role("tab")).to_contain_text(["What food is this?", *NAMES[1:]])
    page.get_by_role("button", name="Soup").click()
    answered(page)
    for name, filled, place, said in EACH:
        page.get_by_role("tab", name=name).click()
        expect(page.locator("#page")).to_have_attribute("data-name", name)
        expect(page.locator("#service")).to_have_attribute("data-state", "ready")
        if "Dimensions" in filled and not page.get_by_label("Dimensions").is_visible():
            page.locator(".more summary").click()
        for label, text in filled.items():
            field = page.get_by_label(re.compile(f"^{label}( optional)?$"))
            if field.evaluate("field => field.tagName") == "SELECT":
                field.select_option(text)
            else:
                field.fill(text)
        if page.locator(".sheet button:visible").count():
            page.locator(".sheet button:visible").click()
        expect(page.locator(place).first).to_have_text(re.compile(said))
    for name in NAMES[1:]:
        page.get_by_role("tab", name=name).click()
        expect(page.locator("#page")).to_have_attribute("data-name", name)
        address = "/v2/models/sums/infer" if name == "sums" else f"/predict/{name}"
        expect(page.locator(".curl").first).to_contain_text(address)
    page.get_by_role("tab", name="What food").click()
    answered(page)
    for name in NAMES:
        page.goto(f"{several}/test?model={name}")
        expect(page.locator("main")).to_contain_text("The page, the API and the model work together.")
