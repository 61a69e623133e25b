"""An advisor of exchanges that counts what encoding and decoding take, as told at the start and as they take now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workers.slow_links import situation, with_codecs
from workers.advisors import exchange
from workers.advisors.exchange import Change, Keep, Link


def test_a_codec_that_takes_longer_than_the_link_is_left_alone() -> None:
    slow = with_codecs(2.0)
    assert isinstance(exchange.advise(replace(situation(), costs=slow)), Keep)


def test_a_link_that_has_become_fast_is_given_back_what_codecs_take() -> None:
    costs = with_codecs(0.05)
    link = Link(exchange_s=0.05, exposed_s=0.05)  # nothing but the codec's own time
    advice = exchange.advise(replace(situation("int4", step_s=0.25), costs=costs, link=link))
    assert isinstance(advice, Change)
    assert advice.scheme == "none"


def test_codecs_of_a_busy_machine_cost_what_they_take_and_all_of_them_as_many_times_as_much() -> None:
    """Told of 0.02 s, int4 takes 0.2 s: it is what is sent as it is that the link has sooner, and not int8."""
    costs = with_codecs(0.02)
    link = Link(exchange_s=0.22, exposed_s=0.22, wire_s=0.026)
    told = replace(situation("int4", step_s=0.4), costs=costs, link=link)
    assert isinstance(exchange.advise(told), Keep)
    busy = replace(told, link=replace(link, codec_s=0.2))
    assert exchange.codec_s(busy, "int8") == pytest.approx(0.2)
    assert exchange.codec_s(replace(told, link=replace(link, codec_s=0.0)), "int8") == pytest.approx(0.02)
    advice = exchange.advise(busy)
    assert isinstance(advice, Change)
    assert (advice.scheme, advice.expected_gain) == ("none", pytest.approx(0.4 / (0.4 - 0.226 + 0.02 + 0.006 / 0.13)))
