"""The oracle over a service with a real Ray, from a test's side: what its database, storage and Ray hold at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from service.settings import load_settings
from service.supervise.home import Home
from service.supervise.ray_head import ray_environment
from service.supervise.ray_record import read_ray_record
from tests.faults.diary import Note
from tests.faults.evidence import gather
from tests.faults.findings import Finding, assert_nothing_found, at_rest
from tests.faults.oracle import Case, judge
from tests.faults.ray_remains import ray_remains
from tests.faults.remains import Remains

REAPED_S = 90.0
"""What nobody owns is seen so twice, 30 s apart, at looks of 5 s; files of the dead are told by the next look."""


def remains_of(home: Path, namespace: str, foreign: Path | None = None) -> Remains:
    """What the Ray of a service holds: its own, or one whose files all lie in ``foreign``; nothing where none runs."""
    record = read_ray_record(Home(home).ray_file)
    if record is None:
        return Remains()
    if record.is_own:
        variables = ray_environment({}, Path(record.token_path))
        return ray_remains(record.address, namespace, Path(record.temp_dir), variables)
    # Its environment is set for the whole test, as for the service.
    return Remains() if foreign is None else ray_remains(record.address, namespace, foreign, {})


def assert_at_rest(look: Callable[[], Case]) -> None:
    """The end of a test: the oracle finds nothing, at once or when the reaper has had its time."""

    async def found() -> list[Finding]:
        return judge(look())

    assert_nothing_found(asyncio.run(at_rest(found, REAPED_S)))


def assert_home_at_rest(
    home: Path, *others: Path, notes: Sequence[Note] = (), foreign: Path | None = None, has_lost_all: bool = False
) -> None:
    """Likewise, of one service; a Ray that has ended holds nothing. For ``has_lost_all`` see ``Case``.

    ``others`` are the homes of further replicas.
    """

    def look() -> Case:
        evidence = gather(load_settings({"home": home}, {}), *others)
        return Case(
            evidence=evidence,
            notes=notes,
            remains=remains_of(home, evidence.installation, foreign),
            has_lost_all=has_lost_all,
        )

    assert_at_rest(look)
