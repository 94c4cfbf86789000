"""Weights in 8 bits (float8 e4m3), once for both backends: ONNX graphs refer to model.safetensors."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file
from torch import Tensor, nn

from smallplates.export.stored_weights import MATRIX, StoredWeights, store_weights

LARGE = 2**14  # numbers; smaller matrices stay in 32 bits
OPSET = 20  # of a graph that casts them

Key = tuple[tuple[int, ...], bytes]


def is_large(tensor: Tensor) -> bool:
    """Returns whether a network's weights are stored in 8 bits."""
    return bool(tensor.ndim == MATRIX and tensor.numel() >= LARGE)


def round_weights(network: nn.Module) -> dict[str, Tensor]:
    """Returns weights as they are stored, through which gradients go as if they were not rounded."""
    return {
        name: weight + (weight.detach().to(torch.float8_e4m3fn).float() - weight.detach())
        for name, weight in network.named_parameters()
        if is_large(weight)
    }


def save_weights(weights: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Writes weights, the large matrices in 8 bits; returns them all in 32, rounded."""
    stored = {
        name: tensor.to(torch.float8_e4m3fn) if is_large(tensor) else tensor
        for name, tensor in weights.items()
    }
    save_file(stored, path)
    path.chmod(0o644)  # safetensors makes it readable for its owner only
    return {name: tensor.float() for name, tensor in stored.items()}


def refer(graph: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Replaces a graph's weights, as they are or transposed, by their places in a safetensors file.

    The file must be in the graph's folder.
    """
    places = dict(places_in(path))
    stored = []
    for tensor in graph.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == MATRIX:
            key = key_of(numpy_helper.to_array(tensor))
            if key in places:
                stored.append(weights_at(tensor.name, *places[key]))
    del graph.graph.value_info[:]  # types of what is changed here
    return store_weights(graph, stored)


def places_in(path: Path) -> Iterator[tuple[Key, tuple[TensorProto, bool]]]:
    """Yields the 8-bit weights of a safetensors file, and whether the numbers are transposed."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for name, entry in header.items():
        if entry.get("dtype") != "F8_E4M3":
            continue
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        numbers = torch.frombuffer(bytearray(content[start:end]), dtype=torch.float8_e4m3fn)
        matrix = numbers.float().view(entry["shape"]).numpy()
        tensor = TensorProto(
            name=f"{name}.float8",
            dims=entry["shape"],
            data_type=TensorProto.FLOAT8E4M3FN,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (("location", path.name), ("offset", start), ("length", end - start)):
            tensor.external_data.add(key=key, value=str(value))
        yield key_of(matrix), (tensor, False)
        yield key_of(matrix.T), (tensor, True)


def key_of(numbers: NDArray[np.float32]) -> Key:
    """Returns what tells apart matrices."""
    return numbers.shape, hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).digest()


def weights_at(name: str, tensor: TensorProto, transposed: bool) -> StoredWeights:
    """Returns weights of this name, made of a tensor in 8 bits."""
    cast = f"{name}.float32" if transposed else name
    nodes = [helper.make_node("Cast", [tensor.name], [cast], to=TensorProto.FLOAT)]
    if transposed:
        nodes.append(helper.make_node("Transpose", [cast], [name], perm=[1, 0]))
    return StoredWeights(name, tensor, nodes)
