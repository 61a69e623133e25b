"""How fast the links between a world's ranks are: all pairs, measured when a group begins, in about a second."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from workers.racks import FAST_BYTES_PER_S, Topology, complete, topology_of, unmeasured
from workers.training.world import World

SMALL_BYTES = 64 * 2**10
LARGE_BYTES = 2**20
MESSAGES_BYTES = (SMALL_BYTES, SMALL_BYTES, LARGE_BYTES, LARGE_BYTES)
"""The second small one is for links found slow, which one disturbance does; the large for neither slow nor fast."""
SLOW_BYTES_PER_S = 8e6
BUDGET_S = 1.0
MOST_TOLD = 28
LEAST_COMPARED = 3


def survey(world: World, labels: Sequence[str]) -> Topology:
    """Which ranks share a rack, alike on all ranks, which all must call it; rank 0 tells it in its log.

    ``labels`` are the ranks' own, empty for none. They hold where measuring took too long, and of two ranks, whose
    one link there is nothing to compare with. Raises WorldError.
    """
    if world.size == 1:
        return Topology(racks=(0,))
    known = complete(labels)
    if world.size < LEAST_COMPARED and known:
        return unmeasured(world.size, known)
    speeds = measure(world)
    latencies_s = world.latencies_s()  # after them, as the kernel tells what it has seen
    found = unmeasured(world.size, known) if speeds is None else topology_of(speeds, latencies_s, known)
    if world.rank == 0:
        print(_told(found, speeds), flush=True)
    return found


def _told(found: Topology, speeds: Sequence[Sequence[float]] | None) -> str:
    if speeds is None:
        return f"links were not all measured within {BUDGET_S:g} s; racks by {found.found_by}: {found}"
    rates = [f"{a}-{b} {speeds[a][b] * 8 / 1e6:.0f}" for a, row in enumerate(speeds) for b in range(a + 1, len(row))][
        :MOST_TOLD
    ]
    return f"{found}; Mbit a second between ranks: {', '.join(rates)}"


def measure(world: World) -> list[list[float]] | None:
    """Bytes a second of every link, by the ranks at its ends, the same numbers on all ranks, which all must call it.

    None where that took too long: it ends after the message during which ``BUDGET_S`` ran out. Raises WorldError.
    """
    speeds = [[0.0] * world.size for _ in range(world.size)]
    world.gather([0])  # who took over state for longer is waited for, not measured
    began_s = time.perf_counter()
    for number, num_bytes in enumerate(MESSAGES_BYTES):
        for pairs in rounds_of_pairs(world.size):
            is_open = [(a, b) for a, b in pairs if _is_open(number, speeds[a][b])]
            if not is_open:
                continue
            took_s = _send(world, is_open, num_bytes)
            told = world.gather([round(took_s * 1e9), round((time.perf_counter() - began_s) * 1e9)])
            for a, b in is_open:
                speed = num_bytes / max(told[b][0] / 1e9, 1e-9)
                # Not the best of all: a small message may pass at once what holds a large one back.
                is_again = number > 0 and num_bytes == MESSAGES_BYTES[number - 1]
                speeds[a][b] = speeds[b][a] = max(speed, speeds[a][b]) if is_again else speed
            if told[0][1] > BUDGET_S * 1e9:
                return None
    return speeds


def _is_open(number: int, speed: float) -> bool:
    if number < 2:
        return number == 0 or speed <= SLOW_BYTES_PER_S
    return SLOW_BYTES_PER_S < speed < FAST_BYTES_PER_S


def _send(world: World, pairs: Sequence[tuple[int, int]], num_bytes: int) -> float:
    """Send from the first to the second of each pair; the seconds that this took here."""
    to = dict(pairs).get(world.rank)
    source = {b: a for a, b in pairs}.get(world.rank)
    sent = [num_bytes if rank == to else 0 for rank in range(world.size)]
    received = [num_bytes if rank == source else 0 for rank in range(world.size)]
    message = torch.zeros(sum(sent), dtype=torch.uint8, device=world.device)
    place = torch.empty(sum(received), dtype=torch.uint8, device=world.device)
    world.gather([0])  # so that nobody waits for a rank that comes later
    began_s = time.perf_counter()
    world.all_to_all(place, message, received, sent).wait()
    place[-1:].tolist()  # an accelerator's stream has it by then
    return time.perf_counter() - began_s


def rounds_of_pairs(size: int) -> list[list[tuple[int, int]]]:
    """All pairs of ranks, the lower first, in rounds in which nobody is twice: a tournament by the circle method."""
    seats = [*range(size), *([-1] if size % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in met if -1 not in pair])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds
