"""Text classification: a text, or a pair of texts, in; its most probable classes out."""

import os
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from pydantic import BaseModel, Field
from tokenizers import Tokenizer

from serving.errors import ConfigurationError, InternalError, InvalidTextError, TextTooLongError
from serving.model import Model, TextPipeline
from serving.settings import Settings
from serving.tasks.base import Fields, Prepared, fields_of
from serving.tasks.classification import Classification
from serving.tensors import Signature, TensorSpec

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


class TextRequest(BaseModel):
    """A text, or a pair of texts, such as a premise and a hypothesis."""

    text: str = Field(min_length=1)
    text_pair: str | None = Field(default=None, min_length=1, description="The second text of a pair.")


class TextClassification(Classification):
    """Tokenises texts; softmax or sigmoid, and the best classes of the logits."""

    form, tensor_form = TOKENS, TENSOR
    request_schema = TextRequest.model_json_schema()
    request = fields_of(request_schema)
    list_fields = ("text", "text_pair")
    media_types = ("text/plain",)
    example_type = "text/plain"
    most_cheap_bytes = CHEAP_BYTES
    example = MappingProxyType({"text": "The soup was wonderful."})

    def __init__(self, model: Model, settings: Settings, signature: Signature) -> None:
        """`signature` is the one that requests become. Raises ConfigurationError."""
        pipeline = model.description.text_pipeline
        super().__init__(model.labels, pipeline.activation)
        self._inputs = signature.inputs
        self._most_tokens = pipeline.max_tokens
        self._tokenizer = load_tokenizer(model)
        if settings.long_text == "truncate":
            self._tokenizer.enable_truncation(pipeline.max_tokens, direction=pipeline.truncation_side)

    def hint(self, fields: Fields) -> bool:  # noqa: ARG002 the size has decided
        """Returns True: what is small is cheap."""
        return True

    def preprocess(self, fields: Fields, hint: object | None = None) -> Prepared:  # noqa: ARG002
        """Tokenises to an array [tokens] per input.

        Raises InvalidTextError, TextTooLongError, or InternalError where the tokeniser fails.
        """
        texts = [fields[name] for name in ("text", "text_pair") if name in fields]
        check(texts)
        try:
            encoding = self._tokenizer.encode(*texts)
        except BaseException as error:  # a panic of Rust code is no Exception, and would end a thread
            raise InternalError(f"the tokeniser failed: {error}"[:200]) from error
        count = len(encoding.ids)
        if count > self._most_tokens:
            raise TextTooLongError(
                f"the text has {count} tokens; at most {self._most_tokens} are accepted"
            )
        if not count:
            raise InvalidTextError("the text has no characters that the model knows")
        item = [np.array(getattr(encoding, COLUMNS[spec.name]), spec.dtype) for spec in self._inputs]
        return Prepared([item], truncated=bool(encoding.overflowing))


def check(texts: Sequence[str]) -> None:
    """Raises InvalidTextError for texts that are empty or no Unicode, or TextTooLongError."""
    size = 0
    for text in texts:
        try:
            size += len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidTextError("the text has half of a surrogate pair") from error
        if not text or text.isspace():
            raise InvalidTextError("the text is empty")
    if size > MAX_BYTES:
        raise TextTooLongError(f"the text has {size} bytes; at most {MAX_BYTES} are accepted")


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


def signatures(model: Model, graph: Signature) -> tuple[Signature, ...]:
    """Returns how the graph is called: with texts' tokens, padded, or with a client's own tensors.

    `graph` is how the backend reads it. Raises ConfigurationError.
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
    logits = next((each for each in graph.outputs if each.name == "logits"), graph.outputs[0])
    if logits.shape != (len(model.labels),):
        raise ConfigurationError(
            f"{name} cannot be served: {logits.name} has the shape {[*logits.shape]} behind the batch, "
            f"but there are {len(model.labels)} labels"
        )
    inputs = tuple(filled(spec, pipeline) for spec in graph.inputs)
    tokens = Signature(
        "tokens",
        tuple(replace(spec, shape=(LENGTH,)) for spec in inputs),
        (logits,),
        limits={LENGTH: pipeline.max_tokens},
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
