"""Opening the store: one value that holds its parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from service.store.access import AccessStore
from service.store.bundles import BundleKeeping, BundleStore
from service.store.configurations import ConfigurationStore
from service.store.database import Database
from service.store.deleting import DeletionKeeping
from service.store.firing import FiringStore
from service.store.jobs import JobStore
from service.store.leases import LeaseStore
from service.store.nodes import NodeStore
from service.store.observed import ObservedStore
from service.store.port import ReconcilerStore
from service.store.promoting import PromotingStore
from service.store.schedules import ScheduleStore
from service.store.searching import SearchStore
from service.store.survey import SurveyStore
from service.store.sweeps import SweepStore
from service.store.telemetry import TelemetryStore


class Reconciling(
    LeaseStore,
    ObservedStore,
    NodeStore,
    FiringStore,
    SearchStore,
    PromotingStore,
    SurveyStore,
    BundleKeeping,
    DeletionKeeping,
):
    """``ReconcilerStore`` on SQL."""

    def __init__(self, database: Database, monotonic_s: Callable[[], float]) -> None:
        LeaseStore.__init__(self, database, monotonic_s)
        ObservedStore.__init__(self, database, monotonic_s)
        FiringStore.__init__(self, database)
        SearchStore.__init__(self, database)
        PromotingStore.__init__(self, database)
        SurveyStore.__init__(self, database)


@dataclass(frozen=True, slots=True)
class Store:
    """All parts on one database; ``close`` it in the loop that used it."""

    database: Database
    jobs: JobStore
    telemetry: TelemetryStore
    bundles: BundleStore
    access: AccessStore
    leases: LeaseStore
    observed: ObservedStore
    nodes: NodeStore
    schedules: ScheduleStore
    sweeps: SweepStore
    configurations: ConfigurationStore
    reconciler: ReconcilerStore

    async def close(self) -> None:
        """Close all connections."""
        await self.database.close()


def open_store(
    url: str, clock: Callable[[], float] = time.time, monotonic_s: Callable[[], float] = time.monotonic
) -> Store:
    """Connect lazily to a database that is at the newest migration (``service.migrations.upgrade``).

    ``clock`` gives the times that are stored, ``monotonic_s`` the seconds that are billed, and those
    for which a leader's lease stands still.
    """
    database = Database(url, clock)
    reconciling = Reconciling(database, monotonic_s)
    return Store(
        database=database,
        jobs=JobStore(database),
        telemetry=TelemetryStore(database),
        bundles=BundleStore(database),
        access=AccessStore(database),
        leases=reconciling,
        observed=reconciling,
        nodes=reconciling,
        schedules=ScheduleStore(database),
        sweeps=SweepStore(database),
        configurations=ConfigurationStore(database),
        reconciler=reconciling,
    )
