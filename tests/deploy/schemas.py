"""Holds documents against schemas: those of Kubernetes, and ours of what KubeRay and kustomize read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

KUBERNETES_VERSION = "1.31"
FOLDER = Path(__file__).parent
OWN = {"RayCluster": "ray_cluster.schema.yaml", "Kustomization": "kustomization.schema.yaml"}


def faults_in(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with a manifest, each with its place; unknown fields are."""
    kind = document["kind"]
    if kind in OWN:
        schema = yaml.safe_load((FOLDER / OWN[kind]).read_text())
        errors = Draft202012Validator(schema, registry=_kubernetes() @ Registry()).iter_errors(document)
        return [f"{error.json_path}: {error.message}" for error in errors]
    try:
        kubernetes_validate.validate(dict(document), KUBERNETES_VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error)]
    return []


def _kubernetes() -> Resource[Any]:
    """The types of which its objects consist, under the address by which our schemas name them."""
    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    return Resource.from_contents(
        json.loads((schemas / f"v{KUBERNETES_VERSION}.0-local-strict" / "_definitions.json").read_text())
    )
