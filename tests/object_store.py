"""An S3-like server in this process."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Any

import fsspec
from fsspec.config import conf

from workers.storage_urls import provide

_numbers = itertools.count()


class ObjectStore:
    """While it is open, ``s3://`` URLs of this process lead here; ``options`` lead others here."""

    def __init__(self) -> None:
        # Imported here: it takes half a second, and modules of tests are imported for every run, whatever it selects.
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.options: dict[str, Any] = {}

    def __enter__(self) -> ObjectStore:
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.options = {"key": "x", "secret": "x", "endpoint_url": f"http://{host}:{port}"}
        provide("s3://", self.options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del conf["s3"]
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        self._server.stop()

    def make_bucket(self) -> str:
        """The URL of a new bucket; what other servers of this process had does not show in it."""
        name = f"bucket-{next(_numbers)}"
        fsspec.filesystem("s3").mkdir(name)
        return f"s3://{name}"
