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
    link was at work (None where the host does not see that), ``encode_s`` and ``decode_s`` of the rank's own thread
    (None on an accelerator), ``backward_s`` of the pass that its buckets left in, with what was encoded meanwhile (None
    on an accelerator, and without such a pass). ``wire_bytes`` is what the rank sent, None where nobody counts that.
    """

    exchange_s: float
    exposed_s: float
    wire_s: float | None
    wire_bytes: int | None
    encode_s: float | None
    decode_s: float | None
    backward_s: float | None

    def values(self, num_values: int, num_ranks: int, num_steps: int = 1) -> dict[str, float]:
        """Telemetry by key for so many gradients, ranks and steps, without what nobody knows.

        ``wire_ratio`` is what an all-reduce in fp32 in each step sends of the gradients alone, over what was sent;
        ``round_steps`` are the steps, where all else that is told of the round is of several.
        """
        told = {"wire_bytes": self.wire_bytes, "encode_s": self.encode_s, "decode_s": self.decode_s}
        values = {key: float(value) for key, value in told.items() if value is not None}
        if self.wire_bytes:
            values["wire_ratio"] = num_steps * fp32_bytes(num_values, num_ranks) / self.wire_bytes
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
        self._busy_s = 0.0 if world.occupancy is None else world.occupancy.busy_s

    def stop(self, waits_since_s: float, backward_s: float | None) -> Took:
        """All has come; it was waited for since then, by the performance counter. Backward took so long here."""
        occupancy, now_s = self._world.occupancy, time.perf_counter()
        before, after, is_host = self._sent_bytes, self._world.sent_bytes(), self._world.device.type == "cpu"
        return Took(
            exchange_s=now_s - self._begun_s,
            exposed_s=now_s - waits_since_s,
            wire_s=None if occupancy is None else occupancy.busy_s - self._busy_s,
            wire_bytes=None if before is None or after is None else after - before,
            encode_s=self._coding.encode.seconds - self._encode_s if is_host else None,
            decode_s=self._coding.decode.seconds - self._decode_s if is_host else None,
            backward_s=backward_s if is_host else None,
        )
