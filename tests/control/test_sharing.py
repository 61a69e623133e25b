"""What is known of how a group's work is shared, from what its members tell."""

from __future__ import annotations

from tests.control.desk import Desk
from workers.control.sharing import MOST_DOUBLINGS, Sharing, is_due, observe, wire_share
from workers.plan import PlanId
from workers.status import Phase, RoundRecord, WorkerStatus


def told(*rounds: dict[str, float]) -> WorkerStatus:
    """A worker with these rounds' telemetry."""
    records = tuple(
        RoundRecord(
            lineage=1,
            round=number,
            generation=1,
            plan_id=PlanId(1, 1),
            cursor=8 * number,
            samples=8,
            time=1e9 + number,
            values=values,
        )
        for number, values in enumerate(rounds, 1)
    )
    return WorkerStatus(worker_id="1.1", seq=1, term=1, phase=Phase.COMPUTE, phase_age_s=0.0, records=records)


def test_what_was_sent_for_a_round_done_again_makes_no_link_look_faster() -> None:
    once = {"step_s": 1.0, "exchange_s": 0.5, "wire_bytes": 100.0}
    again = {**once, "wire_bytes": 300.0, "redone_bytes": 200.0}
    sharing = observe(Sharing(), [told(once, again)])
    assert (sharing.wire_bytes_per_s, sharing.most_bytes_per_s, wire_share(sharing)) == (100.0, 200.0, 0.5)


def test_parts_are_looked_at_ever_more_seldom_after_failures_but_not_without_end() -> None:
    desk = Desk()
    desk.started(2)
    longest_s = 100.0 * 2**MOST_DOUBLINGS
    for num_failed, wait_s in ((0, 100.0), (2, 400.0), (MOST_DOUBLINGS, longest_s), (5000, longest_s)):
        known = Sharing(num_failed=num_failed, reviewed_s=0.0, reviewed_generation=desk.plan.generation)
        found = [is_due(known, desk.plan, now_s, 100.0) for now_s in (wait_s - 1.0, wait_s)]
        assert found == [False, True]
