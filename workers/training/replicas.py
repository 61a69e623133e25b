"""Whether all ranks hold one state, bit for bit, as they should after every commit, and who is wrong where not.

What is compared is what training makes alike: the parameters that are trained and the buffers that are exchanged.
A wrong state must not last: it is looked for before a checkpoint is taken, before a group hands its state over, and
where members of a new group say that they hold the same; besides every ``EVERY_ROUNDS`` rounds.

Processors of unlike kinds, a GPU and a CPU say, round differently, so that by and by states part. There ranks are
compared by how far apart they are, and where that has come to something all go on with what rank 0 holds.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import torch

from workers.errors import ReplicaError, described
from workers.plan import Plan
from workers.status import Phase
from workers.training import memory, transfer
from workers.training.back_off import MemoryInExchangeError
from workers.training.hashing import hash_of
from workers.training.mailbox import Mailbox
from workers.training.sketch import WIDTH, apart, sketch_of
from workers.training.state import TrainingState
from workers.training.world import World, WorldError

EVERY_ROUNDS = 200  # one takes about as long as half a step of the smallest models

MAX_TOLD = 5

BARELY_APART, MOST_APART = 1e-4, 0.01
"""Of the norm of what is compared. What fp32 rounds to takes very many rounds to come to the first; formats in which
that comes to more may be further apart."""

UNLIKE_REASON = (
    f"whether all workers hold the same weights is checked to {MOST_APART:.0%} or so, as their processors (or numbers "
    f"of threads) are of unlike kinds, which round differently; where they are {BARELY_APART:.2%} apart all take those "
    "of the first; workers on machines of one kind are compared bit by bit"
)

_ADVICE = (
    "where it comes again, look for code that changes parameters on one worker otherwise than on another, and for a "
    "machine with faulty memory"
)


class Replicas:
    """The members of one group, which hold one state as it begins; all of them make the same calls."""

    def __init__(self, state: TrainingState, mailbox: Mailbox, world: World, plan: Plan) -> None:
        self._state, self._mailbox, self._world, self._plan = state, mailbox, world, plan
        self._checked = state.round
        self.seconds = 0.0
        """What the last comparison took."""

    @property
    def is_due(self) -> bool:
        """Whether the last commit is one of those that are compared in any case."""
        return self._state.round % EVERY_ROUNDS == 0

    def check(self) -> None:
        """Compare the last commit, once; between rounds. Nothing is done in a world of one rank.

        Raises ReplicaError on a rank whose state is not that of most, on all where no state is; WorldError on others.
        """
        if self._world.size == 1 or self._checked == self._state.round:
            return
        self._checked, started_s = self._state.round, time.perf_counter()
        self._mailbox.set_phase(Phase.EXCHANGE)
        if self._world.is_mixed:
            self._mailbox.cut("replicas", UNLIKE_REASON)
            self._draw_together()
        else:
            rows = self._world.gather(look(self._state, self._world))
            compare(self._state, self._world, self._plan, dict(enumerate(rows)))
        self.seconds = time.perf_counter() - started_s

    def _draw_together(self) -> None:
        try:
            draw_together(self._state, self._world, self._plan)
        except (RuntimeError, MemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
            raise MemoryInExchangeError(f"none left for a copy of another's weights: {described(error)}") from error


def look(state: TrainingState, world: World, *, is_held: bool = True) -> list[int]:
    """What ``compare`` takes of this rank: its kind of processor, and the hash of its state, 0 where it holds none."""
    return [_processor(world.device), int(hash_of([*_compared(state).values()], world.device)) if is_held else 0]


def compare(state: TrainingState, world: World, plan: Plan, rows: Mapping[int, Sequence[int]]) -> None:
    """Find out whether ranks are alike by what each saw of its own; all members of the world call it with the same.

    Nothing is asked of processors of unlike kinds. Raises as ``Replicas.check``.
    """
    if len({kind for kind, _ in rows.values()}) > 1:
        return
    odd = odd_ranks({rank: seen for rank, (_, seen) in rows.items()})
    if not odd:
        return
    where = _where(state, world, sorted(rows))
    _part(world, odd, _told(plan, odd, state.round, where, has_majority=len(odd) < len(rows)))


def draw_together(state: TrainingState, world: World, plan: Plan) -> None:
    """Find ranks that are far from most, and let all take what rank 0 holds where they have parted by a little.

    All members of the world call it. Raises as ``Replicas.check``, and MemoryError and RuntimeError where memory ran
    out: for a copy of what is compared.
    """
    compared = _compared(state)
    buffers = [value for name, value in compared.items() if name not in state.trained]
    distances = _distances([*state.trained.values()], buffers, world)
    most = max(MOST_APART, *(8.0 * torch.finfo(p.dtype).eps for p in state.trained.values()))
    odd = far_ranks(distances, most)
    if odd:
        with suppress(WorldError):
            world.agree([0.0])  # who leaves at once would break the sum for a slower one
        where = f"more than {most:.0%} of the weights' norm apart, in what is no number, or in whole numbers"
        _part(world, odd, _told(plan, odd, state.round, where, has_majority=len(odd) < world.size))
    if max(map(max, distances)) <= BARELY_APART:
        return
    if world.rank == 0:
        transfer.send(world, compared)
        return
    given = transfer.receive(world, 0)
    with torch.no_grad():
        for name, value in given.items():
            compared[name].copy_(value)
    state.buffers.anchor()


def _distances(
    trained: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor], world: World
) -> Sequence[Sequence[float]]:
    """How far ranks are from each other by their parameters or by their buffers: by a count of steps infinitely."""
    kinds = (trained, [b for b in buffers if b.is_floating_point() or b.is_complex()])
    counts = [b for b in buffers if not b.is_floating_point() and not b.is_complex()]
    sketches_NK2W = torch.zeros(world.size, len(kinds), 2, WIDTH, dtype=torch.float64, device=world.device)
    sketches_NK2W[world.rank] = torch.stack([sketch_of(kind, world.device) for kind in kinds])
    world.sum(sketches_NK2W)
    hashes_N1 = torch.tensor(world.gather([int(hash_of(counts, world.device))]))
    farthest_NN = torch.stack([apart(kind_N2W) for kind_N2W in sketches_NK2W.cpu().unbind(1)]).amax(0)
    return farthest_NN.masked_fill(hashes_N1 != hashes_N1.T, torch.inf).tolist()


def far_ranks(distances: Sequence[Sequence[float]], most: float) -> list[int]:
    """The ranks that are near no more than half of all, themselves among them; where none is near most all of them."""
    num_near = [sum(distance <= most for distance in row) for row in distances]
    return [rank for rank, num in enumerate(num_near) if 2 * num <= len(num_near)]


def _part(world: World, odd: Sequence[int], told: str) -> NoReturn:
    if world.rank in odd:
        raise ReplicaError(told)
    raise WorldError(told)


def odd_ranks(hashes: Mapping[int, int]) -> list[int]:
    """The ranks whose hash is not that of more than half; where there is none such all of them."""
    [(most, count)] = Counter(hashes.values()).most_common(1)
    return sorted(hashes) if 2 * count <= len(hashes) else sorted(r for r, seen in hashes.items() if seen != most)


def _where(state: TrainingState, world: World, ranks: Sequence[int]) -> str:
    """The first tensor in which these ranks differ; all members of the world must call it.

    It is a barrier as well: whoever comes out of it and leaves knows that each of the others has learned that states
    differ, and takes its own for right no more. So where it breaks only the name is not known. Then all meet once more,
    as who leaves at once would break it for a slower one.
    """
    compared, model = _compared(state), state.model
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    hashes = [hash_of([compared[n]] if n in compared else [], world.device) for n in names]
    try:
        rows = world.gather(torch.stack(hashes).tolist())
    except WorldError:
        return "in a tensor that was not found"
    with suppress(WorldError):
        world.agree([0.0])
    differing = [name for at, name in enumerate(names) if len({rows[rank][at] for rank in ranks}) > 1]
    return f"in {len(differing)} of {len(compared)} tensors, the first of them {differing[0]!r}"


def _told(plan: Plan, odd: Sequence[int], round: int, where: str, *, has_majority: bool) -> str:
    ids = {member.rank: member.worker_id for member in plan.members}
    wrong = ", ".join(f"rank {rank} (worker {ids[rank]})" for rank in odd[:MAX_TOLD])
    wrong += f" and {len(odd) - MAX_TOLD} more" if len(odd) > MAX_TOLD else ""
    if has_majority:
        holds, leaves = ("holds", "it leaves") if len(odd) == 1 else ("hold", "they leave")
        said = f"{wrong} {holds} another state than most ranks after round {round}, {where}; {leaves}"
    else:
        said = (
            f"{wrong} hold different states after round {round}, {where}, and none is that of most, so nobody knows "
            "which is right; the job goes back to its last checkpoint"
        )
    return f"{said}; {_ADVICE}"


def _compared(state: TrainingState) -> dict[str, torch.Tensor]:
    """What all ranks hold alike, by name, also what code has frozen since; views of the live tensors."""
    buffers, tracked = dict(state.model.named_buffers()), state.buffers.tracked
    return {**state.trained, **{name: buffers[name] for name in tracked if name in buffers}}


def _processor(device: torch.device) -> int:
    """A number for what rounding depends on: the device's name, or the processor's abilities and threads; and torch."""
    if device.type == "cuda":
        kind: object = torch.cuda.get_device_name(device)
    else:
        able = torch.cpu.get_capabilities()
        told = sorted((key, value) for key, value in able.items() if isinstance(value, bool | str))
        kind = (told, torch.get_num_threads())
    return zlib.crc32(repr((torch.__version__, kind)).encode())
