"""Int8 file of a text classifier: made by dynamic quantisation, judged beside fp32; for `cli/export.py`.

The weights of matrix products are rounded, each column with a scale of its own; the activations are
rounded while they are computed. That needs no calibration: sentences are for the verdict only.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from tqdm import tqdm

from fastapi_onnx import graph_file
from fastapi_onnx.network import Network, open_session, signature_of
from smallplates.errors import ConfigurationError, RequestError
from smallplates.export.int8 import Options
from smallplates.export.int8_onnx import in_one_line, silent_logging
from smallplates.export.int8_verdict import Logits, Verdict, comparison, megabytes
from smallplates.export.stored_weights import restore_float32_weights, store_weights
from smallplates.models.description import Kind
from smallplates.models.folder import Model
from smallplates.models.scores import ACTIVATIONS
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.tasks.text import IDS, TOKENS
from smallplates.tasks.text_classification import TextClassification
from smallplates.worker import precision_check

FP32: Kind = "model.onnx"
INT8: Kind = "model_quantized.onnx"
METHOD = "dynamic"
QUANTISED = ["MatMul", "Gemm"]


@dataclass(frozen=True)
class Sentences:
    """Texts as the network gets them."""

    tokens: list[NDArray[np.int64]]
    """Numbers [tokens] of each."""

    labels: NDArray[np.int64] | None
    """Class indices [N]; None unless all sentences have one."""


def add(model: Model, options: Options) -> dict[Kind, Verdict]:
    """Writes the int8 file beside the fp32 one; returns the verdict.

    Raises ConfigurationError and OSError; then every file is as it was.
    """
    source = model.file(FP32)
    sentences = read(options.validate or options.calibrate, model, options.most_photos)
    partial = source.with_name(f".{INT8}")  # beside the files that hold weights of both graphs
    try:
        if options.file is None:
            quantise(source, partial)
        made = options.file or partial
        verdict = judged(model, made, sentences, METHOD if options.file is None else "")
        if options.file is not None:
            partial.write_bytes(options.file.read_bytes())
        partial.replace(source.with_name(INT8))
    finally:
        partial.unlink(missing_ok=True)
    return {INT8: verdict}


def quantise(source: Path, out: Path) -> None:
    """Writes the graph with its matrix products in int8; other weights are stored as they are.

    Raises ConfigurationError.
    """
    try:
        graph = graph_file.read(source)
        stored = restore_float32_weights(graph, graph_file.tensors_outside(source))
        with silent_logging():
            quantize_dynamic(graph, out, QUANTISED, per_channel=True, weight_type=QuantType.QInt8)
        if stored:
            onnx.save(store_weights(onnx.load(out), stored), out)
    except Exception as error:  # the library raises every type
        raise ConfigurationError(
            f"ONNX Runtime cannot quantise the graph: {in_one_line(error)}"
        ) from error


def read(path: Path, model: Model, most: int) -> Sentences:
    """Reads up to `most` lines of a sentence, and a tab and its label where there is one.

    A label is one of the model's, or an index. A first line `sentence`, as GLUE's files have it, is left
    out, and so are texts that the model does not take. Raises ConfigurationError if there is no other or
    a label is unknown, and OSError.
    """
    settings = Settings.model_validate({"device": "cpu", "long_text": "truncate"})
    signatures = TextClassification.plan(model, settings, signature_of(model))
    task = TextClassification(model, settings, signatures, {})
    place = [spec.name for spec in signatures[TOKENS].inputs].index(IDS)
    tokens: list[NDArray[np.int64]] = []
    labels: list[int | None] = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not text in UTF-8: {error.reason}") from error
    for number, line in enumerate(lines, 1):
        text, _, label = line.partition("\t")
        label = label.strip()
        if text == "sentence" and not tokens:
            continue
        if label and class_index(label, model.labels) is None:
            known = ", ".join(model.labels)
            raise ConfigurationError(f"{path}, line {number}: the label {label!r} is none of {known}")
        try:
            (item,) = task.preprocess({"text": text}).items
        except RequestError:
            continue
        tokens.append(np.asarray(item[place], np.int64))
        labels.append(class_index(label, model.labels))
        if len(tokens) == most:
            break
    if not tokens:
        raise ConfigurationError(f"{path} has no sentence that the model takes")
    return Sentences(tokens, None if None in labels else np.array(labels, np.int64))


def class_index(label: str, labels: list[str]) -> int | None:
    """Returns the class that a label names; None if it names none."""
    if label in labels:
        return labels.index(label)
    return int(label) if label.isdecimal() and int(label) < len(labels) else None


def judged(model: Model, made: Path, sentences: Sentences, method: str) -> Verdict:
    """Compares the int8 file with fp32 on the sentences, one at a time."""
    source = model.file(FP32)
    fp32, int8 = (network(model, path) for path in (source, made))
    activation = ACTIVATIONS[model.description.text_pipeline.activation]
    expected, actual = (
        activation(
            np.concatenate([infer(tokens[np.newaxis]) for tokens in tqdm(sentences.tokens, delay=2)])
        )
        for infer in (fp32, int8)
    )
    return Verdict(
        **comparison(
            model,
            expected,
            actual,
            sentences.labels,
            (fp32, int8),
            precision_check.sample_tokens(model),
            "texts",
        ),
        megabytes={"fp32": megabytes(source), "int8": megabytes(made)},
        method=method,
        fp32_nodes=[],
    )


def network(model: Model, path: Path) -> Logits:
    """Returns a function from numbers of tokens [N, tokens] to logits. Raises ConfigurationError."""
    made = Network(model, open_session(model, path, Settings(device="cpu"), None))

    def logits(tokens: Array) -> NDArray[np.float32]:
        return made.compared(precision_check.token_inputs(made.signature, tokens))[0]

    return logits
