"""Where in a dataset a worker reads just now, so that a sample that hangs can be named from another thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

NOWHERE = -1


class Place:
    """The sample that is being read; ``name`` is what the user calls the dataset."""

    def __init__(self) -> None:
        self._name = ""
        self._index = NOWHERE

    def note(self, index: int) -> None:
        """The sample at this index comes next."""
        self._index = index

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """In here samples of this dataset are read."""
        self._name = name
        try:
            yield
        finally:
            self._index = NOWHERE

    def told(self) -> str:
        """``train_data[17]``, or nothing while no sample is being read. Any thread."""
        return told_place(self._name, self._index)


def told_place(name: str, index: int) -> str:
    """How a sample is named; nothing for ``NOWHERE``."""
    return "" if index == NOWHERE else f"{name}[{index}]"
