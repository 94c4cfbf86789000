"""Base class of Python tasks; imports little, because a user's module imports it first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar


class PythonTask:
    """A model written in Python, named in model.json as `"task": "my_module:MyTask"`.

    Its methods run on a single thread of a worker; each worker has its own instance. The class need not
    be a subclass of this one. `Request`, `Answer`, `load` and `infer` are required.
    """

    Request: ClassVar[Any]
    """Type of a request's JSON: a BaseModel, a dataclass or another type for pydantic's TypeAdapter."""

    Answer: ClassVar[Any]
    """Type of the answer's JSON."""

    example: ClassVar[Any] = None
    """A Request, or a dict of its fields, used by warm-up to measure batch sizes."""

    max_batch_size: ClassVar[int | None] = None
    """Largest batch; None means as measured by warm-up or, without an example, as the settings allow."""

    def load(self, folder: Path, device: str) -> None:
        """Loads what `infer` needs from the version's folder; `device` is `cpu` or, say, `cuda:0`."""
        raise NotImplementedError

    def preprocess(self, request: Any) -> Any:
        """Returns an item for `infer`. A ValueError becomes a 400 for the client, with its text."""
        return request

    def infer(self, items: list[Any]) -> Sequence[Any]:
        """Computes a batch; returns one output per item, in the same order."""
        raise NotImplementedError

    def postprocess(self, output: Any) -> Any:
        """Returns the Answer, or a dict of its fields. A ValueError becomes a 400, as above."""
        return output
