from __future__ import annotations

from dataclasses import replace

import pytest

from service.demand import (
    LEAD_S,
    LEAST_LEFT_S,
    LINGER_S,
    NOTHING,
    SETTLE_S,
    Bounds,
    Demand,
    Line,
    Outlook,
    Standing,
    explain,
    explain_refused,
    explain_too_many,
    offered,
    sentences,
    settled,
    wanted,
)
from service.queue import Running, Waiting
from service.records import Autoscaling, ClusterView, Explanation, NodeView
from service.room import need_of
from service.scaling_history import happened
from tests.service.test_queue import node, placed, queued
from workers.spec_parts import Resources

ONE = {"cpus": 1.0}


HUGE = queued("huge", cpus=1000)


def told(
    waiting: list[Waiting], running: list[Running], *nodes: NodeView, shut: str = "", max_workers: int = 8
) -> Demand:
    return seen(Line(jobs=waiting), running, *nodes, shut=shut, now=max_workers).demand


def seen(line: Line, running: list[Running], *nodes: NodeView, shut: str = "", now: int = 8, most: int = 8) -> Outlook:
    return wanted(line, running, nodes, shut=frozenset(shut), bounds=Bounds(now=now, most=max(now, most)))


def growing() -> Running:
    """It has one worker and asks for three."""
    return replace(placed("r", 1, max=8, on={"n": 1}, asks=3), left_s=LEAST_LEFT_S)


def test_nothing_is_wanted_where_what_there_is_will_do() -> None:
    assert told([queued("a", 2)], [], node("n", 2)) == NOTHING
    assert told([], [placed("a", 2, on={"n": 2})], node("n", 2, free=0)) == NOTHING


def test_a_job_that_does_not_fit_wants_its_minimum_besides_all_that_is_in_use() -> None:
    running = replace(placed("r", 2, on={"n": 2}), is_pinned=True)
    job = queued("a", 3)
    assert told([job], [running], node("n", 3, free=1)) == Demand(
        bundles=({"cpus": 2.0}, ONE, ONE, ONE), missing={"a": 2}, waiting=(job,)
    )


def test_room_that_others_use_counts_as_in_use() -> None:
    job = queued("a")
    assert told([job], [], node("n", 4, free=0)) == Demand(
        bundles=({"cpus": 4.0}, ONE), missing={"a": 1}, waiting=(job,)
    )


def test_a_gpu_is_asked_for_while_the_cluster_has_any_and_else_the_cpus_instead() -> None:
    need = need_of(Resources(gpus=1, cpus_instead=4))
    job = Waiting(job_id="a", need=need, min=2, max=2)
    on_gpu, on_cpus = {"cpus": 1.0, "gpus": 1.0}, {"cpus": 4.0}
    assert told([job], [], node("n", 4)) == Demand(bundles=(on_cpus, on_cpus), missing={"a": 1}, waiting=(job,))
    full = replace(node("g", 1, free=0, gpus=1), free={})
    found = told([job], [], node("n", 4), full)
    assert found.bundles[1:] == (on_cpus, on_gpu)
    grows = replace(growing(), need=need)
    assert told([], [grows], node("n", 4, free=0)).bundles == (on_cpus, on_cpus, on_cpus)


def test_what_elastic_jobs_can_give_back_is_asked_of_them_first() -> None:
    elastic = placed("r", 3, on={"n": 3})
    assert told([queued("a", 2)], [elastic], node("n", 3, free=0)) == NOTHING
    assert told([queued("a", 3)], [elastic], node("n", 3, free=0)).missing == {"a": 1}


def test_nobody_gets_a_node_for_room_that_a_job_leaves_before_the_node_could_come() -> None:
    ending = replace(placed("r", 2, on={"n": 2}), is_pinned=True, left_s=LEAD_S - 1)
    assert told([queued("a", 2)], [ending], node("n", 2, free=0)) == NOTHING
    assert told([queued("a", 2)], [replace(ending, left_s=LEAD_S)], node("n", 2, free=0)).missing == {"a": 2}


def test_the_bound_holds_and_goes_to_the_oldest_jobs_that_it_is_enough_for() -> None:
    line = [queued("a", 3), queued("b", 9), queued("c", 2), queued("d", 1)]
    assert told(line, [], node("n", 1), max_workers=4).missing == {"a": 2, "c": 2}
    assert told(line, [], node("n", 1), max_workers=0) == NOTHING


def test_a_running_job_gets_nodes_for_the_size_that_it_asks_for_if_it_runs_long_enough() -> None:
    asks = replace(placed("r", 1, max=8, on={"n": 1}, asks=4), left_s=LEAST_LEFT_S)
    assert told([], [asks], node("n", 2, free=1)) == Demand(bundles=(ONE, ONE, ONE, ONE), missing={"r": 2})
    assert told([], [asks], node("n", 2, free=1), max_workers=1).missing == {"r": 1}
    assert told([], [replace(asks, left_s=LEAST_LEFT_S - 1)], node("n", 2, free=1)) == NOTHING
    assert told([queued("a")], [asks], node("n", 2, free=1)) == NOTHING, "the waiting come first"


def test_a_job_for_which_there_is_no_kind_of_node_keeps_no_node_from_those_that_train() -> None:
    line = Line(jobs=[HUGE], stuck=frozenset({"huge"}))
    found = seen(line, [growing()], node("n", 1, free=0))
    assert found.demand.missing == {"huge": 1}, "nobody knows yet that there is none"
    assert found.has_hope
    found = seen(replace(line, refused={"huge": False}), [growing()], node("n", 1, free=0))
    assert (found.demand.missing, found.demand.waiting, found.has_hope) == ({"r": 2}, (), False)
    assert found.refused == {"huge"}


def test_a_refused_job_is_asked_for_again_alone_and_after_those_that_were_not_refused() -> None:
    again = Line(
        jobs=[HUGE, queued("twin", cpus=900), queued("a", 2)],
        stuck=frozenset({"huge", "twin", "a"}),
        refused={"huge": True, "twin": True},
    )
    assert seen(again, [growing()], node("n", 1, free=0)).demand.missing == {"a": 2}
    found = seen(replace(again, jobs=again.jobs[:2]), [growing()], node("n", 1, free=0))
    assert found.demand.missing == {"huge": 1}
    assert not found.has_hope, "those that train may go on asking"


def test_a_refused_job_that_only_waits_for_its_turn_goes_before_those_that_train() -> None:
    line = Line(jobs=[queued("a", 2)], refused={"a": False})
    found = seen(line, [replace(growing(), is_pinned=True), growing()], node("n", 2, free=0))
    assert (found.demand, found.has_hope) == (NOTHING, True)


def test_jobs_that_nobody_has_looked_at_yet_may_have_hope() -> None:
    line = Line(jobs=[HUGE], stuck=frozenset({"huge"}), refused={"huge": False}, is_whole=False)
    assert seen(line, [growing()], node("n", 1, free=0)) == Outlook(refused=frozenset({"huge"}), has_hope=True)


def test_a_job_that_lacks_more_than_may_be_told_of_holds_nobody_up_and_is_told() -> None:
    line = Line(jobs=[queued("wide", 20)], stuck=frozenset({"wide"}))
    found = seen(line, [growing()], node("n", 1, free=0), now=16)
    assert found.too_many == {"wide": 20}
    assert (found.demand.missing, found.has_hope) == ({"r": 2}, False)


def test_a_job_that_lacks_more_than_others_leave_over_waits_for_its_turn() -> None:
    line = Line(jobs=[queued("a", 5), queued("b", 5)], stuck=frozenset("ab"))
    found = seen(line, [], node("n", 0))
    assert (found.demand.missing, found.too_many, found.has_hope) == ({"a": 5}, {}, True)
    found = seen(line, [growing()], node("n", 1, free=0), now=4)
    assert (found.demand, found.too_many, found.has_hope) == (NOTHING, {}, True), "halved after a refusal, for a while"


def test_who_may_not_be_asked_for_is_told_how_many_it_lacks_and_which_setting_forbids_it() -> None:
    why = Explanation(summary="It can never start.", details=("Node n has 1 CPU in all.",))
    told = explain_too_many(20, 16, why)
    assert "room for 20 workers more" in told.summary
    assert "`max_demand_workers` = 16" in told.summary
    assert told.details == why.details
    assert told.remedy is not None
    assert "Set `max_demand_workers` to 20 or more" in told.remedy
    assert "CONCERTINA_MAX_DEMAND_WORKERS" in told.remedy
    assert explain_too_many(20, 16, None).details == ()
    refused = explain_refused(why)
    assert refused.summary == why.summary
    assert "no kind of node" in refused.details[0]


def test_only_jobs_that_run_long_enough_may_ask_for_what_is_not_there() -> None:
    job = replace(placed("r", 1, max=8), left_s=LEAST_LEFT_S)
    assert offered(job, 2, 4) == 6
    assert offered(job, 6, 4) == 8
    for other in (replace(job, left_s=LEAST_LEFT_S - 1), replace(job, is_pinned=True), placed("unknown", 1)):
        assert offered(other, 2, 4) == 2


def test_a_drained_node_is_no_room_and_the_autoscaler_must_not_take_it_for_some() -> None:
    found = told([queued("a")], [], node("s", 4), shut="s")
    assert found.missing == {"a": 1}
    assert {"cpus": 4.0, "memory_bytes": 2.0**33} in found.bundles


def test_a_node_that_the_cluster_takes_away_is_nothing_to_count_on() -> None:
    found = told([queued("a")], [], replace(node("n", 4), is_leaving=True))
    assert (found.bundles, found.missing) == ((ONE,), {"a": 1})


def test_a_wish_must_last_before_it_is_told_and_stays_a_while_after_the_last() -> None:
    wish = Demand(bundles=(ONE,), missing={"a": 1})
    standing = settled(Standing(), wish, 0.0)
    assert standing.demand == NOTHING
    interrupted = settled(settled(standing, NOTHING, 1.0), wish, SETTLE_S)
    assert interrupted.demand == NOTHING
    standing = settled(standing, wish, SETTLE_S)
    assert standing.demand == wish
    standing = settled(standing, NOTHING, SETTLE_S + 1)
    assert standing.demand == wish
    assert settled(standing, NOTHING, SETTLE_S + LINGER_S).demand == NOTHING
    assert settled(standing, NOTHING, SETTLE_S + LINGER_S, is_placing=True).demand == wish, "nobody is on it yet"


@pytest.mark.parametrize(
    ("seen", "lines"),
    [
        (Autoscaling(), []),
        (Autoscaling(num_coming=2, wanted_by=("1", "2")), ["2 nodes are being started for digits and words."]),
        (Autoscaling(wanted_by=("1",)), ["The autoscaler was asked for nodes for digits."]),
        (
            Autoscaling(is_infeasible=True, failures=("w: no quota",), wanted_by=("1",)),
            [
                "The autoscaler has no kind of node, or none left, with room for what is wanted for digits.",
                "A node could not be started: w: no quota.",
            ],
        ),
    ],
)
def test_what_the_autoscaler_does_is_told_in_sentences(seen: Autoscaling, lines: list[str]) -> None:
    assert sentences(seen, {"1": "digits", "2": "words"}) == lines


def test_a_job_that_waits_for_nodes_is_told_whether_they_come() -> None:
    coming = explain(2, Autoscaling(num_coming=1, wanted_by=("a", "b")))
    assert "2 workers; the autoscaler was asked" in coming.summary
    assert coming.details == ("1 node is being started.",)
    assert coming.remedy is None
    assert "do not come" in explain(2, Autoscaling(is_infeasible=True)).summary


def test_what_happens_between_two_looks_is_told_once() -> None:
    asked = ClusterView(is_up=True, autoscaling=Autoscaling(wanted_by=("1",)))
    refused = ClusterView(
        is_up=True, autoscaling=Autoscaling(is_infeasible=True, failures=("no quota",), wanted_by=("1", "2"))
    )
    names = {"1": "digits", "2": "words"}
    assert [event.text for event in happened(asked, refused, names)] == [
        "The autoscaler has no kind of node, or none left, with room for what is wanted for digits and words.",
        "A node could not be started: no quota.",
    ]
    grown, shrunk = (replace(refused, nodes=nodes) for nodes in ((node("a", 4), node("b", 4)), (node("b", 4),)))
    assert [*happened(refused, grown, {})] == [("a", "Node a came."), ("b", "Node b came.")]
    assert [*happened(grown, shrunk, {})] == [("a", "Node a went.")]
    assert not [*happened(refused, refused, names)]
    assert not [*happened(ClusterView(is_up=False), refused, names)]


def test_of_many_jobs_a_few_are_named() -> None:
    seen = Autoscaling(wanted_by=tuple("123456789"))
    assert sentences(seen, {n: f"j{n}" for n in "123456789"}) == [
        "The autoscaler was asked for nodes for j1 and j2 and j3 and j4 and j5 and 4 other jobs."
    ]
