"""Metadata, configuration and statistics of models, as the Open Inference Protocol has them.

The shapes are Triton's, which `perf_analyzer` reads before and after every window it measures.
"""

from dataclasses import asdict
from typing import Any

from serving import __version__
from serving.engine.statistics import BatchTotals, Totals
from serving.inference.active_model import ModelMetadata
from serving.inference.service import InferenceService
from serving.protocols.catalog import CatalogEntry, WireTensor

SERVER = "food-classifier-serving"
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
CONFIG_TYPES = {"BYTES": "TYPE_STRING"}  # the others are TYPE_ and their names

# why this service refuses some of what Triton's clients may ask
SHARED_MEMORY = "shared memory is not supported: send the data"
TRACING = "requests are not traced: see /metrics"
LOGGING = "clients cannot see or change how the service logs"
GENERATION = "the models here do not generate: use infer"

UNSUPPORTED_PATHS = {
    "/v2/systemsharedmemory/{rest:path}": SHARED_MEMORY,
    "/v2/cudasharedmemory/{rest:path}": SHARED_MEMORY,
    "/v2/trace/setting": TRACING,
    "/v2/models/{model}/trace/setting": TRACING,
    "/v2/logging": LOGGING,
    "/v2/models/{model}/generate": GENERATION,
    "/v2/models/{model}/generate_stream": GENERATION,
}

UNSUPPORTED_CALLS = {
    **{
        f"{kind}SharedMemory{verb}": SHARED_MEMORY
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": TRACING,
    "LogSettings": LOGGING,
}


def server_metadata() -> dict[str, Any]:
    """Returns the content of `GET /v2`."""
    return {"name": SERVER, "version": __version__, "extensions": EXTENSIONS}


def metadata(service: InferenceService, entry: CatalogEntry) -> dict[str, Any]:
    """Describes a model's inputs and outputs; shapes begin with the batch dimension."""

    def tensor(spec: WireTensor) -> dict[str, Any]:
        return {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.dims]}

    return {
        "name": entry.name,
        "versions": [entry.version],
        "platform": platform(service.metadata()),
        "inputs": [tensor(spec) for spec in entry.inputs],
        "outputs": [tensor(spec) for spec in entry.outputs],
    }


def platform(model: ModelMetadata) -> str:
    """Returns `onnxruntime` or `torch`."""
    return model.backend.split()[0]


def config(service: InferenceService, entry: CatalogEntry) -> dict[str, Any]:
    """Returns Triton's `ModelConfig` as JSON, with model.json among its parameters."""

    def tensor(spec: WireTensor) -> dict[str, Any]:
        return {
            "name": spec.name,
            "data_type": CONFIG_TYPES.get(spec.datatype, f"TYPE_{spec.datatype}"),
            "dims": list(spec.dims),
        }

    settings, model = service.settings, service.metadata()
    return {
        "name": entry.name,
        "platform": platform(model),
        "backend": platform(model),
        "version_policy": {"specific": {"versions": [int(entry.version)]}},
        "max_batch_size": service.largest_request,
        "input": [{**tensor(spec), "format": layout(spec)} for spec in entry.inputs],
        "output": [tensor(spec) for spec in entry.outputs],
        "instance_group": [
            {
                "name": f"{entry.name}_0",
                "kind": "KIND_GPU" if model.on_gpu else "KIND_CPU",
                "count": model.instances,
            }
        ],
        "dynamic_batching": {
            "preferred_batch_size": settings.preferred_batch_sizes or [model.batch_cap],
            "max_queue_delay_microseconds": settings.max_queue_delay_us,
        },
        "parameters": {DESCRIPTION: {"string_value": model.description.json_text()}},
    }


def layout(spec: WireTensor) -> str:
    """Returns how Triton's clients may look at an input: as an image of three channels, or not."""
    is_image = len(spec.dims) == CHANNELS == spec.dims[0]
    return "FORMAT_NCHW" if is_image else "FORMAT_NONE"


def statistics(service: InferenceService, entry: CatalogEntry) -> dict[str, Any]:
    """Returns a model's counts and durations since its version is in service, of all web processes."""
    totals, batches = service.statistics(entry.signature)
    return {
        "name": entry.name,
        "version": entry.version,
        "last_inference": totals.last_inference_ms,
        "inference_count": totals.inferences,
        "execution_count": sum(batch.executions for batch in batches.values()),
        "inference_stats": request_durations(totals),
        "batch_stats": [
            {"batch_size": size, **batch_durations(batch)} for size, batch in batches.items()
        ],
    }


def request_durations(totals: Totals) -> dict[str, Any]:
    """Formats durations per request: a batch that a client sent counts once; nothing is cached."""
    figures = asdict(totals)
    stages = {"queue": "queue", "compute_input": "decode"}
    stages |= {"compute_infer": "infer", "compute_output": "output"}
    return {
        "success": duration(totals.successes, totals.success_ns),
        "fail": duration(totals.failures, totals.failure_ns),
        **{name: duration(totals.successes, figures[f"{own}_ns"]) for name, own in stages.items()},
        "cache_hit": duration(0, 0),
        "cache_miss": duration(0, 0),
    }


def batch_durations(batch: BatchTotals) -> dict[str, Any]:
    """Formats durations per execution of one batch size."""
    return {
        "compute_input": duration(batch.executions, batch.decode_ns),
        "compute_infer": duration(batch.executions, batch.infer_ns),
        "compute_output": duration(batch.executions, batch.output_ns),
    }


def duration(count: int, nanoseconds: int) -> dict[str, int]:
    """Formats Triton's pair of count and nanoseconds."""
    return {"count": count, "ns": nanoseconds}
