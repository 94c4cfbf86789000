"""Photos, one or many, that are chosen, dropped, pasted or taken; and their answers."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Page, expect

from tests.browser.conftest import Opener
from tests.browser.pictures_of_food import EGG, RICE, SOUP, from_a_phone, opened, payload
from tests.browser.stub_api import LABELS, UNSURE, StubApi, error, ok, until

pytestmark = pytest.mark.slow

GIVE = """([event, target, name, type, text, file]) => {
  const data = new DataTransfer();
  if (file) data.items.add(new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], name, {type}));
  else data.setData(type, text);
  const options = {bubbles: true, cancelable: true};
  const made = event === "paste"
    ? new ClipboardEvent(event, {...options, clipboardData: data})
    : new DragEvent(event, {...options, dataTransfer: data});
  document.querySelector(target).dispatchEvent(made);
}"""


def give(page: Page, event: str, content: Path | tuple[str, str]) -> None:
    """Drops or pastes a file, or a (type, text) pair as another page hands it over."""
    if isinstance(content, Path):
        text = base64.b64encode(content.read_bytes()).decode()
        page.evaluate(GIVE, [event, "footer", content.name, "image/jpeg", text, True])
    else:
        page.evaluate(GIVE, [event, "footer", "", *content, False])


def sentences(page: Page) -> list[str]:
    return page.locator(".card-sentence").all_inner_texts()


def test_choosing_is_enough(open_page: Opener, stub: StubApi) -> None:
    page = open_page()
    assert page.locator("#labels li").all_inner_texts() == LABELS
    expect(page.locator("footer")).to_contain_text("It recognises only these 11 classes")
    page.get_by_label("Choose photos").set_input_files(EGG)
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    expect(page.locator("#say")).to_have_text("eggs.jpg: Soup, 92 %")
    expect(page.get_by_alt_text("eggs.jpg")).to_be_visible()
    widths = [bar.get_attribute("width") for bar in page.locator(".bar rect").all()]
    assert widths == ["92.4%", "4.1%", "2%", "1.1%", "0.4%"]
    percents = page.locator(".bar-percent").all_inner_texts()
    assert percents == ["92 %", "4 %", "2 %", "1 %", "<1 %"]
    page.get_by_label("Choose photos").set_input_files(EGG)  # the same photo again
    expect(page.locator('.card[data-state="done"]')).to_have_count(2)
    assert [asked.photo for asked in stub.asked] == [EGG.read_bytes()] * 2


def test_samples_and_a_double_click_is_meant_once(open_page: Opener, stub: StubApi) -> None:
    page = open_page()
    page.get_by_role("button", name="Soup").dblclick()
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    expect(page.locator(".card-name")).to_have_text("soup.jpg")
    page.get_by_role("button", name="Rice").click()
    expect(page.locator('.card[data-state="done"]')).to_have_count(2)
    assert [asked.photo for asked in stub.asked] == [SOUP.read_bytes(), RICE.read_bytes()]


PIXEL = "R0lGODlhAQABAIAAAP///wAAACH5BAAAAAAALAAAAAABAAEAAAICRAEAOw=="


@pytest.mark.parametrize(
    ("event", "content", "begins", "problem"),
    [
        ("drop", EGG, b"\xff\xd8", None),
        ("paste", EGG, b"\xff\xd8", None),
        ("drop", ("text/html", f'<p><img src="data:image/gif;base64,{PIXEL}">'), b"GIF89a", None),
        ("drop", ("text/uri-list", "https://example.org/a.jpg"), b"", "only the image's address"),
        ("drop", ("text/html", "<p>soup"), b"", "There is no image"),
        ("paste", ("text/plain", "soup"), b"", None),
    ],
    ids=["photo", "pasted photo", "of another page", "address", "no image", "pasted text"],
)
def test_drop_or_paste_anywhere(
    open_page: Opener,
    stub: StubApi,
    event: str,
    content: Path | tuple[str, str],
    begins: bytes,
    problem: str | None,
) -> None:
    page = open_page()
    if event == "drop":
        give(page, "dragover", content)
        expect(page.get_by_text("Drop to classify")).to_be_visible()
    give(page, event, content)
    expect(page.get_by_text("Drop to classify")).to_be_hidden()
    if begins:
        expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
        assert stub.asked[0].photo.startswith(begins)
    elif problem:
        expect(page.locator(".problem")).to_contain_text(problem)
    else:
        expect(page.locator("#results")).to_be_hidden()
    assert len(stub.asked) == bool(begins)


def test_large_photos_are_reduced(open_page: Opener, stub: StubApi, tmp_path: Path) -> None:
    original = from_a_phone(tmp_path)
    page = open_page()
    page.get_by_label("Choose photos").set_input_files(original)
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    sent = opened(stub.asked[0].photo)
    assert sent.size == (512, 768)  # upright; the short side is twice the model's 256
    assert not sent.getexif()
    natural = "image => [image.naturalWidth, image.naturalHeight]"
    assert page.get_by_alt_text(original.name).evaluate(natural) == [720, 1080]  # not what was sent
    page.get_by_text("Details").click()
    expect(page.locator(".sent")).to_contain_text(re.compile("512 . 768 pixels"))
    page.get_by_role("button", name="Send the original").click()
    expect(page.locator(".sent")).to_contain_text(re.compile("The original file: 2000 . 3000"))
    assert stub.asked[1].photo == original.read_bytes()


@pytest.mark.parametrize(
    "kind", ["JPEG with IPTC and Exif", "PNG with XMP", "WEBP with Exif at its end"]
)
def test_metadata_of_any_kind_is_removed(open_page: Opener, stub: StubApi, kind: str) -> None:
    format_name, _, rest = kind.partition(" ")
    noise = np.random.default_rng(0).integers(0, 256, (1800, 500, 3), np.uint8)
    picture = Image.fromarray(noise) if "end" in rest else Image.new("RGB", (300, 200), "red")
    text = PngInfo()
    text.add_itxt("XML:com.adobe.xmp", "<rdf:RDF>Secret Street</rdf:RDF>", zip=True)
    exif = Image.Exif()
    exif[0x010E] = "Secret Street"
    if format_name == "JPEG":
        exif[0x0112] = 6  # it lies on its side
    options: dict[str, dict[str, Any]] = {
        "JPEG": {"exif": exif},
        "PNG": {"pnginfo": text},
        "WEBP": {"lossless": True, "quality": 0, "exif": exif},
    }
    buffer = io.BytesIO()
    picture.save(buffer, format_name, **options[format_name])
    content = buffer.getvalue()
    if format_name == "JPEG":
        block = b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\x12\x1c\x02\x5c\0\x0dSecret Street"
        content = b"\xff\xd8\xff\xed" + (len(block) + 2).to_bytes(2) + block + content[2:]
    page = open_page()
    chosen = payload(f"photo.{format_name.lower()}", content, f"image/{format_name.lower()}")
    page.get_by_label("Choose photos").set_input_files(chosen)
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    sent = stub.asked[0].photo
    assert opened(sent).size == (picture.size[::-1] if format_name == "JPEG" else picture.size)
    assert sent.startswith(b"\xff\xd8")
    assert not any(mark in sent for mark in (b"Secret", b"Photoshop", b"adobe", b"Exif"))


def test_a_file_that_the_browser_cannot_open_is_said_to_be_unchanged(
    open_page: Opener, stub: StubApi, tmp_path: Path
) -> None:
    path = tmp_path / "scan.tiff"
    Image.new("RGB", (300, 200), "red").save(path)
    page = open_page()
    expect(page.locator("footer")).to_contain_text("It sends files that it can't open unchanged")
    page.get_by_label("Choose photos").set_input_files(path)
    expect(page.locator(".card-sentence")).to_have_text("Soup, 92 %")
    page.get_by_text("Details").click()
    expect(page.locator(".sent")).to_contain_text(re.compile(r"^The original file: .* KB, unchanged\.$"))
    assert stub.asked[0].photo == path.read_bytes()


def test_several_photos_three_at_a_time(open_page: Opener, stub: StubApi) -> None:
    stub.held.clear()
    page = open_page()
    files = [payload(f"{i}.jpg", EGG.read_bytes()) for i in range(7)]
    page.get_by_label("Choose photos").set_input_files(files)
    until(lambda: stub.inside == 3, "three requests")
    expect(page.locator('.card[data-state="queued"]')).to_have_count(4)
    stub.held.set()
    expect(page.locator('.card[data-state="done"]')).to_have_count(7)
    assert stub.most_inside == 3
    assert page.locator(".card-name").all_inner_texts() == [f"{i}.jpg" for i in range(7)]


def test_a_failure_stays_on_its_card(open_page: Opener, stub: StubApi) -> None:
    page = open_page()
    page.get_by_label("Choose photos").set_input_files(EGG)
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    stub.answers.append(error(400, "invalid_image"))
    page.get_by_label("Choose photos").set_input_files(payload("menu.txt", b"Soup", "text/plain"))
    expect(page.locator('.card[data-state="failed"]')).to_have_count(1)
    assert sentences(page) == ["This file is not a readable image.", "Soup, 92 %"]
    expect(page.locator("#alarm")).to_contain_text("menu.txt: This file is not a")


def test_csv_and_clear(open_page: Opener, stub: StubApi) -> None:
    page = open_page()
    names = ['=cmd|"x".jpg', "soup, hot.jpg"]
    stub.answers.extend([ok(UNSURE)] * 2)
    page.get_by_label("Choose photos").set_input_files(
        [payload(name, EGG.read_bytes()) for name in names]
    )
    expect(page.locator('.card[data-state="done"]')).to_have_count(2)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    head, first, second = download.value.path().read_text("utf-8-sig").splitlines()
    assert head == "photo,state,prediction,probability,second,second_probability,sentence"
    tail = '"done","Soup","0.41","Rice","0.37","Not sure: Soup 41 %, Rice 37 %"'
    assert first == f'"\'=cmd|""x"".jpg",{tail}'
    assert second == f'"soup, hot.jpg",{tail}'
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.locator("#results")).to_be_hidden()
    expect(page.locator(".card")).to_have_count(0)


def test_history_lives_in_the_tab(open_page: Opener) -> None:
    page = open_page()
    page.get_by_label("Choose photos").set_input_files(EGG)
    expect(page.locator('.card[data-state="done"]')).to_have_count(1)
    expect(page.locator("#history")).to_be_hidden()  # what is still above is not earlier
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.locator("#history-list li")).to_have_count(1)
    page.reload()
    expect(page.locator("#history-list li")).to_contain_text("Soup, 92 %")
    expect(page.locator("#history-list img")).to_have_attribute("src", re.compile("^data:image"))
    page.get_by_role("button", name="Clear history").click()
    expect(page.locator("#history")).to_be_hidden()
    page.reload()
    expect(page.locator("#history")).to_be_hidden()


def test_details(open_page: Opener, base_url: str, stub: StubApi) -> None:
    page = open_page()
    name = 'it\'s "soup".jpg'
    page.get_by_label("Choose photos").set_input_files(payload(name, EGG.read_bytes()))
    page.get_by_text("Details").click()
    legend = page.locator(".times-legend li").all_inner_texts()
    assert [text.strip() for text in legend[:3]] == ["decode 1.2 ms", "queue 0.4 ms", "inference 7.3 ms"]
    assert "network" in legend[3]
    expect(page.locator(".model")).to_contain_text(
        "food11 1, onnx on cpu (CPUExecutionProvider), in int8: it is fit, and faster. Request"
    )
    curl = page.locator(".curl").inner_text()
    assert f"'{stub.url}/predict?top_k=5'" in curl
    assert "'@it'\\''s \"soup\".jpg'" in curl
    python = page.locator(".python").inner_text()
    assert 'Path("it\'s \\"soup\\".jpg")' in python
    compile(python, "shown", "exec")
    assert '"prediction": "Soup"' in page.locator(".json").inner_text()
    assert base_url not in curl


def test_the_code_is_about_the_file_itself(open_page: Opener, tmp_path: Path) -> None:
    """The script sends a JPEG made in the browser, but the copied command is about the PNG file."""
    Image.effect_noise((1500, 1200), 99).save(path := tmp_path / "soup.png")
    page = open_page()
    page.get_by_label("Choose photos").set_input_files(path)
    page.get_by_text("Details").click()
    expect(page.locator(".sent")).to_contain_text("A copy made in your browser")
    assert "'Content-Type: image/png'" in page.locator(".curl").inner_text()


def test_details_leave_the_other_cards_alone(open_page: Opener) -> None:
    page = open_page()
    page.get_by_label("Choose photos").set_input_files([EGG, SOUP])
    expect(page.locator('.card[data-state="done"]')).to_have_count(2)
    page.get_by_text("Details").first.click()
    expect(page.locator(".curl").first).to_be_visible()
    tall, other = (card.bounding_box() for card in page.locator(".card").all())
    assert tall
    assert other
    assert other["y"] == tall["y"]
    assert other["height"] < tall["height"] / 2
