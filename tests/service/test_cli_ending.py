from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from service.cli.ending import purge_home
from service.cli.failures import CommandError
from service.migrations.upgrade import upgrade
from service.settings import load_settings
from service.states import Move, Verb, command
from service.store.opening import open_store
from service.supervise.home import Home, write_private
from tests.service.given import spec


@pytest.fixture
def attached(tmp_path: Path) -> tuple[Home, str]:
    """A home whose last `serve` used somebody else's Ray, and its database."""
    place = Home(tmp_path / "home")
    place.prepare()
    settings = load_settings({"home": place.path, "ray_address": "10.0.0.5:6379"}, {})
    write_private(place.settings_file, json.dumps(settings.as_environment()))
    upgrade(settings.database_url)
    return place, settings.database_url


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_purge_is_refused_while_jobs_may_run_on_somebody_elses_ray(
    attached: tuple[Home, str], *, is_cancelled: bool
) -> None:
    place, database_url = attached
    asyncio.run(submit(database_url, is_cancelled=is_cancelled))
    if is_cancelled:
        assert purge_home(place.path, is_sure=True) == 0
        assert not place.path.exists()
        return
    with pytest.raises(CommandError, match=r"1 job is not ended.*10\.0\.0\.5:6379.*concertina cancel"):
        purge_home(place.path, is_sure=True)
    assert place.path.exists()


async def submit(database_url: str, *, is_cancelled: bool) -> None:
    store = open_store(database_url)
    job = (await store.jobs.submit(spec())).job
    if is_cancelled:
        move = command(Verb.CANCEL, job.state, job.attempt)
        assert isinstance(move, Move)
        await store.jobs.command(job, move)
    await store.close()
