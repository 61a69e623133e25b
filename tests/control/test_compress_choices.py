"""What ``communication: auto`` may choose besides formats: buckets, levels over racks, schemes that lose more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.test_compress import BYTES, TABLE, even, job, no_gain, on_trial, slow
from tests.control.uneven_job import CostOf, UnevenJob
from workers.advisors import levels
from workers.control import compressing
from workers.control.compressing import Compressing
from workers.exchange_options import bucketed
from workers.measures import SchemeCost
from workers.plan import PlanId, TimelineKind
from workers.racks import Topology

RACKS = Topology(racks=(0, 0, 1, 1), inside_bytes_per_s=125e6, across_bytes_per_s=3e6)


def between_racks(scheme: str) -> tuple[float, float]:
    """A second for dense gradients by a ring; all else as the model has it."""
    costs = levels.costs_of(("none", scheme), TABLE, RACKS)
    took_s = costs[scheme].bytes_a_value / costs["none"].bytes_a_value
    return took_s, took_s


def over_racks(**spec: object) -> UnevenJob:
    found = job(between_racks, even, even, even, even, **spec)
    found.topology = RACKS
    return found


MIXED = "int4 after 1 dense"
LOSSY = {"two_four": 0.64, "powersgd": 0.1, "topk": 0.045}
AT_A_LOSS = TABLE | {name: SchemeCost(bytes_a_value=b, seconds_a_million=0.0) for name, b in LOSSY.items()}


def lossy_job(*costs: CostOf, **spec: object) -> UnevenJob:
    def link(name: str) -> tuple[float, float]:
        took_s = (BYTES | LOSSY)[name] / BYTES["none"]
        return took_s, took_s

    found = job(link, *costs, **{"communication": {"scheme": "auto", "loss_class": "lossy"}, **spec})
    found.schemes = AT_A_LOSS
    return found


def test_a_job_that_allows_it_gets_what_loses_most_over_a_link_that_is_slow_enough() -> None:
    found = lossy_job().run(80)
    plan = found.plans[-1]
    assert (plan.exchange.name, plan.exchange.options) == ("topk", (("fraction", 0.01), ("quantise", "int8")))
    [row] = found.told(TimelineKind.EXCHANGE)
    assert row.after["expected_gain"] == round(1.1 / (0.1 + 0.02 + 0.98 * 0.045 / 4), 3)


def test_what_all_ranks_get_from_each_costs_more_the_more_they_are() -> None:
    found = lossy_job(even, even, even, even, even, even).run(80)
    assert found.plans[1].exchange.name == "powersgd"
    [row] = found.told(TimelineKind.EXCHANGE)
    assert row.after["expected_gain"] == round(1.1 / (0.1 + 0.02 + 0.98 * 0.1 / 4), 3)


def test_lossy_schemes_are_for_jobs_that_allow_them_without_racks_nor_a_batch_by_goodput() -> None:
    near = lossy_job(communication="auto").run(80)
    assert near.plans[-1].exchange.name == "int4"
    racks = lossy_job(even, even, even, even)
    racks.topology, racks.link = RACKS, between_racks
    assert racks.run(80).plans[-1].exchange.name == "bf16 across int4"
    batch = {"global_size": 128, "adapt": "goodput", "max_global_size": 128}
    assert lossy_job(batch=batch).run(80).plans[-1].exchange.name == "int8"


class Late:
    """A link that takes 0.2 s for all bytes, of which backward hides those that leave before its end."""

    def __init__(self) -> None:
        self.late = {"none": 0.8, "none in buckets of 4 MiB": 0.2}

    def __call__(self, scheme: str) -> tuple[float, float]:
        waited_s = 0.2 * BYTES[bucketed(scheme)[0]] / BYTES["none"] * self.late.get(scheme, 0.8)
        return 0.2, waited_s


def late_job() -> UnevenJob:
    link = Late()
    found = job(link, communication={"scheme": "auto", "loss_class": "lossless"})
    found.buckets, found.backward_s = {25: (0.2, 0.8), 4: (0.2,) * 5}, 0.5
    return found


def test_gradients_leave_in_smaller_buckets_on_trial_as_they_are() -> None:
    found = late_job().run(60)
    tried, turned, plan = found.plans[1:]
    assert (tried.exchange.name, turned.exchange.name) == ("none in buckets of 4 MiB", "none")
    assert (plan.exchange.scheme, plan.exchange.options) == ("none", (("bucket_mib", 4),))
    row, *_ = found.told(TimelineKind.EXCHANGE)
    assert (row.before, row.after["scheme"]) == ({"scheme": "none"}, "none in buckets of 4 MiB")
    [judged] = found.told(TimelineKind.PROBATION)
    assert judged.after["is_kept"] is True
    assert judged.after["gain"] == pytest.approx(0.26 / 0.14, rel=1e-3)


@pytest.mark.parametrize(
    ("num_workers", "link_s", "name"),
    [
        (2, 1.0, "int8 in buckets of 1 MiB"),
        (4, 1.0, "int8 in buckets of 1 MiB"),
        (2, 0.5, "int8 in buckets of 1 MiB"),
        (4, 0.5, "none in buckets of 1 MiB"),
    ],
)
def test_what_more_than_two_send_in_two_hops_is_cut_smaller_too_where_that_gains_more_than_a_hop_takes_each(
    num_workers: int, link_s: float, name: str
) -> None:
    found = job(slow(link_s), *[even] * num_workers)
    found.buckets, found.backward_s = {25: (0.2, 0.8), 1: (0.05,) * 20}, 0.5
    assert found.run(60).plans[1].exchange.name == name


@pytest.mark.parametrize(("mixed_s", "names"), [(0.05, [MIXED, "int4", MIXED]), (0.12, [MIXED, "int4"])])
def test_buckets_that_backward_hides_go_as_they_are_while_steps_are_no_slower(mixed_s: float, names: list[str]) -> None:
    """Of five buckets one may: were there more, the link would still carry them when the last ones are there."""
    took = {"none": (1.6, 0.6), "int4": (0.3, 0.05), MIXED: (0.5, mixed_s)}
    found = job(took.__getitem__, *[lambda part: 1.0] * 2)
    found.buckets, found.backward_s = {25: (0.2,) * 5}, 1.1
    found.run(450)
    assert [plan.exchange.name for plan in found.plans] == ["none", "int4", "none", "int4", *names]
    assert (found.plans[4].exchange.scheme, found.plans[4].exchange.options) == ("int4", (("dense_first", 1),))
    assert "int4 after 1 dense, which loses less than int4, is expected" in found.plans[4].exchange.why
    judged = found.told(TimelineKind.PROBATION)[1]
    assert judged.after["is_kept"] is (names[-1] == MIXED)


def test_smaller_buckets_that_bring_nothing_are_taken_back() -> None:
    found = late_job()
    assert isinstance(found.link, Late)
    found.link.late["none in buckets of 4 MiB"] = 0.9
    found.run(200)
    assert [plan.exchange.name for plan in found.plans] == ["none", "none in buckets of 4 MiB", "none"]


def test_smaller_buckets_that_take_from_computing_what_they_take_off_waiting_are_taken_back() -> None:
    """A worker that is slower as it sends while backward runs has not become slower by itself."""

    def cost(part: int) -> float:
        return 0.1 + (0.12 if "buckets" in found.plans[-1].exchange.name else 0.0)

    found = late_job()
    found.costs = dict.fromkeys(found.ids, cost)
    found.run(400)
    assert [plan.exchange.name for plan in found.plans] == ["none", "none in buckets of 4 MiB", "none"]
    [judged] = found.told(TimelineKind.PROBATION)
    assert judged.after["is_kept"] is False


def test_larger_buckets_again_are_not_suspected_where_a_group_breaks() -> None:
    desk = on_trial(job(slow(1.0))).desk
    assert desk.state.compressing.trial is not None
    trial = replace(desk.state.compressing.trial, before="none in buckets of 4 MiB", after="none", place=(0, 0))
    trial, plan = replace(trial, is_broken=True, is_blamed=True), replace(desk.plan, id=PlanId(2, 1))
    known = Compressing(trial=trial, suspected=frozenset({"none"}))
    assert compressing.followed(known, plan).barred == frozenset()
    other = replace(known, trial=replace(trial, after="int4"), suspected=frozenset({"int4"}))
    assert compressing.followed(other, plan).barred == {"int4"}


def test_where_workers_would_cut_differently_buckets_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    found = late_job()
    cuts, built = {found.ids[0]: found.buckets, found.ids[1]: {25: (1.0,)}}, found.built
    monkeypatch.setattr(found, "built", lambda worker_id: replace(built(worker_id), buckets=cuts[worker_id]))
    assert len(found.run(60).plans) == 1


def test_buckets_with_which_a_group_broke_twice_are_left_for_good() -> None:
    found = late_job()
    found.desk.state = replace(
        found.desk.state, compressing=Compressing(barred=frozenset({"none in buckets of 4 MiB"}))
    )
    assert len(found.run(60).plans) == 1


@pytest.mark.parametrize(("gradient_bytes", "share"), [(4.0, 0.13), (2.0, 0.26)])
def test_what_other_formats_save_is_counted_from_what_gradients_have_as_they_are(
    gradient_bytes: float, share: float
) -> None:
    found = job(lambda name: (share ** (name == "int4"),) * 2)
    found.gradient_bytes = gradient_bytes
    found.run(60)
    assert [plan.exchange.name for plan in found.plans] == ["none", "int4"]
    [row] = found.told(TimelineKind.EXCHANGE)
    assert row.after["expected_gain"] == round(1.1 / (0.1 + 0.02 + 0.98 * share), 3)


def test_parameters_that_are_bf16_are_not_tried_in_bf16() -> None:
    def link(name: str) -> tuple[float, float]:
        return 1.0, 1.0

    found = job(link, communication={"scheme": "auto"})
    found.schemes = {name: cost for name, cost in TABLE.items() if name in ("none", "bf16", "fp16")}
    found.gradient_bytes = 2.0
    assert [plan.exchange.name for plan in found.run(60).plans] == ["none"]


def test_over_racks_the_slow_links_carry_one_sum_a_rack() -> None:
    found = over_racks().run(80)
    plan = found.desk.plan
    assert (plan.exchange.scheme, plan.exchange.options) == ("bf16", (("across", "int4"),))
    gain = 1.1 / (0.1 + 0.02 + 0.98 * (0.52 + 2.0 * 3 / 125) / 6.0)
    told = "(racks of ranks 0, 1 | 2, 3, 1000 Mbit a second inside, 24 between racks)"
    assert plan.exchange.why.endswith(
        f"bf16 across int4 instead of none is expected to make it {gain:.2f} times as fast {told}"
    )
    [row], [judged] = found.told(TimelineKind.EXCHANGE), found.told(TimelineKind.PROBATION)
    assert row.after == {"scheme": "bf16 across int4", "expected_gain": round(gain, 3)}
    assert judged.after["is_kept"] is True


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"communication": {"scheme": "auto", "loss_class": "lossless"}}, "none across none"),
        ({"batch": {"global_size": 128, "adapt": "goodput", "max_global_size": 128}}, "bf16 across int8"),
    ],
)
def test_over_racks_no_more_is_lost_than_the_job_allows(spec: dict[str, object], name: str) -> None:
    assert over_racks(**spec).run(120).desk.plan.exchange.name == name


def test_what_goes_over_racks_is_not_asked_for_where_there_is_one_level() -> None:
    found = job(slow(1.0), even, even, even)
    found.topology = Topology(racks=(0, 0, 0), inside_bytes_per_s=6e6)
    assert found.run(80).desk.plan.exchange.name == "int4"


def test_an_exchange_over_racks_that_does_not_pay_is_taken_back() -> None:
    found = over_racks()
    found.link = lambda name: no_gain("none" if name == "none" else "int4")
    found.run(80)
    assert [plan.exchange.name for plan in found.plans] == ["none", "bf16 across int4", "none"]


def test_what_goes_over_racks_is_left_again_where_the_racks_are_gone() -> None:
    found = over_racks().run(80)
    desk, before = found.desk, found.desk.state.compressing
    found.topology, found.link = Topology(racks=(0, 0, 0, 0), inside_bytes_per_s=125e6), lambda name: (0.0, 0.0)
    desk.state = replace(desk.state, compressing=replace(before, refused={"none": 0.0}))
    found.run(200)
    assert desk.plan.exchange.name == "bf16 across int4"
    assert "no other scheme is left that may pay" in desk.state.compressing.why
    desk.state = replace(
        desk.state, compressing=replace(desk.state.compressing, refused={}, reviewed_s=before.reviewed_s)
    )
    assert found.run(200).desk.plan.exchange.name == "none"
