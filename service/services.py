"""All use cases of one service, put together once; REST and pages both call these."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from service.auth import Access
from service.bundles import Bundles
from service.configurations import Configurations
from service.cost import Prices
from service.documents import Document, job_document
from service.feed import Feed
from service.files import Files
from service.folders import uploads_folder
from service.instruments import Instruments
from service.jobs import Jobs
from service.nodes import Nodes
from service.nudge import API, RECONCILER, NudgeListener, nudge
from service.overview import Overview
from service.page_tokens import PageTokens
from service.records import JobRow
from service.replica import Claim
from service.schedules import Schedules
from service.settings import Settings
from service.sign_of_life import SignOfLife
from service.store.opening import Store, open_store
from service.sweeps import Sweeps
from service.telemetry import Telemetry
from workers.storage_urls import provide


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One value for the whole process; ``clock`` gives Unix seconds, ``heartbeat`` is the leader's."""

    settings: Settings
    clock: Callable[[], float]
    heartbeat: SignOfLife
    store: Store
    listener: NudgeListener
    page_tokens: PageTokens
    prices: Prices
    access: Access
    jobs: Jobs
    sweeps: Sweeps
    configurations: Configurations
    schedules: Schedules
    claim: Claim
    bundles: Bundles
    files: Files
    telemetry: Telemetry
    overview: Overview
    nodes: Nodes
    feed: Feed
    instruments: Instruments

    def job_document(self, job: JobRow) -> Document:
        """The job as users see it."""
        return job_document(job, self.prices)


def build_services(
    settings: Settings, clock: Callable[[], float] = time.time, monotonic_s: Callable[[], float] = time.monotonic
) -> Services:
    """Wire everything; nothing is opened or read yet. The clocks are those of ``open_store``."""
    store = open_store(settings.database_url, clock, monotonic_s)
    listener = NudgeListener(settings.home, API)
    storage = settings.storage_url
    provide(storage, settings.storage_options)
    prices, page_tokens = Prices.of(settings), PageTokens()

    def wake() -> None:
        nudge(settings.home, RECONCILER)
        listener.wake()

    configurations = Configurations(store.configurations, storage, page_tokens)
    jobs = Jobs(store.jobs, storage, page_tokens, wake)
    overview = Overview(store.telemetry, store.observed, store.nodes, SignOfLife(clock, monotonic_s))
    claim = Claim(store.leases, storage)
    return Services(
        settings=settings,
        clock=clock,
        heartbeat=SignOfLife(clock, monotonic_s),
        store=store,
        listener=listener,
        page_tokens=page_tokens,
        prices=prices,
        access=Access(store.access, clock),
        jobs=jobs,
        sweeps=Sweeps(store.sweeps, configurations, page_tokens, prices, wake),
        configurations=configurations,
        schedules=Schedules(store.schedules, configurations, storage, page_tokens, prices, clock, wake),
        claim=claim,
        bundles=Bundles(store.bundles, claim, storage, uploads_folder(settings.home), settings.max_bundle_bytes),
        files=Files(jobs, store.observed, storage),
        telemetry=Telemetry(jobs, store.jobs, store.nodes, store.telemetry, clock),
        overview=overview,
        nodes=Nodes(store.nodes, store.telemetry, clock, wake),
        feed=Feed(store.telemetry, store.sweeps, store.schedules, overview, prices, settings.max_streams),
        instruments=Instruments(),
    )
