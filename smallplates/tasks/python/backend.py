"""Backend for Python tasks: the worker imports the class named in model.json and calls it.

Requests and answers are JSON as bytes; trailing spaces pad a batch. Web processes never import the
class; they get its types as JSON schemas from the worker's report.
"""

import json
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from enum import IntEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from smallplates.engine.backend import BackendInfo
from smallplates.errors import ConfigurationError, in_words, summary
from smallplates.logging import logger
from smallplates.models.folder import Model
from smallplates.models.tensors import Array, Signature
from smallplates.settings import Settings
from smallplates.tasks.python.task import PythonTask
from smallplates.worker import batch_sizes, cuda_driver
from smallplates.worker.device_errors import translate_errors

NOT_NUMBERS = re.compile(rb"null|[:\[,]-?(?:NaN|Infinity)")
"""Text that pydantic may write for a number that is not finite."""

MAX_TEXT = 1000
"""Maximum number of characters in a refusal's reason."""

MAX_PROBLEMS = 20
"""If a request has more problems, they are only counted: a hostile request has millions."""

MAX_SCHEMA = 16 * 1024
"""Maximum bytes of a JSON schema, which must fit into messages between the processes."""


class Status(IntEnum):
    """Meaning of the bytes of an answer."""

    ANSWER = 0  # JSON of the declared type
    REFUSED = 1  # text of a ValueError: 400
    NOT_OF_TYPE = 2  # why the request is not of the declared type: 422
    NOT_JSON = 3  # why the request is not JSON: 400


Result = tuple[Status, bytes]


class TaskError(Exception):
    """The class violates its contract; the message says how."""


class PythonBackend:
    """Implements `smallplates.engine.backend.Backend` and `DeclaredBackend` with a user's class."""

    def __init__(self) -> None:
        self._task: Any = None
        self._on_gpu = False
        self._warming_up = True
        self.example = b""
        """Request for warm-up, in JSON; if it is empty, warm-up measures nothing."""

        self.batch_cap = 0
        self.schemas: dict[str, Any] = {}

    def load(self, model: Model, settings: Settings, scratch: Path | None = None) -> BackendInfo:
        """Checks the digests of the model's files, then imports and loads the class.

        The device is a GPU only if the setting is `cuda`; `auto` means the CPU. Raises
        ConfigurationError, and whatever the class raises.
        """
        description, device = model.description, "cpu"
        if settings.device == "cuda":
            index = (settings.devices or [0])[0]
            cuda_driver.total_memory(index)
            device, self._on_gpu = f"cuda:{index}", True
        for relative in description.files:
            model.check_file(relative)
        os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads))
        declared = import_class(description.task, model.folder)
        self._read_declarations(declared, settings)
        self._task = declared()
        self._preprocess = getattr(self._task, "preprocess", lambda request: request)
        self._postprocess = getattr(self._task, "postprocess", lambda output: output)
        self._task.load(model.folder / description.version, device)
        name = f"python {platform.python_version()} {description.task}"
        return BackendInfo(name, device, "python", "-", "the task itself decides")

    def _read_declarations(self, declared: Any, settings: Settings) -> None:
        """Reads the class's types, example and largest batch. Raises ConfigurationError."""
        self._request, request = declared_type(declared, "Request", "validation")
        self._answer, answer = declared_type(declared, "Answer", "serialization")
        self.schemas = {"request": request, "answer": answer}
        if (example := getattr(declared, "example", None)) is not None:
            try:
                valid = self._request.validate_python(example)
            except ValidationError as error:
                raise ConfigurationError(
                    f"the example is not a valid Request: {in_words(error)}"
                ) from error
            self.example = self._request.dump_json(valid, by_alias=True)
            if len(self.example) <= MAX_SCHEMA:
                self.schemas["example"] = json.loads(self.example)
        most = getattr(declared, "max_batch_size", None)
        if most is not None and (not isinstance(most, int) or not 1 <= most <= batch_sizes.LARGEST):
            raise ConfigurationError(
                f"max_batch_size is {most!r}; it must be a whole number from 1 to {batch_sizes.LARGEST}"
            )
        if most or not self.example:
            device = "cuda" if self._on_gpu else "cpu"
            allowed = batch_sizes.largest_batch(settings, device, is_class=most is not None)
            self.batch_cap = min(most or allowed, allowed)

    def infer(self, signature: Signature, inputs: Sequence[Array]) -> Sequence[Array]:
        """Computes a batch; returns a status and an answer for each request, see `PythonRequests.plan`.

        A refused request does not affect the others. All other exceptions are raised; the engine then
        tries each request alone.
        """
        requests: Any = inputs[0]
        if self._warming_up:
            requests = [self.example] * len(requests)
        with translate_errors() if self._on_gpu else nullcontext():
            results = self._results(requests)
        most = signature.limits["answer_bytes"]
        for status, text in results:
            if status is not Status.ANSWER and self._warming_up and self.example:
                raise TaskError(f"the example is refused: {text.decode()}")
            if status is Status.ANSWER and len(text) > most:
                raise TaskError(f"an answer has {len(text)} bytes; the limit answer_bytes is {most}")
        width = min(most, max(len(text) for _, text in results))
        answers = b"".join(text[:width].ljust(width) for _, text in results)
        statuses = np.array([status for status, _ in results], np.uint8)
        return statuses, np.frombuffer(answers, np.uint8).reshape(len(results), width)

    def _results(self, requests: Iterable[Array | bytes]) -> list[Result]:
        """Returns the result of each request; requests that are not refused are computed together."""
        results: dict[int, Result] = {}
        items: dict[int, Any] = {}
        for place, data in enumerate(requests):
            try:
                request = self._request.validate_json(bytes(data))
            except ValidationError as error:
                results[place] = invalid(error)
                continue
            try:
                items[place] = self._preprocess(request)
            except ValueError as error:
                results[place] = refusal(error)
        if items:
            results |= self._compute(items)
        return [results[place] for place in sorted(results)]

    def _compute(self, items: dict[int, Any]) -> dict[int, Result]:
        """Returns the result of each item. A ValueError from `infer` refuses a single item."""
        try:
            outputs = self._task.infer(list(items.values()))
            results = list(outputs) if is_list(outputs) else []  # of a generator, computes
        except ValueError as error:
            if len(items) > 1:
                raise
            return dict.fromkeys(items, refusal(error))
        if len(results) != len(items):
            kind = type(outputs).__name__
            raise TaskError(
                f"infer returned {len(results)} outputs ({kind}) for {len(items)} items; it must return "
                "a list with one for each"
            )
        return {place: self._finish(output) for place, output in zip(items, results, strict=True)}

    def _finish(self, output: Any) -> Result:
        """Returns the result for one output."""
        try:
            answer = self._postprocess(output)
        except ValueError as error:
            return refusal(error)
        try:
            valid = self._answer.validate_python(answer)
            text = self._answer.dump_json(valid, by_alias=True, fallback=plain)
        except ValueError as error:
            raise TaskError(f"the answer is not of the type Answer: {words(error)}") from error
        if NOT_NUMBERS.search(text) and not is_finite(self._answer.dump_python(valid)):
            return Status.REFUSED, b"the answer has a number that is not finite: JSON has no form for it"
        return Status.ANSWER, text

    def trim(self) -> None:
        """Ends warm-up: from now on `infer` computes its requests instead of the example."""
        self._warming_up = False

    def close(self) -> None:
        """Drops the class's instance."""
        self._task = None


def is_list(outputs: Any) -> bool:
    """Returns whether iterating over outputs yields one for each item, in the items' order.

    Of a dict or a DataFrame it yields the names of columns, and of a text its characters.
    """
    is_ordered = isinstance(outputs, Sequence | Iterator) or hasattr(outputs, "tolist")
    is_one = isinstance(outputs, str | bytes | bytearray | memoryview) or hasattr(outputs, "_fields")
    return is_ordered and isinstance(outputs, Iterable) and not is_one


def plain(value: Any) -> Any:
    """Returns an array or a tensor as Python's own lists and numbers. Raises ValueError for others."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise ValueError(f"{type(value).__name__} has no form in JSON")


def is_finite(value: Any) -> bool:
    """Returns whether a value dumped by pydantic contains no infinity and no NaN."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def import_class(name: str, folder: Path) -> Any:
    """Returns the class `module:Class`, imported from Python's usual path. Raises ConfigurationError.

    Nothing is imported from the model folder, `folder`: a source of data must not be a source of code.
    """
    module, _, attribute = name.partition(":")
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").replace("/", ".")
        raise ConfigurationError(f"{name!r} names a file; write {dotted}:{attribute or 'Class'}")
    if not (module and attribute):
        raise ConfigurationError(f"{name!r} is not a class in the form module:Class")
    try:
        for end, letter in enumerate(f"{module}."):
            if letter == "." and not is_outside(module[:end], folder):
                raise ConfigurationError(
                    f"{module} is in the model's folder, from which no code is imported: move it"
                )
        code = import_module(module)
        declared = getattr(code, attribute, None)
    except (Exception, SystemExit) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{module} cannot be imported: {summary(error)}") from error
    if not isinstance(declared, type):
        own = [each for each, value in vars(code).items() if is_own_class(value, code.__name__)]
        found = f"; its classes are {', '.join(own)}" if own else ""
        raise ConfigurationError(f"{module} has no class {attribute!r}{found}")
    for wanted in ("Request", "Answer", "load", "infer"):
        if getattr(declared, wanted, None) in (None, getattr(PythonTask, wanted, None)):
            raise ConfigurationError(f"{name} has no {wanted}")
    return declared


def is_own_class(value: Any, module: str) -> bool:
    """Returns whether a value is a class that a module defines itself, and does not only import."""
    return isinstance(value, type) and value.__module__ == module


def is_outside(module: str, folder: Path) -> bool:
    """Returns whether a module is outside of a folder; imports its parents. Raises ImportError."""
    spec = find_spec(module)
    if spec is None:
        raise ModuleNotFoundError(f"there is no module {module}, neither on PYTHONPATH nor installed")
    files = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location else [])]
    return not any(Path(file).resolve().is_relative_to(folder.resolve()) for file in files if file)


def declared_type(
    declared: Any, name: str, mode: Literal["validation", "serialization"]
) -> tuple[TypeAdapter[Any], Any]:
    """Returns the adapter for one of a class's types, and its JSON schema. Raises ConfigurationError."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(getattr(declared, name))
        schema: Any = adapter.json_schema(mode=mode)
    except Exception as error:  # pydantic's own, and those of the type
        raise ConfigurationError(
            f"{name} is not a type that pydantic supports: {summary(error)}"
        ) from error
    if len(json.dumps(schema)) > MAX_SCHEMA:
        logger().warning("a JSON schema is too large to be shown", type=name, limit=MAX_SCHEMA)
        schema = {}  # anything
    return adapter, schema


def invalid(error: ValidationError) -> Result:
    """Returns the refusal of a request that is not JSON or not of the declared type."""
    if (count := error.error_count()) > MAX_PROBLEMS:
        return Status.NOT_OF_TYPE, f"{count} values are not of the declared type".encode()
    no_json = error.errors(include_input=False)[0]["type"] == "json_invalid"
    return Status.NOT_JSON if no_json else Status.NOT_OF_TYPE, refusal(error)[1]


def refusal(error: ValueError) -> Result:
    """Returns the refusal of a request by the class itself."""
    return Status.REFUSED, words(error)[:MAX_TEXT].encode(errors="replace")


def words(error: ValueError) -> str:
    """Returns an error's text on one line; leaves out the values in pydantic's errors."""
    text = in_words(error) if isinstance(error, ValidationError) else str(error)
    return " ".join(text.split()) or type(error).__name__
