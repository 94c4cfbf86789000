"""What the log says of requests: refusals by the thousand do not make lines by the thousand."""

import asyncio
import json

import pytest

from smallplates.errors import OverloadedError
from smallplates.logging import configure_logging
from smallplates.settings import Settings
from smallplates.web.http import request_context
from smallplates.web.http.request_context import RequestContext
from smallplates.web.metrics import Metrics


def record(
    metrics: Metrics, status: int, path: str = "/predict", model: str = "", method: str = "POST"
) -> None:
    code = "ok" if status == 200 else "overloaded"
    error = None if status == 200 else OverloadedError("the queue is full")
    context = RequestContext("an id", method, path, status=status, code=code, error=error, model=model)
    request_context.record(metrics, context, path, timed=True)


def test_of_many_refusals_the_first_have_lines_and_the_others_one(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging(Settings())
    metrics = Metrics()
    monkeypatch.setattr(request_context, "refusals", refusals := request_context.Refusals(1e-3))

    async def refuse(count: int) -> None:
        for _ in range(count):
            record(metrics, 503)
        record(metrics, 429, "/embed")
        record(metrics, 200)
        await asyncio.sleep(2 * refusals.second_s)  # a timer that is due after theirs

    asyncio.run(refuse(request_context.LINES_A_SECOND + 30))
    asyncio.run(refuse(1))
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    told = [line["status"] for line in lines if line.get("status") in (429, 503)]
    assert told == [503] * (request_context.LINES_A_SECOND + 1) + [429]
    assert [line["status"] for line in lines if line.get("status") == 200] == [200, 200]
    assert [line["requests"] for line in lines if line["event"] == "more requests were refused"] == [31]
    assert f'status="503"}} {request_context.LINES_A_SECOND + 31}.0' in metrics.text().decode()


def test_the_model_that_was_asked(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings())
    for model in ("sentiment", ""):
        record(Metrics(), 200, model=model)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line.get("model") for line in lines] == ["sentiment", None]


@pytest.mark.parametrize(
    "path",
    [
        *("/health/ready", "/v2/health/ready", "/ping", "/health", "/.well-known/ready"),
        *("/v2/models/food11/ready", "/v2/models/food11/versions/1/ready"),
        *("/inference.GRPCInferenceService/ModelReady", "/inference.GRPCInferenceService/ServerLive"),
    ],
)
def test_probes_that_are_refused_are_no_news(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings())
    metrics = Metrics()
    record(metrics, 200, path)
    record(metrics, 503, path)
    record(metrics, 500, path)
    assert [json.loads(line)["status"] for line in capfd.readouterr().err.splitlines()] == [500]


def test_a_state_that_is_asked_for_while_a_model_loads_is_no_news(
    capfd: pytest.CaptureFixture[str],
) -> None:
    configure_logging(Settings())
    record(Metrics(), 503, "/v1/models/food11", method="GET")
    assert not capfd.readouterr().err


def test_long_paths_are_cut(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings())
    record(Metrics(), 200, "/" + "x" * 60_000)
    (line,) = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert line["path"] == "/" + "x" * (request_context.MAX_PATH - 1)
