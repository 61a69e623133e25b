"""What was tried by the sweeps from which a sweep begins in turn: its ``warm_start`` names the first links only."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, bindparam, or_, select

from service.store.schema import trials
from service.store.sweep_rows import fetch_sweep
from tuning.trial import TrialState
from tuning.values import Params

MAX_FOREBEARS = 10
MAX_POINTS = 10_000
"""Of all together, those of the nearest and the last begun first. No space is searched whole that has more."""

HAS_REPORTED = trials.c.reports != "[]"
"""The condition on ``trials``: something is known of what came of it."""

HAS_TRIED = or_(trials.c.state != TrialState.PRUNED, HAS_REPORTED)
"""The condition on ``trials``: not where the sweep ended before the trial reported anything."""

_TRIED = (
    select(trials.c.params)
    .where(trials.c.sweep_id == bindparam("of"), HAS_TRIED)
    .order_by(trials.c.number.desc())
    .limit(bindparam("at_most"))
)


def fetch_forebears(conn: Connection, known: Iterable[str]) -> Mapping[str, list[Params]]:
    """What each sweep tried from which the known ones began, and so on back, the last point begun last.

    The nearest come first, and no more than ``MAX_FOREBEARS``. Those that are gone end the chain; a population tried
    no points.
    """
    links = deque((of, False) for of in known)
    seen: set[str] = set()
    found: dict[str, list[Params]] = {}
    room = MAX_POINTS
    while links and len(found) < MAX_FOREBEARS:
        of, is_forebear = links.popleft()
        sweep = None if of in seen else fetch_sweep(conn, of)
        if sweep is None:
            continue
        seen.add(of)
        document = sweep.document
        links.extend((link, True) for link in document["warm_start"])
        if is_forebear:
            found[of] = [] if document["population"] else _tried(conn, of, room)
            room -= len(found[of])
    return found


def _tried(conn: Connection, sweep_id: str, at_most: int) -> list[Params]:
    rows = conn.execute(_TRIED, {"of": sweep_id, "at_most": at_most}).scalars().all()
    return [json.loads(params) for params in reversed(rows)]
