"""Process groups formed, broken and left in place."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.fake_store import FakeStore
from tests.training.rank import await_true
from workers.training import sockets
from workers.training.calls import StoreCalls
from workers.training.nccl import form_nccl
from workers.training.store import CallbackStore
from workers.training.world import Seat, Transfer, World, WorldError, await_released

CPU = torch.device("cpu")
NCCL_VARIABLES = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT")
WAIT_S = 20.0
ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def in_threads(num: int, work: Callable[[int], Any]) -> list[Any]:
    """``work(rank)`` in a thread a rank; an error of one is its result."""
    results: list[Any] = [None] * num

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as error:  # compared by the test
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "a rank is stuck"
    return results


def seat(rank: int, size: int, group: str, device: torch.device = CPU) -> Seat:
    return Seat(group=group, rank=rank, size=size, backend="gloo", device=device)


def joined(store: StoreCalls, rank: int, size: int, group: str, device: torch.device = CPU) -> World:
    world = World(seat(rank, size, group, device), store)
    world.connect()
    return world


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_collectives_of_three_ranks(device: str) -> None:
    store, place = FakeStore(), torch.device(device)

    def work(rank: int) -> tuple[list[list[int]], list[float], list[float], float, list[float], list[float]]:
        world = joined(store, rank, 3, "1/1", place)
        table, sums = world.gather([rank, 2**40]), world.agree([1.0, rank])
        sent = torch.full((4,), float(rank), device=place)
        world.broadcast(sent, 2)
        flat = torch.full((100,), float(rank), device=place)
        own = torch.arange(3.0, device=place) + 10 * rank
        gathered, dealt = torch.empty(9, device=place), torch.empty(3, device=place)
        transfers = [world.all_reduce(flat), world.all_gather(gathered, own), world.all_to_all(dealt, own)]
        for transfer in transfers:
            assert transfer is not None
            transfer.wait()
        world.leave()
        return table, sums, sent.tolist(), flat[99].item(), gathered.tolist(), dealt.tolist()

    gathered = [10.0 * rank + value for rank in range(3) for value in range(3)]
    for rank, result in enumerate(in_threads(3, work)):
        dealt = [10.0 * other + rank for other in range(3)]
        assert result == ([[0, 2**40], [1, 2**40], [2, 2**40]], [3.0, 3.0], [2.0] * 4, 3.0, gathered, dealt)


@pytest.fixture(autouse=True, scope="module")
def _released() -> Iterator[None]:
    """A process that ends before crashes."""
    yield
    await_released(WAIT_S)


class Seen:
    """In NCCL's place, which not every torch has: what a group that is made now finds in its environment."""

    class Options:
        _timeout = timedelta()

    def __init__(self, *_: object) -> None:
        self.found = {name: os.environ.get(name) for name in NCCL_VARIABLES}


def test_a_group_by_nccl_has_settings_of_its_own_and_those_of_the_process_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    errors, waiting = NCCL_VARIABLES
    monkeypatch.setenv(errors, "1")
    monkeypatch.delenv(waiting, raising=False)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Seen, raising=False)
    made = form_nccl(CallbackStore(FakeStore(), "1/1", [], WAIT_S), 0, 2, timedelta(seconds=WAIT_S))
    assert made.found == {errors: "0", waiting: "0"}
    assert (os.environ[errors], waiting in os.environ) == ("1", False)


def test_a_world_of_one_needs_no_store() -> None:
    world = World(seat(0, 1, "1/1"), FakeStore())
    world.connect()
    assert world.gather([5]) == [[5]]
    assert world.agree([2.5]) == [2.5]
    assert world.all_reduce(torch.ones(1)) is None
    world.leave()
    world.destroy()


def test_fifty_re_forms_leak_neither_descriptors_nor_threads() -> None:
    store = FakeStore()

    def re_form(number: int) -> None:
        def work(rank: int) -> list[float]:
            world = joined(store, rank, 2, f"1/{number}")
            sums = world.agree([1.0])
            if number % 2:
                world.leave()
            else:
                world.destroy()
            return sums

        for result in in_threads(2, work):
            assert isinstance(result, list | WorldError)  # the slower may see the faster break the group

    re_form(0)
    await_released(WAIT_S)
    before = _descriptors_and_threads()
    for number in range(1, 51):
        re_form(number)
    await_released(WAIT_S)
    after = _descriptors_and_threads()
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 2


def _descriptors_and_threads() -> tuple[int, int]:
    return len(os.listdir("/dev/fd")), len(os.listdir("/proc/self/task"))


def test_an_abort_frees_a_rank_that_waits_in_a_collective_and_tells_its_peer() -> None:
    store = FakeStore()
    worlds: list[World | None] = [None, None]
    waits, freed, both = threading.Event(), threading.Event(), threading.Barrier(2, timeout=WAIT_S)

    def work(rank: int) -> str:
        world = worlds[rank] = joined(store, rank, 2, "1/1")
        both.wait()
        if rank == 1:
            assert freed.wait(WAIT_S)
        else:
            waits.set()
        try:
            world.agree([1.0])
        except WorldError as error:
            return str(error)
        finally:
            freed.set()
            world.destroy()
        return "no error"

    def abort() -> None:
        assert waits.wait(WAIT_S)
        assert worlds[0] is not None
        worlds[0].abort()

    aborter = threading.Thread(target=abort)
    aborter.start()
    mine, peers = in_threads(2, work)
    aborter.join(WAIT_S)
    assert mine == "group 1/1 was aborted"
    assert "broke at rank 1" in peers


def test_an_abort_ends_a_rendezvous_to_which_nobody_comes() -> None:
    store = FakeStore()
    world = World(seat(0, 2, "1/1"), store)
    timer = threading.Timer(0.05, world.abort)
    timer.start()
    with pytest.raises(WorldError, match="aborted"):
        world.connect()
    store.supersede("1/1")  # lets the thread that still waits in the store go


def test_a_superseded_rendezvous_fails_at_once_and_says_why() -> None:
    store = FakeStore()
    timer = threading.Timer(0.05, store.supersede, ["1/1"])
    timer.start()
    with pytest.raises(WorldError, match="given up"):
        World(seat(0, 2, "1/1"), store).connect()


def test_a_world_is_of_no_use_after_it_was_destroyed() -> None:
    store = FakeStore()

    def work(rank: int) -> str:
        world = joined(store, rank, 2, "1/1")
        world.leave()
        world.destroy()
        try:
            world.agree([1.0])
        except WorldError as error:
            return str(error)
        return "no error"

    assert in_threads(2, work) == ["group 1/1 was aborted"] * 2


class EndsWhileTimingOut:
    """An operation that completes just as a slice of waiting for it runs out."""

    def __init__(self) -> None:
        self.num_waits = 0

    def is_completed(self) -> bool:
        return self.num_waits > 0

    def wait(self, timeout: object) -> None:
        self.num_waits += 1
        if self.num_waits == 1:
            raise RuntimeError("Operation timed out!")


class EndsByAnAbort:
    """A group of an accelerator, whose collectives end without an error when it is aborted."""

    def __init__(self, world: World) -> None:
        self._world = world

    def allgather(self, tables: object, own: object) -> EndsByAnAbort:
        return self

    def is_completed(self) -> bool:
        return False

    def wait(self, timeout: object = None) -> None:
        self._world.is_aborted = True


def test_nobody_reads_what_an_aborted_collective_left() -> None:
    world = World(seat(0, 2, "1/1"), FakeStore())
    world._group = EndsByAnAbort(world)
    with pytest.raises(WorldError, match="aborted"):
        world.gather([1])


def test_an_operation_that_ends_as_a_slice_runs_out_has_not_failed() -> None:
    work = EndsWhileTimingOut()
    Transfer(World(seat(0, 2, "1/1"), FakeStore()), work).wait()  # type: ignore[arg-type]  # the part of Work it uses
    assert work.num_waits == 2


class SlowGroup:
    """torch's, whose collectives begin when they may; ``ended_in`` names the last thread to let go of it."""

    def __init__(self, ended_in: list[str]) -> None:
        self._ended_in = ended_in
        self.begins, self.may_begin = threading.Event(), threading.Event()

    def allreduce(self, _: list[torch.Tensor]) -> SlowGroup.Work:
        self.begins.set()
        assert self.may_begin.wait(WAIT_S)
        return self.Work()

    def __del__(self) -> None:
        self._ended_in.append(threading.current_thread().name)

    class Work:
        def get_future(self) -> torch.futures.Future[None]:
            return torch.futures.Future()


def test_a_group_does_not_end_in_the_thread_that_aborts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world, ended_in = World(seat(0, 2, "1/1"), FakeStore()), list[str]()
    world._group = SlowGroup(ended_in)
    world._store = SimpleNamespace(own=frozenset(), peers=frozenset(), error=None)  # type: ignore[assignment]
    has_begun, may_end = threading.Event(), threading.Event()

    def shut_down(*_: object) -> None:
        if threading.current_thread() is aborting:
            has_begun.set()
            assert may_end.wait(WAIT_S)

    monkeypatch.setattr(sockets, "shut_down", shut_down)
    aborting = threading.Thread(target=world.abort, name="aborting")
    aborting.start()
    assert has_begun.wait(WAIT_S)
    world.destroy()
    await_released(WAIT_S)
    may_end.set()
    aborting.join(WAIT_S)
    assert ended_in == ["release"]


def test_a_group_that_is_left_while_another_thread_begins_a_collective_does_not_end_in_that_thread() -> None:
    """It could stay there for good."""
    world, ended_in = World(seat(0, 2, "1/1"), FakeStore()), list[str]()
    world._group = group = SlowGroup(ended_in)
    begins, may_begin = group.begins, group.may_begin
    del group
    beginning = threading.Thread(target=world.all_reduce, args=(torch.zeros(1),), name="beginning")
    beginning.start()
    assert begins.wait(WAIT_S)
    leaving = threading.Thread(target=world.destroy)
    leaving.start()
    await_true(lambda: world.is_aborted, "the group to be left")
    may_begin.set()
    beginning.join(WAIT_S)
    leaving.join(WAIT_S)
    await_released(WAIT_S)
    assert ended_in == ["release"]
