"""Agreement on the next plan at a step boundary, without a control message in the step. Pure.

A worker counts itself in the vector that rides with the gradients when it holds a pending plan; when
the sum equals the number of members, all of them know it at the same boundary and switch together.
A worker switches only to the plan that it counted when it encoded the vector: one that arrived
between encoding and commit waits for the next boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workers.plan import Plan, PlanId, Switch


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What one worker holds: the plan in force, the pending one, and the one it counted last.

    ``halted`` is a promise: no plan of this id or a lower one is entered from now on.
    """

    plan: Plan | None = None
    pending: Plan | None = None
    counted: PlanId | None = None
    halted: PlanId = PlanId(0, 0)

    @property
    def highest(self) -> PlanId:
        """The highest plan id seen so far."""
        ids = [p.id for p in (self.plan, self.pending) if p is not None]
        return max([*ids, self.halted])


def offer(held: Agreement, plan: Plan) -> Agreement:
    """Take a plan that the controller offers; late and repeated offers change nothing.

    A held pending plan is never dropped, only overtaken by a higher one or halted.
    """
    return replace(held, pending=plan) if plan.id > held.highest else held


def halt(held: Agreement, plan_id: PlanId) -> Agreement:
    """Promise never to enter a plan up to ``plan_id``; whoever trains under one must leave its group.

    Once every survivor of a broken group has promised, what they report is final: nobody can commit
    or switch any more before the next plan.
    """
    if plan_id <= held.halted:
        return held
    pending = held.pending if held.pending is not None and held.pending.id > plan_id else None
    return replace(held, halted=plan_id, pending=pending, counted=None)


def is_halted(held: Agreement) -> bool:
    """Whether the plan in force is one that this worker promised to leave."""
    return held.plan is not None and held.plan.id <= held.halted


def has_pending(held: Agreement) -> bool:
    """Whether this worker holds a plan that its group may agree on."""
    return held.pending is not None and held.pending.switch is Switch.AGREED


def count(held: Agreement) -> tuple[Agreement, int]:
    """What this worker adds to the vector's "I hold the pending plan"; call when encoding it."""
    counted = held.pending.id if held.pending is not None and has_pending(held) else None
    return replace(held, counted=counted), int(counted is not None)


def settle(held: Agreement, num_counted: int) -> Agreement:
    """The agreement after a committed round whose vector summed to ``num_counted``.

    Every member of the group calls it with the same number. The counted plan comes into force when
    all members of the plan in force counted.
    """
    plan, pending, counted = held.plan, held.pending, held.counted
    if plan is None or counted is None or num_counted != plan.num_members:
        return replace(held, counted=None)
    if pending is None or pending.id != counted:
        # It was halted, or overtaken by a NOW plan, after the vector was encoded: the controller has
        # already taken this group for lost, and what the others agreed on is told by their reports.
        return replace(held, counted=None)
    return replace(held, plan=pending, pending=None, counted=None)


def enterable(held: Agreement, worker_id: str, *, only_now: bool) -> Plan | None:
    """The pending plan that a worker in no group may enter at once, or None.

    ``only_now``: it left its last group by a failure, so an agreed plan that it held then is no
    longer the group's to agree on; it waits for the controller's word.
    """
    plan = held.pending
    if plan is None or plan.member(worker_id) is None:
        return None
    return None if only_now and plan.switch is not Switch.NOW else plan


def enter(held: Agreement, plan: Plan) -> Agreement:
    """The agreement of a worker that enters ``plan`` without a vote."""
    pending = held.pending if held.pending is not None and held.pending.id > plan.id else None
    return replace(held, plan=plan, pending=pending, counted=None)
