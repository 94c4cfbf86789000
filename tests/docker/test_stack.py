"""The stack as people start it, keys in files, with Prometheus; what Grafana asks is asked here."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from smallplates.cli import processes
from smallplates.models.folder import file_sha256
from tests.docker import traffic
from tests.docker.conftest import CHOSEN, SERVICES
from tests.docker.containers import Stack, base, inspect, run, wait_until
from tests.pictures import jpeg
from tests.servers import ROOT, free_port

pytestmark = [pytest.mark.docker, pytest.mark.timeout(3000)]
KEY, TOKEN = "key-of-the-test", "token-of-the-test"
FILES = ("fastapi", "secrets", "secrets-jupyter", "monitoring")
READY = {  # what is published, and what answers there when it is ready
    "API_PORT": "/health/ready",
    "PAGE_PORT": "/healthz",
    "PROMETHEUS_PORT": "/-/ready",
    "JUPYTER_PORT": "/api",
}
RUNNING = ["fastapi_server", "flask", "prometheus"]
if "jupyter" in CHOSEN:
    RUNNING.append("jupyter")
else:
    del READY["JUPYTER_PORT"]
needs_jupyter = pytest.mark.skipif("jupyter" not in CHOSEN, reason="IMAGES leaves Jupyter out")
DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "smallplates.json"
CALL_THE_API = """
from smallplates.client import Client
with Client("http://fastapi_server:8000", api_key="key-of-the-test") as client:
    print(client.predict("flask_app/static/samples/soup.jpg").label)
"""


@pytest.fixture(scope="module")
def addresses() -> dict[str, str]:
    """URLs of what is published, by the variables that choose the ports."""
    return {name: f"http://127.0.0.1:{free_port()}" for name in READY}


@pytest.fixture(scope="module", params=SERVICES)
def stack(
    request: pytest.FixtureRequest,
    images: list[str],
    addresses: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """The running project, all of it ready; on each of the backends."""
    assert request.param in images
    folder = tmp_path_factory.mktemp("stack")
    folder.chmod(0o755)
    for name, content in (("api_key", KEY + "\n"), ("jupyter_token", TOKEN)):
        (folder / name).write_text(content)
    ports = {name: url.rpartition(":")[2] for name, url in addresses.items()}
    settings = {
        "BACKEND": request.param,
        "SECRETS_DIR": str(folder),
        "GRAFANA_PASSWORD": "unused",
        **ports,
    }
    with Stack(FILES, settings, folder).up(*RUNNING) as running:
        for name, path in READY.items():
            wait_until(lambda url=addresses[name] + path: processes.get(url) is not None, name)  # type: ignore[misc]
        yield running


def test_photos_are_classified_through_the_page(stack: Stack, addresses: dict[str, str]) -> None:
    page = addresses["PAGE_PORT"]
    wait_until(lambda: requests.get(f"{page}/status", timeout=10).json()["state"] == "ready", "the page")
    form = {"photo": ("photo.jpg", jpeg(), "image/jpeg")}
    answer = requests.post(f"{page}/classify", files=form, timeout=30)
    assert answer.status_code == 200
    assert 0 < answer.json()["probability"] <= 1
    assert requests.get(f"{page}/test", timeout=30).status_code == 200
    assert stack.containers("flask")


def test_the_api_wants_its_key(stack: Stack, addresses: dict[str, str]) -> None:
    url = f"{addresses['API_PORT']}/predict"
    assert traffic.post(url, jpeg()) == 401
    assert traffic.post(url, jpeg(), KEY) == 200
    for service in RUNNING:
        for identity in stack.containers(service):
            assert KEY not in json.dumps(inspect(identity))
            assert TOKEN not in json.dumps(inspect(identity))


@needs_jupyter
def test_jupyter_wants_its_token_and_has_the_client(stack: Stack, addresses: dict[str, str]) -> None:
    status = f"{addresses['JUPYTER_PORT']}/api/status"
    assert requests.get(status, timeout=10).status_code == 403
    allowed = requests.get(status, headers={"Authorization": f"token {TOKEN}"}, timeout=10)
    assert allowed.status_code == 200
    (identity,) = stack.containers("jupyter")
    assert run("docker", "exec", identity, "python", "-c", CALL_THE_API) == "Soup"


@needs_jupyter
def test_the_first_notebook_measures_the_stack_s_service(stack: Stack) -> None:
    (identity,) = stack.containers("jupyter")
    variables = ("NOTEBOOK_QUICK=1", "TQDM_DISABLE=1", f"SERVING_API_KEY={KEY}")
    in_jupyter = (
        "docker",
        "exec",
        *(part for setting in variables for part in ("--env", setting)),
        identity,
    )
    kept = "/app/runs/executed.ipynb"
    command = ("jupyter", "execute", f"--output={kept}", "notebooks/1_fastapi.ipynb")
    run(*in_jupyter, *command, seconds=300)
    digest = file_sha256(ROOT / "models" / "food11" / "model.json")
    assert re.search(f"running service: food11 in .*{digest}", run(*in_jupyter, "cat", kept))


def test_all_of_it_is_hardened_and_published_on_this_machine_only(stack: Stack) -> None:
    for service in RUNNING:
        (identity,) = stack.containers(service)
        container = inspect(identity)
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"] is True, service
        published = [place for places in host["PortBindings"].values() for place in places]
        assert {place["HostIp"] for place in published} == {"127.0.0.1"}, service
        status = run("docker", "exec", identity, "cat", "/proc/1/status")
        rights = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(rights["CapEff"], 16) == 0, service
        assert rights["NoNewPrivs"] == "1", service
        assert rights["Uid"].split()[0] != "0", service


def ask(prometheus: str, path: str, **parameters: str) -> Any:
    """The `data` of an answer of Prometheus' HTTP API, which is JSON."""
    answer = requests.get(f"{prometheus}/api/v1/{path}", parameters, timeout=10)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def queries() -> list[str]:
    """All expressions of the dashboard, with Grafana's variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [
        query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$model", ".*")
        for query in expressions
    ]


def test_the_dashboard_s_queries_return_numbers(stack: Stack, addresses: dict[str, str]) -> None:
    prometheus, api = addresses["PROMETHEUS_PORT"], f"{addresses['API_PORT']}/predict"
    waiting = queries()
    assert len(waiting) > 20

    def without_numbers(query: str) -> bool:
        results = ask(prometheus, "query", query=query)["result"]
        return not results or any(math.isnan(float(result["value"][1])) for result in results)

    def all_there() -> bool:
        assert traffic.post(api, jpeg(), KEY) == 200
        assert traffic.post(api, b"no picture", KEY) == 400
        waiting[:] = [query for query in waiting if without_numbers(query)]
        return not waiting

    wait_until(all_there, "numbers for every query of the dashboard", 90)
    assert stack.containers("prometheus")


def test_prometheus_finds_the_service_and_evaluates_the_alerts(
    stack: Stack, addresses: dict[str, str]
) -> None:
    prometheus = addresses["PROMETHEUS_PORT"]
    (target,) = ask(prometheus, "targets", state="active")["activeTargets"]
    assert (target["health"], target["labels"]["job"]) == ("up", "smallplates")

    def evaluated() -> bool:
        (group,) = ask(prometheus, "rules")["groups"]
        assert len(group["rules"]) >= 8
        return all(rule["health"] == "ok" for rule in group["rules"])

    wait_until(evaluated, "the alert rules", 60)
    assert not [a for a in ask(prometheus, "alerts")["alerts"] if a["state"] == "firing"]
    assert stack.containers("prometheus")


def test_compose_mounts_the_model_folders(tmp_path: Path) -> None:
    named = {"MODELS": str(tmp_path), "SERVING_MODELS": "models/food11,/models/other"}
    for on_top_of in ("fastapi", "scale"):
        config = Stack((on_top_of, "models"), named, tmp_path).compose("config")
        assert named["SERVING_MODELS"] in config
        assert f"source: {tmp_path}" in config
        with pytest.raises(RuntimeError, match="name the model folders"):
            Stack((on_top_of, "models"), {"MODELS": str(tmp_path)}, tmp_path).compose("config")


@pytest.mark.usefixtures("images")
def test_each_alert_fires_for_what_it_is_meant_for(tmp_path: Path) -> None:
    image = base("PROMETHEUS")
    command = ("docker", "run", "--rm", "--volume", f"{ROOT}:/repository:ro", "--entrypoint", "promtool")
    said = run(*command, image, "test", "rules", "/repository/tests/docker/alerts_test.yml")
    assert "SUCCESS" in said
    assert "SUCCESS" in run(
        *command, image, "check", "config", "/repository/docker/prometheus/prometheus.yml"
    )
    assert not list(tmp_path.iterdir())


def test_the_end_answers_what_was_taken_on(stack: Stack, addresses: dict[str, str]) -> None:
    """The last test of this stack: it stops it."""
    page, api = f"{addresses['PAGE_PORT']}/classify", addresses["API_PORT"]
    with traffic.under_way(page, api, count=16, least=6) as answers:
        stack.compose("stop")
        statuses = [answer.result() for answer in answers]
    assert statuses.count(200) >= 6
    for service in ("fastapi_server", "flask"):
        (identity,) = stack.compose("ps", "--all", "--quiet", service).split()
        assert inspect(identity)["State"]["ExitCode"] == 0, service
