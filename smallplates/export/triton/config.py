"""Configurations of the two models, `config.pbtxt`: the text form of Triton's `ModelConfig`.

Names, shapes and types equal those of this service's own v2 protocol. Called by `build.py`.
"""

import json
from dataclasses import dataclass

from smallplates.models.description import ModelDescription
from smallplates.settings import Settings
from smallplates.system import cpus

MAX_BATCH_SIZE = 16  # for `auto`, which the service would measure
LABELS_FILE = "labels.txt"
KINDS = {"auto": "KIND_AUTO", "cpu": "KIND_CPU", "cuda": "KIND_GPU"}

PHOTO_CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: {max_batch_size}
input [ {{ name: {image} data_type: TYPE_STRING dims: [ 1 ] }} ]
output [
  {{ name: {label} data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: {probability} data_type: TYPE_FP32 dims: [ 1 ] }}
]
instance_group [ {{ count: {instances} kind: {kind} }} ]
{batching}parameters {{ key: "model.json" value {{ string_value: {description} }} }}
parameters {{ key: "max_image_pixels" value {{ string_value: "{max_image_pixels}" }} }}
parameters {{ key: "intra_op_threads" value {{ string_value: "{threads}" }} }}
"""
TENSOR_CONFIG = """\
name: "{name}"
backend: "onnxruntime"
max_batch_size: {max_batch_size}
input [ {{ name: "input" data_type: TYPE_FP32 dims: [ 3, {height}, {width} ] }} ]
output [ {{ name: "output" data_type: TYPE_FP32 dims: [ {classes} ] label_filename: "{labels}" }} ]
instance_group [ {{ count: {instances} kind: {kind} }} ]
{batching}parameters {{ key: "model.json" value {{ string_value: {description} }} }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "{threads}" }} }}
"""
BATCHING = """\
dynamic_batching {{
  {preferred}max_queue_delay_microseconds: {delay_us}
  default_queue_policy {{
    timeout_action: REJECT
    default_timeout_microseconds: {timeout_us}
    allow_timeout_override: true
    max_queue_size: {queue_size}
  }}
}}
"""
"""Triton answers 503 if the queue is full or a request waits longer than its time-out."""


@dataclass(frozen=True)
class Configs:
    """Configurations of one model folder under one group of settings."""

    description: ModelDescription
    settings: Settings
    backend: str = "onnx"
    """What computes photos; PyTorch, `pt`, may do so on a GPU."""

    @property
    def photo_name(self) -> str:
        """Name of the model for photos: the first alias for requests, else the model's own name."""
        return self._alias("request") or self.description.name

    @property
    def tensor_name(self) -> str:
        """Name of the model for tensors: the first alias for them, else NAME_tensor."""
        return self._alias("tensor") or f"{self.description.name}_tensor"

    def _alias(self, form: str) -> str | None:
        return next((name for name, of in self.description.aliases.items() if of == form), None)

    def photo(self) -> str:
        """Returns the one for photos: BYTES [N, 1] to labels and probabilities [N, 1]."""
        names = self.description.names
        columns = {
            field: json.dumps(names.get(field, field.upper()), ensure_ascii=False)
            for field in ("image", "label", "probability")
        }
        return PHOTO_CONFIG.format(
            name=self.photo_name,
            max_image_pixels=self.settings.max_image_pixels,
            kind=self._kind() if self.backend == "pt" else KINDS["cpu"],
            **columns,
            **self._common(),
        )

    def tensor(self) -> str:
        """Returns the one for tensors: FP32 [N, 3, height, width] to logits [N, classes]."""
        height, width = self.description.pipeline.output_size
        return TENSOR_CONFIG.format(
            name=self.tensor_name,
            height=height,
            width=width,
            classes=len(self.description.labels),
            labels=LABELS_FILE,
            kind=self._kind(),
            **self._common(),
        )

    def _kind(self) -> str:
        """Returns the kind of an instance, and the GPUs if the settings name some."""
        gpus = ", ".join(map(str, self.settings.devices))
        return KINDS[self.settings.device] + f" gpus: [ {gpus} ]" * bool(gpus)

    def _common(self) -> dict[str, object]:
        settings = self.settings
        batch, instances = settings.max_batch_size, settings.instances
        return {
            "max_batch_size": MAX_BATCH_SIZE if batch == "auto" else batch,
            "instances": cpus.usable() if instances == "auto" else instances,
            "threads": settings.threads,
            "batching": self._batching(),
            "description": json.dumps(self.description.json_text(), ensure_ascii=False),
        }

    def _batching(self) -> str:
        settings = self.settings
        sizes = ", ".join(map(str, settings.preferred_batch_sizes))
        return BATCHING.format(
            preferred=f"preferred_batch_size: [ {sizes} ]\n  " if sizes else "",
            delay_us=settings.max_queue_delay_us,
            timeout_us=1000 * settings.request_timeout_ms,
            queue_size=settings.queue_size,
        )
