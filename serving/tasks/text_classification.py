"""Text classification: a text, or a pair of texts, in; its most probable classes out."""

from types import MappingProxyType

from pydantic import BaseModel, Field

from serving.errors import ConfigurationError, InvalidTextError, TextTooLongError
from serving.model import Model
from serving.settings import Settings
from serving.tasks import text
from serving.tasks.base import Fields, Prepared, fields_of
from serving.tasks.classification import Classification
from serving.tensors import Signature


class TextRequest(BaseModel):
    """A text, or a pair of texts, such as a premise and a hypothesis."""

    text: str = Field(min_length=1)
    text_pair: str | None = Field(default=None, min_length=1, description="The second text of a pair.")


class TextClassification(text.TextTask, Classification):
    """Tokenises texts; softmax or sigmoid, and the best classes of the logits."""

    request_schema = TextRequest.model_json_schema()
    request = fields_of(request_schema)
    list_fields = ("text", "text_pair")
    media_types = ("text/plain",)
    example_type = "text/plain"
    example = MappingProxyType({"text": "The soup was wonderful."})

    def __init__(self, model: Model, settings: Settings, signature: Signature) -> None:
        """`signature` is the one that requests become. Raises ConfigurationError."""
        pipeline = model.description.text_pipeline
        text.TextTask.__init__(self, model, signature)
        Classification.__init__(self, model.labels, pipeline.activation)
        self._most_tokens = pipeline.max_tokens
        if settings.long_text == "truncate":
            self._tokenizer.enable_truncation(pipeline.max_tokens, direction=pipeline.truncation_side)
        else:
            self.limits = {**self.limits, "tokens": pipeline.max_tokens}

    def preprocess(self, fields: Fields, hint: object | None = None) -> Prepared:  # noqa: ARG002
        """Tokenises to an array [tokens] per input.

        Raises InvalidTextError, TextTooLongError, or InternalError where the tokeniser fails.
        """
        names = ("text", "text_pair")
        encoding = self.encode({name: fields[name] for name in names if name in fields})
        count = len(encoding.ids)
        if count > self._most_tokens:
            raise TextTooLongError(
                f"the text has {count} tokens; at most {self._most_tokens} are accepted"
            )
        if not count:
            raise InvalidTextError("the text has no characters that the model knows")
        return Prepared([self.arrays(encoding)], truncated=bool(encoding.overflowing))


def signatures(model: Model, graph: Signature) -> tuple[Signature, ...]:
    """Returns how the graph is called, see `text.signatures`. Raises ConfigurationError."""
    logits = next((each for each in graph.outputs if each.name == "logits"), graph.outputs[0])
    if logits.shape != (len(model.labels),):
        raise ConfigurationError(
            f"{model.description.name} cannot be served: {logits.name} has the shape {[*logits.shape]} "
            f"behind the batch, but there are {len(model.labels)} labels"
        )
    return text.signatures(model, graph, [logits], model.description.text_pipeline.max_tokens)
