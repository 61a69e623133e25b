"""One rank of the exchange's benchmark: recorded gradients of a GPT, exchanged by torch's DDP and by every scheme.

All of them run the same backward pass, which gives each parameter its recorded gradient and computes next to nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tests.benchmarks.exchange_auto import Auto
from tests.benchmarks.links import PORT
from workers.recipes.chargpt import Gpt, GptOptions
from workers.training.device import synchronize
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.registry import SCHEMES, scheme_named, scheme_over_racks
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Scheme
from workers.training.world import Seat, World

CPU = torch.device("cpu")
OPTIONS = GptOptions(dim=256, layers=6, heads=4, context=64)
WARM_UP = 4  # PowerSGD sends everything in its first two; `auto` measures three, and warms up what it chose
TIMEOUT_S = 300.0
POWER_SGD = "ddp powersgd 4"
RIVALS = ("ddp", "ddp bf16", POWER_SGD)
OVER_RACKS = (
    *("none across none", "bf16 across bf16", "none across int4", "bf16 across int4"),
    *("int8 across int4", "int4 across int4"),
)


class StoreOfTorch:
    """``StoreCalls`` by torch's own store."""

    def __init__(self, store: dist.TCPStore, address: str) -> None:
        self._store, self.address = store, address

    def set(self, group: str, key: str, value: bytes) -> None:
        self._store.set(f"{group}/{key}", value)  # type: ignore[arg-type]  # takes bytes as well

    def get(self, group: str, key: str, timeout_s: float) -> bytes:
        self._store.wait([f"{group}/{key}"], timedelta(seconds=timeout_s))
        return self._store.get(f"{group}/{key}")

    def add(self, group: str, key: str, amount: int) -> int:
        return self._store.add(f"{group}/{key}", amount)

    def check(self, group: str, keys: list[str]) -> bool:
        return self._store.check([f"{group}/{key}" for key in keys])


class Replay(nn.Module):
    """Parameters whose gradients are those of a GPT on random bytes; a rank has its own."""

    def __init__(self, rank: int, device: torch.device = CPU) -> None:
        super().__init__()
        torch.manual_seed(0)
        model = Gpt(OPTIONS)
        torch.manual_seed(rank)
        ids_BT = torch.randint(0, 256, (4, OPTIONS.context + 1))
        logits_BTV = model(ids_BT[:, :-1])
        nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten()).backward()
        self.recorded = [parameter.grad.to(device) for parameter in model.parameters() if parameter.grad is not None]
        self.replayed = nn.ParameterList(torch.zeros_like(gradient) for gradient in self.recorded)

    def forward(self) -> torch.Tensor:
        pairs = zip(self.replayed, self.recorded, strict=True)
        return torch.stack([torch.dot(p.view(-1), g.view(-1)) for p, g in pairs]).sum()


def rival(name: str, replay: Replay) -> Callable[[], None]:
    """A step of DDP with one of torch's own hooks."""
    model = with_hook(name, replay)

    def step() -> None:
        for parameter in replay.replayed:
            parameter.grad = None
        model().backward()

    return step


def with_hook(name: str, module: nn.Module) -> DistributedDataParallel:
    """DDP with the hook of this name."""
    # Its PowerSGD begins collectives in callbacks, which with several buckets come in any order: gloo then ends ranks.
    model = DistributedDataParallel(module, bucket_cap_mb=100 if name == POWER_SGD else None)
    if name == "ddp bf16":
        # DDP refuses this hook by its name where gloo is to carry it, and gloo carries it.
        unnamed: Any = lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket)  # noqa: E731
        model.register_comm_hook(None, unnamed)  # type: ignore[no-untyped-call]
    elif name == POWER_SGD:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)  # type: ignore[no-untyped-call]
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)  # type: ignore[no-untyped-call]
    return model


def scheme_called(name: str, residual: Residual, racks: Sequence[int], rank: int) -> Scheme:
    """Flat, or over these racks where the name has two formats."""
    inside, _, across = name.partition(" across ")
    return scheme_over_racks(inside, across, racks, rank, residual) if across else scheme_named(name, residual)


def ours(name: str, replay: Replay, world: World, racks: Sequence[int]) -> Callable[[], None]:
    """A step of one of our schemes; what it leaves out is kept for the next."""
    residual = Residual()
    exchange = GradientExchange([*replay.named_parameters()], 0)
    scheme = scheme_called(name, residual, racks, world.rank)
    exchange.join(world, scheme)

    def step() -> None:
        exchange.clear()
        loss = replay()
        exchange.arm(lambda: None, loss)
        loss.backward()
        exchange.finish(lambda: None)
        for state in (residual, *scheme.staged):
            state.commit()

    return step


def auto(replay: Replay, world: World) -> Callable[[], object]:
    """A step of ``communication: auto``."""
    return Auto([*replay.named_parameters()], world, replay).step


def device_of(given: argparse.Namespace) -> torch.device:
    """Where all ranks have their parameters."""
    return torch.device("cuda", 0) if given.gpu else CPU


def world_of(given: argparse.Namespace, store: dist.TCPStore) -> World:
    """Our group of the same ranks."""
    backend = "nccl" if given.gpu else "gloo"
    seat = Seat(group="bench", rank=given.rank, size=given.size, backend=backend, device=device_of(given))
    world = World(seat, StoreOfTorch(store, given.address))
    world.connect()
    return world


def contenders(given: argparse.Namespace, store: dist.TCPStore) -> Mapping[str, Callable[[], object]]:
    """All of them, by name; each has its own parameters."""
    world, replay = world_of(given, store), partial(Replay, given.rank, device_of(given))
    steps: dict[str, Callable[[], object]] = {name: rival(name, replay()) for name in RIVALS}
    names = [*SCHEMES, *(OVER_RACKS if max(given.racks) > 0 else ())]
    steps |= {name: ours(name, replay(), world, given.racks) for name in names}
    return steps | {"auto": auto(replay(), world)}


def measure(given: argparse.Namespace, steps: Mapping[str, Callable[[], object]]) -> None:
    """Rounds in which everybody has one step, in an order of its own; rank 0 prints seconds and bytes of each."""
    counter, rng = Path(given.counter), random.Random(0)
    for round in range(WARM_UP + given.rounds):
        order = [*steps]
        rng.shuffle(order)
        for name in order:
            dist.barrier()
            before, began_s = int(counter.read_text()), time.perf_counter()
            steps[name]()
            synchronize(device_of(given))
            took = torch.tensor([time.perf_counter() - began_s, 0.0], dtype=torch.float64)
            took[1] = int(counter.read_text()) - before
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if given.rank == 0 and round >= WARM_UP:
                print(json.dumps({"name": name, "seconds": took[0].item(), "bytes": took[1].item()}), flush=True)


def parser_of_rank() -> argparse.ArgumentParser:
    """Options of one rank."""
    parser = argparse.ArgumentParser()
    for name in ("--rank", "--size", "--rounds"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--racks", type=lambda text: [int(rack) for rack in text.split(",")], required=True)
    for name in ("--address", "--master", "--counter"):
        parser.add_argument(name, required=True)
    parser.add_argument("--gpu", action="store_true")
    return parser


@contextmanager
def torchs_group(given: argparse.Namespace) -> Iterator[dist.TCPStore]:
    """torch's default group of all ranks, and its store."""
    torch.set_num_threads(1)
    bound = timedelta(seconds=TIMEOUT_S)
    store = dist.TCPStore(given.master, PORT, given.size, given.rank == 0, bound)
    backend = "cpu:gloo,cuda:nccl" if given.gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=given.rank, world_size=given.size, timeout=bound)
    yield store
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    given = parser_of_rank().parse_args()
    with torchs_group(given) as store:
        measure(given, contenders(given, store))


if __name__ == "__main__":
    main()
