"""Graphs of PyTorch's exporter."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from smallplates.export.torch_export import program_of

pytestmark = [pytest.mark.slow, pytest.mark.torch]


class Named(nn.Module):
    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return one + other, one - other


class Variadic(Named):
    """The same for any number of tensors."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(*tensors)


@pytest.mark.parametrize("network", [Named(), Variadic()])
def test_a_graph_has_open_axes_and_no_paths_of_this_machine(network: nn.Module, tmp_path: Path) -> None:
    path, examples = tmp_path / "model.onnx", {"a": torch.ones(2, 8), "b": torch.ones(2, 8)}
    program = program_of(
        network, examples, ("N", "M"), ("c", "d"), is_variadic=isinstance(network, Variadic)
    )
    program.save(path)
    graph = onnx.load(path).graph
    shapes = {
        value.name: [axis.dim_param for axis in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {name: ["N", "M"] for name in "abcd"}
    assert Path(__file__).name.encode() not in path.read_bytes()
