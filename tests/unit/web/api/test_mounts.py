"""Which paths are on, for models of each task: while they load, after a load and after an unload."""

import asyncio
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from fastapi import FastAPI

from smallplates.errors import ConfigurationError, OverloadedError
from smallplates.models.folder import Model
from smallplates.models.task_kinds import (
    EMBEDDING,
    IMAGE_CLASSIFICATION,
    KINDS,
    QUESTION_ANSWERING,
    RANKING,
    TENSOR,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    ZERO_SHOT,
)
from smallplates.models.tensors import Signature
from smallplates.protocols import PROTOCOLS
from smallplates.settings import FOOD11, Settings
from smallplates.supervision.registry import UNLOADED
from smallplates.tasks.ranking import Ranking
from smallplates.web.api.dialect import Dialect, Route
from smallplates.web.app import create_app, enabled_dialects, grpc_server
from smallplates.web.inference.service import InferenceService
from tests import exports, graphs
from tests.fake import BACKEND
from tests.unit.web.inference.test_served_model import IMAGES, served

CLASSIFIERS = {TEXT_CLASSIFICATION, ZERO_SHOT}
TEI = {EMBEDDING, RANKING, *CLASSIFIERS}
HUGGING_FACE = {EMBEDDING, *CLASSIFIERS, IMAGE_CLASSIFICATION, QUESTION_ANSWERING, TOKEN_CLASSIFICATION}
ALL = {kind.name for kind in KINDS}
OF_POST = [
    ({EMBEDDING}, ["/embed", "/similarity", "/v1/embed", "/v2/embed", "/vectors"]),
    ({EMBEDDING}, ["/v1/embeddings", "/embeddings", "/openai/v1/embeddings"]),
    ({EMBEDDING}, ["/openai/deployments/NAME/embeddings"]),
    ({EMBEDDING}, ["/api/embed", "/api/embeddings", "/api/show"]),
    ({RANKING}, ["/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/v1/ranking"]),
    ({TEXT_CLASSIFICATION}, ["/classify"]),
    (TEI, ["/tokenize", "/decode"]),
    (HUGGING_FACE, ["/models/NAME"]),
    (HUGGING_FACE | TEI, ["/"]),
    (ALL, ["/predict", "/predict/NAME", "/invocations", "/predictions/NAME"]),
    (ALL, ["/v2/models/NAME/infer", "/v1/models/NAME:predict", "/v2/repository/index", "/embed_sparse"]),
]
OF_GET = [
    (TEI, ["/info"]),
    ({EMBEDDING}, ["/meta"]),
    (ALL, ["/", "/health/live", "/health/ready", "/metrics", "/v2", "/v2/health/live", "/docs"]),
    (ALL, ["/v1/models", "/models", "/api/tags", "/api/version", "/ping", "/health"]),
    (ALL, ["/.well-known/live", "/.well-known/ready", "/v2/models/NAME/ready"]),
]
POST, GET = ({path: tasks for tasks, paths in rows for path in paths} for rows in (OF_POST, OF_GET))
"""Path -> the tasks that it is for."""

CLAIMS = {"/predict": TEI - {EMBEDDING}, "/predict/NAME": HUGGING_FACE}
"""Path of the native API -> the tasks for which another protocol answers some bodies."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Task -> a model folder, whose name is the model's."""
    made = tmp_path_factory.mktemp("models")
    texts = TEXT_CLASSIFICATION, QUESTION_ANSWERING, EMBEDDING, RANKING, TOKEN_CLASSIFICATION, ZERO_SHOT
    exports.each(made, *texts)
    graphs.saved(graphs.two_by_two(), made / TENSOR)
    shutil.copytree(FOOD11, made / IMAGE_CLASSIFICATION)
    return {task: made / task for task in ALL}


def application(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> FastAPI:
    monkeypatch.setattr("smallplates.web.app.configure_logging", lambda _: None)
    models = [f"{folder.name}={folder}" for folder in folders]
    return create_app(Settings(models=models), BACKEND, Mock(shares_ports=False))


def run(service: InferenceService, check: Coroutine[Any, Any, None]) -> None:
    service.threads.start()
    try:
        asyncio.run(check)
    finally:
        service.threads.close()


async def off(app: FastAPI, name: str) -> tuple[set[str], set[str]]:
    """The paths for POST and for GET that are off; `name` is the model's in some of them."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:

        async def is_off(method: str, path: str) -> bool:
            answer = await client.request(method, path.replace("NAME", name), json={})
            return answer.status_code == 404

        return (
            {path for path in POST if await is_off("POST", path)},
            {path for path in GET if await is_off("GET", path)},
        )


def for_others(*tasks: str) -> tuple[set[str], set[str]]:
    """The paths that are for none of these tasks."""
    posted, got = ({path for path in paths if not paths[path] & {*tasks}} for paths in (POST, GET))
    return posted, got


def claimed(app: FastAPI) -> set[str]:
    """The paths of the native API on which other protocols answer some bodies."""
    return {
        route.path.replace("{model}", "NAME")
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith("/predict") and route.claims
    }


@pytest.mark.parametrize("task", sorted(ALL))
def test_paths_for_other_tasks_are_off_while_the_only_model_loads_or_has_failed(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    app = application(monkeypatch, folders[task])

    async def check() -> None:
        assert await off(app, task) == for_others(task)
        assert claimed(app) == {path for path, tasks in CLAIMS.items() if task in tasks}
        await app.state.service.withdraw(task, "it has no weights")
        assert await off(app, task) == for_others(task)

    run(app.state.service, check())


def test_paths_follow_loads_and_unloads(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = application(monkeypatch, folders[IMAGE_CLASSIFICATION])
    service = app.state.service

    async def load(task: str, signatures: tuple[Signature, ...]) -> None:
        full = Mock(is_down=False, drain=AsyncMock(), memory=Mock(ready_workers=[1]))
        full.acquire.side_effect = full.check_free.side_effect = OverloadedError("all slots are taken")
        model = served(Model.read(folders[task], name=task), "cpu", 5.0, 2, 1, signatures)
        model.client, service._prepared[0] = full, model
        await service.serve(0)

    async def check() -> None:
        await load(IMAGE_CLASSIFICATION, IMAGES)
        assert await off(app, IMAGE_CLASSIFICATION) == for_others(IMAGE_CLASSIFICATION)
        read = Model.read(folders[RANKING])
        await load(RANKING, Ranking.plan(read, Settings(), graphs.compared(read)))
        for name in (RANKING, IMAGE_CLASSIFICATION):
            assert await off(app, name) == for_others(IMAGE_CLASSIFICATION, RANKING)
        assert claimed(app) == {*CLAIMS}
        await service.withdraw(RANKING, UNLOADED)
        assert await off(app, IMAGE_CLASSIFICATION) == for_others(IMAGE_CLASSIFICATION)
        assert claimed(app) == {"/predict/NAME"}
        await service.withdraw(IMAGE_CLASSIFICATION, UNLOADED)  # it may be loaded again, by its name
        assert await off(app, IMAGE_CLASSIFICATION) == for_others(IMAGE_CLASSIFICATION)

    run(service, check())


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/embed", {"error", "error_type"}),
        ("/v1/embeddings", {"error", "detail"}),
        ("/v2/rerank", {"id", "message"}),
        ("/api/embed", {"error"}),
        ("/vectors", {"error"}),
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_the_refusal_has_the_shape_of_its_protocol(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str, fields: set[str]
) -> None:
    app = application(monkeypatch, FOOD11)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.request(method, path)

    answer = asyncio.run(ask())
    assert (answer.status_code, set(answer.json())) == (404, fields)
    assert EMBEDDING in answer.text or RANKING in answer.text


def test_every_name_in_the_settings_is_a_protocol() -> None:
    _, *dialects = enabled_dialects(Settings())
    assert Settings().protocols == [*PROTOCOLS]
    assert len({dialect.title for dialect in dialects}) == len(PROTOCOLS)
    assert [dialect.title for dialect in enabled_dialects(Settings(protocols="tei"))] == [
        *("Native", "Text Embeddings Inference")
    ]


def test_services_for_grpc_that_cannot_be_imported_stop_the_start() -> None:
    pipeline: Any = Mock(service=Mock(settings=Settings(grpc_port=1)))
    broken = Dialect(lambda *_: None, grpc="no_such_module:services")
    with pytest.raises(ConfigurationError, match="no_such_module"):
        grpc_server([broken], pipeline, Mock(), None)
