"""The reconciler's process: holds the leader's lease, finds Ray, works, and leaves in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

import structlog

from service.cluster import Cluster
from service.cost import Prices
from service.nudge import RECONCILER, NudgeListener
from service.ports import ClusterAwayError, ClusterLostError, ClusterPort
from service.reconciler.firing import Schedules
from service.reconciler.launching import Launching
from service.reconciler.listing import Listing
from service.reconciler.news import News
from service.reconciler.pursuit import Office
from service.reconciler.reaper import Premises, Reaper
from service.reconciler.reconciler import BRISK_S, Reconciler
from service.reconciler.sight import StorageSight, refusal
from service.records import ClusterView, Transition
from service.replica import Claim, replica_name
from service.settings import Settings
from service.states import JobState
from service.store.port import DatabaseAwayError, FencedOutError, ReconcilerStore, StaleRowError, TransitionError
from service.supervise.home import Home
from service.supervise.ray_record import RayRecord, read_ray_record
from workers.errors import Reason
from workers.storage_urls import provide

log = structlog.get_logger("concertina.reconciler")

SAVE_S = 30.0
FIND_S = 0.5
MAX_PASSES = 5
"""Over the jobs of a cluster that is lost: what a step still writes about one while it is told so comes in between."""

FAULT_S = 1.0
REACH_S = 0.25
"""For so long a head that spoke is not asked again whether it does."""
NEWS_S = 0.02
"""The least time from look to look."""
REFUSED_S = 5.0

NODE_GONE = "the Ray node on the service's machine is gone, and with it the controllers of all jobs"

MakeCluster = Callable[[str, str], ClusterPort]


class Exit(IntEnum):
    """Why the process ends; what is not DONE is started again by its supervisor."""

    DONE = 0
    FENCED_OUT = 73
    CLUSTER_LOST = 75


class Process:
    """Runs until it is told to stop, the lease is lost, or Ray is: a driver without its head must leave."""

    def __init__(
        self,
        settings: Settings,
        store: ReconcilerStore,
        make_cluster: MakeCluster = Cluster,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._store, self._make_cluster = settings, store, make_cluster
        self._clock = clock
        self._home = Home(settings.home)
        self._claim = Claim(store, settings.storage_url)
        self._listener = NudgeListener(settings.home, RECONCILER)
        self._news = News(self._listener.wake)
        self._stop = asyncio.Event()
        self._fence = 0
        self._is_fenced_out = False

    async def run(self) -> Exit:
        """Work until one of the ends of ``Exit``."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.request_stop)
        if not await self._take_lease():
            return Exit.DONE
        self._listener.open()
        schedules = Schedules(self._store, self._fence, self._settings.poll_s, self._clock, self._listener.wake)
        tasks = (
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._store.watch_wishes(self._listener.wake)),
            asyncio.create_task(schedules.run()),
        )
        try:
            return await self._work()
        except FencedOutError as error:
            log.warning("another reconciler leads now", why=str(error))
            return Exit.FENCED_OUT
        finally:
            for task in tasks:
                task.cancel()
            self._listener.close()
            with contextlib.suppress(FencedOutError, DatabaseAwayError):
                await self._store.release_lease(self._fence)

    def request_stop(self) -> None:
        """End in order: with a Ray of our own running jobs save first."""
        self._stop.set()
        self._listener.wake()

    async def _take_lease(self) -> bool:
        # Of a home only one process runs at a time, and the number fences off what a stopped one may still try.
        holder = replica_name(self._settings.home)
        while not self._stop.is_set():
            fence = None
            with contextlib.suppress(DatabaseAwayError):
                fence = await self._store.take_lease(holder, self._settings.leader_lease_s)
            if fence is not None:
                self._fence = fence
                log.info("leading", fence=fence, process=os.getpid())
                return True
            await self._pause(self._settings.leader_lease_s / 5)
        return False

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.leader_lease_s / 5)
            try:
                await self._store.renew_lease(self._fence, self._settings.leader_lease_s)
            except FencedOutError:
                self._is_fenced_out = True
                self._listener.wake()
                return
            except Exception:  # the database may be busy for a while; the lease's length is the patience
                log.exception("heartbeat failed")

    async def _work(self) -> Exit:
        while not self._stop.is_set():
            try:
                return await self._find_and_lead()
            except DatabaseAwayError as error:
                # Not an end of the process: it would be started again later and later.
                log.warning("the database is away", why=str(error))
                await self._pause(FAULT_S)
        return Exit.DONE

    async def _find_and_lead(self) -> Exit:
        told = ""
        while not self._stop.is_set():
            self._check_fence()
            record = read_ray_record(self._home.ray_file)
            why = "Ray is being started"
            if record is not None:
                try:
                    return await self._lead(record)
                except ClusterAwayError as error:
                    # Not an end of the process either.
                    why = str(error)
                except ClusterLostError as error:
                    why = str(error)
                    await self._tell_down(why)
                    log.warning("Ray is lost", why=why)
                    return Exit.CLUSTER_LOST
            if why != told and not self._stop.is_set():
                log.warning("no Ray", why=why)
                await self._tell_down(why)
                told = why
            await self._pause(FIND_S)
        return Exit.DONE

    async def _lead(self, record: RayRecord) -> Exit:
        installation_id = await self._store.installation_id()
        provide(self._settings.storage_url, self._settings.storage_options)
        marking = asyncio.create_task(self._mark_storage())
        for marked in (await asyncio.wait([marking], timeout=FAULT_S))[0]:
            marked.result()
        cluster = self._make_cluster(record.address, installation_id)
        # All nodes of a Ray of our own are this machine.
        folder = self._settings.storage_folder
        sight = None if record.is_own or folder is None else StorageSight(cluster, folder)
        reconciler = self._reconciler(cluster, record, sight)
        try:
            await self._connect(cluster, record)
            if sight is not None:
                await self._until_storage_is_seen(cluster, sight, record)
            await reconciler.begin()
            await self._ticks(reconciler, cluster, record)
            if record.is_own:
                await self._let_jobs_save(reconciler)
            await reconciler.end()
            return Exit.DONE
        finally:
            marking.cancel()
            await cluster.close()

    def _reconciler(self, cluster: ClusterPort, record: RayRecord, sight: StorageSight | None) -> Reconciler:
        scratch = Path(record.temp_dir or self._home.temp_dir()) / "scratch"
        listing = Listing(self._store, self._settings.storage_url, self._fence)
        office = Office(
            store=self._store,
            cluster=cluster,
            launching=Launching(self._settings, self._store, scratch),
            listing=listing,
            fence=self._fence,
            storage=self._settings.storage_url,
            liveness_s=self._settings.liveness_s,
            place_s=self._settings.place_s,
            max_demand_workers=self._settings.max_demand_workers,
            spares_per_node=self._settings.spares_per_node,
            prices=Prices.of(self._settings),
            news=self._news,
            clock=self._clock,
        )
        reaper = Reaper(
            Premises(
                store=self._store,
                cluster=cluster,
                listing=listing,
                fence=self._fence,
                storage=self._settings.storage_url,
                scratch=scratch,
                bounds=self._settings.scratch_bounds,
                bundle_keep_s=self._settings.bundle_keep_s,
            )
        )
        return Reconciler(office, reaper, sight)

    async def _mark_storage(self) -> None:
        """Until it is done: storage that is away is no reason not to look after what runs."""
        while True:
            try:
                await self._claim.take()
                return
            except (OSError, DatabaseAwayError) as error:
                log.warning("storage cannot be used", error=str(error))
            await asyncio.sleep(REFUSED_S)

    async def _until_storage_is_seen(self, cluster: ClusterPort, sight: StorageSight, record: RayRecord) -> None:
        """Nothing is started on machines that would not see the storage; whoever changes the cluster ends the wait."""
        told = None
        while not self._stop.is_set() and (why := await self._blindness(cluster, sight)):
            self._check_fence()
            if not self._is_current(record):
                raise ClusterLostError(f"Ray at {record.address} is gone")
            if why != told:
                log.error("refused", why=why)
                told = why
            await self._tell_down(why)
            await self._pause(REFUSED_S)

    async def _blindness(self, cluster: ClusterPort, sight: StorageSight) -> str:
        """Why nothing may be started yet; empty where all nodes see the storage."""
        try:
            blind = await sight.blind((await cluster.view()).nodes)
        except OSError as error:
            return f"the storage cannot be written to: {error}"
        return refusal(blind, self._settings.storage_url) if blind else ""

    async def _connect(self, cluster: ClusterPort, record: RayRecord) -> None:
        """Ray announces itself before it accepts everybody."""
        deadline_s = time.monotonic() + self._settings.liveness_s
        while not await cluster.is_reachable():
            if self._stop.is_set() or time.monotonic() > deadline_s or not self._is_current(record):
                raise ClusterAwayError(f"nothing answers at {record.address}, where Ray's head should be")
            await self._pause(FIND_S)
        await self._join(cluster, record)
        log.info("connected to Ray", address=record.address)

    async def _join(self, cluster: ClusterPort, record: RayRecord) -> None:
        """Connect, as long as somebody wants it: a head that ends meanwhile leaves its drivers waiting for minutes."""
        joining = asyncio.create_task(cluster.connect())
        try:
            while not (await asyncio.wait([joining], timeout=FIND_S))[0]:
                self._check_fence()
                if self._stop.is_set():
                    raise ClusterAwayError(f"Ray at {record.address} had not let this process join when it was to end")
                if not self._is_current(record):
                    raise ClusterLostError(f"Ray at {record.address} ended before this process had joined")
            joining.result()
        finally:
            joining.cancel()

    async def _ticks(self, reconciler: Reconciler, cluster: ClusterPort, record: RayRecord) -> None:
        # Silence counts from the first question that got no answer: in a long tick nobody asks.
        reached_s, silent_since_s = time.monotonic() - REACH_S, None
        while not self._stop.is_set():
            began_s = time.monotonic()
            self._check_fence()
            if not cluster.has_node():
                raise ClusterLostError(NODE_GONE)
            if began_s - reached_s >= REACH_S:
                is_current = self._is_current(record)
                if is_current and await cluster.is_reachable():
                    reached_s, silent_since_s = began_s, None
                else:
                    silent_since_s = began_s if silent_since_s is None else silent_since_s
                    if not is_current or began_s - silent_since_s >= self._settings.liveness_s:
                        raise ClusterLostError(f"Ray at {record.address} is gone")
            if silent_since_s is None:
                await self._tick(reconciler)
            await self._pause(BRISK_S if reconciler.is_brisk else self._settings.poll_s)
            # After quiet a nudge is answered at once; a burst of them is one look. What goes on is not held up.
            while not self._news.is_there and (rest_s := began_s + BRISK_S - time.monotonic()) > 0:
                await self._pause(rest_s)
            await asyncio.sleep(max(0.0, began_s + NEWS_S - time.monotonic()))

    async def _tick(self, reconciler: Reconciler) -> int:
        """The number of placed jobs; 1 where it could not be found out."""
        try:
            return await reconciler.tick()
        except (ClusterLostError, FencedOutError):
            raise
        except Exception:  # the one place of this process: a fault costs one tick
            log.exception("tick failed")
            await asyncio.sleep(FAULT_S)
            return 1

    async def _let_jobs_save(self, reconciler: Reconciler) -> None:
        """Ray ends with the service: what runs saves, and is queued for the next one."""
        reconciler.is_leaving = True
        deadline_s = time.monotonic() + SAVE_S
        while time.monotonic() < deadline_s and await self._tick(reconciler):
            await asyncio.sleep(BRISK_S)
        await reconciler.settle(FAULT_S)

    async def _tell_down(self, why: str) -> None:
        """The cluster does not answer: nobody trains that we know of."""
        await self._store.put_cluster(ClusterView(is_up=False, error=why), self._fence)
        for _ in range(MAX_PASSES):
            running = [job for job in await self._store.live_jobs(max_queued=0) if job.state is JobState.RUNNING]
            for job in running:
                with contextlib.suppress(StaleRowError, TransitionError):
                    change = Transition(reason=Reason.CLUSTER_LOST)
                    await self._store.transition(job, JobState.RECOVERING, change, self._fence)
            if not running:
                return

    def _is_current(self, record: RayRecord) -> bool:
        return read_ray_record(self._home.ray_file) == record

    def _check_fence(self) -> None:
        if self._is_fenced_out:
            raise FencedOutError(f"fencing number {self._fence} was superseded")

    async def _pause(self, seconds: float) -> None:
        if not self._stop.is_set():
            await self._listener.wait(seconds)
