"""What one exchange of gradients takes: seconds, and bytes as the kernel counts them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from workers.training.exchange.schemes import Scheme
from workers.training.world import World

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One exchange on this rank.

    Seconds: ``exchange_s`` since the first bucket left, ``exposed_s`` of waiting at its end, ``wire_s`` in which the
    link was at work, and ``hidden_s`` those of them before that wait (None where the host does not see that),
    ``encode_s`` and ``decode_s`` of the rank's own thread (None on an accelerator), ``backward_s`` of the pass that its
    buckets left in, with what was encoded meanwhile (None on an accelerator, and without such a pass). ``wire_bytes``
    is what the rank sent, None where nobody counts that.
    """

    exchange_s: float
    exposed_s: float
    wire_s: float | None
    hidden_s: float | None
    wire_bytes: int | None
    encode_s: float | None
    decode_s: float | None
    backward_s: float | None

    def values(self, num_values: int, num_ranks: int, num_steps: int = 1, redone_bytes: int = 0) -> dict[str, float]:
        """Telemetry by key for so many gradients, ranks and steps, without what nobody knows.

        ``wire_bytes`` has besides what was sent for rounds that were done again, told as ``redone_bytes`` where there
        were any. ``wire_ratio`` is what an all-reduce in fp32 in each step sends of the gradients alone, over all of
        that; ``round_steps`` are the steps, where all else that is told of the round is of several.
        """
        wire_bytes = None if self.wire_bytes is None else self.wire_bytes + redone_bytes
        seconds = {"hidden_s": self.hidden_s, "encode_s": self.encode_s, "decode_s": self.decode_s}
        told = {"wire_bytes": wire_bytes, **seconds}
        values = {key: float(value) for key, value in told.items() if value is not None}
        if wire_bytes and num_ranks > 1:
            values["wire_ratio"] = num_steps * fp32_bytes(num_values, num_ranks) / wire_bytes
        if wire_bytes and redone_bytes:
            values["redone_bytes"] = float(redone_bytes)
        if num_steps > 1:
            values["round_steps"] = float(num_steps)
        return values


def fp32_bytes(num_values: int, num_ranks: int) -> float:
    """Bytes that each rank sends where so many values are summed in fp32 by an all-reduce."""
    return 2.0 * (num_ranks - 1) / num_ranks * _FP32_BYTES * num_values


class Meter:
    """Runs from its making, just before the first bucket leaves, until ``stop``."""

    def __init__(self, world: World, scheme: Scheme) -> None:
        self._world, self._coding = world, scheme.coding
        self._encode_s, self._decode_s = self._coding.encode.seconds, self._coding.decode.seconds
        self._sent_bytes = world.sent_bytes()
        self._begun_s = time.perf_counter()
        self._busy_s = self._busy()
        self._waits_since_s = self._begun_s
        self._hidden_s: float | None = None

    def sent_bytes(self) -> int | None:
        """What the rank has sent since, also of a world that is gone; None where nobody counts that."""
        before, after = self._sent_bytes, self._world.sent_bytes()
        return None if before is None or after is None else after - before

    def wait(self) -> None:
        """All has been sent, and what has not come yet is waited for."""
        self._waits_since_s = time.perf_counter()
        self._hidden_s = self._since()

    def stop(self, backward_s: float | None) -> Took:
        """All has come. Backward took so long here."""
        now_s = time.perf_counter()
        is_host = self._world.device.type == "cpu"
        return Took(
            exchange_s=now_s - self._begun_s,
            exposed_s=now_s - self._waits_since_s,
            wire_s=self._since(),
            hidden_s=self._hidden_s,
            wire_bytes=self.sent_bytes(),
            encode_s=self._coding.encode.seconds - self._encode_s if is_host else None,
            decode_s=self._coding.decode.seconds - self._decode_s if is_host else None,
            backward_s=backward_s if is_host else None,
        )

    def _busy(self) -> float:
        return 0.0 if self._world.occupancy is None else self._world.occupancy.busy_s

    def _since(self) -> float | None:
        """Seconds that the link has been at work since the first bucket left."""
        return None if self._world.occupancy is None else self._busy() - self._busy_s
