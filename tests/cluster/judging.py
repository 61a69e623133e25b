"""The oracle over a service with a real Ray, from a test's side: what its database, storage and Ray hold at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from service.settings import load_settings
from service.supervise.home import Home
from service.supervise.ray_head import ray_environment
from service.supervise.ray_record import read_ray_record
from tests.cluster.foreign_ray import Foreign
from tests.cluster.serving import Serving
from tests.faults.diary import Note, Saved
from tests.faults.evidence import gather
from tests.faults.findings import Finding, assert_nothing_found, at_rest
from tests.faults.oracle import Case, judge
from tests.faults.ray_remains import ray_remains
from tests.faults.remains import Remains

REAPED_S = 90.0
"""What nobody owns is seen so twice, 30 s apart, at looks of 5 s; files of the dead are told by the next look."""


def remains_of(home: Path, namespace: str, foreign: Foreign | None = None) -> Remains:
    """What the Ray of a service holds, its own or one that is ``foreign``; nothing where none runs."""
    record = read_ray_record(Home(home).ray_file)
    if record is None:
        return Remains()
    if record.is_own:
        variables = ray_environment({}, Path(record.token_path))
        return ray_remains(record.address, namespace, Path(record.temp_dir), variables)
    assert foreign is not None, f"nobody says where the files of the Ray at {record.address} lie"
    return ray_remains(record.address, namespace, foreign.folder, foreign.variables)


def assert_service_at_rest(
    served: Serving, *others: Path, notes: Sequence[Note] = (), saves: Sequence[Saved] = ()
) -> None:
    """The end of a test: the oracle finds nothing, at once or when the reaper has had its time.

    A Ray that has ended holds nothing. ``others`` are the homes of further replicas. What is found fails one test,
    and not also those that share its service.
    """

    def look() -> Case:
        evidence = gather(load_settings({"home": served.home}, {}), *others)
        return Case(
            evidence=evidence,
            notes=notes,
            saves=saves,
            remains=remains_of(served.home, evidence.installation, served.foreign),
            lost=served.lost,
        )

    async def news() -> list[Finding]:
        return [finding for finding in judge(look()) if finding not in served.findings]

    found = asyncio.run(at_rest(news, REAPED_S))
    served.findings.extend(found)
    assert_nothing_found(found, served.account)
