"""How fast links between a group's machines are, measured when it begins: in a second, where they are far in a few."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from workers.racks import FAST_BYTES_PER_S, Topology, complete, topology_of, unmeasured
from workers.training.link_pairs import Pair, first_rounds, next_rounds, table
from workers.training.world import World

SMALL_BYTES = 64 * 2**10
LARGE_BYTES = 2**20
MESSAGES_BYTES = (*[SMALL_BYTES] * 6, LARGE_BYTES, LARGE_BYTES)
"""Small ones after the first are for links found slow, as disturbances do, until two agree; the large for neither slow
nor fast. Far links get ``NUM_FAR`` of the small, as TCP begins with less in flight, and none of the large, which would
take it ever longer."""
NUM_FAR = 3
NUM_HURRIED = 2
"""Of the small, where half of the time is over."""
AGREED = 0.8
"""What is so near to the best so far agrees with it; what is slower was disturbed, or the best not yet there."""
SLOW_BYTES_PER_S = 8e6
FAR_S = 2e-3
"""There and back; what is at one place is nearer."""
BUDGET_S = 1.0
LATE_S, MOST_BUDGETS = 0.025, 5.0
"""A group with links so long has twice the time, as all takes longer there, and so on up to that."""
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
    speeds = measure(world, world.machines())
    latencies_s = world.latencies_s()  # after them, as the kernel tells what it has seen
    found = unmeasured(world.size, known) if speeds is None else topology_of(speeds, latencies_s, known)
    if world.rank == 0:
        print(_told(found, speeds), flush=True)
    return found


def _told(found: Topology, speeds: Sequence[Sequence[float]] | None) -> str:
    if speeds is None:
        return f"links were not all measured within {BUDGET_S:g} s; racks by {found.found_by}: {found}"
    rates = [
        f"{a}-{b} {speeds[a][b] * 8 / 1e6:.0f}"
        for a, row in enumerate(speeds)
        for b in range(a + 1, len(row))
        if row[b]
    ][:MOST_TOLD]
    return f"{found}; Mbit a second between ranks: {', '.join(rates)}"


def measure(world: World, machines: Sequence[int] = ()) -> list[list[float]] | None:
    """Bytes a second of links, by the ranks at their ends, the same numbers on all ranks, which all must call it.

    ``machines`` has the number of every rank's; none: each has one of its own. 0 where nothing was measured, as not
    every two of many machines are, but every two racks. None where that took too long: it ends after the message during
    which ``Trips.budget_s`` ran out. Raises WorldError.
    """
    machines = machines or range(world.size)
    speeds: dict[Pair, float] = {}
    world.gather([0])  # who took over state for longer is waited for, not measured
    began_s = time.perf_counter()
    trips = Trips(world.latencies_s())
    rounds = first_rounds(machines)
    while rounds:
        for pairs in rounds:
            if not _met(world, pairs, speeds, trips, began_s):
                return None
        rounds = next_rounds(speeds, machines)
    return table(speeds, machines)


class Trips:
    """How long it takes there and back, by what the kernel saw one way; nothing where it does not tell."""

    def __init__(self, latencies_s: Sequence[Sequence[float]] | None) -> None:
        self._latencies_s = latencies_s
        longest_s = 2 * max(map(max, latencies_s)) if latencies_s else 0.0
        self.budget_s = BUDGET_S * min(MOST_BUDGETS, 1.0 + longest_s / LATE_S)

    def seconds(self, pair: Pair) -> float:
        return 2 * self._latencies_s[pair[0]][pair[1]] if self._latencies_s else 0.0


def _met(world: World, pairs: Sequence[Pair], speeds: dict[Pair, float], trips: Trips, began_s: float) -> bool:
    """Measure the links of pairs of which nobody is in two; False where time has run out."""
    sure: set[Pair] = set()
    is_hurried = False
    for number, num_bytes in enumerate(MESSAGES_BYTES):
        going = [pair for pair in pairs if pair not in sure] if num_bytes == SMALL_BYTES else pairs
        is_open = [pair for pair in going if _is_open(number, speeds.get(pair, 0.0), trips.seconds(pair), is_hurried)]
        if not is_open:
            continue
        took_s = _send(world, is_open, num_bytes)
        told = world.gather([round(took_s * 1e9), round((time.perf_counter() - began_s) * 1e9)])
        for pair in is_open:
            speed = speed_of(num_bytes, told[pair[1]][0] / 1e9, trips.seconds(pair))
            # Not the best of all: a small message may pass at once what holds a large one back.
            is_again = number > 0 and num_bytes == MESSAGES_BYTES[number - 1]
            if is_again and trips.seconds(pair) <= FAR_S and AGREED <= speed / speeds[pair] <= 1.0 / AGREED:
                sure.add(pair)
            speeds[pair] = max(speed, speeds[pair]) if is_again else speed
        is_hurried = told[0][1] > trips.budget_s / 2 * 1e9
        if told[0][1] > trips.budget_s * 1e9:
            return False
    return True


def speed_of(num_bytes: int, took_s: float, trip_s: float) -> float:
    """Bytes a second of a link, without what it takes there and back.

    The receiver's word that it is ready goes there first, and only then the message comes: no byte was sent while they
    were on their way.
    """
    return num_bytes / max(took_s - trip_s, 1e-9)


def _is_open(number: int, speed: float, trip_s: float, is_hurried: bool) -> bool:
    """Whether a link of which so many messages made so much gets the next, too."""
    if trip_s > FAR_S:
        return number < NUM_FAR and speed < FAST_BYTES_PER_S
    if MESSAGES_BYTES[number] == LARGE_BYTES:
        return SLOW_BYTES_PER_S < speed < FAST_BYTES_PER_S
    return number == 0 or (speed <= SLOW_BYTES_PER_S and not (is_hurried and number >= NUM_HURRIED))


def _send(world: World, pairs: Sequence[Pair], num_bytes: int) -> float:
    """Send from the first to the second of each pair; the seconds that this took here."""
    to = dict(pairs).get(world.rank)
    source = {b: a for a, b in pairs}.get(world.rank)
    sent = [num_bytes if rank == to else 0 for rank in range(world.size)]
    received = [num_bytes if rank == source else 0 for rank in range(world.size)]
    message = torch.zeros(sum(sent), dtype=torch.uint8, device=world.device)
    place = torch.empty(sum(received), dtype=torch.uint8, device=world.device)
    began_s = time.perf_counter()  # after a gather, so that nobody waits for a rank that comes later
    world.all_to_all(place, message, received, sent).wait()
    place[-1:].tolist()  # an accelerator's stream has it by then
    return time.perf_counter() - began_s
