"""What the ranks of a group left out of gradients: it goes on where ranks leave, and into checkpoints.

It travels as gradients do by ``int8``, a bucket at a time, and only where somebody keeps something: a checkpoint on a
slow link must not take what a dense step does, and this is the error of an error. What a rank keeps that is lost is
lost with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch

from workers.plan import Goal, Plan
from workers.status import Phase
from workers.training.exchange.buckets import grouped
from workers.training.exchange.codecs import Int8
from workers.training.exchange.compressed import Compressed
from workers.training.exchange.reals import real_shape
from workers.training.exchange.residual import Residual
from workers.training.mailbox import Mailbox
from workers.training.saving import saver
from workers.training.state import TrainingState
from workers.training.world import World

SAVER = 0
"""The rank that writes the checkpoints of a group."""


class Owed:
    """Of the members of one group; all of them make the same calls, between rounds."""

    def __init__(self, state: TrainingState, mailbox: Mailbox, world: World) -> None:
        self._state, self._mailbox, self._world = state, mailbox, world

    def total(self) -> dict[str, torch.Tensor]:
        """What all ranks together keep, on rank ``SAVER``: by parameter, in units of the mean gradient.

        Empty on others, and where nobody keeps anything. Raises WorldError.
        """
        return self._summed(SAVER, gives=True)

    def hand_over(self, plan: Plan, following: Plan) -> None:
        """Between two plans: what leavers keep goes to one that stays, all there is to the one that saves for all.

        Where the group breaks meanwhile, it is lost. Raises WorldError.
        """
        givers, taker = handed_over(plan, following)
        if givers and taker is not None:
            self._give(givers, taker)

    def bring_together(self) -> None:
        """All there is goes to rank ``SAVER``, as the others train no more. As ``hand_over``."""
        self._give({*range(self._world.size)} - {SAVER}, SAVER)

    def _give(self, givers: Set[int], taker: int) -> None:
        residual, rank = self._state.residual, self._world.rank
        if not residual.is_owed or self._world.size == 1:
            return
        try:
            total = self._summed(taker, gives=rank in givers or rank == taker)
        finally:
            # In any case: the one that takes it may have all of it when this rank learns that the group broke.
            if rank in givers:
                residual.load({}, is_owed=True)
        if rank == taker:
            residual.load(total, is_owed=True)

    def _summed(self, taker: int, *, gives: bool) -> dict[str, torch.Tensor]:
        state, world, total = self._state, self._world, dict[str, torch.Tensor]()
        if not state.residual.is_owed:
            return total
        self._mailbox.set_phase(Phase.EXCHANGE)
        named = [*state.trained.items()]
        for indexes in grouped([parameter for _, parameter in named]):
            total |= self._bucket({named[i][0]: real_shape(named[i][1]) for i in indexes}, taker, gives=gives)
        if world.is_aborted:  # an accelerator's collective then ends without an error, and brings nothing
            raise world.broken(None)
        return total

    def _bucket(self, shapes: Mapping[str, torch.Size], taker: int, *, gives: bool) -> dict[str, torch.Tensor]:
        """The sum of some parameters' parts, on that rank; memory for what is sent goes with the call."""
        flat = torch.cat([self._part(name, shape, gives=gives).view(-1) for name, shape in shapes.items()])
        under_way = Compressed(Int8(), Residual()).start(0, flat, flat.numel(), self._world)
        if under_way is not None:
            under_way.wait()
        if self._world.rank != taker:
            return {}
        split = torch.split(flat, [shape.numel() for shape in shapes.values()])
        return {name: part.view(shapes[name]) for name, part in zip(shapes, split, strict=True)}

    def _part(self, name: str, shape: torch.Size, *, gives: bool) -> torch.Tensor:
        kept = self._state.residual.part(name) if gives else None
        return torch.zeros(shape, device=self._world.device) if kept is None else kept


def handed_over(plan: Plan, following: Plan) -> tuple[Set[int], int | None]:
    """The ranks whose residuals go to another, and that one; both of ``plan``. Pure, the same on all ranks.

    Nothing goes anywhere where nobody leaves or nobody stays, and where all take the state of somebody else.
    """
    stays = {m.rank: following.member(m.worker_id) is not None for m in plan.members}
    if following.goal is Goal.SAVE_AND_STOP:
        member = plan.member(saver(following))
        return (frozenset(), None) if member is None else (stays.keys() - {member.rank}, member.rank)
    if following.lineage != plan.lineage:
        return frozenset(), None
    leaving = {rank for rank, is_member in stays.items() if not is_member}
    return leaving, min(stays.keys() - leaving, default=None)
