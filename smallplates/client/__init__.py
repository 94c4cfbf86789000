"""Python client of the service: `Client`, `AsyncClient`.

    from smallplates.client import Client

    with Client("http://127.0.0.1:8000") as client:
        print(client.predict("photo.jpg").label)

Path of a call: `client.py` (for threads) runs `aio.py` (asyncio) on a thread of its own; `native.py`
builds the request and reads the answer, `exchange.py` sends it and retries. With `protocol="triton"`,
`triton.py` builds and reads instead; `dialects.py` chooses. `tcp.py` asks the service's TCP port. The
package imports nothing of the service.
"""

from smallplates.client.aio import AsyncClient
from smallplates.client.calls import PredictOptions, RequestOptions
from smallplates.client.client import Client
from smallplates.client.errors import (
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
from smallplates.client.options import Options
from smallplates.client.photos import Photo
from smallplates.client.results import (
    BatchItem,
    Embeddings,
    Model,
    Prediction,
    QuestionAnswer,
    Rank,
    Ranking,
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
    "Embeddings",
    "InvalidAnswerError",
    "Model",
    "Options",
    "Photo",
    "PredictOptions",
    "Prediction",
    "QuestionAnswer",
    "Rank",
    "Ranking",
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
