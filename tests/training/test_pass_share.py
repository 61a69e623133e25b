"""How many passes samples of unequal lengths are cut into, by what a pass costs beside its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.training import reference
from tests.training.group import Group
from tests.training.ragged import pooled, sequence_task
from tests.training.tasks import Script
from tests.training.test_by_length import LENGTHS, log_normal, padded_by_rank
from tests.training.test_lengths import Seen, plain, spec
from workers.training import part
from workers.training.bounds import Bounds
from workers.training.by_length import deal_by_length, rejoined
from workers.training.pass_share import NUM_PAIRS, SHARES, WORTH, PassChoice, PassShare

MOST = 400_000
A_TRIAL = 1 + 2 * NUM_PAIRS
NUM_TRIED = 1 + 2 * A_TRIAL


@given(LENGTHS, st.integers(0, 2000) | st.none(), st.sampled_from(SHARES), st.integers(1, 3))
def test_passes_cut_anew_hold_the_same_samples_within_the_bounds(
    lengths: list[int], room: int | None, share: float, num_ranks: int
) -> None:
    lengths_N, bounds = np.array(lengths), Bounds(max_tokens=None if room is None else max(lengths) + room)
    for own in deal_by_length(lengths_N, [1.0] * num_ranks, bounds):
        if own:
            anew = rejoined(own, lengths_N, share, bounds)
            assert sorted(np.concatenate(anew).tolist()) == sorted(np.concatenate(own).tolist())
            assert all(len(piece) * lengths_N[piece].max() <= (bounds.max_tokens or np.inf) for piece in anew)


def settled(pass_cost: float) -> tuple[PassShare, int, list[PassChoice]]:
    """After rounds of log-normal lengths, of which a token takes 1 and a pass ``pass_cost``; with their number."""
    passes, bounds, choices = PassShare(MOST), Bounds(max_tokens=MOST), list[PassChoice]()
    for number in range(1, NUM_TRIED + 1):
        lengths_N = log_normal(256, 0.8, seed=number)
        (dealt,) = deal_by_length(lengths_N, [1.0], bounds)
        own = rejoined(dealt, lengths_N, passes.share, bounds)
        (cost,) = padded_by_rank(lengths_N, [own])
        largest = max(len(piece) * int(lengths_N[piece].max()) for piece in own)
        if choice := passes.measured(int(lengths_N.sum()), largest, cost + pass_cost * len(own)):
            choices.append(choice)
        if not passes.is_trying:
            return passes, number, choices
    raise AssertionError("nothing was settled on")


def test_where_time_goes_with_the_tokens_passes_stay_as_they_were_after_one_other_cut_was_tried() -> None:
    passes, num_rounds, choices = settled(pass_cost=8.0)
    assert (passes.share, num_rounds, choices) == (SHARES[0], 1 + A_TRIAL, [])


def test_where_a_pass_costs_as_much_as_its_tokens_there_are_as_few_as_fit() -> None:
    passes, num_rounds, (first, second) = settled(pass_cost=200_000.0)
    assert (passes.share, num_rounds) == (1.0, NUM_TRIED)
    assert first.before < first.after <= second.before < second.after <= MOST
    for choice in (first, second):
        assert f"in fewer passes, of up to {choice.after} padded tokens" in choice.reason
        assert choice.compared is not None
        assert choice.compared.num_rounds == 2 * NUM_PAIRS
        assert choice.compared.before_s > WORTH * choice.compared.after_s
        # Of A_TRIAL rounds half were in as many passes as before, each longer by what the others take less.
        tokens = float(log_normal(256, 0.8, seed=1).sum())
        longer_s = NUM_PAIRS * tokens * (choice.compared.before_s - choice.compared.after_s)
        assert choice.cost_s == pytest.approx(longer_s, rel=0.3)


def test_a_rank_that_is_given_no_tokens_stops_trying() -> None:
    passes = PassShare(MOST)
    assert [passes.measured(0, 0, 1.0) for _ in range(1 + A_TRIAL)] == [None] * (1 + A_TRIAL)
    assert (passes.share, passes.is_trying) == (SHARES[0], False)


def test_nothing_is_tried_before_it_is_known_what_fits_and_again_where_passes_take_something_else() -> None:
    passes, given = PassShare(None), PassShare(MOST)
    assert (passes.is_trying, passes.share) == (False, SHARES[0])
    passes.allow(900)
    assert (passes.is_trying, passes.max_tokens) == (True, 900)
    for each in (passes, given):
        each.again()
    assert (passes.is_trying, passes.max_tokens) == (False, None)
    assert (given.is_trying, given.max_tokens) == (True, MOST)


@pytest.mark.parametrize(("of_pass", "of_token", "is_cut_anew"), [(1.0, 0.0, True), (0.0, 1.0, False)])
def test_a_worker_takes_what_is_faster_and_trains_what_it_trained(
    monkeypatch: pytest.MonkeyPatch, of_pass: float, of_token: float, is_cut_anew: bool
) -> None:
    """Its clock tells passes or padded tokens, and no time."""
    seen, models = Seen(), list[nn.Module]()

    class Watch:
        def __init__(self) -> None:
            self._begun = self._read()

        def _read(self) -> float:
            return of_pass * len(seen.micro_batches) + of_token * sum(seen.padded())

        def seconds(self) -> float:
            return self._read() - self._begun

    def task() -> Any:
        models.append(mine := pooled())
        return sequence_task(model=mine, train_data=seen.data, collate=seen.pad)

    monkeypatch.setattr(part, "Stopwatch", Watch)
    num_steps, batch = NUM_TRIED + 8, 40  # some of them measure noise instead
    wanted: dict[str, Any] = {**spec(global_size=batch, max_tokens=4000), "samples": batch * num_steps}
    with Group(Script(task=task), **wanted) as group:
        workers = group.start(1)
        group.train(workers)
        (status,) = group.await_done(workers).values()
        losses = group.losses()
    changes = [change for change in status.micro_changes if change.unit == "padded tokens"]
    assert ["in fewer passes" in change.reason for change in changes] == [True, True] * is_cut_anew
    assert all(change.compared is not None and change.compared.unit == "token" for change in changes)
    expected = plain([batch] * num_steps)
    assert losses == pytest.approx(expected.losses, rel=1e-10, abs=1e-10)
    assert reference.distance(expected.model, models[0]) < 1e-10
