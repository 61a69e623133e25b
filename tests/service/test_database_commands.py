"""`concertina db`: a copy of a database in use, and the way from SQLite to PostgreSQL."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from service.cli.database import back_up_to, move, upgrade_database
from service.cli.failures import CommandError
from service.records import JobRow
from service.store.copying import NotEmptyError
from service.store.keys import IdempotencyKey
from service.store.opening import Store, open_store
from service.store.port import StoreError
from service.supervise.home import Home
from service.supervise.lock import DatabaseServedError, database_lock
from tests.service.given import checkpoint, leader, log, placed, record, row, snapshot, spec, stored_bundle
from tests.service.postgres import PostgresServer

T = TypeVar("T")

NUM_WRITES = 5

KEY = IdempotencyKey(principal="admin", scope="POST /jobs", key="k", body_sha256="b")


@pytest.fixture
def home(tmp_path: Path, migrated_file: Path) -> Path:
    """A home whose database has a job with a bit of everything, and one that waits."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    shutil.copy(migrated_file, folder / "concertina.db")
    within(url_of(folder / "concertina.db"), fill)
    return folder


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


def within(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        store = open_store(url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def fill(store: Store) -> None:
    fence = await leader(store)
    bundle = await stored_bundle(store, "ab" * 32)
    job = await placed(store, fence, labels={"team": "cv"}, entrypoint="train:build", bundle=bundle.id)
    told = snapshot(
        job,
        [record(n, skipped=n == 3) for n in range(1, 40)],
        logs=(log(b"a line\n\xff\xfe\n"),),
        timeline=(row("resize"),),
        checkpoints=(checkpoint(10),),
    )
    await store.reconciler.fold(told, fence)
    await store.jobs.submit(spec(name="waits"), KEY)


async def everything(store: Store) -> list[object]:
    found: list[object] = [(await store.leases.installation()).id, await store.database.change()]
    jobs: list[JobRow] = await store.reconciler.live_jobs()
    for job in jobs:
        found += [
            job,
            await store.jobs.events(job.id, 0, 100),
            await store.telemetry.points(job.id),
            await store.telemetry.timeline(job.id, 0, 100),
            await store.telemetry.logs(job.id, None, 0, 10**6),
            await store.reconciler.acknowledged(job.id, job.attempt),
        ]
    return [*found, len(jobs)]


def test_a_backup_of_a_database_in_use_is_whole(home: Path, tmp_path: Path) -> None:
    file, copy = home / "concertina.db", tmp_path / "backup.db"

    async def back_up(store: Store) -> list[object]:
        before = await everything(store)
        await asyncio.to_thread(back_up_to, copy, home)
        await store.jobs.submit(spec(name="later"))
        return before

    others = tmp_path / "backup.db.part"
    others.write_text("of somebody else")
    before = within(url_of(file), back_up)
    assert within(url_of(copy), everything) == before
    assert sorted(path.name for path in tmp_path.glob("backup*")) == ["backup.db", others.name]
    assert others.read_text() == "of somebody else"
    with pytest.raises(CommandError, match="not there yet"):
        back_up_to(copy, home)


def test_a_backup_beside_a_writer_is_one_moment_of_it(home: Path, tmp_path: Path) -> None:
    """Each of its writes makes a job with its event and its key, and counts one change."""
    file, copy = home / "concertina.db", tmp_path / "backup.db"

    async def back_up(store: Store) -> tuple[int, int]:
        stop = asyncio.Event()

        async def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                await store.jobs.submit(spec(name=f"written-{number}"), replace(KEY, key=f"key-{number}"))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            before = await jump_by(store, NUM_WRITES)
            await asyncio.to_thread(back_up_to, copy, home)
            after = await jump_by(store, NUM_WRITES)
            stop.set()
        return before, after

    before, after = within(url_of(file), back_up)
    counts = "SELECT change, (SELECT count(*) FROM jobs), (SELECT count(*) FROM idempotency_keys) FROM installation"
    with closing(sqlite3.connect(copy)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert conn.execute("PRAGMA foreign_key_check").fetchall() == []
        change, num_jobs, num_keys = conn.execute(counts).fetchone()
        (num_events,) = conn.execute("SELECT count(*) FROM events WHERE target = 'QUEUED'").fetchone()
    with closing(sqlite3.connect(file)) as conn:
        last, last_jobs, _ = conn.execute(counts).fetchone()
    assert before <= change < after
    assert num_jobs == num_events == num_keys + 1 == last_jobs - (last - change)


async def jump_by(store: Store, number: int) -> int:
    """The number of the last change, once there were so many more."""
    begin = await store.database.change()
    while (now := await store.database.change()) < begin + number:
        await asyncio.sleep(0)
    return now


def test_what_cannot_be_backed_up_leaves_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "home"
    empty.mkdir()
    with pytest.raises(CommandError, match=r"there is no database at .*concertina\.db; start the service once"):
        back_up_to(tmp_path / "backup.db", empty)
    assert list(tmp_path.iterdir()) == [empty]
    assert list(empty.iterdir()) == []


@pytest.mark.postgres
def test_everything_moves_to_postgres_and_only_to_an_unused_database(home: Path, postgres: PostgresServer) -> None:
    file, url = home / "concertina.db", postgres.empty("moved")
    before = within(url_of(file), everything)
    with database_lock(file), pytest.raises(DatabaseServedError):
        move(url, home)
    move(url, home)
    assert within(url, everything) == before
    assert within(url, lambda store: store.jobs.submit(spec(name="waits"), KEY)).is_new is False
    assert within(url, lambda store: store.reconciler.take_lease("new", 1)) is not None
    with pytest.raises(NotEmptyError, match="give an empty one"):
        move(url, home)
    assert within(url_of(file), everything) == before


def test_a_database_can_be_made_ahead_of_the_first_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    upgrade_database(home, None)
    assert "the newest" in capsys.readouterr().out
    assert within(url_of(home / "concertina.db"), lambda store: store.database.change()) == 0
    Home(home).prepare()  # as `serve` does, which takes no folder that is not Concertina's
    with pytest.raises(CommandError, match="is SQLite"):
        move(url_of(tmp_path / "other.db"), home)


def test_an_upgrade_elsewhere_makes_no_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    upgrade_database(home, url_of(tmp_path / "other.db"))
    assert (tmp_path / "other.db").is_file()
    assert not home.exists()


def test_what_is_no_database_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    file.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"other\.db cannot be read: file is not a database; restore a backup"):
        upgrade_database(tmp_path / "home", url_of(file))
    assert file.read_bytes() == b"no database" * 1000
