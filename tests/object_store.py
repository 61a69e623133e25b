"""An S3-like server in this process."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Any, Self

import fsspec
import s3fs
from botocore.exceptions import EndpointConnectionError
from fsspec.config import conf

from workers.storage_urls import provide

_numbers = itertools.count()
_CHANGING = frozenset({"put_object", "upload_part", "complete_multipart_upload", "delete_object", "delete_objects"})


class _Requests:
    """While it is open, requests of this process go through ``_ask``, which may pass them on to ``_send``."""

    def __init__(self) -> None:
        self._send: Any = s3fs.core._error_wrapper

    def __enter__(self) -> Self:
        s3fs.core._error_wrapper = self._ask
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        s3fs.core._error_wrapper = self._send

    async def _ask(self, method: Any, **more: Any) -> Any:
        raise NotImplementedError


class CutRequests(_Requests):
    """Counts requests of this process that change objects, and fails the ``at``-th (None: none).

    ``is_done``: the store has carried it out, and only its answer is lost. ``is_last``: so do all later ones fail, as
    if the process were gone.
    """

    def __init__(self, at: int | None = None, *, is_done: bool = False, is_last: bool = True) -> None:
        self.at, self.is_done, self.is_last = at, is_done, is_last
        self.num_asked = 0
        super().__init__()

    async def _ask(self, method: Any, **more: Any) -> Any:
        if method.__name__ not in _CHANGING:
            return await self._send(method, **more)
        self.num_asked += 1
        at = self.at or self.num_asked + 1
        if self.num_asked == at and self.is_done:
            await self._send(method, **more)
        if self.num_asked == at or (self.num_asked > at and self.is_last):
            raise TimeoutError(f"request {self.num_asked} got no answer")
        return await self._send(method, **more)


class LostObjects(_Requests):
    """While it is open, what objects with a key that ends so hold gets no answer, as if their server were gone."""

    def __init__(self, *ends: str) -> None:
        self._ends = ends
        super().__init__()

    async def _ask(self, method: Any, **more: Any) -> Any:
        if method.__name__ == "get_object" and more["kwargs"]["Key"].endswith(self._ends):
            # No OSError: not every error of such a library is one.
            raise EndpointConnectionError(endpoint_url=more["kwargs"]["Key"])
        return await self._send(method, **more)


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
