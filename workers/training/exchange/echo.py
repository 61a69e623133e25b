"""A world in which nothing travels, to see what a scheme takes by itself."""

from __future__ import annotations

import torch

from workers.training.world import Seat, Transfer, World


class _Done(Transfer):
    """It has ended when it begins."""

    def __init__(self) -> None: ...

    def wait(self) -> None: ...


class _NoStore:
    """``StoreCalls`` of who meets nobody."""

    address = ""

    def set(self, group: str, key: str, value: bytes) -> None: ...

    def get(self, group: str, key: str, timeout_s: float) -> bytes:
        return b""

    def add(self, group: str, key: str, amount: int) -> int:
        return 0

    def check(self, group: str, keys: list[str]) -> bool:
        return False


class Echo(World):
    """Rank 0 of two, where the other sends what this one does; a sum stays as it is.

    ``num_bytes`` counts what it was given to send.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(Seat(group="echo", rank=0, size=2, backend="gloo", device=device), _NoStore())
        self.num_bytes = 0

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self.num_bytes += tensor.nbytes

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Transfer:
        self.num_bytes += tensor.nbytes
        output.copy_(tensor.expand_as(output))
        return _Done()
