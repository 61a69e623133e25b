"""Which batches are copied to a device while it computes, and that all others arrive there as well."""

from __future__ import annotations

from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.loading import CPU, Numbers, feeding, wanted
from workers.training.batching import Batcher
from workers.training.loader_choice import THREAD
from workers.training.pinned import can_be_copied_ahead
from workers.training.reading import Reader


class Graph:
    """Moves itself, as batches of torch_geometric do."""

    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> Graph:
        return Graph(self.nodes.to(device, non_blocking=True))


def test_only_plain_tensors_are_copied_to_a_device_ahead() -> None:
    plain = {"x": [torch.ones(2), torch.ones(2, 3).T], "text": ("a", 1, None), "array": np.ones(2)}
    assert can_be_copied_ahead(plain)
    for odd in (Graph(torch.ones(2)), torch.eye(2).to_sparse()):
        assert not can_be_copied_ahead({**plain, "odd": [odd]})


class Copied:
    """Copies to a device that is this one."""

    def __init__(self) -> None:
        self.num = 0

    def begin(self, batch: torch.Tensor) -> torch.Tensor:
        self.num += 1
        return batch

    def finish(self, copy: torch.Tensor) -> torch.Tensor:
        return copy


def test_a_batch_that_is_on_its_way_to_the_device_waits_for_its_turn() -> None:
    first, second, copies, read = wanted(1), wanted(2, round=1), Copied(), []

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        read.append(int(samples[0][0]))
        return torch.stack(samples)

    with feeding(Numbers(), THREAD, collate) as feed:
        feed._copies = copies  # type: ignore[assignment]
        feed.begin(iter([first, second]))
        wait(list(feed._pending.values()))
        feed.take(first, lambda: None)
        assert copies.num == 1
        feed.begin(iter([first, second]))  # as where the round is drawn again
        assert [int(feed.take(one, lambda: None)[0, 0]) for one in (first, second)] == [1, 2]
    assert copies.num == 1
    assert read == [1, 2, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("kind", ["graph", "sparse"])
def test_on_a_gpu_batches_of_another_kind_are_what_they_are_inline(kind: str) -> None:
    device = torch.device("cuda", 0)

    def collate(samples: list[torch.Tensor]) -> Any:
        values = torch.stack(samples)
        return Graph(values) if kind == "graph" else values.to_sparse()

    rounds = [wanted(*range(10, 40), round=n) for n in range(8)]
    expected = Reader(Batcher(Numbers(), None, CPU), seed=3).read(rounds[0])
    with feeding(Numbers(), THREAD, collate, device) as feed:
        for number, one in enumerate(rounds):
            feed.begin(iter(rounds[number:]))
            wait(list(feed._pending.values()))
            batch = feed.take(one, lambda: None)
            assert feed._copy is None
            found = batch.nodes if isinstance(batch, Graph) else batch.to_dense()
            assert found.is_cuda
            assert torch.equal(found.cpu(), expected)
        assert feed.changes() == ()
