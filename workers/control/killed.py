"""Workers whose processes were killed in a forward pass larger than any before: smaller ones from then on. Pure."""

from __future__ import annotations

from dataclasses import replace

from workers.control import planning
from workers.control.decisions import ControllerState, Inputs, Note
from workers.control.fatal_passes import LEAST_DEATHS, Bound, FatalPasses
from workers.errors import Failure, Reason
from workers.plan import TimelineKind
from workers.status import TimelineRow

_AS_KERNEL = "as the kernel does where memory runs out"


def observe(
    before: ControllerState, state: ControllerState, inputs: Inputs, now_s: float
) -> tuple[ControllerState, tuple[Note, ...]]:
    """Note who died, and what newcomers found of those on their nodes; a row where passes are bounded by that."""
    fatal = _counted(before, state, inputs, now_s)
    if fatal.died:
        for facts in {**before.workers, **state.workers}.values():
            if facts.status is not None and (build := facts.status.build) is not None:
                fatal = fatal.read(build.node_id, facts.started_s, build.last_passes)
    if fatal is state.fatal:
        return state, ()
    known = (state.fatal.most, state.plan.most_micro if state.plan else None)
    state, bound = replace(state, fatal=fatal), fatal.bound
    if bound is None or any(most is not None and most <= bound.most for most in known) or not _is_free(state):
        return state, ()
    return state, (Note(_row(state, inputs, bound)),)


def _counted(before: ControllerState, state: ControllerState, inputs: Inputs, now_s: float) -> FatalPasses:
    """With who is gone by now, which is a new series where the job has got further."""
    fatal = state.fatal
    died = [i for i, why in inputs.lost.items() if _is_by_itself(before, i, why)]
    killed = {i for i, facts in {**before.workers, **state.workers}.items() if facts.kill is not None}
    series = frozenset() if state.best_cursor > before.best_cursor else fatal.series
    series |= killed | {i for i in inputs.lost if i in before.workers and before.workers[i].stopping_since_s is None}
    if not died and series == fatal.series:
        return fatal
    return replace(fatal, died={**fatal.died, **dict.fromkeys(died, now_s)}, series=series)


def _is_by_itself(before: ControllerState, worker_id: str, why: str) -> bool:
    """Whether nobody here wanted a worker's end, and its node is still there."""
    facts = before.workers.get(worker_id)
    is_killed = why.startswith("its process") and (why.endswith(" died") or "ran out of memory" in why)
    return is_killed and facts is not None and facts.stopping_since_s is None and facts.kill is None


def _is_free(state: ControllerState) -> bool:
    return not isinstance(state.spec.batch.micro_size, int)


def _row(state: ControllerState, inputs: Inputs, bound: Bound) -> TimelineRow:
    return TimelineRow(
        key=f"micro_bound/{bound.most}",
        kind=TimelineKind.BATCH,
        time=inputs.unix_s,
        step=planning.progress_step(state),
        actor="controller",
        reason=f"worker {bound.worker_id} was killed in its first forward pass of {_samples(bound.size)}, {_AS_KERNEL} "
        f"({_known(bound)} on its node); until the attempt ends a pass has at most {_samples(bound.most)}",
        after={"micro_size": bound.most},
        cost_s=0.0,
        steps_lost=0,
    )


def _known(bound: Bound) -> str:
    if not bound.passed:
        return f"{bound.num_deaths} died so before any had passed"
    if bound.size > bound.passed:
        return f"{bound.passed} had passed"
    return f"{bound.num_deaths} died so beside others that had come through {bound.passed}"


def failure(state: ControllerState) -> Failure | None:
    """A lack of memory, where since the job last got further workers were only lost in such passes; None elsewhere."""
    fatal = state.fatal
    told = {i: note for i, note in fatal.untried.items() if i in fatal.series}
    unread = fatal.died.keys() & state.departed.keys()  # who could find the notes of the last has not come
    if len(told) < LEAST_DEATHS or not fatal.series <= told.keys() | unread:
        return None
    worker_id, note = next(iter(told.items()))
    remedy = "" if _is_free(state) else "set batch.micro_size to auto or lower it, "
    message = (
        f"workers were killed in one first forward pass after the other, the smallest of {_samples(note.size)}, "
        f"{_AS_KERNEL}; {remedy}give workers, or the containers that they run in, more memory, or make the model or "
        "its samples smaller"
    )
    return Failure(
        reason=Reason.OUT_OF_MEMORY,
        type="WorkersKilled",
        message=message,
        worker_id=worker_id,
        round=state.furthest[1] + 1,
    )


def _samples(num: int) -> str:
    return "1 sample" if num == 1 else f"{num} samples"
