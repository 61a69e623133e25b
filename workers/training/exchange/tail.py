"""What rides behind the last bucket's gradients: the vector, which parameters were used, buffers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workers.training.exchange.vector import NUM_SLOTS


class Tail:
    """Views into the tensor that travels. On a CPU the small parts go through numpy, which is several
    times as fast as torch for a handful of numbers.
    """

    def __init__(self, values: torch.Tensor, num_parameters: int) -> None:
        self.num_values = values.numel()
        self.extra = values[NUM_SLOTS + num_parameters :]
        self._head = values[:NUM_SLOTS]
        self._used = values[NUM_SLOTS : NUM_SLOTS + num_parameters]
        is_host = values.device.type == "cpu"
        self._host_head = self._head.numpy() if is_host else None
        self._host_used = self._used.numpy() if is_host else None

    def write_head(self, encoded: Sequence[float | torch.Tensor]) -> None:
        """Put the vector's values in place; an accelerator's queue does not run empty for those that it computes."""
        plain = [0.0 if isinstance(v, torch.Tensor) else v for v in encoded]
        plain += [0.0] * (NUM_SLOTS - len(plain))
        if self._host_head is not None:
            self._host_head[:] = plain
        else:
            self._head.copy_(torch.tensor(plain, dtype=self._head.dtype), non_blocking=True)
        for index, value in enumerate(encoded):
            if isinstance(value, torch.Tensor):
                self._head[index] = value

    def read_head(self) -> list[float]:
        """The vector's values, summed over ranks after the exchange."""
        return [float(v) for v in (self._head if self._host_head is None else self._host_head).tolist()]

    def write_used(self, used: Sequence[bool], num_unused: int) -> None:
        """Tell which parameters got a gradient on this rank."""
        if self._host_used is not None:
            self._host_used[:] = 1.0 if num_unused == 0 else used
        elif num_unused == 0:
            self._used.fill_(1.0)
        else:
            self._used.copy_(torch.tensor(used, dtype=self._used.dtype))

    def read_used(self) -> list[float]:
        """How many ranks used each parameter."""
        return [float(v) for v in self._used.tolist()]
