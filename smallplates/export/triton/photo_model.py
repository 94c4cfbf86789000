"""Model of Triton's Python backend, `model.py`: photos in, labels and probabilities out.

`build.py` copies it into `MODEL/VERSION/`, beside the modules of `smallplates` that it imports, so
that it decodes and scores as the service does. It computes `model.onnx` with ONNX Runtime, or `model.pt`
with PyTorch, on a GPU if the instance is of the kind GPU. A request's parameter `top_k` asks for that
many classes of each photo, best first, instead of one.
"""

import json
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from smallplates.base64 import to_bytes
from smallplates.errors import InvalidRequestError, ServingError
from smallplates.models.description import ModelDescription
from smallplates.models.scores import ACTIVATIONS, best
from smallplates.tasks.image.decode import ImageDecoder

Request = Any  # Triton's classes exist only in Triton
Response = Any
Pixels = NDArray[np.uint8]
"""[N, height, width, 3]."""

Network = Callable[[Pixels], NDArray[np.float32]]
"""Computes logits [N, classes]."""


@dataclass(frozen=True)
class Photos:
    """Photos of one request."""

    pixels: Pixels
    top_k: int


class TritonPythonModel:
    """Model instance, in a process of its own; Triton prescribes the class's name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Opens the network; the model's configuration has all that it needs."""
        config = json.loads(args["model_config"])
        parameters = config["parameters"]
        self.image, self.label, self.probability = (
            column["name"] for column in (*config["input"], *config["output"])
        )

        def parameter(name: str) -> str:
            value: str = parameters[name]["string_value"]
            return value

        description = ModelDescription.model_validate_json(parameter("model.json"))
        self.labels, self.activation = description.labels, ACTIVATIONS[description.activation]
        self.decoder = ImageDecoder(description.pipeline, int(parameter("max_image_pixels")))
        threads, folder = int(parameter("intra_op_threads")), Path(args["model_repository"])
        file = folder / args["model_version"] / "model.pt"
        if file.exists():
            on_gpu = args.get("model_instance_kind") == "GPU"
            device = f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu"
            self.network = torch_network(file, threads, device)
        else:
            no_tensor = np.empty((0, 3, *description.pipeline.output_size), np.float32)
            self.network = onnx_network(file.with_suffix(".onnx"), threads, no_tensor)

    def execute(self, requests: list[Request]) -> list[Response]:
        """Returns one response for each request, in order; computes all readable photos as one batch."""
        try:
            read = [self.read(request) for request in requests]
            photos = [result for result in read if isinstance(result, Photos)]
            rows = iter(self.logits([each.pixels for each in photos]))
            return [
                self.answer(result, rows) if isinstance(result, Photos) else result for result in read
            ]
        except Exception:
            pb_utils.Logger.log_error(traceback.format_exc())
            return [error_response("the server failed", pb_utils.TritonError.INTERNAL) for _ in requests]

    def read(self, request: Request) -> "Photos | Response":
        """Returns the decoded photos, or a response with the reason why there are none."""
        if request.is_cancelled():
            return error_response("the client has gone", pb_utils.TritonError.CANCELLED)
        try:
            top_k = json.loads(request.parameters() or "{}").get("top_k", 1)
            if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
                raise InvalidRequestError("top_k must be a whole number from 1")
            elements = pb_utils.get_input_tensor_by_name(request, self.image).as_numpy().ravel()
            return Photos(np.stack(self.decode(elements.tolist())), top_k)
        except ServingError as error:
            return error_response(error.detail, pb_utils.TritonError.INVALID_ARG)

    def decode(self, elements: list[bytes]) -> list[NDArray[np.uint8]]:
        """Decodes files or their base64 to pixels [height, width, 3].

        Raises ServingError that names the element, if there are several.
        """
        images = []
        for index, element in enumerate(elements):
            try:
                images.append(self.decoder.decode(to_bytes(element)))
            except ServingError as error:
                if len(elements) > 1:
                    error.detail = f"element {index}: {error.detail}"
                raise
        return images

    def logits(self, batches: list[NDArray[np.uint8]]) -> Iterable[NDArray[np.float32]]:
        """Computes logits [classes] for every photo of all requests, in order."""
        if not batches:
            return ()
        return self.network(np.concatenate(batches))

    def answer(self, photos: Photos, rows: Iterator[NDArray[np.float32]]) -> Response:
        """Returns labels and probabilities [N, top_k]; takes a row of logits for each photo."""
        tops = [best(self.labels, next(rows), photos.top_k, self.activation) for _ in photos.pixels]
        labels = np.array([[score["label"].encode() for score in top] for top in tops], object)
        probabilities = np.array([[score["probability"] for score in top] for top in tops], np.float32)
        tensors = [pb_utils.Tensor(self.label, labels), pb_utils.Tensor(self.probability, probabilities)]
        return pb_utils.InferenceResponse(output_tensors=tensors)


def onnx_network(file: Path, threads: int, no_tensor: NDArray[np.float32]) -> Network:
    """Opens the graph with ONNX Runtime, on the CPU; its second input is for tensors."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    pixels, tensor = (graph_input.name for graph_input in session.get_inputs())

    def infer(batch: Pixels) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = session.run(None, {pixels: batch, tensor: no_tensor})[0]
        return rows

    return infer


def torch_network(file: Path, threads: int, device: str) -> Network:
    """Opens the traced network with PyTorch, on the CPU or on one GPU."""
    import torch

    torch.set_num_threads(threads)
    network = torch.jit.load(file, map_location=device)

    def infer(batch: Pixels) -> NDArray[np.float32]:
        with torch.inference_mode():
            rows: NDArray[np.float32] = network(torch.from_numpy(batch).to(device)).cpu().numpy()
        return rows

    return infer


def error_response(detail: str, code: Any) -> Response:  # an enumeration of the backend
    """Returns an error response."""
    return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(detail, code))
