"""The loop of one worker: follow the plan in force, round after round, until told to stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace

import torch

from workers.errors import (
    BatchSplitError,
    CheckpointError,
    DivergedError,
    DonorError,
    Failure,
    OutOfMemoryError,
    ReplicaError,
    UnreadableError,
    failure_of,
)
from workers.plan import CheckpointSource, Goal, Plan
from workers.run_settings import Donor
from workers.status import Phase, RoundRecord, StopCause, StopReport
from workers.storage_urls import open_storage
from workers.training.back_off import MemoryInExchangeError
from workers.training.calls import StoreCalls
from workers.training.checkpoint import CheckpointWriter
from workers.training.device import backend_for
from workers.training.evaluate import evaluate
from workers.training.logs import log_failure
from workers.training.mailbox import GroupLeftError, Mailbox, Position
from workers.training.metric import Metric
from workers.training.owed import SAVER, Owed
from workers.training.records import Untold
from workers.training.replicas import Replicas
from workers.training.round import BrokenCommitError, Rounds
from workers.training.saving import COMPLETE, TAKEN_OVER, WORKER_ENDS, header_for, interval, saver
from workers.training.setup import Setup
from workers.training.sync import synchronise
from workers.training.world import Seat, World, WorldError, await_released

SAVE_TIMEOUT_S = 600.0
LAST_SAVE_TIMEOUT_S = 25.0
FINAL_RETRIES_S = (1.0, 5.0, 15.0, 30.0, 60.0, 60.0, 60.0)
RELEASE_TIMEOUT_S = 1.0


class Trainer:
    """Lives in the training thread; everything it tells goes through the mailbox."""

    def __init__(self, setup: Setup, calls: StoreCalls, mailbox: Mailbox) -> None:
        self._setup, self._calls, self._mailbox = setup, calls, mailbox
        self._state = setup.state
        self._rounds = Rounds(setup, mailbox)
        self._held: RoundRecord | None = None  # waits for its evaluation
        self._due: str | None = None  # why the next boundary is to be saved
        self._is_prepared = False
        self._has_saved_final = False
        spec = setup.spec.checkpoint
        storage = open_storage(setup.assignment.storage.checkpoints, setup.assignment.storage.root)
        self._writer = CheckpointWriter(storage, spec.keep, spec.metric, spec.mode)
        self._metric = Metric(spec.metric, mailbox)
        mailbox.watch_checkpoints(self._writer.finished, self._writer.failed)
        mailbox.watch_reading(setup.feed.place, setup.feed.changes)

    def run(self) -> None:
        """Train until stopped, or until this worker can train no more."""
        only_now = False
        while (offered := self._mailbox.wait_for_plan(only_now=only_now)) is not None:
            plan: Plan | None = offered
            while plan is not None:
                plan, only_now = self._follow(plan)
            if self._mailbox.has_failed:
                return
        self._publish_held()
        await_released(RELEASE_TIMEOUT_S)
        if self._mailbox.should_save and self._state.lineage is not None:
            self._save(self._mailbox.plan, WORKER_ENDS)
            self._writer.flush(LAST_SAVE_TIMEOUT_S)
        else:
            self._writer.abandon()

    def _follow(self, plan: Plan) -> tuple[Plan | None, bool]:
        """Do what a plan says until another is in force (the first of the answer) or this worker rests.

        The second tells whether only a NOW plan may wake it then.
        """
        left, mailbox = self._state.generation, self._mailbox
        try:
            mailbox.enter(plan)
            if plan.member(mailbox.worker_id) is None:
                mailbox.rest(Phase.STOPPED, StopReport(generation=left, cause=StopCause.REMOVED))
                return None, False
            if plan.goal is Goal.TRAIN:
                return self._train(plan), True
            self._rest(plan)
        except GroupLeftError:
            self._stopped(plan, StopCause.ABORTED)
        except WorldError as error:
            print(error, file=sys.stderr, flush=True)
            self._stopped(plan, mailbox.stop_cause)
        except MemoryInExchangeError as error:
            self._stopped(plan, StopCause.MEMORY, self._failure(error, plan))
        except DonorError as error:
            print(error.message, file=sys.stderr, flush=True)
            self._stopped(plan, StopCause.DONOR, self._failure(error, plan))
        except UnreadableError as error:
            print(error.message, file=sys.stderr, flush=True)
            self._stopped(plan, StopCause.CHECKPOINT, self._failure(error, plan))
        except BrokenCommitError as error:
            self._told(error, plan)
            mailbox.failed(replace(self._failure(error.__cause__, plan), is_in_commit=True))
        except (DivergedError, OutOfMemoryError, ReplicaError) as error:
            mailbox.failed(self._told(error, plan))
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            self._stopped(plan, StopCause.USER, self._told(error, plan))
        return None, True

    def _train(self, plan: Plan) -> Plan | None:
        """Form the plan's group and train in it; the answer is the plan that ended it, None after the last sample."""
        _check_batch(plan)
        member = plan.member(self._mailbox.worker_id)
        assert member is not None
        seat = Seat(
            group=f"{plan.id.term}/{plan.generation}",
            rank=member.rank,
            size=plan.num_members,
            backend=backend_for(self._setup.device, self._setup.spec.resources),
            device=self._setup.device,
        )
        world = World(seat, self._calls)
        try:
            self._mailbox.join(plan.generation, world.abort)
            world.connect()
            self._mailbox.set_phase(Phase.SYNC)
            came = synchronise(self._setup, world, plan, self._untold)
            if came is not None:
                self._mailbox.take_over(came.records)
                self._held = came.held
            self._synchronised(plan)
            self._rounds.join(world, plan)
            replicas = Replicas(self._state, self._mailbox, world, plan)
            following = self._rounds_in(world, plan, replicas, Owed(self._state, self._mailbox, world))
            world.leave()
        finally:
            world.destroy()
            self._rounds.leave()
        if following is None:
            self._finish(plan, member.rank)
        return following

    def _rounds_in(self, world: World, plan: Plan, replicas: Replicas, owed: Owed) -> Plan | None:
        """Rounds until the last sample (None), or until a plan in force asks for another group or goal."""
        state, mailbox = self._state, self._mailbox
        while True:
            current = mailbox.plan
            if current is not plan:
                if not _stays(current, plan, mailbox.worker_id):
                    replicas.check()
                    owed.hand_over(plan, current)
                    return current
                plan = current
                self._rounds.adapt(plan)
            if state.is_eval_due:
                self._evaluate(world, plan)
            if self._held is not None:
                self._publish_held()
            if state.cursor >= self._setup.total_samples:
                owed.bring_together()
                return None
            if state.num_asked < plan.saves:  # the first state under a plan that wants it to be saved
                self._due = plan.cause.reason
            if self._due is not None:
                replicas.check()
                self._save_together(world, plan, owed, checked_s=replicas.seconds)
                state.num_asked = plan.saves
            if plan.until is not None and state.stands_at == plan.until:
                self._stand(world)
                continue
            before = state.cursor
            record = self._rounds.run(plan)
            if record is not None:
                state.stands_at = plan.until if _crosses(plan.until, before, state.cursor) else None
                self._committed(record, before, world.rank)
                if replicas.is_due or self._due is not None or state.cursor >= self._setup.total_samples:
                    replicas.check()
                    self._rounds.restart_clock()

    def _stand(self, world: World) -> None:
        """At the plan's line: keep the state and the group, until all members agree on another plan."""
        mailbox = self._mailbox
        mailbox.stand()
        mailbox.set_phase(Phase.EXCHANGE)
        mailbox.settle(sum(counts for (counts,) in world.gather([mailbox.count()])))
        self._rounds.restart_clock()

    def _committed(self, record: RoundRecord, before: int, rank: int) -> None:
        setup, state = self._setup, self._state
        after = state.cursor
        spec = setup.spec
        # A metric belongs to the state that it was measured on: no later checkpoint may bear it.
        state.metric = self._metric.committed(record)
        is_compared = after >= setup.total_samples or state.stands_at is not None
        if setup.evaluation is not None and (is_compared or setup.has_crossed(before, after, spec.eval_every_steps)):
            state.is_eval_due = True
            self._held = record
        else:
            self._publish(record)
        if rank == SAVER and not self._is_prepared:
            self._is_prepared = True
            self._writer.prepare(state.forms())
        if setup.has_crossed(before, after, spec.checkpoint.every_steps):
            self._due = interval(spec.checkpoint.every_steps)

    def _evaluate(self, world: World, plan: Plan) -> None:
        values = {f"eval.{name}": value for name, value in evaluate(self._setup, self._mailbox, world, plan).items()}
        state = self._state
        state.is_eval_due = False
        state.metric = self._metric.evaluated(values, state.metric)
        if world.rank == 0:
            self._metric.look(self._setup.step_at(state.cursor))
        if self._held is not None:
            self._held = replace(self._held, values={**self._held.values, **values})
        self._rounds.restart_clock()

    def _untold(self) -> Untold:
        return Untold(self._mailbox.untold(), self._held)

    def _synchronised(self, plan: Plan) -> None:
        """Tell where the state is now; a record that waits for an evaluation of another state waits no longer."""
        state = self._state
        assert state.lineage is not None
        is_finished = state.cursor >= self._setup.total_samples
        self._mailbox.moved(
            Position(lineage=state.lineage, round=state.round, cursor=state.cursor, is_finished=is_finished)
        )
        if self._held is not None and self._held.key != (state.lineage, state.round):
            self._publish_held()
        self._due = None
        if isinstance(plan.source, CheckpointSource):
            self._writer.build_on(plan.source.path)
        elif isinstance(plan.source, Donor):
            # A loss of all must not bring back what was given up, and the donor's checkpoint may go.
            self._due = TAKEN_OVER

    def _finish(self, plan: Plan, rank: int) -> None:
        """After the last sample and its evaluation: the final checkpoint by rank ``SAVER``, then wait to be stopped."""
        if rank == SAVER and not self._has_saved_final:
            self._save_final(plan)
            self._has_saved_final = True
        self._mailbox.rest(Phase.DONE)

    def _save_final(self, plan: Plan) -> None:
        """Storage that is full or away for some minutes must not cost a whole training: try again until it is written.

        Raises CheckpointError in the end, GroupLeftError where this worker is to do something else.
        """
        for wait_s in FINAL_RETRIES_S:
            try:
                self._save(plan, COMPLETE, is_final=True)
                self._writer.flush(SAVE_TIMEOUT_S)
                return
            except CheckpointError as error:
                if not isinstance(error.__cause__, OSError):
                    raise
            self._mailbox.idle(wait_s)
        self._save(plan, COMPLETE, is_final=True)
        self._writer.flush(SAVE_TIMEOUT_S)

    def _rest(self, plan: Plan) -> None:
        """Train no more; where this worker is to, write the state."""
        self._publish_held()
        if saver(plan) == self._mailbox.worker_id and self._state.lineage is not None:
            self._save(plan, plan.cause.reason)
            self._writer.flush(SAVE_TIMEOUT_S)
        self._mailbox.rest(Phase.SAVED)

    def _save_together(self, world: World, plan: Plan, owed: Owed, *, checked_s: float) -> None:
        """Save what all members of the world hold; where it breaks meanwhile, what rank ``SAVER`` holds by itself.

        ``checked_s`` is what it took to find that they hold the same.
        """
        assert self._due is not None
        reason, self._due, started_s = self._due, None, time.perf_counter() - checked_s
        left_out: Mapping[str, torch.Tensor] | None = None
        try:
            left_out = owed.total()
        finally:
            if world.rank == SAVER:
                self._save(plan, reason, left_out=left_out, waited_s=time.perf_counter() - started_s)
        self._rounds.restart_clock()

    def _save(
        self,
        plan: Plan,
        reason: str,
        *,
        left_out: Mapping[str, torch.Tensor] | None = None,
        waited_s: float = 0.0,
        is_final: bool = False,
    ) -> None:
        """Stage a copy of the last commit, with what was left out of gradients, and hand it to the writer."""
        self._metric.look(self._setup.step_at(self._state.cursor))
        self._mailbox.set_phase(Phase.SAVE)
        started_s = time.perf_counter() - waited_s
        staging = self._writer.staging()
        snapshot = self._state.snapshot(staging, left_out)
        held_s = time.perf_counter() - started_s
        header = header_for(self._setup, plan, reason, held_s=held_s, is_final=is_final)
        self._writer.save(snapshot, header, staging)

    def _publish_held(self) -> None:
        if self._held is not None:
            self._publish(self._held)
            self._held = None

    def _publish(self, record: RoundRecord) -> None:
        num_thinned = self._mailbox.publish(record)
        if num_thinned:
            print(f"{num_thinned} records were given up: nobody has fetched them for long", flush=True)

    def _stopped(self, plan: Plan, cause: StopCause, failure: Failure | None = None) -> None:
        self._mailbox.rest(Phase.STOPPED, StopReport(generation=plan.generation, cause=cause, failure=failure))

    def _failure(self, error: BaseException | None, plan: Plan) -> Failure:
        assert error is not None
        member = plan.member(self._mailbox.worker_id)
        return failure_of(
            error,
            worker_id=self._mailbox.worker_id,
            rank=member.rank if member else None,
            round=None if self._state.lineage is None else self._state.round + 1,
            blot=self._setup.assignment.secrets.text,
        )

    def _told(self, error: BaseException, plan: Plan) -> Failure:
        """The failure, whose traceback is now in the log, too."""
        failure = self._failure(error, plan)
        log_failure(failure)
        return failure


def _crosses(line: int | None, before: int, after: int) -> bool:
    return line is not None and before < line <= after


def _stays(current: Plan, plan: Plan, worker_id: str) -> bool:
    """Whether ``current`` only changes sections of the group that trains under ``plan``."""
    return (
        current.generation == plan.generation and current.goal is Goal.TRAIN and current.member(worker_id) is not None
    )


def _check_batch(plan: Plan) -> None:
    num_training = sum(member.weight > 0 for member in plan.members)
    if plan.global_batch < num_training:
        raise BatchSplitError(
            f"batch.global_size={plan.global_batch} does not reach {num_training} workers; "
            f"use at least {num_training}, or set workers.max to {plan.global_batch}"
        )
