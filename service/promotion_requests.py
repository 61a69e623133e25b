"""What a user who asks for a promotion means, and what is to be said against it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from service.configuration_records import ConfigurationRow
from service.cost import Prices
from service.errors import ConflictError, InvalidError
from service.finalists import outdated
from service.going_on import way_on
from service.promotion_records import PromotionRow, PromotionState
from service.store.sweeps import Standing
from service.sweep_records import ENDED_SWEEPS, SweepRow, SweepView
from tuning.trial import TrialState
from workers.errors import FieldProblem
from workers.spec_parts import NAME_PATTERN

_DECIDED = (PromotionState.PROMOTED, PromotionState.KEPT)


def given_name(document: object) -> str | None:
    """The configuration that a body names, None where it names none. Raises InvalidError, whatever the sweep."""
    if not isinstance(document, Mapping) or set(document) - {"configuration"}:
        told = "give {configuration: NAME}, or nothing where the spec names one"
        raise InvalidError("the body is refused", [FieldProblem("", told)])
    if "configuration" not in document:
        return None
    name = document["configuration"]
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
        raise _refused(f"must be the name of a configuration (seen: {name!r:.80})")
    return name


def wanted_name(given: str | None, row: SweepRow) -> str:
    """The one given, else the spec's, else the one that the job came from. Raises InvalidError."""
    name = given or row.document["promote"] or (row.origin.name if row.origin else None)
    if name is None:
        raise _refused("is missing, and the sweep names none: give {configuration: NAME}")
    return str(name)


def check_configuration(name: str, found: ConfigurationRow | None) -> ConfigurationRow:
    """Raises InvalidError where there is none."""
    if found is None:
        raise _refused(f"there is no configuration {name[:80]!r} to compare with; put one at /configurations/NAME")
    return found


def usual_name(row: SweepRow, standing: Standing) -> str | None:
    """What a page offers, where nobody names one: what the spec says, else the last one, else whence the job came."""
    last = None if standing.promotion is None else standing.promotion.promotion.configuration
    return row.document["promote"] or last or (row.origin.name if row.origin else None)


def is_new(view: SweepView, standing: Standing, configuration: ConfigurationRow, prices: Prices) -> bool:
    """Whether its winner is to be held against this configuration; False where that is what comes or goes on.

    Raises ConflictError where there is nothing to compare, nothing new, or what was changed meanwhile would be undone.
    """
    row = view.sweep
    if (population := row.spec.population) is not None:
        why = f"{population} changes values on the way, so what it found is no point that could be promoted"
        raise ConflictError(f"{why}; its report has the values behind its best state, and since when")
    latest = None if standing.promotion is None else standing.promotion.promotion
    if _is_asked_already(row, latest, configuration.name):
        return False
    if told := outdated(row, view.trials, configuration):
        raise ConflictError(told)
    if row.state in ENDED_SWEEPS and not standing.counts.complete:
        has_failed = any(trial.state is TrialState.FAILED for trial in view.trials)
        hint = way_on(view, prices, can_retry=has_failed)
        raise ConflictError(f"no trial is complete, so there is nothing to promote; {hint}")
    _check_news(row, latest, configuration)
    return True


def _is_asked_already(row: SweepRow, latest: PromotionRow | None, name: str) -> bool:
    """Whether that is what comes or goes on. Raises ConflictError where another configuration is compared with."""
    is_compared = latest is not None and latest.state is PromotionState.RUNNING
    current = latest.configuration if latest is not None and is_compared else row.promote_to
    if current is not None and current != name and (is_compared or row.state in ENDED_SWEEPS):
        raise ConflictError(f"its winner is being held against {current!r}; stop that first")
    return current == name


def _check_news(row: SweepRow, promotion: PromotionRow | None, configuration: ConfigurationRow) -> None:
    """Raises ConflictError where it was decided and nothing is new.

    A second draw of the same comparison would only be another chance to be wrong.
    """
    if promotion is None or promotion.state not in _DECIDED or promotion.configuration != configuration.name:
        return
    version = promotion.version or promotion.base_version
    # One that was deleted and put anew counts its versions from 1 again.
    compared = [contender.job for contender in promotion.contenders]
    is_as_decided = version == configuration.version and (not compared or configuration.document in compared)
    ended_since = row.finished_at is None or row.finished_at > promotion.created_at
    if is_as_decided and not ended_since:
        told = f"that was decided: {promotion.reason}"
        raise ConflictError(f"{told}; extend the sweep, or change {configuration.name!r}, and ask again")


def _refused(told: str) -> InvalidError:
    return InvalidError("the body is refused", [FieldProblem("/configuration", told)])
