"""Base class of a Python task; light, because `serving` itself imports it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar


class PythonTask:
    """Model in Python of one's own, named in model.json as `"task": "my_module:MyTask"`.

    Everything here runs in a worker, on one thread; each worker has an instance of its own. A class with
    these methods need not be a subclass. `load` and `infer` must be there, `Request` and `Answer`, too.
    """

    Request: ClassVar[Any]
    """Type of a request's JSON, of those that pydantic's TypeAdapter takes: a BaseModel, a dataclass."""

    Answer: ClassVar[Any]
    """Type of the answer's JSON."""

    example: ClassVar[Any] = None
    """A Request, or a dict of its fields, with which warm-up measures the batch sizes."""

    max_batch_size: ClassVar[int | None] = None
    """Largest batch; None: as warm-up measures it, or without an example as the settings allow."""

    def load(self, folder: Path, device: str) -> None:
        """Loads what `infer` needs from the version's folder; `device` is `cpu` or such as `cuda:0`."""
        raise NotImplementedError

    def preprocess(self, request: Any) -> Any:
        """Returns the item that `infer` takes. A ValueError is the client's 400, with its text."""
        return request

    def infer(self, items: list[Any]) -> Sequence[Any]:
        """Computes a batch; returns as many outputs, in the same order."""
        raise NotImplementedError

    def postprocess(self, output: Any) -> Any:
        """Returns the Answer, or a dict of its fields. A ValueError is the client's 400, as above."""
        return output
