"""Accessibility of the views that are filled in: axe, small screens, keyboard, no JavaScript."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PageOf
from tests.browser.stub_api import StubApi, error
from tests.browser.stub_models import (
    FLOWERS,
    GRAPH,
    INTENTS,
    MEANINGS,
    READER,
    SEARCH,
    SENTIMENT,
    TAGGER,
)
from tests.browser.test_access import PHONE, tab_to, violations

pytestmark = pytest.mark.slow

LONG = "Donaudampfschifffahrt" * 8


def texts(page: Page) -> None:
    """Shows a sure and an unsure answer, and one that is too long, with details."""
    page.get_by_label("Your text").fill(f"wonderful {LONG}\nso\n" + "x" * 400)
    expect(page.locator('.card[data-state="done"]')).to_have_count(2)
    expect(page.locator('.card[data-state="failed"]')).to_have_count(1)
    page.get_by_text("Text pair", exact=True).click()
    page.get_by_text("Details").first.click()


def question(page: Page) -> None:
    """Shows an answer in a long text, with the other candidates, and one that is not sure."""
    page.get_by_label("Text", exact=True).fill(f"von Ann Lee {LONG} " + "x\n" * 200)
    for count, asked in enumerate((f"{LONG}?", "I doubt it"), 1):
        page.get_by_label("Question").fill(asked)
        page.get_by_label("Question").press("Enter")
        expect(page.locator('.card[data-state="done"]')).to_have_count(count)
    page.get_by_text("Other candidates").first.click()
    page.get_by_text("Details").first.click()


def form(page: Page) -> None:
    """Shows an answer, and what cannot be sent."""
    page.get_by_role("button", name="Send").click()
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    page.get_by_text("Details").first.click()
    page.get_by_label("Features").or_(page.get_by_label("Request")).first.fill("x")
    page.get_by_role("button", name="Send").click()
    expect(page.locator('.card[data-state="failed"]')).to_have_count(1)


def several(page: Page) -> None:
    """Shows long texts that are compared, at every degree of similarity, and options."""
    if page.get_by_label("Query").count():
        page.get_by_label("Query").fill(f"wonderful {LONG}")
    page.get_by_label("Texts").fill(f"wonderful {LONG}\nso so\nzzz\nsozz\nzaza")
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    page.locator(".more summary").click()
    page.get_by_text("Details").first.click()


TINTS = {**TAGGER, "labels": [*"ABCDEFGHIJK", "PER", "LOC"], "limits": {}}


def entities(page: Page) -> None:
    """Shows entities in a long text, one of them long, in the last colours."""
    page.get_by_label("Text", exact=True).fill(f"Ann and {LONG} in Rome. " * 40)
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    for colour in range(12):  # all have to be readable
        page.locator(".paragraph mark").nth(colour).evaluate(f"mark => mark.className = 'tint-{colour}'")
    page.locator(".more summary").click()
    page.get_by_text("Details").first.click()


def labels(page: Page) -> None:
    """Shows an answer about long labels."""
    page.get_by_label("Text", exact=True).fill(LONG)
    page.get_by_label("Labels", exact=True).fill(f"a, {LONG}")
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    page.locator(".more summary").click()
    page.get_by_text("Details").first.click()


SHOWS = [(SENTIMENT, texts), (READER, question), (FLOWERS, form), (GRAPH, form)]
SHOWS += [(MEANINGS, several), (SEARCH, several), (TINTS, entities), (INTENTS, labels)]
Show = Callable[[Page], None]
each_view = pytest.mark.parametrize(
    ("model", "show"), SHOWS, ids=[str(model["name"]) for model, _ in SHOWS]
)


@each_view
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(
    page_of: PageOf,
    stub: StubApi,
    model: dict[str, Any],
    show: Show,
    scheme: Literal["light", "dark"],
) -> None:
    page = page_of(model, color_scheme=scheme, reduced_motion="reduce")
    assert violations(page) == []
    show(page)
    assert violations(page) == []
    stub.down()
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator("#service")).to_have_attribute("data-state", "down")
    assert violations(page) == []
    stub.up()


@each_view
@pytest.mark.parametrize("size", [PHONE, {"viewport": {"width": 1200, "height": 740}}])
def test_no_sideways_scrolling(
    page_of: PageOf, model: dict[str, Any], show: Show, size: dict[str, Any]
) -> None:
    page = page_of(model, **size)
    show(page)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
    outside = """cards => cards.flatMap(card => [...card.querySelectorAll("*")].filter(
      part => part.getBoundingClientRect().right > card.getBoundingClientRect().right + 1
    ).map(part => part.outerHTML.slice(0, 80)))"""
    assert page.locator(".card").evaluate_all(outside) == []


@pytest.mark.parametrize(
    "model", [SENTIMENT, READER, FLOWERS, MEANINGS, TAGGER, INTENTS], ids=lambda model: model["name"]
)
def test_axe_finds_nothing_without_script(page_of: PageOf, stub: StubApi, model: dict[str, Any]) -> None:
    page = page_of(model, java_script_enabled=False)
    for box in page.locator("textarea:required").all():
        box.fill("Ann Lee in Rome")
    page.locator(".sheet button").last.click()
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    answered = page.content()
    stub.usual = error(400, "invalid_text")
    page.locator(".sheet button").last.click()
    expect(page.get_by_role("alert").first).to_be_visible()
    failed = page.content()
    checked = page_of(model)
    for html in (answered, failed):
        checked.set_content(html)
        assert violations(checked) == []


def test_texts_by_keyboard(page_of: PageOf) -> None:
    page = page_of(SENTIMENT)
    tab_to(page, "#field-text")
    page.keyboard.type("wonderful")
    expect(page.locator(".card-sentence")).to_have_text("Positive, 97 %")
    expect(page.locator("#field-text")).to_be_focused()  # the focus is not stolen
    tab_to(page, ".sentences button")
    page.keyboard.press("Enter")
    expect(page.locator("#field-text")).to_have_value("A funny, warm and wonderful film.")
    tab_to(page, ".card summary")
    page.keyboard.press("Enter")
    expect(page.locator(".curl")).to_be_visible()


def test_a_question_by_keyboard(page_of: PageOf) -> None:
    page = page_of(READER)
    tab_to(page, "#field-context")
    page.keyboard.type("von Ann Lee")
    page.keyboard.press("Tab")
    page.keyboard.type("Who?")
    page.keyboard.press("Enter")
    expect(page.locator(".card-sentence")).to_have_text("Ann Lee, 87 %")
    expect(page.locator("#field-question")).to_be_focused()
    tab_to(page, ".others summary")
    page.keyboard.press("Enter")
    expect(page.locator(".bars")).to_be_visible()
    tab_to(page, ".paragraph")


def test_a_matrix_by_keyboard(page_of: PageOf) -> None:
    page = page_of(MEANINGS)
    tab_to(page, "#field-text")
    page.keyboard.type("a cat")
    page.keyboard.press("Enter")
    page.keyboard.type("a cat")
    expect(page.locator(".card-sentence")).to_have_text("Similarity 1.00")
    expect(page.locator("#field-text")).to_be_focused()
    tab_to(page, ".matrix-frame")  # which may be wider than the page
    tab_to(page, ".card summary")


def test_labels_and_entities_by_keyboard(page_of: PageOf) -> None:
    page = page_of(INTENTS)
    tab_to(page, "#field-text")
    page.keyboard.type("The soup was cold.")
    page.keyboard.press("Tab")
    page.keyboard.type("ask, praise")
    expect(page.locator(".card-sentence")).to_have_text("ask, 67 %")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator(".card-sentence")).to_have_text("ask 100 %, praise 50 %")
    expect(page.locator("#field-multi_label")).to_be_focused()
    page = page_of(TAGGER)
    tab_to(page, "#field-text")
    page.keyboard.type("Ann")
    expect(page.locator(".card-sentence")).to_have_text("1 entity")
    tab_to(page, ".more summary")
    tab_to(page, ".paragraph")  # which may be longer than its frame
    tab_to(page, ".card summary")


def test_a_form_by_keyboard(page_of: PageOf, stub: StubApi) -> None:
    page = page_of(FLOWERS)
    tab_to(page, "#field-petals")
    page.keyboard.press("ArrowUp")
    tab_to(page, "#field-wild")
    page.keyboard.press("Space")
    tab_to(page, ".sheet button")
    page.keyboard.press("Enter")
    expect(page.locator(".card-sentence")).to_have_text("Label: Rosa <rugosa>")
    assert (stub.asked[0].body["petals"], stub.asked[0].body["wild"]) == (6, True)
    expect(page.locator(".sheet button")).to_be_focused()
