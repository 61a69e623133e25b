"""What the reconciler begins a tick with, read at once: several times a second there is not much else to do."""

from __future__ import annotations

from sqlalchemy import Connection

from service.store.database import Database
from service.store.nodes import fetch_marks
from service.store.observed import fetch_live_jobs
from service.store.promoting import fetch_promoting
from service.store.searching import fetch_live_sweeps
from service.survey import Survey


class SurveyStore:
    """See ``ReconcilerStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def survey(self, max_queued: int) -> Survey:
        """All that a tick begins with; ``max_queued`` as of ``live_jobs``."""

        return await self._database.read(lambda conn: survey_of(conn, max_queued))


def survey_of(conn: Connection, max_queued: int) -> Survey:
    """See ``SurveyStore.survey``."""
    return Survey(
        jobs=fetch_live_jobs(conn, max_queued),
        marks=fetch_marks(conn),
        sweeps=fetch_live_sweeps(conn),
        promoting=fetch_promoting(conn),
    )
