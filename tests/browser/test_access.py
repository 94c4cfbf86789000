"""Accessibility of every view: axe, keyboard, small screens, dark mode, no JavaScript."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Opener, PageOf
from tests.browser.pictures_of_food import EGG, SOUP, payload
from tests.browser.stub_api import MODEL, UNSURE, StubApi, error, ok
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

pytestmark = pytest.mark.slow

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
PHONE: dict[str, Any] = {  # Any: Playwright's options
    "viewport": {"width": 360, "height": 740},
    "has_touch": True,
    "is_mobile": True,
}
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OUTSIDE_OF_ITS_CARD = """cards => cards.flatMap(card => [...card.querySelectorAll("*")].filter(
  part => part.getBoundingClientRect().right > card.getBoundingClientRect().right + 1
).map(part => part.outerHTML.slice(0, 80)))"""
LONG = "Donaudampfschifffahrt" * 8


def violations(page: Page) -> list[str]:
    violated = Axe().run(page, options=RULES).response["violations"]
    return [f"{item['id']}: {node['html']}" for item in violated for node in item["nodes"]]


def tab_to(page: Page, selector: str) -> None:
    """Presses Tab until the element has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.locator(f"{selector}:focus").count():
            return
    raise AssertionError(f"{selector} cannot be reached by Tab")


def cards(page: Page, done: int, failed: int = 0) -> None:
    """Waits for this many answers and errors."""
    expect(page.locator('.card[data-state="done"]')).to_have_count(done)
    expect(page.locator('.card[data-state="failed"]')).to_have_count(failed)


def photos(page: Page, stub: StubApi) -> None:
    """Shows a sure and an unsure answer, an error, the details and the feedback form."""
    stub.answers.extend([ok(), ok(UNSURE), error(400, "invalid_image")])
    page.locator("#photos").set_input_files(payload("x" * 90 + ".jpg", EGG.read_bytes()))
    cards(page, 1)
    page.locator("#photos").set_input_files(SOUP)
    cards(page, 2)
    page.locator("#photos").set_input_files(EGG)
    cards(page, 2, failed=1)
    page.get_by_text("Details").nth(1).click()
    page.get_by_role("button", name="No", exact=True).first.click()


def texts(page: Page, _: StubApi) -> None:
    """Shows a sure and an unsure answer, and one that is too long, with details."""
    page.get_by_label("Your text").fill(f"wonderful {LONG}\nso\n" + "x" * 400)
    cards(page, 2, failed=1)
    page.get_by_text("Text pair", exact=True).click()
    page.get_by_text("Details").first.click()


def question(page: Page, _: StubApi) -> None:
    """Shows an answer in a long text, with the other candidates, and one that is not sure."""
    page.get_by_label("Text", exact=True).fill(f"von Ann Lee {LONG} " + "x\n" * 200)
    for count, asked in enumerate((f"{LONG}?", "I doubt it"), 1):
        page.get_by_label("Question").fill(asked)
        page.get_by_label("Question").press("Enter")
        cards(page, count)
    page.get_by_text("Other candidates").first.click()
    page.get_by_text("Details").first.click()


def form(page: Page, _: StubApi) -> None:
    """Shows an answer, and what cannot be sent."""
    page.get_by_role("button", name="Send").click()
    cards(page, 1)
    page.get_by_text("Details").first.click()
    page.get_by_label("Features").or_(page.get_by_label("Request")).first.fill("x")
    page.get_by_role("button", name="Send").click()
    cards(page, 1, failed=1)


def live(page: Page, **texts_by_label: str) -> None:
    """Fills in a view whose answer follows what is typed, and shows its options and details."""
    for label, text in texts_by_label.items():
        page.get_by_label(label, exact=True).fill(text)
    cards(page, 1)
    page.locator(".more summary").click()
    page.get_by_text("Details").first.click()


def vectors(page: Page, _: StubApi) -> None:
    """Shows long texts that are compared, at every degree of similarity."""
    live(page, Texts=f"wonderful {LONG}\nso so\nzzz\nsozz\nzaza")


def ranking(page: Page, _: StubApi) -> None:
    live(page, Query=f"wonderful {LONG}", Texts=f"wonderful {LONG}\nso so\nzzz")


def entities(page: Page, _: StubApi) -> None:
    """Shows entities in a long text, one of them long, in all colours."""
    live(page, Text=f"Ann and {LONG} in Rome. " * 8)
    for colour in range(12):  # all have to be readable
        page.locator(".paragraph mark").nth(colour).evaluate(f"mark => mark.className = 'tint-{colour}'")


def labels(page: Page, _: StubApi) -> None:
    live(page, Text=LONG, Labels=f"a, {LONG}")


TINTS = {**TAGGER, "labels": [*"ABCDEFGHIJK", "PER", "LOC"], "limits": {}}
Show = Callable[[Page, StubApi], None]
VIEWS: list[tuple[dict[str, Any], Show]] = [
    *((MODEL, photos), (SENTIMENT, texts), (READER, question), (FLOWERS, form), (GRAPH, form)),
    *((MEANINGS, vectors), (SEARCH, ranking), (TINTS, entities), (INTENTS, labels)),
]


@pytest.mark.parametrize(("model", "show"), VIEWS, ids=[str(model["name"]) for model, _ in VIEWS])
@pytest.mark.parametrize("screen", [{}, PHONE], ids=["desktop", "phone"])
def test_a_view_can_be_read_in_every_state(
    page_of: PageOf,
    base_url: str,
    stub: StubApi,
    model: dict[str, Any],
    show: Show,
    screen: dict[str, Any],
) -> None:
    """Axe finds nothing in light and dark colours; nothing is scrolled sideways or leaves its card."""
    with_feedback = {"url": base_url} if model is MODEL else {}
    page = page_of(model, reduced_motion="reduce", **screen, **with_feedback)
    assert violations(page) == []
    show(page, stub)
    page.emulate_media(color_scheme="light")
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    assert page.evaluate(OVERFLOW) <= 0
    assert page.locator(".card").evaluate_all(OUTSIDE_OF_ITS_CARD) == []
    stub.down()
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator("#service")).to_have_attribute("data-state", "down")
    assert violations(page) == []
    stub.up()


@pytest.mark.parametrize("path", ["/test", "/nothing"])
def test_axe_finds_nothing_on_small_pages(open_page: Opener, path: str) -> None:
    assert violations(open_page(path)) == []


@pytest.mark.parametrize(
    "model",
    [MODEL, SENTIMENT, READER, FLOWERS, MEANINGS, SEARCH, TAGGER, INTENTS],
    ids=lambda model: model["name"],
)
def test_a_view_without_script(page_of: PageOf, stub: StubApi, model: dict[str, Any]) -> None:
    """It answers, names an error, and keeps what was typed; axe finds nothing in either."""
    page = page_of(model, java_script_enabled=False)
    boxes = page.locator("textarea:required, #field-query")
    for box in boxes.all():
        box.fill("Ann Lee in <b>Rome</b>")
    button = page.get_by_role("button", name="Soup").or_(page.locator(".sheet button")).last
    button.click()
    cards(page, 1)
    answered = page.content()
    for box in boxes.all():
        expect(box).to_have_value("Ann Lee in <b>Rome</b>")
    stub.usual = error(400, "invalid_text")
    button.click()
    expect(page.get_by_text("This text cannot be read.").first).to_be_visible()
    failed = page.content()
    checked = page_of(model)
    for html in (answered, failed):
        checked.set_content(html)
        assert violations(checked) == []


@pytest.mark.parametrize("width", [320, 768, 1200])
def test_long_labels_stay_on_their_card(open_page: Opener, stub: StubApi, width: int) -> None:
    stub.usual = ok({"Apfelstrudel" * 5: 0.41, "Noodles/Pasta": 0.37, "of many words " * 6: 0.1})
    page = open_page(viewport={"width": width, "height": 740})
    for count, files in ((1, [EGG]), (3, [SOUP, SOUP])):
        page.locator("#photos").set_input_files(files)
        cards(page, count)
        assert page.locator(".card").evaluate_all(OUTSIDE_OF_ITS_CARD) == []
        assert page.evaluate(OVERFLOW) <= 0


def test_many_labels_scroll(open_page: Opener) -> None:
    page = open_page()
    model = {"title": "imagenet 1", "labels": [f"class {i}" for i in range(1000)], "side": 224}
    answer = {"state": "ready", "reason": None, "model": model}
    page.route("**/status", lambda route: route.fulfill(json=answer))
    page.reload()
    expect(page.locator("#labels li")).to_have_count(1000)
    box = page.locator("#labels").bounding_box()
    assert box
    assert box["height"] < 300
    tab_to(page, "#labels")
    assert violations(page) == []


def test_camera_on_touch_devices_only(open_page: Opener) -> None:
    phone = open_page(**PHONE)
    expect(phone.get_by_text("Take a photo")).to_be_visible()
    assert phone.locator("#camera").get_attribute("capture") == "environment"
    assert phone.locator("#photos").get_attribute("capture") is None
    expect(open_page().get_by_text("Take a photo")).to_be_hidden()


def test_photos_by_keyboard(open_page: Opener, stub: StubApi) -> None:
    page = open_page()
    tab_to(page, "#photos")
    outline = "getComputedStyle(document.querySelector('label[for=photos]')).outlineStyle"
    assert page.evaluate(outline) == "solid"
    stub.answers.append(error(500, "internal_error"))
    tab_to(page, '[value="soup"]')
    page.keyboard.press("Enter")
    cards(page, 0, failed=1)
    expect(page.locator('[value="soup"]')).to_be_focused()  # the focus is not stolen
    tab_to(page, '.card [data-do="retry"]')
    page.keyboard.press("Enter")
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    expect(page.locator(".card")).to_be_focused()
    tab_to(page, '.card [data-do="wrong"]')
    page.keyboard.press("Enter")
    expect(page.get_by_label("It is")).to_be_focused()
    page.keyboard.type("Egg")
    tab_to(page, '.card [value="wrong"]')
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    tab_to(page, ".card summary")
    page.keyboard.press("Enter")
    expect(page.locator(".curl")).to_be_visible()


def test_photos_without_script(open_page: Opener, stub: StubApi) -> None:
    page = open_page(java_script_enabled=False)
    page.get_by_role("button", name="Classify").click()
    expect(page.get_by_role("alert").first).to_contain_text("No photo was received.")
    stub.answers.extend([ok(UNSURE), error(400, "invalid_image")])
    page.get_by_label("Choose photos").set_input_files([EGG, SOUP])
    page.get_by_role("button", name="Classify").click()
    assert page.locator(".card-sentence").all_inner_texts() == [
        "Not sure: Soup 41 %, Rice 37 %",
        "This file is not a readable image.",
    ]
    expect(page.get_by_alt_text("eggs.jpg")).to_have_attribute("src", re.compile("^data:"))
    page.get_by_label("It is").select_option("Egg")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading")).to_have_text("Thanks, saved.")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("heading")).to_have_text("Feedback removed.")


def test_the_policy_holds(browser: Browser, base_url: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(base_url)
        page.evaluate(
            """() => {
              document.addEventListener("securitypolicyviolation", (event) => {
                document.title = event.effectiveDirective;
              });
              const script = document.createElement("script");
              script.textContent = "document.title = 'broken'";
              document.body.append(script);
            }"""
        )
        expect(page).to_have_title("script-src-elem")


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


def test_live_views_by_keyboard(page_of: PageOf) -> None:
    page = page_of(MEANINGS)
    tab_to(page, "#field-text")
    page.keyboard.type("a cat")
    page.keyboard.press("Enter")
    page.keyboard.type("a cat")
    expect(page.locator(".card-sentence")).to_have_text("Similarity 1.00")
    expect(page.locator("#field-text")).to_be_focused()
    tab_to(page, ".matrix-frame")  # which may be wider than the page
    tab_to(page, ".card summary")
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
