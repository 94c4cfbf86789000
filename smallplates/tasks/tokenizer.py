"""Tokenisers of exports: `tokenizer.json`, and what `tokenizer_config.json` says of the texts."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, NonNegativeInt, PrivateAttr, TypeAdapter, model_validator
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from smallplates.errors import ConfigurationError, library_errors
from smallplates.models.description import TextPipeline
from smallplates.models.folder import Model
from smallplates.models.huggingface import (
    CONFIG,
    DEFAULT_TOKENS,
    TOKENIZER,
    Config,
    File,
    configuration_errors,
    read,
)
from smallplates.models.vocabulary import is_berts, tokenizer_json
from smallplates.tasks.image.preprocessor import PREPROCESSOR

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL, ADDED = "special_tokens_map.json", "added_tokens.json"
"""Read only if there is no `added_tokens_decoder`, as in files from before transformers 4.34."""

NO_LIMIT = 10**6
"""Tokenisers without a limit state a larger number than this."""

GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes in transformers that leave the normalizer as `tokenizer.json` has it."""

OF_REMBERT = "RemBertTokenizer"
"""A class whose special tokens around a text transformers 5 does not write into `tokenizer.json`."""

OF_BERT = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
"""Field of `tokenizer_config.json` -> attribute of BERT's normalizer, and its default."""


class Token(BaseModel):
    """A token beside the vocabulary, or a special one of it; files may have only its text."""

    id: NonNegativeInt | None = None
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = True

    @model_validator(mode="before")
    @classmethod
    def from_text(cls, value: Any) -> Any:
        """Accepts the text alone."""
        return {"content": value} if isinstance(value, str) else value


class TokenizerConfig(File):
    """Content of `tokenizer_config.json`."""

    model_max_length: float | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding_side: Literal["left", "right"] = "right"
    bos_token: Token | None = None
    eos_token: Token | None = None
    unk_token: Token | None = None
    sep_token: Token | None = None
    pad_token: Token | None = None
    cls_token: Token | None = None
    mask_token: Token | None = None
    added_tokens_decoder: dict[NonNegativeInt, Token] | None = None
    additional_special_tokens: list[Token] | None = None
    extra_special_tokens: list[Token] | dict[str, Token] | None = None
    """The same since transformers 5; before, tokens with names."""

    split_special_tokens: bool | None = None
    chat_template: Any = None
    tokenizer_class: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None

    _added: list[Token] = PrivateAttr([])
    """Content of `added_tokens.json`."""

    @property
    def special(self) -> list[Token]:
        """Tokens that are added if `tokenizer.json` lacks them, in this order."""
        named = (self.bos_token, self.eos_token, self.unk_token, self.sep_token, self.pad_token)
        extra = self.extra_special_tokens or []
        return [
            *self._added,
            *(token for token in (*named, self.cls_token, self.mask_token) if token),
            *(extra.values() if isinstance(extra, dict) else extra),
            *(self.additional_special_tokens or []),
        ]

    def apply(self, tokenizer: Tokenizer) -> None:
        """Changes the tokeniser's steps as transformers does, whose classes go by this file."""
        first, second = tokenizer.normalizer, tokenizer.pre_tokenizer
        # other classes have defaults; without a name, it is the class of the network's type
        is_general = self.tokenizer_class in GENERAL
        is_bert = isinstance(first, BertNormalizer) and isinstance(tokenizer.model, WordPiece)
        if is_bert and not is_general:  # HerBERT's class, of BPE, goes by tokenizer.json
            for field, (attribute, default) in OF_BERT.items():
                value = getattr(self, field)
                setattr(first, attribute, default if value is None else value)
        has_space = not is_general or "add_prefix_space" in self.model_fields_set
        if isinstance(second, ByteLevel) and has_space:
            second.add_prefix_space = bool(self.add_prefix_space)
        known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        tokens = [token for _, token in sorted((self.added_tokens_decoder or {}).items())]
        tokens += [token for token in self.special if token.content not in known]
        tokenizer.add_tokens([AddedToken(**token.model_dump(exclude={"id"})) for token in tokens])
        tokenizer.encode_special_tokens = bool(self.split_special_tokens)
        if self.tokenizer_class == OF_REMBERT and not tokenizer.num_special_tokens_to_add(is_pair=False):
            first, last = ((token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]"))
            tokenizer.post_processor = TemplateProcessing(
                single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[first, last]
            )


class TokenizerFile(File):
    """Content of `tokenizer.json`."""

    added_tokens: list[Token] = Field(default=[])
    truncation: dict[str, Any] | None = None

    def token_id(self, token: Token) -> int | None:
        """Returns the id of an added token; None if there is none."""
        return next((added.id for added in self.added_tokens if added.content == token.content), None)


def read_config(folder: Path) -> TokenizerConfig:
    """Reads the tokeniser's configuration and the older files beside it. Raises ConfigurationError."""
    path, special, added = (folder / name for name in (TOKENIZER_CONFIG, SPECIAL, ADDED))
    config = read(path, TokenizerConfig) if path.exists() else TokenizerConfig()
    if config.added_tokens_decoder is not None:
        return config
    if special.exists():
        changes = read(special, TokenizerConfig)
        fields = {name: getattr(changes, name) for name in changes.model_fields_set}
        config = config.model_copy(update=fields)
    if added.exists():
        with configuration_errors(added):
            ids = TypeAdapter(dict[str, NonNegativeInt]).validate_json(added.read_bytes())
        named = {token.content for token in config.special}
        config._added = [
            Token(content=text, normalized=text not in named, special=text in named)
            for text in sorted(ids, key=ids.__getitem__)
        ]
    return config


def has_chat_template(folder: Path) -> bool:
    """Returns whether an export has a template for texts. Raises ConfigurationError."""
    files = (*folder.glob("chat_template.*"), *folder.glob("additional_chat_templates/*"))
    return bool(files or read_config(folder).chat_template)


def text_pipeline(folder: Path, config: Config) -> TextPipeline:
    """Returns the preprocessing of an export's texts. Raises ConfigurationError."""
    path = folder / TOKENIZER
    if not (path.is_file() or is_berts(folder)):
        if config.pretrained_cfg or (folder / PREPROCESSOR).is_file():
            raise ValueError(
                f"architectures is {config.architectures}, without a classifier and a {TOKENIZER}; of "
                "networks for images, those that end in ForImageClassification are supported, and "
                "others as ONNX graphs that are called with tensors"
            )
        raise ConfigurationError(
            f"{path} is missing: let transformers 4 write it (version 5 writes a wrong one for several "
            "classes), with "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    file, pad = read_config(folder), config.pad_token_id
    with configuration_errors(path):
        tokenizer = TokenizerFile.model_validate_json(tokenizer_json(path))
    if pad is None and file.pad_token:
        pad = tokenizer.token_id(file.pad_token)
    length = file.model_max_length
    cuts_left = (tokenizer.truncation or {}).get("direction") == "Left"
    limits = (int(length) if length and length < NO_LIMIT else None, config.positions)
    return TextPipeline(
        max_tokens=min(filter(None, limits), default=config.n_positions or DEFAULT_TOKENS),
        pad_token_id=pad,
        truncation_side=file.truncation_side or ("left" if cuts_left else "right"),
    )


def load_tokenizer(model: Model) -> Tokenizer:
    """Returns the tokeniser, without truncation and padding. Raises ConfigurationError."""
    path = model.tokenizer()
    with library_errors(f"{path} cannot be read as a tokeniser"):
        tokenizer = Tokenizer.from_str(tokenizer_json(path))
        if not model.digest:  # a model.json stands for all files beside it
            read_config(model.folder).apply(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def ids_beyond(model: Model, tokenizer: Tokenizer) -> frozenset[int]:
    """Returns the tokens that the network lacks, as far as config.json says; see `load_tokenizer`."""
    path = model.folder / CONFIG
    known = None if model.digest or not path.exists() else read(path, Config).vocab_size
    return frozenset(each for each in tokenizer.get_vocab().values() if known and each >= known)


def quick_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a tokeniser that does the same with printable ASCII, but BERT's in two thirds of the time.

    It doesn't look for accents, Chinese characters and control characters.
    """
    normalizer, added = tokenizer.normalizer, tokenizer.get_added_tokens_decoder()
    if not isinstance(normalizer, BertNormalizer) or any(token.normalized for token in added.values()):
        return tokenizer
    quick = Tokenizer.from_str(tokenizer.to_str())
    quick.encode_special_tokens = tokenizer.encode_special_tokens
    quick.normalizer = BertNormalizer(False, False, False, normalizer.lowercase)
    return quick
