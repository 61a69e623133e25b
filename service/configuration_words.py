"""Words about configurations and what made them change, for pages and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service import sweep_words
from service.configuration_records import BY_HAND
from service.promotion_records import CHEAPER


def by(who: str) -> str:
    """Who replaced a version."""
    return "by hand" if who == BY_HAND else f"sweep {who}"


def evidence(told: Mapping[str, Any] | None) -> str:
    """What a sweep measured: ``trial 4 (optimizer.lr 0.01) is better by 1.2 % (0.8 to 1.6 %) in 12 pairs of runs``."""
    if told is None:
        return "–"
    winner = next(each for each in told["finalists"] if each["trial"] == told["trial"])
    where = f" ({sweep_words.params(winner['params'])})" if winner["params"] else ""
    is_cheaper = told.get("because") == CHEAPER
    how = f"costs {saving(winner)} less and is as good: better" if is_cheaper else "is better"
    return f"trial {winner['trial']}{where} {how} by {effect(winner)}"


def saving(compared: Mapping[str, Any]) -> str:
    """The share of the incumbent's cost that a finalist saves: ``75 %``; below 0 it costs more."""
    return f"{_percent(compared['saving'], digits=3)} %"


def effect(compared: Mapping[str, Any]) -> str:
    """By how much a finalist is better, with the bounds that hold it with 90 %: ``1.2 % (0.8 to 1.6 %) ...``."""
    found, low, high = (_percent(compared[key], digits=2) for key in ("effect", "low", "high"))
    return f"{found} % ({low} to {high} %) in {compared['num_pairs']} pairs of runs"


def _percent(share: float, digits: int) -> str:
    """Of so many digits, the rest zeros: ``320``, where Python alone would write ``3.2e+02``."""
    return f"{float(f'{share * 100:.{digits}g}'):,.10g}"
