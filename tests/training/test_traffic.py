"""Bytes as the kernel counts them: those of a group's connections alone, and as many as each scheme is said to send."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

from tests.forking import FORKS, import_before_forking
from tests.training.fake_store import FakeStore
from tests.training.rank import RemoteCalls, answers_of, await_true
from tests.training.test_world import WAIT_S, joined, seat
from workers.exchange_options import Options
from workers.training import sockets
from workers.training import traffic as counts
from workers.training.calls import StoreCalls
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.meter import meter, pass_clock
from workers.training.exchange.registry import scheme_named, scheme_over_racks
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Scheme
from workers.training.sockets import Place
from workers.training.traffic import Traffic, traffic_of
from workers.training.world import Seat, World, WorldError, await_released

import_before_forking(__name__)

SIDE, NUM_TAIL = 1000, 40
NUMEL = SIDE * SIDE
NUM_ROUNDS = 2
FRACTION, FACTOR_RANK = 0.01, 32
OPTIONS: Mapping[str, Options] = {"topk": (("fraction", FRACTION),), "powersgd": (("rank", FACTOR_RANK),)}
GROUP, SENT, PARTED = "1/1", "sent", "parted"
HEADERS = 0.01  # gloo's
SCALE = 4 / 256  # of a block's scale, to each value
BYTES_A_VALUE = {
    "none": 4.0,
    "bf16": 2.0,
    "fp16": 2 + SCALE,
    "int8": 1 + SCALE,
    "int4": 0.5 + SCALE,
    "two_four": 0.625 + SCALE,
    "powersgd": 4 * FACTOR_RANK * 2 * SIDE / NUMEL,
}
TOPK_BYTES_A_VALUE = 1.5 * FRACTION * (1 + SCALE + 2)
CODE = (0.5 + SCALE) / 4
# Of fp32 gradients: half to the mate and half of the sum back, a shard in 4 bits to the peer; a rack's third rank gives
# its parts and sends no sum.
OVER_RACKS = {
    (0, 0, 1, 1, 1): [1.0 + 0.5 * CODE] * 2 + [1.5 + 0.5 * CODE] * 2 + [1.0],
    (0, 0, 1, 1, 2, 2): [1.0 + 2 * 2 / 3 * 0.5 * CODE] * 6,
}

Work: TypeAlias = Callable[[World, StoreCalls], Any]


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return mine, theirs


def place_of(own: socket.socket) -> Place:
    found = os.fstat(own.fileno())
    return Place(own.fileno(), found.st_dev, found.st_ino)


def acknowledged(own: socket.socket) -> int:
    """``tcpi_bytes_acked``."""
    return int(struct.unpack_from("=Q", own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128), 120)[0])


def given(own: socket.socket) -> int:
    """Bytes that a connection was given, however often TCP had to send them."""
    while True:
        received = acknowledged(own)
        [waiting] = struct.unpack("i", fcntl.ioctl(own.fileno(), termios.TIOCOUTQ, bytes(4)))
        if acknowledged(own) == received:
            return int(received + waiting)


def count_no_repeats() -> None:
    """Let this process leave out what TCP sent again: how much that is, a busy machine decides, on loopback too."""

    told = counts._told

    def once(place: Place) -> Any:
        found, duplicate = told(place), place.duplicate()
        if found is None or duplicate is None:
            return None
        with duplicate:
            return found._replace(sent=given(duplicate))

    counts._told = once


def test_all_that_was_given_to_a_connection_is_counted_before_it_leaves_and_nothing_that_came() -> None:
    mine, theirs = pair()
    with mine, theirs:
        theirs.sendall(bytes(1000))
        traffic = Traffic([place_of(mine)])
        assert traffic.sent_bytes() == 0
        mine.setblocking(False)
        num_given = 0
        while True:
            try:
                num_given += mine.send(bytes(2**16))
            except BlockingIOError:
                break
        assert num_given <= traffic.sent_bytes()
        assert given(mine) - num_given in {0, 1}  # TCP counts the connection's beginning


def test_a_connection_that_was_closed_stays_at_its_bytes_whatever_takes_its_descriptor() -> None:
    mine, theirs = pair()
    other, others = pair()
    with theirs, other, others:
        traffic = Traffic([place_of(mine)])
        mine.sendall(bytes(1000))
        sent_bytes = traffic.sent_bytes()
        assert sent_bytes >= 1000
        os.dup2(other.fileno(), mine.fileno())
        mine.sendall(bytes(5000))
        assert traffic.sent_bytes() == sent_bytes
        mine.close()
        assert traffic.sent_bytes() == sent_bytes


def test_a_connection_is_counted_once_and_to_the_end_while_others_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others look through a duplicate of their own, as several ranks of one process do, and close it at once."""
    mine, theirs = pair()
    address = theirs.getsockname()
    with mine, theirs:
        for is_closed_before_it_is_read in (True, False):
            look = mine.dup()
            found = [place_of(look), place_of(mine)]
            assert sorted(sockets.connections([], [address])) == sorted(found)
            with monkeypatch.context() as patched:
                patched.setattr(sockets, "connections", lambda *_, found=found: found)
                if is_closed_before_it_is_read:
                    look.close()
                traffic = traffic_of([], [address], 1)
            assert traffic is not None
            before = traffic.sent_bytes()
            look.close()
            mine.sendall(bytes(1000))
            assert traffic.sent_bytes() - before == 1000


def test_peers_see_that_a_connection_was_closed_also_after_it_was_read() -> None:
    mine, theirs = pair()
    with theirs:
        assert Traffic([place_of(mine)]).sent_bytes() == 0
        mine.close()
        theirs.settimeout(WAIT_S)
        assert theirs.recv(1) == b""


def test_connections_of_others_are_not_counted_and_where_one_is_not_found_nothing_is_told() -> None:
    mine, theirs = pair()
    others, ends = pair()
    with mine, theirs, others, ends:
        address, stranger = theirs.getsockname(), ("127.0.0.1", 1)
        assert sockets.connections([], [address]) == [place_of(mine)]
        assert sockets.connections([address], []) == [place_of(theirs)]
        assert traffic_of([stranger], [address], 1) is not None
        assert traffic_of([stranger], [address], 2) is None


def test_a_world_of_one_sends_nothing() -> None:
    world = World(seat(0, 1, "1/1"), FakeStore())
    world.connect()
    assert world.sent_bytes() == 0


def test_what_nobody_knows_of_an_accelerator_alone_is_left_out() -> None:
    lone = World(Seat(group="1/1", rank=0, size=1, backend="nccl", device=torch.device("cuda")), FakeStore())
    own = meter(lone, scheme_named("none", Residual()))
    own.stop()
    took = own.took(pass_clock(lone))
    assert took.values(NUMEL, 1) == {"wire_bytes": 0.0, "encode_s": 0.0, "decode_s": 0.0}
    assert took.backward_s is None  # calls return before a device is done


def serve(pipe: Connection, rank: int, size: int, address: Any, work: Work) -> None:
    """A rank's process: the counting is that of one rank a process."""
    count_no_repeats()
    calls = RemoteCalls(*address)
    world = joined(calls, rank, size, GROUP)
    pipe.send(work(world, calls))
    pipe.recv()
    world.leave()
    await_released(WAIT_S)


def in_processes(size: int, work: Work) -> list[Any]:
    """``work`` in a process a rank."""
    return answers_of(FORKS, size, serve, work)


def sent_by(scheme: Scheme, world: World) -> int:
    """What a round of one bucket sends."""
    scheme.prepare([[torch.Size([SIDE, SIDE])]])
    flat = torch.linspace(-1.0, 1.0 + world.rank, NUMEL + NUM_TAIL).sin_()
    world.agree([1.0])
    before = world.sent_bytes()
    under_way = scheme.start(0, flat, NUMEL, world)
    assert under_way is not None
    under_way.wait()
    after = world.sent_bytes()
    assert before is not None
    assert after is not None
    return after - before


def by_every_scheme(world: World, calls: StoreCalls) -> dict[str, int]:
    names = [*BYTES_A_VALUE, "topk"]
    return {name: sent_by(scheme_named(name, Residual(), OPTIONS.get(name, ())), world) for name in names}


@pytest.mark.parametrize("size", [2, 3])
def test_every_scheme_sends_the_bytes_that_it_is_said_to(size: int) -> None:
    expected = {name: 2 * (size - 1) / size * NUMEL * one for name, one in BYTES_A_VALUE.items()}
    expected["topk"] = (size - 1) * NUMEL * TOPK_BYTES_A_VALUE
    for sent in in_processes(size, by_every_scheme):
        assert sent == pytest.approx(expected, rel=0.02)


def over_racks(world: World, calls: StoreCalls) -> int:
    [racks] = [racks for racks in OVER_RACKS if len(racks) == world.size]
    return sent_by(scheme_over_racks("none", "int4", racks, world.rank, Residual()), world)


@pytest.mark.parametrize("racks", OVER_RACKS, ids=str)
def test_only_a_rack_s_owners_send_across_and_no_more_than_a_sum_a_rack(racks: tuple[int, ...]) -> None:
    sent = in_processes(len(racks), over_racks)
    assert [num_bytes / NUMEL / 4 for num_bytes in sent] == pytest.approx(OVER_RACKS[racks], rel=0.02)


def side_by_side(num: int) -> list[tuple[str, nn.Parameter]]:
    return [(f"weight.{number}", nn.Parameter(torch.zeros(SIDE, SIDE))) for number in range(num)]


def exchange_among(world: World, named: list[tuple[str, nn.Parameter]]) -> GradientExchange:
    """One that has a bucket for each parameter."""
    exchange = GradientExchange(named, 0, bucket_mib=1)
    exchange.join(world, scheme_named("none", Residual()))
    return exchange


def backward(exchange: GradientExchange, parameters: list[nn.Parameter]) -> None:
    exchange.clear()
    loss = torch.stack([parameter.sum() for parameter in parameters]).sum()
    exchange.arm(lambda: None, loss)
    loss.backward()  # type: ignore[no-untyped-call]


def exchanged(world: World, calls: StoreCalls) -> list[dict[str, float]]:
    """Telemetry of rounds, between which members send each other much else."""
    [(name, parameter)] = side_by_side(1)
    exchange = exchange_among(world, [(name, parameter)])
    told = []
    for _ in range(NUM_ROUNDS):
        world.broadcast(torch.zeros(NUMEL), 0)
        backward(exchange, [parameter])
        exchange.finish(lambda: None)
        exchange.measure()
        told.append(exchange.values())
    return told


def test_a_round_is_told_its_own_bytes_and_what_part_they_are_of_fp32_s() -> None:
    for told in in_processes(2, exchanged):
        for values in told:
            assert values["wire_bytes"] == pytest.approx(4 * NUMEL, rel=HEADERS)
            assert values["wire_ratio"] == pytest.approx(4 * NUMEL / values["wire_bytes"])
            assert (values["encode_s"], values["decode_s"]) == (0.0, 0.0)
            assert "redone_bytes" not in values


def redrawn(world: World, calls: StoreCalls) -> list[dict[str, float]]:
    """Telemetry of two rounds, the first of which was done three times."""
    [(name, parameter)] = side_by_side(1)
    exchange = exchange_among(world, [(name, parameter)])
    told = []
    for is_told in (False, False, True, True):
        backward(exchange, [parameter])
        exchange.finish(lambda: None)
        exchange.measure()
        told += [exchange.values()] if is_told else []
    return told


def test_a_round_that_was_drawn_again_is_told_all_that_was_sent_for_it() -> None:
    for again, after in in_processes(2, redrawn):
        assert again["redone_bytes"] == pytest.approx(2 * 4 * NUMEL, rel=HEADERS)
        assert again["wire_bytes"] == pytest.approx(3 * 4 * NUMEL, rel=HEADERS)
        assert again["wire_ratio"] == pytest.approx(4 * NUMEL / again["wire_bytes"])
        assert after["wire_bytes"] == pytest.approx(4 * NUMEL, rel=HEADERS)
        assert "redone_bytes" not in after


def parted(world: World, calls: StoreCalls) -> int | None:
    """What rank 0, which ends the group, has sent in it by its own count afterwards."""
    before = world.sent_bytes()
    world.sum(torch.zeros(NUMEL))
    if world.rank == 1:
        calls.set(GROUP, SENT, b"")
        calls.get(GROUP, PARTED, WAIT_S)
        return None
    calls.get(GROUP, SENT, WAIT_S)
    world.destroy()
    await_released(WAIT_S)
    calls.set(GROUP, PARTED, b"")
    after = world.sent_bytes()
    assert before is not None
    assert after is not None
    return after - before


def test_what_was_sent_in_a_group_is_known_to_the_rank_that_destroyed_it() -> None:
    assert in_processes(2, parted) == [pytest.approx(4 * NUMEL, rel=HEADERS), None]


def tell_once_sent(world: World, num_bytes: int, calls: StoreCalls) -> None:
    """Let the other rank know as soon as this one has read that so much was sent."""
    count = world.sent_bytes

    def telling() -> int | None:
        if (sent := count()) is not None and sent >= num_bytes:
            calls.set(GROUP, SENT, b"")
        return sent

    world.sent_bytes = telling  # type: ignore[method-assign]  # as it was, but heard of


def broken_off(world: World, calls: StoreCalls) -> dict[str, float]:
    """Telemetry of a round of two buckets in another group, after rank 1 ended its own when the first had come."""
    named = side_by_side(2)
    exchange, parameters = exchange_among(world, named), [parameter for _, parameter in named]
    before = world.sent_bytes()
    assert before is not None
    if world.rank == 0:
        tell_once_sent(world, before + 4 * NUMEL, calls)
        backward(exchange, parameters)
        with pytest.raises(WorldError):
            exchange.finish(lambda: None)
    else:
        backward(exchange, parameters[1:])
        calls.get(GROUP, SENT, WAIT_S)
        await_true(lambda: (world.sent_bytes() or 0) >= before + 4 * NUMEL, "the first bucket to leave")
    world.destroy()
    await_released(WAIT_S)
    exchange.drop()
    again = joined(calls, world.rank, 2, "1/2")
    exchange.join(again, scheme_named("none", Residual()))
    backward(exchange, parameters)
    exchange.finish(lambda: None)
    exchange.measure()
    again.leave()
    return exchange.values()


def test_a_round_is_told_what_was_sent_for_it_in_a_group_that_broke() -> None:
    for told in in_processes(2, broken_off):
        assert told["redone_bytes"] == pytest.approx(4 * NUMEL, rel=HEADERS)
        assert told["wire_bytes"] == pytest.approx(3 * 4 * NUMEL, rel=HEADERS)


def test_one_that_is_alone_after_its_group_broke_is_told_no_ratio() -> None:
    exchange = exchange_among(World(seat(0, 1, GROUP), FakeStore()), side_by_side(1))
    exchange.untold_bytes = 1000
    exchange.finish(lambda: None)
    exchange.measure()
    told = exchange.values()
    assert (told["wire_bytes"], told["redone_bytes"], "wire_ratio" in told) == (1000.0, 1000.0, False)
