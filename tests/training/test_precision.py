"""Number formats: what they do to the loss, what stays in fp32 under them, and loss scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse, reset
from workers.plan import Exchange, Format, Precision
from workers.status import RoundRecord
from workers.task import TrainingTask
from workers.training.precision.applier import PrecisionApplier
from workers.training.precision.scaler import GROWTH_INTERVAL, INITIAL_SCALE, MIN_SCALE, LossScaler

BATCH, SAMPLES, STEPS, LR = 12, 40, 30, 0.05
CPU = torch.device("cpu")


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def run(format: Format, loss: Any = mse, num_workers: int = 2, steps: int = STEPS) -> tuple[Group, list[nn.Module]]:
    models: list[nn.Module] = []

    def build() -> TrainingTask:
        models.append(model := mlp())
        return TrainingTask(model=model, train_data=Regression(SAMPLES, torch.float32), loss=loss, optimizer=sgd)

    with Group(Script(task=build), steps=steps, batch={"global_size": BATCH}, optimizer={"lr": LR}) as group:
        workers = group.start(num_workers)
        group.train(workers, precision=Precision(format=format))
        group.await_done(workers)
    return group, models


def test_low_formats_train_as_fp32_does_within_their_precision() -> None:
    fp32 = run(Format.FP32)[0].losses()
    assert fp32[-1] < 0.25 * fp32[0]
    for format, tolerance in ((Format.BF16, 0.05), (Format.FP16, 0.01)):
        group, models = run(format)
        losses = group.losses()
        assert losses[0] == pytest.approx(fp32[0], rel=tolerance)
        assert losses[-1] == pytest.approx(fp32[-1], rel=tolerance)
        assert losses != fp32  # it really ran in that format
        assert all(p.dtype == torch.float32 for p in models[0].parameters())


def test_an_overflow_backs_the_scale_off_and_the_same_samples_are_drawn_again() -> None:
    seen: list[torch.Tensor] = []

    def calm(model: nn.Module, batch: Any) -> torch.Tensor:
        return 0.01 * mse(model, batch)  # so small that nothing else overflows

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(batch[0])
        return calm(model, batch) * (1e36 if len(seen) == 6 else 1.0)  # finite, but not with the loss scale

    group, _ = run(Format.FP16, loss, num_workers=1, steps=10)
    records = [record for _, record in sorted(group.records.items())]
    assert len(records) == 10
    assert not any(r.is_skipped for r in records)
    assert len(seen) == 11
    assert torch.equal(seen[5], seen[6])
    scales = [r.values["loss_scale"] for r in records]
    assert scales == [INITIAL_SCALE] * 5 + [INITIAL_SCALE / 2] * 5
    without, _ = run(Format.FP16, calm, num_workers=1, steps=10)
    assert group.losses() == pytest.approx(without.losses(), rel=1e-3)


def test_without_a_finite_gradient_at_the_least_scale_samples_are_passed_over() -> None:
    calls = [0]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        calls[0] += 1
        return mse(model, batch) * (float("inf") if calls[0] <= 18 else 1.0)

    group, _ = run(Format.FP16, loss, num_workers=1, steps=5)
    records = [record for _, record in sorted(group.records.items())]
    assert [r.is_skipped for r in records] == [True, True, False, False, False]
    assert records[0].values["loss_scale"] == MIN_SCALE  # 16 halvings, then two rounds passed over
    assert calls[0] == 16 + 5


class Attempt(NamedTuple):
    """One forward pass of a rank: its samples, and all that its model held then."""

    x: torch.Tensor
    state: Mapping[str, torch.Tensor]


def normed() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2))
    reset(model, 3)
    return model


def overflow_on_one(spoilt: range, steps: int) -> tuple[list[list[Attempt]], list[list[RoundRecord]], list[nn.Module]]:
    """Two ranks in fp16, one of which alone has no finite gradient in these of its passes.

    What each of them tried, what each has to tell, and their models.
    """
    tried: dict[nn.Module, list[Attempt]] = {}

    def build() -> TrainingTask:
        tried[model := normed()] = []
        return TrainingTask(model=model, train_data=Regression(SAMPLES, torch.float32), loss=loss, optimizer=sgd)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        state = {name: value.to("cpu", copy=True) for name, value in model.state_dict().items()}
        tried[model].append(Attempt(batch[0], state))
        is_spoilt = model is next(iter(tried)) and len(tried[model]) - 1 in spoilt
        return 0.01 * mse(model, batch) * (1e36 if is_spoilt else 1.0)  # so small that nothing else overflows

    with Group(Script(task=build), steps=steps, batch={"global_size": BATCH}, optimizer={"lr": LR}) as group:
        workers = group.start(1) + group.start(1)
        group.train(workers, precision=Precision(format=Format.FP16))
        statuses = group.await_done(workers)
    return list(tried.values()), [list(statuses[i].records) for i in workers], list(tried)


def assert_alike(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_overflow_on_one_rank_makes_all_redo_the_step_at_half_the_scale() -> None:
    tried, told, models = overflow_on_one(range(3, 5), steps=8)
    for mine, records in zip(tried, told, strict=True):
        assert len(mine) == 8 + 2
        for again in (4, 5):
            assert torch.equal(mine[3].x, mine[again].x)
            assert_alike(mine[3].state, mine[again].state)
        assert not torch.equal(mine[5].x, mine[6].x)
        assert [(r.round, r.cursor, r.is_skipped) for r in records] == [(n, n * BATCH, False) for n in range(1, 9)]
        assert [r.values["loss_scale"] for r in records] == [INITIAL_SCALE] * 3 + [INITIAL_SCALE / 4] * 5
        assert [r.round for r in records if "redone_bytes" in r.values] == [4]
    for one, other in zip(*tried, strict=True):
        assert_alike(one.state, other.state)
    assert_alike(models[0].state_dict(), models[1].state_dict())
    assert models[0].state_dict()["1.num_batches_tracked"] == 8


def test_what_was_sent_for_a_step_drawn_again_is_told_where_its_buckets_changed_meanwhile() -> None:
    script = Script(gate=(gate := Gate()))
    num_passes: dict[nn.Module, int] = {}

    def build() -> TrainingTask:
        num_passes[model := mlp()] = 0
        data = Regression(SAMPLES, torch.float32, script)
        return TrainingTask(model=model, train_data=data, loss=loss, optimizer=sgd)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        num_passes[model] += 1
        return 0.01 * mse(model, batch) * (1e36 if num_passes[model] == 4 else 1.0)

    script.task, fp16 = build, Precision(format=Format.FP16)
    with Group(script, steps=5, batch={"global_size": BATCH, "micro_size": BATCH}, optimizer={"lr": LR}) as group:
        workers = group.start(2)
        gate.close_at(3 * BATCH)
        first = group.train(workers, precision=fp16)
        group.await_all(lambda s: s.round == 3, workers)
        smaller = Exchange(options=(("bucket_mib", 1),))
        plan = group.agree(workers, generation=first.generation, precision=fp16, exchange=smaller)
        gate.open()
        group.await_done(workers)
        records = [record for _, record in sorted(group.records.items())]
    assert [r.plan_id for r in records] == [first.id] * 3 + [plan.id] * 2
    assert [r.round for r in records if "redone_bytes" in r.values] == [4]


def test_an_overflow_on_one_rank_at_the_least_scale_makes_all_pass_the_samples_over() -> None:
    num_halvings = int(math.log2(INITIAL_SCALE / MIN_SCALE))
    tried, told, models = overflow_on_one(range(num_halvings + 1), steps=3)
    before = normed().state_dict()
    for mine, records in zip(tried, told, strict=True):
        assert len(mine) == num_halvings + 3
        assert_alike(mine[num_halvings + 1].state, before)  # the first step in which anything is learnt
        assert [(r.round, r.cursor, r.is_skipped) for r in records] == [(n, n * BATCH, n == 1) for n in range(1, 4)]
        assert ["loss" in r.values for r in records] == [False, True, True]
        assert [r.values["loss_scale"] for r in records] == [MIN_SCALE] * 3
    assert_alike(models[0].state_dict(), models[1].state_dict())
    assert models[0].state_dict()["1.num_batches_tracked"] == 2


def test_the_scale_doubles_after_enough_finite_rounds() -> None:
    scaler = LossScaler()
    for _ in range(GROWTH_INTERVAL):
        scaler.stage(True)
        scaler.commit()
    assert scaler.scale == 2 * INITIAL_SCALE


@pytest.mark.parametrize("format", [Format.BF16, Format.FP16])
def test_norms_softmax_and_losses_stay_in_fp32_on_a_cpu(format: Format) -> None:
    torch.manual_seed(0)
    applier = PrecisionApplier(CPU)
    applier.apply(Precision(format=format))
    linear, norm = nn.Linear(8, 8), nn.LayerNorm(8)
    x = torch.randn(4, 8)
    with applier.computing():
        low = linear(x)
        kept = {
            "layer_norm": norm(low),
            "softmax": F.softmax(low, dim=-1),
            "method": low.softmax(-1),
            "module": nn.LogSoftmax(-1)(low),
            "cross_entropy": F.cross_entropy(low, torch.tensor([0, 1, 2, 3])),
            "batch_norm": nn.BatchNorm1d(8)(low),
            "logsumexp": torch.logsumexp(low, -1),
        }
        assert low.dtype == {Format.BF16: torch.bfloat16, Format.FP16: torch.float16}[format]
        assert linear(kept["layer_norm"]).dtype == low.dtype
    assert {name: value.dtype for name, value in kept.items()} == dict.fromkeys(kept, torch.float32)


def test_taking_a_format_back_leaves_no_trace() -> None:
    model = mlp()
    reset(model, 1)
    x = torch.randn(3, 5)
    before, applier = model(x), PrecisionApplier(CPU)
    applier.apply(Precision(format=Format.BF16))
    with applier.computing():
        assert model(x).dtype == torch.bfloat16
    applier.remove()
    with applier.computing():
        assert torch.equal(model(x), before)
    assert applier.scaler(LossScaler()) is None


def test_a_plan_changes_the_format_at_a_boundary() -> None:
    gate, script = Gate(), Script()
    script.gate = gate
    script.task = lambda: TrainingTask(
        model=mlp(), train_data=Regression(SAMPLES, torch.float32, script), loss=mse, optimizer=sgd
    )
    with Group(script, steps=8, batch={"global_size": BATCH}, optimizer={"lr": LR}) as group:
        workers = group.start(2)
        gate.close_at(3 * BATCH)
        plan = group.train(workers)
        gate.await_waiting(2)
        group.agree(workers, generation=plan.generation, precision=Precision(format=Format.FP16))
        gate.open()
        group.await_done(workers)
        scaled = ["loss_scale" in record.values for _, record in sorted(group.records.items())]
        generations = {record.generation for record in group.records.values()}
    assert scaled == [False] * 4 + [True] * 4
    assert generations == {plan.generation}
