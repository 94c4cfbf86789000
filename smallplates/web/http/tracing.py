"""OpenTelemetry traces: one span per request and one per stage, created when the request has ended.

Imported only if `SERVING_OTLP_ENDPOINT` is set. A thread of OpenTelemetry's SDK sends the spans and
drops those that the collector does not accept in time. The usual `OTEL_...` variables configure
sampling, resource, queue and timeouts.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from smallplates import __version__
from smallplates.engine.statistics import nanoseconds
from smallplates.errors import ConfigurationError
from smallplates.logging import logger
from smallplates.web.http.request_context import CLIENT_GONE, MAX_PATH, RequestContext

STOP_S = 2.0
QUIET_S = 600.0  # minimum between two warnings
STAGES = ("decode", "queue", "infer")
MAX_PARENT = 128  # characters of a traceparent; version 00 has 55
NO_PARENT = Context()
PARENTS = TraceContextTextMapPropagator()


class Warnings(logging.Handler):
    """Logs one of the SDK's warnings and drops those of the next ten minutes."""

    again = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Logs the record as a warning unless it comes too soon after the last one."""
        if record.levelno >= logging.WARNING and record.created >= self.again:
            self.again = record.created + QUIET_S
            logger().warning("traces may be lost", reason=record.getMessage())


class Tracer:
    """Creates the spans for one web process's requests."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint` is a collector's base URL for OTLP over HTTP."""
        self._endpoint = f"{endpoint.rstrip('/')}/v1/traces"
        ours = Resource.create({"service.name": "smallplates", "service.version": __version__})
        self._provider = TracerProvider(
            resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._tracer = self._provider.get_tracer("serving", __version__)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Sends spans until the block ends and for up to STOP_S after it. Raises ConfigurationError."""
        try:
            processor = BatchSpanProcessor(OTLPSpanExporter(self._endpoint))
        except ValueError as error:
            raise ConfigurationError(f"OTEL_BSP_...: {error}") from error
        self._provider.add_span_processor(processor)
        log = logging.getLogger("opentelemetry")
        log.handlers, log.propagate = [Warnings()], False
        try:
            yield
        finally:  # on a thread, because the SDK waits until its request to the collector ends
            ending = threading.Thread(target=self._provider.shutdown, daemon=True)
            ending.start()
            ending.join(STOP_S)

    def record_http(self, context: RequestContext, route: str | None) -> str:
        """Creates the spans of an HTTP request that ends now; returns what `record` returns."""
        attributes: dict[str, str | int] = {
            "http.request.method": context.method,
            "url.path": context.path[:MAX_PATH],
            "url.scheme": "http",
            **({"http.route": route} if route else {}),
            **({"http.response.status_code": context.status} if context.status else {}),
        }
        return self.record(context, f"{context.method} {route or ''}".rstrip(), attributes)

    def record(self, context: RequestContext, name: str, attributes: Mapping[str, str | int]) -> str:
        """Creates the spans of a request that ends now, if it is sampled.

        Returns its trace id, or "" with OTEL_SDK_DISABLED. An invalid traceparent is ignored.
        """
        status = context.status or CLIENT_GONE
        now, ended_at = time.monotonic(), time.time_ns()
        parent = NO_PARENT
        if 0 < len(context.traceparent) <= MAX_PARENT:
            parent = PARENTS.extract({"traceparent": context.traceparent})
        span = self._tracer.start_span(
            name,
            parent,
            SpanKind.SERVER,
            {**attributes, "serving.request_id": context.request_id},
            start_time=ended_at - nanoseconds(now - context.started),
        )
        if span.is_recording():
            if context.model:
                span.set_attribute("serving.model.name", context.model)
            if timings := context.inference:
                span.set_attributes(
                    {"serving.model.version": timings.version, "serving.batch_size": timings.batch_size}
                )
                moment = ended_at - nanoseconds(now - timings.admitted_at)
                stages = (timings.decode_s, timings.queue_s, timings.infer_s)
                for stage, seconds in zip(STAGES, stages, strict=True):
                    child = self._tracer.start_span(stage, set_span_in_context(span), start_time=moment)
                    moment += nanoseconds(seconds)
                    child.end(moment)
            code = "client_gone" if status == CLIENT_GONE else context.code
            if code != "ok":
                span.set_attribute("error.type", code)
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))
        span.end(ended_at)
        span_context = span.get_span_context()
        return format_trace_id(span_context.trace_id) if span_context.is_valid else ""
