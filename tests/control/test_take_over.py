"""A group that goes on from another job's state: a lineage of its own, which no fault brings back from."""

from __future__ import annotations

from dataclasses import replace

from tests.control.desk import Desk, checkpoint
from workers.control.telemetry import Telemetry
from workers.errors import Failure, Reason
from workers.plan import CheckpointSource, MemberSource, PlanId, Switch, TimelineKind
from workers.run_settings import Donor, RunSettings
from workers.status import Acknowledged, Phase, RoundRecord, StopCause, TimelineRow, WorkerStatus

DONOR = Donor(job_id="job_other", path="0001-0001-000000009-00001", cursor=72, url="/checkpoints")
ORDER = RunSettings(n=1, lr=0.5, global_batch=8, actor="pbt", reason="among the worst", donor=DONOR)
GONE = Failure(reason=Reason.USER_ERROR, type="DonorError", message="the state of job_other cannot be taken over")


def ordered(desk: Desk, order: RunSettings = ORDER) -> None:
    desk.direction = replace(desk.direction, settings=order)
    desk.turn()


def entered(desk: Desk, *ids: str) -> None:
    """These follow the plan, and hold the state before it still."""
    for i in ids:
        desk.say(i, Phase.SYNC, plan=desk.plan, pending=None, generation=desk.plan.generation)


def test_a_state_is_taken_over_by_the_same_workers_in_a_new_lineage_and_told() -> None:
    desk = Desk()
    ids = desk.started(2)
    before = desk.plan
    ordered(desk)
    plan = desk.plan
    assert (plan.source, plan.switch, plan.members) == (DONOR, Switch.AGREED, before.members)
    assert (plan.generation, plan.lineage, plan.lr.lr) == (before.generation + 1, before.lineage + 1, 0.5)
    [row] = desk.notes()
    assert (row.kind, row.actor, row.after["donor"], row.after["lr"]) == (TimelineKind.RESTORE, "pbt", "job_other", 0.5)
    entered(desk, *ids)
    desk.direction = replace(desk.direction, num_workers=1)
    desk.turn()
    desk.turn()
    assert desk.plan is plan  # a resize waits until the state is there
    desk.train(*ids, round=9)
    desk.turn()
    desk.train(*ids, round=10)
    desk.turn()
    assert (desk.plan.num_members, desk.plan.lineage, desk.plan.settings) == (1, plan.lineage, 1)


def test_a_loss_while_the_state_is_taken_over_tries_it_again_with_the_others() -> None:
    desk = Desk()
    ids = desk.started(2)
    ordered(desk)
    entered(desk, *ids)
    desk.turn()
    first = desk.plan
    desk.say("1.1", Phase.STOPPED, generation=None, halted=first.id)
    desk.turn(lost={"1.2": "killed"})
    desk.turn()
    assert (desk.plan.source, desk.plan.worker_ids, desk.plan.settings) == (DONOR, ("1.1",), 1)
    assert desk.plan.lineage > first.lineage


def test_a_state_that_cannot_be_had_is_given_up_and_is_no_failure_of_the_users_code() -> None:
    desk = Desk(max_failures=0)
    ids = desk.started(2)
    own = desk.plan.lineage
    ordered(desk)
    entered(desk, *ids)
    desk.turn()
    desk.stop("1.1", StopCause.DONOR, GONE)
    desk.stop("1.2", StopCause.PEER)
    desk.turn()
    assert isinstance(desk.plan.source, MemberSource)
    assert (desk.plan.lineage, desk.plan.lr.lr, desk.plan.settings) == (own, 0.5, 1)
    assert desk.plan.failures.num == 0
    assert desk.state.ending is None
    [row] = desk.notes()
    assert "trains on with its own" in row.reason
    desk.train(*ids, round=6)
    desk.turn()
    desk.turn()
    assert isinstance(desk.plan.source, MemberSource)  # and not tried again


def test_after_the_loss_of_all_what_was_given_up_is_not_gone_on_from() -> None:
    for met, source in ((0, DONOR), (1, CheckpointSource("p5", 5, 40))):
        desk = Desk()
        desk.latest = replace(checkpoint(5), settings=met)
        desk.direction = replace(desk.direction, settings=ORDER)
        desk.turn()
        desk.turn()
        for i in ("1.1", "1.2"):
            desk.say(i, Phase.READY)
        desk.turn()
        assert desk.plan.source == source
        [row] = [row for row in desk.notes() if row.kind is TimelineKind.RESTORE]
        assert row.actor == ("controller" if met else "pbt")  # who decided that it goes on from there


def test_a_checkpoint_that_others_ask_for_is_a_plan_of_the_same_group() -> None:
    desk = Desk()
    ids = desk.started(2)
    before = desk.plan
    desk.direction = replace(desk.direction, saves=2)
    desk.turn()
    assert (desk.plan.saves, desk.plan.generation, desk.plan.settings) == (2, before.generation, 0)
    assert desk.rows() == [TimelineKind.CHECKPOINT]
    desk.train(*ids, round=6)
    plan = desk.plan
    desk.turn()
    desk.turn()
    assert desk.plan is plan


def told(plan: PlanId, lineage: int, round: int) -> WorkerStatus:
    record = RoundRecord(
        lineage=lineage,
        round=round,
        generation=1,
        plan_id=plan,
        cursor=round * 8,
        samples=8,
        time=float(lineage * 100 + round),
        values={"step_s": 1.0},
    )
    return WorkerStatus(
        worker_id="1.1", seq=1, term=1, phase=Phase.COMPUTE, phase_age_s=0.0, records=(record,), round=round, lineage=1
    )


def test_steps_that_were_given_up_for_another_jobs_state_are_not_lost() -> None:
    def lost(after: dict[str, object]) -> int | None:
        telemetry = Telemetry(8, Acknowledged())
        row = TimelineRow(
            key="plan/1/2",
            kind=TimelineKind.RESTORE,
            time=0.0,
            step=0,
            actor="pbt",
            reason="",
            after={"lineage": 2, **after},
        )
        telemetry.take(told(PlanId(1, 1), 1, 20))
        telemetry.note(row)
        telemetry.take(told(PlanId(1, 2), 2, 10))
        return telemetry.pending().timeline[0].steps_lost

    assert (lost({"donor": "job_other"}), lost({})) == (0, 11)
