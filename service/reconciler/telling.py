"""Telling the cluster's autoscaler what is wanted: when it changes, now and then besides, and when it is over."""

from __future__ import annotations

from service.demand import Bundle, Demand, Standing, settled
from service.ports import ClusterPort
from service.records import Autoscaling

REPEAT_S = 30.0
"""A head that was restarted has forgotten what it was told."""

RETRY_S = 120.0
"""An autoscaler refuses a demand as a whole: after so long it is asked for all of it again."""


class Teller:
    """Holds the demand in force. A predecessor's may stand, so that the first word is said in any case.

    A refused demand is asked for by half as many workers, down to one.
    """

    def __init__(self, cluster: ClusterPort, max_workers: int) -> None:
        self._cluster, self._most = cluster, max_workers
        self._standing = Standing()
        self._said: tuple[Bundle, ...] | None = None
        self._said_s = self._refused_s = float("-inf")
        self.max_workers = max_workers

    @property
    def demand(self) -> Demand:
        """What is in force."""
        return self._standing.demand

    async def tell(self, wish: Demand, seen: Autoscaling, now_s: float, *, is_placing: bool = False) -> None:
        """Weigh a wish and say what changes (see ``settled``). Raises ClusterLostError."""
        self._weigh_refusal(seen, now_s)
        self._standing = settled(self._standing, wish, now_s, is_placing=is_placing)
        bundles = self._standing.demand.bundles
        if self._said is None and wish.bundles and not bundles:
            return  # a predecessor's demand is likely the same: it stands until ours is settled
        if bundles != self._said or (bundles and now_s - self._said_s >= REPEAT_S):
            await self._say(bundles)
            self._said_s = now_s

    def is_refused(self, now_s: float) -> bool:
        """Whether the autoscaler had no nodes of late for what it was asked for."""
        return now_s - self._refused_s < RETRY_S

    async def withdraw(self) -> None:
        """Nothing is wanted any more: without this nodes would stay for ever. Raises ClusterLostError."""
        if self._said:
            await self._say(())

    async def _say(self, bundles: tuple[Bundle, ...]) -> None:
        await self._cluster.demand(bundles)
        self._said = bundles

    def _weigh_refusal(self, seen: Autoscaling, now_s: float) -> None:
        if not seen.is_infeasible:
            if not self.is_refused(now_s):
                self.max_workers = self._most
        elif self._said_s > self._refused_s:
            # Only what was said since the last refusal can have been refused anew.
            self.max_workers = max(1, min(self.max_workers, sum(self.demand.missing.values())) // 2)
            self._refused_s = now_s
