"""Time as a CUDA device spends it; the host's clock tells only when work was handed over."""

from __future__ import annotations

import torch

_MS_A_S = 1000.0


def noted() -> torch.cuda.Event:
    """Have the device note when it has done what the current stream was given by now; nothing waits for it."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
    event.record()
    return event


def between_s(first: torch.cuda.Event, second: torch.cuda.Event) -> float:
    """Seconds from one to the other, negative where the second came first. The device must have come to both."""
    return float(first.elapsed_time(second)) / _MS_A_S


class DeviceClock:
    """Runs on the current stream from its making until ``stop``, gaps included: a device waits for data, too."""

    def __init__(self) -> None:
        self._begun = noted()
        self._ended: torch.cuda.Event | None = None

    def stop(self) -> None:
        """It has run until the device has done what was handed over by now; nothing waits for that."""
        self._ended = noted()

    def elapsed_s(self) -> float:
        """Seconds until it was stopped; waits until the device has come to that."""
        assert self._ended is not None
        self._ended.synchronize()
        return between_s(self._begun, self._ended)
