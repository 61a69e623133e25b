"""``communication: auto`` of models so small that hours of them may be latency, on simulated links that have both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.test_compress import BYTES, TABLE, even, looked_at_again
from tests.control.uneven_job import UnevenJob
from workers.exchange_options import bucketed
from workers.measures import BuildInfo
from workers.plan import TimelineKind
from workers.racks import Topology

SLOW, FAST = 6.25e6, 1.25e9
"""Bytes a second of 50 Mbit and of 10 Gbit."""


class SmallJob(UnevenJob):
    """Ranks of which each link takes ``latency_s`` whatever is sent, and carries ``bytes_per_s``."""

    def __init__(self, num_values: int, bytes_per_s: float, latency_s: float, num_ranks: int = 4) -> None:
        self.num_values, self.bytes_per_s, self.latency_s = num_values, bytes_per_s, latency_s
        super().__init__(*[even] * num_ranks)
        self.schemes, self.link = TABLE, self.carried

    @property
    def wire_s(self) -> float:
        """All of an exchange."""
        return self.carried(self._in_force.exchange.name)[0]

    def carried(self, name: str) -> tuple[float, float]:
        """Nothing hides any of it; every byte passes a link three times in two, as of four ranks."""
        sent_s = 1.5 * self.num_values * BYTES[bucketed(name)[0]] / self.bytes_per_s
        return (self.latency_s + sent_s,) * 2

    def built(self, worker_id: str) -> BuildInfo:
        return replace(super().built(worker_id), num_trained=self.num_values)


@pytest.mark.parametrize("num_values", [70_000, 225_000, 262_143])
def test_a_small_model_s_gradients_travel_in_fewer_bytes_where_a_slow_link_takes_its_time_for_them(
    num_values: int,
) -> None:
    found = SmallJob(num_values, SLOW, 0.001).run(100)
    assert found.plans[-1].exchange.name == "int4"
    [judged] = found.told(TimelineKind.PROBATION)
    assert judged.after["is_kept"] is True


@pytest.mark.parametrize("num_values", [70_000, 225_000])
def test_a_small_model_on_a_fast_link_is_left_alone(num_values: int) -> None:
    found = SmallJob(num_values, FAST, 0.015).run(400)
    assert len(found.plans) == 1
    assert found.desk.state.compressing.why.endswith("and the link takes that whatever their bytes are.")


@pytest.mark.parametrize("latency_s", [0.03, 0.1, 0.4])
@pytest.mark.parametrize("num_values", [70_000, 225_000])
def test_a_small_model_on_far_links_is_tried_once_and_shows_what_is_latency(latency_s: float, num_values: int) -> None:
    """One trial tells it of all schemes: nothing else is tried, however often it is looked at again."""
    found = SmallJob(num_values, FAST, latency_s).run(80)
    for _ in range(4):
        looked_at_again(found)
    first, tried, last = [plan.exchange.name for plan in found.plans]
    assert (first, last, tried in ("int8", "int4")) == ("none", "none", True)
    assert found.desk.state.compressing.latency_s == pytest.approx(latency_s, rel=0.01)


def test_what_is_sent_within_moments_even_so_is_left_alone() -> None:
    found = SmallJob(60_000, SLOW, 0.0).run(400)
    assert len(found.plans) == 1
    assert found.desk.state.compressing.why.endswith("and so few bytes are not worth another scheme.")


def test_what_a_link_took_whatever_was_sent_is_believed_for_a_while_only() -> None:
    found = SmallJob(225_000, FAST, 0.2).run(80)
    assert found.desk.state.compressing.latency_s == pytest.approx(0.2, rel=0.01)
    found.bytes_per_s, found.latency_s = SLOW, 0.001  # a step waits as long as before, now for bytes
    for _ in range(6):
        looked_at_again(found)
    assert found.run(3000).plans[-1].exchange.name in ("int8", "int4")


def test_far_links_that_are_known_as_such_are_not_even_tried_once() -> None:
    found = SmallJob(70_000, FAST, 0.2)
    found.topology = Topology(racks=(0,) * 4, inside_bytes_per_s=FAST, inside_latency_s=0.2 / 6)
    assert len(found.run(400).plans) == 1


def test_a_link_whose_latency_comes_and_goes_is_tried_less_and_less_often() -> None:
    found = SmallJob(70_000, FAST, 0.1)
    for _ in range(9):
        for found.latency_s in (0.1, 0.4, 0.15):
            found.run(80)
    assert found.desk.now > 500.0
    assert sum(plan.exchange.name != "none" for plan in found.plans) <= 5


def test_what_a_trial_showed_of_latency_hides_no_link_that_becomes_slow() -> None:
    found = SmallJob(225_000, FAST, 0.1).run(300)
    assert found.plans[-1].exchange.name == "none"
    found.bytes_per_s = SLOW
    assert found.run(600).plans[-1].exchange.name == "int4"
