"""PostgreSQL restarted, cut and far away, again and again, under mixed load on the whole control plane."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from sqlalchemy import Connection, make_url, text

from service.folders import token_file
from service.settings import Settings, load_settings
from tests.faults.diary import read_diary, read_saves
from tests.faults.evidence import gather
from tests.faults.findings import Finding, at_rest
from tests.faults.load import Load
from tests.faults.noted import noted_spec
from tests.faults.oracle import Case, judge
from tests.faults.processes import Installation
from tests.faults.reading import read_database
from tests.service.postgres import PostgresServer
from tests.tcp_proxy import TcpProxy, proxied
from tests.waiting import wait_for

SETTLE_S = 120.0
REST_S = 60.0
RECOVER_S = 60.0
LOOK_S = 0.02
JOBS_A_ROUND = 2
PAUSE_S = 0.2
LEADER_LEASE_S = 5.0
PAUSES_S = (1.0, 3.0)
REFUSED_S = 1.0
DELAYED_S = 4.0
DELAYS_S = (0.05, 0.3)
"""Of each piece in either direction; a write takes several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabasePortion:
    """What one portion brought: ``findings`` in the oracle's words, ``wrong`` answers of the API.

    ``api_s`` and ``reconciler_s`` are the seconds from each moment at which the database could be reached again to
    the first submission that was answered, and to the leader's next beat of its lease.
    """

    spoilt: Mapping[str, int]
    accepted: int
    answers: Mapping[str, int]
    states: Mapping[str, int]
    api_s: tuple[float, ...]
    reconciler_s: tuple[float, ...]
    findings: tuple[str, ...]
    wrong: tuple[str, ...]


async def run_portion(home: Path, postgres: PostgresServer, *, rounds: int, seed: int) -> DatabasePortion:
    """A new installation on a new database behind a proxy, spoilt ``rounds`` times."""
    home.mkdir(mode=0o700)
    direct = postgres.migrated()
    async with proxied(lambda: asyncio.open_unix_connection(postgres.socket)) as proxy:
        url = f"postgresql+asyncpg://postgres@127.0.0.1:{proxy.port}/{make_url(direct).database}?ssl=disable"
        settings = load_settings({"home": home, "database": url, "poll_s": 0.05, "leader_lease_s": LEADER_LEASE_S}, {})
        with Installation(settings) as installation:
            await asyncio.to_thread(wait_for, "the API's token", token_file(home).exists)
            headers = {"Authorization": f"Bearer {token_file(home).read_text().strip()}"}
            async with httpx2.AsyncClient(base_url=installation.url, headers=headers, trust_env=False) as client:
                load = Load(client, random.Random(seed), noted_spec, JOBS_A_ROUND, PAUSE_S)
                # The oracle reads past the proxy.
                spoiler = Spoiler(installation, settings.model_copy(update={"database": direct}), proxy, postgres, load)
                return await spoiler.run(rounds, random.Random(seed))


@dataclass
class Spoiler:
    """Spoils the database of an installation, and measures how soon it is used again."""

    installation: Installation
    direct: Settings
    proxy: TcpProxy
    postgres: PostgresServer
    load: Load
    spoilt: Counter[str] = field(default_factory=Counter)
    api_s: list[float] = field(default_factory=list)
    reconciler_s: list[float] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    async def run(self, rounds: int, rng: random.Random) -> DatabasePortion:
        ways = (self._restart, self._restart, self._refuse, self._reset, self._end_backends, self._delay)
        async with self.load.running():
            for number in range(rounds):
                await asyncio.sleep(rng.uniform(*PAUSES_S))
                way = ways[number % len(ways)]
                self.spoilt[way.__name__.strip("_")] += 1
                await way()
                await asyncio.gather(self._measure_api(), self._measure_reconciler())
                self._tend()
                self.load.most_jobs += JOBS_A_ROUND
        states = await self.load.settle(SETTLE_S, self._tend)
        findings = await at_rest(self._look, REST_S)
        failed = [f"{n} jobs are {state}" for state, n in states.items() if state not in ("SUCCEEDED", "CANCELLED")]
        # No process is killed here, so that every call must be answered, and in time.
        unanswered = [f"{n} calls were not answered" for n in [self.load.answers["broken"]] if n]
        return DatabasePortion(
            spoilt=dict(self.spoilt),
            accepted=len(self.load.accepted),
            answers=dict(self.load.answers),
            states=dict(states),
            api_s=tuple(self.api_s),
            reconciler_s=tuple(self.reconciler_s),
            findings=tuple(str(finding) for finding in findings),
            wrong=(*self.load.wrong, *failed, *unanswered, *self.ended),
        )

    def _tend(self) -> None:
        self.ended += [f"the {name} ended" for name in self.installation.tend()]

    async def _restart(self) -> None:
        await asyncio.to_thread(self.postgres.restart)

    async def _refuse(self) -> None:
        """The network is away for a while."""
        self.proxy.refuse()
        await asyncio.sleep(REFUSED_S)
        self.proxy.is_refusing = False

    async def _reset(self) -> None:
        """In the middle of whatever is said next."""
        self.proxy.reset_at_chunk(random.Random(sum(self.spoilt.values())).randint(1, 30))

    async def _end_backends(self) -> None:
        await asyncio.to_thread(self.postgres.cut_all)

    async def _delay(self) -> None:
        """The database is far away for a while."""
        self.proxy.delay_s = random.Random(sum(self.spoilt.values())).uniform(*DELAYS_S)
        await asyncio.sleep(DELAYED_S)
        self.proxy.delay_s = 0.0

    async def _measure_api(self) -> None:
        begin_s = time.monotonic()
        async with asyncio.timeout(RECOVER_S):
            await self.load.post(1)
        self.api_s.append(time.monotonic() - begin_s)

    async def _measure_reconciler(self) -> None:
        begin_s, before = time.monotonic(), time.time()
        async with asyncio.timeout(RECOVER_S):
            while not await asyncio.to_thread(self._has_beaten, before):
                await asyncio.sleep(LOOK_S)
        self.reconciler_s.append(time.monotonic() - begin_s)

    def _has_beaten(self, before: float) -> bool:
        def latest(connection: Connection) -> float:
            return float(connection.execute(text("SELECT heartbeat_at FROM installation")).scalar_one() or 0.0)

        return read_database(self.direct.database_url, latest) > before

    async def _look(self) -> list[Finding]:
        case = Case(
            evidence=gather(self.direct),
            notes=read_diary(self.installation.diary),
            saves=read_saves(self.installation.diary),
            accepted=self.load.accepted,
            deleted=self.load.deleted,
            remains=await self.installation.cluster.remains(),
        )
        return judge(case)
