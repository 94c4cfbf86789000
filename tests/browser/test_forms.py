"""The page in front of a model of one's own: a form of its declared types, and of tensors."""

import base64
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PageOf
from tests.browser.pictures_of_food import payload
from tests.browser.stub_api import StubApi, error, until
from tests.browser.stub_models import FLOWERS

pytestmark = pytest.mark.slow


@pytest.fixture
def page(page_of: PageOf) -> Page:
    return page_of(FLOWERS)


def send(page: Page, answers: int = 1) -> None:
    page.get_by_role("button", name="Send").click()
    expect(page.locator('.card[data-state="done"]')).to_have_count(answers)


def title_of(page: Page) -> str:
    """The model's name and version, as the page's server knows it."""
    return str(page.request.get(f"{page.url}status").json()["model"]["title"])


def test_what_is_filled_in_is_sent(page: Page, stub: StubApi) -> None:
    page.get_by_label("Name").fill("a \U0001f339")
    page.get_by_label("Features").fill("1.5 -2")
    page.get_by_label("Petals").fill("7")
    page.get_by_label("Season").select_option("spring")
    page.get_by_label("Wild").check()
    page.get_by_label("Notes").fill("two\nlines")
    page.get_by_label("Photo").set_input_files(payload("a.jpg", b"\xff\xd8 a photo"))
    page.get_by_label("Place").fill('{"city": "Oslo"}')
    send(page)
    assert stub.asked[0].body == {
        "name": "a \U0001f339",
        "features": [1.5, -2],
        "petals": 7,
        "season": "spring",
        "wild": True,
        "notes": "two\nlines",
        "photo": base64.b64encode(b"\xff\xd8 a photo").decode(),
        "place": {"city": "Oslo"},
    }


def test_the_answer_is_a_table_and_json(page: Page) -> None:
    send(page)
    expect(page.locator(".card-sentence")).to_have_text("Label: Rosa <rugosa>")
    rows = page.locator(".values").first.locator("> tbody > tr > th").all_inner_texts()
    assert rows == ["Label", "Probability", "Picture", "Others", "Petals"]
    expect(page.get_by_alt_text("Image in the answer")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    page.get_by_text("Details").click()
    expect(page.locator("code.json")).to_contain_text('"label": "Rosa <rugosa>"')


def test_the_newest_answer_is_the_first(page: Page) -> None:
    send(page)
    page.get_by_label("Petals").fill("9")
    send(page, 2)
    assert page.locator(".card-name").all_inner_texts() == ["Request 2", "Request 1"]
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.locator(".card")).to_have_count(0)


def test_the_browser_asks_for_what_is_wrong(page: Page, stub: StubApi) -> None:
    page.get_by_label("Petals").fill("100")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Petals")).to_be_focused()
    page.get_by_label("Petals").fill("9")
    page.get_by_label("Name").fill("far too long")
    expect(page.locator("#count-name")).to_have_text("It has 12 characters. The limit is 10.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Name")).to_be_focused()
    assert not stub.asked


def test_what_only_the_server_can_read(page: Page, stub: StubApi) -> None:
    page.get_by_label("Features").fill("one, two")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".card-sentence")).to_have_text("This cannot be sent yet.")
    expect(page.locator(".card-note")).to_have_text("Features: \u201cone\u201d is not a number.")
    stub.usual = error(400, "invalid_input")
    page.get_by_label("Features").fill("1")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".card-note").first).to_have_text("Stub says invalid_input.")


def test_a_file_that_is_too_large(page: Page, stub: StubApi, tmp_path: Path) -> None:
    photo, film = page.get_by_label("Photo"), tmp_path / "film.mp4"
    expect(page.locator(".field", has=photo)).to_contain_text("At most 750.0 kB.")
    for size, said in (
        (750_001, "This file is too large. The limit is 0.75 MB."),
        (15 * 2**20, "The request is too large. The limit is 14 MB."),
    ):
        film.write_bytes(bytes(size))
        photo.set_input_files(film)
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".problem")).to_contain_text(said)
        photo.evaluate("field => { delete field.dataset.most }")
    assert not stub.asked


def test_a_reload_keeps_what_was_typed(page: Page) -> None:
    page.get_by_label("Notes").fill("as it was")
    page.get_by_label("Wild").check()
    page.get_by_label("Season").select_option("spring")
    page.reload()
    expect(page.get_by_label("Notes")).to_have_value("as it was")
    expect(page.get_by_label("Wild")).to_be_checked()
    expect(page.get_by_label("Season")).to_have_value('"spring"')
    expect(page.get_by_label("Name")).to_have_value("rose")


def test_another_version_gets_its_own_form(page: Page, stub: StubApi) -> None:
    """The page asks its server now and then, and is loaded anew for other types."""
    page.get_by_label("Name").fill("as it was")
    fewer = {name: FLOWERS["request_schema"]["properties"][name] for name in ("name", "petals")}
    schema = {"type": "object", "properties": fewer, "required": ["name", "petals"]}
    stub.model = {**FLOWERS, "version": "2", "request_schema": schema}
    until(lambda: title_of(page) == "flowers 2", "the page's server to ask again")
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.get_by_label("Features")).to_have_count(0)
    expect(page.get_by_label("Name")).to_have_value("as it was")


def test_without_script(page_of: PageOf, stub: StubApi) -> None:
    page = page_of(FLOWERS, java_script_enabled=False)
    page.get_by_label("Wild").check()
    page.get_by_label("Photo").set_input_files(payload("a.jpg", b"jpeg"))
    page.get_by_label("Features").fill("none")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert").first).to_contain_text(
        "Features: \u201cnone\u201d is not a number."
    )
    expect(page.get_by_label("Wild")).to_be_checked()
    page.get_by_label("Features").fill("1")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".card-sentence")).to_have_text("Label: Rosa <rugosa>")
    assert stub.asked[0].body["wild"] is True
    assert stub.asked[0].body["photo"] == "eHg="  # browsers keep no file; the example's is sent
