"""Tokens of a forward pass by the memory that there is: a line through what was seen, a limit that comes and goes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.training import ragged, reference
from tests.training.group import Group
from tests.training.ragged import LONGEST, Padded, pooled, sequence_task
from tests.training.tasks import Script
from tests.training.test_lengths import Seen, plain, spec
from workers.measures import FILL
from workers.training import footprint, gauge_reader, part, token_tuning
from workers.training.micro import Room
from workers.training.pass_tokens import LEAP, LEAST_SEEN, NUM_SEEN, SLACK, SPREAD, Line, PassTokens

MIB = 2**20
FIXED, A_TOKEN = 300 * MIB, 20_000
BATCH = 40


def shared(limit_bytes: int) -> Room:
    return Room(limit_bytes=limit_bytes, is_shared=True)


ROOMY = shared(FIXED + 400 * MIB)


def seen(sizes: list[int], peaks: list[int] | None = None) -> PassTokens:
    tokens = PassTokens("padded tokens")
    for size, peak in zip(sizes, peaks or [FIXED + A_TOKEN * size for size in sizes], strict=True):
        tokens.seen(size, peak, ROOMY)
    return tokens


@given(st.lists(st.tuples(st.integers(500, 8000), st.integers(0, 40 * MIB)), min_size=1, max_size=30), st.booleans())
def test_no_round_that_was_seen_lies_above_the_line_and_without_noise_it_is_the_true_one(
    told: list[tuple[int, int]], is_noisy: bool
) -> None:
    sizes = [size for size, _ in told]
    peaks = [FIXED + A_TOKEN * size + is_noisy * noise for size, noise in told]
    line = seen(sizes, peaks).line
    if line is None:
        assert len(told) < LEAST_SEEN or max(sizes[-NUM_SEEN:]) < SPREAD * min(sizes[-NUM_SEEN:])
        return
    assert all(line.at(n) >= peak - 1 for n, peak in list(zip(sizes, peaks, strict=True))[-NUM_SEEN:])
    if not is_noisy:
        assert line.token_bytes == pytest.approx(A_TOKEN, rel=1e-6)
        assert line.fixed_bytes == pytest.approx(FIXED, rel=1e-6)


@given(st.integers(0, 2000))
def test_what_a_merged_pass_may_have_leaves_room_and_is_never_far_from_what_was_seen(spare_mib: int) -> None:
    tokens = seen([1000, 3000, 2000, 4000, 1500])
    most = tokens.fitting(shared(FIXED + spare_mib * MIB))
    assert most is not None
    assert 4000 <= most <= LEAP * 4000
    assert most == 4000 or SLACK * A_TOKEN * most <= FILL * spare_mib * MIB
    assert tokens.fitting(Room()) is None
    assert PassTokens("tokens").fitting(ROOMY) is None


def test_a_pass_that_memory_ran_out_of_is_halved_and_has_its_size_again_once_memory_is_given_back() -> None:
    tokens = PassTokens("padded tokens")
    assert tokens.within(900) == 900
    assert tokens.halve(900)
    assert [tokens.within(n) for n in (900, 300, 0)] == [450, 300, 1]
    assert tokens.watch(shared(100 * MIB)) is None  # what there is where memory ran out
    assert tokens.watch(shared(120 * MIB)) is None
    assert tokens.watch(Room(limit_bytes=900 * MIB)) is None  # of a limit of its own nothing is given back
    choice = tokens.watch(shared(130 * MIB))
    assert choice is not None
    assert (choice.size, choice.unit) == (900, "padded tokens")
    assert choice.reason == "900 padded tokens a forward pass again: 130 MiB of memory are there by now"
    assert tokens.within(900) == 900
    assert not PassTokens("tokens").halve(1)
    assert not PassTokens("tokens", is_fixed=True).halve(900)


def test_passes_are_made_smaller_before_memory_that_others_have_taken_is_missed() -> None:
    tokens = seen([1000, 4000, 2000, 3000])
    assert tokens.watch(shared(FIXED + 80 * MIB)) is None
    choice = tokens.watch(shared(FIXED + 40 * MIB))
    assert choice is not None
    assert choice.size == tokens.within(4000) == pytest.approx(FILL * 40 * MIB / A_TOKEN, rel=0.01)
    assert "4000 padded tokens a forward pass would take about 376 MiB of the 340 MiB" in choice.reason
    assert tokens.watch(shared(FIXED // 2)) is None  # nothing would fit: it is tried
    for _ in range(2 * NUM_SEEN):  # passes under a limit tell nothing of those without
        tokens.seen(choice.size, FIXED + A_TOKEN * choice.size, ROOMY)
    assert tokens.watch(shared(FIXED + 45 * MIB)) is None
    more = tokens.watch(shared(FIXED + 60 * MIB))
    assert more is not None
    assert choice.size < more.size == tokens.within(4000) < 4000  # no more than fit
    less = tokens.watch(shared(FIXED + 30 * MIB))
    assert less is not None
    assert less.size == tokens.within(4000) < choice.size
    again = tokens.watch(shared(FIXED + 90 * MIB))
    assert again is not None
    assert again.size == tokens.within(4000) == 4000


def test_a_pass_is_not_made_smaller_where_nobody_has_taken_memory() -> None:
    """Half of what is free is little beside a job that has most of it."""
    tokens, room_bytes = PassTokens("tokens"), FIXED + 60 * MIB
    for size in (1000, 4000, 2000, 3000):
        tokens.seen(size, FIXED + A_TOKEN * size, shared(room_bytes))
    assert tokens.watch(shared(round(0.95 * room_bytes))) is None
    assert tokens.within(4000) == 4000
    assert tokens.watch(shared(round(0.88 * room_bytes))) is not None
    assert tokens.within(4000) < 4000
    assert tokens.watch(shared(room_bytes)) is not None  # though the line would leave a tenth of it
    assert tokens.within(4000) == 4000


def test_a_pass_that_ran_out_beside_others_has_its_size_again_when_all_that_there_was_is_there() -> None:
    tokens, room_bytes = seen([1000, 4000, 2000, 3000]), ROOMY.limit_bytes or 0
    assert tokens.halve(4000) == 2000
    assert tokens.watch(shared(round(0.85 * room_bytes))) is None
    assert tokens.watch(ROOMY) is not None
    assert tokens.within(4000) == 4000
    assert tokens.halve(4000) == 2000
    for _ in range(2):  # nobody had taken anything
        assert tokens.watch(ROOMY) is None


def test_a_merged_pass_that_does_not_fit_leaves_others_what_they_had() -> None:
    tokens = seen([1000, 4000, 2000, 3000])
    assert tokens.halve(5000) == tokens.within(5000) == 4000
    assert tokens.halve(4000) == 2000


def test_other_passes_are_learned_anew() -> None:
    tokens = seen([1000, 4000, 2000, 3000])
    tokens.halve(4000)
    tokens.again()
    assert (tokens.line, tokens.largest, tokens.within(4000)) == (None, 0, 4000)
    assert Line(fixed_bytes=10, token_bytes=1.0).bound(5) == 0


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is looked at in each round."""
    monkeypatch.setattr(token_tuning, "LOOK_S", 0.0)
    monkeypatch.setattr(gauge_reader, "GAUGE_INTERVAL_S", 0.0)


def trained(task: Any, num_steps: int) -> tuple[Group, Any]:
    wanted: dict[str, Any] = {**spec(global_size=BATCH), "samples": BATCH * num_steps}
    with Group(Script(task=task), **wanted) as group:
        workers = group.start(1)
        group.train(workers)
        (status,) = group.await_done(workers).values()
        return group, status


@pytest.mark.usefixtures("looks")
def test_a_job_whose_memory_others_held_for_a_while_trains_in_its_own_passes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, models, limit = Seen(), list[nn.Module](), [LONGEST]
    monkeypatch.setattr(footprint, "room", lambda device: shared(limit[0] * MIB))

    def loss(model: nn.Module, batch: Padded) -> torch.Tensor:
        if len(seen.micro_batches) > 60:
            limit[0] = 100 * LONGEST
        if batch[1].numel() > limit[0]:
            raise torch.OutOfMemoryError(f"{batch[1].numel()} tokens")
        return ragged.sample_mean(model, batch)

    def task() -> Any:
        models.append(mine := pooled())
        return sequence_task(model=mine, train_data=seen.data, collate=seen.pad, loss=loss)

    group, status = trained(task, num_steps := 12)
    changes = [(change.unit, change.after > (change.before or 0)) for change in status.micro_changes]
    assert changes[0] == ("padded tokens", False)
    assert changes[-1] == ("padded tokens", True)
    assert max(seen.padded()[60:]) > LONGEST
    expected = plain([BATCH] * num_steps)
    assert group.losses() == pytest.approx(expected.losses, rel=1e-10, abs=1e-10)
    assert reference.distance(expected.model, models[0]) < 1e-10


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("spare", [LONGEST, 40 * LONGEST])
def test_without_max_tokens_fewer_passes_are_tried_as_far_as_memory_is_known_to_hold_them(
    monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    """Its clock tells passes and no time, and each token takes a mebibyte."""
    seen, round_began = Seen(), [0]
    monkeypatch.setattr(footprint, "room", lambda device: shared(FIXED + spare * MIB))
    monkeypatch.setattr(footprint, "restart_peak", lambda device: round_began.__setitem__(0, len(seen.micro_batches)))
    monkeypatch.setattr(
        footprint, "peak_bytes", lambda device: FIXED + MIB * max(seen.padded()[round_began[0] :], default=0)
    )

    class Watch:
        def __init__(self) -> None:
            self._begun = len(seen.micro_batches)

        def seconds(self) -> float:
            return float(len(seen.micro_batches) - self._begun)

    monkeypatch.setattr(part, "Stopwatch", Watch)
    group, status = trained(lambda: sequence_task(train_data=seen.data, collate=seen.pad), num_steps := 40)
    told, largest = (
        [change for change in status.micro_changes if "in fewer passes" in change.reason],
        max(seen.padded()),
    )
    assert group.losses() == pytest.approx(plain([BATCH] * num_steps).losses, rel=1e-10, abs=1e-10)
    monkeypatch.setattr(token_tuning, "LOOK_S", math.inf)
    seen.micro_batches.clear()
    trained(lambda: sequence_task(train_data=seen.data, collate=seen.pad), num_steps)
    assert (
        largest <= max(seen.padded()) if spare == LONGEST else max(seen.padded()) < largest <= LEAP * max(seen.padded())
    )
    assert told or spare == LONGEST
