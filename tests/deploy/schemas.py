"""Holds documents against schemas: those of Kubernetes, and ours of what KubeRay and kustomize read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

KUBERNETES_VERSION = "1.31"
FOLDER = Path(__file__).parent
OWN = {"RayCluster": "ray_cluster.schema.yaml", "Kustomization": "kustomization.schema.yaml"}
KUBERNETES = Path(kubernetes_validate.__file__).parent / f"kubernetes-json-schema/v{KUBERNETES_VERSION}.0-local-strict"


def faults_in(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with a manifest, each with its place; unknown fields are.

    Raises FileNotFoundError for a kind of which there is no schema.
    """
    errors = Draft202012Validator(_schema(document), registry=_kubernetes()).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


def _schema(document: Mapping[str, Any]) -> Any:
    kind, version = document["kind"], document["apiVersion"]
    if kind in OWN:
        return yaml.safe_load((FOLDER / OWN[kind]).read_text())
    group = re.sub(r"\..*/|/", "-", version)
    return json.loads((KUBERNETES / f"{kind.lower()}-{group}.json").read_text())


@cache
def _kubernetes() -> Registry[Any]:
    """The types of which its objects consist, under the address by which schemas name them."""
    definitions: Resource[Any] = Resource.from_contents(json.loads((KUBERNETES / "_definitions.json").read_text()))
    return definitions @ Registry()
