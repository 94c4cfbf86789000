"""Page, API and model together: a sample goes all the way to the real model, of every kind."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from smallplates.settings import Settings
from tests import exports, graphs, servers
from tests.browser.conftest import Opener
from tests.servers import free_port, running

NAMES = ["food11", "sentiment", "reader", "meanings", "search", "tagger", "intents", "own", "sums"]


@pytest.fixture(scope="module")
def real_page(onnx_url: str) -> Iterator[str]:
    """Address of a page in front of the ONNX service."""
    with page_before(onnx_url) as url:
        yield url


@contextmanager
def page_before(api_url: str) -> Iterator[str]:
    """Yields the address of a page in front of a service."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    env = {"UI_PORT": str(port), "UI_API_URL": api_url}
    with running(["flask_app"], f"{url}/healthz", env):
        yield url


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a page in front of models of every kind, in one service."""
    folder = tmp_path_factory.mktemp("several")
    exports.saved(folder / "sentiment", exports.word_piece(), {})
    exports.asked(folder / "reader", exports.word_piece(), {})
    exports.encoded(folder / "meanings", exports.word_piece(), {})
    exports.ranked(folder / "search", exports.word_piece(), {})
    exports.tagged(folder / "tagger", exports.word_piece(), {})
    exports.compared(folder / "intents", exports.word_piece(), {})
    (folder / "own").mkdir()
    own = {"name": "own", "version": "1", "task": "tests.fake.python_task:Obedient"}
    (folder / "own/model.json").write_text(json.dumps(own))
    graphs.saved(graphs.two_by_two(), folder / "sums")
    folders = [Settings().model_dir, *(folder / name for name in NAMES[1:])]
    env = {"SERVING_MODELS": ",".join(map(str, folders)), "SERVING_LOG_LEVEL": "error"}
    env |= servers.UNMEASURED
    with servers.api("fastapi_onnx", env) as api_url, page_before(api_url) as url:
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


def test_the_test_address(open_page: Opener, real_page: str) -> None:
    page = open_page("/test", url=real_page)
    expect(page.locator("main")).to_contain_text("The page, the API and the model work together.")


@pytest.mark.slow
def test_a_tab_for_each_model(open_page: Opener, several: str) -> None:
    page = open_page(url=several)
    expect(page.get_by_role("tab")).to_contain_text(["What food is this?", *NAMES[1:]])
    page.get_by_role("button", name="Soup").click()
    answered(page)
    for name in NAMES[1:]:
        page.get_by_role("tab", name=name).click()
        expect(page.locator("#page")).to_have_attribute("data-name", name)
        expect(page.locator("#service")).to_have_attribute("data-state", "ready")
        for box in page.locator("textarea:required").all():
            box.fill(box.input_value() or "the soup")
        if page.locator(".sheet button:visible").count():
            page.locator(".sheet button:visible").click()
        answered(page)
        address = "/v2/models/sums/infer" if name == "sums" else f"/predict/{name}"
        assert address in str(page.locator(".curl").text_content())
    page.get_by_role("tab", name="What food").click()
    answered(page)


@pytest.mark.slow
def test_a_text(open_page: Opener, several: str) -> None:
    page = open_page("/#sentiment", url=several)
    page.get_by_label("Your text").fill("the soup was wonderful")
    answered(page)
    expect(page.locator(".card-sentence")).to_have_text(re.compile("^POSITIVE, "))
    assert page.locator(".bar").count() == 3
    page.get_by_label("Your text").fill("warm " * 100)
    expect(page.locator(".card-note")).to_have_text(re.compile(r"^The text has \d+ tokens"))
    page.goto(f"{several}/test?model=sentiment")
    expect(page.locator("main")).to_contain_text("The page, the API and the model work together.")


@pytest.mark.slow
def test_a_question(open_page: Opener, several: str) -> None:
    page = open_page("/#reader", url=several)
    text = "\u00c9t\u00e9 \U0001f600: the warm soup"
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_label("Question").fill("what was cold")
    page.get_by_role("button", name="Ask").click()
    answered(page)
    marked = page.locator("mark.best").inner_text()
    assert marked in text
    assert page.locator(".bar-label").first.text_content() == marked
    assert page.locator(".paragraph").inner_text() == text


@pytest.mark.slow
def test_entities(open_page: Opener, several: str) -> None:
    page = open_page("/#tagger", url=several)
    page.get_by_label("Text", exact=True).fill("\U0001f600 Warm soup on\nthe table")
    expect(page.locator(".card-sentence")).to_have_text("2 entities")
    marks = page.locator(".paragraph mark").all_inner_texts()
    assert [mark.split()[:-2] for mark in marks] == [["Warm", "soup", "DISH"], ["table", "PLACE"]]


@pytest.mark.slow
def test_labels(open_page: Opener, several: str) -> None:
    page = open_page("/#intents", url=several)
    page.get_by_label("Text", exact=True).fill("the soup")
    page.get_by_label("Labels", exact=True).fill("bread, warm\nawful")
    expect(page.locator(".bar-label").first).to_have_text("warm")
    page.get_by_label("Several labels may fit").check()
    expect(page.locator(".curl")).to_contain_text('"multi_label": true')
    assert page.locator(".bar").count() == 3
    for name in ("tagger", "intents"):
        page.goto(f"{several}/test?model={name}")
        expect(page.locator("main")).to_contain_text("The page, the API and the model work together.")


@pytest.mark.slow
def test_texts_that_are_compared(open_page: Opener, several: str) -> None:
    page = open_page("/#meanings", url=several)
    page.get_by_label("Texts").fill("the warm soup\nawful bread\nthe warm soup")
    expect(page.locator(".card-sentence")).to_have_text("Texts 1 and 3 are the closest: 1.00")
    assert page.locator(".matrix td").count() == 9
    page.locator(".more summary").click()
    page.get_by_label("Dimensions").fill("2")
    expect(page.locator(".curl")).to_contain_text('"dimensions": 2')
    page.get_by_label("Dimensions").fill("5000")
    expect(page.locator(".card-note")).to_contain_text("dimensions must be from 1 to 4")
    for name in ("meanings", "search"):
        page.goto(f"{several}/test?model={name}")
        expect(page.locator("main")).to_contain_text("The page, the API and the model work together.")


@pytest.mark.slow
def test_texts_that_are_sorted(open_page: Opener, several: str) -> None:
    page = open_page("/#search", url=several)
    page.get_by_label("Query").fill("warm")
    page.get_by_label("Texts").fill("the soup\nawful bread\nwonderful and warm")
    answered(page)
    texts = page.locator(".bar-label").all_inner_texts()
    assert texts == ["wonderful and warm", "the soup", "awful bread"]
    scores = [float(score) for score in page.locator(".bar-percent").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
def test_python_of_ones_own(open_page: Opener, several: str) -> None:
    page = open_page("/#own", url=several)
    page.get_by_label("Number").fill("7")
    page.get_by_role("button", name="Send").click()
    answered(page)
    expect(page.locator(".card-sentence")).to_have_text("Number: 7")
    page.get_by_label("Does").select_option("refuse")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".card-note").first).to_have_text("7 is refused.")


@pytest.mark.slow
def test_a_graph(open_page: Opener, several: str) -> None:
    page = open_page("/#sums", url=several)
    page.get_by_role("button", name="Send").click()
    answered(page)
    expect(page.locator("code.json").first).to_contain_text('"outputs"')
