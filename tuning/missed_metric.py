"""What to tell of a trial whose job does not report the sweep's metric. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from tuning.objectives import objective_fault

MAX_TOLD = 20


def not_evaluated(metric: str, told: Collection[str]) -> str:
    """``told`` are the keys of an evaluation without the metric: ``evaluate`` returns the same names every time."""
    return f"its job does not report {metric}{_instead(metric, told, 'its evaluation told')}"


def never_reported(metric: str, told: Collection[str]) -> str:
    """``told`` are keys under which a job reported that has come to its end.

    The metric is among them where all that it told of it was void, as the trial took another's state over.
    """
    if metric in told:
        return f"its job reported {metric} of the state that it gave up only"
    return f"its job never reported {metric}{_instead(metric, told, 'it told')}"


def _instead(metric: str, told: Collection[str], who: str) -> str:
    names = sorted(key for key in told if not objective_fault(key))
    if not names:
        return ", nor anything else that a sweep can be over"
    near = difflib.get_close_matches(metric, names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    left_out = f" and {len(names) - MAX_TOLD} more" if len(names) > MAX_TOLD else ""
    return f"{hint}; {who} {', '.join(names[:MAX_TOLD])}{left_out}: start a sweep over one of these"
