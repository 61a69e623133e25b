"""What the reconciler needs of the store.

Every write carries the fencing number of the leader's lease; the store refuses it, with
``FencedOutError``, once another reconciler has taken the lease. Writes that move a job are guarded
by the state and version of the ``JobRow`` they were decided on and raise ``StaleRowError`` when the
row has moved since (a user's command, say): read it again and decide again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from service.machines import Fate
from service.promotion_records import Contest, PromotionView, Step
from service.records import BundleRow, ClusterView, Explanation, JobRow, Loss, NodeMark, Transition
from service.schedule_records import DueSchedules, Firing, ScheduleRow
from service.states import JobState
from service.survey import Survey
from service.sweep_records import SweepLook, SweepRow, SweepView
from tuning.orders import Answer, Beginning
from workers.status import Acknowledged, CheckpointInfo, JobSnapshot


class StoreError(Exception):
    """Root of what the store raises on its own account."""


class DatabaseAwayError(StoreError):
    """The database does not answer now."""


class FencedOutError(StoreError):
    """Another reconciler holds the lease; the caller must stop acting at once."""


class StaleRowError(StoreError):
    """The row is not in the state, version, attempt or term that the caller decided on."""


class TransitionError(StoreError):
    """The table of states has no such move."""


class ReconcilerStore(Protocol):
    """The reconciler's side of the store; all methods are safe to call again after a failure."""

    async def installation_id(self) -> str:
        """The name of this installation: Ray's namespace, the same for ever."""
        ...

    async def watch_wishes(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when another process commits what users wish for, until cancelled; it may miss some.

        Returns at once where the database tells nobody.
        """
        ...

    async def take_lease(self, holder: str, ttl_s: float) -> int | None:
        """Become the leader for ``ttl_s`` seconds; the fencing number, or None while another one is.

        ``holder`` is unique to the process. The same holder asking again is given a new number. Others get it once it
        was released, has ended by the time of day, or has not been renewed while they asked again and again for as
        long as its leader took it for: one whose clock was ahead, and that died, holds nobody up for longer.
        """
        ...

    async def renew_lease(self, fence: int, ttl_s: float) -> None:
        """Stay the leader for ``ttl_s`` from now; also the heartbeat that ``/readyz`` looks at.

        Raises FencedOutError when the lease has gone to another.
        """
        ...

    async def release_lease(self, fence: int) -> None:
        """Let the next one take over at once; nothing happens if the lease is no longer held."""
        ...

    async def survey(self, max_queued: int) -> Survey:
        """All that a tick begins with, in one view of the database; ``max_queued`` as of ``live_jobs``."""
        ...

    async def live_jobs(self, max_queued: int | None = None) -> list[JobRow]:
        """All jobs in LIVE_STATES, those that have waited longest first (``queued_at``, then id).

        With ``max_queued`` only so many of the QUEUED ones, the first in line.
        """
        ...

    async def job(self, job_id: str) -> JobRow | None:
        """One job in any state, or None when there is none (any more)."""
        ...

    async def job_ids(self) -> frozenset[str]:
        """Ids of all jobs in any state, also of those that are being deleted."""
        ...

    async def finish_deletions(self) -> None:
        """Remove what is left of jobs whose deletion was begun, by whomever; several may do so at once."""
        ...

    async def deleted_jobs(self) -> frozenset[str]:
        """Ids of jobs that users have deleted, as long as that is noted: what is left in storage is theirs no more."""
        ...

    async def forget_deletions(self, keep_s: float, kept: Collection[str], fence: int) -> None:
        """Drop the notes of deletions that are done and older than ``keep_s``, but for those ``kept``.

        Raises FencedOutError.
        """
        ...

    async def admit(self, job: JobRow, num_desired: int, fence: int) -> JobRow:
        """QUEUED to STARTING: the intent (attempt + 1, term 1) committed before anything is started.

        Raises StaleRowError, FencedOutError.
        """
        ...

    async def new_term(self, job: JobRow, fence: int) -> JobRow:
        """Count a new controller of the same attempt, before it is started.

        Guarded by attempt and term only: a user's command in between does no harm. Raises
        StaleRowError, FencedOutError.
        """
        ...

    async def transition(self, job: JobRow, to: JobState, change: Transition, fence: int) -> JobRow:
        """One guarded move and its event, in one transaction; the row as it is now.

        ``finished_at`` is set by moves to an ended state, ``started_at`` by the first to RUNNING;
        moves out of PLACED_STATES set ``num_current`` and ``num_desired`` to 0.
        Raises TransitionError, StaleRowError, FencedOutError.
        """
        ...

    async def set_desired(self, job: JobRow, num_desired: int, fence: int) -> None:
        """Note the size that the service steers to; guarded by the attempt; no write when it is stored already."""
        ...

    async def set_explanations(self, told: Sequence[tuple[JobRow, Explanation | None]], fence: int) -> None:
        """Note why jobs wait, in one transaction; no write when all of it is stored already.

        A job that has left the attempt or the state it was seen in is passed over. Raises FencedOutError.
        """
        ...

    async def acknowledged(self, job_id: str, attempt: int, fence: int | None = None) -> Acknowledged:
        """What of this attempt is stored, ``unpriced`` and ``exchange`` included: the first to hand to a controller.

        With ``fence``, as for whoever hands it over, it raises FencedOutError once that number was superseded.
        """
        ...

    async def fold(self, snapshot: JobSnapshot, fence: int) -> Acknowledged:
        """Store all that is new in the snapshot, in one transaction; what is committed after it.

        Idempotent: records by (attempt, lineage, round), of which the higher generation's stays, logs
        by worker and byte, timeline rows by key (a later one with ``cost_s`` completes the first),
        checkpoints by path. Also progress, loss, worker seconds and the view for pages. The state of the job is
        not touched: follow with ``transition`` where the snapshot's phase or outcome asks for it.
        Raises StaleRowError when the snapshot's attempt is not the row's or its term is older, and when
        the job is gone; FencedOutError.
        """
        ...

    async def register_checkpoints(self, job_id: str, found: Sequence[CheckpointInfo], fence: int) -> None:
        """Make the list of a job's checkpoints equal to what storage holds (``list_readable``)."""
        ...

    async def checkpoints(self, job_id: str) -> list[CheckpointInfo]:
        """Registered checkpoints, oldest first by ``order``; go on from the last with attempt > ``restart_after``."""
        ...

    async def marked_storage(self) -> str | None:
        """The URL of the storage that bears this installation's mark, as last noted; None before the first."""
        ...

    async def note_storage(self, url: str) -> None:
        """Note that this storage bears the mark; for whoever left it there, the leader or not."""
        ...

    async def bundle(self, bundle_id: str) -> BundleRow | None:
        """An uploaded bundle; its bytes have the key ``row.key``."""
        ...

    async def forget_bundles(self, keep_s: float, upload_s: float, fence: int) -> None:
        """Drop bundles that nothing names, ``keep_s`` after their last upload, and uploads begun ``upload_s`` ago.

        From then on a submission that names one is refused, and an upload of that time comes to nothing. Their
        bytes are under none of ``bundle_keys`` then. Raises FencedOutError.
        """
        ...

    async def bundle_keys(self) -> frozenset[str]:
        """The keys of all bundles' bytes, and of those that are being uploaded.

        A key that was listed in storage before, and is not among them, is nobody's and never will be anybody's.
        """
        ...

    async def put_cluster(self, view: ClusterView, fence: int) -> None:
        """Note what the cluster looks like now, for ``GET /cluster``, ``explain`` and the pages."""
        ...

    async def node_marks(self) -> dict[str, NodeMark]:
        """The latest word on each node of which there is one, by the node's id."""
        ...

    async def quarantine(self, mark: NodeMark, text: str, fence: int) -> None:
        """Take a node out of use; ``text`` goes among the cluster's events. Raises FencedOutError."""
        ...

    async def note_on_cluster(self, node_id: str | None, text: str, fence: int) -> None:
        """An event; nothing happens where it is the latest on that node, or on none. Raises FencedOutError."""
        ...

    async def settle_marks(self, fate: Fate, fence: int) -> None:
        """Carry out what becomes of words on nodes that are gone, with an event each. Raises FencedOutError."""
        ...

    async def losses(self, since: float) -> list[Loss]:
        """What jobs lost after ``since`` (Unix seconds), oldest first: one for all that a row of the timeline
        names on a node.
        """
        ...

    async def due_schedules(self, now_s: float) -> DueSchedules:
        """Schedules of which something is to be decided at ``now_s``, the longest due first; a bounded number."""
        ...

    async def fire(self, schedule: ScheduleRow, firing: Firing, fence: int) -> None:
        """Write what was decided about a schedule and start its children, in one transaction.

        A nominal time that has a run already is passed over, so that it never has two children. Raises
        StaleRowError when anybody wrote the schedule since it was read, FencedOutError.
        """
        ...

    async def live_sweeps(self) -> list[SweepRow]:
        """Sweeps that run, or of which a trial has not ended."""
        ...

    async def observe_sweep(self, sweep_id: str, fence: int) -> SweepLook | None:
        """Note what jobs say of their trials, and tell jobs what is wanted of them; None if the sweep is gone.

        Nothing is written where there is no news. Raises StaleRowError, TransitionError, FencedOutError.
        """
        ...

    async def sweep_view(self, sweep_id: str, after: int, passed_over: Collection[str] = ()) -> SweepView | None:
        """One sweep with those of its trials that were written after that change, and what all are as of now, or None.

        See ``SweepView``. Jobs that wait and are ``passed_over``, by id, wait before no trial.
        """
        ...

    async def beginning(self, sweep: SweepRow) -> Beginning:
        """What a search begins from: other sweeps' trials and configurations as they are now, where they still are."""
        ...

    async def new_sweep_term(self, sweep: SweepRow, fence: int) -> SweepRow:
        """Count a new controller of a sweep, before it is started. Raises StaleRowError, FencedOutError."""
        ...

    async def carry_out(self, sweep: SweepRow, answer: Answer, fence: int) -> bool:
        """Write what a search decided, with the jobs that it starts, in one transaction.

        False where some order no longer fitted the rows and was left out: the search then must begin anew. Raises
        StaleRowError when anybody wrote the sweep since it was read, FencedOutError.
        """
        ...

    async def promotion_view(self, sweep_id: str) -> PromotionView | None:
        """One sweep with its latest promotion, the runs of it as their jobs show them now, or None."""
        ...

    async def begin_promotion(self, view: PromotionView, contest: Contest, fence: int) -> None:
        """Write who is compared, or why nobody is. Raises StaleRowError, FencedOutError.

        StaleRowError comes when anybody wrote the sweep or the configuration since they were read: nothing begins
        twice, and nothing is compared with what is not in use any more.
        """
        ...

    async def carry_promotion(self, view: PromotionView, step: Step, fence: int) -> None:
        """Write what has ended, start and cancel runs, and at the end replace the configuration, in one transaction.

        A configuration that is not the one compared with is left alone, and the promotion has failed. Raises
        StaleRowError when anybody wrote the promotion since it was read, TransitionError, FencedOutError.
        """
        ...
