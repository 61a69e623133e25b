"""Parameters that no rank uses in some rounds: what was left out of their gradients waits, as the optimizer does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.linear_job import BATCH, LR, SHAPES, Job, Linear, Vectors, mean, sgd
from workers.plan import Exchange
from workers.storage_urls import join
from workers.training.exchange import buckets
from workers.training.exchange.reals import as_real
from workers.training.exchange.residual import Residual
from workers.training.exchange.velocity import Velocity
from workers.training.loading import load_checkpoint

NUM_ROUNDS, SELDOM = 11, "flat"
CLOSE = 5e-3  # of sums of about 1; checkpoints have what is owed rounded to a 254th of their block's largest
Loss = Callable[[nn.Module, list[torch.Tensor]], torch.Tensor]


def uses(round: int) -> bool:
    """Whether a round uses the parameter; counted from 1."""
    return round % 3 != 2 and round != NUM_ROUNDS


def seldom() -> Loss:
    """The mean of the linear model, which in some rounds does without one of its parameters."""
    num_calls = defaultdict[int, int](int)

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        num_calls[id(model)] += 1
        is_used = uses(num_calls[id(model)])
        columns = batch[0].split([torch.Size(shape).numel() for shape in SHAPES.values()], dim=1)
        named = zip(model.named_parameters(), columns, strict=True)
        return sum((x_BN @ as_real(p).view(-1)).mean() for (name, p), x_BN in named if name != SELDOM or is_used)  # type: ignore[return-value]

    return loss


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize(
    "exchange",
    [
        Exchange(scheme="int4"),
        Exchange(scheme="int8"),
        Exchange(scheme="topk", options=(("fraction", 0.02), ("quantise", "int8"))),
        Exchange(scheme="powersgd", options=(("rank", 1),)),
        Exchange(scheme="two_four"),
    ],
    ids=lambda exchange: exchange.scheme,
)
def test_what_was_left_out_is_lost_in_no_round_without_the_parameter(exchange: Exchange, num_workers: int) -> None:
    job = Job(NUM_ROUNDS, seldom(), checkpoint={"every_steps": 4})
    with job.group:
        job.begin(num_workers, exchange)
        job.finish()
        stored = [(info, load_checkpoint(join(job.group.checkpoints, info.path))) for info in job.stored()]
    assert stored[-1][0].round == NUM_ROUNDS
    for info, loaded in stored:
        model = Linear()
        data = reference.batches(Vectors(), BATCH, 0, info.round)
        plain = reference.train(model, sgd(model.parameters(), LR), data, seldom()).model.state_dict()
        for name in SHAPES:
            lacks = as_real(loaded.model[name] - plain[name]) - LR * loaded.residual.get(name, torch.zeros(1))
            assert lacks.abs().max() < CLOSE, (info.round, name)


def kept(residual: Residual) -> list[float]:
    found = residual.part("b")
    assert found is not None
    return found.tolist()


def test_a_debt_outlives_a_round_that_pays_all_of_it_in_vain_and_in_others_units() -> None:
    residual = Residual()
    residual.lay_out([{"a": torch.Size((1,)), "b": torch.Size((2,))}])
    residual.begin(1.0)
    residual.place(0, torch.zeros(3)).copy_(torch.tensor([1.0, 2.0, 3.0]))
    residual.came_to(1.0)
    residual.commit()
    residual.begin(4.0)
    residual.stage_nothing(0)
    residual.came_to(0.25)
    residual.put_back(["b"])
    residual.commit()
    assert (residual.is_owed, kept(residual)) == (True, [2.0, 3.0])
    other = Residual()  # of a newcomer, which has nothing and is to know that others do
    other.load({}, is_owed=True)
    other.lay_out([{"a": torch.Size((1,)), "b": torch.Size((2,))}])
    other.begin(1.0)
    other.stage_nothing(0)
    other.put_back(["b"])
    other.commit()
    assert (other.is_owed, other.is_empty) == (True, True)
    residual.begin(1.0)
    residual.stage_nothing(0)
    residual.commit()
    assert not residual.is_owed


def test_momentum_of_a_parameter_rests_while_no_rank_uses_it() -> None:
    residual = Residual()
    residual.lay_out([{"a": torch.Size((1,)), "b": torch.Size((1,))}])
    velocity = Velocity(residual, 0.5)
    residual.begin(1.0)
    velocity.of(0, torch.tensor([1.0, 1.0]))
    velocity.commit()
    residual.begin(2.0)
    residual.came_to(0.5)
    velocity.of(0, torch.tensor([1.0, 0.0]))
    residual.put_back(["b"])
    residual.commit()
    velocity.commit()
    residual.begin(2.0)
    assert velocity.of(0, torch.tensor([0.0, 0.0])).tolist() == [1.0, 1.0]  # of 2, half of which was kept, and of 2


def test_where_parameters_are_frozen_and_buckets_are_others_the_rest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MIB", 60)
    num_calls = dict[int, int]()

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        num_calls[id(model)] = num_calls.get(id(model), 0) + 1
        if num_calls[id(model)] == 5:
            model.get_parameter("square").requires_grad_(False)
            model.get_buffer("noted").add_(1.0)
        return mean(model, batch)

    job = Job(8, loss)
    with job.group:
        job.begin(2, Exchange(scheme="topk", options=(("fraction", 0.02), ("quantise", "int8"))))
        job.finish()
        [final] = job.stored()
        lacks = job.lacks(final)
    assert lacks["square"].abs().max() > CLOSE  # what is frozen is not to change
    assert max(lacks[name].abs().max() for name in ("wide", "flat")) < CLOSE
