"""Files of sentence-transformers: how the vectors of tokens become the vector of a text.

`modules.json` names the steps: the network, pooling, linear layers, normalisation. Called by
`tasks/embedding.py`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, TypeAdapter

from smallplates.errors import ConfigurationError
from smallplates.models.description import EmbeddingPipeline
from smallplates.models.huggingface import CONFIG, File, configuration_errors, read

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
TENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
LENGTHS = "sentence_*_config.json"
"""The file with the length; the name has that of the network's type, mostly `bert`."""

PACKAGE = "sentence_transformers."
ENCODER, CROSS_ENCODER = "SentenceTransformer", "CrossEncoder"
"""Kinds of models; both have a `modules.json` since version 5.4."""

FLAG = "pooling_mode_"
NAMES = {
    **{"cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean"},
    **{"mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "weightedmean_tokens": "weightedmean"},
    "lasttoken": "lasttoken",
}
"""Flag -> name of a pooling, in the order in which sentence-transformers concatenates them."""


class Module(BaseModel):
    """One of the steps."""

    path: str
    """Its folder; empty for the network."""

    type: str

    @property
    def kind(self) -> str:
        """Name of the class; with its path if it is not one of sentence-transformers."""
        return self.type.rpartition(".")[2] if self.type.startswith(PACKAGE) else self.type


class Pooling(File):
    """Content of `1_Pooling/config.json`: flags, and since version 5.3 the name."""

    model_config = ConfigDict(extra="allow")

    pooling_mode: str | list[str] | None = None
    include_prompt: bool = True

    @property
    def modes(self) -> list[str]:
        """Names of the poolings, whose results are concatenated."""
        if self.pooling_mode:
            return [self.pooling_mode] if isinstance(self.pooling_mode, str) else self.pooling_mode
        given = (self.model_extra or {}).items()
        flags = {name.removeprefix(FLAG) for name, value in given if value is True}
        known = [name for flag, name in NAMES.items() if flag in flags]
        return [*known, *sorted(flags - NAMES.keys())] or ["mean"]


class Dense(File):
    """Content of a linear layer's `config.json`."""

    in_features: PositiveInt
    out_features: PositiveInt
    bias: bool = True
    activation_function: Annotated[
        Literal["Identity", "Tanh", "ReLU", "Sigmoid"],
        BeforeValidator(lambda path: str(path).rpartition(".")[2]),
    ] = "Tanh"
    """Name of the class; the file has the path of its module in front."""

    use_residual: Literal[False] = False
    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] | None = None


class Options(File):
    """Content of `config_sentence_transformers.json`, and of `sentence_bert_config.json`."""

    model_type: str = ENCODER
    prompts: dict[str, str] = Field(default={})
    default_prompt_name: str | None = None
    activation_fn: str | None = None
    """Function for a CrossEncoder's scores, since version 5.4."""

    truncate_dim: PositiveInt | None = None
    module_output_name: Literal["token_embeddings"] | None = None
    processing_kwargs: dict[str, Any] | None = Field(default=None, max_length=0)
    max_seq_length: PositiveInt | None = None
    do_lower_case: bool = False


def embedding_pipeline(folder: Path) -> EmbeddingPipeline | None:
    """Returns what `modules.json` and the files that it names say; None without it, or for one module.

    Raises ConfigurationError for steps that are not supported.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    with configuration_errors(path):
        modules = TypeAdapter(list[Module]).validate_json(path.read_bytes())
        kinds = [module.kind for module in modules]
        if kinds == ["Transformer"]:
            return None
        normalizes = kinds[-1:] == ["Normalize"]
        linear = modules[2 : len(modules) - normalizes]
        is_known = kinds[:2] == ["Transformer", "Pooling"] and not modules[0].path
        if not is_known or any(module.kind != "Dense" for module in linear):
            raise ValueError(
                f"its modules are {', '.join(kinds)}; supported are a network in the folder itself, "
                "Pooling, any number of Dense, and Normalize or not, or StaticEmbedding after "
                "`smallplates export static`"
            )
    pooling_config = folder / modules[1].path / CONFIG
    pooling = read(pooling_config, Pooling)
    for step in linear:
        read_dense(folder / step.path)
    options = read_options(folder)
    if options.model_type != ENCODER:
        raise ConfigurationError(
            f"{folder} cannot be served: a {options.model_type} with its own modules is not supported"
        )
    if not pooling.include_prompt and any(options.prompts.values()):
        raise ConfigurationError(
            f"{folder} cannot be served: its pooling leaves prompts out (include_prompt)"
        )
    with configuration_errors(pooling_config):
        return EmbeddingPipeline.model_validate(
            {
                "pooling": "+".join(pooling.modes),
                "dense": [step.path for step in linear],
                "normalize": normalizes,
                "dimensions": options.truncate_dim,
                "lower_case": read_length(folder).do_lower_case,
                **options.model_dump(include={"prompts", "default_prompt_name"}),
            }
        )


def read_options(folder: Path) -> Options:
    """Reads the kind of model and its prompts. Raises ConfigurationError."""
    file = folder / PROMPTS
    return read(file, Options) if file.is_file() else Options()


def read_length(folder: Path) -> Options:
    """Reads the length of texts that the model was made for. Raises ConfigurationError."""
    return next((read(path, Options) for path in sorted(folder.glob(LENGTHS))), Options())


def read_dense(folder: Path) -> tuple[Path, Dense]:
    """Returns the path of a linear layer's weights, and what its configuration says.

    Raises ConfigurationError, also for a pickle.
    """
    dense, weights = read(folder / CONFIG, Dense), folder / TENSORS
    if weights.is_file():
        return weights, dense
    if (folder / PICKLE).exists():
        raise ConfigurationError(
            f"{folder / PICKLE} is a pickle, which may run code: save the model again with "
            "sentence-transformers 2.3 or later, which writes safetensors"
        )
    raise ConfigurationError(f"{weights} is missing")
