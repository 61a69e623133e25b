"""Lists of what is no job: a page ends at a bound of bytes, and all pages together have each row once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from service.configuration_records import ReplacedVersion
from service.records import ListPart
from service.services import Services
from service.store.opening import Store
from service.store.promotion_rows import insert_promotion
from service.store.schedules import ScheduleFilter
from service.store.sweeps import SweepFilter
from service.sweep_specs import read_sweep_spec, sample_job
from tests.service.given import Clock, leader, spec
from tests.service.query_plans import noted_statements, num_rows
from tests.service.scheduled import schedule_spec
from tests.service.swept import JOB, Swept, point, sweep_document
from tuning.orders import Start

pytestmark = pytest.mark.anyio

LARGE = {"text": "x" * 40_000}
NUM = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A list with NUM rows of 40 kB: the places of its rows in their order, a part of it, and where it is read.

    ``column`` is one that is read of whole rows alone.
    """

    places: list[Any]
    part: Callable[[int, Any], Awaitable[ListPart[Any]]]
    place: Callable[[Any], Any]
    path: str
    name: str
    key: str
    column: str


async def _sweep(store: Store, **changes: Any) -> str:
    parsed = read_sweep_spec(sweep_document(**changes), has_prices=False)
    return (await store.sweeps.create(parsed, sample_job(parsed))).sweep.id


async def _sweeps(store: Store) -> Listed:
    ids = [await _sweep(store, job={**JOB, "config": LARGE}) for _ in range(NUM)]
    return Listed(
        places=ids[::-1],
        part=lambda limit, behind: store.sweeps.page(SweepFilter(), limit, behind),
        place=lambda row: row.id,
        path="/sweeps",
        name="sweeps",
        column="sweeps.changed",
        key="id",
    )


async def _trials(store: Store) -> Listed:
    swept = Swept(store, Clock(), await leader(store), await _sweep(store))
    wide = {**point(0.01), "env.TEXT": "x" * 40_000}
    await swept.order(*(Start(number=n, params=wide, first_rung=None) for n in range(NUM)))
    return Listed(
        places=[*range(NUM)],
        part=lambda limit, behind: store.sweeps.trials(swept.id, limit, -1 if behind is None else behind),
        place=lambda trial: trial.number,
        path=f"/sweeps/{swept.id}/trials",
        name="trials",
        column="trials.changed",
        key="number",
    )


async def _schedules(store: Store) -> Listed:
    given = [schedule_spec(name=f"s-{n}", target={"job": {**_STEPS, "config": LARGE}}) for n in range(NUM)]
    ids = [(await store.schedules.create(*each)).schedule.id for each in given]
    return Listed(
        places=ids[::-1],
        part=lambda limit, behind: store.schedules.page(ScheduleFilter(), limit, behind),
        place=lambda row: row.id,
        path="/schedules",
        name="schedules",
        column="schedules.changed",
        key="id",
    )


async def _configurations(store: Store) -> Listed:
    names = [(await store.configurations.create(f"c-{n}", spec(config=LARGE))).name for n in range(NUM)]
    return Listed(
        places=names,
        part=lambda limit, behind: store.configurations.page(None, limit, behind),
        place=lambda row: row.name,
        path="/configurations",
        name="configurations",
        column="configurations.changed",
        key="name",
    )


async def _history(store: Store) -> Listed:
    row = await store.configurations.create("digits", spec(config=LARGE))
    for seed in range(1, NUM + 1):
        row = (await store.configurations.replace(row, spec(config=LARGE, seed=seed))).configuration

    async def part(limit: int, behind: int | None) -> ListPart[ReplacedVersion]:
        view = await store.configurations.view(row.name, limit, behind)
        assert view is not None
        return view[1]

    return Listed(
        places=[*range(NUM, 0, -1)],
        part=part,
        place=lambda each: each.version,
        path=f"/configurations/{row.name}",
        name="history",
        key="version",
        column="configuration_versions.replaced_at",
    )


_STEPS = {"entrypoint": "workers.recipes.digits:build", "steps": 10}
each_list = pytest.mark.parametrize("made", [_sweeps, _trials, _schedules, _configurations, _history])


@each_list
@pytest.mark.parametrize(("bound", "sizes"), [(100_000, [3, 3, 1]), (1, [1] * NUM), (2**30, [5, 2])])
async def test_a_page_ends_at_the_bound_of_bytes_and_all_pages_have_each_row_once(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[Store], Awaitable[Listed]],
    bound: int,
    sizes: list[int],
) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", bound)
    listed = await made(store)
    pages: list[list[Any]] = []
    has_more = True
    while has_more:
        found = await listed.part(5, pages[-1][-1] if pages else None)
        pages.append([listed.place(row) for row in found.rows])
        has_more = found.has_more
    assert [len(page) for page in pages] == sizes
    assert [place for page in pages for place in page] == listed.places


@each_list
async def test_no_texts_are_read_of_rows_beyond_the_bound(
    store: Store, monkeypatch: pytest.MonkeyPatch, made: Callable[[Store], Awaitable[Listed]]
) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", 100_000)
    listed = await made(store)
    engine = await store.database.read(lambda conn: conn.engine)
    with noted_statements(engine) as statements:
        await listed.part(5, None)
    of_rows = [sent for sent in statements if listed.column in sent[0]]
    assert await store.database.read(lambda conn: num_rows(conn, of_rows)) == 3


@each_list
async def test_a_page_of_large_rows_is_shorter_and_has_a_token(
    client: httpx2.AsyncClient,
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[Store], Awaitable[Listed]],
) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", 100_000)
    listed = await made(services.store)
    seen: list[list[Any]] = []
    params: dict[str, Any] = {"page_size": 5}
    while not seen or params["page_token"]:
        page = (await client.get(f"/api/v1{listed.path}", params=params)).json()
        seen.append([row[listed.key] for row in page[listed.name]])
        params["page_token"] = page["next_page_token"]
    assert [len(page) for page in seen] == [3, 3, 1]
    assert [place for page in seen for place in page] == listed.places


async def test_a_sweep_weighs_what_its_latest_promotion_keeps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", 100_000)
    ids = [await _sweep(store) for _ in range(NUM)]
    stopped = {"configuration": "digits", "state": "STOPPED", "reason": "x" * 40_000}
    for sweep_id in ids:
        await store.database.write(lambda write, of=sweep_id: insert_promotion(write, of, stopped))
    assert len((await store.sweeps.page(SweepFilter(), NUM)).rows) == 3
    # One before the latest is not shown.
    for sweep_id in ids:
        await store.database.write(lambda write, of=sweep_id: insert_promotion(write, of, {**stopped, "reason": "x"}))
    assert len((await store.sweeps.page(SweepFilter(), NUM)).rows) == NUM
