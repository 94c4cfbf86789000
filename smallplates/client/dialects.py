"""The protocols that the clients speak: what the modules `native.py` and `triton.py` have in common."""

from typing import Literal, Protocol

from smallplates.client import native, triton
from smallplates.client.answers import Answer
from smallplates.client.calls import Call, PredictOptions
from smallplates.client.results import Model, Prediction

Name = Literal["native", "triton"]


class Dialect(Protocol):
    """Builds one protocol's requests and reads its answers."""

    READY_PATH: str
    NOT_READY: tuple[int, ...]  # statuses of READY_PATH, beside 200

    def predict(self, photo: bytes, timeout_s: float, options: PredictOptions, /) -> Call:
        """Builds the request of an image; the server may drop it after `timeout_s`."""

    def prediction(self, answer: Answer, top_k: int | None, /) -> Prediction:
        """Reads its answer; `top_k` is what was asked for."""

    def model_path(self, name: str | None, /) -> str:
        """Returns the path that describes the model of this name; None: the default model."""

    def model(self, answer: Answer, /) -> Model:
        """Reads the description."""


DIALECTS: dict[Name, Dialect] = {"native": native, "triton": triton}
