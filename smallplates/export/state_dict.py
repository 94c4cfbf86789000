"""State dicts as trainers leave them: safetensors, or a `.pt` file; for `cli/export.py`."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from smallplates.errors import ConfigurationError


def read_weights(path: Path, trust_pickle: bool) -> dict[str, Tensor]:
    """Reads a state dict; unpickles nothing but tensors unless `trust_pickle` is set.

    Raises ConfigurationError and OSError.
    """
    with path.open("rb"):
        pass  # for a missing file or a folder OSError is clearer than the libraries
    try:
        if path.suffix == ".safetensors":
            return without_prefix(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=not trust_pickle)
    except Exception as error:  # every library has exception types of its own
        reason = str(error).partition("\n")[0].partition(". ")[0]
        if "GLOBAL" in str(error) or "TorchScript" in str(error):
            reason = (
                "it holds more than tensors; save model.state_dict(), or, only if you trust whoever "
                "made it, add --i-trust-this-pickle"
            )
        elif zipfile.is_zipfile(path):
            reason = "of a zip file such as TorchServe's .mar, give the weights that are in it"
        raise ConfigurationError(f"{path} is not a state dict that can be read: {reason}") from error
    if isinstance(content, nn.Module):
        content = content.state_dict()
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    tensors = content if isinstance(content, Mapping) else {}
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ConfigurationError(f"{path} contains no state dict: save model.state_dict()")
    return without_prefix(dict(tensors))


def without_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Removes the prefix that all names share: DataParallel's `module.`, torch.compile's `_orig_mod.`"""
    while len(first := {name.partition(".")[0] for name in tensors}) == 1:
        prefix = first.pop() + "."
        if not all(name.startswith(prefix) for name in tensors):
            break
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors
