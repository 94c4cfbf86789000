"""Stores feedback, "right" or "wrong, it is ...", as one line each in `feedback.jsonl`.

Predictions are signed when they are shown, so that feedback is accepted for this page's answers only.
Undoing appends a line, too: the last line of an id is the valid one. Without a folder, feedback is off.
"""

import json
import logging
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from itsdangerous import BadSignature, URLSafeTimedSerializer

from flask_app.errors import PageError
from flask_app.settings import MEGABYTE, Settings

logger = logging.getLogger(__name__)

NONE_OF_THESE = "none of these"
MAX_AGE_S = 24 * 3600
REMEMBERED_ADDRESSES = 10_000


class Feedback:
    """Feedback folder, or feedback switched off."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.feedback_dir
        self.keeps_photos = settings.feedback_keep_photos and self.on
        self._max_bytes = settings.feedback_max_mb * MEGABYTE
        self._limit = RateLimit(settings.feedback_per_minute)
        self._lock = threading.Lock()
        self._signer = URLSafeTimedSerializer(settings.secret_key.get_secret_value(), salt="prediction")

    @property
    def on(self) -> bool:
        """True when the page asks for feedback."""
        return self._folder is not None

    def prepare(self) -> None:
        """Creates the folder. Raises OSError when it cannot be written."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "feedback.jsonl").open("a"):
                pass

    def sign(self, photo: bytes, label: str, probability: float, model: str) -> str | None:
        """Returns a signed token for one prediction; None when feedback is off."""
        if not self.on:
            return None
        return self._signer.dumps(
            {
                "id": secrets.token_hex(8),
                "model": model,
                "sha256": sha256(photo).hexdigest(),
                "predicted": label,
                "probability": round(probability, 4),
            }
        )

    def save(
        self,
        token: str,
        corrected: str | None,
        labels: Sequence[str],
        photo: bytes | None,
        address: str,
    ) -> None:
        """Appends one line, and keeps the photo if so configured. Raises PageError.

        `corrected` is the right label, or None when the prediction is right.
        """
        prediction = self._prediction(token, address)
        corrected = prediction["predicted"] if corrected is None else corrected
        if corrected not in (*labels, NONE_OF_THESE, prediction["predicted"]):
            raise PageError("bad_feedback", "not a label of the model")
        if photo and sha256(photo).hexdigest() != prediction["sha256"]:
            raise PageError("bad_feedback", "not the photo of this prediction")
        content = photo if self.keeps_photos and photo else b""
        name = f"{prediction['id']}.photo" if content else None
        line = prediction | {
            "corrected": None if corrected == NONE_OF_THESE else corrected,
            "photo": name,
        }
        with self._lock, storing():
            self._append(line, len(content))
            if name:
                (self._open_folder() / name).write_bytes(content)

    def undo(self, token: str, address: str) -> None:
        """Deletes the kept photo and appends a line that undoes the feedback. Raises PageError."""
        prediction = self._prediction(token, address)
        with self._lock, storing():
            (self._open_folder() / f"{prediction['id']}.photo").unlink(missing_ok=True)
            self._append({"id": prediction["id"], "undone": True}, 0)  # there may be no room for it

    def _prediction(self, token: str, address: str) -> dict[str, Any]:  # Any: what sign() put in
        self._open_folder()
        if wait := self._limit.seconds_to_wait(address):
            detail = "too much feedback from one address"
            raise PageError("too_many_requests", detail, {"Retry-After": str(wait)})
        try:
            prediction: dict[str, Any] = self._signer.loads(token, max_age=MAX_AGE_S)
        except BadSignature as error:
            raise PageError("bad_feedback", "the signature is wrong or expired") from error
        return prediction

    def _append(self, line: Mapping[str, object], extra: int) -> None:
        folder = self._open_folder()
        time_utc = datetime.now(UTC).isoformat(timespec="seconds")
        data = json.dumps({"time": time_utc, **line}, ensure_ascii=False).encode() + b"\n"
        if _size(folder) + len(data) + extra > self._max_bytes:
            raise PageError("feedback_full")
        descriptor = os.open(folder / "feedback.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, data)  # one write: whole lines even from several processes
        finally:
            os.close(descriptor)

    def _open_folder(self) -> Path:
        if self._folder is None:
            raise PageError("feedback_off")
        return self._folder


@contextmanager
def storing() -> Iterator[None]:
    """Raises PageError if the folder cannot be written any more, as on a full disk; logs the reason."""
    try:
        yield
    except OSError as error:
        logger.error("feedback cannot be stored: %s", error)
        raise PageError("feedback_full") from error


class RateLimit:
    """Token buckets, one per address: `per_minute` tokens at first, and as many a minute later."""

    def __init__(self, per_minute: int) -> None:
        self._size = float(per_minute)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def seconds_to_wait(self, address: str) -> int:
        """Takes a token and returns 0, or returns the whole seconds until there is one."""
        now = time.monotonic()
        per_second = self._size / 60
        with self._lock:
            tokens, since = self._buckets.pop(address, (self._size, now))
            tokens = min(self._size, tokens + (now - since) * per_second)
            free = tokens >= 1
            self._buckets[address] = (tokens - free, now)
            if len(self._buckets) > REMEMBERED_ADDRESSES:
                self._buckets.popitem(last=False)
        return 0 if free else int((1 - tokens) / per_second) + 1


def _size(folder: Path) -> int:
    """Returns the bytes of all files in a folder without subfolders."""
    return sum(entry.stat().st_size for entry in os.scandir(folder))
