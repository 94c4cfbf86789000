"""Models of the Hugging Face Hub: the files that are served, in the hub's own cache."""

import os
import re
from pathlib import Path

from smallplates.errors import ConfigurationError, in_one_line
from smallplates.models.folder import in_place_of

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when huggingface_hub is imported

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
DESCRIPTION = [
    *("config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "chat_template.*", "additional_chat_templates/*"),
    *("modules.json", "config_sentence_transformers.json", "sentence_*_config.json"),
    *("*_Pooling/config.json", "*_Dense/config.json", "*_Dense/model.safetensors"),
]
ONNX = ["model.onnx", "onnx/model.onnx"]
WEIGHTS = {
    # and weights that a graph has in a file beside it
    "onnx": [*ONNX, "model.onnx[._]data*", "onnx/model.onnx[._]data*"],
    "int8": [
        *("model_quantized.onnx", "onnx/model_quantized.onnx", "*model_quantized.json"),
        *("model_quantized.onnx[._]data*", "onnx/model_quantized.onnx[._]data*"),
    ],
    "pt": ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"],
    "static": [
        "model.safetensors",
        "*_StaticEmbedding/model.safetensors",
        "*_StaticEmbedding/tokenizer.json",
    ],
}


def is_id(place: str) -> bool:
    """Returns whether a place is `org/name`, and not a folder that exists.

    Raises ConfigurationError if there is a folder `org` without `name`: somebody mistyped a path.
    """
    path = Path(place)
    if ID.fullmatch(place) is None or path.exists():
        return False
    if path.parent.exists():
        raise ConfigurationError(
            f"there is no folder {place}{in_place_of(path)}. To download {place} from the Hugging Face "
            f"Hub, run the command where there is no {path.parent}"
        )
    return True


def fetch(repository: str, revision: str | None, kinds: list[str]) -> Path:
    """Downloads what is not in the cache yet; returns the folder.

    `kinds` are keys of WEIGHTS. The environment's HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE
    apply. Raises ConfigurationError.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    weights = [pattern for kind in kinds for pattern in WEIGHTS[kind]]
    try:
        folder = Path(
            snapshot_download(repository, revision=revision, allow_patterns=DESCRIPTION + weights)
        )
    except GatedRepoError as error:
        raise ConfigurationError(
            f"{repository} is gated: accept its terms on {constants.ENDPOINT}/{repository}, and set "
            "HF_TOKEN to a token of that account"
        ) from error
    except RevisionNotFoundError as error:
        raise ConfigurationError(f"{repository} has no revision {revision!r}") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ConfigurationError(
            f"there is no folder {repository}, and no such model on {constants.ENDPOINT}; "
            f"for a private model, set HF_TOKEN{in_place_of(Path(repository))}"
        ) from error
    except LocalEntryNotFoundError as error:
        reason = f"{constants.ENDPOINT} cannot be reached"
        if constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set"
        elif isinstance(error.__cause__, HfHubHTTPError):
            reason = f"{constants.ENDPOINT} returned {error.__cause__.response.status_code}"
        raise ConfigurationError(
            f"there is no folder {repository}, {reason}, and the cache in {constants.HF_HUB_CACHE} "
            f"has no such model{in_place_of(Path(repository))}"
        ) from error
    except Exception as error:  # of its HTTP library, which differs from version to version; a full disk
        raise ConfigurationError(f"{repository} cannot be downloaded: {in_one_line(error)}") from error
    if "onnx" in kinds and not any((folder / name).is_file() for name in ONNX):
        raise ConfigurationError(
            f"{repository} has no ONNX file; write one with `smallplates export transformers "
            f"{repository} --out FOLDER` (for images, with optimum-cli), or serve it with --backend pt"
        )
    return folder
