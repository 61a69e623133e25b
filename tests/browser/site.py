"""A real service on a real database, without a reconciler: the test plays that part."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import uvicorn

from service.app import create_app
from service.auth import ensure_admin_token
from service.folders import token_file
from service.migrations.upgrade import upgrade
from service.services import build_services
from service.settings import Settings
from service.store.opening import open_store
from tests.browser.sample import Clock, Sample

T = TypeVar("T")
START_TIMEOUT_S = 60.0
STEP_S = 0.02


class Site:
    """One installation in a folder; ``start`` and ``stop`` its API as often as wanted, on one port.

    ``fence`` is the reconciler's number; a copy of a folder goes on with that of its origin. ``clock`` gives the
    service's Unix seconds.
    """

    def __init__(self, home: Path, fence: int = 0, clock: Callable[[], float] = time.time) -> None:
        self._settings = Settings(home=home, port=0, price_cpu_hour=0.04, poll_s=0.1)
        upgrade(self._settings.database_url)
        self.fence = fence
        self._clock = clock
        self.port = 0
        self._place = socket.socket()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.write(lambda sample: ensure_admin_token(sample.store.access, home))
        self.token = token_file(home).read_text().strip()

    @property
    def home(self) -> Path:
        """The service's folder."""
        return self._settings.home

    @property
    def url(self) -> str:
        """Where the pages are, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Serve; returns once connections are accepted."""
        if not self.port:
            # Bound, and never listening: while the API is stopped nobody else gets its port, and calls are refused.
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", 0))
            self.port = self._place.getsockname()[1]
        config = uvicorn.Config(
            create_app(services=build_services(self._settings, self._clock)),
            port=self.port,
            log_level="warning",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            assert time.monotonic() < deadline, f"the API was not ready within {START_TIMEOUT_S:.0f} s"
            self._thread.join(STEP_S)

    def stop(self) -> None:
        """End the API; the database stays."""
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(START_TIMEOUT_S)
        assert not self._thread.is_alive(), f"the API did not end within {START_TIMEOUT_S:.0f} s"

    def write(self, change: Callable[[Sample], Awaitable[T]], began_s: float | None = None) -> T:
        """Let the reconciler's hand write; its clock begins at ``began_s``, or at the service's now."""

        async def run() -> T:
            clock = Clock(self._clock() if began_s is None else began_s)
            store = open_store(self._settings.database_url, clock, clock)
            sample = Sample(store, clock, self._settings.storage_url, self.fence)
            try:
                return await change(sample)
            finally:
                self.fence = sample.fence
                await store.close()

        with ThreadPoolExecutor(1) as threads:  # this thread has Playwright's event loop
            return threads.submit(lambda: asyncio.run(run())).result()
