"""What a rank keeps of its gradients: where it lies, in which units, whether anybody has any, and who takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.training.group import Group
from tests.training.tasks import Script, mlp
from workers.plan import Goal, MemberSource, Switch
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.residual import Residual
from workers.training.owed import handed_over
from workers.training.staging import Staging, forms
from workers.training.state import TrainingState


def test_what_rides_behind_the_gradients_moves_none_of_them() -> None:
    def places(num_extra: int, dtype: torch.dtype) -> object:
        named = [(str(number), nn.Parameter(torch.zeros(2**20, dtype=dtype))) for number in range(3)]
        return GradientExchange(named, num_extra).places[:3]

    for dtype in (torch.float32, torch.bfloat16):  # the tail in the last bucket, or in one of its own
        assert places(0, dtype) == places(1000, dtype)


def test_what_is_kept_goes_along_by_parameter_in_the_units_that_it_has() -> None:
    a, b, c, residual = torch.Size((2,)), torch.Size((3,)), torch.Size((2, 2)), Residual()
    residual.lay_out([{"a": a, "b": b}, {"c": c}])
    residual.begin(8.0)
    residual.place(0, torch.zeros(4, 2)).view(-1)[:5] = torch.arange(1.0, 6.0)  # and padding
    residual.came_to(0.5)
    residual.commit()
    residual.lay_out([{"c": c}, {"d": torch.Size((1,)), "b": b}])
    residual.begin(4.0)
    without, values = torch.ones(4), torch.ones(4)
    residual.add_to(0, without)
    residual.add_to(1, values)
    assert without.tolist() == [1.0] * 4
    assert values.tolist() == [1.0, 7.0, 9.0, 11.0]  # 3, 4 and 5 of twice the mean gradient, in those of four times


def test_memory_for_a_checkpoint_of_it_is_made_ahead() -> None:
    model = mlp()
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.1)
    assert not any("residual" in place for place in state.forms())
    state.residual.load({name: p.detach() for name, p in model.named_parameters()}, is_owed=True)
    snapshot = state.snapshot(Staging())
    assert snapshot.residual.keys() == dict(model.named_parameters()).keys()
    assert forms({"residual": snapshot.residual}).items() <= state.forms().items()


def test_what_is_owed_is_paid_by_a_commit_that_leaves_nothing_out() -> None:
    residual = Residual()
    residual.place(0, torch.zeros(3))
    residual.rollback()
    assert not residual.is_owed
    residual.load({}, is_owed=True)  # by another rank
    residual.rollback()
    assert residual.is_owed
    residual.place(0, torch.zeros(3))
    residual.commit()
    assert residual.is_owed
    residual.stage_nothing(0)
    residual.commit()
    assert not residual.is_owed


@pytest.mark.parametrize(
    ("before", "after", "changes", "given"),
    [
        ("abc", "bc", {}, ({0}, 1)),
        ("abc", "c", {}, ({0, 1}, 2)),
        ("abc", "ca", {}, ({1}, 0)),
        ("abc", "cdab", {}, (set(), 0)),
        ("abc", "de", {}, ({0, 1, 2}, None)),
        ("abc", "bc", {"lineage": 2}, (set(), None)),
        ("abc", "abc", {"goal": Goal.SAVE_AND_STOP}, ({1, 2}, 0)),
        ("abc", "ba", {"goal": Goal.SAVE_AND_STOP}, ({0, 2}, 1)),
        ("a", "b", {"goal": Goal.SAVE_AND_STOP}, (set(), None)),
    ],
)
def test_leavers_give_to_the_first_that_stays_and_all_to_the_one_that_saves(
    before: str, after: str, changes: dict[str, Any], given: tuple[set[int], int | None]
) -> None:
    with Group(Script()) as group:
        values = {"switch": Switch.AGREED, "source": MemberSource("a", 3)}
        group.plan = group.make_plan(before, **values)
        assert handed_over(group.plan, group.make_plan(after, **values, **changes)) == given
