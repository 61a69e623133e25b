"""How a sweep goes on from where it stands: what to do, told to whom it refuses something. Pure."""

from __future__ import annotations

from service.cost import Prices
from service.sweep_limits import limit_of_ended
from service.sweep_records import ENDED_SWEEPS, SweepRow, SweepState, SweepView
from tuning.limits import MAX_FAILURES
from tuning.space import space_of
from tuning.spec_parts import MAX_TRIALS
from tuning.trial import TrialState


def way_on(view: SweepView, prices: Prices, *, can_retry: bool) -> str:
    """A remedy that works for this sweep, as a clause; ``can_retry``: trials that failed have jobs that can go on."""
    sweep = view.sweep
    if sweep.state not in ENDED_SWEEPS:
        return "resume it and it goes on" if sweep.state is SweepState.PAUSED else "it goes on by itself"
    anew = f"warm_start: [{sweep.id}] lets it begin from what this one found"
    if reached := limit_of_ended(view, prices):
        return f"{reached}, and limits stay as they are, so make a sweep with wider ones, and {anew}"
    ways = []
    if sweep.num_trials < most_trials(sweep) and not fails_always(view):
        ways.append("extend it")
    if can_retry:
        ways.append("retry its failed trials")
    if ways:
        return f"{' or '.join(ways)} and it goes on"
    if fails_always(view):
        return "whatever it tried failed, so see to the cause and make another sweep"
    wider = "a wider space" if sweep.spec.population is None else "a wider space or more parallel trials"
    return f"it may have no more trials, so make a sweep with {wider}, and {anew}"


def most_trials(sweep: SweepRow) -> int:
    """As many as it could be extended to: points run out, and a population trains all its trials at once."""
    spec = sweep.spec
    count = space_of(spec.space).count() or MAX_TRIALS
    return min(count, MAX_TRIALS, MAX_TRIALS if spec.population is None else spec.parallel)


def fails_always(view: SweepView) -> bool:
    """Whether so many of its trials failed, and none did anything else, that a further one would end it at once."""
    states = {trial.state for trial in view.trials}
    return states == {TrialState.FAILED} and len(view.trials) >= MAX_FAILURES
