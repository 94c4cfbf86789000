"""Python client of the service: `Client`, `AsyncClient`, `python -m serving_client photo.jpg`.

    from serving_client import Client

    with Client("http://127.0.0.1:8000") as client:
        print(client.predict("photo.jpg").label)

Path of a call: `client.py` (for threads) runs `aio.py` (asyncio) on a thread of its own; `calls.py`
builds the request, `exchange.py` sends it and retries, `answers.py` reads the answer. With
`protocol="triton"`, `triton.py` builds and reads instead; `dialects.py` chooses. `tcp.py` asks the
service's TCP port. The package does not import `serving`.
"""

from serving_client.aio import AsyncClient
from serving_client.calls import PredictOptions, RequestOptions
from serving_client.client import Client
from serving_client.errors import (
    DeadlineExceededError,
    InvalidAnswerError,
    RequestRefusedError,
    ServerError,
    ServiceUnavailableError,
    ServingClientError,
    UnauthorizedError,
    UnreachableError,
    UnreadablePhotoError,
)
from serving_client.options import Options
from serving_client.photos import Photo
from serving_client.results import (
    BatchItem,
    Model,
    Prediction,
    QuestionAnswer,
    Readiness,
    Result,
    Sample,
    Score,
    Span,
    Timing,
)

__all__ = [
    "AsyncClient",
    "BatchItem",
    "Client",
    "DeadlineExceededError",
    "InvalidAnswerError",
    "Model",
    "Options",
    "Photo",
    "PredictOptions",
    "Prediction",
    "QuestionAnswer",
    "Readiness",
    "RequestOptions",
    "RequestRefusedError",
    "Result",
    "Sample",
    "Score",
    "ServerError",
    "ServiceUnavailableError",
    "ServingClientError",
    "Span",
    "Timing",
    "UnauthorizedError",
    "UnreachableError",
    "UnreadablePhotoError",
]
