"""A backend that does what a picture's colour commands.

Red, bit 0: the computation makes the file FAKE_GATE.held and lasts until FAKE_GATE exists. Red, the
other bits: a failure, see `Failure`. Green and blue are the class that is answered. A computation takes
FAKE_MS milliseconds, divided by the threads if FAKE_SCALES=1, and FAKE_CPU_MS of a core. As long as the
file FAKE_BROKEN exists nothing can be loaded, or nothing of FAKE_BROKEN_VERSION where that is set; as
long as FAKE_LOADING exists, loading lasts, and makes FAKE_LOADING.held. FAKE_DEVICE is where it claims
to run, the CPU by default. FAKE_SIZES is a file into which it writes the size of every batch.
"""

import io
import os
import time
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from smallplates.engine.backend import BackendInfo
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.models.tensors import Array, Signature
from smallplates.settings import Settings
from smallplates.worker.device_errors import DeviceLostError, OutOfDeviceMemoryError


class Failure(IntEnum):
    """What a picture does to the batch it is in."""

    NONE = 0
    RAISE = 1
    NOT_FINITE = 2
    EXIT = 3
    FULL = 4  # more than FITS pictures do not fit into the device's memory
    LOST = 5  # the device


FITS = 2


class FakeBackend:
    """Implements `smallplates.engine.backend.Backend` without a model."""

    def __init__(self) -> None:
        self.classes = 0
        self.seconds = 0.0

    def weights(self, model: Model) -> list[Path]:
        """A file in the place of weights."""
        return [model.folder / "model.json"]

    def load(
        self,
        model: Model,
        settings: Settings,
        scratch: Path | None = None,  # noqa: ARG002
    ) -> BackendInfo:
        """Loads nothing."""
        broken = os.environ.get("FAKE_BROKEN")
        only = os.environ.get("FAKE_BROKEN_VERSION", model.description.version)
        if broken and Path(broken).exists() and only == model.description.version:
            raise ConfigurationError("commanded not to load")
        if loading := os.environ.get("FAKE_LOADING"):
            while Path(loading).exists():
                Path(loading).with_suffix(".held").touch()
                time.sleep(0.005)
        self.classes = len(model.labels)
        threads = settings.threads if os.environ.get("FAKE_SCALES") == "1" else 1
        self.seconds = float(os.environ.get("FAKE_MS", "0")) / 1000 / threads
        return BackendInfo(
            "fake 1", os.environ.get("FAKE_DEVICE", "cpu"), "fake", "fp32", "it is a fake"
        )

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> Sequence[Array]:
        """Obeys the first pixel of each picture, or the first number of each channel as its colour."""
        (batch,) = inputs
        if not signature.normalises:
            batch = batch[:, :, :1, :1].transpose(0, 2, 3, 1).astype(np.uint8)
        is_plain = (batch[:, :1, :1] == batch[:, -1:, -1:]).all(-1, keepdims=True)  # not warm-up's own
        return [self.obey(np.where(is_plain, batch, 0))]

    def obey(self, batch: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Obeys the first pixel of each picture."""
        logits = np.zeros((len(batch), self.classes), np.float32)
        time.sleep(self.seconds)
        end = time.thread_time() + float(os.environ.get("FAKE_CPU_MS", "0")) / 1000
        while time.thread_time() < end:
            pass
        write_down(len(batch))
        for row, (red, green, blue) in zip(logits, batch[:, 0, 0].tolist(), strict=True):
            if red & 1:
                wait_for_gate(Path(os.environ["FAKE_GATE"]))
            failure = Failure(red >> 1)
            if failure is Failure.RAISE:
                raise RuntimeError("commanded to fail, with secret details")
            if failure is Failure.EXIT:
                os._exit(7)
            if failure is Failure.FULL and len(batch) > FITS:
                raise OutOfDeviceMemoryError("commanded to be full")
            if failure is Failure.LOST:
                raise DeviceLostError("commanded to be lost")
            row[(green << 8 | blue) % self.classes] = 20
            if failure is Failure.NOT_FINITE:
                row[:] = np.nan
        return logits

    def trim(self) -> None:
        """Nothing to give back."""

    def close(self) -> None:
        """Nothing to free."""


def write_down(size: int) -> None:
    """A line of FAKE_SIZES, where that is a file's name."""
    if path := os.environ.get("FAKE_SIZES"):
        with Path(path).open("a") as file:
            file.write(f"{size}\n")


def wait_for_gate(gate: Path) -> None:
    """Tells that it waits, then waits."""
    held = gate.with_suffix(".held")
    while not gate.exists():
        held.touch()
        time.sleep(0.005)


def command(
    held: bool = False, failure: Failure = Failure.NONE, class_index: int = 0, side: int = 8
) -> bytes:
    """The picture that commands this."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour(held, failure, class_index)).save(buffer, "PNG")
    return buffer.getvalue()


def command_tensor(
    held: bool = False, failure: Failure = Failure.NONE, class_index: int = 0, side: int = 8
) -> NDArray[np.float32]:
    """The tensor, float32 [3, side, side], that commands this."""
    values = np.array(colour(held, failure, class_index), np.float32)
    return np.broadcast_to(values[:, np.newaxis, np.newaxis], (3, side, side)).copy()


def colour(held: bool, failure: Failure, class_index: int) -> tuple[int, int, int]:
    """Red, green and blue of a command."""
    return int(held) | failure << 1, class_index >> 8, class_index & 255
