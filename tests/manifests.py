"""Reads the manifests in deploy/ as the tests need them: built as kustomize builds them, and checked.

`build` knows what our kustomizations use: resources, strategic merge patches and the namespace.
"""

from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

from smallplates.settings import ROOT

DEPLOY = ROOT / "deploy"
CUSTOM_RESOURCES = Path(__file__).parent / "custom_resources.yaml"

Object = dict[str, Any]  # Any: YAML


def read(path: Path) -> list[Object]:
    """Returns the objects of one file."""
    return list(yaml.safe_load_all(path.read_text()))


def build(folder: Path) -> list[Object]:
    """Returns the objects of a kustomization."""
    (kustomization,) = read(folder / "kustomization.yaml")
    built: dict[tuple[str, str], Object] = {}
    for entry in kustomization.pop("resources"):
        path = folder / entry
        for resource in build(path) if path.is_dir() else read(path):
            built[_identity(resource)] = resource
    for patch in kustomization.pop("patches", []):
        (change,) = read(folder / patch["path"])
        built[_identity(change)] = merged(built[_identity(change)], change)
    namespace = kustomization.pop("namespace", None)
    for resource in built.values():
        if namespace and resource["kind"] != "Namespace":
            resource["metadata"]["namespace"] = namespace
    assert set(kustomization) == {"apiVersion", "kind"}, "`build` does not know the rest"
    return list(built.values())


def merged(old: Any, new: Any) -> Any:  # Any: YAML
    """Returns `old` with a strategic merge patch: mappings and lists of named objects are merged."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: merged(old.get(key), value) for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list) and _are_named(old + new):
        by_name = {item["name"]: item for item in old}
        return list(merged(by_name, {item["name"]: item for item in new}).values())
    return new


def check(resource: Object, version: str) -> None:
    """Raises ValidationError where an object does not follow its schema of this Kubernetes version."""
    schema = yaml.safe_load(CUSTOM_RESOURCES.read_text()).get(
        f"{resource['apiVersion']}/{resource['kind']}"
    )
    if schema is None:
        kubernetes_validate.validate(resource, version, strict=True)
        return
    assert set(resource) == {"apiVersion", "kind", "metadata", "spec"}
    Draft202012Validator(_closed(schema)).validate(resource["spec"])
    for inside in _standard_parts(resource):
        kubernetes_validate.validate(inside, version, strict=True)


def _standard_parts(resource: Object) -> list[Object]:
    """Returns the parts of a custom resource that are Kubernetes' own, as objects by themselves."""
    head, spec = {"metadata": resource["metadata"]}, resource["spec"]
    if resource["kind"] == "ScaledObject":
        limits = {"minReplicas": spec["minReplicaCount"], "maxReplicas": spec["maxReplicaCount"]}
        target = {"apiVersion": "apps/v1", "kind": "Deployment"} | spec["scaleTargetRef"]
        behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        scaler = limits | {"scaleTargetRef": target, "behavior": behaviour}
        return [
            {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": scaler} | head
        ]
    pods = []
    if resource["kind"] == "ServingRuntime":
        pods = [{"containers": spec["containers"], "volumes": spec["volumes"]}]
    elif resource["kind"] == "InferenceService":
        pods = [
            {"containers": [{"name": "model", "ports": spec["predictor"]["model"].get("ports", [])}]}
        ]
    elif resource["kind"] == "RayService":
        pods = ray_pods(resource)
    return [{"apiVersion": "v1", "kind": "Pod", "spec": pod} | head for pod in pods]


def ray_pods(resource: Object) -> list[Any]:  # Any: YAML
    """Returns the pods of a RayService: the head's, then one of each worker group."""
    config = resource["spec"]["rayClusterConfig"]
    return [
        group["template"]["spec"] for group in (config["headGroupSpec"], *config["workerGroupSpecs"])
    ]


def _identity(resource: Object) -> tuple[str, str]:
    return resource["kind"], resource["metadata"]["name"]


def _are_named(items: list[Any]) -> bool:  # Any: YAML
    return all(isinstance(item, dict) and "name" in item for item in items)


def _closed(schema: Any) -> Any:  # Any: YAML
    """Returns a JSON schema that refuses properties that it does not name."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        inner |= {"type": "object", "additionalProperties": False}
    return inner
