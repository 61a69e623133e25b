"""An S3-like server in this process."""

from __future__ import annotations

import itertools
import os
from types import TracebackType

import fsspec
from moto.server import ThreadedMotoServer

_VARIABLES = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
_numbers = itertools.count()


class ObjectStore:
    """While it is open, ``s3://`` URLs lead here, by the variables that people set for servers of their own."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> ObjectStore:
        self._server.start()
        host, port = self._server.get_host_and_port()
        variables = {**_VARIABLES, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        self._server.stop()

    def make_bucket(self) -> str:
        """The URL of a new bucket; what other servers of this process had does not show in it."""
        name = f"bucket-{next(_numbers)}"
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        fsspec.filesystem("s3").mkdir(name)
        return f"s3://{name}"
