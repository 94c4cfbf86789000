"""Network of an export from Hugging Face: `config.json` and `model.safetensors`, read by transformers.

Nothing is downloaded, and neither pickles nor code from the folder are read. Used by `backend.py` and
`tokens.py` for texts, by `network.py` for images.
"""

import inspect
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastapi_pt.pooling import Vectors
from smallplates import extras
from smallplates.errors import ConfigurationError
from smallplates.models.description import Kind
from smallplates.models.folder import Model
from smallplates.models.huggingface import CONFIG, OF_TIMM
from smallplates.models.sentence_transformers import read_dense
from smallplates.models.task_kinds import kind_of
from smallplates.models.tensors import Signature, TensorSpec

WEIGHTS: Kind = "model.safetensors"
INDEX: Kind = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
TYPES = "token_type_ids"
OF_TYPES = {
    *("AlbertTokenizer", "FunnelTokenizer", "HerbertTokenizer", "RemBertTokenizer", "RoFormerTokenizer"),
    *("SplinterTokenizer", "TokenizersBackend", "XLNetTokenizer"),
}
"""Classes of tokenisers in transformers 5 that made TYPES in transformers 4."""

LENGTH = "sequence_length"
"""Name of the axis of the tokens."""


class ByName(nn.Module):
    """Network with inputs and outputs in a fixed order, as tracing needs."""

    def __init__(self, network: nn.Module, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.network, self.inputs, self.outputs = network, inputs, outputs
        self.eval()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Computes the outputs of these names."""
        result = self.network(**dict(zip(self.inputs, tensors, strict=True)), return_dict=True)
        return tuple(result[name] for name in self.outputs)


class Logits(nn.Module):
    """Image classifier with one input and one output."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Computes logits [N, classes] of normalised images [N, 3, H, W]."""
        logits: Tensor = self.network(pixel_values=images, return_dict=True)["logits"]
        return logits


def is_export(model: Model) -> bool:
    """Returns whether config.json describes the network, and not model.json."""
    return model.description.architecture is None and (model.folder / CONFIG).is_file()


def image_network(model: Model) -> nn.Module:
    """Reads an image classifier, in eval mode. Raises ConfigurationError."""
    return Logits(read(model))


def token_network(model: Model) -> ByName:
    """Reads a network of texts, to be called as `signature_of` says. Raises ConfigurationError."""
    signature = signature_of(model)
    network = read(model)
    return ByName(
        Vectors(network, model) if model.description.embedding else network,
        [spec.name for spec in signature.inputs],
        [spec.name for spec in signature.outputs],
    )


def signature_of(model: Model) -> Signature:
    """Returns how a network of texts is called, without its weights. Raises ConfigurationError.

    Inputs are those of the tokeniser that the network takes.
    """
    weights(model)
    config = read_config(model)
    network = network_class(model, config)
    names = input_names(model, config)
    kind = kind_of(model.description.task)
    if not network.__name__.endswith(kind.head or ""):
        raise ConfigurationError(f"{network.__name__} is supported neither for texts nor with tensors")
    sizes = {"token": LENGTH, "label": config.num_labels, "score": config.num_labels}
    for axis in chain(*kind.outputs.values()):
        if sizes.setdefault(axis, getattr(config, f"{axis}_size", None)) is None:
            raise ConfigurationError(
                f"{model.folder / CONFIG} cannot be served: {network.__name__} has no {axis}_size, so "
                "it is not one network for texts"
            )
    if pipeline := model.description.embedding:
        sizes["hidden"] *= len(pipeline.pooling.split("+"))
        if pipeline.dense:
            sizes["hidden"] = read_dense(model.folder / pipeline.dense[-1])[1].out_features
    shapes = {name: tuple(map(sizes.__getitem__, axes)) for name, axes in kind.outputs.items()}
    parameters = inspect.signature(network.forward).parameters
    return Signature(
        "tensor",
        tuple(TensorSpec(name, "int64", (LENGTH,)) for name in names if name in parameters),
        tuple(TensorSpec(name, "float32", shape) for name, shape in shapes.items()),
        limits={LENGTH: model.description.limit(LENGTH)},
        failure_is_client_error=True,
    )


def read(model: Model) -> nn.Module:
    """Reads the network in float32. Raises ConfigurationError, also where the weights do not fit."""
    path, config = weights(model), read_config(model)
    kind = network_class(model, config)
    try:
        network, loading_info = kind.from_pretrained(
            path.parent,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # `misfits` names them
            output_loading_info=True,
        )
    except Exception as error:  # of transformers, safetensors and the network's own code
        raise ConfigurationError(f"{path} cannot be loaded: {first_line(error)}") from error
    if model.description.embedding:  # its pooling is not the network's
        loading_info["missing_keys"] = [
            name for name in loading_info["missing_keys"] if not name.startswith("pooler.")
        ]
    if wrong := misfits(loading_info):
        raise ConfigurationError(f"{path} does not fit {kind.__name__}: {wrong}")
    loaded: nn.Module = network
    return loaded


def misfits(loading_info: dict[str, Any]) -> str:
    """Returns what transformers' loading info tells of tensors that do not fit; empty if all do.

    Tensors that the network lacks are left out, as by transformers: they are another head's.
    """
    wrong = []
    if missing := loading_info["missing_keys"]:
        wrong.append(f"{len(missing)} tensors are missing, such as {min(missing)}")
    if shaped := loading_info["mismatched_keys"]:
        names = (entry if isinstance(entry, str) else entry[0] for entry in shaped)  # 5 adds the shapes
        wrong.append(f"{len(shaped)} have other shapes, such as {min(names)}")
    return "; ".join(wrong)


def weights(model: Model) -> Path:
    """Returns the path of the weights, or of the index of several files. Raises ConfigurationError."""
    if not model.has(WEIGHTS):
        if model.has(INDEX):
            return model.file(INDEX)
        for name in PICKLES:
            if (path := model.folder / name).exists():
                raise ConfigurationError(
                    f"{path} is a pickle, which may run code: save the model as {WEIGHTS} with "
                    "transformers' save_pretrained"
                )
    return model.file(WEIGHTS)


def read_config(model: Model) -> Any:
    """Returns transformers' own reading of config.json. Raises ConfigurationError."""
    path = model.folder / CONFIG
    try:
        return library().AutoConfig.from_pretrained(
            path.parent, local_files_only=True, trust_remote_code=False
        )
    except ConfigurationError:
        raise
    except Exception as error:  # also for a file that is missing, and for a type that is not known
        raise ConfigurationError(f"{path} cannot be served: {first_line(error)}") from error


def input_names(model: Model, config: Any) -> list[str]:
    """Returns the names of what the tokeniser makes in the version of transformers that wrote it.

    Raises ConfigurationError.
    """
    try:
        tokenizer = library().AutoTokenizer.from_pretrained(
            model.folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library `tokenizers` raises no type of its own
        raise ConfigurationError(
            f"{model.folder} has a tokeniser that transformers cannot read: {first_line(error)}"
        ) from error
    names = list(tokenizer.model_input_names)
    is_older = str(config.transformers_version).startswith("4.")
    lacks_types = TYPES not in names and type(tokenizer).__name__ in OF_TYPES
    is_stated = "model_input_names" in tokenizer.init_kwargs
    return [*names, TYPES] if is_older and lacks_types and not is_stated else names


def network_class(model: Model, config: Any) -> Any:
    """Returns transformers' class that config.json names; the one without a head for embeddings.

    Raises ConfigurationError.
    """
    of_timm = [OF_TIMM] if config.model_type == "timm_wrapper" else []
    path, names = model.folder / CONFIG, config.architectures or of_timm
    class_ = getattr(library(), names[0], None) if len(names) == 1 else None
    is_encoder = class_ is not None and class_.__name__.endswith("EncoderModel")
    if model.description.embedding and not is_encoder and not config.is_encoder_decoder:
        class_ = library().MODEL_MAPPING.get(type(config), None)
    if not isinstance(class_, type) or not issubclass(class_, library().PreTrainedModel):
        raise ConfigurationError(
            f"{path} cannot be served: transformers {library().__version__} has no network for the "
            f"architectures {names}"
        )
    return class_


def library() -> Any:
    """Returns the module transformers, told to be quiet. Raises ConfigurationError if it is missing."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import transformers
    except ImportError as error:
        raise ConfigurationError(
            "with this backend, an export from Hugging Face needs the extra transformers: "
            f"{extras.install('transformers')}"
        ) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def first_line(error: Exception) -> str:
    """Returns the first line of a library's message."""
    return str(error).strip().partition("\n")[0]
