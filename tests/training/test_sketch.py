"""How far apart tensors are, by a few numbers of each."""

from __future__ import annotations

import math

import pytest
import torch

from workers.training.sketch import PIECE, WIDTH, apart, sketch_of

CPU = torch.device("cpu")
SHAPES = [(3,), (300, 70), (), (PIECE // WIDTH + 3, WIDTH), (0, 5), (17, 1001)]


def tensors(seed: int, size: float = 1.0) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return [size * torch.randn(shape, generator=chance) for shape in SHAPES]


def norm(values: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in values))


@pytest.mark.parametrize("share", [1.0, 1e-2, 1e-5])
def test_a_sketch_tells_how_far_apart_tensors_are(share: float) -> None:
    first, change = tensors(0), tensors(1, share)
    second = [value + other for value, other in zip(first, change, strict=True)]
    found = apart(torch.stack([sketch_of(each, CPU) for each in (first, second)]))
    assert found.diagonal().tolist() == [0.0, 0.0]
    moved = [after.double() - before.double() for before, after in zip(first, second, strict=True)]
    assert float(found[0, 1]) == pytest.approx(norm(moved) / max(norm(first), norm(second)), rel=0.1)


@pytest.mark.parametrize("shape", [(2, 4096), (64, 1024), (300, 4096)])
@pytest.mark.parametrize("kind", ["shift", "outer product", "column"])
def test_what_rows_or_columns_have_in_common_is_told_as_well(kind: str, shape: tuple[int, int]) -> None:
    chance = torch.Generator().manual_seed(3)
    first, change = torch.ones(shape), torch.zeros(shape)
    if kind == "shift":
        change += 0.01
    elif kind == "column":
        change[:, 5] = torch.randn(shape[0], generator=chance)
    else:
        change += torch.outer(torch.randn(shape[0], generator=chance), torch.randn(shape[1], generator=chance))
    found = apart(torch.stack([sketch_of([each], CPU) for each in (first, first + change)]))
    assert float(found[0, 1]) == pytest.approx(norm([change]) / max(norm([first]), norm([first + change])), rel=0.2)


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_no_single_value_is_overlooked(number: int) -> None:
    first, second = tensors(0), tensors(0)
    if second[number].numel() == 0:
        return
    second[number].view(-1)[-1] += 1000.0
    found = apart(torch.stack([sketch_of(each, CPU) for each in (first, second)]))
    assert float(found[0, 1]) * norm(second) == pytest.approx(1000.0, rel=0.05)


def test_what_is_no_number_on_both_sides_keeps_nobody_apart() -> None:
    values = [torch.tensor([1.0, math.nan, math.inf]), torch.tensor([True, False]), torch.tensor([1 + 2j])]
    found = apart(torch.stack([sketch_of(values, CPU)] * 2))
    assert found.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_on_one_side_alone_sets_it_apart(value: float) -> None:
    first, second = [torch.zeros(300_000)], [torch.zeros(300_000)]
    second[0][299_999] = value
    found = apart(torch.stack([sketch_of(each, CPU) for each in (first, second)]))
    assert found.tolist() == [[0.0, math.inf], [math.inf, 0.0]]
