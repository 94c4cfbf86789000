"""Session of OpenVINO on a CPU; used by `network.py`.

It computes the same files as ONNX Runtime. On processors with instructions for bf16 it is about twice as
fast in bf16 as either is in fp32 (five times with AMX).
"""

import fcntl
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fastapi_onnx.sessions import Graph
from smallplates import extras
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.system.cpus import bf16_objection

OPENVINO = "openvino"
FOLDER = f"{OPENVINO}-"
"""Start of the name of a folder with compiled graphs; the precision follows."""

LIMITS = "limits.json"
"""What `index_limits` has found, beside the compiled graph: reading the graph again takes longer."""

ON_THE_WAY = ("Convert", "Unsqueeze", "Squeeze", "Reshape")
"""Operations between an input and the table that it indexes."""

HARMLESS = ("ShapeOf", "NonZero")
"""Operations whose integers are right whatever their input's are."""

ELEMENTWISE = {
    *("Add", "Concat", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "Maximum", "Minimum"),
    *("Multiply", "NotEqual", "Select", "Subtract"),
}
"""Operations that take any integer in any place; others only in the first place, as their data."""

SUBGRAPHS = ("If", "Loop", "TensorIterator")
"""Operations whose own graphs `index_limits` does not follow."""

ARITHMETIC = ("Abs", "Add", "Divide", "FloorMod", "Mod", "Multiply", "Negative", "Power", "Subtract")
"""Operations that OpenVINO rounds and saturates in 8 bits; ONNX Runtime truncates and wraps."""

BOUNDED = ("Clamp", "FakeQuantize")
"""Operations whose numbers may become integers; others may be larger than OpenVINO's integers."""

IN_FLOAT32 = ("MatMul", "Power", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceProd", "ReduceSum")
"""Operations that OpenVINO computes in float32 also for integers."""

MAX_NUMBER = 1e18
"""Larger numbers are left to ONNX Runtime: their squares may be infinite, and then become NaN."""

INTEGER_BITS, MAX_BITS = 15, 31
"""Integers of more bits, also negative ones, are left to ONNX Runtime: OpenVINO computes 64 bits in 32,
and quotients in float32. Sums of smaller ones fit, and a product of two.
"""


KEPT_CODE = 512
"""Pieces of code of each kind that OpenVINO keeps for the sizes that it has seen; a layer needs one for
every size. By default it keeps 5,000: a small graph of open height and width grew by 900 MB.
"""


class OpenVinoSession:
    """Session of OpenVINO on a CPU, see `Session`."""

    provider = "CPU"
    length_step = 8

    def __init__(self, graph: Graph, precision: str, settings: Settings, scratch: Path | None) -> None:
        """Compiles a graph for a precision: `fp32`, `bf16`, or `int8` for a graph that is quantised.

        The first worker writes the compiled graph into `scratch`; the others map it, and so share its
        weights. Raises OpenVINO's errors.
        """
        openvino = import_openvino()
        self.library = f"{OPENVINO} {openvino.__version__.partition('-')[0]}"
        core = openvino.Core()
        options: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "f32" if precision == "fp32" or bf16_objection() else "bf16",
            "INFERENCE_NUM_THREADS": settings.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,  # two processes would pin themselves to the same core
            "CPU_RUNTIME_CACHE_CAPACITY": KEPT_CODE,
        }
        source = graph()

        def compile_graph() -> Any:
            model = str(source) if isinstance(source, Path) else core.read_model(source)
            return core.compile_model(model, "CPU", options)

        if scratch is None:
            self._limits = index_limits(core.read_model(source))
        else:
            folder = scratch / f"{FOLDER}{precision}"
            options["CACHE_DIR"] = str(folder)
            with (scratch / f"{OPENVINO}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not (folder / LIMITS).exists():
                    limits = index_limits(core.read_model(source))
                    compile_graph()  # its weights are its own; what is read from the folder maps them
                    (folder / LIMITS).write_text(json.dumps(limits))
            self._limits = json.loads((folder / LIMITS).read_text())
        self._request = compile_graph().create_infer_request()

    def is_sure_of(self, inputs: Mapping[str, Array]) -> bool:
        """Returns whether ONNX Runtime computes the same from these numbers, see `Session`.

        Where one is NaN or infinite, many operations differ: ReLU makes 0 of NaN. Indices are checked
        by `run`.
        """
        for name, array in inputs.items():
            if array.size and array.dtype.kind in "fiu" and name not in self._limits:
                most = 2.0**INTEGER_BITS
                if array.dtype.kind == "f":
                    most = min(MAX_NUMBER, float(np.finfo(array.dtype).max))
                if not -most < array.min() <= array.max() < most:
                    return False
        return True

    def run(
        self,
        names: Sequence[str],
        inputs: Mapping[str, Array],
        shrink: bool = False,  # noqa: ARG002 nothing is kept beyond a call
    ) -> list[Array]:
        """Computes the outputs of these names, see `Session`; there is nothing to shrink.

        Raises ValueError for an index that its table does not have: OpenVINO would answer zeros.
        """
        for name, count in self._limits.items():
            array = inputs[name]
            if array.size and not -count <= array.min() <= array.max() < count:
                raise ValueError(f"{name} is out of bounds: {-count} to {count - 1} are accepted")
        outputs = self._request.infer(inputs, share_inputs=True)
        return [outputs[name] for name in names] or list(outputs.values())


def import_openvino() -> Any:
    """Imports OpenVINO, which takes 0.3 s, without the telemetry that would report the import."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # import then fails
    import openvino

    return openvino


def forget_others(scratch: Path, precision: str) -> None:
    """Removes the compiled graphs of other precisions; all if `precision` is empty."""
    for folder in scratch.glob(f"{FOLDER}*/"):
        if folder.name != f"{FOLDER}{precision}":
            shutil.rmtree(folder, ignore_errors=True)


def index_limits(model: Any) -> dict[str, int]:
    """Returns the rows of the smallest table of weights that each input of an OpenVINO model indexes.

    Raises ValueError if clients' integers are indices, or lengths, that can't be checked before a call:
    OpenVINO would answer zeros, read memory behind a tensor, or crash. It also does for what OpenVINO
    computes otherwise: arithmetic in 8 bits, larger products than 32 bits hold, sums of integers,
    integers made of numbers that are not, and NaN among the weights.
    """
    check_weights(model)
    limits: dict[str, int] = {}
    for parameter in model.get_parameters():
        name = parameter.output(0).get_any_name()
        todo, seen = [(parameter.output(0), INTEGER_BITS, True)], set()
        while todo:
            output, bits, is_same = todo.pop()  # `is_same`: these are still the client's numbers
            taken = output.get_element_type()
            for target in output.get_target_inputs():
                node, place = target.get_node(), target.get_index()
                kind, wider = node.get_type_name(), bits
                rows = table_rows(node) if (kind, place, is_same) == ("Gather", 1, True) else 0
                is_integer = taken.is_integral_number() and not rows
                if rows:
                    limits[name] = min(limits.get(name, rows), rows)
                elif is_integer and kind == "Multiply":
                    wider += factor_bits(node, place)
                if not rows and (reason := objection(node, place, taken, wider)):
                    raise ValueError(f"OpenVINO {reason}, which depends on {name}")
                is_kept = is_same and kind in ON_THE_WAY
                for made in node.outputs() if kind not in HARMLESS else ():
                    is_real = made.get_element_type().is_real()
                    is_wide = is_integer and made.get_element_type().is_integral_number()
                    following = (made, is_wide * wider, is_kept)
                    key = (node.get_friendly_name(), made.get_index(), *following[1:])
                    if (is_real or is_wide) and key not in seen:  # others are positions or truth values
                        seen.add(key)
                        todo.append(following)
    return limits


def check_weights(model: Any) -> None:
    """Raises ValueError for weights that are NaN: the network is broken, and OpenVINO would hide it."""
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and np.isnan(node.data.min(initial=0)):
            raise ValueError(f"{node.get_friendly_name()} has NaN, of which OpenVINO makes numbers")


def objection(node: Any, place: int, taken: Any, bits: int) -> str:
    """Returns what OpenVINO does wrong with clients' numbers; empty if it computes what ONNX means.

    A node takes them, of the type `taken`, in this place; integers then have up to so many bits.
    """
    kind = node.get_type_name()
    if kind in SUBGRAPHS:
        return f"is not checked inside of {kind}"
    if taken.is_real():
        makes_integers = kind == "Convert" and node.get_output_element_type(0).is_integral_number()
        is_cut = makes_integers and node.input_value(0).get_node().get_type_name() not in BOUNDED
        return f"cuts large numbers in {kind}" if is_cut or kind == "Mod" else ""
    if not taken.is_integral_number():
        return ""
    if taken.size == 1 and kind in ARITHMETIC:
        return f"saturates {kind} in 8 bits"
    if bits > MAX_BITS or kind in IN_FLOAT32:
        return f"does not compute {kind} in 64 bits"
    if kind == "Range" or (place and kind not in ELEMENTWISE):
        return f"does not check what {kind} is given"
    return ""


def factor_bits(multiply: Any, place: int) -> int:
    """Returns the bits of what clients' integers are multiplied by; other integers count as clients'."""
    factor = multiply.input_value(1 - place).get_node()
    if factor.get_type_name() != "Constant":
        return INTEGER_BITS
    return int(abs(factor.get_data().astype(float)).max(initial=0)).bit_length()


def table_rows(gather: Any) -> int:
    """Returns along how many rows a Gather chooses; 0 if that is not fixed."""
    axis = gather.input_value(2).get_node()
    if axis.get_type_name() != "Constant":
        return 0
    rows = gather.input_value(0).get_partial_shape()[int(axis.get_data().ravel()[0])]
    return int(rows.get_length()) if rows.is_static else 0


def openvino_objection(precision: str = "") -> str:
    """Returns why OpenVINO cannot compute here, or not in this precision; empty if it can."""
    if find_spec("openvino") is None:
        return f"OpenVINO is not installed: {extras.install('openvino')}"
    return bf16_objection() if precision == "bf16" else ""
