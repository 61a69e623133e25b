"""What one exchange of gradients takes: seconds, and bytes as the kernel counts them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from workers.training.device_clock import DeviceClock, between_s, noted
from workers.training.device_occupancy import DeviceOccupancy, at_work
from workers.training.exchange.schemes import Scheme
from workers.training.world import World

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One exchange on this rank.

    Seconds: ``exchange_s`` since the first bucket left, ``exposed_s`` of waiting at its end, ``wire_s`` in which the
    link was at work, and ``hidden_s`` those of them before that wait (None in a world of one that has no link),
    ``encode_s`` and ``decode_s`` of the rank's own thread, of what a thread beside it had of a core, or of a CUDA
    device (None on other ones), ``backward_s`` of the pass that its buckets left in, with what the same thread encoded
    meanwhile (None without such a pass, and where gradients of an accelerator go through the host). ``wire_bytes`` is
    what the rank sent, None where nobody counts that.
    """

    exchange_s: float
    exposed_s: float
    wire_s: float | None
    hidden_s: float | None
    wire_bytes: int | None
    encode_s: float | None
    decode_s: float | None
    backward_s: float | None

    @property
    def codec_s(self) -> float | None:
        """Of encoding and decoding."""
        return None if self.encode_s is None or self.decode_s is None else self.encode_s + self.decode_s

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


class PassClock(Protocol):
    """Runs from its making until ``stop``."""

    def stop(self) -> None: ...

    def elapsed_s(self) -> float: ...


class HostClock:
    """A ``PassClock`` of the thread's own time."""

    def __init__(self) -> None:
        self._begun_s = self._ended_s = time.perf_counter()

    def stop(self) -> None:
        self._ended_s = time.perf_counter()

    def elapsed_s(self) -> float:
        return self._ended_s - self._begun_s


def pass_clock(world: World | None) -> PassClock | None:
    """For a backward pass that gradients leave in; None on an accelerator whose gradients go through the host."""
    if world is None or world.device.type == "cpu":
        return HostClock()
    return None if world.device_occupancy is None else DeviceClock()


class Meter(Protocol):
    """Runs from its making, just before the first bucket leaves, until ``stop``."""

    def sent_bytes(self) -> int | None:
        """What the rank has sent since, also of a world that is gone; None where nobody counts that."""
        ...

    def wait(self) -> None:
        """All has been sent, and what has not come yet is waited for."""
        ...

    def stop(self) -> None:
        """All has come."""
        ...

    def took(self, backward: PassClock | None) -> Took:
        """What it took; waits for an accelerator, so best after a result of the exchange was read."""
        ...


def meter(world: World, scheme: Scheme) -> Meter:
    """One for an exchange that begins now."""
    return HostMeter(world, scheme) if world.device_occupancy is None else DeviceMeter(world.device_occupancy, scheme)


class HostMeter:
    """A ``Meter`` of the thread's own time, where that waits for collectives itself, or there are none."""

    def __init__(self, world: World, scheme: Scheme) -> None:
        self._world, self._coding = world, scheme.coding
        self._encode_s, self._decode_s = self._coding.encode.seconds, self._coding.decode.seconds
        self._is_coding_known = world.device.type in ("cpu", "cuda")  # of others only when work was handed over
        self._sent_bytes = world.sent_bytes()
        self._begun_s = time.perf_counter()
        self._busy_s = self._busy()
        self._waits_since_s = self._ended_s = self._begun_s
        self._hidden_s: float | None = None
        self._wire_s: float | None = None
        self._wire_bytes: int | None = None

    def sent_bytes(self) -> int | None:
        before, after = self._sent_bytes, self._world.sent_bytes()
        return None if before is None or after is None else after - before

    def wait(self) -> None:
        self._waits_since_s = time.perf_counter()
        self._hidden_s = self._since()

    def stop(self) -> None:
        self._ended_s = time.perf_counter()
        self._wire_s, self._wire_bytes = self._since(), self.sent_bytes()

    def took(self, backward: PassClock | None) -> Took:
        return Took(
            exchange_s=self._ended_s - self._begun_s,
            exposed_s=self._ended_s - self._waits_since_s,
            wire_s=self._wire_s,
            hidden_s=self._hidden_s,
            wire_bytes=self._wire_bytes,
            encode_s=self._coding.encode.seconds - self._encode_s if self._is_coding_known else None,
            decode_s=self._coding.decode.seconds - self._decode_s if self._is_coding_known else None,
            backward_s=None if backward is None else backward.elapsed_s(),
        )

    def _busy(self) -> float:
        return 0.0 if self._world.occupancy is None else self._world.occupancy.busy_s

    def _since(self) -> float | None:
        """Seconds that the link has been at work since the first bucket left."""
        return None if self._world.occupancy is None else self._busy() - self._busy_s


class DeviceMeter:
    """A ``Meter`` of a CUDA device's time, where only that waits for collectives; nobody counts their bytes."""

    def __init__(self, occupancy: DeviceOccupancy, scheme: Scheme) -> None:
        self._occupancy, self._coding = occupancy, scheme.coding
        self._encode_s, self._decode_s = self._coding.encode.seconds, self._coding.decode.seconds
        occupancy.drop()  # what was agreed on since the last exchange
        self._begun = self._waits_since = self._ended = noted()

    def sent_bytes(self) -> int | None:
        return None

    def wait(self) -> None:
        self._waits_since = noted()

    def stop(self) -> None:
        self._ended = noted()

    def took(self, backward: PassClock | None) -> Took:
        self._ended.synchronize()
        told = [(between_s(self._begun, a), between_s(self._begun, b)) for a, b in self._occupancy.take()]
        wire_s, hidden_s = at_work(told, between_s(self._begun, self._waits_since))
        return Took(
            exchange_s=between_s(self._begun, self._ended),
            exposed_s=between_s(self._waits_since, self._ended),
            wire_s=wire_s,
            hidden_s=hidden_s,
            wire_bytes=None,
            encode_s=self._coding.encode.seconds - self._encode_s,
            decode_s=self._coding.decode.seconds - self._decode_s,
            backward_s=None if backward is None else backward.elapsed_s(),
        )
