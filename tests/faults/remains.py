"""What a cluster still holds of one installation: actors, placement groups, processes. Values, without Ray."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from service.states import PLACED_STATES, JobState
from tests.faults.evidence import Job
from tests.faults.findings import Finding, Kind
from workers.control.names import ControllerName, parse_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """``names`` are living actors that work or control, a spare that was taken by the name that it was given.

    ``groups`` are the placement groups that hold room, each with the name of the living actor that made it: that of a
    worker, of a spare that waits, or "" where nobody of this installation lives who made it. ``processes`` are those
    that bear the title of a worker, a controller or a task of ours and are no living actor's; ``notes`` are names that
    were given to spares which are gone.
    """

    names: Collection[str] = ()
    spares: Collection[str] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    processes: Collection[str] = ()
    notes: Collection[str] = ()


def judge_remains(remains: Remains, jobs: Mapping[str, Job]) -> Iterator[Finding]:
    """Actors belong to the attempt under way of a placed job and there is one term, room belongs to its workers."""
    owned = {name for name in remains.names if _is_owned(name, jobs)}
    for name in sorted(set(remains.names) - owned):
        yield Finding(Kind.LEFT, name, f"the actor lives, its job is {_seen(name, jobs)}")
    yield from _terms(owned, jobs)
    for group, maker in sorted(remains.groups.items()):
        if maker not in owned:
            yield Finding(Kind.LEFT, f"placement group {group}", f"it holds room of {maker or 'nobody who lives'}")
    for process in remains.processes:
        yield Finding(Kind.LEFT, process, "the process lives and is no actor's")


def _is_owned(name: str, jobs: Mapping[str, Job]) -> bool:
    parsed = parse_name(name)
    job = jobs.get(parsed.key.job_id) if parsed else None
    if parsed is None or job is None:
        return False
    return job.attempt == parsed.key.attempt and JobState(job.state) in PLACED_STATES


def _seen(name: str, jobs: Mapping[str, Job]) -> str:
    parsed = parse_name(name)
    job = jobs.get(parsed.key.job_id) if parsed else None
    return f"{job.state} in attempt {job.attempt}" if job else "gone"


def _terms(owned: Collection[str], jobs: Mapping[str, Job]) -> Iterator[Finding]:
    """Of an attempt that is under way only the term in its row has a controller."""
    for name in sorted(owned):
        parsed = parse_name(name)
        if isinstance(parsed, ControllerName) and parsed.term != jobs[parsed.key.job_id].term:
            term = jobs[parsed.key.job_id].term
            yield Finding(Kind.TERMS, parsed.key.job_id, f"a controller of term {parsed.term} lives in term {term}")
