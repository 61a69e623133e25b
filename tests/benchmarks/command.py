"""A measurement as a command: its options, the service that it measures, and how it tells and keeps its result."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy.ext.asyncio import create_async_engine

from service.settings import Settings
from service.store.opening import Store, open_store
from tests.benchmarks.figures import append_result, circumstances, in_words, percentile, spread_document, versions
from tests.benchmarks.leaving import leave_in_order
from tests.benchmarks.own_service import Running, api_alone, whole_service
from tests.service.postgres import running_server

T = TypeVar("T")

WHOLE = ("fastapi", "uvicorn", "sqlalchemy", "ray")
"""Libraries whose versions go with the figures of the whole service."""


def parser_of(document: str | None) -> argparse.ArgumentParser:
    """Options of the measurement that a module's docstring tells of; ``output`` is among them."""
    parser = argparse.ArgumentParser(description=document.splitlines()[0] if document else None)
    parser.add_argument("--output", type=Path, help="file that takes one JSON line a result")
    return parser


@contextmanager
def temporary_service(num_cpus: int) -> Iterator[Running]:
    """The whole of `serve` in a home that ends with the block, also when SIGTERM ends it. Main thread only."""
    leave_in_order()
    with (
        tempfile.TemporaryDirectory(prefix="ct-bench-") as name,
        whole_service(Path(name) / "home", num_cpus) as running,
    ):
        yield running


def add_database(parser: argparse.ArgumentParser) -> None:
    """The option that ``filled_api`` takes as its ``database``."""
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite", help="a new one of its own")


@contextmanager
def filled_api(fill: Callable[[Store], Awaitable[T]], database: str = "sqlite") -> Iterator[tuple[Running, T]]:
    """The API's process alone, over a new database into which ``fill`` wrote before; and what that gave.

    A PostgreSQL is one of its own, on a UNIX socket, without fsync, and vacuumed, as it does by itself within minutes.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ct-bench-"))) / "home"
        url = stack.enter_context(running_server()).migrated() if database == "postgres" else None
        with api_alone(home, url):
            pass  # makes the home and its database
        given = asyncio.run(_filled(Settings(home=home, database=url).database_url, fill))
        yield stack.enter_context(api_alone(home, url)), given


async def _filled(url: str, fill: Callable[[Store], Awaitable[T]]) -> T:
    store = open_store(url)
    try:
        given = await fill(store)
        if url.startswith("postgresql"):
            await _vacuum(url)
        return given
    finally:
        await store.close()


async def _vacuum(url: str) -> None:
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    async with engine.connect() as conn:
        await conn.exec_driver_sql("VACUUM ANALYZE")
    await engine.dispose()


def tell_limits(took_ms: Mapping[str, Sequence[float]], limit_ms: float) -> dict[str, object]:
    """Print for each kind of call whether its p95 keeps the limit; gives their spreads."""
    width = max(map(len, took_ms))
    for what, ms in took_ms.items():
        kept = "kept" if percentile(ms, 0.95) <= limit_ms else "NOT KEPT"
        print(f"{what:{width}s} p95 {percentile(ms, 0.95):4.0f} ms ({kept}: {limit_ms:g}); {in_words(ms, 'ms')}")
    return {what: spread_document(ms) for what, ms in took_ms.items()}


def tell_result(output: Path | None, kind: str, libraries: Sequence[str], figures: Mapping[str, object]) -> None:
    """Print what the figures depend on, and keep both."""
    about = {"versions": versions(*libraries), **circumstances()}
    print(about)
    append_result(output, kind, {**about, **figures})
