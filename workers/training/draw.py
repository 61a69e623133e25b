"""What one rank draws: its part of a round's batch, and of the evaluation set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from workers.plan import Plan
from workers.training.batching import own_part
from workers.training.micro_batches import Draw, InOrder
from workers.training.setup import Setup


def draw_round(setup: Setup, plan: Plan, rank: int, size: int, check: Callable[[], None]) -> Draw:
    """This rank's part of the next ``size`` samples of the order. Raises what ``Dealer.deal`` raises."""
    cursor, order = setup.state.cursor, setup.order
    if setup.train_dealer is not None:
        return setup.train_dealer.deal(plan, rank, [order.indexes(cursor, cursor + size)], check)
    begin, end = own_part(plan, rank, size)

    def indexes(begin: int, end: int) -> list[int]:
        drawn: list[int] = order.indexes(cursor + begin, cursor + end).tolist()
        return drawn

    return InOrder(begin=begin, end=end, most=end - begin, micro=setup.micro, indexes=indexes)


def draw_evaluation(setup: Setup, plan: Plan, rank: int, check: Callable[[], None]) -> Draw:
    """This rank's part of ``eval_data``, in micro-batches as in training. Raises what ``Dealer.deal`` raises."""
    size = plan.global_batch
    if setup.eval_dealer is not None:
        starts = range(0, setup.num_eval, size)
        batches = (np.arange(begin, min(begin + size, setup.num_eval)) for begin in starts)
        return setup.eval_dealer.deal(plan, rank, batches, check)
    begin, end = own_part(plan, rank, setup.num_eval)
    training_part = own_part(plan, rank, size)
    most = max(1, training_part[1] - training_part[0])
    return InOrder(begin=begin, end=end, most=most, micro=setup.micro, indexes=lambda b, e: list(range(b, e)))
