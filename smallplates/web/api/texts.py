"""What protocols for texts share: texts that may be token ids, inputs without nulls, vectors."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from smallplates.errors import InvalidRequestError
from smallplates.web.api.catalog import CatalogEntry
from smallplates.web.api.pipeline import Call, Respond
from smallplates.web.inference.served_model import Answer, Input


class TextsOnly(msgspec.Struct, kw_only=True):
    """What a body with texts, or an object with one, may not have: no vector would contain it."""

    image: None = None
    images: None = None
    audio: None = None
    video: None = None
    messages: None = None


class Passage(TextsOnly):
    """A text as an object."""

    text: str


Texts = str | list[str | int | list[int] | Passage]
"""A text or several, each also as token ids, or in a list as an object."""

MAX_TEXTS = 2048
QUERY, PASSAGE = ("query",), ("passage", "document")
PROMPTS = {
    **dict.fromkeys(("query", "search_query", "retrieval.query"), QUERY),
    **dict.fromkeys(("passage", "document", "search_document", "retrieval.passage"), PASSAGE),
}
"""`input_type` or `task` -> the prompts that it stands for besides the one of its own name; a model
without them has one form for all texts."""

CUTS: dict[Any, dict[str, Any]] = {
    False: {"truncate": False},
    True: {"truncate": True},
    "NONE": {"truncate": False},
    "START": {"truncate": True, "truncation_direction": "left"},
    "END": {"truncate": True, "truncation_direction": "right"},
}
"""`truncate` -> the fields of the task."""


REFUSAL = (
    "send texts, not token ids: those of another tokeniser, such as OpenAI's, mean other words here. "
    "LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False). If the ids are of this model's own "
    "tokeniser, set SERVING_ACCEPT_TOKEN_IDS=true"
)


def input_of(size: int, **fields: Any) -> Input:
    """Returns an input of a body of `size` bytes, with those fields that are not null."""
    return Input(size, partial(dict, {name: each for name, each in fields.items() if each is not None}))


def texts_of(texts: Texts, entry: CatalogEntry, most: int) -> list[str]:
    """Returns up to `most` texts; token ids become texts if the settings accept them.

    Raises InvalidRequestError.
    """
    is_single = isinstance(texts, str) or (bool(texts) and isinstance(texts[0], int))
    given: list[Any] = [texts] if is_single else list(texts)
    values = [value.text if isinstance(value, Passage) else value for value in given]
    if not 1 <= len(values) <= most:
        raise InvalidRequestError(f"send 1 to {most} texts, not {len(values)}")
    if all(isinstance(value, str) for value in values):
        return values
    if any(isinstance(value, int) for value in values):
        raise InvalidRequestError("send texts, or lists of token ids, not both")
    if not entry.model.settings.accept_token_ids:
        raise InvalidRequestError(REFUSAL)
    return [value if isinstance(value, str) else text_of(value, entry) for value in values]


def text_of(ids: Sequence[Any], entry: CatalogEntry, skip_special_tokens: bool = True) -> str:
    """Returns the text of token ids. Raises InvalidRequestError for numbers that are not ids."""
    tokenizer = entry.model.task.tokenizer  # type: ignore[attr-defined]
    size = tokenizer.get_vocab_size()
    if not all(isinstance(number, int) and 0 <= number < size for number in ids):
        raise InvalidRequestError(
            f"the token ids of {entry.name} are whole numbers from 0 to {size - 1}"
        )
    text: str = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
    return text


def vectors(
    entry: CatalogEntry,
    texts: Texts,
    size: int,
    respond: Respond,
    kind: str | None = None,
    prompt_name: str | None = None,
    **form: Any,  # fields of the task, which may be null
) -> Call:
    """Returns the call for the vectors of texts in a body of `size` bytes.

    `kind` is what they are for, which stands for a prompt unless `prompt_name` has one. Raises
    RequestError.
    """
    task: Any = entry.model.task
    kinds = (kind, *PROMPTS.get(kind, ())) if kind else ()
    form["prompt_name"] = prompt_name or next((name for name in kinds if name in task.prompts), None)
    inputs = [input_of(size, text=text, **form) for text in texts_of(texts, entry, MAX_TEXTS)]
    return Call(inputs, respond=respond)


def cut_to(tokens: int, most: int, side: str | None = None) -> dict[str, Any]:
    """Returns the fields of the task for a maximum of tokens, where -1 means the model's `most`.

    Raises InvalidRequestError for a smaller maximum.
    """
    if tokens != -1 and tokens < most:
        raise InvalidRequestError(
            f"texts are cut to {most} tokens only: send at least {most}, or no maximum"
        )
    return {"truncate": True, "truncation_direction": side}


def usage(answer: Answer) -> dict[str, int]:
    """Returns how many tokens a request had."""
    return {"prompt_tokens": answer.timings.tokens, "total_tokens": answer.timings.tokens}
