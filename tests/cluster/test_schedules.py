"""A schedule over a real Ray: a time that passed while the service was down is caught up, and its job trains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.migrations.upgrade import upgrade
from service.schedule_spec import parse_schedule_spec
from service.settings import Settings
from service.store.opening import open_store
from service.supervise.home import Home
from service.times import rfc3339
from tests.cluster.judging import assert_service_at_rest
from tests.cluster.serving import end_everything, serving
from tests.service.scheduled import schedule_document
from tests.waiting import wait_for

pytestmark = pytest.mark.cluster
JOB_LIMIT_S = 90.0
AGO_S = 65.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    Home(folder).prepare()
    yield folder
    end_everything(folder)


def test_a_time_while_the_service_was_down_is_caught_up_and_its_job_trains_to_its_end(home: Path) -> None:
    now_s = time.time()
    document = schedule_document(cron="* * * * *", time_zone="Asia/Kathmandu", overlap="skip", end=rfc3339(now_s))

    async def make() -> str:
        store = open_store(Settings(home=home).database_url, lambda: now_s - AGO_S)
        made = await store.schedules.create(*parse_schedule_spec(document, now_s - AGO_S))
        await store.close()
        return made.schedule.id

    upgrade(Settings(home=home).database_url)
    schedule_id = asyncio.run(make())
    with serving(home) as served, served.client() as client:

        def runs() -> list[dict[str, Any]]:
            return list(client.schedule_runs(schedule_id))

        wait_for(
            "the child's success", lambda: [run["child_state"] for run in runs()][-1:] == ["SUCCEEDED"], JOB_LIMIT_S
        )
        assert [run["outcome"] for run in runs()][-1] == "STARTED"
        assert len(list(client.jobs())) == 1
        assert client.find_schedule("nightly")["state"] == "ENDED"
        assert_service_at_rest(served)
        assert served.stop() == 0
