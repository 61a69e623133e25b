"""Seconds of encoding and of decoding: all that a codec takes of a rank's thread, and each under its own name."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.training.test_schemes import NUM_TAIL, Rank, ranks
from workers.training.exchange.codecs import Int8
from workers.training.exchange.coding import Coding
from workers.training.exchange.compressed import Compressed
from workers.training.exchange.hierarchical import Hierarchical
from workers.training.exchange.racks import seating
from workers.training.exchange.schemes import Scheme
from workers.training.world import Transfer

ENCODE_S, DECODE_S, WAIT_S = 1.0, 1e3, 1e6


class Clock(threading.local):
    """Each rank's own."""

    now_s = 0.0


CLOCK = Clock()


class Slow(Int8):
    """Takes its time."""

    def __init__(self) -> None:
        self.encode_s = self.decode_s = 0.0

    def encode(self, values_RN: torch.Tensor, out_RB: torch.Tensor, error_RN: torch.Tensor | None) -> None:
        super().encode(values_RN, out_RB, error_RN)
        CLOCK.now_s += ENCODE_S
        self.encode_s += ENCODE_S

    def decode(self, payload_RB: torch.Tensor, out_RN: torch.Tensor) -> None:
        super().decode(payload_RB, out_RN)
        CLOCK.now_s += DECODE_S
        self.decode_s += DECODE_S


@pytest.mark.parametrize("racks", [(0, 1), (0, 1, 2), (0, 0, 1, 1), (0, 0, 1, 1, 1), (0, 1, 1, 2)], ids=str)
def test_all_that_a_codec_takes_is_noted_and_waiting_is_not(
    racks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    really_wait = Transfer.wait

    def wait(transfer: Transfer) -> None:
        really_wait(transfer)
        CLOCK.now_s += WAIT_S

    monkeypatch.setattr(Transfer, "wait", wait)

    def work(rank: Rank) -> tuple[float, float, float, float]:
        codec, numel = Slow(), rank.numel
        is_flat = max(racks) == len(racks) - 1
        over = seating(racks, rank.rank)
        scheme: Scheme = (
            Compressed(codec, rank.residual) if is_flat else Hierarchical(codec, codec, over, rank.residual)
        )
        scheme.coding = Coding(lambda: CLOCK.now_s)
        under_way = scheme.start(0, torch.zeros(numel + NUM_TAIL), numel, rank.world)
        assert under_way is not None
        under_way.wait()
        return codec.encode_s, scheme.coding.encode.seconds, codec.decode_s, scheme.coding.decode.seconds

    for encode_s, encoded_s, decode_s, decoded_s in ranks(len(racks), 300_001, work):
        assert encoded_s == encode_s > 0.0
        assert decoded_s == decode_s > 0.0
