"""What of an exchange is latency, as two of them tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workers.test_exchange_advisor import situation
from workers.advisors import exchange
from workers.advisors.exchange import Link


def test_two_exchanges_tell_what_a_link_takes_whatever_is_sent() -> None:
    link = Link(exchange_s=0.4, exposed_s=0.4, wire_s=0.1 + 0.13 * 0.8)
    told = replace(situation("int4"), link=link)
    assert exchange.seen_latency_s(told, "none", 0.9) == pytest.approx(0.1)
    assert exchange.seen_latency_s(told, "none", 0.1) == pytest.approx(0.1)  # slower meanwhile: none of it is bytes'
    assert exchange.seen_latency_s(replace(told, link=replace(link, wire_s=0.0)), "none", 0.9) == 0.0
    assert exchange.seen_latency_s(replace(told, link=replace(link, wire_s=None)), "none", 0.9) is None
    assert exchange.seen_latency_s(replace(told, scheme="none"), "int4", 0.9) is None  # which did not send less
