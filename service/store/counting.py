"""How many jobs there are in each state, but for those whose deletion is noted."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from service.states import JobState
from service.store.deletion_table import deletions
from service.store.schema import jobs

_ROWS = select(jobs.c.state, func.count()).group_by(jobs.c.state)
# Few at any time: asking each job whether it is one of them would cost several times the count itself.
_DELETED = select(jobs.c.state).join_from(deletions, jobs, jobs.c.id == deletions.c.job_id)


def num_by_state(conn: Connection) -> dict[JobState, int]:
    """States without any are 0."""
    numbers = {**dict.fromkeys(JobState, 0), **{JobState(state): int(number) for state, number in conn.execute(_ROWS)}}
    for state in conn.execute(_DELETED).scalars():
        numbers[JobState(state)] -= 1
    return numbers
