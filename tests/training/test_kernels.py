"""Fused kernels of number formats: on a GPU the bytes and values that torch's operators give on a CPU."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.training.test_world import ON_GPU
from workers.training.exchange import fused
from workers.training.exchange.codecs import Fp16, Int4, Int8, Scaled
from workers.training.exchange.two_four import TwoFour

CODECS = (Fp16(), Int8(), Int4(), TwoFour())
CUDA = torch.device("cuda", 0)


def values(num_rows: int, num_blocks: int) -> torch.Tensor:
    """Of all sizes, with ties, zeros, blocks of zeros, and blocks of next to nothing."""
    draw = torch.Generator().manual_seed(num_rows * num_blocks)
    values_RKE = torch.randn(num_rows, num_blocks, 256, generator=draw)
    values_RKE *= torch.logspace(-12, 12, num_blocks).view(1, -1, 1)
    values_RKE[:, ::3, ::5] = 0.0
    values_RKE[:, 1::4] = torch.randint(-3, 4, values_RKE[:, 1::4].shape, generator=draw).float()
    values_RKE[:, 2::5] = 0.0
    values_RKE[:, 3::7] = 1e-38
    return values_RKE.view(num_rows, -1)


def coded(codec: Scaled, values_RN: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
    """Bytes, what they leave out, and what they stand for; rows of bytes lie apart, as they do with a tail."""
    values_RN = values_RN.to(device)
    num_rows, numel = values_RN.shape
    num_bytes = codec.num_bytes(numel)
    room_RB = torch.zeros(num_rows, -(-num_bytes // 8) * 8 + 40, dtype=torch.uint8, device=device)
    error_RN, decoded_RN = torch.full_like(values_RN, 5.0), torch.full_like(values_RN, 5.0)
    codec.encode(values_RN, room_RB[:, :num_bytes], error_RN)
    codec.decode(room_RB[:, :num_bytes], decoded_RN)
    return [found.cpu() for found in (room_RB, error_RN, decoded_RN)]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize(("num_rows", "num_blocks"), [(1, 1), (1, 8), (2, 37), (5, 1000)])
class TestOnGpu:
    pytestmark = ON_GPU

    def test_bytes_and_values_are_those_of_the_operators_on_a_cpu(
        self, codec: Scaled, num_rows: int, num_blocks: int
    ) -> None:
        assert fused.kernels_for(CUDA, codec.name) is not None
        rows_RN = values(num_rows, num_blocks)
        (bytes_RB, error_RN, decoded_RN), by_operators = (
            coded(codec, rows_RN, device) for device in (CUDA, torch.device("cpu"))
        )
        assert torch.equal(bytes_RB, by_operators[0])
        assert torch.equal(decoded_RN, by_operators[2])
        largest_RK = rows_RN.view(num_rows, -1, 256).abs().amax(-1, keepdim=True)
        off_RKE = (error_RN - by_operators[1]).view(num_rows, -1, 256).abs()
        assert bool((off_RKE <= 1e-6 * largest_RK).all())
        torch.testing.assert_close(error_RN + decoded_RN, rows_RN, rtol=1e-6, atol=0.0)

    @pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
    def test_a_value_that_is_not_finite_spoils_its_block_and_no_other(
        self, codec: Scaled, num_rows: int, num_blocks: int, poison: float
    ) -> None:
        rows_RN = values(num_rows, num_blocks)
        block = num_blocks // 2
        rows_RN[-1, block * 256 + 200] = poison
        _, _, decoded_RN = coded(codec, rows_RN, CUDA)
        is_finite_RK = decoded_RN.view(num_rows, num_blocks, 256).isfinite().any(-1)
        assert (~is_finite_RK).nonzero().tolist() == [[num_rows - 1, block]]


def test_a_cpu_has_no_kernels() -> None:
    assert fused.kernels_for(torch.device("cpu"), "int8") is None


def test_without_triton_operators_have_to_do_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "workers.training.exchange.kernels", None)
    monkeypatch.delattr("workers.training.exchange.kernels", raising=False)
    assert fused._tried(CUDA, "int8") is None
    assert "int8 is encoded by torch's operators, without Triton: " in capsys.readouterr().out
