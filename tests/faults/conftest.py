"""A migrated SQLite database in a home for tests of the harness: the oracle reads its file.

Processes of the service are forked with everything imported, which takes seconds: only for tests that will run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from service.settings import Settings
from service.store.opening import Store, open_store
from tests.forking import import_before_forking
from tests.service.conftest import anyio_backend, clock, migrated_file, settings
from tests.service.given import Clock

__all__ = ["anyio_backend", "clock", "migrated_file", "settings"]


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(item.get_closest_marker("faults") for item in session.items):
        import_before_forking("tests.faults.processes")


@pytest.fixture
async def store(settings: Settings, clock: Clock) -> AsyncIterator[Store]:
    opened = open_store(settings.database_url, clock)
    yield opened
    await opened.close()
