"""What may be asked of a running job beyond its spec: another learning rate, another batch, another job's state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Donor:
    """The state of another job with the same task: model, optimizer and progress, ``cursor`` samples of it.

    ``path`` is the name of the checkpoint among those of the job; ``url`` is where these lie, which whoever directs
    the taking job fills in.
    """

    job_id: str
    path: str
    cursor: int
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The newest order to a running job; ``n`` counts its orders from 1, and the plan that carries one out bears it.

    ``lr`` is meant at the spec's base batch, ``global_batch`` is in samples. ``actor`` and ``reason`` tell who asks
    for it and why. It holds for all attempts to come, until a later order or a start from the beginning.
    ``donor`` is a state to go on from, once, instead of the job's own.
    """

    n: int
    lr: float
    global_batch: int
    actor: str
    reason: str
    donor: Donor | None = None
