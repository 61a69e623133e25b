"""What one rank draws: its part of a round's batch, and of the evaluation set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from workers.plan import Plan
from workers.training.batching import own_part
from workers.training.micro_batches import Draw, InOrder, MicroBatch
from workers.training.noise import splits
from workers.training.reading import Wanted
from workers.training.setup import Setup


def is_at_random(setup: Setup, plan: Plan, round: int) -> bool:
    """Whether a batch of samples with lengths is divided at random in the round after ``round`` commits.

    Of such parts the gradient noise can be told, and only a job that follows it pays for them. Not where what a sample
    comes to depends on the others of its pass. A function of the round, as ``splits`` is; the same on all ranks.
    """
    if setup.train_dealer is None or not setup.spec.follows_noise or plan.exchange.scheme == "local_steps":
        return False
    return splits(round + 1) and not setup.state.mixes_samples


def draw_round(setup: Setup, plan: Plan, rank: int, round: int, cursor: int, check: Callable[[], None]) -> Draw:
    """This rank's part of the batch that begins at ``cursor``, in the round after ``round`` commits.

    Raises what ``Dealer.deal`` raises.
    """
    order, size, first = setup.order, batch_size(setup, plan, cursor), _place(setup, cursor)
    if setup.train_dealer is not None and is_at_random(setup, plan, round):
        return setup.train_dealer.deal_at_random(plan, rank, order.indexes(first, first + size), check)
    if setup.train_dealer is not None:
        return setup.train_dealer.deal(plan, rank, [order.indexes(first, first + size)], check)
    is_paired = setup.state.needs_pairs
    begin, end = own_part(plan, rank, size, is_paired=is_paired)

    def indexes(begin: int, end: int) -> list[int]:
        drawn: list[int] = order.indexes(first + begin, first + end).tolist()
        return drawn

    return InOrder(begin=begin, end=end, most=end - begin, micro=setup.micro, indexes=indexes, is_paired=is_paired)


def batch_size(setup: Setup, plan: Plan, cursor: int) -> int:
    """Samples of the batch that begins at ``cursor``; the job's last may come short."""
    return min(plan.global_batch, setup.total_samples - cursor)


def round_size(setup: Setup, plan: Plan, cursor: int) -> int:
    """Samples of the round that begins at ``cursor``: one batch, or as many as there are steps in a round.

    Such a round ends early with the step that crosses a line at which all look up: to evaluate, to save or to stand.
    """
    if plan.exchange.num_steps == 1:
        return batch_size(setup, plan, cursor)
    spec, batch = setup.spec, plan.global_batch
    intervals = [spec.checkpoint.every_steps, *([] if setup.evaluation is None else [spec.eval_every_steps])]
    lines = [_following(cursor, steps * spec.batch.global_size) for steps in intervals]
    if plan.until is not None and plan.until > cursor:
        lines.append(plan.until)
    num_steps = min(plan.exchange.num_steps, *(-(-(line - cursor) // batch) for line in lines))
    return min(num_steps * batch, setup.total_samples - cursor)


def wanted(round: int, micro: MicroBatch, offset: int = 0) -> Wanted:
    """What is to be read for a micro-batch of the round after ``round`` commits.

    Its batch begins ``offset`` samples after the round does.
    """
    return Wanted(round=round, position=offset + micro.position, indexes=tuple(micro.indexes))


def ahead(
    setup: Setup, plan: Plan, rank: int, round: int, cursor: int, check: Callable[[], None], offset: int = 0
) -> Iterator[Wanted]:
    """This rank's micro-batches of the batches after that at ``cursor + offset``, should all stay as it is.

    ``cursor`` is where the round begins. It ends where nothing more is drawn, or lengths are not known yet. ``check``
    is called while they are asked for, and may raise to leave.
    """
    dealer = setup.train_dealer
    while True:
        offset += batch_size(setup, plan, cursor + offset)
        if offset >= round_size(setup, plan, cursor):
            round, cursor, offset = round + 1, cursor + offset, 0
        begin = cursor + offset
        size, first = batch_size(setup, plan, begin), _place(setup, begin)
        if size <= 0 or (dealer is not None and not dealer.can_deal(setup.order.indexes(first, first + size), check)):
            return
        draw = draw_round(setup, plan, rank, round, begin, check)
        if draw.num_samples == 0:
            return
        for micro in draw.micro_batches():
            yield wanted(round, micro, offset)


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


def _place(setup: Setup, cursor: int) -> int:
    """Where a batch lies in the order of samples, if all count that are drawn until it begins."""
    return cursor + setup.state.num_drawn - setup.state.cursor


def _following(cursor: int, every: int) -> int:
    """The next multiple after ``cursor``."""
    return (cursor // every + 1) * every
