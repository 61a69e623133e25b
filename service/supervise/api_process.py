"""The API process: uvicorn on the listening socket that the supervisor holds."""

from __future__ import annotations

import asyncio
import gc
import socket

import uvicorn

from service.settings import Settings, load_settings
from service.supervise.pulse import beating

HEAR_S = 0.1
GRACE_S = 3  # open event streams are cut after it when the API is told to end


class Server(uvicorn.Server):
    """One that gives its supervisor signs of life, also while it waits for its database."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with beating():
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        starting = asyncio.create_task(super().startup(sockets))
        while not starting.done() and not self.should_exit:
            await asyncio.wait([starting], timeout=HEAR_S)
        if not starting.done():  # it may wait for a database for ever
            starting.cancel()
            return
        await starting
        gc.freeze()  # what was loaded stays; to look through it took a third of every answer of many points


def main(descriptor: int) -> None:
    """Serve until SIGTERM. ``descriptor`` is the inherited listening socket."""
    settings = load_settings()
    server = Server(_config(settings))
    server.run(sockets=[socket.socket(fileno=descriptor)])


def _config(settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        "service.app:create_app",
        factory=True,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=settings.behind_proxy,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )


if __name__ == "__main__":
    import sys

    main(int(sys.argv[1]))
