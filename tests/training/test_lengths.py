"""Length-aware batching changes how fast a job trains and nothing of what it trains."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.training import ragged, reference
from tests.training.group import TERM, Group
from tests.training.ragged import LONGEST, NUM_SAMPLES, Packed, Padded, Sample, Sequences, pooled, sequence_task
from tests.training.tasks import Script
from workers.checkpoints import list_checkpoints
from workers.errors import DataError, Reason
from workers.local_storage import LocalStorage
from workers.plan import CheckpointSource, Goal, Member
from workers.status import Phase, RoundRecord, StopCause
from workers.training import draw
from workers.training.exchange import buckets
from workers.training.length_sources import BySample
from workers.training.lengths import Lengths

BATCH, STEPS, LR = 11, 9, 0.02
MAX_TOKENS = 90

Loss = Callable[[nn.Module, Any], torch.Tensor]


@pytest.fixture(autouse=True)
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that gradients leave while the last backward pass of a rank runs, which is not everybody's same one."""
    monkeypatch.setattr(buckets, "MIB", 0)


@dataclass
class Seen:
    """The samples of each micro-batch that was collated, by any rank."""

    data: Sequences = field(default_factory=Sequences)
    micro_batches: list[list[int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pad(self, samples: Sequence[Sample]) -> Padded:
        numbers = {id(x): number for number, (x, _) in enumerate(self.data.samples)}
        with self._lock:
            self.micro_batches.append([numbers[id(x)] for x, _ in samples])
        return ragged.pad(samples)

    def padded(self) -> list[int]:
        return [len(own) * max(len(self.data.samples[i][0]) for i in own) for own in self.micro_batches]


def global_batches(sizes: Sequence[int]) -> Iterator[list[int]]:
    """The dataset's indexes of each step: shuffled epochs one after the other, as without lengths."""
    order: list[int] = []
    for epoch in range(math.ceil(sum(sizes) / NUM_SAMPLES)):
        order += np.random.Generator(np.random.PCG64([0, epoch])).permutation(NUM_SAMPLES).tolist()
    begin = 0
    for size in sizes:
        yield order[begin : begin + size]
        begin += size


def plain(sizes: Sequence[int], loss: Loss = ragged.sample_mean) -> reference.Reference:
    model, data = pooled(), Sequences()
    batches: Any = (ragged.pad([data[i] for i in indexes]) for indexes in global_batches(sizes))
    return reference.train(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), batches, loss)


def spec(**batch: Any) -> dict[str, Any]:
    return {"samples": BATCH * STEPS, "batch": {"global_size": BATCH} | batch, "optimizer": {"lr": LR}}


def records_of(task: Callable[[], Any], num_workers: int, bound: dict[str, int]) -> list[RoundRecord]:
    """Of a whole job, step by step."""
    with Group(Script(task=task), **spec(**bound)) as group:
        workers = group.start(num_workers)
        group.train(workers)
        group.await_done(workers)
        return [record for _, record in sorted(group.records.items())]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("bound", [{"max_tokens": MAX_TOKENS}, {"micro_size": 2}, {}])
@pytest.mark.parametrize("weight", [None, ragged.num_tokens])
def test_any_workers_train_what_a_plain_loop_trains_on_the_same_batches_padded_to_their_longest(
    num_workers: int, bound: dict[str, int], weight: Any
) -> None:
    loss = ragged.sample_mean if weight is None else ragged.token_mean
    models: list[nn.Module] = []
    seen = Seen()

    def task() -> Any:
        models.append(mine := pooled())
        return sequence_task(model=mine, train_data=seen.data, collate=seen.pad, loss=loss, weight=weight)

    records = records_of(task, num_workers, bound)
    expected = plain([BATCH] * STEPS, loss)
    assert [record.values["loss"] for record in records] == pytest.approx(expected.losses, rel=1e-10, abs=1e-10)
    assert [reference.distance(expected.model, m) < 1e-10 for m in models] == [True] * num_workers
    assert all(record.values["global_batch"] == BATCH for record in records)
    drawn = [i for own in seen.micro_batches for i in own]
    assert sorted(drawn) == sorted(i for indexes in global_batches([BATCH] * STEPS) for i in indexes)
    assert max(seen.padded()) <= bound.get("max_tokens", math.inf)
    assert max(map(len, seen.micro_batches)) <= bound.get("micro_size", BATCH)
    whole = sum(len(seen.data.samples[i][0]) for i in drawn)
    told = sum(r.values["useful_tokens"] for r in records) / len(records)
    assert told == pytest.approx(whole / sum(seen.padded()), abs=0.05)
    assert records[0].values["useful_tokens"] > 0.6  # later rounds may be cut into fewer passes, as their clock says
    assert all(0 < record.values["useful_tokens"] <= 1 for record in records)


def pack(seen: Seen) -> dict[str, Any]:
    """Of a task whose samples are laid end to end."""

    def packed(samples: Sequence[Sample]) -> Packed:
        seen.pad(samples)
        return ragged.pack(samples)

    return {"collate": packed, "loss": ragged.packed_mean, "packed": True}


def pad(seen: Seen) -> dict[str, Any]:
    return {"collate": seen.pad}


@pytest.mark.parametrize("are_measured", [False, True])
@pytest.mark.parametrize("way", [pad, pack])
def test_batches_stay_while_members_shares_and_the_global_batch_change_and_over_a_restart(
    way: Callable[[Seen], dict[str, Any]], *, are_measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "splits", lambda round: are_measured and round % 3 != 1)
    seen = Seen()

    def task() -> Any:
        return sequence_task(train_data=seen.data, **way(seen))

    sizes, batch = [BATCH] * 3 + [17] * 2 + [5] * 3, {"max_tokens": MAX_TOKENS, "lr_rule": "none", "adapt": "goodput"}
    with Group(Script(task=task), **{**spec(**batch), "samples": sum(sizes)}) as group:
        first = group.start(2)
        group.train(first, until=3 * BATCH)
        group.await_all(lambda s: s.phase is Phase.HELD, first)
        (third,) = group.start(1)
        shared = [Member(worker_id=third, rank=0, weight=0.5), Member(worker_id=first[0], rank=1, weight=2.0)]
        idle = Member(worker_id=first[1], rank=2, weight=0.0)
        line = 3 * BATCH + 2 * 17
        group.agree([*shared, idle], global_batch=17, until=line)
        group.await_all(lambda s: s.phase is Phase.HELD and s.round == 5, [third, *first])
        group.agree([third, *first], generation=2, goal=Goal.SAVE_AND_STOP)
        group.await_all(lambda s: s.phase is Phase.SAVED, [third, *first])
        for worker in [third, *first]:
            group.sessions[worker].stop(TERM, save=False)
        (saved,) = list_checkpoints(LocalStorage(group.root / "checkpoints"))
        assert saved.cursor == line
        last = group.start(3)
        group.train(last, source=CheckpointSource(saved.path, 5, saved.cursor), lineage=2, global_batch=5)
        group.await_done(last)
        losses, told = group.losses(), [record.values for _, record in sorted(group.records.items())]
    assert ["noise_scale" in values for values in told] == [are_measured and n % 3 != 1 for n in range(1, 9)]
    assert losses == pytest.approx(plain(sizes).losses, rel=1e-9, abs=1e-10)
    drawn = [i for own in seen.micro_batches for i in own]
    assert sorted(drawn) == sorted(i for indexes in global_batches(sizes) for i in indexes)


def test_an_evaluation_goes_by_length_too_and_its_means_are_over_samples() -> None:
    seen = Seen()

    def evaluate(model: nn.Module, batch: Padded) -> dict[str, torch.Tensor]:
        return {"mse": ragged.sample_mean(model, batch)}

    def task() -> Any:
        return sequence_task(train_data=seen.data, eval_data=seen.data, evaluate=evaluate, collate=seen.pad)

    with Group(Script(task=task), **{**spec(max_tokens=MAX_TOKENS), "samples": BATCH}) as group:
        workers = group.start(3)
        group.train(workers)
        group.await_done(workers)
        (record,) = group.records.values()
    everything = plain([BATCH]).model, ragged.pad([seen.data[i] for i in range(NUM_SAMPLES)])
    assert record.values["eval.mse"] == pytest.approx(ragged.sample_mean(*everything).item(), rel=1e-10)
    assert max(seen.padded()) <= MAX_TOKENS


def test_memory_that_runs_out_at_so_many_tokens_makes_the_long_micro_batches_smaller_and_no_others() -> None:
    seen, batch = Seen(), 40

    def loss(model: nn.Module, batch: Padded) -> torch.Tensor:
        if batch[1].numel() > LONGEST:
            raise torch.OutOfMemoryError(f"{batch[1].numel()} tokens")
        return ragged.sample_mean(model, batch)

    def task() -> Any:
        return sequence_task(train_data=seen.data, collate=seen.pad, loss=loss)

    with Group(Script(task=task), **{**spec(max_tokens=6 * LONGEST, global_size=batch), "samples": 5 * batch}) as group:
        workers = group.start(2)
        group.train(workers)
        group.await_done(workers)
        losses, status = group.losses(), group.poll()
    assert losses == pytest.approx(plain([batch] * 5).losses, rel=1e-10, abs=1e-10)
    told = [change for worker in status.values() for change in worker.micro_changes]
    assert told
    assert all("padded tokens a forward pass" in change.reason for change in told)
    assert max(len(own) for own in seen.micro_batches[-6:]) >= 3


def test_a_size_in_samples_that_is_fixed_is_not_lowered_by_tokens_where_memory_runs_out() -> None:
    def loss(model: nn.Module, batch: Padded) -> torch.Tensor:
        if len(batch[1]) > 1:
            raise torch.OutOfMemoryError("two samples")
        return ragged.sample_mean(model, batch)

    with Group(Script(task=lambda: sequence_task(loss=loss)), **spec(micro_size=4)) as group:
        workers = group.start(1)
        group.train(workers)
        (status,) = group.await_all(lambda s: s.phase is Phase.FAILED, workers).values()
    assert status.failure is not None
    assert status.failure.reason is Reason.OUT_OF_MEMORY
    assert not status.micro_changes
    assert "padded tokens of Pooled" in status.failure.message
    assert "set batch.micro_size to auto or lower it" in status.failure.message


class Boundless:
    """A dataset of two samples that are what ``length`` tells of them."""

    def __init__(self, told: Any) -> None:
        self._told = told

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self._told if index == 1 else 1


def asked(told: Any, length: Callable[[Any], Any] = lambda sample: sample, max_tokens: int | None = 100) -> list[int]:
    lengths = Lengths(2, BySample(Boundless(told), length, 0, "train_data"), max_tokens)
    found: list[int] = lengths.of(np.array([0, 1, 1]), lambda: None).tolist()
    return found


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        (0, "0"),
        (-3, "-3"),
        (2.0, "2.0"),
        (True, "True"),
        (np.bool_(True), "np.True_"),
        (torch.tensor(True), "tensor(True)"),
        (torch.tensor(3.0), "tensor(3.)"),
        (None, "None"),
        ("7", "'7'"),
        (2**40, "1099511627776"),
    ],
)
def test_a_length_that_is_no_number_of_tokens_is_told_with_the_sample(told: Any, seen: str) -> None:
    with pytest.raises(DataError) as caught:
        asked(told)
    assert f"length(train_data[1]) returned {seen}" in caught.value.message
    assert "return the sample's number of tokens as an int from 1" in caught.value.message


@pytest.mark.parametrize("told", [5, np.int64(5), np.uint8(5), torch.tensor(5)])
def test_whole_numbers_of_any_kind_are_lengths(told: Any) -> None:
    assert asked(told) == [1, 5, 5]


def test_a_length_that_raises_or_is_above_the_bound_is_told_with_the_sample() -> None:
    with pytest.raises(DataError, match=r"length\(train_data\[0\]\) raised ZeroDivisionError"):
        asked(1, lambda sample: 1 // 0)
    with pytest.raises(DataError, match=r"length\(train_data\[1\]\) is 101, above batch.max_tokens=100.*raise max_to"):
        asked(101)
    assert asked(101, max_tokens=None) == [1, 101, 101]


def test_each_sample_is_read_once_for_its_length_under_a_seed_of_its_own() -> None:
    read: list[tuple[int, float]] = []

    class Random(Boundless):
        def __getitem__(self, index: int) -> Any:
            read.append((index, np.random.rand()))
            return 1

    for wanted in ([0, 1], [1, 0, 1]):
        lengths = Lengths(2, BySample(Random(1), lambda sample: int(sample), 7, "train_data"), None)
        lengths.of(np.array(wanted), lambda: None)
        lengths.of(np.array(wanted), lambda: None)
    assert len(read) == 4
    assert len(set(read)) == 2


@pytest.mark.parametrize("worker_with_others", [0, 1])
def test_ranks_that_were_told_other_lengths_divide_no_batch(worker_with_others: int) -> None:
    built: list[Any] = []

    def task() -> Any:
        number = len(built)
        built.append(number)
        more = int(number == worker_with_others)
        return sequence_task(length=lambda sample: len(sample[0]) + more)

    with Group(Script(task=task), **spec()) as group:
        workers = [*group.start(1), *group.start(1)]
        group.train(workers)
        statuses = group.await_break(workers)
        assert not group.records
    stops = [status.stop for status in statuses.values() if status.stop is not None]
    failures = [stop.failure for stop in stops if stop.cause is StopCause.USER and stop.failure is not None]
    assert failures
    assert {failure.reason for failure in failures} == {Reason.USER_ERROR}
    assert all("make a sample's length depend on its index alone" in failure.message for failure in failures)


def test_an_evaluation_that_ranks_divide_differently_tells_nothing() -> None:
    built: list[int] = []

    def task() -> Any:
        built.append(len(built))
        more = built[-1]
        data = Sequences(2 * NUM_SAMPLES)

        def length(sample: Sample) -> int:
            is_for_training = any(sample[0] is x for x, _ in data.samples[:NUM_SAMPLES])
            return len(sample[0]) + (0 if is_for_training else more)

        return sequence_task(
            train_data=data.samples[:NUM_SAMPLES],
            eval_data=data.samples[NUM_SAMPLES:],
            evaluate=lambda model, batch: {"mse": ragged.sample_mean(model, batch)},
            length=length,
        )

    with Group(Script(task=task), **{**spec(), "samples": BATCH}) as group:
        workers = [*group.start(1), *group.start(1)]
        group.train(workers)
        statuses = group.await_break(workers)
    failures = [status.stop.failure for status in statuses.values() if status.stop and status.stop.failure]
    assert failures
    assert all("other lengths of eval_data than another rank" in failure.message for failure in failures)


def test_a_bad_length_ends_the_round_of_all_ranks_with_its_message() -> None:
    def task() -> Any:
        return sequence_task(length=lambda sample: len(sample[0]) * 1.0)

    with Group(Script(task=task), **spec()) as group:
        workers = group.start(2)
        group.train(workers)
        statuses = group.await_break(workers)
    failures = [status.stop.failure for status in statuses.values() if status.stop and status.stop.failure]
    assert failures
    assert all("length(train_data[" in failure.message and ".0; return" in failure.message for failure in failures)


class Counted(Sequences):
    """Notes which samples are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    def __getitem__(self, index: int) -> Sample:
        self.read.append(index)
        return super().__getitem__(index)


def at(data: Sequences, index: int) -> int:
    return len(data.samples[index][0])


def test_a_length_that_is_told_by_the_index_is_read_for_by_nobody() -> None:
    data = Counted()
    records = records_of(
        lambda: sequence_task(train_data=data, length=None, length_at=at), 3, {"max_tokens": MAX_TOKENS}
    )
    assert [record.values["loss"] for record in records] == pytest.approx(plain([BATCH] * STEPS).losses, rel=1e-10)
    assert sorted(data.read) == sorted(i for indexes in global_batches([BATCH] * STEPS) for i in indexes)


def test_a_bad_length_by_the_index_fails_the_step_that_has_the_sample_and_none_before() -> None:
    (first, second) = global_batches([BATCH] * 2)
    bad = next(i for i in second if i not in first)
    task = lambda: sequence_task(length=None, length_at=lambda data, i: 0 if i == bad else at(data, i))  # noqa: E731
    with Group(Script(task=task), **spec()) as group:
        workers = group.start(2)
        group.train(workers)
        statuses = group.await_break(workers)
        assert [record.round for record in group.records.values()] == [1]
    failures = [status.stop.failure for status in statuses.values() if status.stop and status.stop.failure]
    assert any(f"length_at(train_data, {bad}) returned 0; return the sample's number" in f.message for f in failures)
