"""``communication: auto`` as the controller's turns carry it out: measured, tried, kept or taken back, watched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.uneven_job import CostOf, LinkOf, UnevenJob
from workers.advisors.exchange import Link
from workers.advisors.judging import Rate, Verdict
from workers.control import compressing
from workers.control.compressing import REST_S, REVIEW_S, Compressing
from workers.exchange_options import bucketed
from workers.measures import RankLoad, SchemeCost
from workers.plan import Plan, Switch, TimelineKind
from workers.racks import Topology
from workers.status import Phase, WorkerStatus

BYTES = {"none": 4.0, "bf16": 2.0, "fp16": 2.02, "int8": 1.02, "int4": 0.52}
TABLE = {name: SchemeCost(bytes_a_value=b, seconds_a_million=0.0) for name, b in BYTES.items()}


def even(part: int) -> float:
    return 0.1


def even_work(part: int) -> float:
    return 0.8 * part / 128


def slow(seconds: float) -> LinkOf:
    """A link that takes so long for dense gradients, none of it hidden."""

    def link(scheme: str) -> tuple[float, float]:
        took_s = seconds * BYTES[bucketed(scheme)[0]] / BYTES["none"]
        return took_s, took_s

    return link


def job(link: LinkOf, *costs: CostOf, **spec: object) -> UnevenJob:
    found = UnevenJob(*(costs or (even, even)), **spec)
    found.schemes, found.link = TABLE, link
    return found


def test_a_slow_link_is_seen_another_scheme_tried_in_the_same_group_and_kept_as_it_pays() -> None:
    found = job(slow(1.0))
    first = found.desk.plan
    assert first.exchange.scheme == "none"
    found.run(60)
    [plan] = found.plans[1:]
    assert plan.exchange.scheme == "int4"
    assert plan.exchange.why.startswith("auto: a step of 1.1 s waits 1 s for gradients; int4 instead of none")
    assert (plan.switch, plan.generation, plan.worker_ids) == (Switch.AGREED, first.generation, first.worker_ids)
    [row] = found.told(TimelineKind.EXCHANGE)
    assert (row.actor, row.before, row.after) == (
        "communication",
        {"scheme": "none"},
        {"scheme": "int4", "expected_gain": round(1.1 / (0.1 + 0.02 + 0.98 * 0.13), 3)},
    )
    [judged] = found.told(TimelineKind.PROBATION)
    assert judged.after["is_kept"] is True
    assert judged.after["gain"] == pytest.approx(1.1 / 0.23, rel=1e-3)
    assert found.desk.state.compressing.why == f"With int4{judged.reason.removeprefix('with int4')}."


def test_what_does_not_pay_is_taken_back_once_and_left_alone_until_the_link_is_slower() -> None:
    factor = [1.0]

    def no_matter_the_bytes(scheme: str) -> tuple[float, float]:
        took_s = factor[0] * (0.1 if scheme == "none" else 0.12)
        return took_s, took_s

    found = job(no_matter_the_bytes).run(80)
    assert [plan.exchange.scheme for plan in found.plans] == ["none", "int4", "none"]
    [judged] = found.told(TimelineKind.PROBATION)
    assert (judged.after["is_kept"], judged.reason[-12:]) == (False, "; taken back")
    found.run(200)
    assert len(found.plans) == 3
    factor[0] = 4.0
    found.run(60)
    assert found.plans[3].exchange.scheme == "int4"


def looked_at_again(found: UnevenJob, **known: object) -> UnevenJob:
    state = found.desk.state
    found.desk.state = replace(state, compressing=replace(state.compressing, reviewed_s=-1e9, **known))
    return found.run(120)


def test_schemes_that_lose_less_one_after_the_other_cost_no_more_than_one_of_them() -> None:
    """Each is slower by less than one alone may be; the second is not tried."""
    found = job(slow(1.0)).run(80)
    slower = {"none": 0.1, "bf16": 0.0025, "int4": 0.0}  # for a reason that nobody foresees
    found.link, found.wire_s = lambda scheme: (0.8, slower[scheme]), 0.03
    for _ in range(3):
        looked_at_again(found)
    names = ["none", "int4", "none", "int4", "bf16", "int4", "bf16"]  # what it was before is measured anew
    assert [plan.exchange.name for plan in found.plans] == names
    slower["none"] = 0.0045
    looked_at_again(found, refused={})
    assert [plan.exchange.name for plan in found.plans] == names  # 0.99 is foreseen, and 0.994 would be kept
    state = found.desk.state
    found.desk.state = replace(state, compressing=replace(state.compressing, spent=1.0))
    assert looked_at_again(found).plans[-1].exchange.name == "none"


def test_a_link_that_becomes_faster_in_mid_trial_is_no_merit_of_the_scheme() -> None:
    took_s = [0.5]
    found = job(lambda scheme: (took_s[0], took_s[0]))  # whatever is sent
    while len(found.plans) < 2:
        found.run(1)
    assert found.plans[-1].exchange.name == "int4"
    found.run(3)
    took_s[0] = 0.01
    found.run(1500)
    assert not any(row.after["is_kept"] for row in found.told(TimelineKind.PROBATION))
    assert found.plans[-1].exchange.name == "none"


def test_codecs_that_take_less_than_was_measured_make_no_other_link() -> None:
    found = job(slow(1.0))
    costs = {name: 0.0 if name == "none" else 0.1 for name in TABLE}
    found.schemes = {name: replace(TABLE[name], seconds_a_million=cost) for name, cost in costs.items()}
    found.run(100)
    assert [plan.exchange.name for plan in found.plans] == ["none", "int4"]


def test_a_link_that_changes_moves_it_without_delay() -> None:
    found = job(slow(0.001)).run(40)
    assert [plan.exchange.scheme for plan in found.plans] == ["none"]
    assert "travel as they are" in found.desk.state.compressing.why
    found.link = slow(1.0)
    found.run(40)
    assert found.desk.now < REVIEW_S
    assert found.plans[-1].exchange.scheme == "int4"


@pytest.mark.parametrize(("latency_s", "scheme"), [(0.05, "none"), (1e-4, "int4")])
def test_what_far_links_take_whatever_is_sent_speaks_for_no_scheme(latency_s: float, scheme: str) -> None:
    found = job(slow(0.2), even, even, even)
    found.topology = Topology(racks=(0, 0, 0), inside_bytes_per_s=1e9, inside_latency_s=latency_s)
    assert found.run(80).plans[-1].exchange.name == scheme


def test_what_did_not_pay_is_tried_again_on_a_faster_link_also_where_all_is_over_in_a_moment() -> None:
    found = job(slow(0.14)).run(80)  # so that by int4 it takes less than LATENCY_S, whatever the bytes
    for _ in range(3):
        looked_at_again(found)
    names = [plan.exchange.name for plan in found.plans]
    assert names == ["none", "int4"] * 3  # either trial has turned back
    assert found.desk.state.compressing.refused.keys() == {"none"}
    found.link = slow(0.002)
    looked_at_again(found)  # what is known of the link is older still
    assert looked_at_again(found).plans[-1].exchange.name == "none"


@pytest.mark.parametrize(
    ("spec", "scheme"),
    [
        ({"communication": "none"}, "none"),
        ({"communication": {"scheme": "auto", "loss_class": "lossless"}}, "none"),
        ({"communication": "bf16"}, "bf16"),
    ],
)
def test_what_the_user_asked_for_stays(spec: dict[str, object], scheme: str) -> None:
    found = job(slow(1.0), **spec).run(60)
    assert {plan.exchange.scheme for plan in found.plans} == {scheme}


def test_a_batch_by_goodput_is_not_made_too_rough_to_be_chosen_by() -> None:
    batch = {"global_size": 128, "adapt": "goodput", "max_global_size": 128}
    found = job(slow(1.0), batch=batch).run(80)
    assert found.plans[-1].exchange.scheme == "int8"


def on_trial(found: UnevenJob) -> UnevenJob:
    """Train on until a scheme is being measured."""
    while found.desk.state.compressing.trial is None:
        found.run(1)
    return found.run(4)


def no_gain(scheme: str) -> tuple[float, float]:
    took_s = 0.1 if scheme == "none" else 0.12
    return took_s, took_s


def test_a_checkpoint_in_mid_trial_does_not_spare_a_scheme_its_verdict() -> None:
    found = on_trial(job(no_gain))
    found.desk.direction = replace(found.desk.direction, saves=1)
    found.run(60)
    [judged] = found.told(TimelineKind.PROBATION)
    assert judged.after["is_kept"] is False
    assert found.desk.plan.exchange.scheme == "none"


def test_a_worker_that_changes_its_speed_in_mid_trial_decides_nothing_about_the_scheme() -> None:
    found = on_trial(job(slow(1.0)))
    found.costs["1.1"] = found.costs["1.2"] = lambda part: 1.2
    found.run(40)
    assert found.desk.state.compressing.refused == {}
    assert [plan.exchange.scheme for plan in found.plans][:3] == ["none", "int4", "none"]
    assert found.run(60).desk.plan.exchange.scheme == "int4"


def test_codecs_that_take_of_a_workers_own_time_do_not_spoil_its_trial() -> None:
    """Buckets that leave during backward are encoded there: that is slower by itself, and the step is faster."""
    found = on_trial(job(slow(1.0), lambda part: 0.02, lambda part: 0.02))
    found.costs = dict.fromkeys(found.costs, lambda part: 0.05)
    found.run(40)
    assert [plan.exchange.scheme for plan in found.plans] == ["none", "int4"]
    [judged] = found.told(TimelineKind.PROBATION)
    assert judged.after["is_kept"] is True


def test_what_codecs_are_known_to_take_is_judged_with_the_scheme() -> None:
    """Only what a member's own time has grown by besides may have hidden what the scheme brought."""
    found = on_trial(job(slow(1.0)))
    known, plan = found.desk.state.compressing, found.desk.plan
    assert known.trial is not None
    rate = Rate(samples_per_s=plan.global_batch / 1.0, error=0.0, num_steps=20)
    trial = replace(known.trial, rate=rate, own_s=0.10, added_s=0.05)
    verdict = Verdict(gain=1.0, is_kept=False)
    assert not compressing.is_spoilt(trial, plan, rate, verdict, own_s=0.15)
    assert compressing.is_spoilt(trial, plan, rate, verdict, own_s=0.20)


def heard(worker_id: str, wires_s: list[float], known: Compressing, plan: Plan) -> Compressing:
    """Of a worker whose exchanges all take a second from the first bucket on, whatever the link does of it."""
    loads = tuple(
        RankLoad(
            n=n, plan_id=plan.id, samples=1, num_rounds=3, seconds=1.0, exchange_s=1.0, exposed_s=0.1, wire_s=took_s
        )
        for n, took_s in enumerate(wires_s, 1)
    )
    status = WorkerStatus(worker_id=worker_id, seq=1, term=1, phase=Phase.COMPUTE, phase_age_s=0.0, loads=loads)
    return compressing.observe(known, [status], plan.worker_ids)


def test_a_link_is_known_by_its_newest_runs_on_the_member_that_waited_for_nobody() -> None:
    plan = job(slow(0.0)).desk.plan
    known = heard("1.1", [0.1] * 5 + [0.8] * 3, Compressing(), plan)
    assert compressing.link(known, plan) is None
    known = heard("1.2", [0.3] * 5 + [0.9] * 3, known, plan)
    assert compressing.link(known, plan) == Link(exchange_s=1.0, exposed_s=0.1, wire_s=0.8)


def test_a_link_behind_a_long_backward_pass_is_looked_at_again_when_its_own_time_changes() -> None:
    plan = job(slow(0.0)).desk.plan
    before = Link(exchange_s=1.0, exposed_s=0.1, wire_s=0.8)
    known = compressing.reviewed(Compressing(), plan, before, 0.0)
    assert not compressing.is_due(known, plan, before, REST_S)
    assert compressing.is_due(known, plan, replace(before, wire_s=0.1), REST_S)


def test_a_scheme_that_spoils_its_own_trials_is_tried_less_and_less_often() -> None:
    """Encoding takes of backward what nobody has measured: nearly half as much again as the worker's own time."""
    found = job(lambda scheme: (0.04 * BYTES[scheme] / 4.0,) * 2)
    plans = found.plans
    found.costs = dict.fromkeys(found.costs, lambda part: 0.1 if plans[-1].exchange.scheme == "none" else 0.14)
    found.run(2000)
    assert found.desk.now > 250.0
    assert 3 <= len(plans) <= 12


def test_another_size_ends_a_trial_and_may_be_weighed_by_its_speed() -> None:
    found = on_trial(job(slow(1.0)))
    desk = found.desk
    desk.direction = replace(desk.direction, num_workers=1)
    for _ in range(4):
        desk.turn(after_s=1.0)
    desk.train("1.1", round=found.round)
    desk.turn()
    known = desk.state.compressing
    assert (desk.plan.num_members, known.trial, known.suspected) == (1, None, frozenset())
    assert desk.plan.exchange.scheme == "none"


def test_growth_is_judged_by_the_scheme_that_the_larger_group_needs() -> None:
    found = job(slow(1.0), even_work).run(20)
    desk = found.desk
    desk.direction = replace(desk.direction, num_offered=2)
    found.link = slow(0.0)
    while desk.state.sizing.ask is None:
        found.run(1)
    desk.direction = replace(desk.direction, num_workers=2)
    desk.turn()
    desk.say("1.2", Phase.READY, build=found.built("1.2"))
    desk.turn()
    found.link = slow(1.0)
    found.join("1.2", even_work)
    found.run(80)
    [tried, sized] = found.told(TimelineKind.PROBATION)
    assert (tried.actor, tried.after["is_kept"]) == ("communication", True)
    assert (sized.actor, sized.after["is_kept"]) == ("scaling", True)
