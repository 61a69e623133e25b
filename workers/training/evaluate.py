"""Evaluation: a round without an update. Every rank takes its part, the sums are agreed at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import torch

from workers.errors import OutOfMemoryError, UserCodeError
from workers.plan import Plan
from workers.status import Phase
from workers.training import batching, memory
from workers.training.back_off import back_off
from workers.training.dealer import check_division
from workers.training.draw import draw_evaluation
from workers.training.exchange import vector
from workers.training.mailbox import Mailbox
from workers.training.micro_batches import MicroBatch
from workers.training.setup import Setup
from workers.training.world import World

MAX_VALUES = 32
VALUES_REASON = (
    f"evaluate returned more than {MAX_VALUES} values, or a name longer than {vector.MAX_NAME_CHARS} characters; "
    f"the first {MAX_VALUES} of shorter names are kept; return fewer"
)
_NUM_COUNTS = 4  # before the values, where ranks agree
_EVAL_SEED = 1 << 40  # rounds count from 0, far below


def evaluate(setup: Setup, mailbox: Mailbox, world: World, plan: Plan) -> dict[str, float]:
    """Means over all of ``eval_data`` by name; all members of the world call it.

    Nothing of the model changes. A rank without a sample of its own may not know the names and returns {}.

    Raises WorldError, GroupLeftError, OutOfMemoryError, other errors of the tree, and whatever the user's code raises.
    """
    mailbox.set_phase(Phase.EVAL)
    modes = [(module, module.training) for module in setup.task.model.modules()]
    setup.task.model.eval()
    try:
        own = _own_sums(setup, mailbox, world, plan)
    finally:
        for module, mode in modes:
            module.training = mode
        setup.state.buffers.rollback()
    return _agreed(world, plan, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """This rank's values times samples, its samples, and by what ranks see that they divided the set alike."""

    values: dict[str, float]
    num_samples: int
    division: float


def _own_sums(setup: Setup, mailbox: Mailbox, world: World, plan: Plan) -> _Sums:
    draw = draw_evaluation(setup, plan, world.rank, mailbox.check)
    sums: dict[str, float] = {}
    num_done, tried, begun_s = 0, 1, time.perf_counter()
    while num_done < draw.num_samples:
        try:
            for micro in draw.micro_batches(num_done):
                mailbox.check()
                tried, begun_s = micro.cost, time.perf_counter()
                values = _batch_means(setup, micro)
                kept = _kept(values)
                if len(kept) < len(values):
                    mailbox.cut("evaluation", VALUES_REASON)
                _add(sums, kept, len(micro.indexes), is_first=num_done == 0)
                num_done += len(micro.indexes)
        except (RuntimeError, MemoryError, OSError, OutOfMemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
            back_off(setup, mailbox, error, tried, draw.unit, time.perf_counter() - begun_s)
    return _Sums(values=sums, num_samples=num_done, division=draw.checksum)


def _batch_means(setup: Setup, micro: MicroBatch) -> Mapping[str, float | torch.Tensor]:
    assert setup.evaluation is not None
    assert setup.task.evaluate is not None
    batching.seed_all(setup.spec.seed, _EVAL_SEED, micro.position)
    batch = setup.evaluation.batch(micro.indexes)
    with torch.no_grad(), setup.precision.computing():
        values = setup.task.evaluate(setup.task.model, batch)
    if not isinstance(values, Mapping):
        raise UserCodeError(f"evaluate returned a {type(values).__name__}; return {{name: mean over the batch}}")
    return values


def _kept(values: Mapping[str, float | torch.Tensor]) -> Mapping[str, float | torch.Tensor]:
    """The first values of names that a chart can show."""
    wrong = next((name for name in values if not isinstance(name, str)), None)
    if wrong is not None:
        raise UserCodeError(f"evaluate returned a value under {wrong!r:.80}; name it by a text")
    return dict(islice(((n, v) for n, v in values.items() if len(n) <= vector.MAX_NAME_CHARS), MAX_VALUES))


def _add(sums: dict[str, float], values: Mapping[str, float | torch.Tensor], count: int, *, is_first: bool) -> None:
    if not is_first and values.keys() != sums.keys():
        raise UserCodeError(
            f"evaluate returned the values {list(values)} for one batch and {list(sums)} for another; "
            "return the same names every time"
        )
    for name, value in values.items():
        try:
            sums[name] = sums.get(name, 0.0) + float(value) * count
        except (TypeError, ValueError) as error:
            raise UserCodeError(
                f"evaluate returned {value!r:.80} as {name!r}; return a number, a mean over the batch"
            ) from error


def _agreed(world: World, plan: Plan, own: _Sums) -> dict[str, float]:
    names = tuple(sorted(own.values))
    named = (1.0, vector.checksum(names)) if own.num_samples else (0.0, 0.0)
    values = [own.num_samples, own.division, *named, *(own.values[n] for n in names)]
    total = world.agree(values + [0.0] * (MAX_VALUES + _NUM_COUNTS - len(values)))
    check_division(own.division, total[1], plan.num_members, "eval_data")
    if own.num_samples and abs(total[3] - total[2] * vector.checksum(names)) > 0.5:
        raise UserCodeError(f"evaluate returned other names than {list(names)} on another rank; return the same")
    return {name: value / total[0] for name, value in zip(names, total[_NUM_COUNTS:], strict=False)}
