"""The promotion of a sweep as users see it, from the store's records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.documents import Document
from service.promotion_records import BETTER, INCUMBENT, PromotionStanding, PromotionState
from service.sweep_records import SweepRow
from service.times import rfc3339


def promotion_document(row: SweepRow, standing: PromotionStanding | None) -> Document | None:
    """The promotion that comes, goes on or was the last; None where nothing was ever to be promoted.

    What was measured is told at its end. Means are over the new runs, so they, and not the sweep's own values,
    are what is to be expected.
    """
    is_compared = standing is not None and standing.promotion.state is PromotionState.RUNNING
    if row.promote_to is not None and not is_compared:
        return {**_NOTHING_YET, "configuration": row.promote_to, "state": PromotionState.WAITING}
    if standing is None:
        return None
    promotion = standing.promotion
    evidence: Mapping[str, Any] = promotion.evidence or {}
    finalists = [c for c in promotion.contenders if c.number != INCUMBENT]
    return {
        "number": promotion.number,
        "configuration": promotion.configuration,
        "state": promotion.state,
        "reason": promotion.reason,
        "base_version": promotion.base_version or None,
        "version": promotion.version,
        "current_version": standing.current_version,
        "trial": evidence.get("trial"),
        "because": evidence.get("because", None if evidence.get("trial") is None else BETTER),
        "runs": {"started": standing.num_runs, "ended": standing.num_ended},
        "worker_s": round(standing.seconds, 3),
        "incumbent": evidence.get("incumbent"),
        "finalists": evidence.get("finalists", [{"trial": c.number, "params": dict(c.params)} for c in finalists]),
        "created_at": rfc3339(promotion.created_at),
        "finished_at": rfc3339(promotion.finished_at),
    }


_NOTHING_YET: Mapping[str, Any] = {
    **dict.fromkeys(
        ("number", "reason", "base_version", "version", "current_version", "trial", "because", "incumbent")
    ),
    "created_at": None,
    "finished_at": None,
    "runs": {"started": 0, "ended": 0},
    "worker_s": 0.0,
    "finalists": [],
}
