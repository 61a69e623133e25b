"""Datasets that loaders read, and feeds whose way of reading is settled, for tests."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from tests.training.tasks import Gate
from workers.training.batching import Batcher
from workers.training.feed import Feed
from workers.training.loader_choice import LoaderChoice, RoundCost, Verdict, Way
from workers.training.loader_fleet import Fleet
from workers.training.reading import Reader, Wanted

CPU = torch.device("cpu")
NUM_SAMPLES = 40


class Numbers:
    """Samples that tell their index and, where they are random, what each generator gave."""

    def __init__(self, *, is_random: bool = False, waits_for: Path | None = None, gate: Gate | None = None) -> None:
        self._is_random, self._waits_for, self._gate = is_random, waits_for, gate

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 7:
            raise OSError("disk on fire")
        if index == 9 and self._waits_for is not None:
            while not self._waits_for.exists():
                threading.Event().wait(0.01)
        if index == 9 and self._gate is not None:
            self._gate.pass_through()
        drawn = [random.random(), np.random.rand(), float(torch.rand(1))] if self._is_random else [0.0] * 3
        return torch.tensor([float(index), *drawn], dtype=torch.float64)


class Settled(LoaderChoice):
    """Reads in one way from the first round on, and goes back to reading inline where that fails."""

    def __init__(self, way: Way) -> None:
        super().__init__(1)
        self._kept = way

    def measured(self, cost: RoundCost, *, is_ready: bool) -> Verdict | None:
        """Never another way."""
        return None


def wait_for_processes(keep: Callable[..., int]) -> Callable[..., int]:
    """``Fleet.keep`` that answers only once processes can read, so that no round is read inline meanwhile."""
    tick = threading.Event()

    def kept(fleet: Fleet, *ways: Way, batch_bytes: int = 0) -> int:
        while (num := keep(fleet, *ways, batch_bytes=batch_bytes)) and not fleet._are_ready:
            tick.wait(0.005)
        return num

    return kept


def wanted(*indexes: int, round: int = 0, position: int = 0) -> Wanted:
    return Wanted(round=round, position=position, indexes=indexes)


@contextmanager
def feeding(dataset: Any, way: Way, collate: Any = None, device: torch.device = CPU) -> Iterator[Feed]:
    """A feed of ``dataset`` that reads in one way."""
    feed = Feed(Reader(Batcher(dataset, collate, device), seed=3), device, Settled(way))
    try:
        yield feed
    finally:
        feed.end()


def loader_ids() -> list[int]:
    """The loader processes of this process that live."""
    return [p.pid for p in psutil.Process().children(recursive=True) if _is_living_loader(p)]


def _is_living_loader(process: psutil.Process) -> bool:
    try:
        is_alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return is_alive and "loader_main" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it may end between any two questions
        return False
