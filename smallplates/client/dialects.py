"""Differences between the protocols that the clients speak; all other code is shared."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from smallplates.client import answers, calls, triton
from smallplates.client.answers import Answer
from smallplates.client.calls import Call, PredictOptions
from smallplates.client.results import Model, Prediction, Readiness

Protocol = Literal["native", "triton"]


@dataclass(frozen=True)
class Dialect:
    """Builds one protocol's requests and reads its answers; the readers raise ServingClientError."""

    predict: Callable[[bytes, float, PredictOptions], Call]
    """Builds a request from the image, the server's time limit in seconds, and the caller's options."""

    prediction: Callable[[Answer, int | None], Prediction]
    """Reads an answer; takes the `top_k` that was requested."""

    model_path: Callable[[str | None], str]
    """Returns the path that describes the model of this name; None: the default model."""

    model: Callable[[Answer], Model]
    ready_path: str
    readiness: Callable[[Answer], Readiness]


DIALECTS: dict[Protocol, Dialect] = {
    "native": Dialect(
        predict=lambda photo, _, options: calls.predict(photo, options),
        prediction=answers.prediction,
        model_path=lambda name: calls.of_model("/model", name),
        model=answers.model,
        ready_path="/health/ready",
        readiness=answers.readiness,
    ),
    "triton": Dialect(
        predict=triton.predict,
        prediction=triton.prediction,
        model_path=triton.config_path,
        model=triton.model,
        ready_path=triton.READY,
        readiness=triton.readiness,
    ),
}
