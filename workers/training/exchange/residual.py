"""What compression left out of this rank's gradients, kept to be added to the next ones.

Error feedback (Karimireddy et al. 2019, arXiv 1901.09847, algorithm 2): with p = g + e the rank sends C(p) and keeps
e = p - C(p), so that what all ranks sent so far and what they keep is always the sum of their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import torch

Places: TypeAlias = Sequence[Mapping[str, torch.Size]]
"""The parameters of each bucket, in the order of their gradients: names and shapes."""


class Residual:
    """A ``StepState`` of one rank: a flat tensor for each bucket of the layout, by the bucket's number.

    What is kept is in the units that gradients had when it was left out: ``begin`` tells what a round's are expected to
    be times the mean gradient, ``came_to`` what they were found to be. A newcomer begins without any; what leavers
    keep, and what checkpoints have of it, is the business of ``owed``. What came for a parameter that no rank used in
    that round is not applied, so that all keep of it what they had: ``put_back``.

    ``is_owed`` tells whether some rank of the group keeps anything. It is the same on all of them: which buckets a
    scheme leaves something out of depends on nothing that one rank has for itself, so that a commit tells.
    """

    def __init__(self) -> None:
        self.is_owed = False
        self._places: Places = ()
        self._where: dict[str, tuple[int, int, torch.Size]] = {}
        self._held: dict[int, torch.Tensor] = {}
        self._staged: dict[int, torch.Tensor | None] = {}
        self._spare: dict[int, torch.Tensor] = {}
        self._held_scale = self.expected_scale = self.scale = 1.0
        self._unused: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self._held

    def lay_out(self, places: Places) -> None:
        """These are the buckets from now on; what is kept goes along by parameter, where they have it."""
        if places is not self._places:
            self._hold(places, {name: part for name in self._where if (part := self.part(name)) is not None})

    def load(self, kept: Mapping[str, torch.Tensor], *, is_owed: bool) -> None:
        """Keep nothing but this: by parameter, on its device, in fp32 and in units of the mean gradient."""
        self._hold([{name: values.shape} for name, values in kept.items()], kept)
        self.is_owed = is_owed

    def part(self, name: str) -> torch.Tensor | None:
        """A copy of what is kept of a parameter, in units of the mean gradient; None where nothing is."""
        number, begin, shape = self._where.get(name, (-1, 0, torch.Size()))
        held = self._held.get(number)
        if held is None:
            return None
        return held.view(-1)[begin : begin + shape.numel()].view(shape) / self._held_scale

    def begin(self, loss_scale: float) -> None:
        """The coming round's gradients are about so many times the mean gradient."""
        self.expected_scale = self.scale = loss_scale
        self._unused = ()

    def came_to(self, factor: float) -> None:
        """It is ``factor`` times the round's gradients that is the mean gradient: how many units count shows late."""
        self.scale = 1.0 / factor

    def add_to(self, number: int, values: torch.Tensor) -> None:
        """Add what is kept of a bucket to its gradients, in place."""
        held = self._held.get(number)
        if held is not None:
            values.add_(held.view(-1)[: values.numel()], alpha=self.expected_scale / self._held_scale)

    def place(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """Memory of ``like``'s shape in fp32 for what this round leaves out of a bucket; it counts as staged.

        The first values are the gradients', in their order; what follows them is padding.
        """
        place = self._spare.pop(number, None)
        if place is None or place.shape != like.shape:
            place = torch.empty_like(like, dtype=torch.float32)
        self._staged[number] = place
        return place

    def stage_nothing(self, number: int) -> None:
        """This round leaves nothing out of a bucket."""
        if number in self._held:
            self._staged[number] = None

    def put_back(self, unused: Sequence[str]) -> None:
        """The sums of these parameters are not applied: keep of them what was kept. The same ones on all ranks.

        After what the round leaves out was staged, and its units are known.
        """
        self._unused = tuple(unused)
        for number, begin, end in self.unused():
            held, staged = self._held.get(number), self._staged.get(number)
            if held is not None and number in self._staged:
                staged = self._staged[number] = torch.zeros_like(held) if staged is None else staged
                torch.mul(held.view(-1)[begin:end], self.scale / self._held_scale, out=staged.view(-1)[begin:end])
            elif staged is not None:
                staged.view(-1)[begin:end] = 0.0

    def unused(self) -> Iterator[tuple[int, int, int]]:
        """Bucket, begin and end of what was put back in this round."""
        for name in self._unused:
            number, begin, shape = self._where[name]
            yield number, begin, begin + shape.numel()

    def commit(self) -> None:
        stays_owed = self.is_owed and bool(self._unused)
        for number, staged in self._staged.items():
            old = self._held.pop(number, None)
            if staged is not None:
                self._held[number] = staged
            if staged is None:
                self._spare.pop(number, None)
            elif old is not None:
                self._spare[number] = old
        if self._staged:
            self._held_scale = self.scale
        self._staged.clear()
        self.is_owed = bool(self._held) or stays_owed

    def rollback(self) -> None:
        self._spare |= {number: staged for number, staged in self._staged.items() if staged is not None}
        self._staged.clear()

    def _hold(self, places: Places, kept: Mapping[str, torch.Tensor]) -> None:
        """Let ``kept`` be all there is, in these buckets."""
        self._places, self._where, self._held_scale = places, {}, 1.0
        for states in (self._held, self._staged, self._spare):
            states.clear()
        for number, shapes in enumerate(places):
            begin = 0
            for name, shape in shapes.items():
                self._where[name] = (number, begin, shape)
                begin += shape.numel()
            found = [kept[name] for name in shapes if name in kept]
            if found:
                parts = [kept.get(name, found[0].new_zeros(shape)) for name, shape in shapes.items()]
                self._held[number] = torch.cat([part.reshape(-1) for part in parts])
