"""Accessibility: keyboard, screen reader, small screens, dark mode, no JavaScript."""

import re
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Opener
from tests.browser.pictures_of_food import EGG, SOUP, payload
from tests.browser.stub_api import UNSURE, StubApi, error, ok

pytestmark = pytest.mark.slow

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
PHONE: dict[str, Any] = {  # Any: Playwright's options
    "viewport": {"width": 360, "height": 740},
    "has_touch": True,
    "is_mobile": True,
}


def violations(page: Page) -> list[str]:
    """Describes the violations that axe-core finds."""
    violated = Axe().run(page, options=RULES).response["violations"]
    return [f"{item['id']}: {node['html']}" for item in violated for node in item["nodes"]]


def tab_to(page: Page, selector: str) -> None:
    """Presses Tab until the element has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.locator(f"{selector}:focus").count():
            return
    raise AssertionError(f"{selector} cannot be reached by Tab")


def several_states(page: Page, stub: StubApi) -> None:
    """Shows a sure and an unsure answer, an error, the details and the feedback form."""
    stub.answers.extend([ok()])
    page.locator("#photos").set_input_files(payload("x" * 90 + ".jpg", EGG.read_bytes()))
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    stub.answers.extend([ok(UNSURE)])
    page.locator("#photos").set_input_files(SOUP)
    expect(page.locator('.card[data-state="done"]')).to_have_count(2)
    stub.answers.extend([error(400, "invalid_image")])
    page.locator("#photos").set_input_files(EGG)
    expect(page.locator('.card[data-state="failed"]')).to_have_count(1)
    page.get_by_text("Details").nth(1).click()
    page.get_by_role("button", name="No", exact=True).first.click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page: Opener, stub: StubApi, scheme: Literal["light", "dark"]) -> None:
    page = open_page(color_scheme=scheme, reduced_motion="reduce")
    assert violations(page) == []
    several_states(page, stub)
    assert violations(page) == []
    stub.down()
    page.locator("#photos").set_input_files(SOUP)
    expect(page.locator("#service")).to_have_attribute("data-state", "down")
    assert violations(page) == []
    stub.up()


@pytest.mark.parametrize("path", ["/test", "/nothing"])
def test_axe_finds_nothing_on_small_pages(open_page: Opener, path: str) -> None:
    assert violations(open_page(path)) == []


def test_axe_finds_nothing_without_script(open_page: Opener) -> None:
    page = open_page(java_script_enabled=False)
    page.get_by_role("button", name="Soup").click()
    html = page.content()
    checked = open_page("/test")
    checked.set_content(html)
    assert violations(checked) == []


@pytest.mark.parametrize("width", [320, 360, 1200])
def test_no_sideways_scrolling(open_page: Opener, stub: StubApi, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 740})
    several_states(page, stub)
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0


@pytest.mark.parametrize("width", [320, 768, 1200])
def test_long_labels_stay_on_their_card(open_page: Opener, stub: StubApi, width: int) -> None:
    stub.usual = ok({"Apfelstrudel" * 5: 0.41, "Noodles/Pasta": 0.37, "of many words " * 6: 0.1})
    page = open_page(viewport={"width": width, "height": 740})
    for count, files in ((1, [EGG]), (3, [SOUP, SOUP])):
        page.locator("#photos").set_input_files(files)
        expect(page.locator('.card[data-state="done"]')).to_have_count(count)
        outside = """cards => cards.flatMap(card => [...card.querySelectorAll(".card-text *")].filter(
          part => part.getBoundingClientRect().right > card.getBoundingClientRect().right
        ).map(part => part.className))"""
        assert page.locator(".card").evaluate_all(outside) == []


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


def test_keyboard_only(open_page: Opener) -> None:
    page = open_page()
    tab_to(page, "#photos")
    outline = "getComputedStyle(document.querySelector('label[for=photos]')).outlineStyle"
    assert page.evaluate(outline) == "solid"
    tab_to(page, '[value="soup"]')
    page.keyboard.press("Enter")
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    expect(page.locator('[value="soup"]')).to_be_focused()  # the focus is not stolen
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


def test_focus_stays_in_the_card(open_page: Opener, stub: StubApi) -> None:
    stub.answers.append(error(500, "internal_error"))
    page = open_page()
    page.locator("#photos").set_input_files(EGG)
    tab_to(page, '.card [data-do="retry"]')
    page.keyboard.press("Enter")
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    expect(page.locator(".card")).to_be_focused()


def test_without_script(open_page: Opener, stub: StubApi) -> None:
    page = open_page(java_script_enabled=False)
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


def test_without_script_and_without_choice(open_page: Opener) -> None:
    page = open_page(java_script_enabled=False)
    page.get_by_role("button", name="Classify").click()
    expect(page.get_by_role("alert").first).to_contain_text("No photo was received.")


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
