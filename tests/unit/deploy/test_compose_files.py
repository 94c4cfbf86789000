"""The compose files and what they mount: valid, safe by default, in step with settings and metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema.validators import validator_for

from flask_app.settings import Settings as PageSettings
from smallplates.engine import topology
from smallplates.settings import ROOT, Settings
from smallplates.system import cpus
from smallplates.web.metrics import Metrics

DOCKER = ROOT / "docker"
FILES = sorted([*DOCKER.glob("docker-compose-*.yaml"), DOCKER / "services.yaml"])
DASHBOARD = DOCKER / "grafana" / "dashboards" / "smallplates.json"
ENGINE_METRICS = {  # what `EngineCollector` adds once an engine runs
    "serving_cores",
    "serving_free_slots",
    "serving_model_asleep",
    "serving_queue_depth",
    "serving_ready_workers",
    "serving_web_cpu_seconds_total",
    "serving_web_processes",
    "serving_worker_restarts_total",
}
OF_ALL_MODELS = {  # have no label `model`
    "serving_web_cpu_seconds_total"
}
OVERLAYS = {  # only add to services of other files; tracing has one of its own, too
    "docker-compose-feedback",
    "docker-compose-gpu",
    "docker-compose-models",
    "docker-compose-ports",
    "docker-compose-secrets",
    "docker-compose-secrets-jupyter",
    "docker-compose-secrets-page",
    "docker-compose-tracing",
    "docker-compose-triton-gpu",
}
SERVICES: list[tuple[Path, str, dict[str, Any]]] = [  # Any: YAML
    (path, name, service)
    for path in FILES
    for name, service in yaml.safe_load(path.read_text())["services"].items()
]
DESCRIBED = [
    (path, name, service)
    for path, name, service in SERVICES
    if (path.stem not in OVERLAYS or name == "jaeger") and "extends" not in service
]


def services_of(name: str) -> dict[str, Any]:  # Any: YAML
    services: dict[str, Any] = yaml.safe_load((DOCKER / f"{name}.yaml").read_text())["services"]
    return services


def environment_of(service: dict[str, Any]) -> dict[str, str | None]:  # Any: YAML
    variables: dict[str, str | None] = service.get("environment", {})
    return variables


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_they_follow_the_compose_specification(path: Path) -> None:
    schema = get_builtin_schema("vendor.compose-spec")
    validator = validator_for(schema)(schema)
    assert not [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))]


@pytest.mark.parametrize(("path", "name", "service"), SERVICES)
def test_ports_keys_and_variables(path: Path, name: str, service: dict[str, Any]) -> None:
    """Ports are published on this machine only, no key stands in a file, variables are settings."""
    where = path.stem, name
    assert all(port.startswith("${BIND:-127.0.0.1}:${") for port in service.get("ports", [])), where
    for variable, value in environment_of(service).items():
        if re.search("KEY|TOKEN|PASSWORD", variable) and not variable.endswith("_FILE"):
            assert value is None or re.fullmatch(r"\$\{\w+(:-|:\?[^}]+)\}", value), (where, variable)
    known = {f"SERVING_{field.upper()}" for field in Settings.model_fields}
    known |= {f"UI_{field.upper()}" for field in PageSettings.model_fields}
    ours = {v for v in environment_of(service) if v.startswith(("SERVING_", "UI_"))}
    assert ours <= known, where


@pytest.mark.parametrize(("path", "name", "service"), DESCRIBED)
def test_every_container_is_hardened(path: Path, name: str, service: dict[str, Any]) -> None:
    assert service["read_only"] is True, (path, name)
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert {"max-size", "max-file"} <= set(service["logging"]["options"])  # logs fill no disk
    assert "privileged" not in service
    ours = path.stem == "services" and name in ("fastapi_server", "flask", "jupyter")
    assert service.get("init") is True or not ours


def test_the_service_gets_every_setting_that_is_not_the_containers_own() -> None:
    service = services_of("services")["fastapi_server"]
    missing = {f for f in Settings.model_fields if f"SERVING_{f.upper()}" not in service["environment"]}
    gpu = {"devices", "gpu_memory_fraction"}  # docker-compose-gpu.yaml
    assert missing == gpu | {"host", "port", "secrets_dir", "allowed_hosts"}  # of loopback only


def test_the_page_gets_every_setting_of_feedback_and_of_limits() -> None:
    page = services_of("services")["flask"]
    missing = {f for f in PageSettings.model_fields if f"UI_{f.upper()}" not in page["environment"]}
    assert not [field for field in missing if re.search("^feedback_|_s$|_mb$|threads", field)]


def test_ports_that_are_published_are_those_that_the_service_opens() -> None:
    (service,) = services_of("docker-compose-ports").values()
    opened = [environment_of(service)[f"SERVING_{name}_PORT"] for name in ("GRPC", "TCP")]
    assert [port.partition("}:")[2].partition("}:")[2] for port in service["ports"]] == opened


def test_folders_are_mounted_and_named() -> None:
    (page,) = services_of("docker-compose-feedback").values()
    (mounted,) = page["volumes"]
    assert environment_of(page)["UI_FEEDBACK_DIR"] == mounted["target"]
    assert not mounted.get("read_only")
    (service,) = services_of("docker-compose-models").values()
    (mounted,) = service["volumes"]
    assert (mounted["target"], mounted["read_only"]) == ("/models", True)
    value = environment_of(service)["SERVING_MODELS"] or ""
    assert value.startswith("${SERVING_MODELS:?")  # without it, the folder would be mounted for nothing


def test_the_example_of_an_env_file_names_what_can_be_set() -> None:
    text = "".join(path.read_text() for path in FILES)
    named = set(re.findall(r"^#?([A-Z_]+)=", (DOCKER / ".env.example").read_text(), re.MULTILINE))
    passed_on = set(re.findall(r"^ +([A-Z_]+): *(?:#.*)?$", text, re.MULTILINE))
    used = set(re.findall(r"\$\{(\w+)", text))
    assert len(used) > 10
    assert named <= used | passed_on | {"COMPOSE_PROJECT_NAME"}
    assert {name for name in used if not name.startswith("SERVING_")} <= named


@pytest.mark.parametrize("overlay", ["feedback", "gpu", "models", "secrets", "secrets-page"])
def test_an_overlay_fits_one_replica_and_several(overlay: str) -> None:
    """What an overlay only adds to must be there: compose refuses a service without an image."""
    added, single, several = (
        set(services_of(f"docker-compose-{name}")) for name in (overlay, "fastapi", "scale")
    )
    assert added <= single & several


def test_jupyter_can_have_pytorch_and_write_models() -> None:
    jupyter = services_of("services")["jupyter"]
    default = jupyter["build"]["args"]["REQUIREMENTS"].partition(":-")[2].rstrip("}")
    packages, more = (
        (DOCKER.parent / "notebooks" / name).read_text() for name in (default, "requirements-pt.txt")
    )
    assert "\ntorch==" in more
    assert "\ntorch==" not in packages
    assert "/app/runs" in {mounted.partition(":")[0] for mounted in jupyter["tmpfs"]}


def test_what_holds_keys_is_not_committed() -> None:
    assert {"docker/.env", "docker/secrets/"} <= set((ROOT / ".gitignore").read_text().split())


def test_dashboard_and_alerts_ask_for_metrics_that_exist() -> None:
    text = Metrics().text().decode()
    exist = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE)) | ENGINE_METRICS
    exist |= {f"{name}_{part}" for name in exist for part in ("bucket", "sum", "count")}
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
    alerts = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    named = {name for expression in asked for name in re.findall(r"\bserving_\w+", expression)}
    assert len(named) > 15
    assert named <= exist


def test_the_dashboard_asks_for_the_chosen_replicas_and_models() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert [chosen["name"] for chosen in dashboard["templating"]["list"]] == ["instance", "model"]
    by_model = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            for name, labels in re.findall(r"\b(serving_\w+)\{([^}]*)\}", target["expr"]):
                assert 'instance=~"$instance"' in labels
                shared = name in OF_ALL_MODELS or "serving_cores" in target["expr"]
                shared |= "serving_web_processes" in target["expr"]
                assert ('model=~"$model"' in labels) is not shared, target["expr"]
            if "by (model" in target["expr"]:
                by_model.add(panel["title"])
                assert "{{model}}" in target["legendFormat"]
    assert {"Inputs by model", "Wait for a worker by model, p95", "Ready workers by model"} <= by_model


def test_alerts_name_the_model() -> None:
    (group,) = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    for name in ("ModelUnavailable", "WorkersKeepDying", "DeadlinesMissed", "LongQueue"):
        assert "$labels.model" in rules[name]["annotations"]["summary"]


def test_the_dashboard_reads_the_provisioned_data_source() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "dashboards.yaml").read_text())[
        "providers"
    ]
    panels = [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    monitoring = services_of("docker-compose-monitoring")
    mounted = monitoring["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in mounted
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in monitoring


def test_the_service_may_take_its_time_to_end() -> None:
    service = services_of("services")["fastapi_server"]
    scale = services_of("docker-compose-scale")["fastapi_server"]
    delay = scale["environment"]["SERVING_SHUTDOWN_DELAY_S"]
    longest = float(delay.rpartition("-")[2].rstrip("}")) + Settings().shutdown_timeout_s
    assert int(service["stop_grace_period"].rstrip("s")) > longest


def test_the_threads_of_a_large_machine_fit_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "usable", lambda: 192)
    settings = Settings(device="auto")
    for_one_input = topology.single_request_threads(settings) or 0
    threads = topology.workers_per_device(settings) * (
        1 + for_one_input
    )  # where a record wakes all workers
    threads += topology.decoding_threads(settings)
    service = services_of("services")["fastapi_server"]
    assert threads + 256 < service["pids_limit"]
