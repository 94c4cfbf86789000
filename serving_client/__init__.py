"""A client of the food classifier: `Client`, `AsyncClient`, and `python -m serving_client photo.jpg`.

    from serving_client import Client

    with Client("http://127.0.0.1:8000") as client:
        print(client.predict("photo.jpg").label)

The path of a call: `client.py` (threads), which is `aio.py` (asyncio) on a thread of its own ->
`calls.py` makes the request -> `exchange.py` sends it, waits, tries again -> `answers.py` reads what
came. Where the protocol is Triton's, `triton.py` makes and reads both, see `dialects.py`. Nothing of
`serving` is needed.
"""

from serving_client.aio import AsyncClient
from serving_client.calls import PredictOptions
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
from serving_client.results import BatchItem, Model, Prediction, Readiness, Sample, Score, Timing

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
    "Readiness",
    "RequestRefusedError",
    "Sample",
    "Score",
    "ServerError",
    "ServiceUnavailableError",
    "ServingClientError",
    "Timing",
    "UnauthorizedError",
    "UnreachableError",
    "UnreadablePhotoError",
]
