"""What differs between the protocols that the clients speak; the rest of the client is one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from serving_client import answers, calls, triton
from serving_client.answers import Answer
from serving_client.calls import Call, PredictOptions
from serving_client.results import Model, Prediction, Readiness

Protocol = Literal["native", "triton"]


@dataclass(frozen=True)
class Dialect:
    """How to ask one kind of server, and how to read it; the readers raise ServingClientError."""

    predict: Callable[[bytes, float, PredictOptions], Call]
    """Of a photo, the seconds that the server has for it, and the caller's options."""

    prediction: Callable[[Answer, int | None], Prediction]
    """Of the answer, and of the `top_k` that was asked."""

    model_path: str
    model: Callable[[Answer], Model]
    ready_path: str
    readiness: Callable[[Answer], Readiness]


DIALECTS: dict[Protocol, Dialect] = {
    "native": Dialect(
        predict=lambda photo, _, options: calls.predict(photo, **options),
        prediction=answers.prediction,
        model_path="/model",
        model=answers.model,
        ready_path="/health/ready",
        readiness=answers.readiness,
    ),
    "triton": Dialect(
        predict=triton.predict,
        prediction=triton.prediction,
        model_path=triton.CONFIG,
        model=triton.model,
        ready_path=triton.READY,
        readiness=triton.readiness,
    ),
}
