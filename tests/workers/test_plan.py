"""The plan, and how a global batch is shared."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.errors import BatchSplitError
from workers.exchange_options import filled, in_buckets, options_of
from workers.lr import LrPlan
from workers.plan import (
    Cause,
    Exchange,
    FreshSource,
    Member,
    Plan,
    PlanId,
    Switch,
    TimelineKind,
    none_at_zero,
    split_batch,
)

WEIGHTS = st.lists(st.floats(0.0, 1e6, allow_subnormal=False), min_size=1, max_size=40).filter(any)


@given(batch=st.integers(0, 10**9), weights=WEIGHTS)
def test_the_parts_sum_to_the_batch(batch: int, weights: list[float]) -> None:
    sizes = split_batch(batch, weights)
    assert sum(sizes) == batch
    assert len(sizes) == len(weights)
    assert min(sizes) >= 0


@given(batch=st.integers(0, 10**6), weights=WEIGHTS)
def test_each_part_is_within_one_sample_of_its_share(batch: int, weights: list[float]) -> None:
    total = sum(weights)
    for size, weight in zip(split_batch(batch, weights), weights, strict=True):
        assert abs(size - batch * weight / total) < 1 + 1e-6


@given(batch=st.integers(0, 10**6), weights=WEIGHTS, at=st.integers(0, 40))
def test_a_weight_of_zero_gets_nothing(batch: int, weights: list[float], at: int) -> None:
    weights.insert(at, 0.0)
    assert split_batch(batch, weights)[min(at, len(weights) - 1)] == 0


@given(batch=st.integers(1, 10**6), weights=WEIGHTS)
def test_nobody_is_left_without_a_sample_where_there_is_one_for_each(batch: int, weights: list[float]) -> None:
    before, after = split_batch(batch, weights), split_batch(batch, none_at_zero(batch, weights))
    assert sum(after) == batch
    if min(before) > 0 or batch < len(weights):
        assert after == before
    else:
        assert min(after) >= 1
        assert sum(max(0, b - a) for a, b in zip(after, before, strict=True)) == before.count(0)


@given(batch=st.integers(0, 10**6), num_ranks=st.integers(1, 64))
def test_equal_weights_share_evenly_with_the_rest_to_the_lower_ranks(batch: int, num_ranks: int) -> None:
    sizes = split_batch(batch, [1.0] * num_ranks)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(batch=st.integers(1, 10**6), weights=WEIGHTS, factor=st.sampled_from([0.5, 2.0, 1024.0]))
def test_only_the_relation_of_weights_counts(batch: int, weights: list[float], factor: float) -> None:
    assert split_batch(batch, weights) == split_batch(batch, [w * factor for w in weights])


def test_a_batch_smaller_than_the_ranks_leaves_some_without() -> None:
    assert split_batch(2, [1.0, 1.0, 1.0]) == [1, 1, 0]


@pytest.mark.parametrize("weights", [[], [0.0], [0.0, 0.0], [1.0, -1.0], [2.0, -1.0]])
def test_weights_that_cannot_share_are_refused(weights: list[float]) -> None:
    with pytest.raises(BatchSplitError, match="cannot share a batch; give each rank"):
        split_batch(8, weights)


def plan() -> Plan:
    return Plan(
        id=PlanId(1, 2),
        switch=Switch.AGREED,
        generation=1,
        lineage=1,
        source=FreshSource(),
        members=(Member(worker_id="1.1", rank=0), Member(worker_id="1.2", rank=1)),
        global_batch=128,
        lr=LrPlan(lr=1e-3, base_batch=128),
        cause=Cause(kind=TimelineKind.START, actor="service", reason="submitted"),
    )


def test_plans_are_ordered_by_term_and_then_by_number() -> None:
    assert PlanId(1, 9) < PlanId(2, 1) < PlanId(2, 2)


def test_a_plan_knows_its_members() -> None:
    assert plan().num_members == 2
    assert plan().worker_ids == ("1.1", "1.2")
    found = plan().member("1.2")
    assert found is not None
    assert found.rank == 1
    assert plan().member("9.9") is None


def test_labels_are_in_the_order_of_ranks() -> None:
    members = (Member(worker_id="1.1", rank=1, rack="b"), Member(worker_id="1.2", rank=0, rack="a"))
    assert replace(plan(), members=members).labels == ("a", "b")


def test_a_plan_never_changes_and_travels() -> None:
    with pytest.raises(FrozenInstanceError):
        plan().generation = 2  # type: ignore[misc]  # the point of the test
    assert pickle.loads(pickle.dumps(plan())) == plan()
    assert replace(plan(), generation=2).members == plan().members


@given(
    formats=st.sampled_from(["none", "int8", "none across int4", "bf16 across bf16"]),
    bucket_mib=st.integers(1, 1024),
    dense_first=st.integers(0, 100),
)
def test_an_exchange_is_what_its_name_says(formats: str, bucket_mib: int, dense_first: int) -> None:
    dense_first = dense_first if formats == "int8" else 0
    exchange = Exchange.named(in_buckets(formats, bucket_mib, dense_first), "measured")
    scheme, _, across = formats.partition(" across ")
    options = {"across": across, "bucket_mib": bucket_mib, "dense_first": dense_first}
    usual = {"across": "", "bucket_mib": 25, "dense_first": 0}
    assert (exchange.scheme, dict(exchange.options)) == (scheme, dict(options.items() - usual.items()))
    assert Exchange.named(exchange.name, "measured") == exchange
    assert exchange.options == filled(scheme, dict(options_of(exchange.name)))
