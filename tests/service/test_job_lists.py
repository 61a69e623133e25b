"""The list of jobs: every filter gives what it says, by an index, whatever the number of jobs."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, insert, select

from service.ids import IdSource
from service.records import JobFilter, JobRow, ListPart
from service.states import JobState
from service.store.job_lists import page_of
from service.store.opening import Store
from service.store.schema import job_labels, jobs
from service.store.statements import text_bytes
from tests.service.given import spec
from tests.service.query_plans import bad_steps, noted_statements, num_rows, num_steps, repeated_steps

pytestmark = pytest.mark.anyio

TEAM = {"team": "vision"}
BOTH = {**TEAM, "run": "1"}
FEW = frozenset({JobState.RUNNING})
SOME = frozenset({JobState.FAILED, JobState.RUNNING})
FILTERS = [
    JobFilter(states=states, labels=labels, name=name, search=search)
    for states, labels, name, search in itertools.product(
        (frozenset(), FEW, SOME), ({}, TEAM, BOTH), (None, "digits"), (None, "git", "7")
    )
]


def add_jobs(conn: Connection, number: int) -> None:
    """Copies of the one job that is there, with names, states and labels of their own."""
    dice, ids = random.Random(0), IdSource()
    (given,) = conn.execute(select(jobs)).mappings()
    rows: list[dict[str, Any]] = []
    labels: list[dict[str, str]] = []
    for n in range(number):
        job_id = ids.job_id(given["created_at"] + n)
        state = dice.choices([JobState.SUCCEEDED, JobState.FAILED, JobState.RUNNING], [70, 25, 5])[0]
        rows.append({**given, "id": job_id, "name": dice.choice(["digits", f"gpt-{n}"]), "state": state})
        told = {"team": dice.choice(["vision", "text"]), "run": str(n % 7)}
        labels += [{"job_id": job_id, "key": key, "value": value} for key, value in told.items()]
    conn.execute(insert(jobs), rows)
    conn.execute(insert(job_labels), labels)


def expected(conn: Connection, wanted: JobFilter) -> list[str]:
    told: dict[str, dict[str, str]] = {}
    for job_id, key, value in conn.execute(select(job_labels)):
        told.setdefault(job_id, {})[key] = value
    return [
        row.id
        for row in conn.execute(select(jobs).order_by(jobs.c.id.desc()))
        if (not wanted.states or row.state in wanted.states)
        and (wanted.name is None or row.name == wanted.name)
        and (not wanted.search or row.id.startswith(wanted.search) or wanted.search in row.name)
        and wanted.labels.items() <= told.get(row.id, {}).items()
    ]


@pytest.mark.parametrize("max_labelled", [0, 1000])
async def test_pages_of_every_filter_hold_what_it_says(
    store: Store, monkeypatch: pytest.MonkeyPatch, max_labelled: int
) -> None:
    monkeypatch.setattr("service.store.job_lists.MAX_LABELLED", max_labelled)
    await store.jobs.submit(spec())
    await store.database.write_quietly(lambda conn: add_jobs(conn, 80))

    def walk(conn: Connection, wanted: JobFilter) -> list[str]:
        seen: list[str] = []
        while page := page_of(conn, wanted, 7, seen[-1] if seen else None).rows:
            seen += [job.id for job in page]
        return seen

    def compare(conn: Connection) -> None:
        for wanted in FILTERS:
            assert walk(conn, wanted) == expected(conn, wanted), wanted

    await store.database.read(compare)


@pytest.fixture
async def engine(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> Engine:
    """A SQLite database with one job."""
    await store.jobs.submit(spec())
    return create_engine(f"sqlite:///{tmp_path / 'concertina.db'}")


@pytest.mark.parametrize("max_labelled", [0, 1000])
async def test_every_filter_goes_along_an_index_and_sorts_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, max_labelled: int
) -> None:
    monkeypatch.setattr("service.store.job_lists.MAX_LABELLED", max_labelled)
    await store.jobs.submit(spec())

    def bad_pages(conn: Connection) -> dict[str, list[str]]:
        add_jobs(conn, 40)
        middle = expected(conn, JobFilter())[20]
        found = {}
        for wanted, before_id in itertools.product(FILTERS, (None, middle)):
            with noted_statements(conn.engine) as statements:
                page_of(conn, wanted, 5, before_id)
            # The sizes of what was found are asked for in order; PostgreSQL sorts these, of which there are few.
            of_all = [sent for sent in statements if "octet_length" not in sent[0]]
            found[f"{wanted} before {before_id}"] = bad_steps(conn, of_all)
        return {page: steps for page, steps in found.items() if steps}

    assert await store.database.write_quietly(bad_pages) == {}


@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_the_labels_of_a_job_are_looked_up_where_the_rest_leaves_it_also_when_values_are_not_planned_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.job_lists.MAX_LABELLED", 50)
    await store.jobs.submit(spec())

    def lookups(conn: Connection) -> list[str]:
        add_jobs(conn, 1000)
        own = [
            {"job_id": job_id, "key": "commit", "value": job_id} for job_id in conn.execute(select(jobs.c.id)).scalars()
        ]
        conn.execute(insert(job_labels), own)  # so that by its average a label looks like one of few jobs
        conn.exec_driver_sql("ANALYZE")
        with noted_statements(conn.engine) as statements:
            page_of(conn, JobFilter(labels=TEAM, search="777"), 5, None)
        of_page = [sent for sent in statements if "LIKE" in sent[0]]
        steps = [step for sent in of_page for step in repeated_steps(conn, sent)]
        return [step["Index Cond"] for step in steps if step.get("Relation Name") == "job_labels"]

    found = await store.database.write_quietly(lookups)
    assert len(found) == len(JobState)
    assert [condition for condition in found if "jobs.id" not in condition] == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_page_reads_no_more_when_there_are_more_jobs(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.job_lists.MAX_LABELLED", 50)
    with engine.connect() as conn:
        add_jobs(conn, 1500)
        few = [steps_of(conn, wanted) for wanted in FILTERS]
        conn.rollback()
        add_jobs(conn, 6000)
        many = [steps_of(conn, wanted) for wanted in FILTERS]
    # Where the first jobs do not fill a page, the list ends there, and all of an index was looked through.
    full = [(wanted, f, m) for wanted, f, m in zip(FILTERS, few, many, strict=True) if f is not None]
    assert len(full) > len(FILTERS) / 2
    assert [each for each in full if each[2] is None or each[2] > 3 * each[1]] == []


def steps_of(conn: Connection, wanted: JobFilter) -> int | None:
    """What SQLite's machine does for a page. None where it is not full."""
    middle = conn.execute(select(jobs.c.id).order_by(jobs.c.id.desc()).offset(500).limit(1)).scalar_one()
    found: list[JobRow] = []
    num = num_steps(conn, lambda: found.extend(page_of(conn, wanted, 5, middle).rows))
    return num if len(found) == 5 else None


LARGE = {"text": "x" * 40_000}


async def walked(store: Store, limit: int) -> list[list[str]]:
    """The ids of all jobs, page by page."""
    pages: list[list[str]] = []
    has_more = True
    while has_more:
        found = await store.jobs.page(JobFilter(), limit, pages[-1][-1] if pages else None)
        pages.append([job.id for job in found.rows])
        has_more = found.has_more
    return pages


@pytest.mark.parametrize(
    ("bound", "sizes"), [(100_000, [3, 3, 1]), (1, [1] * 7), (270_000, [5, 2]), (2**30, [5, 2]), (90_000, [3, 3, 1])]
)
async def test_a_page_ends_at_the_bound_of_bytes_and_all_pages_have_each_job_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, bound: int, sizes: list[int]
) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", bound)
    ids = [(await store.jobs.submit(spec(config=LARGE))).job.id for _ in range(7)]
    pages = await walked(store, 5)
    assert [len(page) for page in pages] == sizes
    assert [job_id for page in pages for job_id in page] == ids[::-1]


async def test_a_page_that_holds_exactly_the_last_jobs_is_the_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", 100_000)
    assert await store.jobs.page(JobFilter(), 3) == ListPart([], has_more=False)
    for _ in range(3):
        await store.jobs.submit(spec(config=LARGE))
    assert [len(page) for page in await walked(store, 3)] == [3]


async def test_large_jobs_behind_small_ones_do_not_come_with_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.list_parts.MAX_PAGE_BYTES", 100_000)
    for n in range(20):
        await store.jobs.submit(spec(config={} if n >= 10 else LARGE))
    assert [len(page) for page in await walked(store, 50)] == [13, 3, 3, 1]


async def test_a_page_of_small_jobs_is_full_and_is_read_in_two_steps(store: Store) -> None:
    await store.jobs.submit(spec())
    await store.database.write_quietly(lambda conn: add_jobs(conn, 100))
    engine = await store.database.read(lambda conn: conn.engine)
    with noted_statements(engine) as statements:
        found = await store.jobs.page(JobFilter(), 50)
    assert (len(found.rows), found.has_more) == (50, True)
    of_rows = [sent for sent in statements if "jobs.spec" in sent[0]]
    assert len(of_rows) == 2
    assert await store.database.read(lambda conn: num_rows(conn, of_rows)) == 100


async def test_what_texts_weigh_is_told_in_bytes(store: Store) -> None:
    job = (await store.jobs.submit(spec(config={"text": "\\x \N{GREEK SMALL LETTER ALPHA}"}))).job

    def compare(conn: Connection) -> None:
        row = conn.execute(select(jobs)).one()
        texts = (row.spec, row.scale_reason, row.eval_values, row.observed)
        expected = sum(len(text.encode()) for text in texts)
        assert conn.execute(select(text_bytes(jobs, conn.dialect.name))).scalar_one() == expected
        assert len(job.spec_json.encode()) > len(job.spec_json)

    await store.database.read(compare)
