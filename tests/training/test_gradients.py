"""Gradients that leave while backward still runs, equal on all ranks to a plain mean."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import chain

import pytest
import torch
from torch import nn

from tests.training.fake_store import FakeStore
from tests.training.test_world import WAIT_S, in_threads, joined, seat
from workers.training.exchange import buckets
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.registry import SCHEMES, scheme_named
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Dense, InFlight
from workers.training.world import World, await_released

SHAPES = [torch.Size(shape) for shape in ([64, 64], [5], [3, 8, 3, 3], [90, 70], [1])]
NUM_RANKS, NUM_LAYERS, WIDTH = 2, 4, 8
NUM_PIECES = 2


class Told(Dense):
    """Notes when which bucket leaves, among what else is noted."""

    def __init__(self) -> None:
        super().__init__(Residual())
        self.events: list[str] = []

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        self.events.append(f"bucket {number} leaves")
        return super().start(number, flat, num_gradients, world)


def piece(rank: int, number: int) -> torch.Tensor:
    return torch.randn(3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * rank + number))


def note_gradients(model: nn.Sequential, events: list[str]) -> None:
    def noted(event: str) -> Callable[[torch.Tensor], None]:
        return lambda _: events.append(event)

    for number, parameter in enumerate(model.parameters()):
        parameter.register_hook(noted(f"gradient of layer {number}"))


def test_every_bucket_leaves_as_soon_as_its_gradients_are_there_and_only_in_the_last_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buckets, "MIB", 0)
    store = FakeStore()
    plain = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64) for _ in range(NUM_LAYERS)))

    def work(rank: int) -> tuple[list[str], list[torch.Tensor]]:
        model, told = deepcopy(plain), Told()
        exchange = GradientExchange(list(model.named_parameters()), 0)
        note_gradients(model, told.events)
        exchange.join(joined(store, rank, NUM_RANKS, "1/1"), told)
        exchange.clear()
        for number in range(NUM_PIECES):
            loss = model(piece(rank, number)).square().sum()
            if number == NUM_PIECES - 1:
                exchange.arm(lambda: None, loss)
            loss.backward()
        exchange.finish(lambda: None)
        took = exchange.measure()
        assert took.backward_s is not None
        assert took.exchange_s - took.exposed_s < took.backward_s
        assert took.hidden_s is not None
        assert took.wire_s is not None
        assert 0.0 < took.hidden_s <= min(took.wire_s, took.exchange_s - took.exposed_s)
        return told.events, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    results = in_threads(NUM_RANKS, work)
    arriving = [f"gradient of layer {number}" for number in reversed(range(NUM_LAYERS))]
    leaving = [f"bucket {number} leaves" for number in range(NUM_LAYERS)]
    expected = [*arriving, *chain.from_iterable(zip(arriving, leaving, strict=True))]
    for rank in range(NUM_RANKS):
        for number in range(NUM_PIECES):
            plain(piece(rank, number)).square().sum().backward()
    for events, gradients in results:
        assert events == expected
        for gradient, parameter in zip(gradients, plain.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-12, atol=1e-12)


class Branching(nn.Module):
    """Layers of which a pass uses ``path``, in that order."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64) for _ in range(NUM_LAYERS))
        self.layers, self.path = nn.ModuleList(layers), [*range(NUM_LAYERS)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in self.path:
            x = self.layers[number](x)
        return x


def test_what_no_gradient_flows_to_keeps_no_bucket_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MIB", 0)
    store, last = FakeStore(), NUM_LAYERS - 1
    rounds = [[0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2], [0, 1, 2], [0, 2, 3]]

    def work(rank: int) -> list[tuple[list[str], list[torch.Tensor]]]:
        model, told, seen = Branching(), Told(), []
        exchange = GradientExchange(list(model.named_parameters()), 0)
        exchange.join(joined(store, rank, NUM_RANKS, "1/1"), told)
        for number, path in enumerate(rounds):
            told.events.clear()
            # By another path on the other rank in the last round.
            model.path = path if rank == 0 or number < len(rounds) - 1 else [0, 1, 2]
            model.layers[last].requires_grad_(number != 4)
            exchange.clear()
            loss = model(piece(rank, number)).square().sum()
            exchange.arm(lambda: None, loss)
            loss.backward()
            told.events.append("backward ends")
            exchange.finish(lambda: None)
            seen.append(([*told.events], [gradient.clone() for gradient in exchange.gradients]))
        return seen

    results = in_threads(NUM_RANKS, work)
    leaving = [f"bucket {number} leaves" for number in range(NUM_LAYERS)]
    for rank, seen in enumerate(results):
        early = [events.index("backward ends") for events, _ in seen]
        assert early == [0, NUM_LAYERS, NUM_LAYERS, 0, NUM_LAYERS, NUM_LAYERS if rank == 1 else 2], rank
        assert all([event for event in events if event != "backward ends"] == leaving for events, _ in seen)
    for (_, ours), (_, theirs) in zip(*results, strict=True):
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("name", SCHEMES)
def test_a_model_of_several_buckets_travels_by_every_scheme(
    name: str, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "MIB", 0)
    store = FakeStore()

    def work(rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        parameters = [(str(number), nn.Parameter(torch.zeros(shape))) for number, shape in enumerate(SHAPES)]
        exchange, residual = GradientExchange(parameters, 0), Residual()
        exchange.join(joined(store, rank, num_ranks, "1/1"), scheme_named(name, residual))
        exchange.clear()
        gradients = [
            torch.randn(shape, generator=torch.Generator().manual_seed(10 * rank + number))
            for number, shape in enumerate(SHAPES)
        ]
        torch.autograd.backward([p for _, p in parameters], gradients)
        exchange.finish(lambda: exchange.tail.write_used([True] * len(SHAPES), 0))
        took = exchange.measure()
        assert took.backward_s is None  # it was no pass that buckets could leave in
        assert took.wire_s is not None
        assert 0.0 < took.wire_s <= took.exchange_s
        assert took.encode_s is not None
        assert took.decode_s is not None
        assert (took.encode_s > 0.0, took.decode_s > 0.0) == (name != "none", name != "none")
        assert took.encode_s + took.decode_s <= took.exchange_s
        residual.commit()
        left = [torch.zeros(shape.numel()) for shape in SHAPES]
        for number, values in enumerate(reversed(left)):
            residual.add_to(number, values)
        assert exchange.tail.read_used() == [float(num_ranks)] * len(SHAPES)
        truth = [gradient - kept.view_as(gradient) for gradient, kept in zip(gradients, left, strict=True)]
        return [gradient.clone() for gradient in exchange.gradients], truth

    results = in_threads(num_ranks, work)
    await_released(WAIT_S)
    told = [torch.stack(parts).sum(0) for parts in zip(*(truth for _, truth in results), strict=True)]
    for found, _ in results:
        for sums, first, expected in zip(found, results[0][0], told, strict=True):
            assert torch.equal(sums, first)
            torch.testing.assert_close(sums, expected, atol=5e-2, rtol=0.0)


def test_buckets_are_told_as_shares_where_smaller_ones_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MIB", 4)
    parameters = [nn.Parameter(torch.zeros(numel)) for numel in (30, 1, 1, 1, 7)]
    assert buckets.cuts(parameters) == {25: (0.175, 0.825), 1: (0.175, 0.025, 0.025, 0.025, 0.75)}
    assert [*buckets.cuts([nn.Parameter(torch.zeros(1))] * (buckets.MOST_BUCKETS + 1))] == [25, 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("with_others", [False, True])
def test_the_norm_of_16_bits_neither_overflows_nor_is_rough(dtype: torch.dtype, with_others: bool) -> None:
    weight, bias = nn.Parameter(torch.zeros(500, 500, dtype=dtype)), nn.Parameter(torch.zeros(10))
    exchange = GradientExchange([("weight", weight), *([("bias", bias)] if with_others else [])], 0)
    exchange.clear()
    assert weight.grad is not None
    weight.grad.normal_(200.0, 10.0, generator=torch.Generator().manual_seed(0))
    assert exchange.norm() == pytest.approx(float(weight.grad.double().norm()), rel=1e-3)
    assert exchange.norm() > torch.finfo(torch.float16).max


@pytest.mark.parametrize("with_others", [False, True])
def test_on_unlike_processors_the_norm_of_finite_gradients_is_finite_however_squares_are_summed(
    with_others: bool,
) -> None:
    """A GPU and a CPU do not find the sum of squares to overflow at the same gradients, and must go on alike."""
    weight, other = nn.Parameter(torch.zeros(50)), nn.Parameter(torch.zeros(1))
    exchange = GradientExchange([("weight", weight), *([("other", other)] if with_others else [])], 0)
    world = World(seat(0, 1, "unlike"), FakeStore())
    world.is_mixed = True
    exchange.join(world, Told())
    assert weight.grad is not None
    weight.grad.fill_(1e30)
    assert exchange.norm() == pytest.approx(50**0.5 * 1e30, rel=1e-6)
    weight.grad[3] = torch.inf
    assert exchange.norm() == torch.inf
