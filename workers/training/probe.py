"""What reading inline is like: whether its data are random, and whether it computes or waits."""

from __future__ import annotations

import time

from workers.task import Batch
from workers.training.generators import fingerprint
from workers.training.loader_choice import NUM_ROUNDS, Reading, RoundCost
from workers.training.reading import Reader, Wanted


class Probe:
    """Looks on while the training thread reads for some rounds."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._is_random = False
        self._cpu_s = self._waited_s = 0.0
        self._costs: list[RoundCost] = []

    def read(self, reader: Reader, wanted: Wanted) -> Batch:
        """A micro-batch; changes the random generators, as reading it does."""
        begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
        batch = reader.read(wanted)
        self._waited_s += time.perf_counter() - begun_s
        self._cpu_s += time.thread_time() - begun_cpu_s
        if not self._is_random:
            drawn = fingerprint()
            reader.seed(wanted)
            self._is_random = fingerprint() != drawn
        return batch

    def round(self, cost: RoundCost) -> Reading | None:
        """Count a round; what was found once there were enough, and then it begins anew."""
        self._costs.append(cost)
        if len(self._costs) < NUM_ROUNDS:
            return None
        found = Reading(
            is_random=self._is_random,
            waited_s=sum(cost.waited_s for cost in self._costs),
            compute_s=sum(cost.compute_s for cost in self._costs),
            cpu_share=self._cpu_s / self._waited_s if self._waited_s > 0 else 1.0,
        )
        self._begin()
        return found
