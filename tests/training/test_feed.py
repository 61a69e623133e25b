"""Micro-batches are the same whoever reads them; loaders that fail, hang or die; and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.training.loading import CPU, Numbers, feeding, loader_ids, wait_for_processes, wanted
from tests.training.rank import await_true
from tests.training.tasks import Gate
from workers.errors import DataError
from workers.training import loader_fleet, memory, wire
from workers.training.batching import Batcher
from workers.training.feed import MAX_DEATHS, Feed
from workers.training.loader_choice import INLINE, THREAD, LoaderChoice, Way
from workers.training.loader_fleet import Fleet
from workers.training.mailbox import GroupLeftError
from workers.training.micro import Room
from workers.training.reading import Reader, Wanted

PROCESSES = Way(num_processes=2)
WAYS = {"inline": INLINE, "a thread": THREAD, "processes": PROCESSES}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Fleet, "keep", wait_for_processes(Fleet.keep))
    yield
    assert loader_ids() == []


def nothing() -> None:
    pass


def taken(feed: Feed, *rounds: list[Wanted]) -> list[torch.Tensor]:
    """What a feed gives for these rounds, the later of which it is told of as coming."""
    batches = []
    for number, round in enumerate(rounds):
        coming = [one for each in rounds[number:] for one in each]
        feed.begin(iter(coming))
        batches += [feed.take(one, nothing) for one in round]
        feed.committed()
    return batches


@pytest.mark.parametrize("way", ["processes", "inline"])
def test_random_samples_are_those_of_their_place_whoever_reads_them_in_whatever_order(way: str) -> None:
    rounds = [[wanted(n, n + 20, round=n // 2, position=3 * (n % 2))] for n in range(6)]
    reader = Reader(Batcher(Numbers(is_random=True), None, CPU), seed=3)
    expected = [reader.read(one) for [one] in rounds]
    with feeding(Numbers(is_random=True), WAYS[way]) as feed:
        found = taken(feed, *rounds, *rounds[3:0:-1])
    assert torch.equal(torch.stack(found[:6]), torch.stack(expected))
    assert torch.equal(torch.stack(found[6:]), torch.stack(expected[3:0:-1]))
    assert len(set(torch.stack(expected)[:, :, 1:].flatten().tolist())) == 6 * 2 * 3


def test_what_was_read_ahead_is_dropped_when_something_else_is_wanted() -> None:
    script: list[int] = []

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        script.append(int(samples[0][0]))
        return torch.stack(samples)

    gate = Gate()
    gate.close_at(0)
    with feeding(Numbers(gate=gate), THREAD, collate) as feed:
        feed.begin(iter([wanted(1), wanted(9), wanted(3)]))
        assert feed.take(wanted(1), nothing)[0, 0] == 1
        gate.await_waiting(1)
        feed.begin(iter([wanted(5), wanted(6)]))
        gate.open()
        assert [int(feed.take(wanted(i), nothing)[0, 0]) for i in (5, 6)] == [5, 6]
        assert feed._pending == {}
    assert 3 not in script


def test_a_round_that_is_drawn_again_comes_before_what_was_read_of_the_next() -> None:
    rounds = [wanted(n, round=n) for n in range(5)]
    with feeding(Numbers(), PROCESSES) as feed:
        for _ in range(2):
            feed.begin(iter(rounds))
            assert list(feed._pending) == rounds[:4]
            assert [int(feed.take(one, nothing)[0, 0]) for one in rounds[:2]] == [0, 1]
            assert list(feed._pending) == rounds[2:]


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_that_cannot_be_read_is_named_with_the_users_traceback_when_its_turn_comes(way: str) -> None:
    with feeding(Numbers(), WAYS[way]) as feed:
        feed.begin(iter([wanted(1), wanted(7, 8)]))
        assert feed.take(wanted(1), nothing)[0, 0] == 1
        with pytest.raises(DataError, match=r"^train_data\[7\] raised OSError: disk on fire; correct the") as caught:
            feed.take(wanted(7, 8), nothing)
    told = "".join(traceback.format_exception(caught.value)).split("The above exception")[0]
    assert 'raise OSError("disk on fire")' in told


@pytest.mark.parametrize("way", ["a thread", "processes"])
def test_a_sample_that_hangs_is_named_and_whoever_waits_for_it_can_leave(way: str, tmp_path: Path) -> None:
    gate = Gate()
    gate.close_at(0)
    dataset = Numbers(gate=gate) if way == "a thread" else Numbers(waits_for=tmp_path / "open")

    def leave() -> None:
        if feed.place() == "train_data[9]":  # sample 1 is read before it, which may take a while
            raise GroupLeftError("the group was given up")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.training.feed.WAIT_SLICE_S", 0.02)
        with feeding(dataset, WAYS[way]) as feed:
            feed.begin(iter([wanted(1, 9)]))
            with pytest.raises(GroupLeftError):
                feed.take(wanted(1, 9), leave)
            gate.open()


def test_a_loader_that_is_killed_is_replaced_and_one_that_dies_again_and_again_given_up(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with feeding(Numbers(is_random=True), PROCESSES) as feed:
        for number in range(MAX_DEATHS):
            feed.begin(iter([wanted(1, round=number)]))
            before = loader_ids()
            assert len(before) == 1 + PROCESSES.num_processes
            os.kill(before[-1], signal.SIGKILL)
            await_true(lambda: not loader_ids(), "the end of all loaders")
            later = wanted(2, round=number)
            feed.begin(iter([later]))
            expected = Reader(Batcher(Numbers(is_random=True), None, CPU), seed=3).read(later)
            assert torch.equal(feed.take(later, nothing), expected)
        feed.begin(iter([wanted(3)]))
        assert loader_ids() == []
        (change,) = feed.changes()
    assert (change.before, change.after) == ("2 loader processes", "inline")
    assert "killed by signal 9 (SIGKILL), the last of 3 that were lost" in change.reason
    assert capfd.readouterr().err.count("a loader process is gone: it was killed by signal 9") == MAX_DEATHS - 1


def test_data_that_turn_out_to_be_random_are_read_under_their_seed_and_no_longer_by_a_thread() -> None:
    one, other = wanted(1), wanted(2, round=1)
    with feeding(Numbers(is_random=True), THREAD) as feed:
        feed.begin(iter([one]))
        feed.take(one, nothing)
        feed.committed()
        feed.begin(iter([other]))
        found = feed.take(other, nothing)
        feed.begin(iter([other]))
        assert torch.equal(found, feed.take(other, nothing))
        (change,) = feed.changes()
    assert torch.equal(found, Reader(Batcher(Numbers(is_random=True), None, CPU), seed=3).read(other))
    assert (change.before, change.after) == ("a reading thread", "inline")
    assert "the data are random" in change.reason


def test_a_dataset_that_cannot_be_pickled_stays_with_this_process_and_it_is_told() -> None:
    class Local(Numbers):
        pass

    with feeding(Local(), PROCESSES) as feed:
        feed.begin(iter([wanted(1)]))
        assert feed.take(wanted(1), nothing)[0, 0] == 1
        (change,) = feed.changes()
    assert "train_data or collate cannot be pickled for a process (" in change.reason
    assert "Local" in change.reason


class OfOneProcess(Numbers):
    """Samples of a multiple of four can be read only by their owner."""

    def __init__(self, owner: int) -> None:
        super().__init__()
        self._owner = owner

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 4 == 0 and os.getpid() != self._owner:
            raise NameError("it was opened elsewhere")
        return super().__getitem__(index)


def test_what_only_the_worker_can_read_it_reads_and_the_processes_are_given_up() -> None:
    with feeding(OfOneProcess(os.getpid()), PROCESSES) as feed:
        coming = [wanted(i, round=i) for i in (1, 4, 5)]
        feed.begin(iter(coming))
        assert [int(feed.take(one, nothing)[0, 0]) for one in coming] == [1, 4, 5]
        (change,) = feed.changes()
        feed.begin(iter([wanted(8)]))
        assert loader_ids() == []
    assert (change.before, change.after) == ("2 loader processes", "inline")
    assert "could not read what can be read inline (train_data[4] raised NameError: it was opened" in change.reason


def test_reading_inline_is_tried_where_another_way_is_in_force() -> None:
    choice = LoaderChoice(1)
    choice._kept = THREAD
    choice._begin_trial(INLINE)
    feed = Feed(Reader(Batcher(Numbers(), None, CPU), seed=3), CPU, choice)
    seen = []
    for number in range(100):
        seen.append(choice.way)
        one = wanted(1, round=number)
        feed.begin(iter([one]))
        feed.take(one, nothing)
        feed.spent(0.01 if choice.way == INLINE else 0.04, 0.05, 1)
    feed.end()
    assert {INLINE, THREAD} <= set(seen)
    assert [(change.before, change.after) for change in feed.changes()] == [("a reading thread", "inline")]


class Leaving(Numbers):
    """Sample 4 ends the process that reads it, with a code that looks like a signal's and is none."""

    def __init__(self, owner: int) -> None:
        super().__init__()
        self._owner = owner

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 4 and os.getpid() != self._owner:
            os._exit(255)
        return super().__getitem__(index)


def test_a_loader_that_ends_with_a_code_that_is_no_signals_is_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    with feeding(Leaving(os.getpid()), PROCESSES) as feed:
        for number in range(2):
            feed.begin(iter([wanted(4, round=number)]))
            assert feed.take(wanted(4, round=number), nothing)[0, 0] == 4
        assert feed.changes() == ()
    assert capfd.readouterr().err.count("a loader process is gone: it ended with code 255;") == 2


def test_a_loader_that_outlives_its_kill_for_a_while_keeps_no_socket_and_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aside_bytes: list[int] = []

    def set_aside(count: int) -> bool:
        aside_bytes.append(count)
        return True

    monkeypatch.setattr(memory, "set_aside", set_aside)
    with feeding(Numbers(), PROCESSES) as feed:
        feed.begin(iter([wanted(1)]))
        group = feed._loaders._group  # type: ignore[union-attr]
        with monkeypatch.context() as patch:
            patch.setattr("workers.training.loader_process._WAIT_S", 0.0)
            patch.setattr(group._process, "kill", nothing)
            feed.end()
        assert [line.ours.fileno() for line in group.lines] == [-1, -1]
        assert sum(aside_bytes) == 0 < aside_bytes[0]
    assert group._process.wait(30) == 0  # as its worker's ends are closed


def test_loaders_are_counted_in_the_memory_of_their_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    room = [600 * 2**20]
    taken_bytes: list[int] = []
    monkeypatch.setattr(loader_fleet.footprint, "held", lambda device: 0)
    monkeypatch.setattr(loader_fleet.footprint, "room", lambda device: Room(limit_bytes=room[0]))
    monkeypatch.setattr(memory, "set_aside", lambda count: taken_bytes.append(count) or False)
    with feeding(Numbers(), PROCESSES) as feed:
        feed.begin(iter([wanted(1)]))
        assert len(loader_ids()) == 2  # one loader, and the program that forked it
        assert 256 * 2**20 < taken_bytes[0] < 300 * 2**20
    room[0] = 500 * 2**20
    with feeding(Numbers(), PROCESSES) as feed:
        feed.begin(iter([wanted(1)]))
        assert loader_ids() == []
        (change,) = feed.changes()
    assert "would take 256 MiB, and this worker's memory has no room for it" in change.reason


class Collected(Numbers):
    """Tells of the garbage collector of whoever reads it."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([os.getpid(), gc.isenabled(), gc.get_freeze_count()])


def test_loaders_collect_garbage_but_not_in_what_they_share() -> None:
    with feeding(Collected(), PROCESSES) as feed:
        feed.begin(iter([wanted(1)]))
        ((pid, is_on, num_frozen),) = feed.take(wanted(1), nothing).tolist()
    assert pid != os.getpid()
    assert is_on
    assert num_frozen > 100_000


def test_what_is_asked_for_again_while_it_is_read_takes_no_loader_away(tmp_path: Path) -> None:
    is_open = tmp_path / "open"
    with feeding(Numbers(waits_for=is_open), PROCESSES) as feed:
        feed.begin(iter([wanted(9)]))
        busy = feed._loaders._busy  # type: ignore[union-attr]
        await_true(lambda: len(busy) == 1, "a loader that reads")
        feed.drop()
        feed.begin(iter([wanted(9)]))
        await_true(lambda: len(busy) == 2, "another that reads the same")
        is_open.touch()
        assert feed.take(wanted(9), nothing)[0, 0] == 9
        await_true(lambda: not busy, "idle loaders")
        is_open.unlink()
        later = [wanted(9, round=number) for number in (1, 2)]
        feed.begin(iter(later))
        await_true(lambda: len(busy) == 2, "both loaders that read")
        is_open.touch()
        assert [int(feed.take(one, nothing)[0, 0]) for one in later] == [9, 9]
        assert feed.changes() == ()


ORPHANING = """
import os, pathlib, signal, sys
from tests.training.loading import Numbers, feeding, loader_ids, wait_for_processes, wanted
from workers.training.loader_choice import Way
from workers.training.loader_fleet import Fleet
Fleet.keep = wait_for_processes(Fleet.keep)
with feeding(Numbers(waits_for=pathlib.Path("/nowhere")), Way(num_processes=2)) as feed:
    feed.begin(iter([wanted(9), wanted(1)]))
    while not feed._loaders.place(wanted(9)):
        pass
    print(*loader_ids(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_loaders_end_with_a_worker_that_is_killed_also_those_that_hang() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANING], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        loaders = list[psutil.Process]()
        for pid in worker.stdout.readline().split():
            with suppress(psutil.NoSuchProcess):  # its worker may have been killed by now, and it have ended
                loaders.append(psutil.Process(int(pid)))
        assert worker.wait(60) == -signal.SIGKILL
    _, alive = psutil.wait_procs(loaders, timeout=30)
    assert alive == []


NESTED: dict[str, Any] = {
    "x": torch.arange(6.0).reshape(2, 3)[:, 1:],
    "half": [torch.ones(3, dtype=torch.bfloat16), torch.tensor(True)],
    "none": torch.zeros(0, 4),
    "text": ("a", 1, None),
    "needs": torch.ones(2, requires_grad=True),
}


def test_what_is_sent_to_another_process_arrives_as_it_was() -> None:
    ours, theirs = socket.socketpair()
    large = torch.arange(300_000)
    with ours, theirs:
        threading.Thread(target=lambda: wire.send(ours, wire.pack([NESTED, large]))).start()
        found, found_large = wire.receive(theirs)
    assert torch.equal(found_large, large)
    assert found.keys() == NESTED.keys()
    assert found["text"] == NESTED["text"]
    for key in ("x", "none", "needs"):
        assert torch.equal(found[key], NESTED[key])
        assert found[key].dtype == NESTED[key].dtype
    assert found["needs"].requires_grad
    assert [t.dtype for t in found["half"]] == [torch.bfloat16, torch.bool]
    found["x"] += 1  # its memory is its own, and may be written to
    with pytest.raises(wire.TooLargeError, match="more than 1000 bytes"):
        wire.pack(large, 1000)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("way", ["a thread", "processes"])
def test_on_a_gpu_batches_come_from_pinned_memory_and_are_what_they_are_inline(way: str) -> None:
    device = torch.device("cuda", 0)
    rounds = [wanted(*range(10, 40), round=n) for n in range(8)]
    expected = Reader(Batcher(Numbers(), None, CPU), seed=3).read(rounds[0])
    with feeding(Numbers(), WAYS[way], device=device) as feed:
        for number, one in enumerate(rounds):
            feed.begin(iter(rounds[number:]))
            busy = torch.ones(4000, 4000, device=device) @ torch.ones(4000, 4000, device=device)
            batch = feed.take(one, nothing)
            assert batch.is_cuda
            assert torch.equal(batch.cpu(), expected)
            assert busy[0, 0] == 4000
