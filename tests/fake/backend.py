"""A backend that does what a picture's colour commands.

Red, bit 0: the computation makes the file FAKE_GATE.held and lasts until FAKE_GATE exists. Red, the
other bits: a failure, see `Failure`. Green and blue are the class that is answered. A computation takes
FAKE_MS milliseconds, divided by the threads if FAKE_SCALES=1, and FAKE_CPU_MS of a core. As long as the
file FAKE_BROKEN exists nothing can be loaded, or nothing of FAKE_BROKEN_VERSION where that is set; as
long as FAKE_LOADING exists, loading lasts, and makes FAKE_LOADING.held. FAKE_DEVICE is where it claims
to run, the CPU by default. FAKE_SIZES is a file into which it writes the size of every batch.
It also takes the commands as numbers: those of SEVERAL, and the first three of LENGTHS.
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
from smallplates.models.tensors import Array, Item, Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.worker.device_errors import DeviceLostError, OutOfDeviceMemoryError


class Failure(IntEnum):
    """What a picture does to the batch it is in."""

    NONE = 0
    RAISE = 1
    TOO_FEW_OUTPUTS = 2
    NOT_FINITE = 3
    EXIT = 4
    FULL = 5  # more than FITS pictures do not fit into the device's memory
    LOST = 6  # the device


FITS = 2

SEVERAL = Signature(
    "several",
    (
        TensorSpec("colour", "int64", (3,)),
        TensorSpec("matrix", "float16", (2, 2)),
        TensorSpec("negative", "bool", ()),
    ),
    (
        TensorSpec("class", "int64", ()),
        TensorSpec("score", "float32", (1,)),
        TensorSpec("echo", "float16", (2, 2)),
    ),
    checks_finite=True,
)
"""Fixed tensors of several types; `echo` is the matrix, with the other sign where that is asked for."""

LENGTHS = Signature(
    "lengths",
    (TensorSpec("numbers", "int64", ("length",), padding=7), TensorSpec("mask", "bool", ("length",))),
    (TensorSpec("class", "int64", ()), TensorSpec("echo", "int64", ("length",))),
    limits={"length": 64},
    pads=True,
)
"""Items of 3 to 64 numbers; `echo` is them, and -1 where the mask is not set."""


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
        if signature.name in ("several", "lengths"):
            return self.obey_numbers(inputs)
        (batch,) = inputs
        if not signature.normalises:
            batch = batch[:, :, :1, :1].transpose(0, 2, 3, 1).astype(np.uint8)
        is_plain = (batch[:, :1, :1] == batch[:, -1:, -1:]).all(-1, keepdims=True)  # not warm-up's own
        return [self.obey(np.where(is_plain, batch, 0))]

    def obey_numbers(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Obeys the inputs of SEVERAL or of LENGTHS."""
        logits = self.obey(inputs[0][:, np.newaxis, np.newaxis, :3])
        classes = logits.argmax(axis=1)
        if logits.shape[1] < self.classes:
            return [classes]
        if len(inputs) == 2:
            return [classes, np.where(inputs[1], inputs[0], -1)]
        signs = np.where(inputs[2], -1, 1).astype(np.float16)
        return [classes, logits.max(axis=1, keepdims=True), inputs[1] * signs[:, None, None]]

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
            if failure is Failure.TOO_FEW_OUTPUTS:
                return logits[:, :-1]
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


def command_numbers(
    held: bool = False, failure: Failure = Failure.NONE, class_index: int = 0, length: int = 3
) -> Item:
    """The item of LENGTHS that commands this."""
    numbers = np.arange(length)
    numbers[:3] = colour(held, failure, class_index)
    return [numbers, np.ones(length, bool)]


def command_several(
    held: bool = False, failure: Failure = Failure.NONE, class_index: int = 0, negative: bool = False
) -> Item:
    """The item of SEVERAL that commands this."""
    matrix = np.full((2, 2), class_index, np.float16)
    return [np.array(colour(held, failure, class_index)), matrix, np.array(negative)]


def colour(held: bool, failure: Failure, class_index: int) -> tuple[int, int, int]:
    """Red, green and blue of a command."""
    return int(held) | failure << 1, class_index >> 8, class_index & 255
