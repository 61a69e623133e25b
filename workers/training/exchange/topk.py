"""The largest gradients alone: which they are, and their values in a byte each; the rest waits in the residual.

Deep gradient compression (Lin et al. 2017, arXiv 1712.01887), with its momentum correction and its warm-up on request.
A payload has one size whatever it holds, as all-gather needs it: room for half as many again as the fraction asks for.
Two ranks' largest differ, so a sum has more of them than either; ranks send each other all they have and each adds
alike. That grows with the ranks: where an all-reduce is less, the bucket goes by one, with nothing left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Literal

import torch

from workers.training.exchange.codecs import Codec, Exact, Int8
from workers.training.exchange.coding import Coding
from workers.training.exchange.largest import ROOM, largest
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import InFlight, Summed
from workers.training.exchange.velocity import Velocity
from workers.training.state import StepState
from workers.training.world import Transfer, World

_SEGMENT = 2**16  # within one, two bytes tell a place
_ALIGNED_BYTES = 8
_FIRST_SHARE = 0.25
"""Of the gradients are sent at first, and of that again as little in each part of the warm-up (section 3.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Where what lies in a payload: the values' codes, how many places each segment has, the places, the tail.

    ``room`` is how many gradients it takes, ``num_values`` that rounded up to whole blocks.
    """

    room: int
    num_values: int
    num_segments: int
    counts_at: int
    places_at: int
    tail_at: int
    num_bytes: int


@dataclass(slots=True, kw_only=True)
class _Parcel:
    """Memory of one bucket's way; ``received_WB`` has a row of every rank."""

    form: _Form
    codec: Codec
    flat: torch.Tensor
    num_gradients: int
    sent_B: torch.Tensor
    received_WB: torch.Tensor

    def write(self, values: torch.Tensor, chosen: torch.Tensor) -> None:
        """Encode these of the values, and leave of them what the codes do not tell."""
        form, device = self.form, values.device
        picked_1N = torch.zeros(1, form.num_values, dtype=torch.float32, device=device)
        torch.index_select(values, 0, chosen, out=picked_1N[0, : chosen.numel()])
        error_1N = torch.empty_like(picked_1N)
        self.codec.encode(picked_1N, self.sent_B[: form.counts_at].view(1, -1), error_1N)
        values.index_copy_(0, chosen, error_1N[0, : chosen.numel()])
        begins = torch.arange(0, (form.num_segments + 1) * _SEGMENT, _SEGMENT, device=device)
        counts = torch.searchsorted(chosen, begins).diff()
        # What is not taken up adds nothing to the first gradient of the last segment.
        counts[-1] += form.room - chosen.numel()
        places = self.sent_B[form.places_at : form.places_at + 2 * form.room].view(torch.int16)
        places[: chosen.numel()] = chosen % _SEGMENT - _SEGMENT // 2
        places[chosen.numel() :] = -_SEGMENT // 2
        self.sent_B[form.counts_at : form.places_at].view(torch.int32).copy_(counts)
        tail = self.flat[self.num_gradients :]
        self.sent_B[form.tail_at :][: tail.nbytes] = tail.view(torch.uint8)

    def read(self) -> None:
        """Let the gradients be the sum of all ranks', added in the order of the ranks, and the tail that of theirs."""
        form, gradients = self.form, self.flat[: self.num_gradients]
        total = gradients if gradients.dtype is torch.float32 else gradients.float()
        total.zero_()
        decoded_WN = torch.empty(len(self.received_WB), form.num_values, dtype=torch.float32, device=total.device)
        self.codec.decode(self.received_WB[:, : form.counts_at], decoded_WN)
        begins = torch.arange(0, form.num_segments * _SEGMENT, _SEGMENT, device=total.device).add_(_SEGMENT // 2)
        for row_B, decoded_N in zip(self.received_WB, decoded_WN, strict=True):
            counts = row_B[form.counts_at : form.places_at].view(torch.int32)
            places = row_B[form.places_at : form.places_at + 2 * form.room].view(torch.int16)
            indexes = torch.repeat_interleave(begins, counts, output_size=form.room).add_(places)
            total.index_add_(0, indexes, decoded_N[: form.room])
        if total is not gradients:
            gradients.copy_(total)
        tail = self.flat[self.num_gradients :]
        rows_WB = self.received_WB[:, form.tail_at :][:, : tail.nbytes]
        torch.sum(rows_WB.view(tail.dtype), dim=0, out=tail)


class _Gathered:
    """One hop: every rank's payload comes to all."""

    def __init__(self, parcel: _Parcel, coding: Coding, transfer: Transfer) -> None:
        self._parcel, self._coding, self._transfer = parcel, coding, transfer

    def forward(self) -> bool:
        return False

    def wait(self) -> None:
        self._transfer.wait()
        with self._coding.decode:
            self._parcel.read()


class TopK:
    """A ``Scheme``: about ``fraction`` of a bucket's gradients, with error feedback.

    The first ``warm_up`` rounds have parts of one length, from a quarter of the gradients down to the fraction, which
    the last part has. With ``momentum`` what is chosen from, and sent, is this rank's velocity, also by one rank alone;
    norms of what comes back are then a velocity's.
    """

    name = "topk"
    blurs_norm = True

    def __init__(
        self,
        residual: Residual,
        *,
        fraction: float,
        quantise: Literal["none", "int8"],
        momentum: float = 0.0,
        warm_up: int = 0,
    ) -> None:
        self._residual, self._final_fraction, self.coding = residual, fraction, Coding()
        self._fraction, self._warm_up = fraction, warm_up
        self._velocity = Velocity(residual, momentum) if momentum else None
        self.blurs_alone = self._velocity is not None
        self.staged: Sequence[StepState] = () if self._velocity is None else (self._velocity,)
        self._codec: Codec = Int8() if quantise == "int8" else Exact()
        self._parcels: dict[tuple[int, int], _Parcel] = {}

    def is_relayed(self, num_ranks: int) -> bool:
        return False

    def prepare(self, shapes: Sequence[Sequence[torch.Size]]) -> None:
        return

    def begin(self, round: int) -> None:
        if round >= self._warm_up:
            self._fraction = self._final_fraction
            return
        num_parts = ceil(log(self._final_fraction) / log(_FIRST_SHARE))
        self._fraction = max(self._final_fraction, _FIRST_SHARE ** (1 + round * num_parts // self._warm_up))

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        gradients = values = flat[:num_gradients]
        if self._velocity is not None and num_gradients:
            with self.coding.encode:
                values = self._velocity.of(number, gradients)
        if world.size == 1 or not self._is_sparse(flat, num_gradients, world.size):
            if values is not gradients:
                gradients.copy_(values)
            self._residual.add_to(number, gradients)
            self._residual.stage_nothing(number)
            transfer = world.all_reduce(flat)
            return None if transfer is None else Summed(transfer)
        parcel = self._parcel(number, flat, num_gradients, world.size)
        with self.coding.encode:
            left = self._residual.place(number, gradients).copy_(values)
            self._residual.add_to(number, left)
            chosen = largest(left, ceil(self._fraction * num_gradients), parcel.form.room)
            parcel.write(left, chosen)
            if self._velocity is not None:
                self._velocity.stop(number, chosen)
        return _Gathered(parcel, self.coding, world.all_gather(parcel.received_WB, parcel.sent_B.view(1, -1)))

    def _is_sparse(self, flat: torch.Tensor, num_gradients: int, num_ranks: int) -> bool:
        if num_gradients == 0:
            return False
        return self._form(flat, num_gradients).num_bytes * num_ranks < 2 * flat.nbytes

    def _parcel(self, number: int, flat: torch.Tensor, num_gradients: int, num_ranks: int) -> _Parcel:
        key, form, device = (number, num_ranks), self._form(flat, num_gradients), flat.device
        found = self._parcels.get(key)
        if found is not None and found.flat is flat and found.form == form:
            return found
        parcel = _Parcel(
            form=form,
            codec=self._codec,
            flat=flat,
            num_gradients=num_gradients,
            sent_B=torch.zeros(form.num_bytes, dtype=torch.uint8, device=device),
            received_WB=torch.empty(num_ranks, form.num_bytes, dtype=torch.uint8, device=device),
        )
        self._parcels = {other: old for other, old in self._parcels.items() if other[1] == num_ranks} | {key: parcel}
        return parcel

    def _form(self, flat: torch.Tensor, num_gradients: int) -> _Form:
        room = ceil(ROOM * self._fraction * num_gradients)
        num_values, num_segments = ceil(room / self._codec.block) * self._codec.block, ceil(num_gradients / _SEGMENT)
        counts_at = self._codec.num_bytes(num_values)
        places_at = counts_at + 4 * num_segments
        tail_at = _aligned(places_at + 2 * room)
        tail_bytes = (flat.numel() - num_gradients) * flat.element_size()
        return _Form(
            room=room,
            num_values=num_values,
            num_segments=num_segments,
            counts_at=counts_at,
            places_at=places_at,
            tail_at=tail_at,
            num_bytes=_aligned(tail_at + tail_bytes),
        )


def _aligned(num_bytes: int) -> int:
    return ceil(num_bytes / _ALIGNED_BYTES) * _ALIGNED_BYTES
