"""``communication: auto`` where codecs take what nobody measured when workers started: a machine is busy, or slower."""

from __future__ import annotations

from tests.control.test_compress import BYTES
from tests.control.uneven_job import UnevenJob
from workers.exchange_options import bucketed
from workers.measures import SchemeCost
from workers.plan import TimelineKind

TOLD_S = 0.02
OWN_S = 0.1


class CodedJob(UnevenJob):
    """A link that takes ``dense_s`` for gradients as they are; codecs take ``coded_s``, in backward or after it.

    Workers told ``TOLD_S`` of them when they started.
    """

    dense_s, coded_s, is_in_backward = 1.0, TOLD_S, False

    def __init__(self) -> None:
        super().__init__(self._own_part_s, self._own_part_s)
        self.schemes = {
            name: SchemeCost(bytes_a_value=b, seconds_a_million=0.0 if name == "none" else TOLD_S)
            for name, b in BYTES.items()
        }
        self.link = self._carried

    @property
    def codec_s(self) -> float:
        return 0.0 if bucketed(self._in_force.exchange.name)[0] == "none" else self.coded_s

    @property
    def wire_s(self) -> float:
        return self.dense_s * BYTES[bucketed(self._in_force.exchange.name)[0]] / BYTES["none"]

    def _own_part_s(self, part: int) -> float:
        return OWN_S + (self.codec_s if self.is_in_backward else 0.0)

    def _carried(self, scheme: str) -> tuple[float, float]:
        return self.wire_s + self.codec_s, self.wire_s + (0.0 if self.is_in_backward else self.codec_s)


def schemes(found: UnevenJob) -> list[str]:
    return [plan.exchange.scheme for plan in found.plans]


def given_back(found: UnevenJob) -> bool:
    """Whether gradients travel as they are since a trial of that."""
    last = found.told(TimelineKind.PROBATION)[-1]
    return (last.after["scheme"], last.after["is_kept"], found.plans[-1].exchange.scheme) == ("none", True, "none")


def test_codecs_that_a_busy_machine_made_slower_than_the_link_are_given_up() -> None:
    """Steps of 0.53 s with int4, of which the link has 0.03; it would take 0.2 s for what goes as it is."""
    found = CodedJob().run(80)
    assert schemes(found) == ["none", "int4"]
    found.dense_s, found.coded_s = 0.2, 0.4
    found.run(80)
    assert given_back(found)


def test_codecs_that_became_slower_are_noticed_also_where_the_link_is_as_it_was() -> None:
    found = CodedJob()
    found.dense_s = 0.3
    found.run(80)
    assert schemes(found) == ["none", "int4"]
    found.coded_s = 0.5
    found.run(80)
    assert given_back(found)


def test_codecs_slower_than_told_are_judged_and_not_taken_for_a_worker_that_became_slow() -> None:
    """They are a part of backward, so a worker is slower by itself while they are tried."""
    found = CodedJob()
    found.dense_s, found.coded_s, found.is_in_backward = 0.3, 0.4, True
    found.run(40)
    assert schemes(found)[:3] == ["none", "int4", "none"]
    known = found.desk.state.compressing
    assert [(row.after["scheme"], row.after["is_kept"]) for row in found.told(TimelineKind.PROBATION)] == [
        ("int4", False)
    ]
    assert known.refused.keys() == {"int4"}
