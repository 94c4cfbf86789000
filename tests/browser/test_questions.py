"""The page in front of a model that answers questions: the marked text, candidates, trouble."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PageOf
from tests.browser.stub_api import StubApi
from tests.browser.stub_models import READER

pytestmark = pytest.mark.slow

TEXT = "Im Caf\u00e9 \U0001f468\u200d\U0001f373 kocht <b>Ann Lee</b>,\nund das seit 1999."
BRIDGE = "The bridge was built in 1902 by Anna Lindqvist, an engineer from Gothenburg."


@pytest.fixture
def page(page_of: PageOf) -> Page:
    return page_of(READER)


def ask(page: Page, question: str, answers: int = 1) -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_label("Question").press("Enter")
    expect(page.locator('.card[data-state="done"]')).to_have_count(answers)


def marks(page: Page, kind: str) -> list[str]:
    return page.locator(".card").first.locator(f"mark.{kind}").all_inner_texts()


def test_the_answer_is_marked_in_the_text(page: Page, stub: StubApi) -> None:
    page.get_by_label("Text", exact=True).fill(TEXT.replace("Im", "im"))
    ask(page, "Who?")
    expect(page.locator(".card-sentence")).to_have_text("Ann Lee, 87 %")
    expect(page.locator("#say")).to_have_text("Who?: Ann Lee, 87 %")
    assert marks(page, "best") == ["Ann Lee"]
    assert page.locator(".paragraph").inner_text() == TEXT.replace("Im", "im")
    context, question = stub.asked[0].body["context"], stub.asked[0].body["question"]
    assert (context, question) == (TEXT.replace("Im", "im"), "Who?")


def test_the_text_stays_for_the_next_question(page: Page, stub: StubApi) -> None:
    page.get_by_label("Question").fill("Who?")
    page.get_by_label("Question").press("Enter")
    expect(page.get_by_label("Text", exact=True)).to_be_focused()  # it is missing
    assert not stub.asked
    page.get_by_label("Text", exact=True).fill(BRIDGE)
    ask(page, "Who built the bridge?")
    page.get_by_label("Allow no answer").check()
    ask(page, "Is there nothing?", 2)
    assert page.locator(".card-sentence").all_inner_texts() == [
        "The text does not say.",
        "Anna Lindqvist, 87 %",
    ]
    asked = [(each.body["context"], each.body["allow_no_answer"]) for each in stub.asked]
    assert asked == [(BRIDGE, False), (BRIDGE, True)]
    expect(page.get_by_label("Question")).to_be_focused()


def test_a_long_text_is_scrolled_to_the_answer(page: Page) -> None:
    page.get_by_label("Text", exact=True).fill("lorem ipsum\n" * 300 + "and Ann Lee" + "\ndolor" * 300)
    ask(page, "Who?")
    expect(page.locator("mark.best")).to_be_in_viewport()
    assert page.locator(".paragraph").evaluate("text => text.scrollTop") > 1000


def test_other_candidates_on_request(page: Page) -> None:
    page.get_by_label("Text", exact=True).fill(BRIDGE)
    ask(page, "Who built the bridge?")
    other = page.locator("mark.other")
    expect(other).to_have_text("1902")
    colour = "mark => getComputedStyle(mark).backgroundColor"
    assert other.evaluate(colour) == "rgba(0, 0, 0, 0)"
    expect(page.locator(".bars")).to_be_hidden()
    page.get_by_text("Other candidates").click()
    assert other.evaluate(colour) != "rgba(0, 0, 0, 0)"
    assert page.locator(".bar-label").all_inner_texts() == ["Anna Lindqvist", "Anna", "1902"]
