"""Which output of a classifier's graph has the logits, and that it has no probabilities instead.

Tasks would compute probabilities of probabilities. Called by `normalisation.py`, `cuda.py` and
`signature.py`.
"""

from collections.abc import Iterable

import onnx

from smallplates.errors import ConfigurationError

LOGITS = "logits"
LAYOUT = {
    *("Cast", "DequantizeLinear", "Flatten", "Identity", "QuantizeLinear", "Reshape", "Squeeze"),
    *("Transpose", "Unsqueeze"),
}
"""Operators behind which an output still has the same numbers."""


def check_logits(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Raises ConfigurationError if one of these outputs comes from a softmax or a sigmoid.

    Where the graph has no output of that name, the first one is served.
    """
    makers = {output: node for node in graph.node for output in node.output}
    outputs = [value.name for value in graph.output]
    for name in (name if name in outputs else outputs[0] for name in names):
        node = makers.get(name)
        while node is not None and node.op_type in LAYOUT:
            node = makers.get(node.input[0])
        if node is not None and node.op_type in ("Sigmoid", "Softmax"):
            raise ConfigurationError(
                f"the graph's output {name} has probabilities, but logits are needed, because the "
                f"service computes the probabilities: remove the {node.op_type} at the graph's end"
            )


def keep_logits(graph: onnx.GraphProto) -> None:
    """Removes all outputs but LOGITS, or the first one if none has that name: teachers add others.

    Raises ConfigurationError if it has probabilities.
    """
    names = [output.name for output in graph.output]
    kept = graph.output[names.index(LOGITS) if LOGITS in names else 0]
    check_logits(graph, [kept.name])
    del graph.output[:]
    graph.output.append(kept)
