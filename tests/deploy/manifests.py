"""Reads deploy/ as Kubernetes would: manifests, their pods, and the environment that a container gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
NAMESPACE = "concertina"
SECRETS = {"database-password": "0a1b2c", "ray-token": "3d4e5f", "admin-token": f"ctn_{'6a' * 32}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that some manifest makes; ``labels`` with those that KubeRay adds."""

    name: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def containers(self) -> list[Mapping[str, Any]]:
        """All of them, also those that only begin."""
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    def container(self, name: str) -> Mapping[str, Any]:
        """The container of that name."""
        return next(container for container in self.containers if container["name"] == name)


@cache
def manifests() -> list[dict[str, Any]]:
    """Every object that `kubectl apply -k` creates; shared, so never to be changed."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [document for name in names for document in yaml.safe_load_all((KUBERNETES / name).read_text())]


def manifest(kind: str, name: str) -> dict[str, Any]:
    """The object of that kind and name."""
    return next(m for m in manifests() if m["kind"] == kind and m["metadata"]["name"] == name)


def pods() -> list[Pod]:
    """One of each kind of pod."""
    found = [
        Pod(name=m["metadata"]["name"], labels=_labels(m["spec"]["template"]), spec=m["spec"]["template"]["spec"])
        for m in manifests()
        if m["kind"] == "StatefulSet"
    ]
    ray = manifest("RayCluster", "ray")
    groups = [("head", "headgroup", ray["spec"]["headGroupSpec"])]
    groups += [("worker", group["groupName"], group) for group in ray["spec"]["workerGroupSpecs"]]
    for kind, group, spec in groups:
        labels = {"ray.io/cluster": "ray", "ray.io/node-type": kind, "ray.io/group": group}
        template = spec["template"]
        found.append(Pod(name=f"ray-{kind}", labels=labels | _labels(template), spec=template["spec"]))
    return found


def pod(name: str) -> Pod:
    """The pod of that name."""
    return next(found for found in pods() if found.name == name)


def container_environment(container: Mapping[str, Any], secrets: Mapping[str, str], pod_name: str) -> dict[str, str]:
    """What Kubernetes puts into the container. A secret that is missing is left out where it is optional.

    Raises KeyError for one that is not, and for a ConfigMap or key that no manifest has.
    """
    values: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        values |= manifest("ConfigMap", source["configMapRef"]["name"])["data"]
    expandable: dict[str, str] = {}
    for entry in container.get("env", ()):
        value = _value(entry, secrets, pod_name)
        if value is not None:
            # Kubernetes leaves a reference as it is when nothing before it in the list has that name.
            value = re.sub(r"\$\((\w+)\)", lambda found: expandable.get(found[1], found[0]), value)
            values[entry["name"]] = expandable[entry["name"]] = value
    return values


def mounted_at(container: Mapping[str, Any], path: str) -> str | None:
    """The name of the volume in which a path of the container lies, if any."""
    mounts = [m for m in container.get("volumeMounts", ()) if Path(path).is_relative_to(m["mountPath"])]
    return max(mounts, key=lambda m: len(m["mountPath"]))["name"] if mounts else None


def _value(entry: Mapping[str, Any], secrets: Mapping[str, str], pod_name: str) -> str | None:
    match entry.get("valueFrom"):
        case None:
            return str(entry["value"])
        case {"fieldRef": {"fieldPath": "metadata.name"}}:
            return pod_name
        case {"configMapKeyRef": {"name": name, "key": key}}:
            return str(manifest("ConfigMap", name)["data"][key])
        case {"secretKeyRef": {"name": "concertina-secrets", "key": key, **rest}}:
            return secrets.get(key) if rest.get("optional") else secrets[key]
    raise KeyError(f"{entry} has a source that this reader does not know")


def _labels(template: Mapping[str, Any]) -> dict[str, str]:
    return dict(template["metadata"]["labels"])
