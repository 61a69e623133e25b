from __future__ import annotations

from dataclasses import replace

from tests.control.test_controller import KEY
from workers.control.decisions import ControllerState, ControlSettings, WorkerFacts
from workers.control.sharing import Sharing
from workers.control.snapshot import Progress, fold
from workers.control.telemetry import Pending
from workers.errors import Failure, Reason
from workers.lr import LrPlan
from workers.measures import Footprint, RankSpan
from workers.plan import Cause, FreshSource, Member, Plan, PlanId, Switch, TimelineKind
from workers.spec import parse_job_spec
from workers.status import Direction, JobSnapshot, Outcome, Phase, RunGoal, RunPhase, WorkerStatus

RUN = Direction(goal=RunGoal.RUN, num_workers=9)
SPEC = parse_job_spec(
    {"name": "j", "entrypoint": "workers.recipes.digits:build", "steps": 5, "workers": {"min": 1, "max": 4}}
)


def plan(n: int, *worker_ids: str) -> Plan:
    return Plan(
        id=PlanId(1, n),
        switch=Switch.NOW,
        generation=n,
        lineage=1,
        source=FreshSource(),
        members=tuple(Member(worker_id=w, rank=r) for r, w in enumerate(worker_ids)),
        global_batch=8,
        lr=LrPlan(lr=1.0, base_batch=8),
        cause=Cause(kind=TimelineKind.START, actor="controller", reason=""),
    )


def status(worker_id: str, phase: Phase, held: Plan | None, **more: object) -> WorkerStatus:
    first = WorkerStatus(worker_id=worker_id, seq=1, term=1, phase=phase, phase_age_s=0.0, plan=held)
    return replace(first, **more)  # type: ignore[arg-type]  # fields by name


def state(*statuses: WorkerStatus, num_unplaced: int = 0) -> ControllerState:
    workers = {s.worker_id: WorkerFacts(worker_id=s.worker_id, started_s=0, heard_s=1, status=s) for s in statuses}
    workers |= {f"9.{n}": WorkerFacts(worker_id=f"9.{n}", started_s=0) for n in range(num_unplaced)}
    return ControllerState(key=KEY, term=1, spec=SPEC, settings=ControlSettings(), begun_s=0, workers=workers)


def snapshot(of: ControllerState, progress: Progress | None = None, crash: Failure | None = None) -> JobSnapshot:
    return fold(of, RUN, Pending(), progress or Progress(), crash)


def test_a_newcomer_that_waits_for_its_boundary_does_not_train_yet() -> None:
    old, new = plan(1, "1.1"), plan(2, "1.1", "1.2")
    told = snapshot(state(status("1.1", Phase.COMPUTE, old), status("1.2", Phase.RENDEZVOUS, new)))
    assert told.plan == old
    assert told.num_current == 1
    assert [view.rank for view in told.workers] == [0, None]


def test_a_group_that_is_being_formed_counts() -> None:
    new = plan(1, "1.1", "1.2")
    told = snapshot(state(status("1.1", Phase.RENDEZVOUS, new), status("1.2", Phase.RENDEZVOUS, new)))
    assert (told.plan, told.num_current) == (new, 2)


def test_a_worker_without_a_place_is_pending_and_asked_for_within_the_range() -> None:
    told = snapshot(state(status("1.1", Phase.BUILD, None), num_unplaced=2))
    assert (told.num_current, told.num_pending, told.num_asked) == (0, 2, 4)


def test_a_worker_is_shown_with_its_load_under_its_own_rank() -> None:
    of_plan = replace(
        plan(1, "1.1", "1.2"),
        members=(Member(worker_id="1.1", rank=0, weight=3.0), Member(worker_id="1.2", rank=1, weight=1.0)),
    )
    spent = RankSpan(
        worker_id="1.2",
        rank=1,
        begin=10,
        width_s=5,
        num_rounds=4,
        step_s=4.0,
        data_s=0.5,
        compute_s=1.0,
        exposed_s=2.0,
        optimizer_s=0.5,
        memory_bytes=10,
    )
    spans = (replace(spent, rank=0, begin=5, compute_s=4.0), spent)
    trained = state(
        status("1.1", Phase.COMPUTE, of_plan), status("1.2", Phase.COMPUTE, of_plan, spans=spans, memory_bytes=2**26)
    )
    limited = SPEC.model_copy(update={"resources": SPEC.resources.model_copy(update={"memory_bytes": 2**27})})
    sending = Sharing(wire_bytes_per_s=7.0, most_bytes_per_s=28.0)
    told = snapshot(replace(trained, spec=limited, sharing=sending)).workers
    assert [view.part for view in told] == [6, 2]
    assert [(v.busy_share, v.waiting_share, v.memory_share) for v in told] == [(None, None, 0.0), (0.5, 0.5, 0.5)]
    assert [view.data_share for view in told] == [None, 0.125]
    assert [(view.wire_bytes_per_s, view.wire_share) for view in told] == [(7.0, 0.25), (7.0, 0.25)]
    alone = snapshot(replace(trained, sharing=Sharing(wire_bytes_per_s=0.0))).workers
    assert [view.wire_share for view in alone] == [None, None]


def test_memory_without_a_limit_of_the_spec_is_told_of_what_the_device_has() -> None:
    of_plan = plan(1, "1.1")
    told = Footprint(peak_bytes=2**26, limit_bytes=2**28, fixed_bytes=2**25, sample_bytes=100.0)
    held = status("1.1", Phase.COMPUTE, of_plan, memory_bytes=2**26, footprint=told)
    [view] = snapshot(state(held)).workers
    assert (view.memory_share, view.footprint) == (0.25, told)


def test_progress_is_remembered_when_nobody_is_left_to_tell_it() -> None:
    trained = state(status("1.1", Phase.COMPUTE, plan(1, "1.1"), lineage=1, round=3, cursor=24))
    progress = Progress().after(trained, None)
    assert snapshot(state(), progress.after(state(), None)).cursor == 24


def test_a_restore_sets_progress_back() -> None:
    progress = Progress(attempt=1, lineage=1, cursor=240)
    restored = state(status("1.1", Phase.COMPUTE, plan(2, "1.1"), lineage=2, round=3, cursor=24))
    assert progress.after(restored, None).cursor == 24


def test_a_crash_of_the_controller_is_an_end() -> None:
    failure = Failure(reason=Reason.CONTROLLER_ERROR, type="KeyError", message="bug")
    told = snapshot(state(), crash=failure)
    assert (told.phase, told.outcome, told.reason) == (RunPhase.ENDED, Outcome.FAILED, Reason.CONTROLLER_ERROR)
    assert told.failure == failure


def test_a_last_step_of_fewer_samples_is_a_step() -> None:
    seen = Progress(cursor=17, total_samples=18)
    assert (seen.step(8), replace(seen, cursor=18).step(8), replace(seen, total_samples=None).step(8)) == (2, 3, 2)
