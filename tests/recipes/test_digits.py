"""The digits recipe: the data is whole, and a plain loop reaches 97 %."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from workers.entrypoint import checked_task
from workers.lr import LrPlan
from workers.recipes import digits
from workers.task import TrainingTask

STEPS, BATCH = 500, 128


def trained(task: TrainingTask, steps: int) -> float:
    """Train by hand, as the README's first job would be; gives the accuracy on the evaluation data."""
    images_NP, labels_N = task.train_data.tensors  # type: ignore[attr-defined]  # a TensorDataset
    optimizer = torch.optim.AdamW(task.model.parameters())
    plan = LrPlan(lr=1e-3, base_batch=BATCH)
    orders = [torch.randperm(len(labels_N)) for _ in range(steps * BATCH // len(labels_N) + 1)]
    for cursor, chosen_B in enumerate(torch.cat(orders)[: steps * BATCH].split(BATCH)):
        for group in optimizer.param_groups:
            group["lr"] = plan.at(cursor * BATCH, steps * BATCH, BATCH)
        optimizer.zero_grad()
        loss = task.loss(task.model, [images_NP[chosen_B], labels_N[chosen_B]])
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimizer.step()
    task.model.eval()
    assert task.evaluate is not None
    return float(task.evaluate(task.model, list(task.eval_data.tensors))["accuracy"])  # type: ignore[union-attr]  # same


def test_the_defaults_reach_97_percent() -> None:
    torch.manual_seed(0)
    assert trained(digits.build({}), STEPS) >= 0.97


def test_the_cnn_learns_too() -> None:
    torch.manual_seed(0)
    assert trained(digits.build({"model": "cnn", "channels": 8, "hidden": 64}), 150) >= 0.85


def test_no_image_is_in_both_parts_and_every_digit_has_its_share() -> None:
    train, held_out = digits.load_split()
    assert (len(train), len(held_out)) == (1437, 360)
    counts = Counter(held_out.tensors[1].tolist())
    assert set(counts) == set(range(10))
    assert max(counts.values()) - min(counts.values()) <= 2
    again = digits.load_split()[1]
    assert torch.equal(again.tensors[0], held_out.tensors[0])


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"hiden": 3}, "unknown config key 'hiden'; did you mean 'hidden'"),
        ({"zzz": 3}, "unknown config key 'zzz'; known: channels, dropout, hidden, layers, model"),
        ({"model": "rnn"}, "config.model='rnn' is not known; give 'mlp' or 'cnn'"),
        ({"hidden": "128"}, "config.hidden='128' is a str; give a int"),
        ({"hidden": True}, "config.hidden=True is a bool"),
        ({"hidden": 0}, "config.hidden=0 is outside 1 to 65536"),
        ({"dropout": 1}, "config.dropout=1 is outside 0.0 to 0.95"),
    ],
)
def test_a_wrong_config_is_told(config: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        digits.build(config)


def test_it_is_an_ordinary_entrypoint() -> None:
    assert checked_task(digits.build({"hidden": 8, "layers": 1}), "workers.recipes.digits:build")
