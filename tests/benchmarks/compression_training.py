"""A recipe trained by two ranks whose gradients travel by one scheme, from the same weights on the same samples."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from tests.training.fake_store import FakeStore
from workers.exchange_options import LocalStepsOptions
from workers.recipes import chargpt, digits
from workers.task import TrainingTask
from workers.training.exchange.gradients import GradientExchange
from workers.training.exchange.registry import SCHEMES, scheme_named
from workers.training.exchange.residual import Residual
from workers.training.exchange.schemes import Dense, InFlight, Scheme
from workers.training.outer import Outer
from workers.training.world import Seat, World

LOCAL = LocalStepsOptions()
WARM_UP = 0.05
NUM_EVALUATED = 256
JOIN_S = 1800.0

ALONE = "local_steps"
"""Steps of each rank's own, with the options that they have where none are given."""

VARIANTS: dict[str, Mapping[str, float]] = {
    "topk corrected": {"momentum": 0.9},
    "topk warmed up": {"warm_up": 100},
    "topk both": {"momentum": 0.9, "warm_up": 100},
}
"""Of ``topk``, with these options; SGD has no momentum where they have."""

CONTROL = "signs"
"""A scheme that must do worse, so that the measurement is seen to be able to tell."""

RECIPES: dict[str, tuple[Callable[[dict[str, Any]], TrainingTask], dict[str, Any]]] = {
    "digits": (digits.build, {}),
    "chargpt": (
        chargpt.build,
        {"dim": 64, "layers": 2, "heads": 2, "context": 64, "max_bytes": 400_000},
    ),
}
RATES = {("digits", "adamw"): 1e-3, ("digits", "sgd"): 0.05, ("chargpt", "adamw"): 3e-3, ("chargpt", "sgd"): 0.3}
BATCHES = {"digits": 64, "chargpt": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run but for its scheme; ``optimizer`` is ``adamw`` or ``sgd`` (with momentum 0.9)."""

    recipe: str
    optimizer: str
    steps: int
    seed: int
    num_ranks: int = 2


class Signs(Dense):
    """Of each bucket the signs times their mean size, and what is lost is lost."""

    name = CONTROL

    def start(self, number: int, flat: torch.Tensor, num_gradients: int, world: World) -> InFlight | None:
        gradients = flat[:num_gradients]
        gradients.copy_(gradients.sign() * gradients.abs().mean())
        return super().start(number, flat, num_gradients, world)


def schemes() -> list[str]:
    """All that are built but for the one to compare with, and the control."""
    return [*(name for name in SCHEMES if name != "none"), *VARIANTS, ALONE, CONTROL]


def train(setting: Setting, scheme: str) -> float:
    """The evaluation loss at the end, no number where training diverged. Raises what a rank raised."""
    store, ends = FakeStore(), [math.nan] * setting.num_ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            ends[rank] = _Rank(setting, scheme, rank, store).train()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(setting.num_ranks)]
    # One after the other: what builds a model draws from the process's generator.
    _seeded.acquire()
    for thread in threads:
        thread.start()
    _seeded.release()
    for thread in threads:
        thread.join(JOIN_S)
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"{scheme} has not ended after {JOIN_S:.0f} s")
    has_diverged = not any(map(math.isfinite, ends))
    assert has_diverged or len(set(ends)) == 1, f"replicas differ: {ends}"
    return ends[0]


_seeded = threading.Lock()


class _Rank:
    def __init__(self, setting: Setting, scheme: str, rank: int, store: FakeStore) -> None:
        build, config = RECIPES[setting.recipe]
        with _seeded:
            torch.manual_seed(setting.seed)
            self._task = build(config)
        self._setting, self._rank = setting, rank
        self._world = World(
            Seat(group="1/1", rank=rank, size=setting.num_ranks, backend="gloo", device=torch.device("cpu")), store
        )
        self._world.connect()
        self._residual = Residual()
        name = LOCAL.quantise if scheme == ALONE else scheme
        options = VARIANTS.get(name, {})
        self._scheme: Scheme = (
            Signs(self._residual)
            if name == CONTROL
            else scheme_named(name.partition(" ")[0], self._residual, tuple(options.items()))
        )
        self._optimizer = _optimizer(setting, self._task.model, 0.0 if "momentum" in options else 0.9)
        self._outer = Outer(self._task.model, self._optimizer) if scheme == ALONE else None
        self._exchange = GradientExchange([*self._task.model.named_parameters()], 0)
        self._exchange.join(self._world, self._scheme)

    def train(self) -> float:
        try:
            for step, indexes in enumerate(self._batches()):
                self._set_lr(step)
                if self._outer is None:
                    self._step(step, indexes)
                else:
                    self._step_alone(self._outer, step, indexes)
            return self._evaluated()
        finally:
            self._world.leave()

    def _batches(self) -> Iterator[Sequence[int]]:
        """This rank's part of each batch, as large as others'."""
        generator = torch.Generator().manual_seed(self._setting.seed)
        size, num = BATCHES[self._setting.recipe], len(self._task.train_data)
        for _ in range(self._setting.steps):
            batch = torch.randint(num, (size,), generator=generator).tolist()
            yield batch[self._rank :: self._setting.num_ranks]

    def _set_lr(self, step: int) -> None:
        setting = self._setting
        for group in self._optimizer.param_groups:
            group["lr"] = RATES[setting.recipe, setting.optimizer] * _share(step / setting.steps)

    def _step(self, step: int, indexes: Sequence[int]) -> None:
        self._scheme.begin(step)
        self._exchange.clear()
        loss = self._loss(indexes)
        self._exchange.arm(lambda: None, loss)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        self._sum_up()
        self._optimizer.step()
        self._commit()

    def _step_alone(self, outer: Outer, step: int, indexes: Sequence[int]) -> None:
        """One of a round's steps; with the last of them all step together."""
        if step % LOCAL.steps == 0:
            outer.begin(self._exchange.parameters)
        self._exchange.clear()
        self._loss(indexes).backward()  # type: ignore[no-untyped-call]  # torch's
        self._optimizer.step()
        if (step + 1) % LOCAL.steps == 0 or step + 1 == self._setting.steps:
            self._exchange.put(outer.differences())
            self._sum_up()
            outer.step(LOCAL.outer_lr, LOCAL.outer_momentum)
            self._commit()

    def _loss(self, indexes: Sequence[int]) -> torch.Tensor:
        loss = self._task.loss(self._task.model, default_collate([self._task.train_data[i] for i in indexes]))
        assert isinstance(loss, torch.Tensor)
        return loss

    def _sum_up(self) -> None:
        self._exchange.finish(lambda: None)
        self._exchange.scale(1.0 / self._setting.num_ranks)

    def _commit(self) -> None:
        outer = () if self._outer is None else (self._outer,)
        for staged in (self._residual, *self._scheme.staged, *outer):
            staged.commit()

    @torch.no_grad()
    def _evaluated(self) -> float:
        data = self._task.eval_data
        assert data is not None
        samples = [data[i] for i in range(min(NUM_EVALUATED, len(data)))]
        self._task.model.eval()
        loss = self._task.loss(self._task.model, default_collate(samples))
        assert isinstance(loss, torch.Tensor)
        return loss.item()


def _optimizer(setting: Setting, model: nn.Module, momentum: float) -> torch.optim.Optimizer:
    lr = RATES[setting.recipe, setting.optimizer]
    if setting.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return torch.optim.AdamW(model.parameters(), lr=lr)


def _share(progress: float) -> float:
    """Of the rate: warmed up, then a cosine to a tenth."""
    if progress < WARM_UP:
        return (progress + 1e-3) / WARM_UP
    done = (progress - WARM_UP) / (1.0 - WARM_UP)
    return 0.1 + 0.45 * (1.0 + math.cos(math.pi * done))
