"""What Triton's clients may ask by the Open Inference Protocol and this service refuses, in words."""

SHARED_MEMORY = "shared memory is not supported: send the data"
TRACING = "requests are not traced: see /metrics"
LOGGING = "clients cannot see or change how the service logs"
GENERATION = "the models here classify: use infer"

PATHS = {
    "/v2/systemsharedmemory/{rest:path}": SHARED_MEMORY,
    "/v2/cudasharedmemory/{rest:path}": SHARED_MEMORY,
    "/v2/trace/setting": TRACING,
    "/v2/models/{model}/trace/setting": TRACING,
    "/v2/logging": LOGGING,
    "/v2/models/{model}/generate": GENERATION,
    "/v2/models/{model}/generate_stream": GENERATION,
}

CALLS = {
    **{
        f"{kind}SharedMemory{verb}": SHARED_MEMORY
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": TRACING,
    "LogSettings": LOGGING,
}
