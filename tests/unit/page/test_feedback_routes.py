"""Feedback as the page's forms and its script send it."""

import json
import re
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.browser.page_app import JPEG, PHOTO, form, page_app
from tests.browser.stub_api import (
    StubApi,
)


def test_feedback_by_form(stub: StubApi, tmp_path: Path) -> None:
    with page_app(stub, feedback_dir=tmp_path) as app:
        client = app.test_client()
        page = client.post("/", data=form((PHOTO, "egg.jpg"))).text
        match = re.search(r'name="token" value="([^"]+)"', page)
        assert match
        data = {"token": match[1], "verdict": "wrong", "corrected": "Egg"}
        thanks = client.post("/feedback", data=data)
        assert "Thanks, saved." in thanks.text
        assert "Undo" in thanks.text
        assert "Feedback removed." in client.post("/feedback/undo", data={"token": match[1]}).text
    saved, undone = map(json.loads, (tmp_path / "feedback.jsonl").read_text().splitlines())
    assert (saved["predicted"], saved["corrected"], saved["model"]) == ("Soup", "Egg", "food11 1")
    assert undone["undone"]


def test_feedback_by_script(stub: StubApi, tmp_path: Path) -> None:
    accept = {"Accept": "application/json"}
    with page_app(stub, feedback_dir=tmp_path) as app:
        client = app.test_client()
        token = client.post("/classify", data=PHOTO, headers=JPEG).get_json()["page"]["feedback_token"]
        right = client.post("/feedback", data={"token": token, "verdict": "right"}, headers=accept)
        assert right.get_json() == {"detail": "Thanks, saved."}
        wrong = {"token": token, "verdict": "wrong", "corrected": ""}
        assert client.post("/feedback", data=wrong, headers=accept).status_code == 400
        forged = {"token": "x", "verdict": "right"}
        refused = client.post("/feedback", data=forged, headers=accept)
        assert (refused.status_code, refused.get_json()["code"]) == (400, "bad_feedback")


def test_feedback_is_off_by_default(client: FlaskClient) -> None:
    assert "feedback" not in client.get("/").text
    assert client.post("/feedback", data={"verdict": "right"}).status_code == 404


def test_a_feedback_folder_that_cannot_be_written(stub: StubApi, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), page_app(stub, feedback_dir=tmp_path / "file"):
        pass
