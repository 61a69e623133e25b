"""The values of a job's secrets, and how they are kept out of what leaves a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
        return max((len(value.encode()) for value in self.values), default=0)

    def text(self, text: str) -> str:
        """The text with every value replaced by stars."""
        for value in self.values:
            text = text.replace(value, "***")
        return text

    def data(self, data: bytes) -> bytes:
        """The bytes with every value replaced by as many stars, so that offsets stay."""
        for value in self.values:
            raw = value.encode()
            data = data.replace(raw, b"*" * len(raw))
        return data

    def piece(self, data: bytes) -> bytes:
        """The same for bytes that go on: without an end that may be the beginning of a value."""
        blotted = self.data(data)
        num_open = max((_overlap(blotted, value.encode()) for value in self.values), default=0)
        return blotted[: len(blotted) - num_open]

    def failure(self, failure: Failure | None) -> Failure | None:
        """The failure without values."""
        if failure is None or not self.values:
            return failure
        return replace(failure, message=self.text(failure.message), traceback=self.text(failure.traceback))


def secrets_of(spec: JobSpec, env: Mapping[str, str]) -> Secrets:
    """The secrets among the variables of ``env``, longest first."""
    found = {env.get(name, "") for name, value in spec.env.items() if isinstance(value, Secret)}
    return Secrets(tuple(sorted((v for v in found if len(v) >= MIN_CHARS), key=len, reverse=True)))


def _overlap(data: bytes, value: bytes) -> int:
    """The length of the longest end of ``data`` that is a proper beginning of ``value``."""
    longest = min(len(data), len(value) - 1)
    return next((n for n in range(longest, 0, -1) if data.endswith(value[:n])), 0)
