"""Roll-ups of metrics: whatever arrives in whatever order, they say what the points that count say."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Awaitable, Callable, Sequence
from itertools import dropwhile, groupby, pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest
from alembic import command as alembic
from alembic.config import Config
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Row, select, text
from sqlalchemy.schema import DropTable

from service.downsample import chosen_rounds
from service.migrations.upgrade import FOLDER
from service.records import Point
from service.services import Services
from service.store.opening import Store, open_store
from service.store.schema import VERSION_TABLE, stretches
from service.stretches import FACTOR, WIDTHS, Part, Stretch, ranges, stretch_of
from service.telemetry import MetricsQuery
from tests.service.conftest import DATABASES
from tests.service.given import leader, placed, record, snapshot
from tests.service.postgres import PostgresServer
from tests.service.query_plans import bad_steps, noted_statements, num_rows
from workers.status import RoundRecord

T = TypeVar("T")
Chunk: TypeAlias = tuple[int, int, int, bool]
"""Rounds to go back (a gap where negative), rounds told, the generation, whether a new lineage begins."""

CHUNKS = st.lists(
    st.tuples(st.integers(-70, 200), st.integers(1, 350), st.integers(1, 3), st.booleans()),
    min_size=1,
    max_size=4,
)


NUMBERS = st.integers(1, 3_000_000)


def told(lineage: int, round: int, generation: int) -> RoundRecord:
    """A round with values that look random, one of them seldom, and now and then passed over."""
    noise = (round * 7919 + lineage * 104729 + generation * 1299709) % 1009
    rare = {"eval.a": float(noise % 10) if round % 270 else math.nan} if round % 90 == 0 else {}
    return record(
        round, lineage=lineage, generation=generation, skipped=noise % 50 == 0, loss=noise / 10, lr=0.5, **rare
    )


async def tell(store: Store, chunks: Sequence[Chunk]) -> str:
    """The id of a job whose history arrived like this, each part of it twice."""
    fence = await leader(store, f"reconciler-{store.database.now_s}")
    job = await placed(store, fence)
    last, lineage = 0, 1
    for back, number, generation, is_new in chunks:
        lineage += is_new
        first = max(1, last + 1 - back)
        records = [told(lineage, r, generation) for r in range(first, first + number)]
        for _ in range(2):
            await store.reconciler.fold(snapshot(job, records), fence)
        last = first + number - 1 if is_new else max(last, first + number - 1)
    await store.leases.release_lease(fence)
    return job.id


def from_points(points: Sequence[Point], width: int, keys: frozenset[str] | None) -> list[Stretch]:
    chosen = [(p.round, {k: v for k, v in p.values.items() if keys is None or k in keys}) for p in points]
    return [stretch_of(list(same)) for _, same in groupby(chosen, key=lambda each: each[0] // width)]


async def check(store: Store, job_id: str, since_step: int, keys: frozenset[str] | None) -> None:
    points = list(dropwhile(lambda point: point.step < since_step, await store.telemetry.points(job_id)))
    parts = await store.telemetry.extent(job_id, since_step)
    for width in WIDTHS[:3]:
        found = await store.telemetry.stretches(job_id, parts, width, keys)
        assert found == from_points(points, width, keys)
        rounds = chosen_rounds(found, 20)
        kept = await store.telemetry.points_at(job_id, parts, rounds)
        assert [point.round for point in kept] == rounds
        assert len(kept) <= 20
        assert all(point in points for point in kept)
        for key in ("loss",) if keys is None else keys:
            values = [point.values[key] for point in points if key in point.values]
            shown = [point.values[key] for point in kept if key in point.values]
            assert (min(shown, default=None), max(shown, default=None)) == (
                min(values, default=None),
                max(values, default=None),
            )


@pytest.mark.parametrize("kind", DATABASES)
def test_roll_ups_say_what_the_points_that_count_say(kind: str, empty_database: Callable[[str], str]) -> None:
    url = empty_database(kind)

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        chunks=CHUNKS,
        since_step=st.sampled_from([0, 64, 300]),
        keys=st.sampled_from([None, frozenset({"loss"}), frozenset({"eval.a"})]),
    )
    @example(chunks=[(0, 60, 1, False), (-70, 100, 1, False)], since_step=0, keys=None)  # made whole by a gap
    def hold(chunks: list[Chunk], since_step: int, keys: frozenset[str] | None) -> None:
        async def run(store: Store) -> None:
            await check(store, await tell(store, chunks), since_step, keys)

        within(url, run)

    hold()


@pytest.fixture
def empty_database(tmp_path: Path, migrated_file: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes a database without jobs."""

    def make(kind: str) -> str:
        if kind == "postgres":
            server: PostgresServer = request.getfixturevalue("postgres")
            return server.migrated()
        shutil.copy(migrated_file, tmp_path / "a.db")
        return f"sqlite:///{tmp_path / 'a.db'}"

    return make


def within(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        store = open_store(url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


@given(
    first=st.integers(1, 3_000_000),
    number=st.integers(1, 3_000_000),
    width=st.sampled_from(WIDTHS),
    begin=st.booleans(),
)
def test_a_part_is_covered_once_by_a_bounded_number_of_rows(first: int, number: int, width: int, begin: bool) -> None:
    part = Part(1, 1, first, first + number - 1, is_begin=begin)
    found = sorted(ranges(part, width), key=lambda each: each.begin)
    assert all(each.begin % each.width == each.end % each.width == 0 for each in found)
    assert all(one.end == other.begin for one, other in pairwise(found))
    assert found[-1].end == part.last + 1
    assert found[0].begin == first or (begin and found[0].begin <= first < found[0].begin + found[0].width)
    num_rows = sum((each.end - each.begin) // each.width for each in found)
    num_finer = WIDTHS.index(width)
    assert num_rows <= number // width + 1 + 2 * (num_finer * FACTOR + WIDTHS[0])


@pytest.mark.anyio
async def test_a_long_history_is_read_by_its_roll_ups_and_shows_no_peak_that_was_given_up(services: Services) -> None:
    store = services.store
    fence = await leader(store)
    job = await placed(store, fence)
    peaks = {777: 50.0, 11_900: 99.0}
    for begin in range(1, 12_001, 1000):
        records = [record(r, loss=peaks.get(r, 1.0)) for r in range(begin, begin + 1000)]
        await store.reconciler.fold(snapshot(job, records), fence)
    query = MetricsQuery(keys=("loss",), since_step=5, max_points=100)
    engine = await store.database.read(lambda conn: conn.engine)
    with noted_statements(engine) as statements:
        before = await services.telemetry.metrics(job.id, query)
    assert await store.database.read(lambda conn: bad_steps(conn, statements)) == []
    assert await store.database.read(lambda conn: num_rows(conn, statements)) < 1000
    assert max(point["values"]["loss"] for point in before["points"]) == 99.0
    restored = [record(r, lineage=2, loss=-5.0 if r == 11_801 else 1.0) for r in range(11_801, 11_811)]
    await store.reconciler.fold(snapshot(job, restored), fence)
    found = await services.telemetry.metrics(job.id, query)
    values = {point["step"]: point["values"]["loss"] for point in found["points"]}
    assert (values[777], values[11_801], max(values), len(values) <= 100) == (50.0, -5.0, 11_810, True)
    assert max(values.values()) == 50.0
    assert found["keys"] == ["loss"]


@pytest.mark.parametrize("kind", DATABASES)
def test_the_migration_writes_what_arrival_would_have_written(kind: str, empty_database: Callable[[str], str]) -> None:
    url = empty_database(kind)
    chunks: list[Chunk] = [(0, 500, 1, False), (130, 700, 1, True), (-80, 20, 2, False)]
    within(url, lambda store: tell(store, chunks))
    written = within(url, all_stretches)
    assert {row.width for row in written} == {16, 64, 256, 1024}
    within(url, forget)
    migration = Config()
    migration.set_main_option("script_location", str(FOLDER))
    migration.attributes["url"] = url
    alembic.upgrade(migration, "0003")
    assert within(url, all_stretches) == written


async def all_stretches(store: Store) -> Sequence[Row[Any]]:
    return await store.database.read(lambda conn: conn.execute(select(stretches).order_by(*stretches.c[:5])).all())


async def forget(store: Store) -> None:
    """Make the database what it was before there were roll-ups."""

    def work(conn: Connection) -> None:
        conn.execute(DropTable(stretches))
        conn.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0002'"))

    await store.database.write_quietly(work)
