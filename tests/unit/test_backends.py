"""What each backend refuses at start, and in which words."""

import dataclasses
import hashlib
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from fastapi_onnx.backend import OnnxBackend
from fastapi_onnx.graph import with_two_inputs
from fastapi_pt.backend import TorchBackend
from serving.backend import Backend
from serving.errors import ConfigurationError
from serving.model import ImagePipeline, Model
from serving.settings import Settings

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
PIPELINE = ImagePipeline(resize=(8, 8), mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("backend", [OnnxBackend(), TorchBackend()], ids=["onnx", "pt"])
def test_cuda_without_a_gpu_refuses_to_start(backend: Backend) -> None:
    settings = Settings(device="cuda")
    with pytest.raises(ConfigurationError, match="CUDA"):
        backend.load(Model.read(settings.model_dir), settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("backend", [OnnxBackend(), TorchBackend()], ids=["onnx", "pt"])
def test_auto_says_why_it_took_the_cpu(backend: Backend) -> None:
    settings = Settings(device="auto")
    info = backend.load(Model.read(settings.model_dir), settings)
    assert info.device == "cpu"
    assert info.fallback
    assert (
        dataclasses.asdict(backend.load(Model.read(settings.model_dir), Settings(device="cpu")))[
            "fallback"
        ]
        is None
    )
    backend.close()


def graph(inputs: int = 1, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """An identity on `x0`, with this many inputs of this type."""
    values = [helper.make_tensor_value_info(f"x{i}", kind, ["N", 3, 8, 8]) for i in range(inputs)]
    output = helper.make_tensor_value_info("y", kind, ["N", 3, 8, 8])
    node = helper.make_node("Identity", ["x0"], ["y"])
    return helper.make_model(helper.make_graph([node], "g", values, [output]), ir_version=9)


def test_normalisation_moves_into_the_graph() -> None:
    onnx.checker.check_model(with_two_inputs(graph(), PIPELINE), full_check=True)


@pytest.mark.parametrize("wrong", [graph(inputs=2), graph(kind=TensorProto.UINT8)])
def test_a_graph_of_another_shape_is_refused(wrong: onnx.ModelProto) -> None:
    with pytest.raises(ConfigurationError, match="exactly one input"):
        with_two_inputs(wrong, PIPELINE)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    model = Model.read(Settings().model_dir)
    description = model.description.model_copy(
        update={
            "files": {
                "1/model.onnx": EMPTY_SHA256,
                "1/model.safetensors": EMPTY_SHA256,
            }
        }
    )
    (tmp_path / "1").mkdir()
    for name in ("model.onnx", "model.safetensors"):
        (tmp_path / "1" / name).write_bytes(b"")
    for backend in (OnnxBackend(), TorchBackend()):
        with pytest.raises(ConfigurationError):
            backend.load(Model(tmp_path, description), Settings())
