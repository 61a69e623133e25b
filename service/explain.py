"""Why a job waits, runs smaller than asked, or failed, in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service import scheme_words
from service.avoidance import usable
from service.batching import in_words, members, reading_in_words, waiting_in_words, weighed_in_words
from service.documents import desired_workers
from service.queue import earliest_start_s, has_room, running, waiting
from service.racks import one_level, racks_in_words
from service.records import Explanation, JobRow, NodeView, StoredCluster
from service.room import empty, fit, free_now, need_of
from service.states import ENDED_STATES, JobState
from service.words import duration, plural
from workers.errors import Failure, Reason
from workers.exchange_options import filled, name_of
from workers.status import START_PHASES, AvoidedNode, Phase

STALE_CLUSTER_S = 30.0
NUM_FRAMES = 12
_AT_REST = ENDED_STATES | {JobState.PAUSED}
_CAUSED = r"\n\n(?:The above exception was the direct cause|During handling of the above exception)"

REMEDIES: Mapping[Reason, str] = {
    Reason.USER_ERROR: "Correct the code, upload it and submit again; what is trained so far can be gone on from by "
    "`retry` where the fault lay in the data or the machine, or by `init_from` in a new job.",
    Reason.OUT_OF_MEMORY: "Give each worker more memory (`resources.memory_bytes`), or make the model or a sample "
    "smaller.",
    Reason.DIVERGED: "Lower `optimizer.lr`, set `optimizer.clip_norm`, or lengthen `lr_schedule.warmup_fraction`.",
    Reason.BUNDLE_INVALID: "Make the archive anew and submit again.",
    Reason.DEPENDENCY_FAILED: "Correct `dependencies` (the installer's last lines are in the log) and submit again.",
    Reason.NO_CAPACITY: "Add machines to the cluster and retry, or submit it anew with lower `workers.min` or "
    "`resources`.",
    Reason.NODE_LOST: "Retry: it goes on from the last checkpoint.",
    Reason.CLUSTER_LOST: "Nothing to do: it goes on from the last checkpoint once the cluster is back.",
    Reason.PREEMPTED: "Nothing to do: it goes on from its checkpoint when there is room.",
    Reason.STALLED: "Look at the end of the log for what it was doing, and retry. Where it honestly takes so long, "
    "raise the bound in the settings of the service (`install_s`, `build_s`, `data_s`, `step_s`, `eval_s`).",
    Reason.BUDGET_EXCEEDED: "Raise the budget and retry.",
    Reason.CANCELLED_BY_USER: "Retry to go on from the last checkpoint.",
    Reason.CANCELLED_BY_SWEEP: "Its sweep needed it no longer.",
    Reason.CANCELLED_BY_SCHEDULE: "The next run of its schedule took its place; overlap: skip would let it end.",
    Reason.CONTROLLER_ERROR: "This is a fault of the service: keep the log, report it, and retry.",
}


UNSEEN = (
    "Workers train on meanwhile, without the service. See that `concertina serve` runs, and the end of "
    "`reconciler.log` in its home directory."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is around a job: the first in line, how many are before it, the cluster as last seen, and the time.

    On the nodes ``shunned`` no worker shall be. ``placed`` are the jobs that hold room, ``batch_reasons`` tell why the
    batch is what it is. ``limits`` are what it no longer tells in full, or not as it was asked to.
    """

    before: Sequence[JobRow]
    num_before: int
    cluster: StoredCluster | None
    now_s: float
    shunned: Sequence[AvoidedNode] = ()
    placed: Sequence[JobRow] = ()
    batch_reasons: Sequence[str] = ()
    limits: Sequence[str] = ()


def explain(job: JobRow, around: Circumstances) -> Explanation:
    """What its owner would want to know first."""
    told = _told(job, around)
    if job.state is JobState.RUNNING and (batch := in_words(job.spec.model_dump(mode="json"), job.observed)):
        waits = waiting_in_words(job.observed)
        known = (*weighed_in_words(job.observed), *filter(None, (*_travel(job), waits, reading_in_words(job.observed))))
        more = (*known, *racks_in_words(job.observed), *around.batch_reasons)
        told = replace(told, details=(*told.details, batch, *more))
    if job.state not in _AT_REST and around.cluster is not None:
        told = _dated(told, around)
    return replace(told, details=(*told.details, *around.limits))


def _travel(job: JobRow) -> tuple[str, ...]:
    """How gradients travel, and why; empty where the job leaves it open and one worker has nobody to send them to."""
    asked = job.spec.exchange
    if asked.scheme != "auto":
        options = dict(filled(asked.scheme, asked.options))
        return _asked_for(asked.scheme, options, job.observed), scheme_words.in_words(
            job.observed, asked.scheme, options
        )
    if len(members(job.observed)) < 2:
        return ()
    planned = job.observed["plan"]["exchange"]
    by_options = scheme_words.in_words(job.observed, planned["scheme"], planned["options"])
    if told := job.observed.get("exchange_reason"):
        return str(told), by_options
    name = name_of(planned["scheme"], tuple(planned["options"].items()))
    return f"Gradients travel as {name} ({planned['why']}). {one_level(job.observed, name)}".rstrip(), by_options


def _asked_for(scheme: str, options: Mapping[str, Any], observed: Mapping[str, Any]) -> str:
    """How gradients travel where the job says so itself."""
    if scheme == "local_steps":
        return (
            f"Each worker takes {options['steps']} steps of its own, and then what they changed is exchanged as "
            f"{options['quantise']}, as asked for."
        )
    name = name_of(scheme, tuple(options.items()))
    return one_level(observed, name) or f"Gradients travel as {name}, as asked for."


def _dated(told: Explanation, around: Circumstances) -> Explanation:
    """Tell how old all this may be, where nobody sees any longer what the job does."""
    down = _down(around)
    if down is None or down in told.summary:
        return told
    details = (f"What is told here may be old: {down}", *told.details)
    return replace(told, details=details, remedy=told.remedy or UNSEEN)


def _told(job: JobRow, around: Circumstances) -> Explanation:
    match job.state:
        case JobState.QUEUED:
            return _waiting(job, around)
        case JobState.FAILED:
            return _failed(job)
        case JobState.STARTING:
            return _starting(job, around)
        case JobState.RECOVERING if job.reason is Reason.CLUSTER_LOST:
            return job.explanation or _out_of_sight(job)
        case JobState.RUNNING | JobState.RECOVERING:
            return _running(job, around)
        case _:
            return _at_rest(job)


def _waiting(job: JobRow, around: Circumstances) -> Explanation:
    stored = job.explanation
    later = [*_queue(around), *_earliest(job, around)]
    if stored is not None:  # by more than what is free now
        known = (*stored.details, _needs(job), *later)
        return Explanation(summary=stored.summary, details=known, remedy=stored.remedy or _room(job))
    details = [_needs(job), *_free(job, around), *later]
    down = _down(around)
    if down is not None:
        return Explanation(summary=f"It waits: {down}", details=tuple(details), remedy="Bring the cluster back.")
    if around.num_before:
        count = around.num_before
        jobs = "1 job has" if count == 1 else f"{count:,} jobs have"
        return Explanation(summary=f"It waits in line: {jobs} waited longer.", details=tuple(details), remedy=None)
    return Explanation(summary="It is next in line.", details=tuple(details), remedy=_room(job))


def _needs(job: JobRow) -> str:
    need = job.spec.resources
    gpus = f", {need.gpus:g} GPU" if need.gpus else ""
    instead = "" if need.cpus_instead is None else f" (on nodes without GPUs {need.cpus_instead:g} CPU)"
    least, pinned = job.scale.min, job.scale.pinned or 0
    more = f"; the others of {pinned} come when there is room" if pinned > least else ""
    workers = f"{least} worker{'s' if least > 1 else ''}"
    return f"To start it needs {workers} with {need.cpus:g} CPU{gpus}{instead} each{more}."


def _nodes(around: Circumstances) -> Sequence[NodeView]:
    """Those in use; none where nobody sees the cluster."""
    if around.cluster is None or _down(around) is not None:
        return ()
    return usable(around.cluster.view.nodes, around.shunned)


def _free(job: JobRow, around: Circumstances) -> list[str]:
    if around.cluster is None or _down(around) is not None:
        return []
    return [_room_now(job, _nodes(around)), *(f"Not in use: {node.reason}." for node in around.shunned)]


def _room_now(job: JobRow, nodes: Sequence[NodeView]) -> str:
    need = need_of(job.spec.resources)
    if need.instead is None:
        return f"Free now: {_left(nodes)}."
    # It may use no CPUs beside a GPU that is taken: amounts alone would tell of room that it does not have.
    room = f"room for {plural(fit(need, free_now(nodes), job.most_workers), 'worker')}"
    kinds = {has_gpus: [node for node in nodes if node.has_gpus == has_gpus] for has_gpus in (True, False)}
    left = [f"{_left(each)} with{'' if has_gpus else 'out'} GPUs" for has_gpus, each in kinds.items() if each]
    return f"Free now: {', '.join((room, *left))}."


def _left(nodes: Sequence[NodeView]) -> str:
    cpus, gpus = (sum(node.free.get(key, 0.0) for node in nodes) for key in ("cpus", "gpus"))
    return f"{cpus:g} CPU and {gpus:g} GPU on {len(nodes)} node{'s' if len(nodes) != 1 else ''}"


def _lack(job: JobRow, around: Circumstances) -> list[str]:
    seen = around.cluster
    if seen is not None and (_down(around) is not None or has_room(waiting(job), _nodes(around))):
        return []
    return ["There is no room for more now."]


def _queue(around: Circumstances) -> list[str]:
    if not around.before:
        return []
    named = ", ".join(f"{job.name} ({job.id})" for job in around.before)
    more = around.num_before - len(around.before)
    return [f"Before it in line: {named}{f' and {more:,} more' if more > 0 else ''}."]


def _earliest(job: JobRow, around: Circumstances) -> list[str]:
    """When there will be room, as far as those who have it tell; nothing where not all who wait before are known."""
    is_known = around.num_before == len(around.before)
    if around.cluster is None or _down(around) is not None or not around.placed or not is_known:
        return []
    nodes, waits = _nodes(around), waiting(job)
    if fit(waits.need, empty(nodes), waits.min) < waits.min:  # whoever ends makes no room for it
        return []
    placed = [running(row, _places(row)) for row in around.placed]
    start_s = earliest_start_s([*map(waiting, around.before), waits], placed, nodes)
    if start_s is None:
        return ["Earliest start: unknown, as jobs that have the room do not tell yet when they end."]
    if start_s == 0:
        return []
    why = "when jobs that train now have ended, at their present speed"
    return [f"Earliest start: in about {duration(start_s)}, {why}."]


def _places(job: JobRow) -> tuple[str, ...]:
    """The nodes of the workers that are there, as they were told last."""
    return tuple(str(worker["node_id"]) for worker in job.observed.get("workers", ()))


def _down(around: Circumstances) -> str | None:
    if around.cluster is None:
        return "the cluster has not been seen yet."
    if not around.cluster.view.is_up:
        return f"the cluster does not answer ({around.cluster.view.error or 'no reason known'})."
    age_s = around.now_s - around.cluster.observed_at
    if age_s > STALE_CLUSTER_S:
        return f"nobody has looked at the cluster for {duration(age_s)}; the service's reconciler is away."
    return None


def _room(job: JobRow) -> str | None:
    least = job.spec.workers.min
    if job.scale.min > least:
        return f"Wish for a range that begins lower (now at {job.scale.min}, at least {least}) to start with less."
    if least > 1:
        return f"To start with less, cancel it and submit it anew with a lower `workers.min` (now {least})."
    return None


def _failed(job: JobRow) -> Explanation:
    stored, failure = job.explanation, job.failure
    reason = job.reason or Reason.CONTROLLER_ERROR
    summary = stored.summary if stored else f"It failed: {failure.message if failure else reason}"
    details = [*(stored.details if stored else ())]
    if failure is not None:
        details += _failure_lines(failure)
    return Explanation(
        summary=summary, details=tuple(details), remedy=(stored.remedy if stored else None) or REMEDIES[reason]
    )


def _failure_lines(failure: Failure) -> list[str]:
    place = f" on rank {failure.rank}" if failure.rank is not None else ""
    moment = f" in round {failure.round}" if failure.round is not None else " at start-up"
    lines = [f"{failure.type}{place}{moment}: {failure.message}"]
    # Of a chain the first error is the user's own; those that it caused tell how the service took it.
    first = re.split(_CAUSED, failure.traceback, maxsplit=1)[0]
    frames = first.rstrip().splitlines()[-NUM_FRAMES:]
    return lines + (["\n".join(frames)] if frames else [])


def _starting(job: JobRow, around: Circumstances) -> Explanation:
    if job.explanation is not None:
        return job.explanation
    detail = str(job.observed.get("detail") or "")
    return Explanation(
        summary="It is being started.",
        details=tuple([detail] if detail else _made_ready(job) or _free(job, around)),
        remedy=None,
    )


def _running(job: JobRow, around: Circumstances) -> Explanation:
    wanted = desired_workers(job)
    detail = str(job.observed.get("detail") or "")
    if job.num_current >= wanted and job.state is JobState.RUNNING:
        asked = ", as was asked for" if job.scale.pinned is not None else ""
        weighed = str(job.observed.get("size_reason") or "") if job.num_current < job.most_workers else ""
        return job.explanation or Explanation(
            summary=f"It runs with {job.num_current} of at most {job.most_workers} workers{asked}.",
            details=(weighed,) if weighed else (),
        )
    pending = int(job.observed.get("num_pending") or 0)
    summary = (
        f"It recovers: {job.num_current} of {wanted} workers train."
        if job.state is JobState.RECOVERING
        else f"It runs with {plural(job.num_current, 'worker')} and wants {wanted}."
    )
    if job.explanation is not None:
        summary = job.explanation.summary
    ready = _made_ready(job)
    num_placed = max(job.num_current, len(members(job.observed))) + len(ready)
    lack = _lack(job, around) if num_placed < wanted else []
    coming = [_coming(pending, waits=bool(lack))] if pending else []
    told = [*ready, *coming] or ([] if num_placed >= wanted else _free(job, around))
    stored = job.explanation.details if job.explanation else ()
    details = (*stored, *([detail] if detail else ()), *told, *lack)
    grows = "It grows by itself when resources are free and starts succeed; or wish for fewer workers."
    return Explanation(
        summary=summary, details=details, remedy=grows if lack or not (pending or num_placed >= wanted) else None
    )


def _made_ready(job: JobRow) -> list[str]:
    """What workers do that have a place and do not train yet, one each."""
    found = [w for w in job.observed.get("workers") or () if w.get("rank") is None]
    starting = [w for w in found if w["phase"] in START_PHASES]
    doing = ((w["worker_id"], f"{w['phase']} for {duration(w['phase_age_s'])}") for w in starting)
    told = [f"Worker {worker_id} has its place, and is being made ready ({phase})." for worker_id, phase in doing]
    ready = [w["worker_id"] for w in found if w["phase"] == Phase.READY]
    return [*told, *(f"Worker {worker_id} is ready, and waits for the others to take it in." for worker_id in ready)]


def _coming(pending: int, *, waits: bool) -> str:
    """Of workers that have not answered yet nobody tells whether they have a place."""
    who, waiting_too = ("1 more is", "waits") if pending == 1 else (f"{pending} more are", "wait")
    return f"{who} being started{f', or {waiting_too} for room' if waits else ''}."


def _out_of_sight(job: JobRow) -> Explanation:
    """Its state says that nobody trains; that is what is seen of it, and not what is known."""
    seen = job.num_current
    return Explanation(
        summary="The cluster does not answer: nobody sees whether the workers of the job still train.",
        details=(f"When it was last seen, {plural(seen, 'worker')} trained.",) if seen else (),
        remedy="Nothing to do: workers that train on are taken over when the cluster answers, and no step is lost; "
        "if they are gone, it goes on from its last checkpoint.",
    )


def _at_rest(job: JobRow) -> Explanation:
    words = {
        JobState.SUCCEEDED: "It is done.",
        JobState.CANCELLED: "It was cancelled.",
        JobState.CANCELLING: "It is being cancelled.",
        JobState.PAUSING: "It is saving a checkpoint, and pauses after.",
        JobState.PAUSED: "It is paused, and holds no resources.",
    }
    remedies = {JobState.PAUSED: "Resume it to go on from its checkpoint.", JobState.CANCELLED: "Retry it to go on."}
    stored = job.explanation
    return Explanation(
        summary=stored.summary if stored else words[job.state],
        details=stored.details if stored else (),
        remedy=remedies.get(job.state),
    )
