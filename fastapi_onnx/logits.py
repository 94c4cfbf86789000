"""Which output of a classifier's graph has the logits, and that it has no probabilities instead.

Tasks would compute probabilities of probabilities. Called by `normalisation.py`, `cuda.py` and
`signature.py`. Warm-up finds a softmax that is written in parts.
"""

from collections.abc import Iterable

import onnx
from onnx import helper

from smallplates.errors import ConfigurationError

LOGITS = "logits"
LAYOUT = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators behind which an output still has the same numbers."""

LIMITING = ("Clip", "DequantizeLinear", "QuantizeLinear")
"""Operators behind which probabilities are still probabilities."""


def check_logits(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Raises ConfigurationError if one of these outputs comes from a softmax or a sigmoid.

    Where the graph has no output of that name, the first one is served.
    """
    outputs = [value.name for value in graph.output]
    for name in (name if name in outputs else outputs[0] for name in names):
        node = ending(graph, name)[-1]
        is_sigmoid = node.op_type in ("Div", "Reciprocal") and adds_exponential(graph, node.input[-1])
        if is_sigmoid or node.op_type in ("HardSigmoid", "Sigmoid", "Softmax"):
            raise ConfigurationError(
                f"the graph's output {name} has probabilities, but logits are needed, because the "
                "service computes the probabilities: remove the "
                f"{'sigmoid' if is_sigmoid else node.op_type} at the graph's end"
            )


def ending(graph: onnx.GraphProto, name: str) -> list[onnx.NodeProto]:
    """Returns the nodes from a tensor back to the first that is neither of LAYOUT nor of LIMITING.

    That one is the last in the list; it is empty if no node makes it.
    """
    makers = {output: node for node in graph.node for output in node.output}
    nodes = [makers.get(name, onnx.NodeProto())]
    while nodes[-1].op_type in (*LAYOUT, *LIMITING):
        nodes.append(makers.get(nodes[-1].input[0], onnx.NodeProto()))
    return nodes


def adds_exponential(graph: onnx.GraphProto, name: str) -> bool:
    """Returns whether a tensor is a sum with an exponential, as the denominator of a sigmoid is."""
    total = ending(graph, name)[-1]
    parts = [ending(graph, part)[-1].op_type for part in total.input]
    return total.op_type == "Add" and "Exp" in parts


def without_softmax(graph: onnx.GraphProto, name: str) -> bool:
    """Replaces the softmax at the end of an output by nothing, and what limits its probabilities.

    Returns whether there was one.
    """
    nodes = ending(graph, name)
    if nodes[-1].op_type != "Softmax":
        return False
    for node in nodes:
        if node.op_type not in LAYOUT:
            node.CopyFrom(helper.make_node("Identity", node.input[:1], node.output))
    return True


def keep_logits(graph: onnx.GraphProto) -> None:
    """Removes all outputs but LOGITS, or the first one if none has that name: teachers add others.

    Raises ConfigurationError if it has probabilities.
    """
    names = [output.name for output in graph.output]
    kept = graph.output[names.index(LOGITS) if LOGITS in names else 0]
    check_logits(graph, [kept.name])
    del graph.output[:]
    graph.output.append(kept)
