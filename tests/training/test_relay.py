"""Later hops of a bucket that others have to wait for: they leave while gradients of other buckets are still made."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch
from torch import nn

from tests.training.fake_store import FakeStore
from tests.training.test_world import WAIT_S, in_threads, joined
from workers.training.exchange import buckets
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.lane import Side
from workers.training.exchange.registry import scheme_named
from workers.training.exchange.residual import Residual
from workers.training.world import Transfer, World, WorldError, await_released

NUM_RANKS, NUM_LAYERS, WIDTH = 3, 4, 64
SCHEMES = ("int8", "int4", "two_four", "powersgd")


class StopError(Exception):
    """Raised in the backward pass."""


@pytest.fixture(autouse=True)
def _a_bucket_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MIB", 0)


def layers(num: int = NUM_LAYERS) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num)))


def loss_of(model: nn.Sequential, rank: int) -> torch.Tensor:
    samples = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(rank))
    output: torch.Tensor = model(samples)
    return output.square().sum()


def exchange_of(model: nn.Sequential, name: str, world: World) -> GradientExchange:
    exchange = GradientExchange(list(model.named_parameters()), 0)
    exchange.join(world, scheme_named(name, Residual()))
    exchange.clear()
    return exchange


@contextmanager
def no_collector() -> Iterator[None]:
    """What is held by nothing but itself stays."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def note_later_hops(world: World, name: str, began: threading.Event) -> None:
    """Tell when a hop begins that is not the first of its bucket: all buckets' first ones do as they leave."""
    method = "all_gather" if name != "powersgd" else "all_reduce"
    begin, num = getattr(world, method), 0

    def noted(*arguments: torch.Tensor) -> Transfer | None:
        nonlocal num
        num += 1
        if method == "all_gather" or num == NUM_LAYERS:
            began.set()
        sent: Transfer | None = begin(*arguments)
        return sent

    setattr(world, method, noted)


@pytest.mark.parametrize("name", SCHEMES)
def test_later_hops_of_a_bucket_leave_before_the_last_gradient_is_there(name: str) -> None:
    store, plain = FakeStore(), layers()

    def work(rank: int) -> tuple[bool, list[torch.Tensor]]:
        model, began, was_early = deepcopy(plain), threading.Event(), list[bool]()
        world = joined(store, rank, NUM_RANKS, "1/1")
        note_later_hops(world, name, began)
        exchange = exchange_of(model, name, world)
        first = next(model.parameters())  # its gradient is the last
        first.register_hook(lambda _: was_early.append(began.wait(WAIT_S)))
        loss = loss_of(model, rank)
        exchange.arm(lambda: None, loss)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        exchange.finish(lambda: None)
        took = exchange.measure()
        assert took.encode_s is not None
        assert took.decode_s is not None
        assert took.encode_s > 0.0 < took.decode_s
        exchange.remove()
        world.leave()
        return was_early == [True], [gradient.clone() for gradient in exchange.gradients]

    results = in_threads(NUM_RANKS, work)
    await_released(WAIT_S)
    assert all(was_early for was_early, _ in results)
    for rank in range(NUM_RANKS):
        loss_of(plain, rank).backward()  # type: ignore[no-untyped-call]  # torch's
    for _, found in results:
        for ours, first, parameter in zip(found, results[0][1], plain.parameters(), strict=True):
            assert torch.equal(ours, first)
            assert parameter.grad is not None
            if name in ("int8", "int4"):
                torch.testing.assert_close(ours, parameter.grad, rtol=0.0, atol=0.2 * float(parameter.grad.abs().max()))


@pytest.mark.parametrize(("num_buckets", "is_beside"), [(2, False), (3, True)])
def test_a_thread_sends_beside_where_there_are_more_buckets_than_two(num_buckets: int, is_beside: bool) -> None:
    store, plain = FakeStore(), layers(num_buckets)

    def work(rank: int) -> set[bool]:
        model, by = deepcopy(plain), set[bool]()
        world, own = joined(store, rank, NUM_RANKS, "1/1"), threading.current_thread()
        begin = world.all_to_all

        def noted(*arguments: torch.Tensor) -> Transfer:
            by.add(threading.current_thread() is not own)
            return begin(*arguments)

        world.all_to_all = noted  # type: ignore[assignment,method-assign]  # as it was, but heard of
        exchange = exchange_of(model, "int8", world)
        loss = loss_of(model, rank)
        exchange.arm(lambda: None, loss)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        exchange.finish(lambda: None)
        exchange.remove()
        world.leave()
        return by

    assert in_threads(NUM_RANKS, work) == [{is_beside}] * NUM_RANKS
    await_released(WAIT_S)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_rank_that_leaves_in_the_middle_of_backward_holds_up_neither_itself_nor_the_others(name: str) -> None:
    """Nor does the error keep anything of their group, which would then end with the process, and that never."""
    store, plain, worlds, connected = FakeStore(), layers(), list[World](), threading.Barrier(NUM_RANKS)

    def stop(_: torch.Tensor) -> None:
        raise StopError

    def work(rank: int) -> str:
        model = deepcopy(plain)
        world = joined(store, rank, NUM_RANKS, "1/1")
        worlds.append(world)
        world.agree([0.0])
        connected.wait(WAIT_S)
        exchange = exchange_of(model, name, world)
        if rank == 0:
            list(model.parameters())[1].register_hook(stop)
        loss = loss_of(model, rank)
        exchange.arm(lambda: None, loss)
        try:
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            exchange.finish(lambda: None)
        except (StopError, WorldError) as error:
            world.destroy()
            exchange.drop()
            assert exchange.has_launched is False
            return type(error).__name__
        return "none"

    with no_collector():
        told = in_threads(NUM_RANKS, work)
        await_released(WAIT_S)
        kept = [one for one in gc.get_objects() if isinstance(one, Transfer) and one._world in worlds]
    assert told == ["StopError", *["WorldError"] * (NUM_RANKS - 1)]
    assert kept == []


def test_an_error_beside_is_raised_once_and_tells_where_it_was_but_keeps_nothing_of_it() -> None:
    side, done = Side(), list[str]()

    def fail() -> None:
        try:
            raise MemoryError
        except MemoryError as error:
            raise WorldError("broken") from error

    side.give(fail)
    side.give(lambda: done.append("after it"))
    with pytest.raises(WorldError, match="broken") as caught:
        side.join()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "fail" not in frames
    assert isinstance(caught.value.__cause__, MemoryError)
    assert caught.value.__cause__.__traceback__ is None
    assert "in fail" in caught.value.__notes__[0]
    side.give(lambda: done.append("next round"))
    side.join()
    side.close()
    assert done == ["next round"]


def test_nothing_is_done_after_an_error_for_whose_words_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object) -> list[str]:
        raise MemoryError

    def fails() -> None:
        raise RuntimeError("it failed")

    done, side = list[int](), Side()
    monkeypatch.setattr(traceback, "format_exception", lacks)
    side.give(fails)
    side.give(lambda: done.append(1))
    with pytest.raises(RuntimeError, match="it failed"):
        side.join()
    assert done == []
    side.close()


def test_the_thread_beside_has_all_of_its_own_threads_from_the_beginning() -> None:
    """OpenMP ends the process where there is no memory for one."""
    code = """
import os, torch
from workers.training.exchange.lane import Side
torch.set_num_threads(3)
side, num_threads = Side(), len(os.listdir("/proc/self/task"))
side.give(lambda: torch.zeros(2**22).add_(1.0))
side.join()
print(len(os.listdir("/proc/self/task")) - num_threads)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert told.stdout.split() == ["0"]
