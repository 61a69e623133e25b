"""Deaths in forward passes larger than any before: when they bound those of others, and when they are chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.control.desk import FAILURE, Desk, build_info
from workers.control import killed
from workers.control.fatal_passes import Bound, FatalPasses
from workers.control.regroup import MAX_LAUNCHES
from workers.errors import Reason
from workers.measures import LastPass
from workers.plan import TimelineKind
from workers.status import Phase, StopCause, TimelineRow

DIED = "its process 7 died"


def fatal(*notes: tuple[str, int, int]) -> FatalPasses:
    """What deaths at these nodes tell, in passes of so many samples, where so many had passed."""
    passes = FatalPasses(died={f"1.{n}": 1.0 for n in range(len(notes))})
    for n, (node, size, passed) in enumerate(notes):
        passes = passes.read(node, 2.0, {f"1.{n}": LastPass(size=size, passed=passed)})
    return passes


@pytest.mark.parametrize(
    ("notes", "most"),
    [
        ([("a", 64, 8)], 32),
        ([("a", 64, 48)], 48),  # never less than what passed
        ([("a", 16, 16)], None),  # in no larger pass than before
        ([("a", 8, 0)], None),  # a first pass may meet with anything
        ([("a", 8, 0), ("b", 8, 0)], None),
        ([("a", 8, 0), ("a", 8, 0)], 4),
        ([("a", 64, 16), ("a", 16, 8)], 32),  # what passed in an earlier process passed there
        ([("a", 64, 8), ("a", 32, 8)], 16),
        ([("a", 1, 0), ("a", 1, 0)], 1),
    ],
)
def test_passes_are_bounded_by_half_of_the_smallest_that_was_fatal(
    notes: list[tuple[str, int, int]], most: int | None
) -> None:
    assert fatal(*notes).most == most


def test_a_bound_comes_with_the_death_that_it_is_by() -> None:
    bound = fatal(("a", 256, 8), ("b", 128, 16), ("b", 64, 8)).bound
    assert bound == Bound(most=32, worker_id="1.2", size=64, passed=16, num_deaths=2)


def test_what_a_living_worker_came_through_on_the_node_counts_as_well() -> None:
    passes, lives = fatal(("a", 8, 0), ("a", 8, 0)), {"1.9": LastPass(size=64, passed=32)}
    assert passes.read("b", 2.0, lives).most == 4
    assert passes.read("a", 2.0, lives).most is None


@pytest.mark.parametrize(
    ("notes", "most"),
    [
        ([(8, 0), (8, 0)], None),
        ([(8, 0), (8, 0), (8, 0)], 4),
        ([(8, 0), (8, 8), (8, 8)], None),  # in no larger pass than before
        ([(8, 0), (64, 8), (64, 32)], 32),  # the first by itself may be chance
        ([(64, 48), (64, 48), (64, 48)], 48),
        ([(64, 32), (64, 32), (64, 32), (32, 16), (32, 16), (32, 16)], 16),
        ([(128, 64)], 64),
        ([(128, 64), (64, 8), (64, 8), (64, 8)], 32),
    ],
)
def test_what_others_came_through_counts_no_more_once_one_after_the_other_has_died_beside_them(
    notes: list[tuple[int, int]], most: int | None
) -> None:
    passes = fatal(*(("a", size, passed) for size, passed in notes))
    assert passes.read("a", 2.0, {"1.9": LastPass(size=64, passed=64)}).most == most


def test_only_a_look_after_the_death_was_heard_of_counts_and_the_first_such() -> None:
    passes = FatalPasses(died={"1.1": 5.0})
    passes = passes.read("a", 4.9, {"1.1": LastPass(size=64, passed=32)})  # alive then, and in the midst of that one
    assert (passes.most, passes.passed) == (None, {"a": 32})
    passes = passes.read("a", 5.0, {"1.1": LastPass(size=256, passed=128)})
    passes = passes.read("a", 6.0, {"1.1": LastPass(size=512, passed=128)})
    assert passes.bound == Bound(most=128, worker_id="1.1", size=256, passed=128, num_deaths=1)


def lose(desk: Desk, worker: str, newcomer: str, note: LastPass, why: str = DIED) -> list[TimelineRow]:
    """A worker is gone, and who comes in its place finds its note."""
    desk.turn(lost={worker: why})
    rows = desk.notes()
    desk.turn()
    rows += desk.notes()
    desk.say(newcomer, Phase.READY, build=replace(build_info(), last_passes={worker: note}))
    desk.turn()
    return [row for row in (*rows, *desk.notes()) if row.kind is TimelineKind.BATCH]


def test_the_next_plan_bounds_the_passes_of_all_and_keeps_to_it() -> None:
    desk = Desk(want=1)
    (first,) = desk.started(1)
    assert desk.plan.most_micro is None
    (row,) = lose(desk, first, "1.2", LastPass(size=64, passed=8))
    assert (row.after, desk.plan.worker_ids, desk.plan.most_micro) == ({"micro_size": 32}, ("1.2",), 32)
    assert f"worker {first} was killed in its first forward pass of 64 samples" in row.reason
    assert "(8 had passed on its node); until the attempt ends a pass has at most 32 samples" in row.reason
    desk.train("1.2", round=6)
    desk.turn()
    assert lose(desk, "1.2", "1.3", LastPass(size=32, passed=32)) == []
    assert (desk.plan.worker_ids, desk.plan.most_micro) == (("1.3",), 32)


def test_a_survivor_is_bounded_as_well_once_somebody_has_found_the_note() -> None:
    desk = Desk()
    stays, dies = desk.started(2)
    desk.stop(stays, StopCause.PEER)
    lose(desk, dies, "1.3", LastPass(size=64, passed=8))
    desk.train(stays)
    for _ in range(3):
        desk.turn()
    assert (desk.plan.worker_ids, desk.plan.most_micro) == ((stays, "1.3"), 32)


def test_who_dies_again_and_again_beside_a_survivor_is_bounded_in_the_end() -> None:
    desk = Desk()
    stays, dies = desk.started(2)
    rows: list[TimelineRow] = []
    for number in range(3):
        assert (desk.plan.worker_ids, desk.plan.most_micro, rows) == ((stays, dies), None, [])
        desk.stop(stays, StopCause.PEER)
        desk.turn(lost={dies: DIED})
        desk.turn()
        desk.train(stays, round=6 + number)
        for _ in range(3):
            desk.turn()
        newcomer = f"1.{desk.state.next_worker - 1}"
        found = {stays: LastPass(size=64, passed=64), dies: LastPass(size=64, passed=8)}
        desk.say(newcomer, Phase.READY, build=replace(build_info(), last_passes=found))
        desk.turn()
        rows += [row for row in desk.notes() if row.kind is TimelineKind.BATCH]
        desk.train(stays, newcomer, round=6 + number)
        for _ in range(3):
            desk.turn()
        dies = newcomer
    assert desk.plan.most_micro == 32
    assert [row.after for row in rows] == [{"micro_size": 32}]
    assert "(3 died so beside others that had come through 64 on its node)" in rows[0].reason


@pytest.mark.parametrize("why", ["its process 7 was killed", "its node died", "it ended"])
def test_an_end_that_was_ordered_or_a_lost_node_says_nothing_of_passes(why: str) -> None:
    desk = Desk(want=1)
    (first,) = desk.started(1)
    assert lose(desk, first, "1.2", LastPass(size=64, passed=8), why) == []
    assert desk.plan.most_micro is None


def test_a_worker_that_is_killed_for_a_stall_says_nothing_of_passes() -> None:
    desk = Desk(want=1)
    (first,) = desk.started(1)
    desk.say(first, Phase.COMPUTE, phase_age_s=601.0)
    desk.turn()
    assert lose(desk, first, "1.2", LastPass(size=64, passed=8)) == []


def test_a_size_that_the_job_fixes_is_not_changed() -> None:
    desk = Desk(want=1, batch={"global_size": 8, "micro_size": 4})
    (first,) = desk.started(1)
    assert lose(desk, first, "1.2", LastPass(size=4, passed=0)) == []
    assert desk.plan.most_micro is None


def test_there_is_no_row_where_the_plan_has_a_lower_bound_already() -> None:
    desk = Desk(want=1)
    (first,) = desk.started(1)
    desk.state = replace(desk.state, plan=replace(desk.plan, most_micro=16))  # by an earlier controller
    assert lose(desk, first, "1.2", LastPass(size=64, passed=8)) == []
    assert (desk.state.fatal.most, desk.plan.most_micro) == (32, 16)


def test_what_a_member_saw_of_another_that_lived_says_nothing_once_that_dies() -> None:
    desk = Desk(want=3)
    sees, dies, _ = desk.started(3)
    desk.say(sees, Phase.COMPUTE, build=replace(build_info(), last_passes={dies: LastPass(size=64, passed=32)}))
    desk.turn()
    desk.turn(lost={dies: DIED})
    desk.turn()
    assert desk.state.fatal.most is None


def given_up(desk: Desk, worker: str, notes: Sequence[LastPass], last: str = DIED) -> Reason | None:
    """Why the attempt fails whose workers die with these notes one after the other, the last by that."""
    for note in notes:
        newcomer = f"1.{desk.state.next_worker}"
        lose(desk, worker, newcomer, note)
        desk.train(newcomer)
        desk.turn()
        worker = newcomer
    desk.turn(lost={worker: last})
    for _ in range(3):
        desk.turn()
    return desk.state.reason


FIRST = LastPass(size=8, passed=0)


@pytest.mark.parametrize(
    ("notes", "last", "reason"),
    [
        ([FIRST] * (MAX_LAUNCHES + 1), DIED, Reason.OUT_OF_MEMORY),
        ([FIRST] * (MAX_LAUNCHES + 1), "its node died", Reason.STALLED),
        ([FIRST] * MAX_LAUNCHES + [LastPass(size=0, passed=0)], DIED, Reason.STALLED),
    ],
    ids=["all", "all-but-the-last", "all-but-one"],
)
def test_memory_is_what_a_job_lacks_only_where_all_its_last_workers_died_of_that(
    notes: list[LastPass], last: str, reason: Reason
) -> None:
    desk = Desk(want=1)
    (first,) = desk.started(1)
    desk.state = replace(desk.state, failure=replace(FAILURE, reason=Reason.STALLED))
    assert given_up(desk, first, notes, last) == reason


def test_deaths_before_the_job_got_further_are_not_why_it_ends() -> None:
    desk = Desk(want=1)
    (first,) = desk.started(1)
    assert given_up(desk, first, [FIRST, FIRST]) is None
    survivor = f"1.{desk.state.next_worker - 1}"
    desk.say(survivor, Phase.READY)
    desk.turn()
    desk.train(survivor, round=50)
    desk.turn()
    assert (desk.state.fatal.most, desk.state.fatal.series) == (4, frozenset())
    assert killed.failure(desk.state) is None
