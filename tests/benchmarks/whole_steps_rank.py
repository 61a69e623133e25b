"""One rank of the benchmark of whole steps: forward, backward, exchange and SGD, by torch's DDP and by our schemes."""

from __future__ import annotations

import json
import random
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.benchmarks.exchange_auto import Auto
from tests.benchmarks.exchange_rank import OPTIONS, parser_of_rank, torchs_group, with_hook, world_of
from workers.exchange_options import SMALLER_BUCKETS_MIB, bucketed, in_buckets
from workers.plan import Exchange
from workers.recipes.chargpt import Gpt
from workers.training.exchange.buckets import cuts
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.meter import Took
from workers.training.exchange.registry import scheme_for
from workers.training.exchange.residual import Residual
from workers.training.world import World

WARM_UP = 2
LR = 0.01
RIVALS = ("ddp", "ddp bf16")
OURS = ("none", "bf16", "int8", "int4")
OVER_RACKS = ("bf16 across bf16", "bf16 across int4")
NUM_CLASSES = 10
BACKWARD_S = 0.4
"""Of the model that computes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one step. The link was at work for ``wire_s``, of which the rank waited ``exposed_s``.

    ``hideable_s`` is what could be hidden at most: all of it, but no more than backward took.
    """

    seconds: float
    wire_s: float = 0.0
    exposed_s: float = 0.0
    hideable_s: float = 0.0


def convolutional() -> nn.Module:
    """About two million parameters over images of 32 x 32."""
    widths, layers = (3, 64, 128, 256, 512), list[nn.Module]()
    for narrow, wide in pairwise(widths):
        layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.GroupNorm(8, wide), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 4, 200), nn.ReLU(), nn.Linear(200, NUM_CLASSES))


class Paced(torch.autograd.Function):
    """Has the gradient of a parameter at hand, and gives it after so many seconds, in which it takes no core."""

    @staticmethod
    def forward(  # type: ignore[override]  # torch's takes anything
        ctx: Any, values: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        ctx.gradient, ctx.seconds = gradient, seconds
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        time.sleep(ctx.seconds)
        return grad, ctx.gradient.clone(), None, None


class PacedGpt(nn.Module):
    """The parameters of the GPT, each with a share of ``BACKWARD_S``; as if ranks had cores of their own to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(Gpt(OPTIONS).parameters())
        self._gradients = [torch.randn_like(part) for part in self.parts]
        numel = sum(part.numel() for part in self.parts)
        self._seconds = [BACKWARD_S * part.numel() / numel for part in self.parts]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for part, gradient, seconds in zip(self.parts, self._gradients, self._seconds, strict=True):
            values = Paced.apply(values, part, gradient, seconds)  # type: ignore[no-untyped-call]  # torch's
        return values


def batch_of(model: str, samples: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of the batch, which stays the same."""
    torch.manual_seed(rank)
    if model == "gpt":
        ids_BT = torch.randint(0, 256, (samples, OPTIONS.context + 1))
        return ids_BT[:, :-1], ids_BT[:, 1:].flatten()
    if model == "paced":
        return torch.randn(samples, NUM_CLASSES, requires_grad=True), torch.randint(0, NUM_CLASSES, (samples,))
    return torch.randn(samples, 3, 32, 32), torch.randint(0, NUM_CLASSES, (samples,))


def model_of(name: str) -> nn.Module:
    """The same on all ranks."""
    torch.manual_seed(0)
    return {"gpt": lambda: Gpt(OPTIONS), "paced": PacedGpt, "conv": convolutional}[name]()


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1])


def rival(name: str, given: Namespace) -> Callable[[], Timing]:
    """A step of DDP."""
    model, batch = with_hook(name, model_of(given.model)), batch_of(given.model, given.samples, given.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)

    def step() -> Timing:
        began_s = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        return Timing(seconds=time.perf_counter() - began_s)

    return step


def ours(name: str, given: Namespace, world: World) -> Callable[[], Timing]:
    """A step of one of our exchanges."""
    model, batch = model_of(given.model), batch_of(given.model, given.samples, given.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    residual, chosen = Residual(), Exchange.named(name, "")
    exchange = GradientExchange([*model.named_parameters()], 0, bucketed(name)[1])
    scheme = scheme_for(chosen, given.racks, given.rank, residual)
    exchange.join(world, scheme)

    def step() -> Took:
        exchange.clear()
        loss = loss_of(model, batch)
        exchange.arm(lambda: None, loss)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        exchange.finish(lambda: None)
        took = exchange.measure()
        exchange.scale(1.0 / given.size)
        optimizer.step()
        for state in (residual, *scheme.staged):
            state.commit()
        return took

    return timed(step)


def auto(given: Namespace, world: World) -> Callable[[], Timing]:
    """A step of ``communication: auto``, after those by which it chooses."""
    model, batch = model_of(given.model), batch_of(given.model, given.samples, given.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)

    def apply(exchange: GradientExchange) -> None:
        exchange.scale(1.0 / given.size)
        optimizer.step()

    return timed(Auto([*model.named_parameters()], world, lambda: loss_of(model, batch), apply).step)


def timed(step: Callable[[], Took]) -> Callable[[], Timing]:
    """The step with its seconds."""

    def once() -> Timing:
        began_s = time.perf_counter()
        took = step()
        assert took.wire_s is not None
        assert took.backward_s is not None
        return Timing(
            seconds=time.perf_counter() - began_s,
            wire_s=took.wire_s,
            exposed_s=took.exposed_s,
            hideable_s=min(took.backward_s, took.wire_s),
        )

    return once


def measure(given: Namespace, steps: Mapping[str, Callable[[], Timing]]) -> None:
    """Rounds in which everybody has one step, in an order of its own; rank 0 prints the slowest rank's seconds."""
    rng = random.Random(0)
    for round in range(WARM_UP + given.rounds):
        order = [*steps]
        rng.shuffle(order)
        for name in order:
            dist.barrier()
            own = steps[name]()
            seconds = torch.tensor([own.seconds], dtype=torch.float64)
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            parts = torch.tensor([own.wire_s, own.exposed_s, own.hideable_s], dtype=torch.float64)
            dist.all_reduce(parts)
            if given.rank == 0 and round >= WARM_UP:
                means = (parts / given.size).tolist()
                told = dict(zip(("wire_s", "exposed_s", "hideable_s"), means, strict=True))
                print(json.dumps({"name": name, "seconds": seconds.item(), **told}), flush=True)


def main() -> None:
    parser = parser_of_rank()
    parser.add_argument("--model", required=True)
    parser.add_argument("--samples", type=int, required=True)
    given = parser.parse_args()
    with torchs_group(given) as store:
        world = world_of(given, store)
        steps = {name: rival(name, given) for name in RIVALS}
        names = [*OURS, *(OVER_RACKS if max(given.racks) > 0 else ())]
        names += [in_buckets(name, bucket_mib) for name in names for bucket_mib in SMALLER_BUCKETS_MIB]
        num_small = len(cuts([*model_of(given.model).parameters()])[SMALLER_BUCKETS_MIB[-1]])
        names += [in_buckets("int4", SMALLER_BUCKETS_MIB[-1], num_small * part // 4) for part in (1, 2, 3)]
        own = {name: ours(name, given, world) for name in names}
        measure(given, steps | own | {"auto": auto(given, world)})


if __name__ == "__main__":
    main()
