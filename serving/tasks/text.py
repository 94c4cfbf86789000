"""Texts: what tasks about them share, from the request's texts to tokens, and how graphs take these."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from tokenizers import Encoding, Tokenizer

from serving.description import TextPipeline
from serving.errors import ConfigurationError, InternalError, InvalidTextError, TextTooLongError
from serving.model import Model
from serving.tasks.base import Fields, Task
from serving.tensors import Array, Signature, TensorSpec

TOKENS, TENSOR = 0, 1
"""Places among `signatures`."""

MAX_BYTES = 256 * 1024
"""Of the texts of a request in UTF-8: tokenising them takes a quarter of a second at most."""

CHEAP_BYTES = 2048
"""Of a request: tokenising it takes a millisecond."""

COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Attributes of a tokenised text, by the names that graphs have for them."""

IDS, MASK = "input_ids", "attention_mask"
LENGTH = "tokens"
"""Name of the axis that varies."""

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the service has its own threads


class TextTask(Task):
    """Tokenises a request's texts."""

    form, tensor_form = TOKENS, TENSOR
    most_cheap_bytes = CHEAP_BYTES
    limits: Mapping[str, int] = MappingProxyType({"text_bytes": MAX_BYTES})

    def __init__(self, model: Model, signature: Signature) -> None:
        """`signature` is the one that requests become. Raises ConfigurationError."""
        self._inputs = signature.inputs
        self._tokenizer = load_tokenizer(model)

    def hint(self, fields: Fields) -> bool:  # noqa: ARG002 the size has decided
        """Returns True: what is small is cheap."""
        return True

    def encode(self, texts: Mapping[str, str]) -> Encoding:
        """Tokenises a text or a pair; the keys are for messages.

        Raises InvalidTextError, TextTooLongError, or InternalError where the tokeniser fails.
        """
        check(texts)
        text, *pair = texts.values()
        try:
            return self._tokenizer.encode(text, pair[0] if pair else None)
        except BaseException as error:  # a panic of Rust code is no Exception, and would end a thread
            raise InternalError(f"the tokeniser failed: {error}"[:200]) from error

    def arrays(self, encoding: Encoding) -> list[Array]:
        """Returns the graph's inputs, each [tokens]."""
        return [np.array(getattr(encoding, COLUMNS[spec.name]), spec.dtype) for spec in self._inputs]


def check(texts: Mapping[str, str]) -> None:
    """Raises InvalidTextError for texts that are empty or no Unicode, or TextTooLongError."""
    size = 0
    for name, text in texts.items():
        try:
            size += len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidTextError(f"the {name} contains an unpaired UTF-16 surrogate") from error
        if not text or text.isspace():
            raise InvalidTextError(f"the {name} is empty")
    if size > MAX_BYTES:
        has = "has" if len(texts) == 1 else "together have"
        raise TextTooLongError(
            f"{' and '.join(texts)} {has} {size} bytes; at most {MAX_BYTES} are accepted"
        )


def load_tokenizer(model: Model) -> Tokenizer:
    """Returns the tokeniser, which neither truncates nor pads. Raises ConfigurationError."""
    path = model.tokenizer()
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no type of its own
        raise ConfigurationError(f"{path} cannot be read as a tokeniser: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def signatures(
    model: Model, graph: Signature, outputs: Sequence[TensorSpec], most_tokens: int
) -> tuple[Signature, ...]:
    """Returns how the graph is called: with texts' tokens, padded, or with a client's own tensors.

    `graph` is how the backend reads it, `outputs` are what it answers to tokens, at most as many as
    `most_tokens`. Raises ConfigurationError.
    """
    pipeline, name = model.description.text_pipeline, model.description.name
    for spec in graph.inputs:
        if spec.name not in COLUMNS:
            raise ConfigurationError(
                f"{name} cannot be served: the graph's input {spec.name} is none of {', '.join(COLUMNS)}"
            )
        if len(spec.shape) != 1 or not spec.varies:
            raise ConfigurationError(
                f"{name} cannot be served: {spec.name} has the shape {[*spec.shape]} behind the batch; "
                "export the graph with one axis that varies, for the tokens"
            )
    inputs = tuple(filled(spec, pipeline) for spec in graph.inputs)
    tokens = Signature(
        "tokens",
        tuple(replace(spec, shape=(LENGTH,)) for spec in inputs),
        tuple(outputs),
        limits={LENGTH: most_tokens},
        pads=pipeline.pad_token_id is not None and MASK in (spec.name for spec in inputs),
        batch_size=graph.batch_size,
        checks_finite=True,
    )
    limits = dict.fromkeys(graph.limits, pipeline.max_tokens)
    return tokens, replace(graph, inputs=inputs, limits=limits)


def filled(spec: TensorSpec, pipeline: TextPipeline) -> TensorSpec:
    """Returns an input with the values of padding, and of a text at warm-up."""
    padding = pipeline.pad_token_id if spec.name == IDS else 0
    return replace(spec, padding=padding or 0, example=int(spec.name in (IDS, MASK)))
