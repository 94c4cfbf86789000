"""Int8 file of a network for texts: by dynamic quantisation, judged beside fp32; for `cli/export.py`.

The weights of matrix products are rounded, each column with a scale of its own; the activations are
rounded while they are computed. That needs no calibration: sentences are for the verdict only. Classes
are judged by how many are the same, vectors by their cosine, scores of a ranking and of classes that do
not exclude each other by their difference.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from tqdm import tqdm

from fastapi_onnx import graph_file
from fastapi_onnx.network import Network, open_session, signature_of
from smallplates.errors import ConfigurationError, RequestError, library_errors
from smallplates.export.int8 import Options
from smallplates.export.int8_onnx import silent_logging
from smallplates.export.int8_verdict import Logits, Verdict, comparison, megabytes, milliseconds
from smallplates.export.photos import class_index
from smallplates.export.stored_weights import restore_float32_weights, store_weights
from smallplates.models.description import Int8Verdict, Kind
from smallplates.models.folder import Model
from smallplates.models.scores import ACTIVATIONS, sigmoid
from smallplates.models.task_kinds import EMBEDDING, RANKING, TOKEN_CLASSIFICATION, kind_of
from smallplates.models.tensors import Array, Item
from smallplates.settings import Settings
from smallplates.worker import precision_check

FP32: Kind = "model.onnx"
INT8: Kind = "model_quantized.onnx"
METHOD = "dynamic"
QUANTISED = ["MatMul", "Gemm"]
LEAST_COSINES = (0.99, 0.95)
"""The least mean and worst cosine of vectors in int8 and fp32."""

MAX_GAPS = (0.05, 0.2)
"""The largest mean and worst difference of scores, which are from 0 to 1."""


@dataclass(frozen=True)
class Sentences:
    """Texts as the network gets them."""

    items: list[Item]
    labels: NDArray[np.int64] | None
    """Class indices [N]; None unless all sentences have one."""


def add(model: Model, options: Options) -> dict[Kind, Int8Verdict]:
    """Writes the int8 file beside the fp32 one; returns the verdict.

    Raises ConfigurationError and OSError; then every file is as it was.
    """
    source = model.file(FP32)
    sentences = read(options.validate or options.calibrate, model, options.most_photos)
    partial = source.with_name(f".{INT8}")  # beside the files that hold weights of both graphs
    try:
        if options.file is None:
            quantise(source, partial)
        method = METHOD if options.file is None else ""
        verdict = verdict_on(options.file or partial, model, sentences, method)
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
    with library_errors("ONNX Runtime cannot quantise the graph"):
        graph = graph_file.read(source)
        stored = restore_float32_weights(graph, graph_file.tensors_outside(source))
        with silent_logging():
            quantize_dynamic(graph, out, QUANTISED, per_channel=True, weight_type=QuantType.QInt8)
        if stored:
            onnx.save(store_weights(onnx.load(out), stored), out)


def read(path: Path, model: Model, most: int) -> Sentences:
    """Reads up to `most` lines: of a text and, behind a tab, its label where there is one.

    For a ranking, a line is a query, a tab and a text; for vectors it is a text. A label is one of the
    model's, or an index. A first line `sentence`, as GLUE's files have it, is left out, and so are texts
    that the model does not take. Raises ConfigurationError if there is no other or a label is unknown,
    and OSError.
    """
    settings = Settings.model_validate({"device": "cpu", "long_text": "truncate"})
    kind = kind_of(model.description.task)
    signatures = kind.load().plan(model, settings, signature_of(model))
    task = kind.load()(model, settings, signatures, {})
    items: list[Item] = []
    labels: list[int | None] = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not text in UTF-8: {error.reason}") from error
    for number, line in enumerate(lines, 1):
        text, _, label = line.partition("\t") if kind.name != EMBEDDING else (line, "", "")
        ranked = {"query": text, "texts": [label] if label.strip() else []}
        fields = ranked if kind.name == RANKING else {"text": text}
        label = label.strip() if model.labels and kind.name != TOKEN_CLASSIFICATION else ""
        if text == "sentence" and not items:
            continue
        if label and class_index(label, model.labels) is None:
            names = ", ".join(model.labels)
            raise ConfigurationError(f"{path}, line {number}: the label {label!r} is none of {names}")
        try:
            (item,) = task.preprocess(fields).items
        except RequestError:
            continue
        items.append(item)
        labels.append(class_index(label, model.labels))
        if len(items) == most:
            break
    if not items:
        raise ConfigurationError(f"{path} has no sentence that the model takes")
    return Sentences(items, None if None in labels else np.array(labels, np.int64))


def verdict_on(int8: Path, model: Model, sentences: Sentences, method: str) -> Int8Verdict:
    """Compares the int8 file with fp32 on the sentences, one at a time."""
    source, samples = model.file(FP32), precision_check.sample_tokens(model)
    networks = network(model, source), network(model, int8)
    expected, actual = (
        np.concatenate(
            [
                rows(one.outputs_to_compare([a[None] for a in item])[0])
                for item in tqdm(sentences.items, delay=2)
            ]
        )
        for one in networks
    )
    logits = logits_of(networks[0]), logits_of(networks[1])
    sizes = {"fp32": megabytes(source), "int8": megabytes(int8)}
    if model.labels:
        activation = ACTIVATIONS[model.description.activation]
        answers = activation(expected), activation(actual)
        noun = "tokens" if model.description.task == TOKEN_CLASSIFICATION else "texts"
        fields = comparison(model, *answers, sentences.labels, logits, samples, noun)
        if activation is sigmoid and fields["fit"]:  # the same class says little: there may be only one
            fields |= closeness(expected, actual)
        return Verdict.model_validate({**fields, "megabytes": sizes, "method": method, "fp32_nodes": []})
    names = dict(zip(("fp32", "int8"), logits, strict=True))
    outputs = [np.concatenate([infer(one[None]) for one in samples]) for infer in logits]
    fields = (likeness if model.description.embedding else closeness)(expected, actual)
    difference = round(precision_check.comparison_for(model)(*outputs).mean, 4)
    ms = milliseconds(names, samples)
    fields |= {"sample_difference": difference, "method": method, "megabytes": sizes, "batch_ms": ms}
    return Int8Verdict.model_validate(fields)


def rows(output: Array) -> Array:
    """Returns an output [1, ..., size] as [N, size]: a row for the text, or for each of its tokens."""
    return output.reshape(-1, output.shape[-1])


def likeness(expected: NDArray[np.float32], actual: NDArray[np.float32]) -> dict[str, Any]:
    """Returns whether vectors [N, size] point in the same directions in int8 as in fp32."""
    lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(actual, axis=1)
    cosines = (expected * actual).sum(1) / lengths.clip(1e-12)
    mean, worst = float(cosines.mean()), float(cosines.min())
    return {
        "fit": mean >= LEAST_COSINES[0] and worst >= LEAST_COSINES[1],
        "reason": f"the cosine of {len(cosines)} texts with fp32 is {mean:.4f} on average and "
        f"{worst:.4f} at worst; {LEAST_COSINES[0]} and {LEAST_COSINES[1]} are needed",
        "mean_cosine": round(mean, 5),
        "worst_cosine": round(worst, 5),
    }


def closeness(expected: NDArray[np.float32], actual: NDArray[np.float32]) -> dict[str, Any]:
    """Returns whether scores [N, ...] are nearly the same in int8 as in fp32."""
    gaps = np.abs(sigmoid(expected) - sigmoid(actual))
    mean, worst = float(gaps.mean()), float(gaps.max())
    return {
        "fit": mean <= MAX_GAPS[0] and worst <= MAX_GAPS[1],
        "reason": f"the scores of {len(gaps)} texts differ from fp32 by {mean:.4f} on average and "
        f"{worst:.4f} at worst; {MAX_GAPS[0]} and {MAX_GAPS[1]} are accepted",
        "mean_difference": round(mean, 5),
        "worst_difference": round(worst, 5),
    }


def network(model: Model, path: Path) -> Network:
    """Opens a file of the model on the CPU. Raises ConfigurationError."""
    return Network(model, open_session(model, path, Settings(device="cpu"), None))


def logits_of(one: Network) -> Logits:
    """Returns a function from numbers of tokens [N, tokens] to a network's output."""
    return lambda tokens: one.outputs_to_compare(precision_check.token_inputs(one.signature, tokens))[0]
