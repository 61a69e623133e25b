"""The process group of one generation: formed in place, broken at once when it has to be.

A world never touches torch's default group: a worker forms many of them in its life, one after the
other, and a user's code may have its own. All members of a world must call its collectives in the
same order. Whatever goes wrong in one is a WorldError, and the world is of no use after it.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from workers.training import sockets
from workers.training.calls import StoreCalls
from workers.training.device_occupancy import DeviceOccupancy
from workers.training.nccl import form_nccl
from workers.training.occupancy import Occupancy
from workers.training.store import Address, CallbackStore
from workers.training.traffic import Traffic, traffic_of

COME_TOGETHER_S = 3600.0  # newcomers wait for a boundary that the others agree on; the controller is the clock
CONNECT_S = 15.0  # once all have published their addresses
COLLECTIVE_S = 7 * 86_400.0  # the controller is the clock: it aborts a group that is stuck
FAREWELL_S = 2.0
WAIT_SLICE_S = 0.05

_SLICE = timedelta(seconds=WAIT_SLICE_S)
_device_lock = threading.Lock()
_releasing: list[threading.Thread] = []


_Landing: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Where what a collective brings belongs, and the memory of the host that it comes to."""


class WorldError(Exception):
    """A collective or the rendezvous failed, or the world was aborted: somebody else is gone, or must be taken so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """This process's place: ``group`` names the membership in the controller's store; ``backend`` is torch's name."""

    group: str
    rank: int
    size: int
    backend: str
    device: torch.device


class Transfer:
    """A collective under way; what it brings to the host is copied to where it belongs once it has come.

    ``sent`` is what it takes along: no other tensor may have its memory meanwhile, and with that its place on the host.
    """

    __slots__ = ("_landings", "_sent", "_work", "_world")

    def __init__(
        self, world: World, work: dist.Work, landings: Sequence[_Landing] = (), sent: torch.Tensor | None = None
    ) -> None:
        self._world = world
        self._work = work
        self._landings, self._sent = landings, sent

    def wait(self) -> None:
        """Wait until the tensor holds the result (on an accelerator: until its stream does). Raises WorldError.

        With gloo in slices, as it does not always tell an operation that its connection is gone (43 of 2,870 breaks on
        a busy machine): one that a whole slice did not end, with a connection gone before and after and no byte on its
        way, has failed. One that even an abort does not reach is left behind to the thread that releases the group.
        """
        gone_at: int | None = None
        while True:
            # Asked before waiting: work that ends between a slice's time-out and the question has not failed.
            has_ended = self._work.is_completed()
            try:
                self._work.wait(_SLICE) if self._world.is_gloo else self._work.wait()
            except RuntimeError as error:
                if has_ended or self._world.is_aborted or not self._world.is_gloo:
                    raise self._world.broken(error) from error
                before, gone_at = gone_at, self._world.gone_at()
                if gone_at is not None and gone_at == before and not self._work.is_completed():
                    raise self._world.broken(ConnectionError("a connection to another rank is gone")) from error
            else:
                break
        for place, host in self._landings:
            place.copy_(host, non_blocking=True)
        self._landings, self._sent = (), None


class World:
    """A group of ``size`` ranks; of one rank it has no group and every collective is the identity.

    gloo's tensors are the host's: those of an accelerator go there and back, through pinned memory. ``is_mixed`` is
    whether ranks' processors are known to be of unlike kinds, which round differently; the same on all.
    """

    def __init__(self, seat: Seat, calls: StoreCalls) -> None:
        self.rank, self.size, self.device = seat.rank, seat.size, seat.device
        self._seat = seat
        self._calls = calls
        self._group: Any = None  # a Backend of torch.distributed, without stubs
        self._store: CallbackStore | None = None
        self.traffic: Traffic | None = None
        self.is_gloo = seat.backend == "gloo"
        self._twins: dict[tuple[int, tuple[int, ...], torch.dtype], torch.Tensor] = {}
        self._link_device = torch.device("cpu") if self.is_gloo else seat.device
        self.occupancy = Occupancy() if self.is_gloo else None  # of others the host does not see when they end
        is_seen_there = seat.device.type == "cuda" and not self.is_gloo and seat.size > 1
        self.device_occupancy = DeviceOccupancy(seat.device) if is_seen_there else None
        self.is_aborted = self.is_mixed = False
        self._connected, self._holding = threading.Event(), threading.Lock()
        self._error: BaseException | None = None

    def connect(self) -> None:
        """Meet the other members; all of them must call it. Raises WorldError.

        The meeting runs in a thread of its own, which an abort leaves to its bound: nothing of torch
        or of the controller's store can be interrupted while it waits for a member that is gone.
        """
        if self.size == 1:
            return
        threading.Thread(target=self._meet, name="rendezvous", daemon=True).start()
        self._connected.wait(COME_TOGETHER_S + CONNECT_S)
        if self.is_aborted or self._group is None:
            error, failure = self._error, self.broken(self._error)
            self.destroy()
            raise failure from error

    def sent_bytes(self) -> int | None:
        """Bytes that this rank has sent to the other members so far, as ``Traffic`` counts them.

        0 in a world of one; None where nobody counts them: NCCL's, and outside of Linux. It ends no collective: once
        one has been waited for, all of what this rank sends for it is counted. Of a world that is gone it is what was
        sent until this rank destroyed it; of one that others broke, what was until it was last waited for.
        """
        if self.size == 1:
            return 0
        return None if self.traffic is None else self.traffic.sent_bytes()

    def gone_at(self) -> int | None:
        """Bytes that travelled by now, where a connection to a member is closed; else None. Reads as ``sent_bytes``."""
        self.sent_bytes()  # where peers break the group, gloo closes its connections before it says so
        return None if self.traffic is None else self.traffic.gone_at

    def all_reduce(self, tensor: torch.Tensor) -> Transfer | None:
        """Begin to sum a contiguous tensor over all ranks, in place; None where nothing has to be done."""
        if self.size == 1:
            return None
        at_link = self._at_link(tensor)
        return self._sent(self._begun("allreduce", [at_link]), (tensor, at_link), tensor)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> Transfer:
        """Begin to collect every rank's contiguous tensor in ``output``, a row for each. Raises WorldError."""
        place, at_link = self._place_at_link(output), self._at_link(tensor)
        return self._sent(self._begun("_allgather_base", place, at_link), (output, place), tensor)

    def all_to_all(
        self, output: torch.Tensor, tensor: torch.Tensor, received: Sequence[int] = (), sent: Sequence[int] = ()
    ) -> Transfer:
        """Begin to send row i to rank i, and to collect its row for this rank in row i of ``output``.

        Both are contiguous, with a row for each rank; or they hold as many for each as ``received`` and ``sent`` say,
        on all ranks. Of a rank with none nothing but a few hundred bytes of gloo's travels. Raises WorldError.
        """
        place, at_link = self._place_at_link(output), self._at_link(tensor)
        work = self._begun("alltoall_base", place, at_link, [*received], [*sent])
        return self._sent(work, (output, place), tensor)

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum a contiguous tensor over all ranks, in place. Raises WorldError."""
        transfer = self.all_reduce(tensor)
        if transfer is not None:
            transfer.wait()

    def agree(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks of a few numbers, the same on each; a collective of its own. Raises WorldError."""
        vector = torch.tensor(values, dtype=torch.float64, device=self._link_device)
        self.sum(vector)
        return vector.tolist()

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """Every rank's list of integers, by rank; all must be of one length. Raises WorldError."""
        own = torch.tensor(values, dtype=torch.int64, device=self._link_device)
        if self.size == 1:
            return [own.tolist()]
        table = [torch.empty_like(own) for _ in range(self.size)]
        Transfer(self, self._begun("allgather", [table], [own])).wait()
        found = [row.tolist() for row in table]
        if self.is_aborted:  # an accelerator's collective then ends without an error, and brings nothing
            raise self.broken(None)
        return found

    def latencies_s(self) -> list[list[float]] | None:
        """Seconds one way between ranks, as the kernel saw them, the same on all ranks, which all must call.

        None where it does not tell all of them, and of an accelerator's group. Raises WorldError.
        """
        store = self._store
        if self.size == 1 or not self.is_gloo or store is None:
            return None
        marks = self.gather([_mark(address) for address in sorted(store.own)[:1]])
        trips_s = {_mark(address): s for address, s in sockets.round_trips_s(store.peers - store.own).items()}
        told = self.gather([round(1e9 * trips_s.get(mark, 0.0)) for [mark] in marks])
        # Of each two ranks one has connected to the other, and knows by its address whom it asked.
        found = [[max(told[a][b], told[b][a]) / 2e9 for b in range(self.size)] for a in range(self.size)]
        is_whole = all(found[a][b] > 0.0 for a in range(self.size) for b in range(a))
        return found if is_whole else None

    def machines(self) -> list[int]:
        """A number for every rank's machine, by its address; all ranks must call it. Raises WorldError."""
        own = sorted(self._store.own)[:1] if self._store is not None else []
        host = own[0][0] if own else self._calls.address
        return [number for [number] in self.gather([zlib.crc32(host.encode())])]

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Give every rank the contiguous tensor of rank ``source``, in place. Raises WorldError."""
        if self.size == 1:
            return
        options = dist.BroadcastOptions()
        options.rootRank = source
        at_link = self._at_link(tensor) if self.rank == source else self._place_at_link(tensor)
        Transfer(self, self._begun("broadcast", [at_link], options), _landings(tensor, at_link)).wait()

    def _at_link(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself, or a copy where the group can take it; returns when that is made."""
        place = self._place_at_link(tensor)
        return tensor if place is tensor else place.copy_(tensor)

    def _place_at_link(self, like: torch.Tensor) -> torch.Tensor:
        """The tensor itself, or memory for one like it where the group can take it.

        That is kept until the group is gone, whose threads let go of a tensor some time after its collective.
        """
        if like.device.type == self._link_device.type:
            return like
        key = (like.data_ptr(), tuple(like.shape), like.dtype)
        if key not in self._twins:
            self._twins[key] = torch.empty_like(like, device=self._link_device, pin_memory=True)
        return self._twins[key]

    def _sent(self, work: dist.Work, comes_to: _Landing, tensor: torch.Tensor) -> Transfer:
        """Of NCCL's work the caller keeps the memory of what comes until it has been waited for."""
        if self.occupancy is not None:
            self.occupancy.begin()
            work.get_future().add_done_callback(self.occupancy.end)
        elif self.device_occupancy is not None:
            self.device_occupancy.sent(work)
        return Transfer(self, work, _landings(*comes_to), tensor)

    def abort(self) -> None:
        """Break the group, from any thread: every collective pending here fails within milliseconds, and peers' too."""
        self.is_aborted = True
        self._connected.set()
        if self.is_gloo:  # whose group this thread must not be the last to hold
            if (store := self._store) is not None:
                sockets.shut_down(store.own, store.peers - store.own)
        elif (group := self._group) is not None:
            with suppress(RuntimeError):
                group.abort()

    def leave(self) -> None:
        """Part in peace after the last collective of a generation; all members that are left should call it.

        Closing at once could reset connections from which a slower peer still reads that collective's
        last bytes, so everybody meets once more; whether that meeting succeeds matters to nobody.
        """
        if self._group is None or self.is_aborted:
            return self.destroy()
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=FAREWELL_S)
        try:
            self._group.allreduce([torch.zeros(1, device=self._link_device)], options).wait(options.timeout)
        except RuntimeError:
            return self.destroy()
        self.is_aborted = True
        return self._release()

    def destroy(self) -> None:
        """Break the group and release it; never waits for a peer. May be called again."""
        self.sent_bytes()  # for who asks after it
        self.abort()
        self._release()

    def _release(self) -> None:
        """Let go of the group in a thread of its own: that joins gloo's threads, 10 ms at best."""
        with self._holding:
            last, twins = [self._group], self._twins
            self._group = self._store = None

        def let_go() -> None:
            last.clear()
            twins.clear()

        if last[0] is not None:
            thread = threading.Thread(target=let_go, name="release", daemon=True)
            thread.start()
            _releasing[:] = [t for t in _releasing if t.is_alive()] + [thread]

    def broken(self, error: BaseException | None) -> WorldError:
        """What to raise for an error of this world."""
        if self.is_aborted:
            return WorldError(f"group {self._seat.group} was aborted")
        cause = self._store.error if self._store is not None and self._store.error is not None else error
        return WorldError(f"group {self._seat.group} of {self.size} broke at rank {self.rank}: {cause}")

    def _begun(self, name: str, *arguments: object) -> dist.Work:
        """Begin a collective of torch's. Raises WorldError.

        Who lets go of a group last waits in gloo for work that an abort may not reach: that is to be ``_release``.
        """
        try:
            with self._holding:
                return getattr(self._live(), name)(*arguments)  # type: ignore[no-any-return]  # torch's
        except RuntimeError as error:
            raise self.broken(error) from error

    def _live(self) -> Any:
        if self._group is None or self.is_aborted:
            raise WorldError(f"group {self._seat.group} was aborted")
        return self._group

    def _meet(self) -> None:
        try:
            self._group = self._form()
        except Exception as error:  # told by connect, in the thread that waits for it
            self._error = error
        if self.is_aborted:
            self.destroy()
        self._connected.set()

    def _form(self) -> Any:
        if self.is_gloo:
            device, own = _listening_device(self._calls.address)
            self._store = CallbackStore(self._calls, self._seat.group, own, COME_TOGETHER_S)
            return self._form_gloo(device, self._store)
        self._store = CallbackStore(self._calls, self._seat.group, [], COME_TOGETHER_S)
        return form_nccl(self._store, self.rank, self.size, timedelta(seconds=COLLECTIVE_S))

    def _form_gloo(self, device: Any, store: CallbackStore) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # not in torch's stubs
        options._devices = [device]
        options._threads = 2
        options._timeout = timedelta(seconds=CONNECT_S)
        group = dist.ProcessGroupGloo(store, self.rank, self.size, options)
        group._set_default_timeout(timedelta(seconds=COLLECTIVE_S))
        self.traffic = traffic_of(store.own, store.peers - store.own, self.size - 1)
        return group


def _landings(place: torch.Tensor, at_link: torch.Tensor) -> Sequence[_Landing]:
    return () if at_link is place else ((place, at_link),)


def _mark(address: Address) -> int:
    return zlib.crc32(repr(address).encode())


def _listening_device(address: str) -> tuple[Any, list[Address]]:
    """A gloo device of its own at this address of the machine, and the addresses at which it listens."""
    with _device_lock:
        before = sockets.listening().keys()
        # torch reads this variable of its own only where it is given no device.
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
        if interface:
            device = dist.ProcessGroupGloo.create_device(interface=interface, lazy_init=False)
        else:
            device = dist.ProcessGroupGloo.create_device(hostname=address, lazy_init=False)
        now = sockets.listening()
        return device, [now[inode] for inode in now.keys() - before]


def await_released(timeout_s: float) -> None:
    """Wait until the groups that were left are gone: a process that ends before crashes in gloo's threads.

    One that is not gone by then is waited for no more. Seen once in thousands: a broken group's allgather stayed in
    gloo's ``waitSend`` with all its connections closed.
    """
    until_s = time.monotonic() + timeout_s
    while _releasing:
        _releasing.pop(0).join(max(0.0, until_s - time.monotonic()))
