"""A worker of the simulation: phases as the trainer's, collectives by contribution, state as its history."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.control.desk import build_info
from workers.errors import Failure, Reason, StaleTermError
from workers.measures import BuildInfo, RankLoad, SchemeCost
from workers.plan import CheckpointSource, FreshSource, Goal, MemberSource, Plan, PlanId
from workers.run_settings import Donor
from workers.status import Phase, RoundRecord, StopCause, StopReport, WorkerStatus
from workers.training.boundary import (
    Agreement,
    count,
    enter,
    enterable,
    halt,
    has_pending,
    is_halted,
    offer,
    settle,
)
from workers.training.mailbox import Mailbox

if TYPE_CHECKING:
    from tests.control.simulation import World


UNREADABLE = Failure(reason=Reason.CONTROLLER_ERROR, type="UnreadableError", message="it is damaged")

SCHEME_COSTS = {
    "none": SchemeCost(bytes_a_value=4.0, seconds_a_million=0.0),
    "int8": SchemeCost(bytes_a_value=1.0, seconds_a_million=0.001),
    "int4": SchemeCost(bytes_a_value=0.5, seconds_a_million=0.002),
}


@dataclass
class Collective:
    flags: dict[str, int] = field(default_factory=dict)


@dataclass
class Group:
    """One membership of the process group, from the rendezvous on.

    ``arrived`` tells at whose rendezvous, by its term, each member is.
    """

    plan: Plan
    arrived: dict[str, int] = field(default_factory=dict)
    is_broken: bool = False
    ops: dict[int, Collective] = field(default_factory=dict)


@dataclass
class SimWorker:
    id: str
    world: World
    phase: Phase = Phase.BUILD
    phase_since: float = 0.0
    held: Agreement = field(default_factory=Agreement)
    term: int = 0
    seq: int = 0
    round: int | None = None
    lineage: int | None = None
    history: tuple[int, ...] = ()
    group: Group | None = None
    op: int = 0
    has_contributed: bool = False
    stop: StopReport | None = None
    is_finished: bool = False
    stands_at: int | None = None
    is_frozen: bool = False
    slow_until: float = 0.0
    user_error_next: bool = False
    to_build: int = 3
    loads: tuple[RankLoad, ...] = ()
    records: tuple[RoundRecord, ...] = ()

    def __post_init__(self) -> None:
        self.mailbox = Mailbox(self.id)
        self.mailbox.hear(self.term)

    def to(self, phase: Phase) -> None:
        self.phase, self.phase_since = phase, self.world.now

    # --- what the controller's calls do -------------------------------------------------------

    def hear(self, term: int) -> bool:
        """Whether a call of this term is obeyed."""
        try:
            self.mailbox.hear(term)
        except StaleTermError:
            self.world.num_refused += 1
            return False
        self.term = term
        return True

    def poll(self, term: int, plan: Plan | None) -> WorkerStatus | None:
        if not self.hear(term):
            return None
        if plan is not None:
            self.held = offer(self.held, plan)
        self.seq += 1
        return WorkerStatus(
            worker_id=self.id,
            seq=self.seq,
            term=self.term,
            phase=self.phase,
            phase_age_s=self.world.now - self.phase_since,
            plan=self.held.plan,
            pending=self.held.pending,
            halted=self.held.halted,
            generation=self.group.plan.generation if self.group else None,
            lineage=self.lineage,
            round=self.round,
            cursor=None if self.round is None else self.round * 8,
            is_finished=self.is_finished,
            stop=self.stop,
            checkpoints=tuple(c for c, _ in self.world.storage if c.path.startswith(self.id + "/")),
            build=self._built(),
            loads=self.loads,
            records=self.records,
        )

    def halt(self, term: int, plan_id: PlanId) -> None:
        if self.id not in self.world.workers or not self.hear(term):
            return
        self.held = halt(self.held, plan_id)
        if self.group is not None and is_halted(self.held):
            self.leave(StopCause.ABORTED)

    def end(self, term: int) -> None:
        if self.id in self.world.workers and not self.is_frozen and self.hear(term):
            self.world.kill(self.id)

    def leave(self, cause: StopCause, failure: Failure | None = None) -> None:
        assert self.group is not None
        self.group.is_broken = True
        self.stop = StopReport(generation=self.group.plan.generation, cause=cause, failure=failure)
        self.group = None
        self.to(Phase.STOPPED)

    # --- the training thread, one small step at a time ----------------------------------------

    def step(self) -> None:
        if self.is_frozen or self.world.now < self.slow_until:
            return
        match self.phase:
            case Phase.BUILD:
                self.to_build -= 1
                if self.to_build <= 0:
                    self.to(Phase.READY)
            case Phase.READY | Phase.STOPPED | Phase.SAVED | Phase.DONE:
                is_free = self.phase is Phase.READY or (
                    self.phase is Phase.STOPPED and self.stop is not None and self.stop.cause is StopCause.REMOVED
                )
                plan = enterable(self.held, self.id, only_now=not is_free)
                if plan is not None:
                    self.held = enter(self.held, plan)
                    self._obey(plan)
            case Phase.RENDEZVOUS:
                self._rendezvous()
            case Phase.HELD if self.group is not None and self.group.is_broken:
                self.leave(StopCause.PEER)
            case Phase.HELD if not (self.has_contributed or has_pending(self.held)):
                pass
            case _:
                self._collective()

    def _obey(self, plan: Plan) -> None:
        """Do what a plan that came into force asks for; the old group is left already."""
        member = plan.member(self.id)
        if member is None:
            self.stop = StopReport(generation=plan.generation, cause=StopCause.REMOVED)
            self.to(Phase.STOPPED)
        elif plan.goal is Goal.SAVE_AND_STOP:
            if member.rank == 0:
                self.world.save(self, is_final=False)
            self.to(Phase.SAVED)
        else:
            self.group = self.world.groups.setdefault((plan.id.term, plan.generation), Group(plan=plan))
            assert self.group.plan.members == plan.members, "one generation, one membership"
            self.group.arrived[self.id] = self.term
            self.stop = None
            self.to(Phase.RENDEZVOUS)

    def _rendezvous(self) -> None:
        group = self.group
        assert group is not None
        given_up, at = (
            self.world.given_up(group.arrived[self.id]),
            {group.arrived.get(i) for i in group.plan.worker_ids},
        )
        if given_up is None or group.plan.generation <= given_up or group.is_broken:
            self.leave(StopCause.PEER)
        elif len(at) == 1 and not self.world.is_split(group.plan.worker_ids):
            self.op, self.has_contributed = 0, False
            self.to(Phase.SYNC)

    def _collective(self) -> None:
        group = self.group
        assert group is not None
        op = group.ops.setdefault(self.op, Collective())
        if not self.has_contributed:
            if group.is_broken:
                self.leave(StopCause.PEER)
                return
            if self.user_error_next and self.phase is Phase.EXCHANGE:
                self.user_error_next = False
                failure = Failure(reason=Reason.USER_ERROR, type="ValueError", message="planted")
                self.leave(StopCause.USER, failure)
                return
            self.held, flag = count(self.held)
            op.flags[self.id] = flag
            self.has_contributed = True
            return
        is_complete = len(op.flags) == group.plan.num_members and not self.world.is_split(group.plan.worker_ids)
        if is_complete and (not group.is_broken or self.world.rng.random() < 0.5):
            self.has_contributed = False
            self.op += 1
            self._commit(group, sum(op.flags.values()))
        elif group.is_broken:
            self.leave(StopCause.PEER)

    def _commit(self, group: Group, num_counted: int) -> None:
        if self.phase is Phase.SYNC:
            self._sync(group)
            return
        if self.phase is Phase.EVAL:
            self._finish(group)
            return
        assert self.round is not None
        assert self.lineage is not None
        assert self.held.plan is not None
        if self.phase is not Phase.HELD:
            self.round += 1
            token = self.world.token(self, group, self.held.plan)
            self.history += (token,)
            if self.world.tells_speeds:
                self._tell(self.held.plan)
            until = self.held.plan.until
            self.stands_at = until if until is not None and self.round * 8 - 8 < until <= self.round * 8 else None
        self.held = settle(self.held, num_counted)
        plan = self.held.plan
        if self.round == self.world.num_rounds:
            self.is_finished = True
        if plan.generation != group.plan.generation or plan.goal is not Goal.TRAIN or plan.member(self.id) is None:
            self.group = None
            self._obey(plan)
        elif self.is_finished:
            self.to(Phase.EVAL)
        else:
            if self.round % 5 == 0 and plan.members[0].worker_id == self.id:
                self.world.save(self, is_final=False)
            self.to(self._onward(plan))

    def _built(self) -> BuildInfo:
        schemes = SCHEME_COSTS if self.world.has_slow_link else {}
        num_trained = 1_000_000 if self.world.tells_speeds else 0
        built = replace(build_info(), total_samples=self.world.num_rounds * 8, node_id=self.id)
        return replace(built, num_trained=num_trained, schemes=schemes)

    def _link_s(self, scheme: str) -> float:
        """Fewer bytes help now and then, and now and then they do not."""
        assert self.round is not None
        pays = zlib.crc32(f"link {self.round // 9}".encode()) % 2 == 0
        return (0.0 if not self.world.has_slow_link else 0.5) if scheme == "none" else 0.05 if pays else 0.6

    def _tell(self, plan: Plan) -> None:
        """What the round cost this worker, and what it took all of them: one is four times as slow as another."""
        assert self.round is not None
        slowness = 1 if self.world.has_slow_link else 1 + zlib.crc32(f"{self.id} {self.round // 9}".encode()) % 4
        part, n = plan.parts[self.id], self.loads[-1].n + 1 if self.loads else 1
        link_s = self._link_s(plan.exchange.name)
        load = RankLoad(
            n=n,
            plan_id=plan.id,
            samples=part,
            num_rounds=3,
            seconds=part * slowness / 1000,
            exchange_s=link_s,
            exposed_s=link_s,
        )
        record = RoundRecord(
            lineage=self.lineage or 0,
            round=self.round,
            generation=plan.generation,
            plan_id=plan.id,
            cursor=self.round * 8,
            samples=8,
            time=self.world.now,
            values={"step_s": max(plan.parts.values()) * slowness / 1000 + link_s, "workers": float(plan.num_members)},
        )
        self.loads, self.records = (*self.loads, load)[-6:], (record,)

    def _onward(self, plan: Plan) -> Phase:
        return Phase.HELD if plan.until is not None and plan.until == self.stands_at else Phase.EXCHANGE

    def _sync(self, group: Group) -> None:
        """Take the source's state; refuse a generation in which a commit would be lost."""
        source = group.plan.source
        members = [self.world.workers.get(m.worker_id) for m in group.plan.members]
        snapshot = self.world.sync_states.get(id(group))
        if snapshot is None:
            snapshot = self._source_state(source, members)
            self.world.sync_states[id(group)] = snapshot
        if snapshot == "unreadable":
            if group.plan.members[0].worker_id == self.id:  # the others wait for what it reads
                self.leave(StopCause.CHECKPOINT, UNREADABLE)
            return
        if isinstance(snapshot, str):
            self.leave(StopCause.PEER)
            return
        if isinstance(source, MemberSource):
            self.stands_at = self.world.all_workers[source.worker_id].stands_at
        elif self.lineage != group.plan.lineage:
            self.stands_at = None
        self.lineage, self.history = group.plan.lineage, snapshot
        self.round = len(snapshot)
        self.is_finished = self.round == self.world.num_rounds
        assert self.held.plan is not None
        self.to(Phase.EVAL if self.is_finished else self._onward(self.held.plan))

    def _source_state(self, source: object, members: list[SimWorker | None]) -> tuple[int, ...] | str:
        match source:
            case FreshSource():
                return ()
            case CheckpointSource(path=path) if path in self.world.damaged:
                return "unreadable"
            case CheckpointSource(path=path):
                return next(h for c, h in self.world.storage if c.path == path)
            case Donor(path=path):
                return self.world.donors[path]
            case MemberSource(worker_id=worker_id):
                giver = self.world.all_workers[worker_id]
                assert giver.round is not None
                if any(
                    m is not None and (m.round or 0) > giver.round for m in members if m and m.lineage == giver.lineage
                ):
                    return "refused"
                return giver.history
        raise AssertionError(source)

    def _finish(self, group: Group) -> None:
        if self.held.plan is not None and self.held.plan.members[0].worker_id == self.id:
            self.world.save(self, is_final=True)
        self.group = None
        self.to(Phase.DONE)
