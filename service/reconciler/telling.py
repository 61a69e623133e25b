"""Telling the cluster's autoscaler what is wanted: when it changes, now and then besides, and when it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from service.demand import Bounds, Demand, Standing, settled
from service.ports import ClusterPort
from service.queue import Waiting
from service.records import Autoscaling
from service.refusals import RETRY_S, Refusal, concerning, noted, refused, without
from service.room import Amounts

REPEAT_S = 30.0
"""A head that was restarted has forgotten what it was told."""

ANSWER_S = 30.0
"""What stands unrefused for so long is granted, or will be."""


class Teller:
    """Holds the demand in force. A predecessor's may stand, so that the first word is said in any case.

    An autoscaler refuses a demand as a whole. Then half as many workers are asked for, down to one or to one waiting
    job; where that is refused too it was this job, and it is put off so that others are asked for.
    """

    def __init__(self, cluster: ClusterPort, max_workers: int) -> None:
        self._cluster = cluster
        self._standing = Standing()
        self._said: tuple[Amounts, ...] | None = None
        self._is_weighed = True
        self._refusals: tuple[Refusal, ...] = ()
        self._said_s = self._changed_s = self._halved_s = self._declined_s = float("-inf")
        self.bounds = Bounds(now=max_workers, most=max_workers)

    @property
    def demand(self) -> Demand:
        """What is in force."""
        return self._standing.demand

    async def tell(self, wish: Demand, seen: Autoscaling, now_s: float, *, is_placing: bool = False) -> None:
        """Weigh a wish and say what changes (see ``settled``). Raises ClusterLostError."""
        self._weigh_answer(seen, now_s)
        self._standing = settled(self._standing, wish, now_s, is_placing=is_placing)
        bundles = self._standing.demand.bundles
        if self._said is None and wish.bundles and not bundles:
            return  # a predecessor's demand is likely the same: it stands until ours is settled
        if bundles != self._said:
            self._changed_s = now_s
        elif not bundles or now_s - self._said_s < REPEAT_S:
            return
        await self._say(bundles)
        self._said_s = now_s

    def refused(self, waiting: Sequence[Waiting], now_s: float) -> dict[str, bool]:
        """Those of the waiting that there were no nodes for, and whether it is time to ask again."""
        self._refusals = concerning(self._refusals, waiting)
        return refused(self._refusals, waiting, now_s)

    def is_declined(self, now_s: float) -> bool:
        """Whether the autoscaler had no nodes of late for the jobs that train."""
        return now_s - self._declined_s < RETRY_S

    async def withdraw(self) -> None:
        """Nothing is wanted any more: without this nodes would stay for ever. Raises ClusterLostError."""
        if self._said:
            await self._say(())

    async def _say(self, bundles: tuple[Amounts, ...]) -> None:
        await self._cluster.demand(bundles)
        self._said, self._is_weighed = bundles, False

    def _weigh_answer(self, seen: Autoscaling, now_s: float) -> None:
        asked = self.demand
        if seen.is_infeasible:
            # Only what was said since the last refusal can have been refused anew.
            if asked.missing and not self._is_weighed and self._is_about(seen):
                self._is_weighed = True
                self._weigh_refusal(asked, now_s)
            return
        if now_s - self._halved_s >= RETRY_S:
            self.bounds = replace(self.bounds, now=self.bounds.most)
        if now_s - self._changed_s >= ANSWER_S:
            self._refusals = without(self._refusals, asked.waiting)

    def _weigh_refusal(self, asked: Demand, now_s: float) -> None:
        if len(asked.waiting) == 1:
            self._refusals = noted(self._refusals, asked.waiting[0], now_s)
            self.bounds = replace(self.bounds, now=self.bounds.most)
            return
        num_asked = min(self.bounds.now, sum(asked.missing.values()))
        self.bounds = replace(self.bounds, now=max(1, num_asked // 2))
        self._halved_s = now_s
        if not asked.waiting:
            self._declined_s = now_s

    def _is_about(self, seen: Autoscaling) -> bool:
        """Whether an answer is to what was said last: the autoscaler looks every few seconds only."""
        return not seen.refused or _counted(seen.refused) == _counted(self._said or ())


def _counted(bundles: Iterable[Amounts]) -> Counter[tuple[tuple[str, float], ...]]:
    return Counter(tuple(sorted((kind, round(amount, 6)) for kind, amount in bundle.items())) for bundle in bundles)
