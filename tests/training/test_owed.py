"""Error feedback through the life of a job: nothing that compression left out is lost, and nothing is added twice."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import reference
from tests.training.linear_job import LR, SHAPES, Job, mean
from tests.training.rank import await_true
from workers.checkpoints import read_manifest
from workers.plan import Cause, Exchange, TimelineKind
from workers.racks import Topology
from workers.run_settings import Donor
from workers.status import Phase
from workers.storage_urls import join, open_storage
from workers.training import owed, replicas, round
from workers.training.exchange import buckets
from workers.training.exchange.compressed import Compressed
from workers.training.exchange.schemes import InFlight
from workers.training.loading import load_checkpoint, load_weights
from workers.training.owed import Owed
from workers.training.trainer import Trainer
from workers.training.world import Transfer, World, WorldError

CLOSE = 5e-3  # of sums of about 1 that were handed over a few times, rounded to a 254th of their block's largest
TOPK = Exchange(scheme="topk", options=(("fraction", 0.02), ("quantise", "int8")))
EXCHANGES = (
    TOPK,
    TOPK,
    Exchange(scheme="int4"),
    Exchange(scheme="powersgd", options=(("rank", 1),)),
    Exchange(scheme="int8"),
    Exchange(scheme="none", options=(("across", "int4"),)),
    Exchange(),
)
SMALLER = (("bucket_mib", 1),)
ALONE, ALONE_ROUGHLY = (
    Exchange(
        scheme="local_steps",
        options=(("outer_lr", 1.0), ("outer_momentum", 0.0), ("quantise", quantise), ("steps", 1)),
    )
    for quantise in ("none", "int4")
)
ASKED = Cause(kind=TimelineKind.CHECKPOINT, actor="user", reason="asked for")


def assert_nothing_lost(job: Job) -> None:
    for info in job.stored():
        for name, difference in job.lacks(info).items():
            assert difference.abs().max() < CLOSE, (info.path, info.reason, name)


@pytest.fixture(autouse=True)
def _two_buckets_or_three_and_two_racks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MIB", 60)

    def survey(world: World, labels: Sequence[str]) -> Topology:
        return Topology(racks=tuple(2 * rank // world.size for rank in range(world.size)))

    monkeypatch.setattr(round, "survey", survey)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_all_gradients_are_applied_or_still_owed(seed: int) -> None:
    draw, job = random.Random(seed), Job(40)
    with job.group as group:
        job.begin(draw.randint(1, 3), TOPK)
        for _ in range(7):
            job.go_on(draw.randint(1, 2))
            chosen = draw.choice(EXCHANGES)
            exchange = replace(chosen, options=(*draw.choice(((), SMALLER)), *chosen.options))
            match draw.choice(("leave", "leave", "come and go", "scheme", "save", "restore", "go back")):
                case "leave":
                    job.resize(draw.sample(job.workers, draw.randint(1, len(job.workers))), exchange)
                case "come and go":
                    staying = draw.sample(job.workers, draw.randint(1, min(3, len(job.workers))))
                    members = [*staying, *group.start(1)]
                    draw.shuffle(members)
                    job.resize(members, exchange, saves=group.plan.saves + draw.randint(0, 1) if group.plan else 0)
                case "scheme":
                    job.within(exchange=exchange)
                case "save":
                    job.within(saves=group.plan.saves + 1 if group.plan else 1, cause=ASKED)
                case "restore":
                    job.restore(job.save_and_stop(), draw.randint(1, 3), exchange)
                case "go back":
                    job.save_and_stop()
                    job.restore(draw.choice(job.stored()), draw.randint(1, 3), exchange)
        job.finish()
        assert job.stored()[-1].is_final
        assert_nothing_lost(job)


@pytest.mark.parametrize(("place", "what"), [(Owed, "total"), (replicas, "look")])
def test_the_wait_for_what_others_left_out_and_the_comparing_of_states_count_as_held(
    place: object, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, clock, passed_s = getattr(place, what), time.perf_counter, [0.0]

    def slow(*given: Any, **more: Any) -> Any:
        passed_s[0] += 1000.0
        return real(*given, **more)

    monkeypatch.setattr(place, what, slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + passed_s[0])
    job = Job(4, checkpoint={"every_steps": 3})
    with job.group:
        job.begin(2, TOPK)
        job.go_on(3)
        await_true(lambda: len(job.stored()) == 1, "the checkpoint")  # or the last might overtake it
        assert job.stored()[0].held_s > 1000.0
        job.finish()
        assert job.stored()[1].held_s < 1000.0


def test_a_newcomer_knows_what_others_keep_before_its_first_round() -> None:
    job = Job(8)
    with job.group as group:
        job.begin(2, TOPK)
        job.go_on(2)
        job.resize([*group.start(1), *job.workers], TOPK, saves=1, cause=ASKED)
        job.finish()
        assert [(info.round, info.reason) for info in job.stored()][:1] == [(3, "asked for")]
        assert_nothing_lost(job)


def test_saving_changes_nothing_of_a_training() -> None:
    def trained(**spec: Any) -> dict[str, torch.Tensor]:
        job = Job(10, **spec)
        with job.group:
            job.begin(2, TOPK)
            job.finish()
        return job.models[0].state_dict()

    saved, unsaved = trained(checkpoint={"every_steps": 1}), trained(checkpoint={"every_steps": 100})
    assert all(torch.equal(saved[name], unsaved[name]) for name in SHAPES)


@pytest.mark.parametrize("exchange", [Exchange(), Exchange(scheme="bf16")], ids=lambda exchange: exchange.scheme)
def test_where_nothing_is_kept_nothing_is_summed_or_written(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> object:
        raise AssertionError("summed for nobody")

    monkeypatch.setattr(owed, "grouped", refuse)
    job = Job(8, checkpoint={"every_steps": 1})
    with job.group as group:
        job.begin(3, exchange)
        job.go_on(2)
        job.resize([*job.workers[1:], *group.start(1)], exchange)
        job.go_on(2)
        last = job.save_and_stop()
        manifest = read_manifest(open_storage(group.checkpoints), last.path)
        assert manifest is not None
        assert manifest.residual == {}
        text = (group.root / "checkpoints" / "manifests" / f"{last.path}.json").read_text()
        assert "residual" not in text
        job.restore(last, 2, exchange)
        job.finish()


def test_a_bucket_that_was_summed_holds_no_memory_for_it_when_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, held = defaultdict[int, list[weakref.ref[object]]](list), list[int]()

    class Watched(Compressed):
        def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
            transfer = super().start(number, flat, num_gradients, world)
            under_way[threading.get_ident()] += [weakref.ref(self), weakref.ref(transfer)]
            return transfer

    def in_turn(parameters: Sequence[nn.Parameter]) -> Iterator[list[int]]:
        for indexes in buckets.grouped(parameters):
            held.append(sum(one() is not None for one in under_way[threading.get_ident()]))
            yield indexes

    monkeypatch.setattr(owed, "Compressed", Watched)
    monkeypatch.setattr(owed, "grouped", in_turn)
    monkeypatch.setattr(buckets, "MIB", 0)
    job = Job(6, checkpoint={"every_steps": 3})
    with job.group:
        job.begin(3, TOPK)
        job.finish()
        assert_nothing_lost(job)
    assert set(map(len, under_way.values())) == {2 * 2 * len(SHAPES)}  # for the checkpoint, and at the end
    assert held == [0] * 3 * 2 * len(SHAPES)


class Breaking:
    """The group of this worker breaks in the second bucket of what it brings; what it kept then is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.worker_id, self.kept, self.has_broken = "", dict[str, torch.Tensor](), False
        unbroken = getattr(Owed, method)

        def call(owed: Owed, *arguments: Any) -> Any:
            if owed._mailbox.worker_id == self.worker_id:
                self.worker_id = ""
                self._break(owed)
            return unbroken(owed, *arguments)

        monkeypatch.setattr(Owed, method, call)

    def _break(self, owed: Owed) -> None:
        residual, world = owed._state.residual, owed._world
        self.kept = {name: part.cpu() for name in SHAPES if (part := residual.part(name)) is not None}
        method = "all_gather" if world.size == 2 else "all_to_all"
        unbroken, begun = getattr(world, method), list[torch.Tensor]()

        def once(output: torch.Tensor, tensor: torch.Tensor) -> Transfer:
            if begun:
                self.has_broken = True
                world.destroy()
            begun.append(tensor)
            transfer: Transfer = unbroken(output, tensor)
            return transfer

        setattr(world, method, once)  # of this world alone


@pytest.mark.parametrize("leaver", [0, 2])
def test_where_the_hand_over_breaks_only_what_was_to_be_handed_over_is_lost(
    leaver: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, job = Breaking(monkeypatch, "hand_over"), Job(14)
    with job.group as group:
        job.begin(3, TOPK)
        job.go_on(4)
        everybody = job.workers
        broken.worker_id = everybody[leaver]
        job.resize([worker_id for worker_id in everybody if worker_id != everybody[leaver]], TOPK)
        job.gate.open()
        group.await_all(lambda s: s.phase is Phase.STOPPED, [everybody[leaver]])
        group.halt(everybody)
        group.train(everybody, exchange=TOPK)  # the one that should have left too: it must not pay once more
        group.await_done(everybody)
        [final] = job.stored()
        assert broken.has_broken
        assert broken.kept.keys() == SHAPES.keys()
        for name, difference in job.lacks(final).items():
            torch.testing.assert_close(difference, LR * broken.kept[name], atol=CLOSE, rtol=0.0)


def test_where_a_group_breaks_over_a_checkpoint_it_is_saved_all_the_same_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, job = Breaking(monkeypatch, "total"), Job(12, checkpoint={"every_steps": 5})
    with job.group as group:
        job.begin(2, TOPK)
        broken.worker_id = job.workers[1]
        job.gate.open()
        group.await_break(job.workers)
        await_true(lambda: [info.round for info in job.stored()] == [5], "the checkpoint")
        group.train(job.workers, exchange=TOPK)
        group.await_done(job.workers)
        first, *others = job.stored()
        for name, difference in job.lacks(first).items():
            torch.testing.assert_close(difference, LR * broken.kept[name], atol=CLOSE, rtol=0.0)
        for info in others:
            assert max(difference.abs().max() for difference in job.lacks(info).values()) < CLOSE


def test_who_takes_over_the_state_of_another_job_takes_its_debts_and_forgets_its_own() -> None:
    giver, taker = Job(8), Job(12)
    with giver.group as donor, taker.group:
        giver.begin(2, TOPK)
        giver.go_on(3)
        asked = giver.save_and_stop()
        taker.begin(2, TOPK)
        taker.go_on(6)
        state = Donor(job_id="other", path=asked.path, cursor=asked.cursor, url=donor.checkpoints)
        taker.resize(taker.workers, TOPK, source=state, lineage=2)
        taker.finish()
        assert [info.round for info in taker.stored()] == [4, 12]
        assert_nothing_lost(taker)


@pytest.mark.parametrize("what", ["all", "weights"])
def test_a_job_that_begins_with_another_ones_weights_alone_begins_without_debts(what: str) -> None:
    giver = Job(8)
    with giver.group as donor:
        giver.begin(2, TOPK)
        giver.go_on(3)
        saved = giver.save_and_stop()
        place = join(donor.checkpoints, saved.path)
        taker = Job(9, init_from={"job": "job_other", "step": saved.step, "state": what})
        with taker.group as group:
            group.init_from = place
            taker.begin(2, TOPK)
            taker.finish()
            [final] = taker.stored()
            lacks = taker.lacks(final, load_weights(place) if what == "weights" else None)
    assert max(difference.abs().max() for difference in lacks.values()) < CLOSE


def freezing(trains: Callable[[int], bool]) -> Callable[[nn.Module, list[torch.Tensor]], torch.Tensor]:
    """A loss that tells by the number of a model's call whether a part of it trains."""
    num_calls = defaultdict[int, int](int)

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        num_calls[id(model)] += 1
        model.get_parameter("square").requires_grad_(trains(num_calls[id(model)]))
        return mean(model, batch)

    return loss


def test_what_is_frozen_where_buckets_change_goes_on_being_exchanged() -> None:
    """Code may freeze by turns, as of two nets that train against each other."""
    job = Job(14, freezing(lambda n: n % 2 == 1), precision="fp32")
    with job.group:
        job.begin(2, EXCHANGES[2])
        job.go_on(5)
        job.within(exchange=replace(EXCHANGES[2], options=SMALLER))
        job.finish()
    assert reference.distance(job.models[0], job.models[1]) == 0.0


def test_a_newcomer_travels_in_the_buckets_of_those_that_have_frozen_some() -> None:
    job, smaller = Job(14, freezing(lambda n: n < 3)), replace(EXCHANGES[2], options=SMALLER)
    with job.group as group:
        job.begin(2, EXCHANGES[2])
        job.go_on(5)
        job.within(exchange=smaller)
        job.go_on(3)
        job.resize([*job.workers, *group.start(1)], smaller)
        job.finish()
    assert reference.distance(job.models[0], job.models[1]) == 0.0


@pytest.mark.parametrize(
    ("before", "after"), [(TOPK, ALONE), (ALONE_ROUGHLY, TOPK)], ids=["to changes", "to gradients"]
)
def test_what_was_left_out_of_changes_is_not_added_to_gradients_nor_the_other_way_round(
    before: Exchange, after: Exchange
) -> None:
    job = Job(10)
    with job.group:
        job.begin(2, before)
        job.go_on(4)
        saved = job.save_and_stop()
        dropped = load_checkpoint(join(job.group.checkpoints, saved.path)).residual
        begun = job.lacks(saved)
        job.restore(saved, 2, after)
        job.finish()
        lacks = job.lacks(job.stored()[-1])
    assert dropped.keys() == SHAPES.keys()
    for name, values in dropped.items():
        torch.testing.assert_close(lacks[name], begun[name] + LR * values, atol=CLOSE, rtol=0.0)


def test_a_wish_that_one_member_has_not_met_is_met_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    unbroken, calls = Trainer._save, list[str]()

    def save(trainer: Trainer, *arguments: Any, **more: Any) -> None:
        calls.append(trainer._mailbox.worker_id)
        if len(calls) == 1:
            raise WorldError("broken once all was summed")
        unbroken(trainer, *arguments, **more)

    monkeypatch.setattr(Trainer, "_save", save)
    job = Job(10)
    with job.group as group:
        job.begin(2, TOPK)
        job.go_on(3)
        job.within(saves=1, cause=ASKED)
        job.gate.open()
        group.await_break(job.workers)
        group.train(job.workers, exchange=TOPK, saves=1, cause=ASKED)
        job.finish()
        assert next(info.reason for info in job.stored()) == ASKED.reason
        assert_nothing_lost(job)
