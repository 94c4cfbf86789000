"""Readers of graphs whose items cannot be compared, as a library that crashes or never ends."""

import os
import time

from fastapi_onnx.backend import OnnxBackend
from serving.tensors import Signature


class Crashing(OnnxBackend):
    """Crashes over made-up items."""

    def compare_items(self, *_: object) -> tuple[Signature, ...]:
        """Ends the process as a failed assertion in C does."""
        os.abort()


class Endless(OnnxBackend):
    """Never ends over made-up items."""

    def compare_items(self, *_: object) -> tuple[Signature, ...]:
        """Sleeps, whatever interrupts it."""
        while True:
            time.sleep(60)
