"""A migrated database for tests of the harness."""

from __future__ import annotations

from tests.service.conftest import anyio_backend, clock, database_url, migrated_file, settings, store

__all__ = ["anyio_backend", "clock", "database_url", "migrated_file", "settings", "store"]
