from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.queue import (
    Grant,
    Running,
    Waiting,
    adjust,
    admit,
    earliest_start_s,
    explain,
    held_by_others,
    offers,
    reclaim,
    running,
    waiting,
)
from service.records import NodeView
from service.room import Need, need_of
from service.store.opening import Store
from tests.service.given import spec
from workers.spec_parts import Resources
from workers.status import AvoidedNode

ONE_CPU = {"cpus": 1.0, "gpus": 0.0, "memory_bytes": 0.0}


def node(node_id: str, cpus: float, free: float | None = None, gpus: float = 0.0) -> NodeView:
    return NodeView(
        node_id=node_id,
        name=node_id,
        is_alive=True,
        total={"cpus": cpus, "gpus": gpus, "memory_bytes": 2.0**33},
        free={"cpus": cpus if free is None else free, "gpus": gpus, "memory_bytes": 2.0**33},
    )


def queued(job_id: str, min: int = 1, max: int = 1, cpus: float = 1.0, pinned: int | None = None) -> Waiting:
    return Waiting(job_id=job_id, need=Need({**ONE_CPU, "cpus": cpus}), min=min, max=max, pinned=pinned)


def placed(
    job_id: str,
    num_workers: int,
    max: int = 4,
    *,
    on: dict[str, int] | None = None,
    asks: int | None = None,
    min: int = 1,
) -> Running:
    return Running(
        job_id=job_id,
        need=Need(ONE_CPU),
        num_workers=num_workers,
        min=min,
        max=max,
        num_asked=num_workers if asks is None else asks,
        places=tuple(node_id for node_id, count in (on or {}).items() for _ in range(count)),
    )


def test_an_unpinned_job_starts_with_what_is_free_up_to_its_max() -> None:
    assert admit([queued("a", 1, 4)], [], [node("n", 8)]) == [Grant("a", 4)]
    assert admit([queued("a", 1, 4)], [], [node("n", 3)]) == [Grant("a", 3)]


def test_jobs_start_in_their_order_and_nobody_overtakes() -> None:
    jobs = [queued("a", 2, 2), queued("b", 2, 2), queued("c", 1, 1)]
    assert admit(jobs, [], [node("n", 3)]) == [Grant("a", 2)]


def test_a_job_that_can_never_fit_holds_nobody_up() -> None:
    assert admit([queued("a", 9, 9), queued("b")], [], [node("n", 2)]) == [Grant("b", 1)]


def test_a_worker_must_fit_on_one_node() -> None:
    assert admit([queued("a", 1, 1, cpus=3)], [], [node("n", 2), node("m", 2)]) == []
    assert admit([queued("a", 3, 3, cpus=2)], [], [node("n", 3), node("m", 4)]) == [Grant("a", 3)]


def test_what_was_granted_counts_before_it_is_there() -> None:
    assert admit([queued("b")], [placed("a", 2)], [node("n", 2, free=2)]) == []
    assert admit([queued("b")], [placed("a", 2, on={"n": 2})], [node("n", 2, free=2)]) == []
    assert admit([queued("b")], [placed("a", 1)], [node("n", 2, free=2)]) == [Grant("b", 1)]


def test_workers_that_are_there_are_counted_once() -> None:
    assert admit([queued("b", 1, 4)], [placed("a", 2, on={"n": 2})], [node("n", 4, free=2)]) == [Grant("b", 2)]


def test_what_others_use_on_the_cluster_is_not_free() -> None:
    assert admit([queued("a", 1, 4)], [], [node("n", 4, free=1)]) == [Grant("a", 1)]


def test_who_is_on_its_way_is_not_counted_twice_where_it_is_known_what_others_hold() -> None:
    known = held_by_others({}, [placed("a", 1, on={"n": 1})], [node("n", 2, free=1)])
    assert known["n"]["cpus"] == 0.0
    # Another has come into a's place, and Ray counts its worker already, of which nobody here has heard.
    coming, view = [placed("b", 1)], [node("n", 2, free=1)]
    assert admit([queued("c")], coming, view) == []
    known = held_by_others(known, coming, view)
    assert admit([queued("c")], coming, view, known) == [Grant("c", 1)]
    assert admit([queued("c")], [*coming, placed("d", 1)], view, known) == []


@given(
    others=st.integers(0, 3),
    course=st.lists(st.sampled_from(["grant", "come", "hear", "leave", "take", "free", "look"]), max_size=30),
)
def test_nothing_is_granted_that_is_not_there_whatever_is_heard_late(others: int, course: list[str]) -> None:
    """One node of 6 CPUs, of which strangers hold some; Ray knows who has come, we know of whom we have heard."""
    unplaced, unheard, heard = 0, 0, 0
    known = held_by_others({}, [], [node("n", 6, free=6 - others)])
    for event in course:
        if event == "come" and unplaced and others + unheard + heard < 6:
            unplaced, unheard = unplaced - 1, unheard + 1
        elif event == "hear" and unheard:
            unheard, heard = unheard - 1, heard + 1
        elif event == "leave":
            heard = max(0, heard - 1)
        elif event == "free":
            others = max(0, others - 1)
        elif event == "take" and not unplaced and not unheard and others + heard < 6:
            others += 1  # of one that came meanwhile it would look as if it were ours
        view = [node("n", 6, free=6 - others - unheard - heard)]
        jobs = [placed("heard", heard, on={"n": heard}), placed("coming", unplaced + unheard)]
        known = held_by_others(known, jobs, view)
        grants = admit([queued("w")], jobs, view, known)
        assert others + unplaced + unheard + heard < 6 or not grants
        if event == "grant" and grants:
            unplaced += 1


def test_room_that_one_has_left_whose_end_is_not_known_yet_is_none_that_others_have_left() -> None:
    known = held_by_others({}, [placed("a", 1, on={"n": 1})], [node("n", 6, free=3)])
    assert known["n"]["cpus"] == 2.0
    leaving = replace(placed("a", 1, on={"n": 1}), is_leaving=True)
    assert held_by_others(known, [leaving], [node("n", 6, free=4)])["n"]["cpus"] == 2.0


def test_what_finds_no_room_has_a_claim_on_the_next() -> None:
    assert admit([queued("b")], [placed("a", 5, on={"n": 2})], [node("n", 4, free=2)]) == []


def test_a_pinned_job_is_granted_its_number_once_its_minimum_fits() -> None:
    assert admit([queued("a", 1, 4, pinned=3)], [], [node("n", 2)]) == [Grant("a", 3)]
    assert admit([queued("a", 1, 4, pinned=3), queued("b")], [], [node("n", 3)]) == [Grant("a", 3)]


def test_gpus_count_too() -> None:
    job = Waiting(job_id="a", need=Need({**ONE_CPU, "gpus": 1.0}), min=1, max=8)
    assert admit([job], [], [node("n", 8), node("g", 8, gpus=2)]) == [Grant("a", 2)]


@pytest.mark.parametrize(("part", "fitting"), [(0.5, 4), (0.3, 6), (0.4, 4), (0.6, 2), (0.1, 20), (1, 2)])
def test_a_part_of_a_gpu_is_of_one(part: float, fitting: int) -> None:
    job = Waiting(job_id="a", need=need_of(Resources(gpus=part)), min=1, max=32)
    assert admit([job], [], [node("g", 32, gpus=2)]) == [Grant("a", fitting)]


def test_dead_nodes_hold_nothing() -> None:
    dead = NodeView(node_id="n", name="n", is_alive=False, total={"cpus": 8.0}, free={"cpus": 8.0})
    assert admit([queued("a")], [], [dead]) == []


def test_running_jobs_are_offered_the_same_room_and_who_asks_first_gets_it() -> None:
    jobs = [placed("a", 1, on={"n": 1}), placed("b", 1, on={"n": 1}), placed("c", 1, on={"n": 1})]
    nodes = [node("n", 7, free=4)]
    assert offers(jobs, nodes) == {"a": 4, "b": 4, "c": 4}
    asking = [jobs[0], replace(jobs[1], num_asked=4), replace(jobs[2], num_asked=4)]
    assert adjust(asking, nodes, may_grow=True) == [Grant("b", 4), Grant("c", 2)]


def test_nobody_grows_while_others_wait_but_what_is_given_back_is_taken() -> None:
    jobs = [placed("a", 2, on={"n": 2}, asks=4), placed("b", 3, on={"n": 3}, asks=1)]
    assert adjust(jobs, [node("n", 8, free=3)], may_grow=False) == [Grant("b", 1)]


def test_an_ask_outside_the_range_is_met_at_its_border() -> None:
    jobs = [placed("a", 3, max=4, min=2, asks=9), placed("b", 3, min=2, asks=0)]
    assert adjust(jobs, [node("n", 12)], may_grow=True) == [Grant("a", 4), Grant("b", 2)]


@pytest.mark.anyio
async def test_no_job_gets_more_workers_than_its_batch_has_samples(store: Store) -> None:
    job = (await store.jobs.submit(spec(batch={"global_size": 3}, workers={"min": 1, "max": 8}))).job
    assert admit([waiting(job)], [], [node("n", 8)]) == [Grant(job.id, 3)]
    assert adjust([running(job, ("n",), num_asked=8)], [node("n", 8, free=7)], may_grow=True) == [Grant(job.id, 3)]


def test_pinned_jobs_stay_as_they_are() -> None:
    pinned = replace(placed("a", 3, asks=4), is_pinned=True)
    assert adjust([pinned], [node("n", 6)], may_grow=True) == []
    assert offers([pinned], [node("n", 6)]) == {}
    assert reclaim([queued("b")], [replace(pinned, places=("n",) * 3)], [node("n", 3, free=0)]) == []


def test_whoever_has_most_gives_back_as_little_as_lets_the_first_in_line_start() -> None:
    jobs = [placed("a", 2, on={"n": 2}), placed("b", 4, on={"n": 4}), placed("c", 1, on={"n": 1})]
    why = "made room for job w, which waits"
    assert reclaim([queued("w", 1, 4), queued("x")], jobs, [node("n", 7, free=0)]) == [Grant("b", 3, why)]
    assert reclaim([queued("w", 3, 3)], jobs, [node("n", 7, free=0)]) == [Grant("b", 1, why)]


def test_nothing_is_given_back_in_vain() -> None:
    jobs = [placed("a", 4, on={"n": 4}, min=3)]
    full = [node("n", 4, free=0)]
    assert reclaim([queued("w", 2, 2)], jobs, full) == []
    assert reclaim([queued("w", 9, 9)], jobs, full) == []
    assert reclaim([], jobs, full) == []


def test_nothing_more_is_given_back_while_enough_is_on_its_way() -> None:
    full = [node("n", 4, free=0)]
    shrinking = placed("a", 3, on={"n": 4})
    assert reclaim([queued("w")], [shrinking], full) == []
    ending = replace(placed("b", 2, on={"n": 2}), is_leaving=True)
    assert reclaim([queued("w")], [placed("a", 2, on={"n": 2}), ending], full) == []


def test_the_last_by_rank_leave_and_only_their_nodes_have_room() -> None:
    job = replace(placed("a", 4), places=("n", "m", "m", "n"))
    nodes = [node("n", 2, free=0), node("m", 2, free=0)]
    why = "made room for job w, which waits"
    assert reclaim([queued("w", 1, 1, cpus=2)], [job], nodes) == [Grant("a", 1, why)]


def test_whoever_s_nodes_do_not_help_keeps_its_workers() -> None:
    jobs = [placed("a", 4, on={"n": 4}), placed("b", 4, on={"m": 4}), placed("c", 2, on={"o": 2})]
    nodes = [node("n", 4, free=0), node("m", 4, free=0), node("o", 2, free=0)]
    why = "made room for job w, which waits"
    assert reclaim([queued("w", 1, 1, cpus=3)], jobs, nodes) in ([Grant("a", 1, why)], [Grant("b", 1, why)])


EITHER = Need({**ONE_CPU, "gpus": 1.0}, {**ONE_CPU, "cpus": 2.0})


def taken_of(need: Need, has_gpus: bool) -> Mapping[str, float]:
    return need.usual if has_gpus or need.instead is None else need.instead


def used(jobs: Sequence[Running], node_id: str, kind: str, has_gpus: bool) -> float:
    """Of a node, by the workers there."""
    return sum(job.places.count(node_id) * taken_of(job.need, has_gpus)[kind] for job in jobs)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[NodeView], list[Running]]:
    """Nodes that are full of elastic jobs, whose workers lie anywhere."""
    names = ["n", "m", "o"][: draw(st.integers(1, 3))]
    with_gpus = {name for name in names if draw(st.booleans())}
    jobs = []
    for job_id in "abc"[: draw(st.integers(1, 3))]:
        places = tuple(draw(st.lists(st.sampled_from(names), min_size=1, max_size=5)))
        low, need = draw(st.integers(1, len(places))), draw(st.sampled_from([Need(ONE_CPU), EITHER]))
        elastic = replace(placed(job_id, len(places), min=low), places=places, need=need)
        jobs.append(replace(elastic, is_pinned=draw(st.booleans())))
    nodes = []
    for name in names:
        taken = {kind: used(jobs, name, kind, name in with_gpus) for kind in ("cpus", "gpus")}
        idle = {"cpus": draw(st.integers(0, 1)), "gpus": draw(st.integers(0, 1)) if name in with_gpus else 0}
        if name in with_gpus and not taken["gpus"]:
            idle["gpus"] = 1
        full = node(name, taken["cpus"] + idle["cpus"], gpus=taken["gpus"] + idle["gpus"])
        nodes.append(replace(full, free={**full.free, **idle}))
    return nodes, jobs


@settings(max_examples=150, deadline=None)
@given(clusters(), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["cpus", "gpus", "either"]))
def test_what_is_given_back_serves_and_none_of_it_could_be_kept(
    cluster: tuple[list[NodeView], list[Running]], low: int, cpus: int, kind: str
) -> None:
    nodes, jobs = cluster
    usual, instead = {**ONE_CPU, "gpus": 1.0}, {**ONE_CPU, "cpus": float(cpus)}
    need = {"cpus": Need(instead), "gpus": Need(usual), "either": Need(usual, instead)}[kind]
    waits = Waiting(job_id="w", need=need, min=low, max=low)
    grants = {grant.job_id: grant.num_workers for grant in reclaim([waits], jobs, nodes)}
    by_id = {job.job_id: job for job in jobs}
    assert all(by_id[i].min <= size < by_id[i].num_workers and not by_id[i].is_pinned for i, size in grants.items())

    def starts(sizes: dict[str, int]) -> bool:
        smaller = [
            replace(j, num_workers=n, places=j.places[:n]) for j in jobs for n in (sizes.get(j.job_id, j.num_workers),)
        ]
        return sum(num_fitting(node, smaller) for node in nodes) >= low

    def num_fitting(node: NodeView, beside: Sequence[Running]) -> int:
        has_gpus = node.total["gpus"] > 0
        amounts = {kind: amount for kind, amount in taken_of(need, has_gpus).items() if amount}
        left = {kind: node.total[kind] - used(beside, node.node_id, kind, has_gpus) for kind in amounts}
        return min(int(left[kind] / amount) for kind, amount in amounts.items())

    if grants:
        assert starts(grants)
        assert not any(starts({**grants, i: size + 1}) for i, size in grants.items())
    else:
        assert starts({}) or not starts({j.job_id: j.min for j in jobs if not j.is_pinned})


def test_workers_that_are_not_there_yet_are_given_up_first() -> None:
    job = placed("a", 4, on={"n": 2})
    why = "made room for job w, which waits"
    assert reclaim([queued("w")], [job], [node("n", 3, free=1)]) == [Grant("a", 2, why)]


def test_a_job_that_never_fits_is_told_so_with_the_numbers() -> None:
    told = explain(queued("a", 3, 3, cpus=2), [node("n", 4)])
    assert told is not None
    assert "of at least 3 workers with 2 CPU each, 2 fit" in told.summary
    assert told.details == ("Node n has 4 CPU, 0 GPU, 8 GiB of memory in all.",)
    assert explain(queued("a"), [node("n", 4)]) is None


def test_a_job_that_nodes_out_of_use_keep_waiting_is_told_of_them() -> None:
    drained = AvoidedNode(node_id="m", actor="admin", reason="node m is drained: a new disk")
    told = explain(queued("a", 2, 2, cpus=3), [node("n", 4), node("m", 4)], [drained], {"m"})
    assert told is not None
    assert told.summary.startswith("It cannot start on the nodes that are in use now: of at least 2 workers")
    assert told.details[1:] == ("Not in use: node m is drained: a new disk.",)
    assert "uncordon" in str(told.remedy)
    assert explain(queued("a"), [node("n", 4), node("m", 4)], [drained]) is None
    never = explain(queued("a", cpus=9), [node("n", 4), node("m", 4)], [drained], {"m"})
    assert never is not None
    assert never.summary.startswith("It can never start on this cluster")
    assert "uncordon" not in str(never.remedy)


def test_nodes_that_nobody_can_put_to_use_by_a_word_are_told_of_without_that_remedy() -> None:
    away = AvoidedNode(node_id="m", actor="service", reason="node m has not been found to see the storage /s")
    drained = AvoidedNode(node_id="k", actor="admin", reason="node k is drained")
    nodes = [node("n", 4), node("m", 4), node("k", 1)]
    told = explain(queued("a", 2, 2, cpus=3), nodes, [away, drained], {"k"})
    assert told is not None
    assert told.summary.startswith("It cannot start on the nodes that are in use now")
    assert told.details[1:] == (f"Not in use: {away.reason}.", f"Not in use: {drained.reason}.")
    assert "uncordon" not in str(told.remedy)


def test_the_earliest_start_is_when_enough_of_those_who_train_have_ended() -> None:
    nodes = [node("n", 4, free=0)]
    short = replace(placed("short", 1, on={"n": 1}), left_s=60.0)
    long = replace(placed("long", 3, on={"n": 3}), left_s=600.0)
    assert earliest_start_s([queued("a")], [short, long], nodes) == 60
    assert earliest_start_s([queued("a"), queued("b")], [short, long], nodes) == 600  # who is before it takes its part
    assert earliest_start_s([queued("a", min=2, max=2)], [short, long], nodes) == 600
    assert earliest_start_s([queued("a")], [replace(short, is_leaving=True), long], nodes) == 0
    assert earliest_start_s([queued("a")], [short], [node("n", 4, free=3)]) == 0


def test_nobody_tells_an_earliest_start_that_hangs_on_a_job_whose_end_is_unknown() -> None:
    nodes = [node("n", 2, free=0)]
    short, endless = replace(placed("short", 1, on={"n": 1}), left_s=60.0), placed("endless", 1, on={"n": 1})
    assert earliest_start_s([queued("a", min=2, max=2)], [short, endless], nodes) is None
    assert earliest_start_s([queued("a", min=3, max=3)], [short], nodes) is None  # it fits into no empty cluster
    assert earliest_start_s([queued("huge", min=3, max=3), queued("a")], [short, endless], nodes) == 60
