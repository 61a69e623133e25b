"""The image is built step by step in fresh roots, and serves as user 10001 on a read-only one with its mounts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

from service.settings import load_settings
from service.supervise.supervisor import API_END_LIMIT_S, SAVE_LIMIT_S
from tests.deploy.apart import Apart, apart, neighbours
from tests.deploy.container import (
    LOOPBACK,
    Container,
    Main,
    contain,
    copied_volume,
    memory_volume,
    mounts_of,
    name_hosts,
    pod_volume,
    words_of,
)
from tests.deploy.image import IGNORED, SOURCE, STEPS, Stage, build
from tests.deploy.kuberay import HEAD_NAMES, SHARED_MEMORY, more_environment, start_words
from tests.deploy.manifests import DEPLOY, SECRETS, Pod, container_environment, pod
from tests.service.postgres import running_server
from tests.tcp_proxy import proxied_in_thread
from tests.waiting import wait_for
from workers.storage_urls import local_folder

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
PASSWORD = "${DATABASE_PASSWORD:?give it letters and digits}"
COMPOSED_PASSWORD = "0a1b"
# What `serve` ends with where it has waited in vain for its database: the last words of its API.
REFUSAL = r"password authentication failed for user \"concertina\""
UID = 10001
READY_S = 150.0
REAPED_S = 30.0
LEAVING = "seconds=50"
# As the kubelet does: by the pod's address. Prints the status and what was answered.
_ASK = """import sys, urllib.error, urllib.request
path, *headers = sys.argv[1:]
asked = urllib.request.Request("http://127.0.0.1:8420" + path, headers={"Host": "10.1.2.3:8420"})
for header in headers:
    asked.add_header(*header.split(": ", 1))
try:
    answer = urllib.request.urlopen(asked, timeout=20)
except urllib.error.HTTPError as error:
    answer = error
except OSError as error:
    sys.exit(print(0, error))
print(answer.status, answer.read().decode())
"""


def last(verb: str) -> str:
    return [step.text for step in STEPS if step.verb == verb][-1]


def told_by_dockerfile(name: str) -> str:
    """A variable that the image sets."""
    return dict(word.split("=", 1) for word in last("ENV").split())[name]


@pytest.fixture(scope="module")
def machine() -> Iterator[Apart]:
    with apart() as made:
        yield made


@pytest.fixture(scope="module")
def image(machine: Apart) -> Stage:
    return build(machine)


@pytest.fixture(scope="module")
def database(machine: Apart) -> Iterator[Callable[[str], None]]:
    """A real PostgreSQL at port 5432 of the machine within; gives what makes its database new, with a password."""

    async def renew(socket_folder: Path, password: str) -> None:
        connection = await asyncpg.connect(host=str(socket_folder), user="postgres", database="postgres")
        await connection.execute("DROP DATABASE IF EXISTS concertina WITH (FORCE)")
        await connection.execute("DROP ROLE IF EXISTS concertina")
        await connection.execute(f"CREATE ROLE concertina LOGIN PASSWORD '{password}'")
        await connection.execute("CREATE DATABASE concertina OWNER concertina")
        await connection.close()

    with (
        running_server() as server,
        proxied_in_thread(lambda: asyncio.open_unix_connection(server.socket), machine.listen(5432)),
    ):
        server.check_password_of("concertina")
        yield lambda password: asyncio.run(renew(server.socket_folder, password))


def ask(machine: Apart, path: str, **headers: str) -> tuple[int, str]:
    """A call of the service there: the status, 0 where nobody answers, and the answer."""
    told = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    status, _, body = machine.run(sys.executable, "-c", _ASK, path, *told).partition(" ")
    return int(status), body


def until_ready(machine: Apart, main: Main) -> None:
    """Wait as a readiness probe does, and for Ray."""
    answers: list[tuple[int, str]] = []

    def is_ready() -> bool:
        assert main.is_running, main.stop(1.0)
        answers.append(ask(machine, "/readyz"))
        return answers[-1] == (200, '{"status":"ready"}\n')

    wait_for("a service with all its parts", is_ready, READY_S, lambda: str(answers[-1:]))


def cpus_of_nodes(machine: Apart) -> dict[str, float]:
    """How many CPUs each node of Ray has for workers, as the service tells whoever has its token."""
    headers = {"Host": "concertina.concertina.svc", "Authorization": f"Bearer {SECRETS['admin-token']}"}
    status, answer = ask(machine, "/api/v1/cluster", **headers)
    assert status == 200, answer
    return {node["name"]: node["total"]["cpus"] for node in json.loads(answer)["nodes"]}


def stop_in_order(machine: Apart, main: Main, grace_s: float, *others: Main) -> None:
    """It ends by itself within what it is given, the others after it, and nothing of them stays behind."""
    code, said = main.stop(grace_s)
    assert code == 0, said
    for other in others:
        other.stop(grace_s)
    wait_for("the end of all", lambda: not machine.processes_of(UID), REAPED_S, lambda: str(machine.processes_of(UID)))


def cannot_write(container: Container, path: str) -> bool:
    """Whether a folder that everybody may write to refuses."""
    return "Read-only file system" in container.run(["touch", f"{path}/tried"]).stderr


def submit(container: Container, spec: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """By the command line within."""
    container.run(["tee", "/tmp/job.yaml"], given=yaml.safe_dump(spec))
    return container.run(["concertina", "submit", "/tmp/job.yaml", *options])


def shown(container: Container, job_id: str) -> dict[str, Any]:
    """The job's document."""
    document: dict[str, Any] = json.loads(container.run(["concertina", "show", job_id, "-o", "json"]).stdout)
    return document


def leave_as_a_pod(container: Container, home: str) -> None:
    """What a pod of Ray's workers does before it ends, with a shorter time, on the node that runs here."""
    (*shell, script) = pod("ray-worker").container("ray-worker")["lifecycle"]["preStop"]["exec"]["command"]
    run = Path(f"{home}/home/run")
    own = json.loads(container.root.seen(str(run / "ray.json")).read_text())
    node = {"RAY_ADDRESS": own["address"], "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(run / "ray_token")}
    assert LEAVING in script
    done = dataclasses.replace(container, environment=node).run([*shell, script.replace(LEAVING, "seconds=20")])
    assert done.returncode == 0, done.stderr


def of_a_stranger(service: Container) -> Container:
    """The same, but with a home and a port of its own, and with another password than the database's."""
    given = service.environment["CONCERTINA_DATABASE"]
    url = given.replace(SECRETS["database-password"], "another")
    assert url != given
    own = {"CONCERTINA_DATABASE": url, "CONCERTINA_HOME": "/tmp/stranger", "CONCERTINA_PORT": "0"}
    return dataclasses.replace(service, environment={**service.environment, **own})


@pytest.mark.mount
@pytest.mark.network
def test_the_image_has_pages_migrations_and_all_modules_of_the_source(image: Stage) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "service", "workers", "tuning", ":!*README.md"],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    installed = image.run(["python", "-P", "-c", "import service; print(service.__file__)"]).strip()
    assert installed == f"{image.packages}/service/__init__.py"
    login = "concertina version; ray --version"
    assert image.run(["bash", "-lc", login]) == image.run(["bash", "-c", login])
    assert [name for name in tracked if not image.root.seen(f"{image.packages}/{name}").is_file()] == []


@pytest.mark.mount
@pytest.mark.network
@pytest.mark.postgres
@pytest.mark.timeout(400)
def test_as_kubernetes_runs_it_the_image_serves_beside_rays_nodes_and_stops_in_order(
    machine: Apart, image: Stage, database: Callable[[str], None]
) -> None:
    database(SECRETS["database-password"])
    described = pod("concertina")
    with neighbours(machine, 2) as (for_head, for_worker):
        name_hosts(image, {"database.concertina.svc": LOOPBACK, **dict.fromkeys(HEAD_NAMES, for_head.address)})
        head = start_node(image, "ray-head", for_head)
        volumes = volumes_of(image, described)
        home, node, service = (of_pod(image, described, name, volumes) for name in ("home", "ray", "service"))
        sidecar = node.start(words_of(image, described.container("ray")))
        done = home.run(words_of(image, described.container("home")))
        assert done.returncode == 0, done.stderr
        assert cannot_write(service, "/var/tmp")
        serve = words_of(image, described.container("service"))
        stranger = of_a_stranger(service)
        refused = stranger.start(serve)
        main = service.start(serve)
        log = stranger.root.seen("/tmp/stranger/logs/api.log")
        wait_for("its refusal", lambda: log.exists() and REFUSAL in log.read_text())
        refused.stop(API_END_LIMIT_S + REAPED_S)
        until_ready(machine, main)
        worker = start_node(image, "ray-worker", for_worker)
        # Nobody trains but there: the node beside the service, the head and a worker.
        joined = {machine.address: 0, for_head.address: 0, for_worker.address: 4}
        wait_for("all nodes", lambda: cpus_of_nodes(machine) == joined, READY_S, lambda: str(cpus_of_nodes(machine)))
        stop_in_order(machine, main, described.spec["terminationGracePeriodSeconds"], sidecar)
        assert head.is_running
        assert worker.is_running


@pytest.mark.mount
@pytest.mark.network
@pytest.mark.postgres
@pytest.mark.timeout(400)
def test_as_compose_runs_it_the_image_trains_gives_its_node_back_and_stops_in_order(
    machine: Apart, image: Stage, database: Callable[[str], None]
) -> None:
    database(COMPOSED_PASSWORD)
    service = COMPOSE["services"]["concertina"]
    name_hosts(image, {"database": LOOPBACK})
    volume, home = service["volumes"][0].split(":")
    folder, options = service["tmpfs"][0].split(":")
    mounts = {
        home: copied_volume(image, volume, home),
        folder: memory_volume(image, "tmp", options),
        "/dev/shm": memory_volume(image, "shm", f"mode=1777,size={service['shm_size'].removesuffix('b')}"),
    }
    composed = contain(image, "composed", mounts, composed_environment())
    assert cannot_write(composed, "/var/tmp")
    main = composed.start([*image.entrypoint, *image.arguments])

    def is_healthy() -> bool:
        assert main.is_running, main.stop(1.0)
        return composed.run(service["healthcheck"]["test"][1:]).returncode == 0

    wait_for("the health check", is_healthy, READY_S)
    spec = {"name": "digits", "entrypoint": "workers.recipes.digits:build", "workers": 1}
    trained = submit(composed, {**spec, "steps": 20}, "--follow")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    job_id = json.loads(submit(composed, {**spec, "steps": 1_000_000}, "-o", "json").stdout)["id"]
    wait_for("steps", lambda: shown(composed, job_id)["progress"]["step"] > 0)
    leave_as_a_pod(composed, home)
    # Its worker is gone; the service learns of that a moment later.
    wait_for("its return to the queue", lambda: shown(composed, job_id)["state"] == "QUEUED")
    left = shown(composed, job_id)
    assert (left["state"], left["reason"]) == ("QUEUED", "PREEMPTED")
    saved = json.loads(composed.run(["concertina", "checkpoints", job_id, "-o", "json"]).stdout)["checkpoints"]
    assert saved[-1]["step"] == left["progress"]["step"] > 0
    stop_in_order(machine, main, int(service["stop_grace_period"].removesuffix("s")))


def volumes_of(image: Stage, described: Pod) -> dict[str, str]:
    """Where those of a pod lie, by their names."""
    volumes = described.spec["volumes"]
    return {v["name"]: pod_volume(image, described.name, v, UID, SECRETS) for v in volumes}


def of_pod(image: Stage, described: Pod, name: str, volumes: dict[str, str]) -> Container:
    container = described.container(name)
    assert container["securityContext"]["readOnlyRootFilesystem"]
    environment = container_environment(container, SECRETS, f"{described.name}-0")
    return contain(image, f"pod-{name}", mounts_of(container, volumes), environment)


def start_node(image: Stage, name: str, place: Apart) -> Main:
    """A node of Ray as KubeRay runs it: a pod on a machine of its own, with shared memory."""
    described = pod(name)
    there = dataclasses.replace(image, root=dataclasses.replace(image.root, machine=place))
    shared = pod_volume(there, name, {"name": "shared-mem", "emptyDir": {}}, UID, SECRETS)
    container = described.container(name)
    mounts = {SHARED_MEMORY: shared, **mounts_of(container, volumes_of(there, described))}
    environment = container_environment(container, SECRETS, name) | more_environment(name)
    return contain(there, f"pod-{name}", mounts, environment).start(start_words(name))


def composed_environment() -> dict[str, str]:
    """What compose sets, with a password in it."""
    given = COMPOSE["services"]["concertina"]["environment"]
    return {name: str(value).replace(PASSWORD, COMPOSED_PASSWORD) for name, value in given.items()}


def test_what_is_copied_is_let_through_to_the_builder() -> None:
    allowed = {line[1:] for line in IGNORED if line.startswith("!")}
    copied = [s.words[:-1] for s in STEPS if s.verb == "COPY" and not s.text.startswith("--from")]
    assert {name for names in copied for name in names} == allowed


def test_the_image_runs_as_the_user_whom_kubernetes_names() -> None:
    assert last("USER") == f"{UID}:{UID}"
    for name in ("concertina", "ray-head", "ray-worker"):
        assert pod(name).spec["securityContext"]["runAsUser"] == UID


def test_compose_knows_every_field() -> None:
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    told = subprocess.run([*check, DEPLOY / "compose.yaml"], check=False, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stdout


def test_the_composed_service_reads_its_settings_and_is_reached_from_this_machine_only() -> None:
    service = COMPOSE["services"]["concertina"]
    home = told_by_dockerfile("CONCERTINA_HOME")
    settings = load_settings(environ={"CONCERTINA_HOME": home, **composed_environment()})
    assert settings.database_url == f"postgresql+asyncpg://concertina:{COMPOSED_PASSWORD}@database/concertina"
    assert service["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    volume = service["volumes"][0].split(":")[1]
    assert Path(home).is_relative_to(volume)
    assert Path(str(local_folder(settings.storage_url))).is_relative_to(volume)


def test_the_composed_service_has_time_to_stop_and_cannot_become_root() -> None:
    service = COMPOSE["services"]["concertina"]
    assert int(service["stop_grace_period"].removesuffix("s")) > SAVE_LIMIT_S + API_END_LIMIT_S
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"]
