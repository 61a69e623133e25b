"""Which scheme an advisor takes: the best of its model, the gentlest of those alike, and none that is not worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.workers.slow_links import BYTES, COSTS, situation, with_codecs
from workers.advisors import exchange
from workers.advisors.buckets import BUCKET_S
from workers.advisors.exchange import (
    ALIKE,
    GENTLER_GAIN,
    GENTLER_KEPT,
    LEAST_GAIN,
    LEAST_KEPT,
    SLOWER,
    Change,
    Keep,
    Link,
    Situation,
)
from workers.exchange_options import bucketed, in_buckets
from workers.measures import SchemeCost

seconds = st.floats(1e-4, 5.0)
HALF_LATE = {25: (0.2, 0.8), 4: (0.2,) * 5, 1: (0.05,) * 20}


def test_a_slow_link_gets_the_fewest_bytes_and_is_told_what_that_is_expected_to_bring() -> None:
    advice = exchange.advise(situation())
    assert isinstance(advice, Change)
    assert advice.scheme == "int4"
    assert advice.expected_gain == pytest.approx(1.2 / (0.2 + 0.02 + 0.98 * 0.13))
    assert advice.reason == (
        "a step of 1.2 s waits 1 s for gradients; int4 instead of none is expected to make it 3.45 times as fast"
    )


def test_few_bytes_that_take_their_time_all_the_same_are_left_alone() -> None:
    assert isinstance(exchange.advise(situation(exchange_s=0.02, step_s=0.03)), Keep)


@pytest.mark.parametrize("num_values", [200_000, 300_000])
def test_of_small_models_it_is_the_time_lost_that_counts(num_values: int) -> None:
    small = replace(situation(exchange_s=0.216, step_s=0.223), num_values=num_values)
    advice = exchange.advise(small)
    assert isinstance(advice, Change)
    assert advice.scheme == "int4"
    near = exchange.advise(replace(situation(exchange_s=0.02, step_s=0.03), num_values=num_values))
    assert isinstance(near, Keep)
    assert near.reason.endswith("and the link takes that whatever their bytes are.")


def test_a_link_that_is_faster_than_codecs_is_left_alone() -> None:
    fast = replace(situation(exchange_s=0.1, step_s=0.2), num_values=6_000_000)
    assert exchange.advise(fast) == Keep(
        reason="Gradients travel as they are: a step of 200 ms waits 100 ms for gradients, and no other scheme is left "
        "that may pay."
    )
    assert isinstance(exchange.advise(replace(fast, num_values=4_000_000)), Change)


def test_a_job_that_allows_nothing_else_is_told_so() -> None:
    advice = exchange.advise(replace(situation(), allowed=("none",)))
    assert advice == Keep(
        reason="Gradients travel as they are: a step of 1.2 s waits 1 s for gradients, and the job allows no other "
        "scheme."
    )


def test_what_backward_hides_anyway_is_not_compressed() -> None:
    advice = exchange.advise(situation(exchange_s=0.1, hidden_s=0.1))
    assert isinstance(advice, Keep)
    assert "travel as they are" in advice.reason


def test_of_schemes_that_are_as_fast_the_one_that_loses_least_is_taken() -> None:
    hidden = situation(exchange_s=1.0, hidden_s=0.51)  # half of the bytes are hidden, and so is any less
    advice = exchange.advise(hidden)
    assert isinstance(advice, Change)
    assert advice.scheme == "bf16"


def test_what_did_not_pay_is_tried_again_only_over_a_slower_link() -> None:
    refused = {"int4": 1.0}
    advice = exchange.advise(replace(situation(), refused=refused))
    assert isinstance(advice, Change)
    assert advice.scheme == "int8"
    slower = exchange.advise(replace(situation(exchange_s=1.05 * SLOWER), refused=refused))
    assert isinstance(slower, Change)
    assert slower.scheme == "int4"


def test_what_did_not_pay_over_a_slow_link_is_tried_again_where_that_is_faster_if_it_loses_less() -> None:
    """Back from int4, which had been kept over a link that was slow: its refusals are no reason to stay for good."""
    took_s = 0.2
    told = replace(situation("int4", took_s, step_s=0.1), refused={"none": took_s, "int8": took_s})
    assert isinstance(exchange.advise(told), Keep)
    faster = replace(situation("int4", 0.4 * took_s, hidden_s=0.1, step_s=0.1), refused=told.refused)
    advice = exchange.advise(faster)
    assert isinstance(advice, Change)
    assert advice.scheme == "none"


def test_a_scheme_that_loses_less_need_not_be_faster() -> None:
    """Behind a long backward pass no bytes less make a step shorter, and of those alike it loses least."""
    costs = with_codecs(0.01)
    link = Link(exchange_s=0.8, exposed_s=0.01, wire_s=0.03)
    told = replace(situation("int8", step_s=1.0), costs=costs, link=link)
    advice = exchange.advise(told)
    assert isinstance(advice, Change)
    assert (advice.scheme, advice.least_kept) == ("none", GENTLER_KEPT)
    assert "none, which loses less than int8, is expected" in advice.reason
    assert isinstance(exchange.advise(replace(told, scheme="none", link=replace(link, exposed_s=0.0))), Keep)


def test_buckets_that_leave_late_are_not_taken_for_a_slow_link() -> None:
    """As many seconds from the first bucket on; what differs is for how many of them the link was at work."""
    costs = with_codecs(0.03)
    link = Link(exchange_s=0.8, exposed_s=0.04)
    told = replace(situation("int8", step_s=1.0), costs=costs, link=link)
    assert isinstance(exchange.advise(told), Keep)
    assert isinstance(exchange.advise(replace(told, link=replace(link, wire_s=0.7))), Keep)
    advice = exchange.advise(replace(told, link=replace(link, wire_s=0.1)))
    assert isinstance(advice, Change)
    assert advice.scheme == "none"


def test_what_leaves_last_is_not_taken_for_hidden_however_long_backward_is() -> None:
    """A first bucket of a quarter of the bytes, long gone when the others leave at the end of a backward pass of 0.7 s.

    With the link at work all the time the same figures tell of bytes that would be hidden if they were fewer.
    """
    link = Link(exchange_s=1.2, exposed_s=0.5, wire_s=0.67)
    advice = exchange.advise(replace(situation(step_s=1.3), link=link))
    assert isinstance(advice, Change)
    assert advice.scheme == "int4"
    busy = exchange.advise(replace(situation(step_s=1.3), link=replace(link, wire_s=1.19)))
    assert isinstance(busy, Change)
    assert busy.scheme == "bf16"


def test_what_did_not_pay_where_the_link_took_nothing_is_not_tried_again() -> None:
    costs = with_codecs(0.05)
    link = Link(exchange_s=0.05, exposed_s=0.05)
    told = replace(situation("int4", step_s=0.25), costs=costs, link=link, refused=dict.fromkeys(BYTES, 0.0))
    assert isinstance(exchange.advise(told), Keep)


@example(
    scheme="none",
    took_s=1e-4,
    share=1.0,
    rest_s=1e-4,
    codec_s={},
    allowed=set(),
    bucket_mib=4,
    num_dense=0,
    backward_s=1e-4,
)
@given(
    scheme=st.sampled_from(sorted(BYTES)),
    took_s=seconds,
    share=st.floats(0.0, 1.0),
    rest_s=seconds,
    codec_s=st.dictionaries(st.sampled_from(sorted(set(BYTES) - {"none"})), st.floats(0.0, 1.0)),
    allowed=st.sets(st.sampled_from(sorted(BYTES))),
    bucket_mib=st.sampled_from((25, 4)),
    num_dense=st.integers(0, 2),
    backward_s=st.none() | seconds,
)
def test_the_choice_is_as_good_as_that_of_trying_all(
    scheme: str,
    took_s: float,
    share: float,
    rest_s: float,
    codec_s: dict[str, float],
    allowed: set[str],
    bucket_mib: int,
    num_dense: int,
    backward_s: float | None,
) -> None:
    costs = {name: replace(cost, seconds_a_million=codec_s.get(name, 0.0)) for name, cost in COSTS.items()}
    names = tuple(name for name in BYTES if name in allowed | {"none", scheme})
    told = Situation(
        scheme=(now := in_buckets(scheme, bucket_mib, num_dense if scheme != "none" else 0)),
        allowed=names,
        costs=costs,
        num_ranks=4,
        num_values=1_000_000,
        step_s=rest_s + share * took_s,
        link=Link(exchange_s=took_s, exposed_s=share * took_s, backward_s=backward_s),
        buckets=HALF_LATE,
    )

    def is_less_lossy(other: str) -> bool:
        formats, bucket_mib, num_dense = bucketed(other)
        dense_share = sum(HALF_LATE[bucket_mib][:num_dense])
        return (names.index(formats), -dense_share) < (names.index(scheme), -sum(HALF_LATE[told_mib][:now_dense]))

    tried = exchange.candidates(told)
    _, told_mib, now_dense = bucketed(now)
    assert now in tried
    assert {bucketed(name)[0] for name in tried} <= set(names)
    all_s = {name: exchange.predict(told, name) for name in tried}
    assert all_s[now] == pytest.approx(told.step_s)
    advice = exchange.advise(told)
    if isinstance(advice, Change):
        assert all_s[advice.scheme] <= ALIKE * min(all_s.values())
        assert all(all_s[other] > ALIKE * min(all_s.values()) for other in tried[: tried.index(advice.scheme)])
        assert advice.expected_gain == pytest.approx(told.step_s / all_s[advice.scheme])
        is_gentler = is_less_lossy(advice.scheme)
        assert advice.expected_gain >= (GENTLER_GAIN if is_gentler else LEAST_GAIN)
        assert advice.least_kept == (GENTLER_KEPT if is_gentler else LEAST_KEPT)
    else:
        best = next(name for name in tried if all_s[name] <= ALIKE * min(all_s.values()))
        is_gentler = is_less_lossy(best)
        least = GENTLER_GAIN if is_gentler else LEAST_GAIN
        assert best == now or told.step_s < least * all_s[best]


def behind(backward_s: float, scheme: str = "none", num_ranks: int = 4) -> Situation:
    """Bytes of 0.3 s, most of which leave at the end of a backward pass; of the same link whatever they travel as."""
    told = situation(scheme, exchange_s=0.3, step_s=backward_s + 0.5)
    wire_s = told.link.exchange_s
    link = Link(exchange_s=0.8 * backward_s + wire_s, exposed_s=0.8 * wire_s, wire_s=wire_s, backward_s=backward_s)
    return replace(told, link=link, buckets=HALF_LATE, num_ranks=num_ranks)


def test_what_leaves_late_leaves_in_smaller_buckets_before_it_loses_anything() -> None:
    advice = exchange.advise(behind(1.0))
    assert isinstance(advice, Change)
    assert advice.scheme == "none in buckets of 4 MiB"
    assert "none in buckets of 4 MiB instead of none is expected" in advice.reason
    told = exchange.advise(replace(behind(1.0), link=replace(behind(1.0).link, backward_s=None)))
    assert isinstance(told, Change)
    assert told.scheme == "int8"


def test_smaller_buckets_that_are_in_force_stay_and_are_no_loss() -> None:
    now = replace(behind(0.6), scheme="none in buckets of 4 MiB", step_s=0.95)
    link = replace(now.link, exposed_s=0.06, exchange_s=0.54)
    advice = exchange.advise(replace(now, link=link))
    assert isinstance(advice, Keep)
    assert advice.reason.startswith("Gradients travel as they are in buckets of 4 MiB: a step")


def test_bytes_that_backward_cannot_hide_are_made_fewer_all_the_same() -> None:
    advice = exchange.advise(replace(behind(0.1), scheme="none in buckets of 4 MiB"))
    assert isinstance(advice, Change)
    assert (advice.scheme, advice.least_kept) == ("int8 in buckets of 4 MiB", LEAST_KEPT)


def test_back_from_fewer_bytes_to_all_of_them_in_smaller_buckets_loses_less() -> None:
    advice = exchange.advise(behind(2.0, "int8"))
    assert isinstance(advice, Change)
    assert (advice.scheme, advice.least_kept) == ("none in buckets of 4 MiB", GENTLER_KEPT)
    assert "none in buckets of 4 MiB, which loses less than int8, is expected" in advice.reason


RACKS = "bf16 across int4"


def over_racks(scheme: str) -> Situation:
    told = behind(2.0, "int8")
    return replace(told, scheme=scheme, allowed=(RACKS,), costs=COSTS | {RACKS: COSTS["int8"]})


def test_buckets_are_cut_where_backward_hides_them_and_not_over_racks() -> None:
    names = [name for name in exchange.candidates(behind(0.6)) if name.startswith("int8") and "dense" not in name]
    assert names == ["int8", "int8 in buckets of 4 MiB", "int8 in buckets of 1 MiB"]
    assert exchange.candidates(over_racks(RACKS)) == [RACKS]
    unseen = replace(behind(0.6).link, backward_s=None)
    now = replace(behind(0.6), scheme="none in buckets of 4 MiB", link=unseen)
    assert [name for name in exchange.candidates(now) if name.startswith("int8")] == ["int8 in buckets of 4 MiB"]


@pytest.mark.parametrize(
    ("scheme", "num_ranks", "num_hops"),
    [("none", 4, 1), ("topk", 4, 1), ("int8", 2, 1), ("int8", 4, 2), ("powersgd", 2, 2)],
)
def test_of_several_hops_the_later_ones_of_the_last_two_buckets_are_not_hidden_however_small_those_are(
    scheme: str, num_ranks: int, num_hops: int
) -> None:
    """Ten buckets that backward hides but for the last, after one that leaves at its end."""
    cost = SchemeCost(bytes_a_value=4.0, seconds_a_million=0.0)
    told = replace(
        situation(exchange_s=1.0, step_s=3.0),
        scheme=scheme,
        allowed=(scheme,),
        costs={"none": cost, scheme: cost},
        num_ranks=num_ranks,
        link=Link(exchange_s=3.0, exposed_s=1.0, wire_s=1.0, backward_s=2.0),
        buckets={25: (1.0,), 4: (0.1,) * 10},
    )
    carried_s = 1.0 - exchange.LATENCY_S
    exposed_s = 0.1 * carried_s / num_hops * (1 + 2 * (num_hops - 1))
    expected_s = 3.0 - (carried_s - exposed_s) + 9 * num_hops * BUCKET_S
    assert exchange.predict(told, f"{scheme} in buckets of 4 MiB") == pytest.approx(expected_s)


def test_a_group_that_came_to_sit_in_racks_gives_its_small_buckets_up() -> None:
    advice = exchange.advise(over_racks(f"{RACKS} in buckets of 4 MiB"))
    assert isinstance(advice, Change)
    assert (advice.scheme, advice.least_kept, advice.expected_gain) == (RACKS, GENTLER_KEPT, pytest.approx(1.0))


def test_what_loses_less_is_not_tried_where_what_was_given_up_already_leaves_no_room_for_it() -> None:
    costs = {name: replace(cost, seconds_a_million=0.0 if name == "int8" else 0.008) for name, cost in COSTS.items()}
    link = Link(exchange_s=0.8, exposed_s=0.0, wire_s=0.03)
    told = replace(situation("int8", step_s=1.0), costs=costs, link=link, allowed=("bf16", "int8"))
    for spent, least_kept in ((1.0, GENTLER_KEPT), (0.98, GENTLER_KEPT / 0.98)):
        advice = exchange.advise(replace(told, spent=spent))
        assert isinstance(advice, Change)
        assert (advice.scheme, advice.least_kept) == ("bf16", least_kept)
    assert isinstance(exchange.advise(replace(told, spent=0.971)), Keep)  # 0.992 would be less than is kept


def test_larger_buckets_that_did_not_pay_are_tried_again_over_a_faster_link() -> None:
    now = replace(behind(0.6), scheme="none in buckets of 4 MiB")
    took_s = exchange.link_s(now)
    for refused_s, is_tried in ((took_s, False), (10 * took_s, True), (took_s / 10, False)):
        assert ("none" in exchange.candidates(replace(now, refused={"none": refused_s}))) is is_tried


def test_what_was_refused_or_barred_is_so_with_its_buckets() -> None:
    told = behind(0.6)
    names = exchange.candidates(
        replace(told, refused={"none in buckets of 4 MiB": 1.0}, barred=frozenset({"none in buckets of 1 MiB"}))
    )
    assert not any(name.startswith("none in") for name in names)
    assert "none" in names


def busy(scheme: str = "none", num_buckets: int = 5) -> Situation:
    """Buckets that the link takes a second for as they are, behind a backward pass of as long."""
    formats, _, num_dense = bucketed(scheme)
    coded = BYTES[formats] / BYTES["none"]
    wire_s = coded + (1.0 - coded) * num_dense / num_buckets
    told = replace(situation("none", step_s=1.8), scheme=scheme, num_ranks=2, allowed=("none", "int4"))
    link = Link(exchange_s=1.6, exposed_s=0.6, wire_s=wire_s, backward_s=1.0)
    return replace(told, link=link, buckets={25: (1.0 / num_buckets,) * num_buckets})


def test_buckets_that_backward_hides_as_they_are_go_as_they_are_once_the_others_formats_pay() -> None:
    """The first is there after a fifth of backward, and of five the link has carried four by its end."""
    assert not any("dense" in name for name in exchange.candidates(busy()))
    [mixed] = [name for name in exchange.candidates(busy("int4")) if "dense" in name]
    assert mixed == "int4 after 4 dense"
    assert exchange.predict(busy("int4"), mixed) == pytest.approx(busy("int4").step_s)


def test_what_loses_less_of_the_same_formats_need_not_be_faster() -> None:
    advice = exchange.advise(replace(busy("int4"), link=replace(busy("int4").link, exposed_s=0.05)))
    assert isinstance(advice, Change)
    assert (advice.scheme, advice.least_kept) == ("int4 after 4 dense", GENTLER_KEPT)
    assert "int4 after 4 dense, which loses less than int4, is expected" in advice.reason


def test_a_mix_in_force_stays_where_another_differs_by_little() -> None:
    for num_dense, num_mixed in ((19, 1), (2, 2)):
        told = busy(f"int4 after {num_dense} dense", 20)
        names = [name for name in exchange.candidates(told) if "dense" in name]
        assert told.scheme in names
        assert len(names) == num_mixed


def test_nothing_goes_as_it_is_first_where_nobody_sees_backward_or_over_racks() -> None:
    unseen = replace(busy(), link=replace(busy().link, backward_s=None))
    for told in (unseen, over_racks(RACKS)):
        assert not any("dense" in name for name in exchange.candidates(told))
