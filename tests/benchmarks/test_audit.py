"""The arithmetic behind the recovery figures, on steps made up by hand."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.audit import Audit, Step, first_after_change, longest_gap_s, members, steps_lost

BEFORE = {1: 16, 2: 16}


def step(time_s: float, pid: int, number: int, size: int = 16) -> Step:
    return Step(time_s=time_s, pid=pid, number=number, size=size)


def test_a_step_of_the_old_group_that_was_under_way_is_no_recovery() -> None:
    under_way, first = step(1.01, 1, 10), step(1.2, 1, 11, size=32)
    assert first_after_change([step(0.9, 2, 9), under_way, first], at_s=1.0, before=BEFORE) == first


def test_a_step_of_another_process_is_a_recovery_whatever_its_part() -> None:
    first = step(9.0, 3, 8)
    assert first_after_change([step(0.9, 1, 10), first], at_s=1.0, before=BEFORE) == first
    assert first_after_change([step(0.9, 1, 10)], at_s=1.0, before=BEFORE) is None


def test_lost_steps_are_those_that_the_state_behind_the_first_one_did_not_hold() -> None:
    earlier = [step(0.8, 1, 44), step(0.9, 1, 45), step(0.9, 2, 45)]
    goes_on, goes_back = step(2.0, 1, 46, size=32), step(2.0, 3, 41)
    assert steps_lost([*earlier, goes_on], goes_on) == 0
    assert steps_lost([*earlier, goes_back], goes_back) == 5


def test_the_longest_gap_counts_steps_of_anyone() -> None:
    first = step(3.0, 1, 48, size=32)
    steps = [step(0.9, 1, 45), step(1.0, 2, 45), step(1.5, 1, 46), step(1.6, 1, 47), first]
    assert longest_gap_s(steps, since_s=1.2, until=first) == 3.0 - 1.6


def test_members_are_those_who_stepped_lately_with_their_latest_part() -> None:
    steps = [step(0.1, 3, 1), step(1.5, 1, 2), step(1.6, 2, 2), step(1.8, 1, 3, size=32)]
    assert members(steps, now_s=2.0, recent_s=1.0) == {1: 32, 2: 16}


def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "7.steps"
    file.write_text("1.0 7 1 16\n2.0 7 ")
    audit = Audit(tmp_path)
    assert audit.steps() == [step(1.0, 7, 1)]
    with file.open("a") as stream:
        stream.write("2 16\n")
    assert audit.steps() == [step(1.0, 7, 1), step(2.0, 7, 2)]
