"""The page in front of models whose answer follows what is typed: similar texts, entities, labels."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PageOf
from tests.browser.stub_api import StubApi
from tests.browser.stub_models import MEANINGS, SEARCH

pytestmark = pytest.mark.slow

DONE = '.card[data-state="done"]'


def cells(page: Page) -> list[list[str]]:
    rows = page.locator(".matrix tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


def test_the_matrix_follows_what_is_typed(page_of: PageOf, stub: StubApi) -> None:
    page = page_of(MEANINGS)
    page.get_by_label("Texts", exact=True).fill("aab")
    expect(page.locator(".card-sentence")).to_have_text("A vector of 26 numbers")
    expect(page.locator(".matrix")).to_have_count(0)
    page.get_by_label("Texts", exact=True).fill("aab\nzz")
    expect(page.locator(".card-sentence")).to_have_text("Similarity 0.00")
    page.get_by_label("Texts", exact=True).fill("aab\nzz\n\n  <i>aa")
    expect(page.locator(".card-sentence")).to_have_text("Texts 1 and 3 are the closest: 0.80")
    expect(page.locator("#say")).to_have_text("Texts 1 and 3 are the closest: 0.80")
    expect(page.locator(DONE)).to_have_count(1)
    assert cells(page) == [["1.00", "0.00", "0.80"], ["0.00", "1.00", "0.00"], ["0.80", "0.00", "1.00"]]
    expect(page.get_by_role("rowheader", name="3 <i>aa")).to_be_visible()
    expect(page.locator(".bar").first).to_have_text("“aab” and “<i>aa” 0.80", use_inner_text=True)
    colour = "cell => getComputedStyle(cell).backgroundColor"
    near, far = (page.locator(f".matrix .heat-{heat}").first.evaluate(colour) for heat in (8, 0))
    assert near != far
    assert [asked.body["text"] for asked in stub.asked][-1] == ["aab", "zz", "<i>aa"]


def test_options_are_part_of_the_request(page_of: PageOf, stub: StubApi) -> None:
    page = page_of(MEANINGS)
    page.get_by_label("Texts", exact=True).fill("a cat\na hat")
    expect(page.locator(DONE)).to_have_count(1)
    page.locator(".more summary").click()
    page.get_by_label("Prompt name").select_option("query")
    page.get_by_label("Dimensions").fill("3")
    page.get_by_text("Details").click()
    expect(page.locator(".curl")).to_contain_text('"dimensions": 3, "prompt_name": "query"')
    assert stub.asked[0].body == {"text": ["a cat", "a hat"]}
    assert stub.asked[-1].body == {
        **{"text": ["a cat", "a hat"], "dimensions": 3, "prompt_name": "query"}
    }


def test_texts_are_sorted(page_of: PageOf, stub: StubApi) -> None:
    page = page_of(SEARCH)
    page.get_by_label("Texts", exact=True).fill("the soup is hot\nwho cooks the soup\nbread")
    page.get_by_label("Query").press("Enter")
    assert not stub.asked  # there is no query as yet
    page.get_by_label("Query").fill("Who cooks?")
    page.get_by_label("Query").press("Enter")
    expect(page.locator(".card-sentence")).to_have_text("Text 2 fits best: 1.00")
    expect(page.locator(".card-name")).to_have_text("Who cooks?")
    labels = page.locator(".bar-label")
    assert labels.all_inner_texts() == ["who cooks the soup", "the soup is hot", "bread"]
    page.get_by_label("Query").fill("hot bread")
    expect(labels.first).to_have_text("the soup is hot")
    page.locator(".more summary").click()
    page.get_by_label("Raw scores").select_option("yes")
    expect(page.locator(".bar-percent").first).to_have_text("0.00")
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_label("Query")).to_have_value("")
    expect(page.locator(".card")).to_have_count(0)
