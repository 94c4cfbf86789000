"""`flask_app.service`: what the page knows about the API, without asking too often."""

import threading
from typing import cast

from flask_app.api_client import ApiClient
from flask_app.service import Service


class HangingApi:
    """API that answers only when it is released."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked = threading.Event()
        self.may_answer.set()

    def not_ready(self) -> str | None:
        """Returns None, which means ready, after the release."""
        self.asked.set()
        assert self.may_answer.wait(60)
        return None

    def model(self, _: str | None = None) -> dict[str, str]:
        return {"name": "soups"}


def test_an_api_that_hangs_holds_one_thread_only() -> None:
    api = HangingApi()
    service = Service(cast("ApiClient", api))
    known = service.status()
    assert known.model is not None
    assert known.model.name == "soups"
    api.asked.clear()
    api.may_answer.clear()
    waiting = threading.Thread(target=service.status)
    waiting.start()
    assert api.asked.wait(60)
    assert service.status() is known  # though the API does not answer
    assert waiting.is_alive()
    api.may_answer.set()
    waiting.join()
    assert service.status() is not known
