"""``communication: auto`` on links that change while a scheme is tried: what is kept is right on the link after."""

from __future__ import annotations

import pytest

from tests.control.test_compress import job, looked_at_again, on_trial
from tests.control.uneven_job import UnevenJob
from workers.advisors.judging import MAX_JUDGE_STEPS
from workers.plan import TimelineKind
from workers.status import StopCause

CHANGES = (1.0, 0.9, 0.7, 0.45, 1 / 0.9, 1 / 0.7, 1 / 0.45)
"""What an exchange takes after the change, of what it took before."""

AT = (0, 3, 11, 14)
"""Steps after the trial began at which the link changes: at once, while it is tried, while what was before is again."""


class Link:
    """It takes half a second for what goes as it is, and ``cost`` of that for all other schemes."""

    def __init__(self, cost: float) -> None:
        self.factor, self.cost = 1.0, cost

    def __call__(self, scheme: str) -> tuple[float, float]:
        took_s = 0.5 * self.factor * (1.0 if scheme == "none" else self.cost)
        return took_s, took_s


def changed(link: Link, factor: float, at: int, noise: float = 0.0) -> UnevenJob:
    """A job whose link changes so long after a trial began, looked at again and again afterwards."""
    found = job(link)
    found.noise = noise
    while len(found.plans) < 2:
        found.run(1)
    found.run(at)
    link.factor = factor
    found.run(60)
    for _ in range(4):
        looked_at_again(found)
    return found


def judged(found: UnevenJob) -> list[tuple[object, bool]]:
    return [(row.after["scheme"], bool(row.after["is_kept"])) for row in found.told(TimelineKind.PROBATION)]


@pytest.mark.parametrize("factor", CHANGES)
@pytest.mark.parametrize("at", AT)
def test_a_scheme_that_is_slower_is_never_kept_for_a_link_that_became_faster(factor: float, at: int) -> None:
    found = changed(Link(cost=1.06), factor, at)
    assert found.desk.plan.exchange.name == "none"
    assert not any(is_kept for _, is_kept in judged(found))


@pytest.mark.parametrize("factor", CHANGES)
@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("cost", [0.85, 0.13])
def test_a_scheme_that_pays_is_not_lost_to_a_link_that_became_slower(factor: float, at: int, cost: float) -> None:
    found = changed(Link(cost), factor, at)
    assert found.desk.plan.exchange.name in ("int4", "int8")
    assert judged(found)[-1][1] is True


@pytest.mark.parametrize("cost", [1.06, 0.85])
def test_noise_of_steps_does_not_keep_a_trial_from_its_verdict(cost: float) -> None:
    found = changed(Link(cost), 1.0, 0, noise=0.05)
    assert (found.desk.plan.exchange.name == "none") is (cost > 1.0)
    assert len(judged(found)) <= 4


def turned_back(cost: float) -> UnevenJob:
    """A job that has tried int4 and measures what was before once more."""
    found = on_trial(job(Link(cost)))
    while (trial := found.desk.state.compressing.trial) is not None and trial.seen is None:
        found.run(1)
    assert found.desk.plan.exchange.name == "none"
    return found


def test_the_turn_back_and_what_it_showed_are_told() -> None:
    found = turned_back(0.85).run(20)
    assert [plan.exchange.name for plan in found.plans] == ["none", "int4", "none", "int4"]
    [_, back, kept], [verdict] = found.told(TimelineKind.EXCHANGE), found.told(TimelineKind.PROBATION)
    assert back.reason == (
        "with int4 steps are 1.14 times as fast as with none (expected: 3.29); none again for some, to tell that from "
        "a changed link"
    )
    assert (back.before, back.after) == ({"scheme": "int4"}, {"scheme": "none", "is_again": True})
    assert verdict.reason == "with int4 steps are 1.14 times as fast as with none before and after (expected: 3.29)"
    assert kept.reason == f"int4 again: {verdict.reason}"
    assert kept.after == {"scheme": "int4", "is_again": True}
    assert found.desk.state.compressing.why == f"W{verdict.reason[1:]}."


def test_what_is_left_open_is_told_with_how_the_link_changed() -> None:
    link = Link(1.06)
    found = on_trial(job(link))
    link.factor = 0.7
    found.run(80)
    [verdict] = found.told(TimelineKind.PROBATION)
    assert verdict.reason == "int4 was not judged: meanwhile steps with none became 1.33 times as fast"
    assert (verdict.after["is_kept"], verdict.after["is_judged"], verdict.after["gain"]) == (False, False, 1.274)
    assert found.desk.state.compressing.refused == {}


def test_a_group_that_breaks_after_the_turn_back_is_no_reason_to_suspect_what_was_tried() -> None:
    found = turned_back(0.85)
    desk = found.desk
    desk.stop("1.2", StopCause.PEER)
    desk.turn(lost={"1.1": "its node is gone"})
    desk.turn()
    assert (desk.plan.exchange.name, desk.state.compressing.suspected) == ("none", frozenset())
    desk.train("1.2", round=found.round)
    desk.turn()
    assert (desk.state.compressing.trial, desk.state.compressing.suspected) == (None, frozenset())


def test_a_group_that_breaks_before_all_know_the_verdict_begins_with_what_that_kept() -> None:
    found = turned_back(0.85)
    while not found.told(TimelineKind.PROBATION):
        found.run(1)
    desk = found.desk
    in_force = [status.plan.exchange.name for status in desk.statuses.values() if status.plan is not None]
    assert (in_force, desk.plan.exchange.name) == (["none", "none"], "int4")
    desk.stop("1.2", StopCause.PEER)
    desk.turn(lost={"1.1": "its node is gone"})
    desk.turn()
    assert (desk.plan.num_members, desk.plan.exchange.name) == (1, "int4")
    assert "not judged" not in desk.plan.cause.reason
    desk.train("1.2", round=found.round)
    desk.turn()
    assert (desk.plan.exchange.name, desk.state.compressing.suspected) == ("int4", frozenset())


@pytest.mark.parametrize("cost", [1.06, 0.85])
@pytest.mark.parametrize("num_steady", [11, 29])
def test_on_a_link_that_never_rests_ever_fewer_steps_are_spent_on_trials(cost: float, num_steady: int) -> None:
    link, spent = Link(cost), list[bool]()
    found = job(link)
    for number in range(1200):
        link.factor = (1.0, 0.6, 1.4, 0.8)[number // num_steady % 4]
        found.run(1)
        spent.append(found.desk.state.compressing.trial is not None)
    assert sum(spent[:400]) <= 4 * 2 * MAX_JUDGE_STEPS
    assert sum(spent[800:]) <= 2 * MAX_JUDGE_STEPS
