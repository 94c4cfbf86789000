"""Feedback: signed, checked, limited, one line each."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from flask_app.errors import (
    BadFeedbackError,
    FeedbackFullError,
    FeedbackOffError,
    RateError,
)
from flask_app.feedback import NONE_OF_THESE, Feedback, RateLimit
from flask_app.settings import MEGABYTE, Settings

PHOTO = b"a photo"
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


def lines(folder: Path) -> list[dict[str, Any]]:  # Any: JSON
    return [json.loads(line) for line in (folder / "feedback.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("said", "corrected"), [(None, "Soup"), ("Rice", "Rice"), (NONE_OF_THESE, None)]
)
def test_one_line_each(tmp_path: Path, said: str | None, corrected: str | None) -> None:
    taker = feedback(tmp_path / "new")
    taker.save(signed(taker), said, LABELS, None, ADDRESS)
    (line,) = lines(tmp_path / "new")
    assert line.pop("time").endswith("+00:00")
    assert len(line.pop("id")) == 16
    assert line == {
        "model": "food11 1",
        "sha256": sha256(PHOTO).hexdigest(),
        "predicted": "Soup",
        "probability": 0.92,
        "corrected": corrected,
        "photo": None,
    }


def test_undo_appends_a_line(tmp_path: Path) -> None:
    taker = feedback(tmp_path)
    token = signed(taker)
    taker.save(token, None, LABELS, None, ADDRESS)
    taker.undo(token, ADDRESS)
    saved, undone = lines(tmp_path)
    assert undone == {"time": undone["time"], "id": saved["id"], "undone": True}


def test_photos_are_kept_only_when_asked_for(tmp_path: Path) -> None:
    taker = feedback(tmp_path)
    taker.save(signed(taker), None, LABELS, PHOTO, ADDRESS)
    assert [path.name for path in tmp_path.iterdir()] == ["feedback.jsonl"]


def test_a_kept_photo_goes_with_undo(tmp_path: Path) -> None:
    taker = feedback(tmp_path, feedback_keep_photos=True)
    token = signed(taker)
    taker.save(token, None, LABELS, PHOTO, ADDRESS)
    kept = tmp_path / lines(tmp_path)[0]["photo"]
    assert kept.read_bytes() == PHOTO
    taker.undo(token, ADDRESS)
    assert not kept.exists()


def test_a_kept_photo_can_be_taken_back_where_nothing_more_fits(tmp_path: Path) -> None:
    taker = feedback(tmp_path, feedback_keep_photos=True, feedback_max_mb=1)
    token = signed(taker)
    taker.save(token, None, LABELS, PHOTO, ADDRESS)
    (tmp_path / "full").write_bytes(bytes(MEGABYTE))
    with pytest.raises(FeedbackFullError):
        taker.undo(token, ADDRESS)
    assert not list(tmp_path.glob("*.photo"))


def test_another_photo_is_refused(tmp_path: Path) -> None:
    taker = feedback(tmp_path, feedback_keep_photos=True)
    with pytest.raises(BadFeedbackError, match="photo"):
        taker.save(signed(taker), None, LABELS, b"another", ADDRESS)


def test_another_label_is_refused(tmp_path: Path) -> None:
    taker = feedback(tmp_path)
    with pytest.raises(BadFeedbackError, match="label"):
        taker.save(signed(taker), "Pizza", LABELS, None, ADDRESS)


def test_another_key_s_signature_is_refused(tmp_path: Path) -> None:
    token = signed(feedback(tmp_path))
    taker = feedback(tmp_path)
    for forged in (token, "", "x.y.z", token[:-1]):
        with pytest.raises(BadFeedbackError, match="signature"):
            taker.save(forged, None, LABELS, None, ADDRESS)
    assert lines(tmp_path) == []


def test_an_old_signature_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = feedback(tmp_path)
    token = signed(taker)
    monkeypatch.setattr("flask_app.feedback.MAX_AGE_S", -1)
    with pytest.raises(BadFeedbackError, match="expired"):
        taker.save(token, None, LABELS, None, ADDRESS)


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    taker = feedback(tmp_path, feedback_max_mb=1)
    (tmp_path / "feedback.jsonl").write_bytes(b"\n" * MEGABYTE)
    with pytest.raises(FeedbackFullError):
        taker.save(signed(taker), None, LABELS, None, ADDRESS)


def test_an_address_is_bounded(tmp_path: Path) -> None:
    taker = feedback(tmp_path, feedback_per_minute=2)
    for _ in range(2):
        taker.save(signed(taker), None, LABELS, None, ADDRESS)
    with pytest.raises(RateError) as caught:
        taker.save(signed(taker), None, LABELS, None, ADDRESS)
    assert 1 <= int(caught.value.headers["Retry-After"]) <= 31
    taker.save(signed(taker), None, LABELS, None, "192.0.2.2")


def test_the_limit_forgets_old_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_app.feedback.REMEMBERED_ADDRESSES", 1)
    limit = RateLimit(1)
    assert limit.seconds_to_wait("a") == 0
    assert limit.seconds_to_wait("a") > 0
    assert limit.seconds_to_wait("b") == 0
    assert limit.seconds_to_wait("a") == 0


def test_off_without_a_folder() -> None:
    taker = Feedback(Settings(feedback_keep_photos=True))
    taker.prepare()
    assert not taker.on
    assert not taker.keeps_photos
    assert taker.sign(PHOTO, "Soup", 0.9, "food11 1") is None
    with pytest.raises(FeedbackOffError):
        taker.save("", None, LABELS, None, ADDRESS)
