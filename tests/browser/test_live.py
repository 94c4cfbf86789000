"""The page in front of models whose answer follows what is typed: similar texts, entities, labels."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PageOf
from tests.browser.stub_api import StubApi, error
from tests.browser.stub_models import INTENTS, MEANINGS, SEARCH, TAGGER

pytestmark = pytest.mark.slow

DONE = '.card[data-state="done"]'


def cells(page: Page) -> list[list[str]]:
    """Returns the numbers of the matrix, row by row."""
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
    assert cells(page) == [
        ["1.00", "0.00", "0.80"],
        ["0.00", "1.00", "0.00"],
        ["0.80", "0.00", "1.00"],
    ]
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


def test_entities_are_marked_by_name_and_colour(page_of: PageOf) -> None:
    page = page_of(TAGGER)
    text = "\U0001f468\u200d\U0001f373 Ann & <Bo>\nin Rome"
    page.get_by_label("Text", exact=True).fill(text)
    expect(page.locator(".card-sentence")).to_have_text("3 entities")
    expect(page.locator("#say")).to_have_text("3 entities")
    marks = page.locator(".paragraph mark")
    assert [" ".join(mark.split()) for mark in marks.all_text_contents()] == [
        *("Ann PER 98 %", "Bo PER 98 %", "Rome LOC 98 %"),
    ]
    assert marks.first.get_attribute("title") == "PER 98 %"
    without_labels = "text => [...text.querySelectorAll('.tag')].forEach(tag => tag.remove())"
    colours = marks.evaluate_all("all => all.map(mark => getComputedStyle(mark).backgroundColor)")
    assert colours[0] == colours[1] != colours[2]
    assert page.locator(".legend li").all_inner_texts() == ["PER 2", "LOC 1"]
    page.locator(".paragraph").evaluate(without_labels)
    assert page.locator(".paragraph").inner_text() == text
    page.locator(".more summary").click()
    page.get_by_label("Aggregation strategy").select_option("none")
    expect(page.locator(".legend li")).to_have_text(["B-PER 2", "B-LOC 1"])
    page.get_by_label("Text", exact=True).fill("nobody")
    expect(page.locator(".card-sentence")).to_have_text("No entities found")
    expect(page.locator(".legend")).to_have_count(0)


def test_labels_of_the_visitor(page_of: PageOf, stub: StubApi) -> None:
    page = page_of(INTENTS)
    page.get_by_label("Text", exact=True).fill("The soup was cold.\nI want another.")
    page.get_by_label("Labels", exact=True).fill("praise, complaint\nask")
    expect(page.locator(".card-sentence")).to_have_text("ask, 57 %")
    assert page.locator(".bar").all_inner_texts() == ["ask\n57 %", "praise\n29 %", "complaint\n14 %"]
    page.get_by_label("Several labels may fit").check()
    expect(page.locator(".card-sentence")).to_have_text("ask 100 %, praise 50 %")
    expect(page.locator(".card")).to_have_count(1)
    assert stub.asked[-1].body == {
        **{"text": "The soup was cold.\nI want another.", "multi_label": True},
        "candidate_labels": ["praise", "complaint", "ask"],
    }
    page.reload()
    expect(page.get_by_label("Labels", exact=True)).to_have_value("praise, complaint\nask")
    expect(page.locator(".card-sentence")).to_have_text("ask 100 %, praise 50 %")


def test_nothing_typed_is_lost(page_of: PageOf, stub: StubApi) -> None:
    page = page_of(SEARCH)
    stub.usual = error(413, "text_too_long")
    page.get_by_label("Texts", exact=True).fill("bread")
    page.get_by_label("Query").fill("How long?")
    expect(page.locator(".card-sentence")).to_have_text("This text is too long.")
    page.reload()
    expect(page.get_by_label("Query")).to_have_value("How long?")
    expect(page.locator(".card-note")).to_have_text("Stub says text_too_long.")


def test_too_many_texts(page_of: PageOf, stub: StubApi) -> None:
    page = page_of(MEANINGS)
    page.get_by_label("Texts", exact=True).fill("\n".join(map(str, range(25))))
    expect(page.locator(".card-note")).to_have_text("Send fewer at a time.")
    assert not stub.asked


def test_without_script(page_of: PageOf) -> None:
    page = page_of(MEANINGS, java_script_enabled=False)
    page.get_by_label("Texts", exact=True).fill("aab\nzz\naa")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".card-sentence")).to_have_text("Texts 1 and 3 are the closest: 0.89")
    expect(page.get_by_label("Texts", exact=True)).to_have_value("aab\nzz\naa")
    page = page_of(SEARCH, java_script_enabled=False)
    page.get_by_label("Texts", exact=True).fill("bread\nthe soup")
    page.get_by_label("Query").fill("Which soup?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".card-name")).to_have_text("Which soup?")
    assert page.locator(".bar-label").all_inner_texts() == ["the soup", "bread"]
