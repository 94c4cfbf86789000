"""Trouble: a slow, busy or missing API, no network, files too large; what the page says and does."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Opener, page_before
from tests.browser.pictures_of_food import EGG, SOUP
from tests.browser.stub_api import LABELS, StubApi, error, until

pytestmark = pytest.mark.slow


HEIC = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic"


def choose(page: Page, *files: Path) -> None:
    page.get_by_label("Choose photos").set_input_files(list(files))


def test_slow_then_cancel_then_again(open_page: Opener, stub: StubApi) -> None:
    stub.held.clear()
    page = open_page()
    choose(page, EGG)
    expect(page.locator(".spinning .card-sentence")).to_have_text("Classifying…")
    expect(page.locator(".spinning .card-sentence")).to_have_text("Still working…")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".card-sentence")).to_have_text("Cancelled")
    until(lambda: stub.left == 1, "the API to see its client leave")
    stub.held.set()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")


def test_cancel_of_one_that_waits_for_its_turn(open_page: Opener, stub: StubApi) -> None:
    stub.held.clear()
    page = open_page()
    choose(page, EGG, SOUP, EGG, SOUP)
    until(lambda: stub.inside == 3, "three requests")
    page.locator('.card[data-state="queued"]').get_by_role("button", name="Cancel").click()
    stub.held.set()
    expect(page.locator('.card[data-state="done"]')).to_have_count(3)
    expect(page.locator('.card[data-state="cancelled"]')).to_have_count(1)
    assert len(stub.asked) == 3


def test_busy_counts_down_until_it_is_cancelled(open_page: Opener, stub: StubApi) -> None:
    stub.answers.append(error(503, "overloaded", 50))
    page = open_page()
    choose(page, EGG)
    expect(page.locator(".card-sentence")).to_have_text(re.compile("^Busy, trying again in (50|4.) s$"))
    seconds = page.locator(".card-sentence").inner_text()
    expect(page.locator(".card-sentence")).not_to_have_text(seconds)
    assert page.locator(".card-sentence").inner_text() < seconds
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".card-sentence")).to_have_text("Cancelled")


def test_down_and_up_again(open_page: Opener, stub: StubApi) -> None:
    page = open_page()
    stub.down()
    choose(page, EGG)
    expect(page.locator(".card-sentence")).to_have_text("The model cannot be reached.")
    expect(page.locator("#service")).to_have_attribute("data-state", "down")
    expect(page.locator("#alarm")).to_contain_text("cannot be reached")
    expect(page.get_by_alt_text("eggs.jpg")).to_be_visible()
    choose(page, SOUP)
    expect(page.locator('.card[data-state="waiting"]')).to_have_count(2)
    stub.up()
    expect(page.locator('.card[data-state="done"]')).to_have_count(2)
    expect(page.locator("#service-text")).to_have_text("Ready")
    expect(page.locator("#alarm")).to_have_text("")


def test_a_page_that_starts_before_the_api(browser: Browser, stub: StubApi, tmp_path: Path) -> None:
    stub.down()
    with page_before(stub.url, UI_FEEDBACK_DIR=str(tmp_path)) as url, browser.new_context() as context:
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#service")).to_have_attribute("data-state", "down")
        expect(page.locator(".knows")).to_be_hidden()
        stub.up()
        expect(page.locator("#labels li")).to_have_text(LABELS)
        choose(page, EGG)
        page.get_by_role("button", name="No", exact=True).click()
        offered = page.get_by_label("It is").locator("option").all_inner_texts()
        assert offered == ["choose…", *LABELS, "none of these"]


def test_offline_and_back(open_page: Opener) -> None:
    page = open_page()
    page.context.set_offline(True)
    expect(page.locator("#service-text")).to_contain_text("You are offline")
    choose(page, EGG)
    expect(page.locator(".card")).to_have_attribute("data-state", "waiting")
    page.context.set_offline(False)
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")


@pytest.mark.parametrize(
    ("name", "content", "said", "is_sent"),
    [
        ("film.bin", bytes(15 * 2**20), "This photo is too large. The limit is 14 MB", False),
        ("a.jpg", b"", "This file is empty.", False),
        ("a.heic", HEIC, "Save the photo as JPEG", True),
    ],
    ids=["large", "empty", "heic"],
)
def test_files_that_are_no_use(
    open_page: Opener, stub: StubApi, tmp_path: Path, name: str, content: bytes, said: str, is_sent: bool
) -> None:
    page = open_page()
    (tmp_path / name).write_bytes(content)
    choose(page, tmp_path / name)
    expect(page.locator(".card")).to_contain_text(said, use_inner_text=True)
    assert is_sent or not stub.asked


def test_feedback_and_undo(open_page: Opener, feedback_dir: Path) -> None:
    page = open_page()
    choose(page, EGG)
    page.get_by_role("button", name="No", exact=True).click()
    expect(page.get_by_label("It is")).to_be_focused()
    options = page.get_by_label("It is").locator("option").all_inner_texts()
    assert options[-1] == "none of these"
    page.get_by_label("It is").select_option("Egg")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Thanks, saved.").last).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Feedback removed.").last).to_be_visible()
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_text("Thanks, saved.").last).to_be_visible()
    text = (feedback_dir / "feedback.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()][-3:]
    assert [line.get("corrected") for line in lines] == ["Egg", None, "Soup"]
    assert lines[1]["undone"]
    assert len({line["id"] for line in lines}) == 1
