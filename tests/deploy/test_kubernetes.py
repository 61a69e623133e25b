"""The manifests: Kubernetes and Ray accept them, and they fit what the service really reads and does."""

from __future__ import annotations

import asyncio
import copy
import functools
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from service.api.gate import HEALTH_PATHS
from service.auth import ensure_admin_token, sha256
from service.folders import token_file
from service.settings import Settings, load_settings
from service.supervise.child import LONGEST_PAUSE_S
from service.supervise.home import Home
from service.supervise.supervisor import API_END_LIMIT_S, SAVE_LIMIT_S
from tests.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    NAMESPACE,
    SECRETS,
    Pod,
    container_environment,
    manifest,
    manifests,
    mounted_at,
    pod,
    pods,
)
from tests.deploy.schemas import faults_in
from tests.deploy.traffic import End, Outside, may_reach

# Mappings whose keys are anybody's own.
FREE = {"annotations", "data", "labels", "limits", "matchLabels", "rayStartParams", "requests"}


def service_settings(pod_name: str = "concertina-0") -> Settings:
    container = pod("concertina").container("service")
    return load_settings(environ=container_environment(container, SECRETS, pod_name))


def ray_nodes() -> list[tuple[Pod, Mapping[str, Any]]]:
    """Every container in which a node of Ray runs, with its pod."""
    names = {"ray-head": "ray-head", "ray-worker": "ray-worker", "concertina": "ray"}
    return [(found, found.container(names[found.name])) for found in pods() if found.name in names]


def kustomization() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    return read


def mappings(value: Any, place: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """All of a document, each with its place in it."""
    if isinstance(value, dict):
        yield place, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from mappings(part, f"{place}.{key}" if isinstance(key, str) else f"{place}[{key}]")


@pytest.mark.parametrize("document", manifests(), ids=lambda m: f"{m['kind']} {m['metadata']['name']}")
def test_kubernetes_and_kuberay_know_every_field_of_every_manifest_and_its_type(document: dict[str, Any]) -> None:
    assert faults_in(document) == []


def test_kustomize_knows_every_field_and_applies_every_manifest() -> None:
    read = kustomization()
    assert faults_in(read) == []
    assert {*read["resources"], "kustomization.yaml"} == {file.name for file in KUBERNETES.iterdir()}
    assert read["namespace"] == NAMESPACE


@pytest.mark.parametrize("document", [*manifests(), kustomization()], ids=lambda m: str(m["kind"]))
def test_a_field_that_nobody_knows_is_found_wherever_it_stands(document: dict[str, Any]) -> None:
    spoilt = copy.deepcopy(document)
    parts = list(mappings(spoilt))
    for _, part in parts:
        part["misremembered"] = "x"
    faults = faults_in(spoilt)
    unknown = "Additional properties are not allowed ('misremembered' was unexpected)"
    free = {place.rpartition(".")[2] for place, _ in parts if f"{place}: {unknown}" not in faults}
    assert free <= FREE | ({"selector"} if document["kind"] == "Service" else set())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.workerGroupSpecs.0.maxReplicas", "8"),
        ("spec.workerGroupSpecs.0.minreplicas", 1),
        ("spec.workerGroupSpecs.0.template.spec.containers.0.resources.limits", ["4"]),
        ("spec.headGroupSpec.rayStartParams.num-cpus", 0),
        ("spec.headGroupSpec.template.spec.containers.0.startupProbe.tcpSocket.port", None),
        ("spec.autoscalerOptions.version", 2),
        ("spec.autoscalerOptions.securityContext.runAsNonRoot", "true"),
        ("spec.autoscalerOptions.volumeMounts.0.mountpath", "/tmp"),
        ("spec.enableInTreeAutoscaling", "yes"),
        ("spec.headGroupSpec", None),
        ("spec.headGroupSpec.template.metadata.generateName", "ray-"),
        ("spec.workerGroupSpecs.0.template.metadata.ownerReferences", []),
        ("spec.headGroupSpec.headService", {"metadata": {"generateName": "ray-"}}),
        # Of a KubeRay newer than the oldest one that has to do.
        ("spec.workerGroupSpecs.0.labels", {"concertina.io/rack": "a"}),
    ],
)
def test_a_ray_cluster_with_a_mistake_anywhere_is_found(path: str, value: object) -> None:
    spoilt = copy.deepcopy(manifest("RayCluster", "ray"))
    *way, last = path.split(".")
    part = functools.reduce(lambda part, key: part[int(key) if key.isdigit() else key], way, spoilt)
    part[last] = value
    assert faults_in(spoilt) != []


def test_rays_autoscaler_reads_from_the_manifest_what_workers_there_are() -> None:
    cluster = manifest("RayCluster", "ray")
    metadata = {**cluster["metadata"], "namespace": NAMESPACE}
    read = _derive_autoscaling_config_from_ray_cr({**cluster, "metadata": metadata})
    head, worker = (read["available_node_types"][name] for name in ("headgroup", "cpu"))
    assert read["idle_timeout_minutes"] == 2.0
    assert (head["max_workers"], head["resources"]["CPU"]) == (0, 0)
    assert (worker["min_workers"], worker["max_workers"]) == (1, 8)
    assert worker["resources"] == {"CPU": 4, "memory": 16 * 2**30}
    assert cluster["spec"]["rayVersion"] == version("ray")


def test_ray_knows_every_option_with_which_its_nodes_are_started() -> None:
    from ray.scripts.scripts import start  # half a second, and for this test alone

    known = {name for parameter in start.params for name in parameter.opts}
    spec = manifest("RayCluster", "ray")["spec"]
    given = [f"--{name}" for g in (spec["headGroupSpec"], *spec["workerGroupSpecs"]) for name in g["rayStartParams"]]
    script = pod("concertina").container("ray")["args"][0].partition("exec ray start")[2]
    given += re.findall(r"--[a-z-]+", script)
    assert "--num-cpus" in given
    assert set(given) <= known


def test_the_service_reads_its_settings_from_the_manifests() -> None:
    settings = service_settings()
    assert settings.behind_proxy
    assert settings.host == "0.0.0.0"
    assert settings.database_url == "postgresql+asyncpg://concertina:0a1b2c@database.concertina.svc/concertina"
    assert settings.ray_address == "ray-head-svc.concertina.svc:6379"
    assert settings.port == pod("concertina").container("service")["ports"][0]["containerPort"]


def test_the_service_answers_to_every_name_by_which_it_is_called() -> None:
    rule = manifest("Ingress", "concertina")["spec"]["rules"][0]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    targets = [target.split(":")[0] for target in scraped["static_configs"][0]["targets"]]
    replicas = manifest("StatefulSet", "concertina")["spec"]["replicas"]
    assert len(targets) == replicas
    for number, target in enumerate(targets):
        assert {target, rule["host"]} <= set(service_settings(f"concertina-{number}").allowed_hosts)


def test_every_node_of_ray_sees_the_storage_where_the_service_writes_it() -> None:
    path = str(service_settings().storage_folder)
    service = pod("concertina")
    assert mounted_at(service.container("service"), path) == "storage"
    for found, container in ray_nodes():
        assert mounted_at(container, path) == "storage"
        volume = next(v for v in found.spec["volumes"] if v["name"] == "storage")
        assert volume["persistentVolumeClaim"]["claimName"] == "concertina-storage"
        assert {found.spec["securityContext"][key] for key in ("runAsUser", "fsGroup")} == {10001}
    assert manifest("PersistentVolumeClaim", "concertina-storage")["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_services_driver_shares_processes_ray_files_and_token_with_the_node_beside_it() -> None:
    service = pod("concertina")
    assert service.spec["shareProcessNamespace"]
    driver, node = service.container("service"), service.container("ray")
    for path in ("/tmp/ray", "/dev/shm"):
        assert mounted_at(driver, path) == mounted_at(node, path) is not None
    environments = [container_environment(c, SECRETS, "x") for _, c in ray_nodes()]
    for environment in (*environments, container_environment(driver, SECRETS, "x")):
        assert (environment["RAY_AUTH_MODE"], environment["RAY_AUTH_TOKEN"]) == ("token", SECRETS["ray-token"])
    # Ended after the driver, and no node of KubeRay's, which would count it as one of a group.
    assert node["restartPolicy"] == "Always"
    assert not [label for label in service.labels if label.startswith("ray.io/")]


def test_no_variable_that_kubernetes_makes_of_its_services_reaches_the_service() -> None:
    assert {found.name: found.spec["enableServiceLinks"] for found in pods()} == {found.name: False for found in pods()}


def test_a_stopped_pod_has_the_time_that_the_service_takes_to_stop() -> None:
    assert pod("concertina").spec["terminationGracePeriodSeconds"] > SAVE_LIMIT_S + API_END_LIMIT_S


def test_a_pod_that_tells_ray_that_it_ends_is_given_the_time_that_it_announces() -> None:
    worker = pod("ray-worker")
    script = worker.container("ray-worker")["lifecycle"]["preStop"]["exec"]["command"][-1]
    (announced,) = re.findall(r"--deadline-remaining-seconds=(\d+)", script)
    bounds = [int(number) for number in re.findall(r"(?:timeout|seq) (\d+)", script)]
    assert len(bounds) == 2
    assert max(int(announced), sum(bounds)) < worker.spec["terminationGracePeriodSeconds"]


def test_kubernetes_asks_for_the_services_health_and_leaves_short_ends_to_its_supervisor() -> None:
    container = pod("concertina").container("service")
    probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["httpGet"]["path"] for kind, probe in probes.items()} == {
        "startup": "/livez",
        "liveness": "/livez",
        "readiness": "/readyz",
    }
    assert {probe["httpGet"]["path"] for probe in probes.values()} <= HEALTH_PATHS
    assert probes["liveness"]["periodSeconds"] * probes["liveness"]["failureThreshold"] > LONGEST_PAUSE_S


def test_nothing_runs_as_root_or_can_become_it() -> None:
    autoscaler = manifest("RayCluster", "ray")["spec"]["autoscalerOptions"]["securityContext"]
    for found in pods():
        whole = found.spec["securityContext"]
        for own in (*(c["securityContext"] for c in found.containers), autoscaler):
            merged = {**whole, **own}
            assert merged["runAsNonRoot"], found.name
            assert merged["seccompProfile"] == {"type": "RuntimeDefault"}, found.name
            assert merged["capabilities"] == {"drop": ["ALL"]}, found.name
            assert merged["readOnlyRootFilesystem"], found.name
            assert merged["allowPrivilegeEscalation"] is False, found.name
        # Ray's head alone asks Kubernetes for something.
        assert found.spec.get("automountServiceAccountToken", True) == (found.name == "ray-head")


def test_secrets_are_named_and_never_written_down() -> None:
    assert "Secret" not in {document["kind"] for document in manifests()}
    for container in (container for found in pods() for container in found.containers):
        for entry in container.get("env", ()):
            if any(word in entry["name"] for word in ("PASSWORD", "TOKEN", "OPTIONS")):
                assert "secretKeyRef" in entry.get("valueFrom", {}) or entry["name"].endswith("_FILE"), entry["name"]


class NewDatabase:
    """Access to a database in which nobody has a token yet."""

    def __init__(self) -> None:
        self.admins: list[str] = []

    async def has_admin(self) -> bool:
        return bool(self.admins)

    async def add_first_admin(self, digest: str) -> bool:
        self.admins.append(digest)
        return True


def test_the_secrets_token_is_the_one_that_a_new_installation_takes(tmp_path: Path) -> None:
    container = pod("concertina").container("home")
    environment = container_environment(container, SECRETS, "x")
    assert mounted_at(container, environment["TOKEN_FILE"]) == "token"
    # Below the volume: its top folder is root's, and nobody else may change its mode.
    volume = next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "home")
    home = tmp_path / Path(environment["CONCERTINA_HOME"]).relative_to(volume)
    assert home != tmp_path
    token = tmp_path / "admin-token"
    token.write_text(SECRETS["admin-token"])
    given = {"PATH": "/usr/bin:/bin", "CONCERTINA_HOME": str(home), "TOKEN_FILE": str(token)}
    subprocess.run([*container["command"], *container["args"]], env=given, check=True, timeout=20)
    Home(home).prepare()
    database = NewDatabase()
    asyncio.run(ensure_admin_token(database, home))
    assert database.admins == [sha256(SECRETS["admin-token"])]
    assert token_file(home).stat().st_mode & 0o777 == 0o600


SERVICE, DATABASE, HEAD, WORKER = (
    End(labels=pod(name).labels) for name in ("concertina", "database", "ray-head", "ray-worker")
)
INGRESS, PROMETHEUS, STRANGER = (
    End(labels={"app": "any"}, namespace=name) for name in ("ingress-nginx", "monitoring", "default")
)
LISTENING = ((SERVICE, 8420), (SERVICE, 6380), (DATABASE, 5432), (HEAD, 6379), (WORKER, 6380))
API, KEYS, WORLD = (Outside(address) for address in ("10.96.0.1", "169.254.169.254", "198.51.100.7"))


@pytest.mark.parametrize(
    ("source", "target", "port", "is_open"),
    [
        (INGRESS, SERVICE, 8420, True),
        (PROMETHEUS, SERVICE, 8420, True),
        (STRANGER, SERVICE, 8420, False),
        (INGRESS, SERVICE, 6380, False),
        (INGRESS, DATABASE, 5432, False),
        (INGRESS, HEAD, 6379, False),
        (STRANGER, HEAD, 6379, False),
        (SERVICE, DATABASE, 5432, True),
        (SERVICE, DATABASE, 22, False),
        (WORKER, DATABASE, 5432, False),
        (HEAD, DATABASE, 5432, False),
        (SERVICE, HEAD, 6379, True),
        (HEAD, SERVICE, 40123, True),
        (WORKER, WORKER, 40123, True),
        (WORKER, SERVICE, 40123, True),
        (DATABASE, WORKER, 40123, False),
        # Ray's autoscaler asks Kubernetes; nobody else needs to. A block of addresses cannot tell 443 there from HTTPS.
        (HEAD, API, 443, True),
        (HEAD, API, 6443, True),
        (WORKER, API, 6443, False),
        (SERVICE, API, 6443, False),
        (DATABASE, API, 443, False),
        (DATABASE, API, 6443, False),
        # Storage and packages; never the cloud's service that hands out keys.
        (SERVICE, WORLD, 443, True),
        (WORKER, WORLD, 443, True),
        (WORKER, WORLD, 80, False),
        (DATABASE, WORLD, 443, False),
        *((pod, KEYS, port, False) for pod in (SERVICE, HEAD, WORKER, DATABASE) for port in (80, 443, 6443)),
        # Back in from there: nobody.
        *((place, pod, port, False) for place in (API, KEYS, WORLD) for pod, port in LISTENING),
    ],
)
def test_pods_reach_whom_they_need_and_nobody_else(source: End, target: End, port: int, is_open: bool) -> None:
    assert may_reach(source, target, port) is is_open
