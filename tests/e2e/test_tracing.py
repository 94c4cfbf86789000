"""OpenTelemetry traces of a fake service, as a real OTLP receiver in this process gets them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import TracerProvider
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

from flask_app.app import create_app as create_page
from flask_app.settings import Settings as PageSettings
from smallplates.client import Client
from tests import servers
from tests.browser.stub_api import Reply, StubApi, stub_api
from tests.e2e.services import check_one_sentence, ended, predict
from tests.fake.backend import Failure, command
from tests.servers import wait_for

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
STAGES = ["decode", "queue", "infer"]


@dataclass(frozen=True)
class Receiver:
    """A collector, and what the SDK's exporter has posted to it."""

    collector: StubApi

    @property
    def requests(self) -> list[ExportTraceServiceRequest]:
        asked = self.collector.asked.copy()
        assert {each.path for each in asked} <= {"/v1/traces"}
        return [ExportTraceServiceRequest.FromString(each.body) for each in asked]

    def spans(self, request_id: str = "") -> list[Span]:
        """All spans, or those of one request once they are here, the request's own first."""
        spans = [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        if not request_id:
            return spans
        of_request = [span for span in spans if attributes(span).get("serving.request_id") == request_id]
        return of_request + [
            span for span in spans if of_request and span.parent_span_id == of_request[0].span_id
        ]

    def wait(self, request_id: str) -> list[Span]:
        """The spans of one request, whose own is sent last."""
        wait_for(lambda: bool(self.spans(request_id)))
        return self.spans(request_id)

    def resources(self, name: str) -> set[str]:
        """The values of an attribute of the processes that sent spans."""
        return {
            pair.value.string_value
            for request in self.requests
            for resource in request.resource_spans
            for pair in resource.resource.attributes
            if pair.key == name
        }


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with stub_api() as collector:
        yield Receiver(collector)


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[str, str, Receiver]]:
    """URL of a service, host and port of its gRPC, and where its spans are."""
    port = str(servers.free_port())
    with stub_api() as collector:
        receiver = Receiver(collector)
        with servers.api("tests.fake", settings(receiver, SERVING_GRPC_PORT=port)) as url:
            yield url, f"127.0.0.1:{port}", receiver


def settings(receiver: Receiver, **more: str) -> dict[str, str]:
    """The environment of a service that sends its spans soon."""
    return {
        "SERVING_INSTANCES": "1",
        "SERVING_LOG_LEVEL": "error",
        "SERVING_OTLP_ENDPOINT": receiver.collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "10",
        **more,
    }


def attributes(span: Span) -> dict[str, str | int]:
    values = {pair.key: pair.value for pair in span.attributes}
    return {key: getattr(value, str(value.WhichOneof("value"))) for key, value in values.items()}


def log_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def check_nested(spans: list[Span]) -> None:
    request, *stages = spans
    assert [span.name for span in stages] == STAGES
    times = [moment for s in stages for moment in (s.start_time_unix_nano, s.end_time_unix_nano)]
    times = [request.start_time_unix_nano, *times, request.end_time_unix_nano]
    assert times == sorted(times)
    assert {span.trace_id for span in stages} == {request.trace_id}


def test_a_request_is_a_span_and_its_stages_are_its_children(traced: tuple[str, str, Receiver]) -> None:
    url, _, receiver = traced
    answer = predict(url, command(), X_Request_ID="one", traceparent=TRACEPARENT)
    assert answer.status_code == 200
    spans = receiver.wait("one")
    check_nested(spans)
    request = spans[0]
    assert (request.name, request.kind) == ("POST /predict", Span.SPAN_KIND_SERVER)
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.route": "/predict",
        "http.response.status_code": 200,
        "url.path": "/predict",
        "url.scheme": "http",
        "serving.request_id": "one",
        "serving.model.name": "food11",
        "serving.model.version": "1",
        "serving.batch_size": 1,
    }
    told = dict(part.strip().split(";dur=") for part in answer.headers["Server-Timing"].split(","))
    took = [(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6 for span in spans[1:]]
    assert took == pytest.approx([float(told[stage]) for stage in STAGES], abs=0.006)  # it is rounded
    assert receiver.resources("service.name") == {"smallplates"}


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{PARENT}",
        f"00-{'0' * 32}-{PARENT}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"{TRACEPARENT}-{'x' * 16_000}",
        f"01-{TRACE}-{PARENT}-01-{'x' * 16_000}",
        "00-\x80\xff-\xfc-01",
    ],
    ids=lambda bad: repr(bad[:60]),
)
def test_what_is_no_traceparent_is_ignored(traced: tuple[str, str, Receiver], bad: str) -> None:
    url, _, receiver = traced
    name = f"bad-{abs(hash(bad))}"
    headers: dict[str, str | bytes | None]
    headers = {"traceparent": bad.encode("latin-1"), "X-Request-ID": name}
    answer = requests.post(f"{url}/predict", data=command(), headers=headers, timeout=60)
    assert answer.status_code == 200
    request = receiver.wait(name)[0]
    assert request.parent_span_id == b""
    assert request.trace_id.hex() not in (TRACE, "0" * 32)


def test_failures_are_marked(traced: tuple[str, str, Receiver]) -> None:
    url, _, receiver = traced
    predict(url, b"no picture", X_Request_ID="refused")
    predict(url, command(failure=Failure.RAISE), X_Request_ID="failed")
    path = "/%ff%00%ed%a0%80/" + "x" * 2000
    requests.get(url + path, headers={"X-Request-ID": "missing"}, timeout=60)
    spans = [receiver.wait(name)[0] for name in ("refused", "failed", "missing")]
    assert [attributes(span)["error.type"] for span in spans] == [
        "invalid_image",
        "internal_error",
        "not_found",
    ]
    assert [attributes(span)["http.response.status_code"] for span in spans] == [400, 500, 404]
    asked = [attributes(span).get("serving.model.name") for span in spans]
    assert asked == ["food11", "food11", None]
    error, unset = Status.STATUS_CODE_ERROR, Status.STATUS_CODE_UNSET
    assert [span.status.code for span in spans] == [unset, error, unset]
    assert spans[2].name == "GET"
    assert len(str(attributes(spans[2])["url.path"])) == 500


def test_probes_make_no_spans(traced: tuple[str, str, Receiver]) -> None:
    url, _, receiver = traced
    for path in ("/health/live", "/health/ready", "/v2/health/ready", "/ping", "/metrics"):
        requests.get(url + path, headers={"X-Request-ID": "probe"}, timeout=60)
    predict(url, command(), X_Request_ID="after-the-probes")
    receiver.wait("after-the-probes")
    assert receiver.spans("probe") == []


def test_grpc_takes_the_trace_from_its_metadata(traced: tuple[str, str, Receiver]) -> None:
    _, target, receiver = traced
    tensor = triton.InferInput("INPUT_IMAGE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([command()], object))

    def ask(model: str, request_id: str) -> None:
        with triton.InferenceServerClient(target) as client:
            headers = {"traceparent": TRACEPARENT, "x-request-id": request_id}
            client.infer(model, [tensor], headers=headers)

    ask("food_classifier", "by-grpc")
    with pytest.raises(InferenceServerException):
        ask("nothing", "by-grpc-failed")
    spans = receiver.wait("by-grpc")
    check_nested(spans)
    method = "inference.GRPCInferenceService/ModelInfer"
    assert (spans[0].name, spans[0].parent_span_id.hex()) == (method, PARENT)
    tags = attributes(spans[0])
    assert [tags["rpc.system.name"], tags["rpc.method"]] == ["grpc", method]
    assert [tags["rpc.response.status_code"], tags["serving.batch_size"]] == ["OK", 1]
    assert tags["serving.model.name"] == "food11"
    failed = attributes(receiver.wait("by-grpc-failed")[0])
    assert [failed["rpc.response.status_code"], failed["error.type"]] == ["NOT_FOUND", "not_found"]


@pytest.mark.parametrize(
    ("traceparent", "parent"), [(TRACEPARENT, PARENT), ("", ""), ("bad", ""), (f"{TRACEPARENT}\xfc", "")]
)
def test_the_page_passes_the_trace_on(
    traced: tuple[str, str, Receiver], traceparent: str, parent: str
) -> None:
    url, _, receiver = traced
    page = create_page(PageSettings(api_url=url))
    name = f"page-{abs(hash(traceparent))}"
    answer = page.test_client().post(
        "/classify",
        data=command(),
        headers={"traceparent": traceparent, "X-Request-ID": name, "Content-Type": "image/png"},
    )
    page.extensions["api"].close()
    assert answer.status_code == 200
    assert receiver.wait(name)[0].parent_span_id.hex() == parent


def test_the_client_sends_the_current_span(traced: tuple[str, str, Receiver]) -> None:
    url, _, receiver = traced
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with Client(url) as client, tracer.start_as_current_span("caller") as span:
        client.predict(command(), request_id="within", traceparent=TRACEPARENT)
    request = receiver.wait("within")[0]
    assert request.parent_span_id == span.get_span_context().span_id.to_bytes(8)
    assert request.trace_id == span.get_span_context().trace_id.to_bytes(16)


def test_what_is_not_sampled_has_a_trace_id_in_the_log(
    receiver: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    standard = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
    more = {"SERVING_LOG_LEVEL": "info", "OTEL_SERVICE_NAME": "mine", **standard}
    with servers.api("tests.fake", settings(receiver, **more)) as url:
        predict(url, command(), X_Request_ID="dropped")
        predict(url, command(), X_Request_ID="chosen", traceparent=TRACEPARENT)
        receiver.wait("chosen")
    assert receiver.spans("dropped") == []
    assert receiver.resources("service.name") == {"mine"}
    lines = [line for line in log_lines(capfd.readouterr().err) if line["event"] == "request"]
    ids = {line["request_id"]: line["trace_id"] for line in lines}
    assert ids["chosen"] == TRACE
    assert len(ids["dropped"]) == 32
    assert {line["model"] for line in lines} == {"food11"}


def test_a_collector_that_refuses_is_one_warning(
    receiver: Receiver, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.collector.usual = Reply(400)
    with servers.api("tests.fake", settings(receiver, SERVING_LOG_LEVEL="warning")) as url:
        for count in range(1, 4):
            assert predict(url, command()).status_code == 200
            wait_for(lambda: len(receiver.requests) == count)  # noqa: B023 called here
    (line,) = log_lines(capfd.readouterr().err)
    assert (line["level"], line["event"]) == ("warning", "traces may be lost")
    assert "400" in line["reason"]


@pytest.mark.parametrize(("trouble", "processes"), [("down", 1), ("held", 1), ("held", 2)])
def test_the_service_answers_and_ends_without_a_collector(
    receiver: Receiver, trouble: str, processes: int, tmp_path: Path
) -> None:
    more = {"SERVING_WEB_PROCESSES": str(processes), "OTEL_BSP_MAX_QUEUE_SIZE": "4"}
    more |= {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4", "SERVING_LOG_LEVEL": "warning"}
    url = f"http://127.0.0.1:{(port := servers.free_port())}"
    line = ["smallplates.service", "tests.fake", "--port", str(port)]
    env, log = settings(receiver, **more), tmp_path / "log"
    with servers.running(line, f"{url}/health/ready", env, log) as server:

        def all_have_sent() -> bool:
            assert predict(url, command()).status_code == 200
            return len(receiver.resources("service.instance.id")) == processes

        wait_for(all_have_sent)
        if trouble == "down":
            receiver.collector.down()
        else:
            receiver.collector.held.clear()
        for _ in range(20):  # more than the queues hold
            assert predict(url, command()).status_code == 200
        server.terminate()
        assert server.wait(60) == 0
    told = [line["event"] for line in log_lines(log.read_text())]
    assert set(told) <= {"traces may be lost"}
    assert len(told) <= processes


def test_a_wrong_variable_of_opentelemetry_is_named() -> None:
    process = ended({"SERVING_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_MAX_QUEUE_SIZE": "1"})
    check_one_sentence(process, "OTEL_BSP_", "max_queue_size")


def test_without_the_setting_nothing_of_it_is_imported() -> None:
    program = (
        "import sys; from smallplates.web.app import create_app;"
        "from smallplates.settings import Settings;"
        "create_app(Settings(), 'tests.fake.backend:FakeBackend');"
        "sys.exit('opentelemetry.sdk' in sys.modules or 'smallplates.web.http.tracing' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=servers.ROOT, check=False).returncode == 0
