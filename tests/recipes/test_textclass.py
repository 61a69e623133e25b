"""The textclass recipe: real texts of log-normal lengths, and a model that learns and does not see the padding."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.group import Group
from tests.training.tasks import Script
from workers.entrypoint import checked_task
from workers.recipes import textclass
from workers.recipes.layouts import Packed
from workers.recipes.textclass import PACKAGES
from workers.task import TrainingTask
from workers.training.batching import to_device

SMALL: dict[str, Any] = {"dim": 32, "max_words": 128}


def small_task(**config: Any) -> TrainingTask:
    return checked_task(textclass.build(SMALL | config), "workers.recipes.textclass:build")


@pytest.mark.parametrize("packed", [False, True])
def test_two_workers_learn_it_by_length_far_above_the_largest_package(packed: bool) -> None:
    torch.manual_seed(0)
    batch = {"global_size": 64, "max_tokens": 4096}
    task = partial(small_task, packed=packed)
    with Group(Script(task=task), steps=80, batch=batch, optimizer={"lr": 0.01, "base_batch": 64}) as group:
        workers = group.start(2)
        group.train(workers)
        group.await_done(workers)
        first, *_, last = (record for _, record in sorted(group.records.items()))
    packages = Counter(package for _, package in small_task().train_data)  # type: ignore[attr-defined]  # a list
    assert max(packages.values()) / packages.total() < 0.3
    assert last.values["eval.accuracy"] > 0.5
    assert first.values["useful_tokens"] > 0.9  # later rounds may be cut into fewer passes, as their clock says


def test_there_are_real_texts_of_every_package_and_their_lengths_are_about_log_normal() -> None:
    texts = textclass.load_functions()
    assert len(texts) > 2000
    assert all(text.startswith(("def ", "async def ")) for text, _ in texts)
    assert set(Counter(package for _, package in texts)) == set(range(len(PACKAGES)))
    logs = np.log([len(textclass.WORD.findall(text)) for text, _ in texts])
    assert 0.7 < logs.std() < 1.2
    assert abs(np.mean(((logs - logs.mean()) / logs.std()) ** 3)) < 0.7  # of lengths themselves it is 4.5


def test_no_text_is_in_both_parts_and_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    task = small_task()
    assert task.eval_data is not None
    assert len(task.train_data) + len(task.eval_data) == len(textclass.load_functions())
    samples = [task.train_data[n] for n in range(len(task.train_data))]
    short, long = min(samples, key=textclass.num_words), max(samples, key=textclass.num_words)
    alone, together = task.model(*textclass.pad([short])[:2]), task.model(*textclass.pad([short, long])[:2])
    assert 2 * textclass.num_words(short) < textclass.num_words(long)
    torch.testing.assert_close(together[:1], alone, rtol=1e-5, atol=1e-6)


ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]


@pytest.mark.parametrize(
    ("attend", "device"),
    [
        (Packed.attend_each, "cpu"),
        (Packed.attend_jagged, "cpu"),
        pytest.param(Packed.attend, "cuda", marks=ON_GPU),
    ],
)
def test_packed_texts_do_not_see_each_other_and_come_to_what_padded_ones_do(
    attend: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    task, on = small_task(layers=2), torch.device(device)
    samples = [task.train_data[n] for n in range(12)]
    parameters = list(task.model.to(on).parameters())
    padded = task.model(*to_device(textclass.pad(samples)[:2], on))
    expected = torch.autograd.grad(padded.square().mean(), parameters)
    monkeypatch.setattr(Packed, "attend", attend)
    packed = task.model(*to_device(textclass.pack(samples)[:2], on))
    torch.testing.assert_close(packed, padded, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(torch.autograd.grad(packed.square().mean(), parameters), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"dims": 3}, "unknown config key 'dims'; did you mean 'dim'"),
        ({"dim": 10, "heads": 4}, "config.dim=10 is not a multiple of heads=4"),
        ({"max_words": 0}, "config.max_words=0 is outside 1 to 65536"),
    ],
)
def test_a_wrong_config_is_told(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        textclass.build(config)
