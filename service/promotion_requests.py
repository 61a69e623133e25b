"""What a user who asks for a promotion means, and what is to be said against it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from service.configuration_records import ConfigurationRow
from service.errors import ConflictError, InvalidError
from service.promotion_records import PromotionRow, PromotionState
from service.store.sweeps import Standing
from service.sweep_records import ENDED_SWEEPS, SweepRow
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


def is_asked_already(row: SweepRow, latest: PromotionRow | None, name: str) -> bool:
    """Whether that is what comes or goes on. Raises ConflictError where another configuration is compared with."""
    is_compared = latest is not None and latest.state is PromotionState.RUNNING
    current = latest.configuration if latest is not None and is_compared else row.promote_to
    if current is not None and current != name and (is_compared or row.state in ENDED_SWEEPS):
        raise ConflictError(f"its winner is being held against {current!r}; stop that first")
    return current == name


def check_news(row: SweepRow, standing: Standing, configuration: ConfigurationRow) -> None:
    """Raises ConflictError where it was decided and nothing is new.

    A second draw of the same comparison would only be another chance to be wrong.
    """
    promotion = None if standing.promotion is None else standing.promotion.promotion
    if promotion is None or promotion.state not in _DECIDED or promotion.configuration != configuration.name:
        return
    version = promotion.version or promotion.base_version
    ended_since = row.finished_at is None or row.finished_at > promotion.created_at
    if version == configuration.version and not ended_since:
        told = f"that was decided: {promotion.reason}"
        raise ConflictError(f"{told}; extend the sweep, or change {configuration.name!r}, and ask again")


def _refused(told: str) -> InvalidError:
    return InvalidError("the body is refused", [FieldProblem("/configuration", told)])
