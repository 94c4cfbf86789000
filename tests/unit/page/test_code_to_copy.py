"""The code that visitors copy asks as the page does: photos in both protocols, and requests in JSON."""

import base64
import json
import os
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from flask_app.views import is_reachable
from tests.browser.page_app import PHOTO, page_app
from tests.browser.stub_api import Asked, StubApi
from tests.browser.stub_models import SENTIMENT, serve
from tests.triton_answers import config, outputs

PROGRAMS = [
    "python",
    pytest.param("curl", marks=pytest.mark.skipif(not shutil.which("curl"), reason="curl is missing")),
]


def run(html: str, program: str, folder: Path) -> str:
    code = unescape(html.partition(f'<code class="{program}">')[2].partition("</code>")[0])
    assert "k-1" not in code
    command = [sys.executable, "-c", code] if program == "python" else ["bash", "-c", code]
    env = {**os.environ, "API_KEY": "k-1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def photo_in(asked: Asked, protocol: str) -> bytes:
    if protocol == "native":
        assert asked.path == "/predict?top_k=5"
        return asked.photo
    assert asked.path == "/v2/models/food_classifier/infer"
    assert asked.body["parameters"] == {"top_k": 5}
    (tensor,) = asked.body["inputs"]
    (data,) = tensor.pop("data")
    assert tensor == {"name": "INPUT_IMAGE", "shape": [1, 1], "datatype": "BYTES"}
    return base64.b64decode(data, validate=True)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("protocol", ["native", "triton"])
def test_a_photo(stub: StubApi, tmp_path: Path, protocol: str, program: str) -> None:
    if protocol == "triton":
        stub.usual, stub.model = outputs(), config()
    (tmp_path / "PHOTO").write_bytes(PHOTO)
    with page_app(stub, api_protocol=protocol, api_key="k-1") as app:
        assert "Soup" in run(app.test_client().get("/").text, program, tmp_path)
    (asked,) = stub.asked
    assert asked.headers["Authorization"] == "Bearer k-1"
    assert photo_in(asked, protocol) == PHOTO


@pytest.mark.parametrize(
    ("api", "page", "shown"),
    [
        ("http://127.0.0.1:8000", "localhost:5000", True),
        ("http://[::1]:8000", "[::1]:5000", True),
        ("http://127.0.0.1:8000", "food.example:443", False),
        ("http://localhost:8000/x", "192.0.2.1", False),
        ("http://api:8000", "localhost", False),
        ("http://10.0.0.7:8000", "food.example", True),
        ("https://api.food.example", "food.example", True),
    ],
)
def test_code_is_shown_to_visitors_who_can_reach_the_api(api: str, page: str, shown: bool) -> None:
    assert is_reachable(api, page) is shown


def test_a_remote_visitor_gets_code_with_the_public_address_only(stub: StubApi) -> None:
    serve(stub, SENTIMENT)
    for public, address in ((None, None), ("https://api.food.example", "https://api.food.example")):
        with page_app(stub, public_api_url=public) as app:
            client = app.test_client()
            answer = client.post("/ask", data={"text": "x"}, base_url="http://food.example")
        html = answer.get_json()["page"]["html"]
        assert stub.url not in html
        assert (address is not None) is ("curl" in html)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("text", ['It\'s a "wonderful" $day, \\o/', "w" * 5000], ids=["short", "long"])
def test_a_text(stub: StubApi, tmp_path: Path, text: str, program: str) -> None:
    serve(stub, SENTIMENT)
    (tmp_path / "request.json").write_text(json.dumps({"text": text}))
    with page_app(stub, api_key="k-1") as app:
        page = app.test_client().post("/ask", data={"text": text}).get_json()["page"]
    run(page["html"], program, tmp_path)
    by_page, by_code = stub.asked
    assert (by_code.path, by_code.body) == (by_page.path, by_page.body)
    assert by_page.headers["Authorization"] == by_code.headers["Authorization"] == "Bearer k-1"
