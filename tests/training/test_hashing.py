"""Equal bits have equal hashes, and others do not, wherever they differ."""

from __future__ import annotations

import pytest
import torch

from workers.training import hashing
from workers.training.hashing import hash_of

CPU = torch.device("cpu")
FORMATS = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.bool,
]


def number(*tensors: torch.Tensor) -> int:
    return int(hash_of(tensors, CPU))


def some(numel: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(numel) % 2).to(dtype)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


@pytest.mark.parametrize("dtype", FORMATS)
def test_each_bit_counts_in_every_format_whatever_its_place(dtype: torch.dtype) -> None:
    before, seen = some(3, dtype), set()
    num_bits = 8 * before.nbytes
    for bit in range(num_bits):
        changed = before.clone()
        bytes_of(changed)[bit // 8] ^= 1 << bit % 8
        seen.add(number(some(1, torch.int8), changed, some(5, torch.float32)))
    assert len(seen) == num_bits
    assert number(some(1, torch.int8), before, some(5, torch.float32)) not in seen


def test_two_signs_that_change_show() -> None:
    values = torch.ones(64)
    seen = {number(values)}
    for first in range(64):
        for second in range(first):
            changed = values.clone()
            changed[[first, second]] *= -1.0
            seen.add(number(changed))
    assert len(seen) == 1 + 64 * 63 // 2


def test_bits_count_and_not_values_nor_how_they_lie() -> None:
    quiet = torch.tensor([float("nan"), 0.0])
    other = quiet.clone()
    bytes_of(other)[0] ^= 1
    assert other[0].isnan()
    assert number(quiet) == number(quiet.clone()) != number(other)
    assert number(quiet) != number(torch.tensor([float("nan"), -0.0]))
    matrix = torch.randn(5, 7)
    assert number(matrix) == number(matrix.t().contiguous().t())
    assert number(matrix[1:, 3]) == number(matrix[1:, 3].clone())


def test_values_that_changed_places_show_and_large_ones_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "PIECE_BYTES", 64)
    parts = [torch.randn(3), torch.randn(100), torch.randn(1), torch.empty(0), torch.randn(())]
    before = [part.clone() for part in parts]
    seen = {number(*parts), number(*parts[::-1])}
    for at in range(99):
        swapped = parts[1].clone()
        swapped[[at, at + 1]] = swapped[[at + 1, at]]
        seen.add(number(parts[0], swapped, *parts[2:]))
    assert len(seen) == 101
    assert all(torch.equal(part, old) for part, old in zip(parts, before, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_the_hash_is_the_same_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "PIECE_BYTES", 64)
    values, cuda = [torch.randn(100), torch.randn(3, dtype=torch.bfloat16), torch.empty(0)], torch.device("cuda")
    assert int(hash_of([value.to(cuda) for value in values], cuda)) == number(*values)
