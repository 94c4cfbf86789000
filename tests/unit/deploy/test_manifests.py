"""The manifests in deploy/: valid, safe by default, in step with settings, images and metrics."""

import importlib
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate.utils import all_versions

from smallplates import __version__
from smallplates.models.folder import Model, configured_models
from smallplates.settings import ROOT, Settings
from smallplates.web.app import create_app
from smallplates.web.metrics import Metrics
from tests import exports, graphs
from tests.fake import BACKEND
from tests.manifests import DEPLOY, Object, build, check, ray_pods, read
from tests.unit.deploy.test_compose_files import ENGINE_METRICS

OVERLAYS = sorted(path.parent for path in DEPLOY.glob("kubernetes/overlays/*/kustomization.yaml"))
BUILT = {folder.name: build(folder) for folder in OVERLAYS}
KSERVE = [resource for path in sorted(DEPLOY.glob("kserve/*.yaml")) for resource in read(path)]
(RAY,) = read(DEPLOY / "kuberay" / "ray-service.yaml")
OBJECTS = [*(resource for objects in BUILT.values() for resource in objects), *KSERVE, RAY]
VERSIONS = all_versions()[-3:]
"""Kubernetes supports its last three minor versions."""

DEPLOYMENTS = {
    name: resource for name in BUILT for resource in BUILT[name] if resource["kind"] == "Deployment"
}
(RUNTIME,) = (resource for resource in KSERVE if resource["kind"] == "ServingRuntime")
SERVICES = [resource for resource in KSERVE if resource["kind"] == "InferenceService"]
PODS: dict[str, Any] = {  # Any: YAML
    **{name: resource["spec"]["template"]["spec"] for name, resource in DEPLOYMENTS.items()},
    "kserve": RUNTIME["spec"],
}

every_pod = pytest.mark.parametrize("pod", PODS.values(), ids=PODS)


def find(kind: str, objects: list[Object]) -> Any:  # Any: YAML
    (only,) = (resource for resource in objects if resource["kind"] == kind)
    return only


def environment_of(pod: Any) -> dict[str, str]:  # Any: YAML
    (container,) = pod["containers"]
    return {variable["name"]: variable["value"] for variable in container["env"]}


def settings_of(pod: Any, monkeypatch: pytest.MonkeyPatch, secrets: Path) -> Settings:  # Any: YAML
    variables = {
        name: value for name, value in environment_of(pod).items() if name.startswith("SERVING_")
    }
    assert set(variables) <= {f"SERVING_{field.upper()}" for field in Settings.model_fields}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(secrets) if name == "SERVING_SECRETS_DIR" else value)
    return Settings()


def quantity(text: str) -> float:
    return float(text[:-2]) * {"Mi": 2**20, "Gi": 2**30}[text[-2:]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "resource", OBJECTS, ids=lambda resource: f"{resource['kind']}-{resource['metadata']['name']}"
)
def test_it_follows_its_schema(resource: Object, version: str) -> None:
    check(resource, version)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_kubectl_builds_the_same(folder: Path) -> None:
    ran = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, check=True)

    def sort(objects: list[Object]) -> list[str]:
        return sorted(json.dumps(in_order(resource), sort_keys=True) for resource in objects)

    def in_order(value: Any) -> Any:  # Any: YAML
        """Sorts named objects: kustomize puts a patch's first."""
        if isinstance(value, dict):
            return {key: in_order(item) for key, item in value.items()}
        if isinstance(value, list):
            return sorted(map(in_order, value), key=lambda item: json.dumps(item, sort_keys=True))
        return value

    assert sort(list(yaml.safe_load_all(ran.stdout))) == sort(build(folder))


@every_pod
def test_its_image_is_ours_and_hardened(pod: Any) -> None:
    (container,) = pod["containers"]
    project, name, tag = re.split("[/:]", container["image"])
    dockerfile = ROOT / name.removesuffix("-gpu") / "Dockerfile"
    assert (project, tag) == ("smallplates", __version__)
    if name.endswith("-gpu"):
        assert "-gpu:" in (ROOT / "docker" / "docker-compose-gpu.yaml").read_text()
    security = pod.get("securityContext", {}) | container["securityContext"]
    user = f"USER {security['runAsUser']}:{security['runAsGroup']}"
    assert user in dockerfile.read_text().splitlines()
    assert security["runAsNonRoot"] is security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]  # noqa: S108 the weights


@every_pod
def test_variables_probes_and_times_fit_the_service(
    pod: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (container,) = pod["containers"]
    settings = settings_of(pod, monkeypatch, tmp_path)
    assert settings.device == ("cuda" if "nvidia.com/gpu" in container["resources"]["limits"] else "cpu")
    others = {name for name in environment_of(pod) if not name.startswith("SERVING_")}
    assert others <= {"CUDA_CACHE_PATH"}
    monkeypatch.setattr("smallplates.web.app.configure_logging", lambda _: None)
    shipped = {"models": [], "model_dir": Settings.model_fields["model_dir"].default}
    app = create_app(settings.model_copy(update=shipped), BACKEND)
    paths = {getattr(route, "path", None) for route in app.routes}
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    for kind in ("startup", "readiness", "liveness"):
        request = container[f"{kind}Probe"]["httpGet"]
        assert request["path"] in paths
        assert request["path"].endswith("/live" if kind == "liveness" else "/ready")
        assert ports.get(request["port"], request["port"]) == settings.port
    probe = container["readinessProbe"]  # a gateway sees that a replica ends
    assert settings.shutdown_delay_s > probe["periodSeconds"] * probe["failureThreshold"]
    assert "lifecycle" not in container  # a preStop hook would take the grace period, too
    for owner in [s["spec"]["predictor"] for s in SERVICES] if pod is RUNTIME["spec"] else [pod]:
        drain_s = settings.shutdown_delay_s + settings.shutdown_timeout_s
        assert owner["terminationGracePeriodSeconds"] == drain_s + 5


@pytest.mark.parametrize("pod", [PODS["cpu"], PODS["kserve"]], ids=["cpu", "kserve"])
def test_memory_holds_what_was_measured_and_the_largest_images(pod: Any) -> None:
    overload = json.loads((ROOT / "benchmarks" / "results" / "overload.json").read_text())
    (container,) = pod["containers"]
    limits = container["resources"]["limits"]
    assert limits["cpu"] == overload["machine"]["cores"]
    largest_images = int(limits["cpu"]) * 10**9
    assert quantity(limits["memory"]) > overload["results"]["memory_mb_after"] * 10**6 + largest_images
    assert container["resources"]["requests"] == limits  # no other pod takes what it needs


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_objects_find_each_other(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    objects, deployment, pod = BUILT[name], DEPLOYMENTS[name], PODS[name]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    service = find("Service", objects)
    assert service["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]
    assert find("PodDisruptionBudget", objects)["spec"]["selector"]["matchLabels"] == labels
    policy = find("NetworkPolicy", objects)["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert all(
        constraint["labelSelector"]["matchLabels"] == labels
        for constraint in pod["topologySpreadConstraints"]
    )
    settings = settings_of(pod, monkeypatch, tmp_path)
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert ports == {"http": settings.port, "grpc": settings.grpc_port}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert {port["port"] for port in policy["ingress"][0]["ports"]} == set(ports)
    assert "Egress" in policy["policyTypes"]
    assert "egress" not in policy  # the service calls nobody


def test_routes_lead_to_the_service() -> None:
    service = find("Service", BUILT["cpu"])
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    for kind, port in [("HTTPRoute", "http"), ("GRPCRoute", "grpc")]:
        rules = find(kind, BUILT["route"])["spec"]["rules"]
        backends = [ref for rule in rules for ref in rule.get("backendRefs", [])]
        assert backends == [{"name": service["metadata"]["name"], "port": ports[port]}]
    denied, allowed = find("HTTPRoute", BUILT["route"])["spec"]["rules"]
    proxy = (ROOT / "docker" / "haproxy.cfg").read_text()
    refused_there = set(re.findall(r"path,url_dec -m (?:str|beg) -i (\S+?)/? ", proxy))
    assert {match["path"]["value"] for match in denied["matches"]} == refused_there
    settings = Settings()
    longest_s = (settings.body_timeout_ms + settings.request_timeout_ms) / 1000 + 5
    assert allowed["timeouts"] == {"request": f"{longest_s:.0f}s"}


def test_monitoring_finds_the_service_and_its_metrics() -> None:
    service = find("Service", BUILT["cpu"])
    monitor = find("ServiceMonitor", BUILT["monitoring"])
    scaled = find("ScaledObject", BUILT["monitoring"])
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert {resource["metadata"]["namespace"] for resource in (service, monitor, scaled)} == {
        "smallplates"
    }
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    # Prometheus takes the Service's name for the job, which the alerts of docker/ ask for
    assert f'job="{service["metadata"]["name"]}"' in (ROOT / "docker/prometheus/alerts.yml").read_text()
    assert scaled["spec"]["scaleTargetRef"]["name"] == DEPLOYMENTS["cpu"]["metadata"]["name"]
    assert "replicas" not in DEPLOYMENTS["cpu"]["spec"]  # applied again, it would undo the scaling
    exist = set(re.findall(r"^# TYPE (\w+) ", Metrics().text().decode(), re.MULTILINE)) | ENGINE_METRICS
    for trigger in scaled["spec"]["triggers"]:
        asked = re.findall(r"\bserving_\w+", trigger["metadata"]["query"])
        assert asked
        assert {name.removesuffix("_sum") for name in asked} <= exist
        assert f'{{namespace="{service["metadata"]["namespace"]}"}}' in trigger["metadata"]["query"]


def test_keys_come_from_files_as_kubernetes_mounts_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A mounted Secret is a folder of links, through `..data`, to files in a folder with a date."""
    pod = PODS["cpu"]
    (mounted,) = (v for v in pod["containers"][0]["volumeMounts"] if v["name"] == "keys")
    assert mounted["mountPath"] == environment_of(pod)["SERVING_SECRETS_DIR"]
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "..2026" / "serving_api_key").write_text("a key\n")
    (tmp_path / "serving_api_key").symlink_to("..data/serving_api_key")
    key = settings_of(pod, monkeypatch, tmp_path).api_key
    assert key is not None
    assert key.get_secret_value() == "a key"


def test_no_key_stands_in_a_manifest() -> None:
    assert not [resource for resource in OBJECTS if resource["kind"] == "Secret"]
    assert not [
        name for pod in PODS.values() for name in environment_of(pod) if re.search("KEY|TOKEN", name)
    ]


def test_kserve_finds_the_runtime_and_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runtime = RUNTIME["spec"]
    settings = settings_of(runtime, monkeypatch, tmp_path)
    (model,) = settings.models
    assert model == "{{.Name}}=/mnt/models"  # KServe's storage initializer writes there
    assert (settings.port, settings.grpc_port) == (8080, 9000)
    assert runtime["annotations"]["prometheus.kserve.io/port"] == str(settings.port)
    spoken = {service["spec"]["predictor"]["model"]["protocolVersion"] for service in SERVICES}
    assert spoken == set(runtime["protocolVersions"])
    for service in SERVICES:
        model = service["spec"]["predictor"]["model"]
        assert model["runtime"] == RUNTIME["metadata"]["name"]
        assert model["modelFormat"]["name"] in {
            model_format["name"] for model_format in runtime["supportedModelFormats"]
        }
        assert model.get("ports", []) == (
            [{"name": "h2c", "protocol": "TCP", "containerPort": settings.grpc_port}]
            if model["protocolVersion"] == "grpc-v2"
            else []
        )
    default = Model.read(Settings.model_fields["model_dir"].default).description.name
    assert default in {resource["metadata"]["name"] for resource in SERVICES}


def test_kserve_s_names_and_formats_are_served(tmp_path: Path) -> None:
    """Whatever the folder is, the model has the name that KServe fills in."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    exports.saved(tmp_path / "huggingface", exports.word_piece(), {}, names=names)
    graphs.saved(graphs.two_by_two(), tmp_path / "onnx")
    folders = {"smallplates": Settings().model_dir}
    formats = [known["name"] for known in RUNTIME["spec"]["supportedModelFormats"]]
    assert formats == ["smallplates", "onnx", "huggingface"]
    for service, known in itertools.product(SERVICES, formats):
        name = service["metadata"]["name"]
        value = environment_of(RUNTIME["spec"])["SERVING_MODELS"].replace("{{.Name}}", name)
        folder = folders.get(known, tmp_path / known)
        settings = Settings(models=[value.replace("/mnt/models", str(folder))])
        assert list(configured_models(settings)) == [name]


def test_mounted_models_are_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pod = PODS["models"]
    first, second = settings_of(pod, monkeypatch, tmp_path).models
    assert (ROOT / first / "model.json").exists()  # in the image, whose working directory has models/
    (container,) = pod["containers"]
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "models")
    assert second.startswith(f"{mount['mountPath']}/")
    assert mount["readOnly"] is True
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "models")
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    limits = [PODS[name]["containers"][0]["resources"]["limits"] for name in ("models", "cpu")]
    assert quantity(limits[0]["memory"]) > quantity(limits[1]["memory"])


def test_the_pods_of_ray_have_its_variables() -> None:
    ran = subprocess.run(
        ["sh", "-c", "python() { :; }; unset PYTHONPATH; . smallplates/ray/env.sh; export -p"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    exported = dict(re.findall(r"^export ((?:RAY|FORWARDED)_\w+)='(.*)'$", ran.stdout, re.MULTILINE))
    here = {name for name, value in exported.items() if "/" in value}  # paths on one machine
    for pod in ray_pods(RAY):
        assert environment_of(pod) == {name: exported[name] for name in exported.keys() - here}


def test_the_pods_of_ray_fit_its_replicas() -> None:
    """Head and workers run what we build; a worker has the cores of one replica."""
    config = yaml.safe_load(RAY["spec"]["serveConfigV2"])
    (application,) = config["applications"]
    (deployment,) = application["deployments"]
    head, worker = ray_pods(RAY)
    (cores,) = {pod["containers"][0]["resources"]["limits"]["cpu"] for pod in (worker,)}
    assert deployment["ray_actor_options"]["num_cpus"] == int(cores)
    memory = quantity(worker["containers"][0]["resources"]["limits"]["memory"])
    assert memory > quantity(PODS["cpu"]["containers"][0]["resources"]["limits"]["memory"])
    (group,) = RAY["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    scaling = deployment["autoscaling_config"]
    assert (group["minReplicas"], group["maxReplicas"]) == (
        scaling["min_replicas"],
        scaling["max_replicas"],
    )
    locked = (ROOT / "smallplates" / "ray" / "requirements.txt").read_text()
    assert f"ray=={RAY['spec']['rayClusterConfig']['rayVersion']} " in locked
    for pod in (head, worker):
        (container,) = pod["containers"]
        assert container["image"] == f"smallplates/ray:{__version__}"
        security = pod["securityContext"] | container["securityContext"]
        user = f"USER {security['runAsUser']}:{security['runAsGroup']}"
        assert user in (ROOT / "smallplates" / "ray" / "Dockerfile").read_text().splitlines()
    ports = {port["name"]: port["containerPort"] for port in head["containers"][0]["ports"]}
    assert ports["serve"] == config["http_options"]["port"]


@pytest.mark.parametrize(
    "config",
    [
        yaml.safe_load((ROOT / "smallplates" / "ray" / "serve_config.yaml").read_text()),
        yaml.safe_load(RAY["spec"]["serveConfigV2"]),
    ],
    ids=["local", "kuberay"],
)
def test_ray_is_told_of_settings_and_functions_that_exist(config: Any) -> None:  # Any: YAML
    (application,) = config["applications"]
    variables = application["runtime_env"]["env_vars"].keys() - {"BACKEND"}
    assert variables <= {f"SERVING_{field.upper()}" for field in Settings.model_fields}
    (deployment,) = application["deployments"]
    module, _, name = deployment["autoscaling_config"]["policy"]["policy_function"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    source = (ROOT / "smallplates" / "ray" / "app.py").read_text()
    assert f'name="{deployment["name"]}"' in source
