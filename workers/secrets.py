"""The values of a job's secrets, and how they are kept out of what leaves a worker."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from workers.errors import Failure
from workers.spec import JobSpec
from workers.spec_parts import Secret

MIN_CHARS = 4
"""A shorter value is no secret: blotting it out would make logs unreadable and tell its length at every place."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What must not be shown; an instance must never be logged itself."""

    values: tuple[str, ...] = ()

    @property
    def max_bytes(self) -> int:
        """The length of the longest value."""
        return max((len(raw) for raw in self._raw()), default=0)

    def text(self, text: str) -> str:
        """The text with every value replaced by stars."""
        for value in self.values:
            text = text.replace(value, "***")
        return text

    def data(self, data: bytes) -> bytes:
        """The bytes with every value replaced by as many stars, so that offsets stay."""
        for raw in self._raw():
            data = data.replace(raw, b"*" * len(raw))
        return data

    def piece(self, data: bytes) -> bytes:
        """The same for bytes that go on: without an end that may be the beginning of a value."""
        blotted = self.data(data)
        num_open = max((_num_begun(blotted, raw) for raw in self._raw()), default=0)
        return blotted[: len(blotted) - num_open]

    def tail(self, data: bytes, *, is_cut: bool) -> bytes:
        """The same for the last bytes of all: with stars also where an end of them may be the beginning of a value.

        ``is_cut``: others went before, so that their beginning may be the end of one.
        """
        num_open = max((_num_ended(data, raw) for raw in self._raw()), default=0) if is_cut else 0
        return b"*" * num_open + self.piece(data).ljust(len(data), b"*")[num_open:]

    def failure(self, failure: Failure | None) -> Failure | None:
        """The failure without values."""
        if failure is None or not self.values:
            return failure
        return replace(failure, message=self.text(failure.message), traceback=self.text(failure.traceback))

    def _raw(self) -> Iterator[bytes]:
        """The values as the environment had them, whatever their encoding."""
        return (os.fsencode(value) for value in self.values)


def secrets_of(spec: JobSpec, env: Mapping[str, str]) -> Secrets:
    """The secrets among the variables of ``env``, in all ways that they are written, longest first."""
    values = [env.get(name, "") for name, value in spec.env.items() if isinstance(value, Secret)]
    found = {text for value in values for text in _written(value)}
    return Secrets(tuple(sorted((v for v in found if len(v) >= MIN_CHARS), key=len, reverse=True)))


def _written(value: str) -> Iterator[str]:
    """The value, also without the space around it, and each as messages of Python, JSON and URLs have it."""
    for text in (value, value.strip()):
        yield from (text, repr(text)[1:-1], json.dumps(text)[1:-1], quote(text, safe="", errors="surrogateescape"))


def _num_begun(data: bytes, value: bytes) -> int:
    """The length of the longest end of ``data`` that is a proper beginning of ``value``."""
    longest = min(len(data), len(value) - 1)
    return next((n for n in range(longest, 0, -1) if data.endswith(value[:n])), 0)


def _num_ended(data: bytes, value: bytes) -> int:
    """The length of the longest beginning of ``data`` that is a proper end of ``value``."""
    longest = min(len(data), len(value) - 1)
    return next((n for n in range(longest, 0, -1) if data.startswith(value[-n:])), 0)
