"""A service whose backend does what a picture's colour commands; `uvicorn tests.fake:app`.

Red 1: the computation lasts until the file FAKE_GATE exists. Green 1: it fails. Green 2: it answers
with too few outputs. Green 3: with numbers that are none. Blue is the class that is answered.
"""

import io
import os
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from serving.app import create_app
from serving.backend import BackendInfo
from serving.model import Model
from serving.settings import Settings

CLASSES = 11


class FakeBackend:
    """Implements `serving.backend.Backend` without a model."""

    def load(self, model: Model, settings: Settings) -> BackendInfo:  # noqa: ARG002 the Protocol's
        """Loads nothing."""
        return BackendInfo("fake 1", "cpu", "fake", "fp32")

    def infer(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Obeys the first pixel of each picture."""
        logits = np.zeros((len(batch), CLASSES), np.float32)
        for row, (red, green, blue) in zip(logits, batch[:, 0, 0].tolist(), strict=True):
            while red and not Path(os.environ["FAKE_GATE"]).exists():
                time.sleep(0.005)
            if green == 1:
                raise RuntimeError("commanded to fail, with secret details")
            if green == 2:
                return logits[:, :-1]
            row[blue % CLASSES] = np.nan if green == 3 else 5
        return logits

    def close(self) -> None:
        """Nothing to free."""


def command(held: bool = False, failure: int = 0, class_index: int = 0) -> bytes:
    """The picture that commands this."""
    buffer = io.BytesIO()
    colour = (int(held), failure, class_index)
    Image.new("RGB", (8, 8), colour).save(buffer, "PNG")
    return buffer.getvalue()


app = create_app(Settings(), FakeBackend)
