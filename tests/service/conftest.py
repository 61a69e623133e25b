"""A migrated database and an application for each test."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from service.app import create_app
from service.folders import token_file
from service.migrations.upgrade import upgrade
from service.replica import Claim
from service.services import Services, build_services
from service.settings import Settings, load_settings
from service.store.opening import Store, open_store
from tests.service.given import Clock, leader
from tests.service.postgres import CANNOT_RUN, PostgresServer, running_server
from tests.service.scene import Scene
from tests.service.swept import Swept, created

BASE_URL = "http://127.0.0.1:8420"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database at the newest migration, to be copied."""
    file = tmp_path_factory.mktemp("migrated") / "template.db"
    upgrade(f"sqlite:///{file}")
    return file


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL; tests that use it are marked ``postgres``."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
        except CANNOT_RUN as error:
            pytest.skip(f"PostgreSQL cannot be started here: {error}")
        yield server


DATABASES = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path, migrated_file: Path) -> str:
    """The URL of an empty database at the newest migration: the tests of the store's contract run on each kind."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.migrated()
    shutil.copy(migrated_file, tmp_path / "concertina.db")
    return f"sqlite:///{tmp_path / 'concertina.db'}"


@pytest.fixture
async def store(database_url: str, clock: Clock) -> AsyncIterator[Store]:
    opened = open_store(database_url, clock, clock)
    yield opened
    await opened.close()


@pytest.fixture
def settings(tmp_path: Path, migrated_file: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    shutil.copy(migrated_file, home / "concertina.db")
    return load_settings({"home": home, "poll_s": 0.05}, {})


@pytest.fixture
async def services(settings: Settings, clock: Clock) -> Services:
    return build_services(settings, clock, clock)


@pytest.fixture
async def app(services: Services) -> AsyncIterator[FastAPI]:
    made = create_app(services=services)
    async with made.router.lifespan_context(made):
        yield made


@pytest.fixture
async def anonymous(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A caller without a token."""
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=BASE_URL) as client:
        yield client


@pytest.fixture
async def client(anonymous: httpx2.AsyncClient, settings: Settings) -> httpx2.AsyncClient:
    """A caller with the admin token."""
    anonymous.headers["Authorization"] = f"Bearer {token_file(settings.home).read_text().strip()}"
    return anonymous


@pytest.fixture
async def swept(client: httpx2.AsyncClient, services: Services, clock: Clock) -> Swept:
    """A sweep over the API whose reconciler the test plays."""
    sweep = await created(client)
    return await Swept.of(services.store, clock, sweep["id"])


@pytest.fixture
def running_app() -> Callable[..., object]:
    """An application with settings of the test's own, as a context manager that gives a caller with its token."""

    @asynccontextmanager
    async def run(settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
        made = create_app(settings)
        async with made.router.lifespan_context(made):
            headers = {"Authorization": f"Bearer {token_file(settings.home).read_text().strip()}"}
            transport = httpx2.ASGITransport(made, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url=BASE_URL, headers=headers) as caller:
                yield caller

    return run


@pytest.fixture
async def scene(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    # Workers in memory answer at once: the rhythm of polls over a network would be all that tests wait for.
    monkeypatch.setattr("workers.control.pace.STEADY_S", 0.01)
    monkeypatch.setattr("workers.control.pace.TURN_S", 0.01)
    monkeypatch.setattr("workers.control.pace.BRISK_S", 0.005)
    monkeypatch.setattr("service.reconciler.reconciler.VIEW_S", 0.05)
    settings = load_settings({"home": tmp_path / "home"}, {})
    await Claim(store.reconciler, settings.storage_url).take()
    made = Scene(store, settings, await leader(store))
    yield made
    await made.reconciler.settle(5)
    await made.cluster.lose_everything()


@pytest.fixture
async def endless(scene: Scene) -> Scene:
    """Jobs here do not end by themselves."""
    scene.cluster.total = 1_000_000
    return scene
