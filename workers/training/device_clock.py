"""Time as a CUDA device spends it; the host's clock tells only when work was handed over."""

from __future__ import annotations

import torch

_MS_A_S = 1000.0


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's


class DeviceClock:
    """Runs on the current stream from its making until ``stop``, gaps included: a device waits for data, too."""

    def __init__(self) -> None:
        self._begun, self._ended = _event(), _event()
        self._begun.record()

    def stop(self) -> None:
        """Have the device note when it has done what was handed over by now; nothing waits for it."""
        self._ended.record()

    def elapsed_s(self) -> float:
        """Seconds between the two; waits until the device has come to the second."""
        self._ended.synchronize()
        return float(self._begun.elapsed_time(self._ended)) / _MS_A_S
