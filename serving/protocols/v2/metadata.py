"""What the Open Inference Protocol tells about models: metadata, configuration, statistics.

The shapes are Triton's, which `perf_analyzer` reads before and after every window it measures.
"""

from dataclasses import asdict
from typing import Any

from serving import __version__
from serving.engine.memory import Signature
from serving.engine.statistics import BatchTotals, Totals
from serving.inference.service import Classifier
from serving.protocols.catalog import CatalogEntry, TensorSpec

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
CONFIG_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}

# what Triton's clients may ask and this service refuses, in words
SHARED_MEMORY = "shared memory is not supported: send the data"
TRACING = "requests are not traced: see /metrics"
LOGGING = "clients cannot see or change how the service logs"
GENERATION = "the models here classify: use infer"

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
    """Of `GET /v2`."""
    return {"name": SERVER, "version": __version__, "extensions": EXTENSIONS}


def metadata(classifier: Classifier, model: CatalogEntry) -> dict[str, Any]:
    """Of one model; shapes begin with the batch's dimension."""

    def tensor(spec: TensorSpec) -> dict[str, Any]:
        return {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.dims]}

    return {
        "name": model.name,
        "versions": [model.version],
        "platform": platform(classifier),
        "inputs": [tensor(model.input)],
        "outputs": [tensor(spec) for spec in model.outputs],
    }


def platform(classifier: Classifier) -> str:
    """`onnxruntime` or `torch`."""
    name: str = classifier.served.handle.profile["info"]["backend"]
    return name.split()[0]


def config(classifier: Classifier, model: CatalogEntry) -> dict[str, Any]:
    """Of one model, as Triton's `ModelConfig` in JSON; its description is among the parameters."""

    def tensor(spec: TensorSpec) -> dict[str, Any]:
        return {
            "name": spec.name,
            "data_type": CONFIG_TYPES[spec.datatype],
            "dims": list(spec.dims),
        }

    layout = "FORMAT_NCHW" if model.kind is Signature.TENSOR else "FORMAT_NONE"
    settings, handle = classifier.settings, classifier.served.handle
    on_gpu = handle.profile["info"]["device"] != "cpu"
    return {
        "name": model.name,
        "platform": platform(classifier),
        "backend": platform(classifier),
        "version_policy": {"specific": {"versions": [int(model.version)]}},
        "max_batch_size": classifier.largest_request,
        "input": [{**tensor(model.input), "format": layout}],
        "output": [tensor(spec) for spec in model.outputs],
        "instance_group": [
            {
                "name": f"{model.name}_0",
                "kind": "KIND_GPU" if on_gpu else "KIND_CPU",
                "count": handle.fds.layout.workers,
            }
        ],
        "dynamic_batching": {
            "preferred_batch_size": settings.preferred_batch_sizes or [handle.profile["batch_cap"]],
            "max_queue_delay_microseconds": settings.max_queue_delay_us,
        },
        "parameters": {DESCRIPTION: {"string_value": handle.model.description.json_text()}},
    }


def statistics(classifier: Classifier, model: CatalogEntry) -> dict[str, Any]:
    """Of one model since its version went into service, over all web processes."""
    counted = classifier.served.client.statistics
    totals = counted.totals(model.kind)
    batches = counted.by_batch_size(model.kind)
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": totals.last_inference_ms,
        "inference_count": totals.inferences,
        "execution_count": sum(batch.executions for batch in batches.values()),
        "inference_stats": request_durations(totals),
        "batch_stats": [
            {"batch_size": size, **batch_durations(batch)} for size, batch in batches.items()
        ],
    }


def request_durations(totals: Totals) -> dict[str, Any]:
    """Per request: a batch that a client sent counts once; nothing is cached here."""
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
    """Per execution of one batch size."""
    return {
        "compute_input": duration(batch.executions, batch.decode_ns),
        "compute_infer": duration(batch.executions, batch.infer_ns),
        "compute_output": duration(batch.executions, batch.output_ns),
    }


def duration(count: int, nanoseconds: int) -> dict[str, int]:
    """Triton's pair."""
    return {"count": count, "ns": nanoseconds}
