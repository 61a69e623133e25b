"""NCCL between several ranks of one GPU, each of which tells it of a machine of its own: what gloo's tests are on CPUs.

All that travels goes through sockets on the loopback then; how fast NCCL is between GPUs shows nowhere here.
"""

from __future__ import annotations

import hashlib
import os
import signal
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import nn

from tests.forking import SPAWNS
from tests.training.group import ProcessGroup
from tests.training.rank import RemoteCalls, answers_of, as_own_machine
from tests.training.test_loss_of_peers import BATCH, assert_as_undisturbed, hold_in_exchange, job, plain
from tests.training.test_schemes import MOST_ERROR, NAMES, OPTIONS, RACKS
from tests.training.test_world import ON_GPU
from workers.plan import Exchange
from workers.training.device_clock import DeviceClock
from workers.training.exchange import buckets
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.meter import Took
from workers.training.exchange.registry import scheme_named, scheme_over_racks
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Scheme
from workers.training.world import Seat, World, await_released

pytestmark = [*ON_GPU, pytest.mark.timeout(300)]

ROUNDS, WAIT_S = 3, 120.0
SHAPES = ((300,), (24, 600), (16, 24, 3, 3), (7,))
SLEEP_CYCLES = 200_000_000
MANY_STEPS = 400


@dataclass(frozen=True, kw_only=True)
class Told:
    """Of one scheme on one rank: a hash of all that came, how far the first sums were off, what the last took.

    ``scheme`` is the one in use: over as many racks as there are ranks it is a flat one.
    """

    scheme: str
    digest: str
    error: float
    took: Took


def gradients(rank: int, round: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(100 * round + rank)
    return [torch.randn(shape, generator=draw) for shape in SHAPES]


def scheme_of(name: str, world: World, residual: Residual) -> Scheme:
    inside, _, across = name.partition(" across ")
    if across:
        return scheme_over_racks(inside, across, RACKS[world.size], world.rank, residual, OPTIONS.get(inside, ()))
    return scheme_named(name, residual, OPTIONS.get(name, ()))


def by_scheme(name: str, world: World) -> Told:
    """Some rounds; in all but the first the host must not wait for the device before a result is asked for."""
    residual, digest = Residual(), hashlib.sha256()
    scheme = scheme_of(name, world, residual)
    parameters = [nn.Parameter(torch.zeros(shape, device=world.device)) for shape in SHAPES]
    exchange = GradientExchange([(str(number), p) for number, p in enumerate(parameters)], 0)
    exchange.join(world, scheme)
    residual.lay_out(exchange.places)
    off = torch.zeros(0)
    for round in range(ROUNDS):
        mine = [gradient.to(world.device) for gradient in gradients(world.rank, round)]
        residual.begin(1.0)
        scheme.begin(round)
        exchange.clear()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("default" if round == 0 else "error")
        try:
            torch.autograd.backward(parameters, mine)
            exchange.finish(lambda: exchange.tail.write_used([True] * len(SHAPES), 0))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        came = torch.cat([gradient.cpu().view(-1) for gradient in exchange.gradients])
        exchange.measure()
        digest.update(came.numpy().tobytes())
        for state in (residual, *scheme.staged):
            state.commit()
        if round == 0:
            each = [torch.cat([g.view(-1) for g in gradients(rank, 0)]) for rank in range(world.size)]
            off = (came - torch.stack(each).sum(0)) / torch.stack(each).sum(0).square().mean().sqrt()
    exchange.remove()
    assert exchange.took is not None
    return Told(
        scheme=scheme.name, digest=digest.hexdigest(), error=float(off.square().mean().sqrt()), took=exchange.took
    )


def late(world: World) -> tuple[float, float]:
    """How long the last rank computed before its gradients left, and what this rank waited for them."""
    parameter = nn.Parameter(torch.zeros(1000, device=world.device))
    exchange = GradientExchange([("a", parameter)], 0)
    exchange.join(world, scheme_named("none", Residual()))
    exchange.clear()
    loss = parameter.sum()
    exchange.arm(lambda: None, loss)
    clock = DeviceClock()
    if world.rank == world.size - 1:
        torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]  # of torch
    clock.stop()
    loss.backward()  # type: ignore[no-untyped-call]
    exchange.finish(lambda: None)
    took = exchange.measure()
    assert took.backward_s is not None
    assert took.backward_s >= clock.elapsed_s()
    return clock.elapsed_s(), took.exposed_s


def serve(pipe: Connection, rank: int, size: int, address: Any) -> None:
    """A rank's process: all schemes in one group."""
    as_own_machine(f"rank-{rank}")
    buckets.MIB = 0  # a bucket for each tensor
    torch.linalg.qr(torch.eye(2, device="cuda"))
    seat = Seat(group="1/1", rank=rank, size=size, backend="nccl", device=torch.device("cuda", 0))
    world = World(seat, RemoteCalls(*address))
    world.connect()
    pipe.send(({name: by_scheme(name, world) for name in NAMES}, late(world)))
    pipe.recv()
    world.leave()
    await_released(WAIT_S)


@cache
def told(size: int) -> list[tuple[dict[str, Told], tuple[float, float]]]:
    """Of each rank of a group of this size; the group is made once."""
    return answers_of(SPAWNS, size, serve)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_brings_the_sum_alike_on_all_ranks_without_a_wait_of_the_host(name: str, size: int) -> None:
    of_ranks = [by_name[name] for by_name, _ in told(size)]
    assert len({one.digest for one in of_ranks}) == 1
    for one in of_ranks:
        assert one.error <= MOST_ERROR[name]
        took = one.took
        assert took.wire_bytes is None
        assert took.wire_s is not None
        assert took.hidden_s is not None
        assert took.encode_s is not None
        assert took.decode_s is not None
        assert 0.0 <= took.hidden_s <= took.wire_s <= took.exchange_s
        assert took.wire_s > 0.0
        assert 0.0 < took.exposed_s <= took.exchange_s
        assert (took.encode_s > 0.0) == (took.decode_s > 0.0) == (one.scheme != "none")


@pytest.mark.parametrize("size", [2, 4])
def test_what_a_rank_waits_for_another_is_told_though_only_its_device_waits(size: int) -> None:
    *firsts, (slept_s, _) = [of_late for _, of_late in told(size)]
    assert all(exposed_s > 0.5 * slept_s for _, exposed_s in firsts)


def test_survivors_of_a_killed_peer_redo_the_round_once_they_are_told() -> None:
    with job(gpus=1) as group:
        assert isinstance(group, ProcessGroup)
        workers = group.start(3)
        victim, others = workers[0], workers[1:]
        group.gate(victim).close(3 * BATCH // 3)
        group.train(workers)
        hold_in_exchange(group, victim, others, num_rounds=3)
        os.kill(group.process_id(victim), signal.SIGKILL)
        group.forget(victim)
        group.halt(others)  # NCCL tells nobody, the controller does
        group.train(others)
        group.await_done(others)
        assert_as_undisturbed(group)


@pytest.mark.parametrize("scheme", ["none", "int8"])
def test_a_job_grows_and_shrinks(scheme: str) -> None:
    exchange = Exchange(scheme=scheme)
    with job(MANY_STEPS, gpus=1) as group:
        assert isinstance(group, ProcessGroup)
        workers = group.start(3)
        group.train(workers[:2], exchange=exchange)
        group.await_all(lambda s: (s.round or 0) >= 2, workers[:2])
        plan = group.agree(workers, exchange=exchange)
        group.await_all(lambda s: s.generation == plan.generation, workers)
        group.agree(workers[:1], exchange=exchange)
        group.await_done(workers[:1])
        assert len({record.generation for record in group.records.values()}) == 3
        if scheme == "none":
            assert_as_undisturbed(group, MANY_STEPS)
        else:
            assert sum(group.losses()[-5:]) < 1.4 * sum(plain(MANY_STEPS).losses[-5:])
