"""What training needs from outside: the keys of a rendezvous, given by whoever runs the session."""

from __future__ import annotations

from typing import Protocol


class StoreCalls(Protocol):
    """A small key-value store that all members of a group reach; calls may come from any thread.

    ``group`` names one membership of one job. Every call is bounded and raises an error of the
    implementer's choice where the group was given up or nobody answers. ``address`` is this machine's
    address at which the machines of the other members reach it.
    """

    @property
    def address(self) -> str:
        """An IP address of this machine."""
        ...

    def set(self, group: str, key: str, value: bytes) -> None:
        """Set a key and wake those who wait for it."""

    def get(self, group: str, key: str, timeout_s: float) -> bytes:
        """The key's value, waited for at most ``timeout_s``; raises when time is up."""
        ...

    def add(self, group: str, key: str, amount: int) -> int:
        """Add to a counter that begins at 0; returns its new value."""
        ...

    def check(self, group: str, keys: list[str]) -> bool:
        """Whether all keys are set."""
        ...
