"""What one rank draws: its part of a round's batch, and of the evaluation set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from workers.plan import Plan
from workers.training.batching import own_part
from workers.training.micro_batches import Draw, InOrder, MicroBatch
from workers.training.reading import Wanted
from workers.training.setup import Setup


def draw_round(setup: Setup, plan: Plan, rank: int, cursor: int, check: Callable[[], None]) -> Draw:
    """This rank's part of the batch that begins at ``cursor``. Raises what ``Dealer.deal`` raises."""
    order, size = setup.order, batch_size(setup, plan, cursor)
    if setup.train_dealer is not None:
        return setup.train_dealer.deal(plan, rank, [order.indexes(cursor, cursor + size)], check)
    begin, end = own_part(plan, rank, size)

    def indexes(begin: int, end: int) -> list[int]:
        drawn: list[int] = order.indexes(cursor + begin, cursor + end).tolist()
        return drawn

    return InOrder(begin=begin, end=end, most=end - begin, micro=setup.micro, indexes=indexes)


def batch_size(setup: Setup, plan: Plan, cursor: int) -> int:
    """Samples of the batch that begins at ``cursor``; the job's last may come short."""
    return min(plan.global_batch, setup.total_samples - cursor)


def wanted(round: int, micro: MicroBatch) -> Wanted:
    """What is to be read for a micro-batch of the round after ``round`` commits."""
    return Wanted(round=round, position=micro.position, indexes=tuple(micro.indexes))


def ahead(setup: Setup, plan: Plan, rank: int, round: int, cursor: int) -> Iterator[Wanted]:
    """This rank's micro-batches of the rounds after that at ``cursor``, should all stay as it is.

    It ends where nothing more is drawn, or lengths are not known yet.
    """
    dealer = setup.train_dealer
    while True:
        round, cursor = round + 1, cursor + batch_size(setup, plan, cursor)
        size = batch_size(setup, plan, cursor)
        if size <= 0 or (dealer is not None and not dealer.can_deal(setup.order.indexes(cursor, cursor + size))):
            return
        draw = draw_round(setup, plan, rank, cursor, lambda: None)
        if draw.num_samples == 0:
            return
        for micro in draw.micro_batches():
            yield wanted(round, micro)


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
