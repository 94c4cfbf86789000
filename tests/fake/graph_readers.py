"""Readers of graphs whose items cannot be compared, as a library that crashes or never ends."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace

from fastapi_onnx.backend import OnnxBackend
from smallplates.models.folder import Model
from smallplates.models.tensors import Signature


class Crashing(OnnxBackend):
    """Crashes over made-up items."""

    def compare_items(self, *_: object) -> Iterator[Signature]:
        """Ends the process as a failed assertion in C does."""
        os.abort()


class Endless(OnnxBackend):
    """Never ends over made-up items."""

    def compare_items(self, *_: object) -> Iterator[Signature]:
        """Sleeps, whatever interrupts it."""
        while True:
            time.sleep(60)


class Slow(OnnxBackend):
    """Knows something, and never ends over the rest."""

    def compare_items(self, _: Model, signature: Signature) -> Iterator[Signature]:
        """Yields a signature with a note, then sleeps."""
        yield replace(signature, batch_note="known")
        time.sleep(3600)
