"""A migrated database in a home for tests of the harness: SQLite, or PostgreSQL.

That is with ``--faults-on postgres``, and where a test asks for it.

Processes of the service are forked with everything imported, which takes seconds: only for tests that will run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from service.settings import Settings
from service.store.opening import Store, open_store
from tests.faults.databases import OF_THE_RUN
from tests.forking import import_before_forking
from tests.service.conftest import anyio_backend, clock, migrated_file, postgres
from tests.service.conftest import settings as settings_on_sqlite
from tests.service.given import Clock
from tests.service.postgres import PostgresServer

__all__ = ["anyio_backend", "clock", "migrated_file", "postgres", "settings_on_sqlite"]


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(item.get_closest_marker("faults") for item in session.items):
        import_before_forking("tests.faults.processes")


@pytest.fixture
def database() -> str | None:
    """The kind that a test names by a parameter, or ``OF_THE_RUN``."""
    return OF_THE_RUN


@pytest.fixture
def settings(settings_on_sqlite: Settings, database: str | None, request: pytest.FixtureRequest) -> Settings:
    if (database or request.config.getoption("--faults-on")) == "sqlite":
        return settings_on_sqlite
    server: PostgresServer = request.getfixturevalue("postgres")
    return settings_on_sqlite.model_copy(update={"database": server.migrated()})


@pytest.fixture
async def store(settings: Settings, clock: Clock) -> AsyncIterator[Store]:
    opened = open_store(settings.database_url, clock)
    yield opened
    await opened.close()
