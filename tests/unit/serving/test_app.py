"""What nobody has foreseen in a handler, as the client is told of it."""

import asyncio

import httpx
import pytest

from serving.app import create_app
from serving.settings import Settings
from tests.fake import BACKEND


@pytest.mark.parametrize(
    ("path", "said"), [("/broken", {"detail", "code", "request_id"}), ("/v2/broken", {"error"})]
)
def test_the_last_answer_has_the_shape_of_its_path(
    path: str, said: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.app.configure_logging", lambda _: None)
    app = create_app(Settings(), BACKEND)

    @app.get(path)
    async def broken() -> None:
        raise ValueError("with secret details")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)  # raises what the application raises
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path)

    answer = asyncio.run(ask())
    assert answer.status_code == 500
    assert set(answer.json()) == said
    assert "secret" not in answer.text
