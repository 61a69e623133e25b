"""``communication: auto`` where groups break and begin: what goes on, and what is held against a scheme on trial."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import Desk
from tests.control.test_compress import job, on_trial, slow
from tests.control.uneven_job import UnevenJob
from workers.control import compress, compressing
from workers.control.compressing import Compressing
from workers.control.snapshot import Progress, fold
from workers.control.telemetry import Pending
from workers.plan import Exchange, Plan
from workers.status import Phase, StopCause


def test_the_scheme_outlives_its_group_and_is_weighed_anew_there() -> None:
    found = job(slow(1.0)).run(60)
    plan = found.desk.plan
    assert plan.exchange == Exchange(scheme="int4", why=plan.exchange.why)
    found.desk.turn(lost={plan.worker_ids[1]: "its process died"})
    for _ in range(8):
        found.desk.turn()
    assert found.desk.plan.exchange.scheme == "int4"


def started_again(found: UnevenJob) -> Plan:
    """The plan of other workers, after all were lost before they got further."""
    desk, gone = found.desk, found.desk.plan
    desk.turn(lost=dict.fromkeys(gone.worker_ids, "its node died"))
    for _ in range(4):
        desk.turn()
    for worker_id in [i for i in desk.state.workers if i not in gone.worker_ids]:
        desk.say(worker_id, Phase.READY, build=found.built(worker_id))
    desk.turn()
    assert (desk.plan.lineage, desk.plan.num_members) == (gone.lineage + 1, 2)
    return desk.plan


def test_why_a_scheme_stays_is_told_of_the_group_in_which_that_was_found() -> None:
    found = job(slow(1.0)).run(60)

    def told() -> tuple[str, int]:
        seen = fold(found.desk.state, found.desk.direction, Pending(), Progress(), None)
        assert seen.plan is not None
        return seen.exchange_reason[:20], seen.plan.generation

    assert told() == ("With int4 steps are ", found.desk.plan.generation)
    plan = started_again(found)
    for worker_id in plan.worker_ids:
        found.desk.say(worker_id, Phase.COMPUTE, plan=plan, generation=plan.generation)
    found.desk.turn()
    assert told() == ("", plan.generation)


def test_a_start_that_takes_no_scheme_up_tells_of_none() -> None:
    found = job(slow(1.0)).run(60)
    state = found.desk.state
    found.desk.state = replace(state, compressing=replace(state.compressing, unjudged="int8"), num_launches=1)
    plan = started_again(found)
    assert plan.exchange.name == "none"
    assert "gradients travel" not in plan.cause.reason


def test_the_scheme_outlives_all_workers_but_not_twice_where_they_got_no_further() -> None:
    found = job(slow(1.0)).run(60)
    assert [started_again(found).exchange.scheme for _ in range(2)] == ["int4", "none"]


def test_a_scheme_on_trial_does_not_outlive_all_workers() -> None:
    found = on_trial(job(slow(1.0)))
    assert (found.desk.plan.exchange.scheme, started_again(found).exchange.scheme) == ("int4", "none")


def test_a_scheme_with_which_a_group_broke_is_left_at_once_and_tried_once_more() -> None:
    found = on_trial(job(slow(1.0)))
    desk, trial = found.desk, found.desk.state.compressing.trial
    assert trial is not None
    desk.stop("1.2", StopCause.PEER)
    desk.turn(lost={"1.1": "out of memory"})
    desk.turn()
    assert desk.plan.exchange.scheme == "none"
    assert desk.plan.cause.reason.endswith("; gradients travel as none again, as int4 was not judged yet")
    desk.train("1.2", round=found.round)
    desk.turn()
    known = desk.state.compressing
    assert (known.trial, "int4" in compress.allowed(desk.state)) == (None, True)
    known = compressing.followed(replace(known, trial=replace(trial, is_broken=True, is_blamed=True)), desk.plan)
    assert "int4" not in compress.allowed(replace(desk.state, compressing=known))
    why = compressing.without_barred("it waits", known)
    assert why == "it waits; int4 is left alone, as groups broke while it was tried"


@pytest.mark.parametrize(
    ("lost", "cause", "suspected"),
    [
        ("its node died", StopCause.PEER, set[str]()),
        ("refused to be called for 2.1 s", StopCause.PEER, set[str]()),
        ("its node died", StopCause.MEMORY, {"int4"}),
        ("its process 7 died", StopCause.PEER, {"int4"}),
        ("silent for 15.1 s", StopCause.PEER, {"int4"}),
        (None, StopCause.PEER, {"int4"}),
    ],
)
def test_a_node_that_goes_while_a_scheme_is_tried_is_not_held_against_it(
    lost: str | None, cause: StopCause, suspected: set[str]
) -> None:
    found = on_trial(job(slow(1.0)))
    desk = found.desk
    desk.stop("1.2", cause)
    desk.turn()
    if lost is None:
        desk.stop("1.1", cause)
    desk.turn(lost={"1.1": lost} if lost else {})
    desk.turn()
    assert (desk.plan.exchange.name, desk.plan.num_members) == ("none", 1 if lost else 2)
    desk.train(*desk.plan.worker_ids, round=found.round)
    desk.turn()
    assert (desk.state.compressing.trial, set(desk.state.compressing.suspected)) == (None, suspected)


def test_a_scheme_with_which_nodes_go_again_and_again_is_left_alone() -> None:
    """A node may be a container, which the kernel ends as a whole where memory runs out."""
    found = job(slow(1.0))
    for _ in range(compressing.MOST_GONE):
        desk = on_trial(found).run(1).desk
        gone, stays = desk.plan.worker_ids
        desk.stop(stays, StopCause.PEER)
        desk.turn(lost={gone: "its node died"})
        desk.turn()
        desk.train(stays, round=found.round)
        for _ in range(3):
            desk.turn()
        (newcomer,) = desk.state.workers.keys() - {stays}
        desk.say(newcomer, Phase.READY, build=found.built(newcomer))
        desk.turn()
        found.join(newcomer, found.costs[stays])
    found.run(1)
    known = desk.state.compressing
    assert (set(known.suspected), set(known.barred)) == (set(), {"int4"})
    assert on_trial(found).desk.plan.exchange.scheme == "int8"


def test_what_breaks_before_a_scheme_is_in_force_is_not_held_against_it() -> None:
    found = job(slow(1.0))
    while found.desk.state.compressing.trial is None:
        found.run(1)
    desk = found.desk
    assert [s.plan.exchange.name for s in desk.statuses.values() if s.plan is not None] == ["none", "none"]
    desk.stop("1.2", StopCause.PEER)
    desk.turn(lost={"1.1": "its process 7 died"})
    desk.turn()
    assert (desk.state.compressing.trial, desk.state.compressing.suspected) == (None, frozenset())


def test_a_start_goes_on_with_what_was_judged_last_but_not_once_more_where_that_got_no_further() -> None:
    desk = Desk()
    desk.state = replace(desk.state, compressing=Compressing(judged="int4 in buckets of 4 MiB"))
    names = []
    for lineage in (1, 2):
        desk.turn()
        desk.turn()
        for worker_id in desk.state.workers:
            desk.say(worker_id, Phase.READY)
        desk.turn()
        assert desk.plan.lineage == lineage
        names.append(desk.plan.exchange.name)
        desk.turn(lost=dict.fromkeys(desk.plan.worker_ids, "its process died"))
    assert names == ["int4 in buckets of 4 MiB", "none"]


def test_what_was_judged_last_is_no_matter_where_a_job_asks_for_a_scheme() -> None:
    desk = Desk(communication="bf16")
    desk.state = replace(desk.state, compressing=Compressing(judged="int4"))
    desk.started(2)
    assert desk.plan.exchange.name == "bf16"


def test_going_back_to_what_loses_less_is_not_given_up_for_a_group_that_broke_meanwhile() -> None:
    found = job(slow(1.0)).run(60)
    found.link = lambda scheme: (0.0, 0.0)
    desk = on_trial(found).desk
    assert desk.plan.exchange.scheme == "none"
    desk.stop("1.2", StopCause.PEER)
    desk.turn(lost={"1.1": "its node is gone"})
    desk.turn()
    desk.train("1.2", round=found.round)
    desk.turn()
    assert (desk.state.compressing.trial, desk.state.compressing.suspected) == (None, frozenset())
