"""The chargpt recipe: real text, every byte once, and a model that learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from workers.entrypoint import checked_task
from workers.recipes import chargpt
from workers.task import TrainingTask

SMALL: dict[str, Any] = {"dim": 32, "layers": 1, "heads": 2, "context": 16, "max_bytes": 20_000}


def batch_of(task: TrainingTask, indices: range) -> torch.Tensor:
    stacked: torch.Tensor = default_collate([task.train_data[i] for i in indices])
    return stacked


def test_it_learns_and_its_loss_is_a_mean_over_the_tokens() -> None:
    torch.manual_seed(0)
    task = checked_task(chargpt.build(SMALL), "workers.recipes.chargpt:build")
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-2)
    losses = []
    for step in range(40):
        loss = task.loss(task.model, batch_of(task, range(step * 16, step * 16 + 16)))
        assert isinstance(loss, torch.Tensor)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(5.55, abs=0.2)  # ln 256: nothing is known yet
    assert losses[-1] < 3.6
    assert task.weight is not None
    assert task.weight(batch_of(task, range(3))) == 3 * SMALL["context"]


def test_the_text_is_real_bounded_and_always_the_same() -> None:
    text = chargpt.gather_text(50_000)
    assert len(text) == 50_000
    assert b"def " in text
    assert text == chargpt.gather_text(50_000)
    assert text.startswith(chargpt.gather_text(1000))


def test_training_and_evaluation_predict_every_byte_once() -> None:
    task = chargpt.build(SMALL)
    assert task.eval_data is not None
    text = torch.tensor(list(chargpt.gather_text(SMALL["max_bytes"])))
    windows = {}
    for data in (task.train_data, task.eval_data):
        for i, number in enumerate(data.chosen):  # type: ignore[attr-defined]  # Windows
            assert number not in windows
            windows[number] = data[i]
    predicted = torch.cat([windows[number][1:] for number in sorted(windows)])
    assert torch.equal(predicted, text[1 : len(predicted) + 1])
    assert len(text) - len(predicted) <= SMALL["context"]
    assert len(task.eval_data) / len(windows) == pytest.approx(0.05, abs=0.01)


def test_a_byte_is_predicted_from_those_before_it_only() -> None:
    torch.manual_seed(0)
    model = chargpt.build(SMALL).model.eval()
    ids_BT = torch.randint(0, 256, (1, 16))
    changed_BT = ids_BT.clone()
    changed_BT[0, 10:] = 0
    with torch.no_grad():
        before, after = model(ids_BT), model(changed_BT)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_shares_the_embedding_where_tied(tied: bool) -> None:
    model = chargpt.build({**SMALL, "tied": tied}).model
    assert (model.head.weight is model.embed.weight) is tied
    assert {"head.weight", "embed.weight"} <= set(model.state_dict())


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"dims": 32}, "did you mean 'dim'"),
        ({"dim": 30, "heads": 4}, "config.dim=30 is not a multiple of heads=4"),
        ({"max_bytes": 100}, "config.max_bytes=100 is too little text .* at least 1281"),
        ({"tied": 1}, "config.tied=1 is a int; give a bool"),
    ],
)
def test_a_wrong_config_is_told(config: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        chargpt.build(config)


def test_the_least_text_holds_something_out() -> None:
    task = chargpt.build({"max_bytes": 1281, "dim": 8, "heads": 1, "layers": 1})
    assert task.eval_data is not None
    assert (len(task.train_data), len(task.eval_data)) == (19, 1)
