"""The gRPC server, with gRPC's own health service.

Every web process has a server. If there are several, they share the port with SO_REUSEPORT, the only way
to share a gRPC listener, and the kernel assigns each connection to one of them.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc

from smallplates.errors import ConfigurationError, NotFoundError
from smallplates.logging import logger
from smallplates.web.api.catalog import ModelCatalog
from smallplates.web.api.pipeline import Pipeline
from smallplates.web.grpc.calls import Calls, Content, Method, Methods
from smallplates.web.grpc.generated import grpc_health_pb2 as pb
from smallplates.web.grpc.limits import CALLS, Context, Message, options
from smallplates.web.http.request_context import HEALTH_PATH

if TYPE_CHECKING:
    from smallplates.web.http.tracing import Tracer

STOP_S = 1.0
CLIENTS_FAULTS = ("ExecuteBatchError raised", "Invalid encoding")
"""How gRPC's records begin of vanished clients, and of metadata that isn't text."""

Services = Callable[[Calls, ModelCatalog], Mapping[str, Methods]]
"""Returns a protocol's services by name."""


def lower(record: logging.LogRecord) -> bool:
    """Lowers the level of gRPC's records of what clients do, which are errors with a traceback."""
    if record.getMessage().startswith(CLIENTS_FAULTS):
        record.levelno = logging.DEBUG
    return True


@asynccontextmanager
async def run(
    pipeline: Pipeline, catalog: ModelCatalog, tracer: "Tracer | None", protocols: Iterable[Services]
) -> AsyncIterator[None]:
    """Serves gRPC until the block ends. Raises ConfigurationError if the port is taken."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(lower)
    settings, calls = pipeline.service.settings, Calls(pipeline, tracer)
    services = {name: each for make in protocols for name, each in make(calls, catalog).items()}

    def health(request: Message, _: Context) -> Content:
        """Answers health probes of Kubernetes and load balancers. Raises NotFoundError."""
        if request.service and request.service not in services:
            raise NotFoundError(f"there is no service {request.service[:80]!r}")
        return {"status": "SERVING" if pipeline.service.is_ready else "NOT_SERVING"}

    _, own, check = HEALTH_PATH.split("/")
    methods = {check: Method(pb.HealthCheckRequest, pb.HealthCheckResponse, health)}
    limits = options(settings, pipeline.service.registry.shares_ports)
    server = grpc.aio.server(options=limits, maximum_concurrent_rpcs=CALLS)
    server.add_generic_rpc_handlers(
        grpc.method_handlers_generic_handler(
            name, {each: calls.handler(f"/{name}/{each}", method) for each, method in table.items()}
        )
        for name, table in {**services, own: methods}.items()
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        port = server.add_insecure_port(f"{host}:{settings.grpc_port}")
    except RuntimeError as error:
        raise ConfigurationError(
            f"gRPC cannot listen on {host}:{settings.grpc_port}: {error}"
        ) from error
    await server.start()
    logger().info("gRPC listening", host=settings.host, port=port)
    try:
        yield
    finally:
        await server.stop(STOP_S)
