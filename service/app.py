"""The API application, wired: gate, routers, pages, static files. Loads neither Ray nor torch."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator

import structlog
from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.routing import BaseRoute

from service.api import bundles, configurations, jobs, login, nodes, schedules, stream, sweeps, system, telemetry
from service.api.gate import API_PREFIX, Gate
from service.api.problems import install_handlers
from service.api.requests import known_parameters_only
from service.api.schema import install_schema
from service.auth import ensure_admin_token
from service.errors import UnavailableError
from service.log import configure_log
from service.pages.assets import Assets
from service.pages.routes import build_pages
from service.replica import check_storage
from service.services import Services, build_services
from service.settings import Settings, load_settings
from service.store.leases import Installation
from service.store.opening import Store
from service.store.port import DatabaseAwayError
from service.store.schema import REVISION
from service.store.transactions import News
from service.version import service_version

log = structlog.get_logger("concertina.api")

MIN_COMPRESSED_BYTES = 1000
AWAY_S = 1.0
CLAIM_S = 1.0


def create_app(settings: Settings | None = None, services: Services | None = None) -> FastAPI:
    """The application; settings default to what the environment says. Its lifespan opens and closes the store."""
    configure_log()
    use = services or build_services(settings or load_settings())

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with _running(use):
            yield

    app = FastAPI(
        title="Concertina",
        version=service_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=_rest_routes(),
    )
    app.state.services = use
    install_handlers(app)
    install_schema(app)
    app.add_middleware(
        GZipMiddleware,
        minimum_size=MIN_COMPRESSED_BYTES,
        compresslevel=5,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream"),  # weights do not shrink
    )
    app.add_middleware(Gate, services=use)
    app.include_router(build_pages(use))
    app.mount("/static", Assets(), name="static")
    return app


@functools.cache
def _rest_routes() -> list[BaseRoute]:
    """Routes that know no application: they find the services in the request, so all applications share them.

    Included without a router between, since FastAPI works out the parameters of all calls once a level.
    """
    outer = APIRouter()
    for part in (bundles, jobs, telemetry, sweeps, configurations, schedules, stream, system, nodes):
        outer.include_router(part.router, prefix=API_PREFIX, dependencies=[Depends(known_parameters_only)])
    outer.include_router(system.outside)
    outer.include_router(login.router)
    return outer.routes


@contextlib.asynccontextmanager
async def _running(use: Services) -> AsyncIterator[None]:
    installation = await _opened(use)
    check_storage(use.settings.storage_url, use.settings.home, installation)
    await _claim(use)
    use.page_tokens.use(installation.page_secret)
    use.listener.open()
    tasks = (
        asyncio.create_task(use.feed.run(use.listener, use.settings.poll_s, _tell)),
        asyncio.create_task(use.store.database.watch(tuple(News), use.listener.wake)),
    )
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        use.listener.close()
        await use.store.close()


async def _claim(use: Services) -> None:
    """What is missing in a folder from now on is known to be away; one that fails is no reason not to start."""
    if use.settings.storage_folder is None:
        return
    try:
        async with asyncio.timeout(CLAIM_S):
            await use.claim.hold()
    except (TimeoutError, UnavailableError, DatabaseAwayError) as error:
        log.warning("the storage cannot be used", why=str(error))


async def _opened(use: Services) -> Installation:
    """A PostgreSQL that is away is waited for: processes that end are started again later and later."""
    while True:
        try:
            await prepare_store(use.store, use.settings)
            return await use.store.leases.installation()
        except DatabaseAwayError as error:
            if use.settings.database_file is not None:
                raise
            _tell(error)
            await asyncio.sleep(AWAY_S)


async def prepare_store(store: Store, settings: Settings) -> None:
    """Bring the database to the newest migration, and make the admin token at the first start.

    Raises StoreError when a newer version of the service wrote the database, DatabaseAwayError.
    """
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if settings.database_file is not None:
        settings.database_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if await store.leases.revision() != REVISION:
        # Imported here: the service starts often, and migrates once.
        from service.migrations.upgrade import upgrade

        await asyncio.to_thread(upgrade, settings.database_url)
    await ensure_admin_token(store.access, settings.home)


def _tell(error: Exception) -> None:
    log.warning("the database is away", error=str(error))
