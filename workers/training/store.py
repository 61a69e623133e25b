"""A torch.distributed store over calls to the controller: no port, and no host that can die."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeAlias

import torch.distributed as dist

from workers.training.calls import StoreCalls

Address: TypeAlias = tuple[str, int]

_MARK = b"\xc3"  # a labelled value; a counter's is decimal digits


class CallbackStore(dist.Store):  # type: ignore[name-defined,misc]  # it is there, but not in torch's stubs
    """One group's keys. Every value set carries the setter's addresses before it.

    So whoever reads a peer's value knows at which addresses that peer listens, which is how the
    group's own sockets are told from all others of the process when it has to be aborted.
    Keep a reference as long as the group lives.
    """

    def __init__(self, calls: StoreCalls, group: str, listening: Sequence[Address], timeout_s: float) -> None:
        super().__init__()
        self._calls = calls
        self._group = group
        self._timeout_s = timeout_s
        self._label = _MARK + " ".join(f"{host}|{port}" for host, port in listening).encode() + _MARK
        self._waited: dict[str, bytes] = {}
        self.own = frozenset(listening)
        self.peers: set[Address] = set()
        self.error: Exception | None = None

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key; raises what the controller's store raises."""
        data = value if isinstance(value, bytes) else value.encode()
        try:
            self._calls.set(self._group, key, self._label + data)
        except Exception as error:
            self.error = error
            raise

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        waited = self._waited.pop(key, None)
        return self._fetch(key) if waited is None else waited

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value."""
        return self._calls.add(self._group, key, amount)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are set; False when nobody answers, which is what NCCL's monitor expects of a lost store."""
        try:
            return self._calls.check(self._group, list(keys))
        except Exception:  # whatever the forwarding raises means that nobody answers
            return False

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set, within this store's own bound: members may come late."""
        for key in keys:
            self._waited[key] = self._fetch(key)  # it is asked for next: one call instead of two

    def set_timeout(self, timeout: timedelta) -> None:
        """The bound is the controller's matter; torch's wish is not followed."""

    def _fetch(self, key: str) -> bytes:
        try:
            data = self._calls.get(self._group, key, self._timeout_s)
        except Exception as error:
            self.error = error
            raise
        if not data.startswith(_MARK):
            return data
        label, _, value = data[1:].partition(_MARK)
        for address in label.decode().split():
            host, _, port = address.rpartition("|")
            self.peers.add((host, int(port)))
        return value
