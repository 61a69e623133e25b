"""The contract of every exchange scheme: the sum comes back, alike on all ranks, and nothing is lost for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import pytest
import torch

from tests.training.fake_store import FakeStore
from tests.training.group import load_linalg
from tests.training.test_world import CPU, ON_GPU, WAIT_S, in_threads, joined
from workers.exchange_options import Options, filled
from workers.plan import Exchange
from workers.training.exchange.codecs import Bf16, Codec, Fp16, Int4, Int8
from workers.training.exchange.compressed import MOST_VALUES
from workers.training.exchange.registry import SCHEMES, scheme_for, scheme_named, scheme_over_racks
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Scheme
from workers.training.exchange.two_four import TwoFour
from workers.training.world import World, await_released

NAMES = (*SCHEMES, "none across none", "bf16 across int4", "int8 across int8", "topk across int4")
WITH_RESIDUAL = (
    *("int8", "int4", "two_four", "topk", "powersgd"),
    *("none across int4", "int8 across int4", "two_four across int8", "topk across int4"),
)
# What a plan asks for by options; of local steps it is what their differences travel by.
VARIANTS = {
    "topk corrected": Exchange(scheme="topk", options=filled("topk", {"fraction": 0.1, "momentum": 0.9})),
    "topk warmed up": Exchange(scheme="topk", options=filled("topk", {"fraction": 0.1, "warm_up": 3})),
    "local_steps": Exchange.named("local_steps", "asked for"),
}
ALL = (*NAMES, *VARIANTS)
KEEPING = (*WITH_RESIDUAL, *VARIANTS)
ADDING_UP = tuple(sorted({*KEEPING} - {"topk corrected"}))  # what that adds up are velocities: tests.training.test_topk
SIZES = (2, 3, 4, 5)
RACKS = {1: (0,), 2: (0, 1), 3: (0, 1, 1), 4: (0, 0, 1, 1), 5: (0, 1, 0, 1, 1)}  # by the number of ranks
# More than their defaults bring, so that a few rounds tell whether what is left out comes.
OPTIONS: dict[str, Options] = {"topk": (("fraction", 0.1),), "powersgd": (("rank", 7),)}
NUM_TAIL = 5
DEVICE = CPU
DTYPE_ERROR = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
# Of the root of the mean square of the sum, for a vector of the normal distribution.
MOST_ERROR = {
    "none": 1e-6,
    "bf16": 4e-3,
    "fp16": 5e-4,
    "int8": 1.6e-2,
    "int4": 0.3,
    "two_four": 0.55,
    "topk": 0.8,
    "powersgd": 0.9,
}
MOST_ERROR |= {name: sum(MOST_ERROR[n] for n in name.split(" across ")) for name in {*NAMES, *WITH_RESIDUAL}}
MOST_ERROR |= {"topk corrected": MOST_ERROR["topk"], "topk warmed up": 0.65, "local_steps": MOST_ERROR["int4"]}
# The same after many rounds, of one round's.
MOST_LATE = {"int8": 2.4e-2, "int4": 0.45, "two_four": 0.6, "topk": 1.2, "powersgd": 2.0}
MOST_LATE |= {name: 1.5 * MOST_ERROR[name] for name in WITH_RESIDUAL if " across " in name}
MOST_LATE |= {"topk warmed up": MOST_LATE["topk"], "local_steps": MOST_LATE["int4"]}
# Of any value of a bucket that may be shorter than a block, of up to three ranks.
MOST_APART = {
    "int4": 1.0,
    "bf16 across int4": 1.0,
    "local_steps": 1.0,
    **dict.fromkeys(("two_four", "topk", "topk across int4", "topk corrected", "topk warmed up", "powersgd"), 4.0),
}


@pytest.fixture(autouse=True, params=["cpu", pytest.param("cuda", marks=ON_GPU)])
def _on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the contract on a GPU as well, where there is one: by gloo, as of parts of one."""
    monkeypatch.setattr(f"{__name__}.DEVICE", torch.device(request.param))
    load_linalg(torch.device(request.param))


def shapes(numel: int) -> list[torch.Size]:
    """A bias, a matrix with most of the gradients, and another bias."""
    side = isqrt(numel * 9 // 10)
    rest = numel - side * side
    return [torch.Size([rest // 2]), torch.Size([side, side]), torch.Size([rest - rest // 2])]


@dataclass
class Rank:
    """One rank's scheme, what it keeps, and its gradients of a round: the same for every run of a test."""

    rank: int
    world: World
    numel: int
    dtype: torch.dtype = torch.float32
    residual: Residual = field(default_factory=Residual)
    scheme: Scheme = field(init=False)

    def take(self, name: str, racks: Sequence[int] = ()) -> Rank:
        inside, _, across = name.partition(" across ")
        seats = racks or RACKS.get(self.world.size, ())
        if name in VARIANTS:
            self.scheme = scheme_for(VARIANTS[name], seats, self.rank, self.residual)
        elif across:
            options = OPTIONS.get(inside, ())
            self.scheme = scheme_over_racks(inside, across, seats, self.rank, self.residual, options)
        else:
            self.scheme = scheme_named(name, self.residual, OPTIONS.get(name, ()))
        self.scheme.prepare([shapes(self.numel)])
        return self

    def commit(self) -> None:
        for state in (self.residual, *self.scheme.staged):
            state.commit()

    def rollback(self) -> None:
        for state in (self.residual, *self.scheme.staged):
            state.rollback()

    def gradients(self, round: int, rank: int | None = None) -> torch.Tensor:
        seed = 1000 * round + (self.rank if rank is None else rank)
        return torch.randn(self.numel, generator=torch.Generator().manual_seed(seed)).to(self.dtype)

    def exchange(
        self, round: int, loss_scale: float = 1.0, poison: float | None = None, expected: float | None = None
    ) -> torch.Tensor:
        """What the gradients of a round become, and behind them the tail; ``expected`` is what they are taken for."""
        flat = torch.zeros(self.numel + NUM_TAIL, dtype=self.dtype, device=self.world.device)
        flat[: self.numel] = self.gradients(round).to(flat.device) * loss_scale
        flat[self.numel :] = torch.arange(NUM_TAIL) + self.rank
        if poison is not None:
            flat[self.numel // 2] = poison
        self.scheme.begin(round)
        self.residual.begin(loss_scale if expected is None else expected)
        under_way = self.scheme.start(0, flat, self.numel, self.world)
        if under_way is not None:
            under_way.forward()
            under_way.wait()
        self.residual.came_to(1.0 / loss_scale)
        return flat.cpu()

    def truth(self, round: int) -> torch.Tensor:
        return torch.stack([self.gradients(round, rank).double() for rank in range(self.world.size)]).sum(0)


def ranks(size: int, numel: int, work: Callable[[Rank], Any], dtype: torch.dtype = torch.float32) -> list[Any]:
    """``work`` in a thread a rank."""
    store = FakeStore()

    def run(rank: int) -> Any:
        world = joined(store, rank, size, "1/1", DEVICE)
        try:
            return work(Rank(rank, world, numel, dtype))
        finally:
            world.leave()

    results = in_threads(size, run)
    await_released(WAIT_S)  # a process that ends before crashes
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@pytest.mark.parametrize("size", [2, 3])
def test_a_bucket_of_many_pieces_arrives_and_what_each_left_out_is_kept(size: int) -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = rank.take("int4").exchange(0)
        rank.commit()
        rest = rank.take("none").exchange(1)[:-NUM_TAIL].double()
        return first, first[:-NUM_TAIL].double() + rest, rank.truth(0) + rank.truth(1)

    (first, *_), *others = found = ranks(size, 3 * MOST_VALUES * (1 if size == 2 else size) + 1, work)
    assert all(torch.equal(other, first) for other, _, _ in others)
    assert first[-NUM_TAIL:].tolist() == [float(size * i + sum(range(size))) for i in range(NUM_TAIL)]
    for _, sums, truth in found:
        torch.testing.assert_close(sums, truth, atol=2e-5, rtol=0.0)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [1, *SIZES])
def test_the_sum_comes_back_alike_on_all_ranks_and_the_tail_as_it_was_sent(name: str, size: int) -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, torch.Tensor]:
        return rank.take(name).exchange(0), rank.truth(0)

    (first, truth), *others = ranks(size, 10_007, work)
    for other, _ in others:
        assert torch.equal(other, first)
    sums, tail = first[:-NUM_TAIL].double(), first[-NUM_TAIL:]
    assert tail.tolist() == [float(size * i + sum(range(size))) for i in range(NUM_TAIL)]
    bound = MOST_ERROR["none"] if size == 1 else MOST_ERROR[name]
    assert (sums - truth).square().mean().sqrt() <= bound * truth.square().mean().sqrt()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", [1, *SIZES])
def test_buckets_of_any_length_arrive(name: str, size: int) -> None:
    def work(rank: Rank) -> list[tuple[torch.Tensor, torch.Tensor]]:
        found = []
        for rank.numel in (0, 1, 3, 255, 257):
            rank.residual = Residual()
            found.append((rank.take(name).exchange(0), rank.truth(0)))
        return found

    for found in ranks(size, 0, work):
        for flat, truth in found:
            numel, most = truth.numel(), MOST_APART.get(name, 0.1) * max(1.0, size / 3)
            torch.testing.assert_close(flat[:numel].double(), truth, atol=most, rtol=0.0)
            assert flat[numel:].tolist() == [float(size * i + sum(range(size))) for i in range(NUM_TAIL)]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_gradients_of_any_format_travel(name: str, dtype: torch.dtype, size: int) -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, torch.Tensor]:
        return rank.take(name).exchange(0), rank.truth(0)

    for flat, truth in ranks(size, 1000, work, dtype):
        error = (flat[:-NUM_TAIL].double() - truth).square().mean().sqrt() / truth.square().mean().sqrt()
        assert error <= MOST_ERROR[name] + DTYPE_ERROR.get(dtype, 0.0)
        assert flat[-NUM_TAIL:].tolist() == [float(size * i + sum(range(size))) for i in range(NUM_TAIL)]


@pytest.mark.parametrize("name", ADDING_UP)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_left_out_comes_later_and_a_dense_round_brings_the_rest(name: str, size: int) -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rank.take(name)
        received, truth = torch.zeros(rank.numel, dtype=torch.float64), torch.zeros(rank.numel, dtype=torch.float64)
        for round in range(12):
            received += rank.exchange(round)[:-NUM_TAIL].double()
            truth += rank.truth(round)
            rank.commit()
        late = (received - truth).square().mean().sqrt() / rank.truth(0).square().mean().sqrt()
        rank.take("none")
        received += rank.exchange(12)[:-NUM_TAIL].double()
        truth += rank.truth(12)
        rank.commit()
        assert rank.residual.is_empty
        return late, received, truth

    for late, received, truth in ranks(size, 5000, work):
        assert 1e-4 < late < MOST_LATE[name]  # of one round: errors of twelve do not add up
        torch.testing.assert_close(received, truth, atol=2e-5, rtol=0.0)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_not_finite_on_one_rank_is_so_on_all_and_leaves_no_trace(name: str, size: int) -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        found = []
        for poison in (float("nan"), float("inf"), -float("inf")):
            begun(rank)
            spoilt = rank.exchange(1, poison=poison if rank.rank == 1 else None)
            rank.rollback()
            found.append((spoilt, rank.exchange(2)))
        begun(rank)
        return rank.exchange(2), found

    def begun(rank: Rank) -> None:
        rank.residual = Residual()
        rank.take(name).exchange(0)
        rank.commit()

    for undisturbed, found in ranks(size, 1000, work):
        for spoilt, after in found:
            assert not spoilt[:-NUM_TAIL].isfinite().all()
            assert spoilt[-NUM_TAIL:].isfinite().all()
            assert torch.equal(after, undisturbed)


def in_units(rank: Rank, name: str, scales: Sequence[float], expected: float | None = None) -> torch.Tensor:
    """What the last of some rounds becomes, whose gradients are so many times as large each."""
    rank.residual = Residual()
    rank.take(name)
    for round, scale in enumerate(scales):
        last = rank.exchange(round, loss_scale=scale, expected=expected)[:-NUM_TAIL] / scale
        rank.commit()
    return last


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_what_is_kept_follows_the_loss_scale(name: str, size: int) -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, torch.Tensor]:
        return in_units(rank, name, (1024.0, 1024.0, 8.0)), in_units(rank, name, (1.0, 1.0, 1.0))

    for scaled, plain in ranks(size, 1000, work):
        assert torch.equal(scaled, plain)  # powers of two change no digit


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_what_is_kept_of_a_round_that_counted_more_units_than_expected_is_no_more_for_that(
    name: str, size: int
) -> None:
    def work(rank: Rank) -> tuple[torch.Tensor, torch.Tensor]:
        return in_units(rank, name, (512.0, 1.0, 1.0), 1.0), in_units(rank, name, (1.0, 1.0, 1.0), 1.0)

    for surprised, expected in ranks(size, 1000, work):
        assert torch.equal(surprised, expected)


def test_a_codec_scales_each_block_by_itself() -> None:
    def work(rank: Rank) -> torch.Tensor:
        rank.take("int4")
        flat = torch.zeros(512 + NUM_TAIL, device=rank.world.device)
        flat[:256], flat[256:512] = 1e-6, 1e6
        flat[7] = 0.0
        under_way = rank.scheme.start(0, flat, 512, rank.world)
        assert under_way is not None
        under_way.wait()
        return flat[:512].cpu()

    for sums in ranks(2, 512, work):
        torch.testing.assert_close(sums[:7], torch.full((7,), 2e-6), rtol=1e-5, atol=0.0)
        assert sums[7] == 0.0
        torch.testing.assert_close(sums[256:], torch.full((256,), 2e6), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("codec", [Bf16(), Fp16(), Int8(), Int4(), TwoFour()], ids=lambda codec: codec.name)
def test_a_codec_says_the_same_everywhere(codec: Codec) -> None:
    values_RN = torch.randn(3, 2560, generator=torch.Generator().manual_seed(0))
    found = []
    for device in (CPU, DEVICE):
        payload_RB = torch.zeros(3, codec.num_bytes(2560), dtype=torch.uint8, device=device)
        codec.encode(values_RN.to(device), payload_RB, torch.empty_like(values_RN, device=device))
        decoded_RN = torch.empty_like(values_RN, device=device)
        codec.decode(payload_RB, decoded_RN)
        found.append(decoded_RN.cpu())
    torch.testing.assert_close(*found, rtol=0.0, atol=1e-6)
