"""The page in front of a text classifier: lines, answers while typing, limits, trouble."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import PageOf
from tests.browser.stub_api import StubApi, error, until
from tests.browser.stub_models import SENTIMENT

pytestmark = pytest.mark.slow

THREE = "a wonderful day\nlate\n\n  so so  "


@pytest.fixture
def page(page_of: PageOf) -> Page:
    return page_of(SENTIMENT)


def sentences(page: Page) -> list[str]:
    return page.locator(".card-sentence").all_inner_texts()


def write(page: Page, text: str, answers: int) -> None:
    page.get_by_label("Your text").fill(text)
    expect(page.locator('.card[data-state="done"]')).to_have_count(answers)
    expect(page.locator(".card")).to_have_count(answers)


def test_each_line_is_a_text(page: Page, stub: StubApi) -> None:
    write(page, THREE, 3)
    unsure = "Not sure: Neutral 44 %, Positive 36 %"
    assert sentences(page) == ["Positive, 97 %", "Negative, 91 %", unsure]
    assert page.locator(".card-name").all_inner_texts() == ["a wonderful day", "late", "so so"]
    expect(page.locator("#say")).to_have_text("3 texts classified")
    write(page, "new\n" + THREE, 4)
    assert len(stub.asked) == 4  # what was known is not asked again
    assert sentences(page)[1] == "Positive, 97 %"
    write(page, "late", 1)
    assert sentences(page) == ["Negative, 91 %"]
    page.get_by_label("Your text").fill("")
    expect(page.locator("#results")).to_be_hidden()


def test_what_is_no_longer_there_is_no_longer_asked(page: Page, stub: StubApi) -> None:
    stub.held.clear()
    page.get_by_label("Your text").fill("a wonderful day")
    until(lambda: stub.inside == 1, "a request")
    page.get_by_label("Your text").fill("late")
    until(lambda: stub.left == 1, "the API to see its client leave")
    stub.held.set()
    expect(page.locator(".card-sentence")).to_have_text("Negative, 91 %")
    expect(page.locator("#alarm")).to_have_text("")


def test_a_pair(page: Page, stub: StubApi) -> None:
    write(page, "wonderful", 1)
    page.get_by_text("Text pair", exact=True).click()
    page.get_by_label("Text pair").fill("late")
    until(lambda: len(stub.asked) == 2, "the pair")
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    assert stub.asked[-1].body == {"text": "wonderful", "text_pair": "late"}


def test_limits_are_shown_while_typing(page: Page, stub: StubApi) -> None:
    count = page.locator("#count-text")
    expect(count).to_have_text("At most 300 bytes per line.")
    write(page, "\u00fcber wonderful", 1)
    expect(count).to_have_text("15 of 300 bytes")
    write(page, THREE, 3)
    expect(count).to_have_text("3 texts, the longest: 15 of 300 bytes")
    before = len(stub.asked)
    page.get_by_label("Your text").fill("x" * 1234)
    expect(count).to_have_text("It has 1,234 bytes. The limit is 300.")
    expect(page.locator('.card[data-state="failed"]')).to_have_count(1)
    assert sentences(page) == ["This text cannot be sent."]
    expect(page.get_by_label("Your text")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#alarm")).to_contain_text("The limit is 300")
    half = "field => { field.value = 'a \\ud83d'; field.dispatchEvent(new Event('input', all)) }"
    page.get_by_label("Your text").evaluate(half.replace("all", "{bubbles: true}"))
    expect(page.locator(".card-note")).to_contain_text("an incomplete character")
    assert len(stub.asked) == before


def test_more_lines_than_are_classified(page: Page) -> None:
    page.get_by_label("Your text").fill("wonderful\n" * 201)
    expect(page.locator(".problem")).to_contain_text("Only the first 200 lines are classified.")
    expect(page.locator('.card[data-state="done"]')).to_have_count(200, timeout=60_000)
    page.get_by_label("Your text").fill("late")
    expect(page.locator(".problem")).to_have_count(0)


def test_typed_before_the_script_has_come(page: Page) -> None:
    write(page, "late", 1)
    held: list[Route] = []
    page.route("**/text.js", lambda route: held.append(route))  # Playwright marks it
    with page.expect_request("**/text.js"):
        page.reload()
    page.get_by_label("Your text").fill("wonderful")
    held.pop().continue_()
    page.unroute("**/text.js")
    expect(page.locator(".card-sentence")).to_have_text("Positive, 97 %")
    page.reload()
    expect(page.get_by_label("Your text")).to_have_value("wonderful")


def test_trouble_stays_with_its_line(page: Page, stub: StubApi) -> None:
    stub.answers.extend([error(413, "text_too_long"), error(503, "overloaded", 2)])
    page.get_by_label("Your text").fill("wonderful")
    expect(page.locator(".card-sentence")).to_have_text("This text is too long.")
    expect(page.locator(".card-note")).to_have_text("Stub says text_too_long.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".card-sentence")).to_have_text("Busy, trying again in 2 s")
    expect(page.locator(".card-sentence")).to_have_text("Positive, 97 %")


def test_csv(page: Page) -> None:
    write(page, 'late, "x"\n=wonderful', 2)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    head, first, second = download.value.path().read_text("utf-8-sig").splitlines()
    assert download.value.suggested_filename == "sentiment.csv"
    assert head == "text,state,prediction,probability,second,second_probability,sentence"
    assert first == ('"late, ""x""","done","Negative","0.91","Neutral","0.07","Negative, 91 %"')
    assert second.startswith('"\'=wonderful","done","Positive"')


def test_details_stay_open_when_the_text_changes(page: Page, stub: StubApi) -> None:
    write(page, "a wonderful day", 1)
    page.get_by_text("Details").click()
    expect(page.locator(".times-legend li").first).to_have_text(re.compile("decode 1.2 ms"))
    page.get_by_role("button", name="Copy").last.click()
    expect(page.locator("#say")).to_have_text(re.compile("Copied|Selected: press"))
    page.locator(".card summary").focus()
    stub.held.clear()
    page.get_by_label("Your text").evaluate("field => { field.value = 'late' }")
    page.get_by_label("Your text").dispatch_event("input")
    until(lambda: len(stub.asked) == 2, "a request")
    expect(page.locator(".card-sentence")).to_have_text("Classifying…")
    expect(page.locator(".curl")).to_contain_text("wonderful")
    expect(page.locator(".card summary")).to_be_focused()
    stub.held.set()
    expect(page.locator(".curl")).to_contain_text("late")
    expect(page.locator(".card summary")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".curl")).to_be_hidden()
