"""The API as a process of its own: what it loads, and that streams and signals work over a real socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from service.folders import token_file
from service.settings import Settings
from service.supervise.ports import listen
from tests.service.given import spec_document
from tests.waiting import wait_for

REPOSITORY = Path(__file__).parents[2]
WAIT_S = 60.0
MAX_RSS_BYTES = 150 * 2**20

SERVE = """
import gc, signal, socket, sys
import uvicorn
from service.app import create_app
from service.supervise.api_process import Server
signal.signal(signal.SIGTERM, lambda *_: None)  # which uvicorn raises again at its end: this has to be told first
config = uvicorn.Config(create_app(), log_level="warning", timeout_graceful_shutdown=1)
Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
heavy = {"fsspec", "ray", "torch", "numpy", "alembic", "optuna"}
loaded = sorted({name.partition(".")[0] for name in sys.modules} & heavy)
print(",".join(loaded), gc.get_freeze_count())
"""
LEAST_FROZEN = 50_000


@pytest.fixture
def changes(request: pytest.FixtureRequest) -> dict[str, str]:
    """What is otherwise in its settings."""
    return getattr(request, "param", {})


def errors_of(settings: Settings) -> Path:
    return settings.home / "errors.txt"


@pytest.fixture
def served(settings: Settings, changes: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An API process on a free port, and its address."""
    with listen("127.0.0.1", 0) as listener, errors_of(settings).open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(listener.fileno())],
            cwd=REPOSITORY,
            env={**os.environ, **settings.model_copy(update=changes).as_environment()},
            pass_fds=(listener.fileno(),),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield process, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.kill()
            process.wait(WAIT_S)
            assert process.stdout is not None
            process.stdout.close()


def test_it_serves_small_without_ray_or_torch_and_ends_when_told(
    served: tuple[subprocess.Popen[str], str], settings: Settings
) -> None:
    process, url = served
    with httpx2.Client(base_url=url, timeout=WAIT_S, trust_env=False) as client:
        # The supervisor's socket listens already: the first call waits until the application is up.
        assert client.get("/readyz").status_code == 200
        client.headers["Authorization"] = f"Bearer {token_file(settings.home).read_text().strip()}"
        job = client.post("/api/v1/jobs", json=spec_document()).json()
        assert client.get("/jobs", headers={"Accept": "text/html"}).status_code == 200
        with client.stream("GET", "/api/v1/stream", params={"topic": f"job:{job['id']}"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            first = next(line for line in lines if line.startswith("data: "))
            assert json.loads(first[6:])["state"] == "QUEUED"
            client.post(f"/api/v1/jobs/{job['id']}/cancel")
            second = next(line for line in lines if line.startswith("data: "))
            assert json.loads(second[6:])["state"] == "CANCELLED"
        resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident <= MAX_RSS_BYTES
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=WAIT_S)
    loaded, num_frozen = out.rstrip("\n").split(" ")
    assert loaded == ""
    # Else answers of many points are interrupted to look through all that the application consists of.
    assert int(num_frozen) > LEAST_FROZEN


@pytest.mark.parametrize("changes", [{"database": "postgresql+asyncpg://nobody@127.0.0.1:1/none"}], indirect=True)
def test_one_that_waits_for_its_database_ends_when_told(
    served: tuple[subprocess.Popen[str], str], settings: Settings
) -> None:
    process, _ = served
    wait_for("its wait", lambda: "the database is away" in errors_of(settings).read_text())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
