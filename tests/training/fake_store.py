"""The controller's rendezvous as a dictionary, for ranks in threads; and served over a socket, for processes."""

from __future__ import annotations

import threading


class FakeStore:
    """``StoreCalls`` in one process. ``supersede`` gives a group up: whoever waits in it fails at once."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[tuple[str, str], bytes] = {}
        self._superseded: set[str] = set()

    def set(self, group: str, key: str, value: bytes) -> None:
        with self._changed:
            self._check_alive(group)
            self._values[group, key] = value
            self._changed.notify_all()

    def get(self, group: str, key: str, timeout_s: float) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: (group, key) in self._values or group in self._superseded, timeout_s)
            self._check_alive(group)
            if (group, key) not in self._values:
                raise TimeoutError(f"{group}: nobody set {key!r} within {timeout_s:g} s")
            return self._values[group, key]

    def add(self, group: str, key: str, amount: int) -> int:
        with self._changed:
            total = int(self._values.get((group, key), b"0")) + amount
        self.set(group, key, str(total).encode())
        return total

    def check(self, group: str, keys: list[str]) -> bool:
        with self._changed:
            return all((group, key) in self._values for key in keys)

    def supersede(self, group: str) -> None:
        with self._changed:
            self._superseded.add(group)
            self._changed.notify_all()

    def _check_alive(self, group: str) -> None:
        if group in self._superseded:
            raise RuntimeError(f"group {group} was given up")
