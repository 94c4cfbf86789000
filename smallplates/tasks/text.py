"""Base of text tasks: tokenises a request's texts and fills the graph's inputs."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from tokenizers import Encoding

from smallplates.errors import (
    ConfigurationError,
    InternalError,
    InvalidRequestError,
    InvalidTextError,
    RequestError,
    TextTooLongError,
)
from smallplates.models.description import TextPipeline
from smallplates.models.folder import Model
from smallplates.models.huggingface import Config
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import Array, Item, Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.tasks.base import Fields, Prepared, Task, result_or_error
from smallplates.tasks.tokenizer import ids_beyond, load_tokenizer, quick_tokenizer, text_pipeline

TOKENS, TENSOR = 0, 1
"""Indices of the signatures."""

MAX_BYTES = 256 * 1024
"""Maximum UTF-8 bytes of a request's texts, which take up to a quarter of a second to tokenise."""

MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Maximum UTF-8 bytes of all texts of a request."""

LARGE_BYTES = 32 * 1024
"""Size of a body from which its texts keep other texts waiting."""

HARMLESS_BYTES = 16 * 1024
"""Texts of this size have at most `MAX_BYTES` after normalisation: Unicode's makes them up to 11 times
as long."""

DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+[;,]", re.IGNORECASE)

INLINE_BYTES = 2048
"""Largest request, in bytes, to tokenise on the event loop; it takes about a millisecond."""

COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Name of a graph's input -> attribute of the tokenised text."""

IDS, MASK = "input_ids", "attention_mask"
LENGTH = "tokens"
"""Name of the varying axis."""

WINDOW, STRIDE = 384, 128
"""Tokens per window, and tokens shared by two windows; fewer if the model takes fewer."""

BYTES_PER_TOKEN = 4
"""Average UTF-8 length of a token; used only for estimates."""

MAX_WINDOWS = 64
"""Maximum number of windows in a request, about 15,000 tokens."""

CHARACTERS_PER_TOKEN = 250
"""A text that is cut anyway is first cut to so many characters per token that the model takes."""

SIDES = ("left", "right")
Truncate = Annotated[bool | None, Field(description="Cut long texts? By default: SERVING_LONG_TEXT.")]
Direction = Annotated[
    str | None, Field(description="The end of a long text that is cut: left or right.")
]
"""Types of the fields `truncate` and `truncation_direction`."""

Texts = Mapping[str, str]
"""A text or a pair of texts; the keys are for error messages."""

Span = tuple[int, int]
"""First token of a window and the one after its last, counted from the text's first token."""

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the service has its own threads


@dataclass(slots=True)
class Reading:
    """What a request says, before its texts are tokenised."""

    texts: Texts
    side: str | None  # end at which too many tokens are cut off; None: they are refused
    context: Any = None  # see `Prepared.context`
    is_cut: bool = False  # whether characters have been cut off
    cuts_first: bool = False  # whether of a pair only the first text is cut


class TextTask(Task):
    """Base class of tasks that tokenise a request's texts."""

    request_signature, tensor_signature = TOKENS, TENSOR
    media_types = ("text/plain",)
    example_type = "text/plain"
    inline_limit = INLINE_BYTES
    large_bytes = LARGE_BYTES
    most_bytes = MAX_REQUEST_BYTES
    prepares_together = True
    limits: Mapping[str, int] = MappingProxyType({"text_bytes": MAX_BYTES})

    reads_offsets = False
    """Whether the task needs the tokens' places in the text, which cost a third more time."""

    needed_texts = 2
    """How many texts of a pair must not be empty, from the first."""

    window: int | None = None
    """Maximum tokens per item if long texts are split into several; None if they are not split."""

    def __init__(self, *arguments: Any) -> None:
        """Reads the tokeniser. Raises ConfigurationError."""
        super().__init__(*arguments)
        signature = self._signatures[TOKENS]
        self._inputs = signature.inputs
        self.tokenizer = load_tokenizer(self._model)
        """Without truncation and padding."""

        self.quick_tokenizer = quick_tokenizer(self.tokenizer)
        """For texts in printable ASCII."""

        self._beyond = ids_beyond(self._model, self.tokenizer)

        self.max_tokens = signature.limits[LENGTH]
        """Maximum number of tokens in an item."""

        self._stride = min(self.max_tokens // 2, STRIDE)
        self._truncates = self._settings.long_text == "truncate"
        if self.window is None and not self._truncates:
            self.limits = {**self.limits, "tokens": self.max_tokens}

    @classmethod
    def from_export(cls, folder: Path, config: Config) -> dict[str, Any] | None:
        """Returns `text`, the preprocessing of texts; see `Task.from_export`."""
        return {"text": text_pipeline(folder, config)}

    @classmethod
    def plan(cls, model: Model, settings: Settings, *graph: Signature) -> tuple[Signature, ...]:
        """Returns the signatures for tokens, which may be padded, and for a client's own tensors.

        Raises ConfigurationError.
        """
        (network,), description = graph, model.description
        if not network.is_batched:
            note = network.batch_note
            raise ConfigurationError(f"{description.name} has no batch dimension: {note}")
        outputs = read_outputs(model, network)
        check_inputs(network.inputs, description.name)
        inputs = tuple(with_values(spec, description.text_pipeline) for spec in network.inputs)
        most = min(network.limits[axis] for axis in network.input_axes)
        tokens = Signature(
            "tokens",
            tuple(replace(spec, shape=(LENGTH,)) for spec in inputs),
            outputs,
            limits={LENGTH: min(most, cls.window or most)},
            pads=network.pads,
            batch_size=network.batch_size,
            batch_note=network.batch_note,
            checks_finite=True,
            failure_is_client_error=True,
        )
        return tokens, replace(network, inputs=inputs, pads=False)

    def likely_items(self, size: int) -> int:
        """Estimates the number of windows for a text of `size` bytes."""
        if self.window is None:
            return 1
        beyond = size / BYTES_PER_TOKEN - self.max_tokens
        return min(MAX_WINDOWS, 1 + max(0, math.ceil(beyond / (self.max_tokens - self._stride))))

    def check_all(self, requests: Sequence[Fields]) -> None:
        """Raises TextTooLongError if the texts of a request are too large together."""
        parts = [part for fields in requests for part in self.parts_of(fields)]
        check_bytes("all texts together have", self.bytes_of(parts), self.most_bytes)

    def parts_of(self, fields: Fields) -> list[tuple[str, int]]:
        """Returns a request's texts, as far as they are kept, and how often each counts."""
        most = CHARACTERS_PER_TOKEN * self.max_tokens if self.side_of(fields) else None
        texts = (fields.get(field.name) for field in self.request)
        return [(text[:most], 1) for text in texts if isinstance(text, str)]

    def bytes_of(self, parts: Sequence[tuple[str, int]]) -> int:
        """Returns the UTF-8 bytes of texts, each so many times, at most, after normalisation.

        Characters are normalised one by one, which is several times faster than whole texts.
        """
        size, counts = sum(times * size_of(text) for text, times in parts), Counter[str]()
        if size <= HARMLESS_BYTES or not (normalizer := self.tokenizer.normalizer):
            return size
        for text, times in parts:
            if not text.isascii():
                counts.update({each: times * count for each, count in Counter(text).items()})
        alone = size_of(normalizer.normalize_str("a"))
        for each in filter(str.isprintable, counts):  # not surrogates
            normalised = size_of(normalizer.normalize_str("a" + each)) - alone
            size += counts[each] * max(0, normalised - size_of(each))
        return size

    def preprocess(self, fields: Fields) -> Prepared:
        """Tokenises the request's texts to one item, an array [tokens] per input of the graph.

        Raises InvalidTextError, TextTooLongError, or InternalError if the tokeniser fails.
        """
        reading = self.read(fields)
        (encoding,) = self.encode([reading.texts])
        return self.prepare_item(reading, encoding)

    def preprocess_all(self, requests: Sequence[Fields]) -> list[Prepared | RequestError]:
        """Tokenises the texts of many inputs as one batch; see `Task.preprocess_all`."""
        if not self.prepares_together:
            return super().preprocess_all(requests)
        readings = [result_or_error(self.read, fields) for fields in requests]
        valid = [reading.texts for reading in readings if isinstance(reading, Reading)]
        encodings = self.encode(valid)
        return [
            result_or_error(self.prepare_item, reading, next(encodings))
            if isinstance(reading, Reading)
            else reading
            for reading in readings
        ]

    def read(self, fields: Fields) -> Reading:
        """Returns the request's texts, which are all of its declared fields. Raises RequestError."""
        names = (field.name for field in self.request)
        texts = {name: fields[name] for name in names if name in fields}
        return self.to_reading(texts, self.side_of(fields))

    def side_of(self, fields: Fields) -> str | None:
        """Returns where long texts are cut by the fields `truncate` and `truncation_direction`.

        None means that they are refused. Raises InvalidRequestError for an unknown direction.
        """
        truncate, side = fields.get("truncate"), fields.get("truncation_direction")
        side = side or self._model.description.text_pipeline.truncation_side
        if side.lower() not in SIDES:
            raise InvalidRequestError(f"truncation_direction must be left or right, not {side[:40]!r}")
        return side.lower() if (self._truncates if truncate is None else truncate) else None

    def to_reading(
        self, texts: Texts, side: str | None, context: Any = None, prompt: str = ""
    ) -> Reading:
        """Checks texts, and cuts off what is far more than the model takes; `prompt` goes in front.

        Raises InvalidTextError and TextTooLongError.
        """
        most = CHARACTERS_PER_TOKEN * self.max_tokens
        kept = {**texts}
        if side:
            kept = {
                name: text[-most:] if side == "left" else text[:most] for name, text in texts.items()
            }
        if check(kept, self.needed_texts) > HARMLESS_BYTES:
            size = self.bytes_of([(text, 1) for text in kept.values()])
            check_bytes(f"after normalisation, {' and '.join(kept)} {has(kept)}", size, MAX_BYTES)
        with_prompt = {name: prompt + text for name, text in kept.items()}
        return Reading(with_prompt, side, context, is_cut=kept != texts)

    def encode(
        self, batch: Sequence[Texts], special: bool = True, offsets: bool = False
    ) -> Iterator[Encoding]:
        """Tokenises texts or pairs of texts, by default with special tokens around them.

        Tokens know their places in the text if `offsets`, or if the task reads them. Large texts are
        tokenised one by one, because a token takes some 250 bytes. Raises InternalError if the tokeniser
        fails.
        """
        values = [tuple(texts.values()) for texts in batch]
        inputs = [text if len(text) > 1 else text[0] for text in values]
        is_plain = all(text.isascii() and text.isprintable() for texts in values for text in texts)
        tokenizer = self.quick_tokenizer if is_plain else self.tokenizer
        with_offsets = offsets or self.reads_offsets
        encode = tokenizer.encode_batch if with_offsets else tokenizer.encode_batch_fast
        size = sum(len(text) for texts in values for text in texts)
        step = 1 if size > MAX_BYTES else len(inputs) or 1
        for first in range(0, len(inputs), step):
            try:
                encodings = encode(inputs[first : first + step], add_special_tokens=special)
            except BaseException as error:  # a panic in Rust is no Exception, and would end the thread
                raise InternalError(f"the tokeniser failed: {error}"[:200]) from error
            yield from encodings

    def prepare_item(self, reading: Reading, encoding: Encoding) -> Prepared:
        """Returns the item of a text or a pair, cut to the longest that the model takes.

        Raises InvalidTextError and TextTooLongError.
        """
        self.check_known([*reading.texts][: self.needed_texts], encoding)
        kept = self.kept(reading, encoding)
        arrays = [array[kept] for array in self.arrays(encoding)]
        is_cut = reading.is_cut or len(encoding) > self.max_tokens
        return Prepared([arrays], reading.context, truncated=is_cut, tokens=len(arrays[0]))

    def prepare_pairs(
        self, readings: Sequence[Reading], context: Any, places: Iterable[int]
    ) -> Prepared:
        """Returns an item for each pair; `places` names a pair once for each text that it stands for."""
        parts = [*map(self.prepare_item, readings, self.encode([each.texts for each in readings]))]
        is_cut, tokens = any(part.truncated for part in parts), sum(parts[at].tokens for at in places)
        return Prepared([item for part in parts for item in part.items], context, is_cut, tokens)

    def check_known(self, names: Iterable[str], encoding: Encoding) -> None:
        """Raises InvalidTextError for a text without tokens, or with one that the network lacks."""
        present = set(encoding.sequence_ids)
        for number, name in enumerate(names):
            if number not in present:
                raise InvalidTextError(f"the {name} has no characters that the model knows")
        if self._beyond and (beyond := self._beyond.intersection(encoding.ids)):
            token = str(self.tokenizer.id_to_token(min(beyond)))
            raise InvalidTextError(f"the network lacks the token {token[:40]!r} of the tokenizer")

    def kept(self, reading: Reading, encoding: Encoding) -> Array | slice:
        """Returns which tokens the model gets: all, or if they are too many, bool [tokens].

        Raises TextTooLongError.
        """
        count = len(encoding)
        if count <= self.max_tokens:
            return slice(None)
        others = sum(number != 0 for number in encoding.sequence_ids)
        if reading.side is None or (reading.cuts_first and others >= self.max_tokens):
            raise TextTooLongError(
                f"the {' and '.join(reading.texts)} {has(reading.texts)} {count} tokens; at most "
                f"{self.max_tokens} are accepted"
            )
        return kept_tokens(encoding, self.max_tokens, reading.side, reading.cuts_first)

    def arrays(self, encoding: Encoding) -> list[Array]:
        """Returns the graph's inputs, each [tokens]."""
        count = len(encoding)
        return [
            np.ones(count, spec.dtype)  # nothing is padding
            if spec.name == MASK
            else np.array(getattr(encoding, COLUMNS[spec.name]), spec.dtype)
            for spec in self._inputs
        ]

    def windows(self, encoding: Encoding, names: Sequence[str], stride: int) -> tuple[slice, list[Span]]:
        """Splits the last text of an encoding into windows that share `stride` tokens.

        `names` of the texts are for messages. Returns where the last text's tokens are, and its windows;
        a text that fits has only one. Raises TextTooLongError.
        """
        sequences = np.array(encoding.sequence_ids, float)  # NaN for special tokens
        places = np.flatnonzero(sequences == len(names) - 1)
        part = slice(int(places[0]), int(places[-1]) + 1)
        count = part.stop - part.start
        room = self.max_tokens - (len(sequences) - count)
        if count <= room:
            return part, [(0, count)]
        if room <= stride:
            before = int((sequences == 0).sum())
            raise TextTooLongError(
                f"the {names[0]} has {before} tokens; at most {room + before - stride - 1} are "
                f"accepted for a {names[-1]} that does not fit into one window of {self.max_tokens}"
            )
        step = room - stride
        starts = range(0, count - room + step, step)
        if len(starts) > MAX_WINDOWS:
            raise TextTooLongError(
                f"the {names[-1]} makes {len(starts)} windows of {self.max_tokens} tokens; "
                f"at most {MAX_WINDOWS} are accepted"
            )
        spans = [(start, min(start + room, count)) for start in starts]
        if self._model.description.text_pipeline.truncation_side == "left":
            spans = [(count - end, count - start) for start, end in spans]
        return part, spans

    def items(self, encoding: Encoding, part: slice, spans: Sequence[Span]) -> list[Item]:
        """Returns an item per window: the window's tokens between those that surround the text."""
        arrays, first = self.arrays(encoding), part.start
        return [
            [
                np.concatenate((array[:first], array[first + start : first + end], array[part.stop :]))
                for array in arrays
            ]
            for start, end in spans
        ]


def kept_tokens(encoding: Encoding, most: int, side: str, first_only: bool = False) -> Array:
    """Returns whether each token is kept, bool [tokens], if an encoding is cut to `most` of them.

    Special tokens are kept. Of a pair, only the first text is cut, or as by transformers the longer one
    first.
    """
    sequences = np.array(encoding.sequence_ids, float)  # NaN for special tokens
    kept: Array = np.isnan(sequences)
    places = [np.flatnonzero(sequences == number) for number in range(encoding.n_sequences)]
    room = max(0, most - int(kept.sum()))
    shorter = min(room // 2, *map(len, places)) if len(places) > 1 else 0
    shares = [room - shorter, shorter]
    if first_only:
        shares = [room - len(places[1]), len(places[1])]
    elif len(places[0]) <= len(places[-1]) and len(places) > 1:
        shares.reverse()
    for place, share in zip(places, shares, strict=False):
        kept[place[max(0, len(place) - share) :] if side == "left" else place[:share]] = True
    return kept


def names_of(field: str, value: Sequence[str] | str, most: int) -> Sequence[str]:
    """Returns the names in a field, which may be a list or a text with commas between them.

    Raises InvalidRequestError for more than `most`.
    """
    count = value.count(",") + 1 if isinstance(value, str) else len(value)
    if count > most:
        raise InvalidRequestError(f"{field} may have up to {most} elements, not {count}")
    if isinstance(value, str):
        return [name for part in value.split(",") if (name := part.strip())]
    return value


def check(texts: Texts, needed: int = 1) -> int:
    """Returns the number of bytes of texts.

    Raises InvalidTextError for invalid Unicode, for a file instead of a text, and if one of the first
    `needed` texts is empty. Also raises TextTooLongError.
    """
    size = 0
    for number, (name, text) in enumerate(texts.items()):
        try:
            size += len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidTextError(f"the {name} contains an unpaired UTF-16 surrogate") from error
        if number < needed and (not text or text.isspace()):
            raise InvalidTextError(f"the {name} is empty")
        if DATA_URL.match(text):
            raise InvalidTextError(f"the {name} is a data: URL, and the model takes only texts")
    check_bytes(f"{' and '.join(texts)} {has(texts)}", size, MAX_BYTES)
    return size


def check_bytes(subject: str, size: int, most: int) -> None:
    """Raises TextTooLongError for more than `most` bytes; `subject` ends with a verb."""
    if size > most:
        raise TextTooLongError(f"{subject} {size} bytes; at most {most} are accepted")


def size_of(text: str) -> int:
    """Returns the size of a text in UTF-8, also of one that is not valid Unicode."""
    return len(text.encode(errors="surrogatepass"))


def has(texts: Texts) -> str:
    """Returns the verb for a message about texts."""
    return "has" if len(texts) == 1 else "together have"


def check_inputs(inputs: Sequence[TensorSpec], name: str) -> None:
    """Raises ConfigurationError if a tokeniser cannot fill a graph's inputs; `name` is the model's."""
    for spec in inputs:
        if spec.name not in COLUMNS:
            raise ConfigurationError(
                f"{name} cannot be served: the graph's input {spec.name} is not one of "
                f"{', '.join(COLUMNS)}; `smallplates export transformers` writes a graph with only these"
            )
        if len(spec.shape) != 1 or not spec.varies:
            raise ConfigurationError(
                f"{name} cannot be served: {spec.name} has the shape {[*spec.shape]} after the batch "
                "dimension; export the graph with one variable axis, for the tokens"
            )


def read_outputs(model: Model, graph: Signature) -> tuple[TensorSpec, ...]:
    """Returns the graph's outputs that the task's row names, in its order; `token` becomes `tokens`.

    If the row has a single output, it may have another name and is then the graph's first. Raises
    ConfigurationError.
    """
    row = kind_of(model.description.task).outputs
    specs = {spec.name: spec for spec in graph.outputs}
    if len(row) == 1:
        specs.setdefault(next(iter(row)), graph.outputs[0])
    known, outputs = {"token": LENGTH, "label": len(model.labels), "score": 1}, []
    for name, axes in row.items():
        shape = specs[name].shape if name in specs else ()
        sizes = tuple(LENGTH if isinstance(size, str) else size for size in shape)
        if len(sizes) != len(axes) or sizes != tuple(map(known.get, axes, sizes)):
            needed = [f"{known[axis]} labels" if axis == "label" else axis for axis in axes]
            has = "; ".join(f"{spec.name} {[*spec.shape]}" for spec in graph.outputs)
            raise ConfigurationError(
                f"{model.description.name} cannot be served: the graph needs an output {name} "
                f"[{', '.join(needed)}] after the batch dimension; it has {has}"
            )
        outputs.append(replace(specs[name], shape=sizes))
    return tuple(outputs)


def with_values(spec: TensorSpec, pipeline: TextPipeline) -> TensorSpec:
    """Returns an input's spec with its values for padding and for warm-up."""
    padding = pipeline.pad_token_id or 0 if spec.name == IDS else 0
    return replace(spec, padding=padding, example=int(spec.name in (IDS, MASK) and padding != 1))
