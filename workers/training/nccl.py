"""A group by NCCL, whose errors are left to the controller."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed

from workers.training.store import CallbackStore

_VARIABLES = {
    # Else an error, as of a peer that is gone, ends the process, while survivors are to go on with what they hold.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # Else the host waits where a stream is to.
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}
"""What torch reads as it makes a group."""


def form_nccl(store: CallbackStore, rank: int, size: int, timeout: timedelta) -> Any:
    """A Backend of torch.distributed, without stubs; all ``size`` ranks must call it."""
    options = torch.distributed.ProcessGroupNCCL.Options()
    options._timeout = timeout
    with _environment(_VARIABLES):
        return torch.distributed.ProcessGroupNCCL(store, rank, size, options)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """With these, whatever it has besides; as before afterwards, for groups of the user's own."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
