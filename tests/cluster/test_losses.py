"""Who is lost, and when: whatever the moment, no step is lost while one member lives. Told by gates and the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.gated import Gated, actor_pids, sigkill
from tests.cluster.serving import Serving
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

Submit = Callable[..., Gated]

FIRST, LAST = 1, 24


@pytest.fixture
def submit(served: Serving, tmp_path: Path) -> Iterator[Submit]:
    made: list[Gated] = []

    def make(**changes: Any) -> Gated:
        made.append(Gated(served, tmp_path, steps=LAST, **changes))
        return made[-1]

    yield make
    for job in made:
        job.end()


def lost_rows(job: Gated) -> list[dict[str, Any]]:
    return [row for row in job.timeline() if row["kind"] == "worker_lost"]


def assert_whole(job: Gated) -> None:
    """It ends in its first attempt with every sample counted; nothing was restored, and no loss cost a step."""
    done = job.wait_done()
    job.assert_nothing_broken()
    assert done["progress"]["samples"] == LAST * 12
    assert done["attempt"] == 1
    assert "restore" not in job.kinds()
    rows = lost_rows(job)
    assert rows, "the timeline tells of no loss"
    assert all(row["steps_lost"] == 0 and row["cost_s"] is not None for row in rows), rows


def test_two_of_three_lost_in_the_first_step_and_rank_0_in_the_last_cost_no_step(submit: Submit) -> None:
    job = submit(config={"gates": [FIRST, LAST]}, workers={"min": 1, "max": 3})
    first, survivor, third = job.ranks_at(FIRST, 3)
    sigkill(first, third)
    job.scale(2)
    job.wait_newcomer([first, survivor, third])
    job.open(FIRST)
    rank_0, newcomer = job.ranks_at(LAST, 2)
    assert rank_0 == survivor
    sigkill(survivor)
    job.open(LAST)
    assert_whole(job)
    assert survivor in {note.pid for note in job.notes() if note.step == FIRST}
    assert newcomer in {note.pid for note in job.notes() if note.step == LAST}


def test_fewer_than_the_minimum_keep_what_was_done_until_another_comes(submit: Submit) -> None:
    job = submit(config={"gates": [8]}, workers=2)
    victim, survivor = job.ranks_at(8, 2)
    sigkill(victim)
    job.open(8)
    assert_whole(job)
    assert survivor in {note.pid for note in job.notes() if note.step == 8}
    assert {note.generation for note in job.notes()} == {1, 2}, "it never went on alone"


def test_the_controller_and_rank_0_lost_at_once_cost_no_step(submit: Submit) -> None:
    job = submit(config={"gates": [8]})
    victim, _ = job.ranks_at(8, 2)
    sigkill(*actor_pids(job.served, "JobController"), victim)
    job.open(8)
    wait_for("the adoption", lambda: "controller_lost" in job.kinds(), 60)
    assert_whole(job)


def test_a_newcomer_lost_while_it_receives_the_state_costs_no_step(submit: Submit) -> None:
    """Who has the state waits before sending it, so that the newcomer waits for it, in their group."""
    seldom = {"every_steps": 1000}
    job = submit(config={"gates": [4, 8], "hands_over_after": 8}, checkpoint=seldom)
    holder, victim = job.ranks_at(4, 2)
    sigkill(victim)
    job.open(4)
    job.wait_at(8, 1)
    newcomer = job.wait_newcomer([holder, victim])
    job.open(8)
    assert job.wait_at("state", 1) == [holder]
    sigkill(newcomer)
    job.open("state")
    assert_whole(job)
    assert len(lost_rows(job)) == 2
    assert newcomer not in {note.pid for note in job.notes()}


def test_who_gives_the_state_to_a_newcomer_and_is_lost_meanwhile_is_replaced_by_another_who_has_it(
    submit: Submit,
) -> None:
    """Told by the gate at which it stands before sending; the other old member stands behind it, in their group."""
    job = submit(
        config={"gates": [4, 8], "hands_over_after": 8}, workers={"min": 1, "max": 3}, checkpoint={"every_steps": 1000}
    )
    *old, victim = job.ranks_at(4, 3)
    sigkill(victim)
    job.open(4)
    assert set(job.wait_at(8, 2)) == set(old)
    newcomer = job.wait_newcomer([*old, victim])
    job.open(8)
    (giver,) = job.wait_at("state", 1)
    (other,) = set(old) - {giver}
    sigkill(giver)
    job.open("state")
    assert_whole(job)
    assert len(lost_rows(job)) == 2
    last = {note.pid for note in job.notes() if note.step == LAST}
    assert {other, newcomer} <= last
    assert giver not in {note.pid for note in job.notes() if note.step > 8}


def test_an_old_member_lost_while_a_resize_is_offered_costs_no_step(submit: Submit) -> None:
    """All stand in a step whose end they would agree at, so that the plan is offered and nobody has agreed to it."""
    job = submit(config={"gates": [6, 12]}, workers={"min": 1, "max": 3})
    victim, *others = job.ranks_at(6, 3)
    job.scale(2)
    wait_for("the plan", lambda: "resize" in job.kinds())
    sigkill(victim)
    wait_for("its end", lambda: not psutil.pid_exists(victim))
    job.open(6)
    after = job.wait_at(12, 2)
    job.open(12)
    assert_whole(job)
    assert victim not in {note.pid for note in job.notes() if note.step >= 6}
    assert set(after) & set(others), "nobody of those who held the state went on"
    (offered,) = [row for row in job.timeline() if row["kind"] == "resize" and row["actor"] == "user"]
    assert (offered["before"]["workers"], offered["after"]["workers"], offered["steps_lost"]) == (3, 2, 0)


def test_who_is_lost_between_the_copy_of_a_checkpoint_and_its_publication_leaves_nothing_of_it(submit: Submit) -> None:
    job = submit(config={"gates": [13], "publishes": [10]})
    saver, _ = job.ranks_at(13, 2)
    assert job.wait_at("publish-10", 1) == [saver]
    sigkill(saver)
    job.open("publish-10")
    job.open(13)
    assert_whole(job)
    job.assert_tidy()


def test_who_is_lost_before_the_last_checkpoint_is_published_leaves_it_to_another(submit: Submit) -> None:
    job = submit(config={"publishes": [LAST]}, workers=2)
    (saver,) = job.wait_at(f"publish-{LAST}", 1)
    sigkill(saver)
    job.open(f"publish-{LAST}")
    assert job.wait_done()["attempt"] == 1
    job.assert_nothing_broken()
    job.assert_tidy()
    assert "restore" not in job.kinds()
    with job.served.client() as client:
        (*_, last) = client.get(f"/jobs/{job.id}/checkpoints")["checkpoints"]
    assert (last["step"], last["final"]) == (LAST, True)
