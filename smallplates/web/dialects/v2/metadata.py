"""Metadata, configuration and statistics of models in the Open Inference Protocol.

The schemas are Triton's; `perf_analyzer` reads them before and after every measurement window.
"""

from collections.abc import Sequence
from typing import Any

from smallplates import __version__
from smallplates.engine.statistics import BatchTotals, Totals
from smallplates.web.api.catalog import CatalogEntry, ColumnSpec
from smallplates.web.api.datatypes import BYTES
from smallplates.web.inference.served_model import ServedModel

SERVER = "smallplates"
EXTENSIONS = [
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
]
DESCRIPTION = "model.json"
CHANNELS = 3


def server_metadata() -> dict[str, Any]:
    """Returns the content of `GET /v2`."""
    return {"name": SERVER, "version": __version__, "extensions": EXTENSIONS}


def metadata(entry: CatalogEntry) -> dict[str, Any]:
    """Describes a model's inputs and outputs; shapes include the batch dimension if there is one."""
    batch = [-1] if entry.is_batched else []

    def tensors(specs: Sequence[ColumnSpec]) -> list[dict[str, Any]]:
        return [
            {"name": spec.name, "datatype": spec.datatype, "shape": [*batch, *spec.dims]}
            for spec in specs
        ]

    return {
        "name": entry.name,
        "versions": [entry.version],
        "platform": platform(entry.model),
        "inputs": tensors(entry.inputs),
        "outputs": tensors(entry.outputs),
    }


def platform(model: ServedModel) -> str:
    """Returns `onnxruntime` or `torch`."""
    return model.report.info.backend.split()[0]


def config(entry: CatalogEntry) -> dict[str, Any]:
    """Returns Triton's `ModelConfig` as JSON, with model.json among its parameters."""

    def tensor(spec: ColumnSpec) -> dict[str, Any]:
        data_type = "TYPE_STRING" if spec.datatype == BYTES else f"TYPE_{spec.datatype}"
        return {"name": spec.name, "data_type": data_type, "dims": list(spec.dims)}

    settings, model = entry.model.settings, entry.model
    content: dict[str, Any] = {
        "name": entry.name,
        "platform": platform(model),
        "backend": platform(model),
        "version_policy": {"specific": {"versions": [int(entry.version)]}},
        "max_batch_size": model.largest_request if entry.is_batched else 0,
        "input": [{**tensor(spec), "format": layout(spec)} for spec in entry.inputs],
        "output": [tensor(spec) for spec in entry.outputs],
        "instance_group": [
            {
                "name": f"{entry.name}_0",
                "kind": "KIND_GPU" if model.report.on_gpu else "KIND_CPU",
                "count": model.workers,
            }
        ],
    }
    if entry.is_batched:
        content["dynamic_batching"] = {
            "preferred_batch_size": settings.preferred_batch_sizes or [model.report.batch_cap],
            "max_queue_delay_microseconds": settings.max_queue_delay_us,
        }
    return content | {"parameters": {DESCRIPTION: {"string_value": model.description.json_text()}}}


def layout(spec: ColumnSpec) -> str:
    """Returns how Triton's clients may interpret an input: as an image with three channels, or not."""
    is_image = len(spec.dims) == CHANNELS == spec.dims[0]
    return "FORMAT_NCHW" if is_image else "FORMAT_NONE"


def statistics(*entries: CatalogEntry) -> dict[str, Any]:
    """Returns models' counts and durations since their versions went into service."""
    return {"model_stats": [statistics_of(entry) for entry in entries]}


def statistics_of(entry: CatalogEntry) -> dict[str, Any]:
    """Returns one model's statistics: durations per request, and per batch of each size.

    A batch sent by a client counts once; nothing is cached.
    """
    totals, batches = entry.model.statistics(entry.signature)
    return {
        "name": entry.name,
        "version": entry.version,
        "last_inference": totals.last_inference_ms,
        "inference_count": totals.inferences,
        "execution_count": sum(batch.executions for batch in batches.values()),
        "inference_stats": {
            "success": duration(totals.successes, totals.success_ns),
            "fail": duration(totals.failures, totals.failure_ns),
            "queue": duration(totals.successes, totals.queue_ns),
            **compute_durations(totals.successes, totals),
            "cache_hit": duration(0, 0),
            "cache_miss": duration(0, 0),
        },
        "batch_stats": [
            {"batch_size": size, **compute_durations(batch.executions, batch)}
            for size, batch in batches.items()
        ],
    }


def compute_durations(count: int, figures: Totals | BatchTotals) -> dict[str, Any]:
    """Formats the durations of the three stages that requests and batches have in common."""
    return {
        "compute_input": duration(count, figures.decode_ns),
        "compute_infer": duration(count, figures.infer_ns),
        "compute_output": duration(count, figures.output_ns),
    }


def duration(count: int, nanoseconds: int) -> dict[str, int]:
    """Formats Triton's pair of count and nanoseconds."""
    return {"count": count, "ns": nanoseconds}
