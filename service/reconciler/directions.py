"""What a controller is told: the row's desired state in its words. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.folders import checkpoints_place
from service.queue import wanted_workers
from service.reconciler.verdicts import effective_goal
from service.records import JobRow
from workers.run_settings import RunSettings
from workers.status import Direction, RunGoal


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a job may ask for (``Direction.num_offered``), and why it was last made smaller for others."""

    num_offered: int = 0
    why_smaller: str = ""


def placed(settings: RunSettings | None, storage: str) -> RunSettings | None:
    """The row's newest order with the place of the state that it wants."""
    if settings is None or settings.donor is None:
        return settings
    return replace(settings, donor=replace(settings.donor, url=checkpoints_place(storage, settings.donor.job_id)))


def direction_of(job: JobRow, offer: Offer, *, is_leaving: bool) -> Direction:
    """The row's desired state in the controller's words."""
    scale, wants = job.scale, wanted_workers(job)
    is_users = scale.pinned is not None or bool(scale.reason)
    goal = effective_goal(job.goal, is_leaving=is_leaving)
    if goal is RunGoal.PAUSE and job.goal is RunGoal.RUN:
        return Direction(goal=goal, num_workers=wants, reason="the service is being stopped")
    if goal is not RunGoal.RUN:  # who asked for a size, and why, has nothing to do with it
        return Direction(goal=goal, num_workers=wants, actor="user")
    if offer.why_smaller and scale.pinned is None:
        return Direction(goal=goal, num_workers=wants, num_offered=wants, actor="service", reason=offer.why_smaller)
    return Direction(
        goal=goal,
        num_workers=wants,
        num_offered=0 if scale.pinned is not None else max(wants, offer.num_offered),
        actor=scale.actor if is_users else "service",
        reason=scale.reason or (f"{wants} workers were asked for" if is_users else "what is free"),
    )
