"""The telemetry key that chooses the best checkpoint, and what is told where the job never reports it."""

from __future__ import annotations

from collections.abc import Mapping

from workers.errors import UserCodeError
from workers.status import RoundRecord
from workers.training.mailbox import Mailbox

MAX_TOLD_KEYS = 20


class Metric:
    """``key`` is ``checkpoint.metric``; None: no checkpoint is better than another."""

    def __init__(self, key: str | None, mailbox: Mailbox) -> None:
        self._key, self._mailbox = key, mailbox
        self._is_measured = key is not None and key.startswith("eval.")
        self._was_seen = False
        self._others: frozenset[str] = frozenset()

    def committed(self, record: RoundRecord) -> float | None:
        """Its value for the state after a round; None for one that is only measured by an evaluation."""
        if self._key is None:
            return None
        if not record.is_skipped:
            self._others = frozenset(record.values)
        self._was_seen |= self._key in record.values
        return record.values.get(self._key)

    def evaluated(self, values: Mapping[str, float], before: float | None) -> float | None:
        """Its value for the state that ``values`` were measured on; ``before`` where an evaluation says nothing of it.

        Raises UserCodeError where it should be among them.
        """
        if self._key is None or not self._is_measured:
            return before
        if values and self._key not in values:
            raise UserCodeError(
                f"checkpoint.metric={self._key!r} is not what `evaluate` returns (it returns: {_told(values)}); "
                "name one of these"
            )
        return values.get(self._key)  # a rank without a sample of its own knows no names

    def look(self, step: int) -> None:
        """Tell, once, that nothing was reported under the key by this step; rounds were trained before."""
        if self._key is None or self._is_measured or self._was_seen or not self._others:
            return
        name = self._key.removeprefix("user.")
        remedy = f"return it from `loss`, as (loss, {{{name!r}: value}})" if name != self._key else "choose another key"
        self._mailbox.cut(
            "metric",
            f"checkpoint.metric={self._key!r} was not reported until step {step} (reported were: "
            f"{_told(self._others)}), so no checkpoint is kept as the best; {remedy}, or name one of these",
        )


def _told(keys: Mapping[str, float] | frozenset[str]) -> str:
    names = sorted(keys)
    left_out = f" and {len(names) - MAX_TOLD_KEYS} more" if len(names) > MAX_TOLD_KEYS else ""
    return (", ".join(names[:MAX_TOLD_KEYS]) or "nothing") + left_out
