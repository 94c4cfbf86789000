"""Feedback: signed, checked, limited, one line each. The browser tests have its forms."""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from flask_app.errors import PageError
from flask_app.feedback import NONE_OF_THESE, Feedback, RateLimit
from flask_app.settings import MEGABYTE, Settings
from tests.browser.page_app import JPEG, PHOTO, page_app
from tests.browser.stub_api import StubApi

LABELS = ("Rice", "Soup")
ADDRESS = "192.0.2.1"


def feedback(folder: Path, **fields: Any) -> Feedback:  # Any: fields of Settings
    made = Feedback(Settings(feedback_dir=folder, **fields))
    made.prepare()
    return made


def signed(taker: Feedback) -> str:
    token = taker.sign(PHOTO, "Soup", 0.92, "food11 1")
    assert token is not None
    return token


def save(
    taker: Feedback,
    token: str | None = None,
    corrected: str | None = None,
    photo: bytes | None = None,
    address: str = ADDRESS,
) -> None:
    taker.save(signed(taker) if token is None else token, corrected, LABELS, photo, address)


def refusal(taker: Feedback, *arguments: Any, **named: Any) -> PageError:
    with pytest.raises(PageError) as caught:
        save(taker, *arguments, **named)
    return caught.value


def lines(folder: Path) -> list[dict[str, Any]]:  # Any: JSON
    return [json.loads(line) for line in (folder / "feedback.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("said", "corrected"), [(None, "Soup"), ("Rice", "Rice"), (NONE_OF_THESE, None)]
)
def test_one_line_each(tmp_path: Path, said: str | None, corrected: str | None) -> None:
    taker = feedback(tmp_path / "new")
    token = signed(taker)
    save(taker, token, said, PHOTO)
    taker.undo(token, ADDRESS)
    line, undone = lines(tmp_path / "new")
    assert line.pop("time").endswith("+00:00")
    assert undone == {"time": undone["time"], "id": line["id"], "undone": True}
    assert len(line.pop("id")) == 16
    assert line == {
        "model": "food11 1",
        "sha256": sha256(PHOTO).hexdigest(),
        "predicted": "Soup",
        "probability": 0.92,
        "corrected": corrected,
        "photo": None,
    }
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["feedback.jsonl"]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_photo_is_kept_only_when_asked_for_and_goes_with_undo(tmp_path: Path, is_full: bool) -> None:
    taker = feedback(tmp_path, feedback_keep_photos=True, feedback_max_mb=1)
    token = signed(taker)
    save(taker, token, photo=PHOTO)
    kept = tmp_path / lines(tmp_path)[0]["photo"]
    assert kept.read_bytes() == PHOTO
    if is_full:
        (tmp_path / "full").write_bytes(bytes(MEGABYTE))
        with pytest.raises(PageError) as caught:
            taker.undo(token, ADDRESS)
        assert caught.value.code == "feedback_full"
    else:
        taker.undo(token, ADDRESS)
    assert not kept.exists()


def test_what_does_not_match_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another photo, another label, another key's signature, an old one."""
    taker = feedback(tmp_path, feedback_keep_photos=True)
    token = signed(taker)
    assert "photo" in refusal(taker, photo=b"another").detail
    assert "label" in refusal(taker, corrected="Pizza").detail
    others = signed(feedback(tmp_path))
    for forged in (others, "", "x.y.z", token[:-1]):
        assert "signature" in refusal(taker, forged).detail
    monkeypatch.setattr("flask_app.feedback.MAX_AGE_S", -1)
    assert refusal(taker, token).code == "bad_feedback"
    assert lines(tmp_path) == []


def test_the_folder_and_an_address_are_bounded(tmp_path: Path) -> None:
    taker = feedback(tmp_path, feedback_max_mb=1, feedback_per_minute=2)
    save(taker)
    (tmp_path / "feedback.jsonl").write_bytes(b"\n" * MEGABYTE)
    assert refusal(taker).code == "feedback_full"
    limited = refusal(taker)
    assert limited.code == "too_many_requests"
    assert 1 <= int(limited.headers["Retry-After"]) <= 31
    assert refusal(taker, address="192.0.2.2").code == "feedback_full"


def test_a_folder_that_cannot_be_written_any_more_is_refused_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taker = feedback(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    assert refusal(taker).code == "feedback_full"
    (record,) = caplog.records
    assert "feedback cannot be stored: " in record.getMessage()
    assert record.exc_info is None


def test_the_limit_forgets_old_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_app.feedback.REMEMBERED_ADDRESSES", 1)
    limit = RateLimit(1)
    waits = [limit.seconds_to_wait(address) > 0 for address in "aaba"]
    assert waits == [False, True, False, False]


def test_off_without_a_folder(client: FlaskClient) -> None:
    taker = Feedback(Settings(feedback_keep_photos=True))
    taker.prepare()
    assert (taker.on, taker.keeps_photos) == (False, False)
    assert taker.sign(PHOTO, "Soup", 0.9, "food11 1") is None
    assert refusal(taker, "").code == "feedback_off"
    assert "feedback" not in client.get("/").text
    assert client.post("/feedback", data={"verdict": "right"}).status_code == 404


def test_what_the_script_sends(stub: StubApi, tmp_path: Path) -> None:
    accept = {"Accept": "application/json"}
    with page_app(stub, feedback_dir=tmp_path) as app:
        client = app.test_client()
        token = client.post("/classify", data=PHOTO, headers=JPEG).get_json()["page"]["feedback_token"]
        right = client.post("/feedback", data={"token": token, "verdict": "right"}, headers=accept)
        assert right.get_json() == {"detail": "Thanks, saved."}
        for said in ({"token": token, "verdict": "wrong"}, {"token": "x", "verdict": "right"}):
            refused = client.post("/feedback", data=said, headers=accept)
            assert (refused.status_code, refused.get_json()["code"]) == (400, "bad_feedback")
    assert lines(tmp_path)[0]["model"] == "food11 1"
