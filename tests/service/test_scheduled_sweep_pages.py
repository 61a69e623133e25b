"""The pages of schedules and of sweeps name each other."""

from __future__ import annotations

import re

import httpx2
import pytest

from service.services import Services
from tests.service.given import Clock
from tests.service.scheduled import SWEEP, at, firing_at_seven
from tests.service.swept import Swept

pytestmark = pytest.mark.anyio


async def test_a_schedule_leads_to_the_sweeps_that_it_started_and_to_no_others(
    client: httpx2.AsyncClient, services: Services, clock: Clock
) -> None:
    firing = await firing_at_seven(services.store, clock)
    schedule = await firing.create(name="lr", target={"sweep": SWEEP}, overlap="allow")
    other = await firing.create(name="lr-big", target={"sweep": SWEEP})
    await firing.at(at(8))
    await firing.at(at(9))
    by_hand = await Swept.created(services.store, clock, firing.fence, name="lr")
    for page in ("/schedules", f"/schedules/{schedule.id}"):
        (place,) = re.findall(f'href="(/sweeps[?][^"]*{schedule.id})"', (await client.get(page)).text)
        listed = (await client.get(place)).text
        assert sorted(set(re.findall("/sweeps/(sweep_[0-9a-z]+)", listed))) == await firing.children(schedule)
        assert by_hand.id not in listed
        assert f'href="/schedules/{schedule.id}"' in listed
        assert f'hx-get="{place}"' in listed
    assert len(await firing.children(other)) == 1
    assert by_hand.id in (await client.get("/sweeps")).text
    assert "No sweep matches" in (await client.get("/sweeps?schedule=sched_x")).text
