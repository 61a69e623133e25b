"""How fast links between a group's machines are, measured when it begins: in a second, where they are far in a few."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from workers.racks import FAST_BYTES_PER_S, Topology, complete, topology_of, unmeasured
from workers.training.link_pairs import Pair, apart, first_rounds, next_rounds, table
from workers.training.world import World

SMALL_BYTES = 64 * 2**10
LARGE_BYTES = 2**20
MESSAGES_BYTES = (SMALL_BYTES, SMALL_BYTES, SMALL_BYTES, LARGE_BYTES, LARGE_BYTES)
"""The second small one is for links found slow, which one disturbance does; the large for neither slow nor fast. Far
links get all the small, as TCP begins with less in flight, and none of the large, which would take it ever longer."""
SLOW_BYTES_PER_S = 8e6
FAR_S = 2e-3
"""There and back; what is at one place is nearer."""
BUDGET_S = 1.0
LATE_S, MOST_BUDGETS = 0.025, 5.0
"""A group with links so long has twice the time, as all takes longer there, and so on up to that."""
AGREED = 0.8
"""Two measurements of which one is so much of the other; where it is less, one was disturbed or both were."""
NUM_ANEW = 4
"""How often a link is measured anew at most, ..."""
ANEW_FRACTION = 0.5
"""... and the share of the time that may be spent by then: what is left is for links that turn out to lack."""
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
    world.gather([0])  # who took over state for longer is waited for, not measured
    meetings = Meetings(world)
    rounds, is_first = first_rounds(machines), True
    while rounds:
        if not all(meetings.held(pairs) for pairs in rounds):
            return None
        if is_first:
            meetings.settle()
        rounds, is_first = next_rounds(meetings.speeds, machines), False
    return table(meetings.speeds, machines)


class Trips:
    """How long it takes there and back, by what the kernel saw one way; nothing where it does not tell."""

    def __init__(self, latencies_s: Sequence[Sequence[float]] | None) -> None:
        self._latencies_s = latencies_s
        longest_s = 2 * max(map(max, latencies_s)) if latencies_s else 0.0
        self.budget_s = BUDGET_S * min(MOST_BUDGETS, 1.0 + longest_s / LATE_S)

    def seconds(self, pair: Pair) -> float:
        return 2 * self._latencies_s[pair[0]][pair[1]] if self._latencies_s else 0.0


class Meetings:
    """Pairs of ranks that measure their links: ``speeds`` so far, in bytes a second, alike on all ranks."""

    def __init__(self, world: World) -> None:
        self.speeds: dict[Pair, float] = {}
        self._world, self._began_s = world, time.perf_counter()
        self._trips = Trips(world.latencies_s())
        self._spent_s = self._longest_s = 0.0  # by the clock of rank 0; the longest time that measuring anew took
        self._doubtful: set[Pair] = set()

    def held(self, pairs: Sequence[Pair]) -> bool:
        """Measure the links of pairs of which nobody is in two; False where time has run out."""
        for number, num_bytes in enumerate(MESSAGES_BYTES):
            is_open = [p for p in pairs if _is_open(number, self.speeds.get(p, 0.0), self._trips.seconds(p))]
            if is_open:
                is_again = number > 0 and num_bytes == MESSAGES_BYTES[number - 1]
                self._send(is_open, num_bytes, is_again=is_again)
                if self._spent_s > self._trips.budget_s:
                    return False
        return True

    def settle(self) -> None:
        """Measure slow links anew of which two measurements differ, while there is time for it."""
        for _ in range(NUM_ANEW):
            for pairs in apart(sorted(pair for pair in self._doubtful if self.speeds[pair] <= SLOW_BYTES_PER_S)):
                if self._spent_s + self._longest_s > ANEW_FRACTION * self._trips.budget_s:
                    return
                self._measure_anew(pairs)

    def _measure_anew(self, pairs: Sequence[Pair]) -> None:
        before, began_s = {pair: self.speeds.pop(pair) for pair in pairs}, self._spent_s
        self.held(pairs)
        self._longest_s = max(self._longest_s, self._spent_s - began_s)
        for pair, speed in before.items():
            now = self.speeds[pair]
            self.speeds[pair] = max(speed, now)
            if _agree(speed, now):
                self._doubtful.discard(pair)

    def _send(self, pairs: Sequence[Pair], num_bytes: int, *, is_again: bool) -> None:
        took_s = _send(self._world, pairs, num_bytes)
        told = self._world.gather([round(took_s * 1e9), round((time.perf_counter() - self._began_s) * 1e9)])
        self._spent_s = told[0][1] / 1e9
        for pair in pairs:
            trip_s = self._trips.seconds(pair)
            speed = speed_of(num_bytes, told[pair[1]][0] / 1e9, trip_s)
            # Not the best of all: a small message may pass at once what holds a large one back.
            if is_again:
                if num_bytes == SMALL_BYTES and trip_s <= FAR_S and not _agree(speed, self.speeds[pair]):
                    self._doubtful.add(pair)
                speed = max(speed, self.speeds[pair])
            self.speeds[pair] = speed


def _agree(first: float, second: float) -> bool:
    return AGREED * max(first, second) <= min(first, second)


def speed_of(num_bytes: int, took_s: float, trip_s: float) -> float:
    """Bytes a second of a link, without what it takes there and back.

    The receiver's word that it is ready goes there first, and only then the message comes: no byte was sent while they
    were on their way.
    """
    return num_bytes / max(took_s - trip_s, 1e-9)


def _is_open(number: int, speed: float, trip_s: float) -> bool:
    """Whether a link of which so many messages made so much gets the next, too."""
    if trip_s > FAR_S:
        return MESSAGES_BYTES[number] == SMALL_BYTES and speed < FAST_BYTES_PER_S
    if number < 2:
        return number == 0 or speed <= SLOW_BYTES_PER_S
    return MESSAGES_BYTES[number] == LARGE_BYTES and SLOW_BYTES_PER_S < speed < FAST_BYTES_PER_S


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
