"""The state of a training: what a commit changes, as values that can be saved, and what rounds stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn

from workers.checkpoints import checkpoint_name
from workers.errors import CheckpointError, UserCodeError
from workers.training.batching import seed_all
from workers.training.buffers import BufferState
from workers.training.exchange.reals import as_real
from workers.training.exchange.residual import Residual
from workers.training.moments import follow_batch
from workers.training.noise import NoiseScale
from workers.training.outer import Outer
from workers.training.pairs import has_batch_norm
from workers.training.precision.scaler import LossScaler
from workers.training.staging import Form, Place, Staging, forms

OUTER = "concertina.outer"
"""Beside an optimizer's own keys in a snapshot: the momentum of who steps for all, by parameter."""

BATCH = "concertina.batch"
"""Likewise: the global batch that its averages are of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """A copy of everything that one commit left, on the CPU, in the memory of a ``Staging``.

    ``model`` is the model's ``state_dict`` (tensors only; tied parameters may share a copy), ``optimizer``
    the optimizer's ``state_dict``, with ``OUTER`` where an outer optimizer has momentum and ``BATCH`` once it has
    stepped, ``scaler`` the loss scaler's or None, ``noise`` the gradient noise's or None. ``residual`` is what all
    ranks together left out of gradients, by parameter in units of the mean gradient. ``round`` counts commits,
    ``cursor`` the samples that count, and ``surplus`` those that were drawn besides. ``frozen`` are names in ``model``
    that training is not expected to change.
    """

    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, float] | None
    round: int
    cursor: int
    surplus: float = 0.0
    frozen: frozenset[str] = frozenset()
    noise: dict[str, float] | None = None
    residual: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedState:
    """A checkpoint read back, on the CPU; the fields mean what they mean in ``StateSnapshot``.

    ``outer`` is the outer optimizer's momentum, by parameter, ``batch`` the global batch that the optimizer's averages
    are of. ``is_of_changes``: what was left out (``residual``) was
    left out of what local steps changed, not of gradients.
    """

    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, float] | None
    round: int
    cursor: int
    surplus: float = 0.0
    noise: dict[str, float] | None = None
    residual: Mapping[str, torch.Tensor] = field(default_factory=dict)
    outer: Mapping[str, torch.Tensor] = field(default_factory=dict)
    batch: int | None = None
    is_of_changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """What a checkpoint says of itself besides the state.

    ``step`` is progress in optimizer steps at ``batch.global_size``; ``metric`` the value of
    ``checkpoint.metric`` of this very state, or None. ``held_s`` is how long training waited for what
    all ranks had left out and for the staged copy, ``reason`` why it is saved; ``settings`` and ``saves``
    are the plan's. ``plan_sections`` holds JSON values of the plan in force, for whoever reads it later.
    """

    attempt: int
    lineage: int
    round: int
    generation: int
    step: int
    cursor: int
    metric: float | None
    is_final: bool
    held_s: float = 0.0
    reason: str = ""
    settings: int = 0
    saves: int = 0
    plan_sections: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the checkpoint is called in storage."""
        return checkpoint_name(self.attempt, self.lineage, self.round, self.generation)


class StepState(Protocol):
    """Something that a round changes besides parameters. What it stages counts only after the commit.

    Each implementer has a ``stage`` of its own, called at most once between two commits or rollbacks.
    Without anything staged both do nothing; after either nothing is staged.
    """

    def commit(self) -> None:
        """Make what was staged the state."""

    def rollback(self) -> None:
        """Forget what was staged, and undo what the user's code changed in passing."""


class TrainingState:
    """What one worker holds of a training: model, optimizer, loss scaler, buffers, and how far it has come.

    ``round`` counts commits and ``cursor`` samples in ``lineage`` (None until it was synced): those drawn, or, where a
    large batch is worth less than its samples (``adascale``), as many as it is worth; ``surplus`` are the others.
    ``num_redraws`` counts exchanges since the last commit that were drawn again; ``num_skipped``
    the rounds on end that updated nothing. ``is_eval_due``: the last commit is to be evaluated.
    ``units_per_sample`` is what the last round's weights came to.
    ``user_names`` and ``metric`` are the last known names of the loss's values, and the last metric; ``num_asked`` is
    the last ``Plan.saves`` that was met, ``stands_at`` the ``Plan.until`` that the last commit crossed.
    ``batch`` is the global batch of the last step, None where each rank took one of its own.
    ``trained`` are the parameters, by name, whose gradients travelled at first; code may freeze some later, but train
    none of the others. ``needs_pairs``: a pass of a single sample cannot be trained on.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, base_lr: float) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scaler: LossScaler | None = None
        self.buffers = BufferState(model)
        self.needs_pairs = has_batch_norm(model)
        self.noise = NoiseScale()
        self.residual = Residual()
        self.outer = Outer(model, optimizer)
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._others = {name: p for name, p in model.named_parameters() if name not in self.trained}
        self.lineage: int | None = None
        self.generation = 0
        self.round = 0
        self.cursor = 0
        self.surplus = 0.0
        self.num_redraws = 0
        self.num_skipped = 0
        self.units_per_sample = 1.0
        self.is_eval_due = False
        self.batch: int | None = None
        self.user_names: tuple[str, ...] | None = None
        self.metric: float | None = None
        self.num_asked = 0
        self.stands_at: int | None = None
        self._lr_ratios = [float(group["lr"]) / base_lr for group in optimizer.param_groups]

    def staged(self) -> list[StepState]:
        """All that stages: commit or roll back all of it."""
        return [self.buffers, self.noise, self.residual, self.outer, *([] if self.scaler is None else [self.scaler])]

    @property
    def mixes_samples(self) -> bool:
        """Whether batch normalisation, or what else writes to buffers, makes two passes another step than one."""
        return bool(self.buffers.tracked) or self.needs_pairs

    @property
    def num_drawn(self) -> int:
        """Samples drawn so far: where the next batch begins in their order."""
        return self.cursor + math.ceil(self.surplus)

    def advance(self, drawn: int, counted: float) -> None:
        """A round drew so many samples, of which ``counted`` count; at most all of them."""
        num_drawn = self.num_drawn + drawn
        self.surplus += drawn - counted
        self.cursor = num_drawn - math.ceil(self.surplus)

    def step(self, lr: float, seed: int, offset: int = 0, common: tuple[int, float | None] | None = None) -> None:
        """Let the optimizer step, with numbers for it that all ranks draw alike, whatever they computed.

        ``common`` are the global batch and the noise scale that all go by, the latter None while it is unknown, where
        the step is not by a batch of this rank's own.
        None of torch's own draws any, and seeding for nothing would take its time. Batches of a round differ by their
        ``offset``. Raises whatever the optimizer raises.
        """
        self.set_lr(lr)
        batch, noise_scale = common or (None, None)
        if self.batch is not None and batch is not None:
            follow_batch(self.optimizer, noise_scale, self.batch, batch)
        self.batch = batch
        if not type(self.optimizer).__module__.startswith("torch.optim"):
            seed_all(seed, self.round, offset, _UPDATING)
        self.optimizer.step()

    def set_lr(self, lr: float) -> None:
        """Set every group's learning rate, in the ratio to the base that the user's optimizer gave it."""
        for group, ratio in zip(self.optimizer.param_groups, self._lr_ratios, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr * ratio)
            else:
                group["lr"] = lr * ratio

    def check_others(self) -> None:
        """Raises UserCodeError where a gradient came to a parameter that is not trained."""
        name = next((name for name, parameter in self._others.items() if parameter.grad is not None), None)
        if name is not None:
            raise UserCodeError(
                f"a gradient came to the parameter {name!r}, which is not trained: it required none when the "
                "entrypoint returned; let it require gradients there, and freeze it in the loss until it is to be "
                "trained"
            )

    def snapshot(self, staging: Staging, left_out: Mapping[str, torch.Tensor] | None = None) -> StateSnapshot:
        """A copy in ``staging`` of what the last commit left; call it between rounds.

        ``left_out`` is what it is to have as ``residual``; None: what this rank keeps by itself.
        """
        copy = staging.copy(self._content(self._own_residual() if left_out is None else left_out))
        return StateSnapshot(
            model=copy["model"],
            optimizer=copy["optimizer"],
            scaler=self.scaler.state() if self.scaler else None,
            round=self.round,
            cursor=self.cursor,
            surplus=self.surplus,
            frozen=frozenset(name for name, p in self.model.named_parameters() if not p.requires_grad),
            noise=self.noise.state(),
            residual=copy["residual"],
        )

    def forms(self) -> dict[Place, Form]:
        """What memory a snapshot takes; an optimizer has its state after the first step."""
        owed = {name: as_real(p.detach()).float() for name, p in self.trained.items()} if self.residual.is_owed else {}
        return forms(self._content(owed))

    def _content(self, left_out: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        outer = {OUTER: momentum} if (momentum := self.outer.momentum()) else {}
        batch = {} if self.batch is None else {BATCH: self.batch}
        optimizer = {**self.optimizer.state_dict(), **outer, **batch}
        return {"model": self.model.state_dict(), "optimizer": optimizer, "residual": left_out}

    def _own_residual(self) -> dict[str, torch.Tensor]:
        return {name: part for name in self.trained if (part := self.residual.part(name)) is not None}

    def restore(self, loaded: LoadedState) -> None:
        """Take all of a checkpoint. Raises CheckpointError where it does not fit; then all is as it was.

        What was left out of gradients is one rank's to add: whoever adopts this state does not get it.
        The names and shapes of its weights must have been found to fit.
        """
        self._load_optimizer(loaded.optimizer)
        self.load_weights(loaded.model)
        self._load_scaler(loaded.scaler)
        self.noise.load(loaded.noise)
        self._load_residual(loaded.residual)
        self.outer.load(loaded.outer)
        self.round, self.cursor, self.surplus = loaded.round, loaded.cursor, loaded.surplus
        self.batch = loaded.batch

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take the parameters and buffers only; their names and shapes must have been found to fit."""
        self.model.load_state_dict(weights, strict=False)
        self.buffers.anchor()

    def export(self) -> dict[str, Any]:
        """Everything that a newcomer needs, by reference; changes with the next round."""
        return {
            "parameters": dict(self.model.named_parameters()),
            "buffers": dict(self.model.named_buffers()),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state() if self.scaler else None,
            "noise": self.noise.state(),
            "outer": self.outer.momentum(),
            "is_owed": self.residual.is_owed,
            "tracked": self.buffers.tracked,
            "position": {name: getattr(self, name) for name in _POSITION},
        }

    def adopt(self, exported: Mapping[str, Any]) -> None:
        """Take what another member exported, its tensors on this or any device; residuals stay where they are."""
        mine = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        with torch.no_grad():
            for name, value in (exported["parameters"] | exported["buffers"]).items():
                mine[name].copy_(value)
        self._load_optimizer(exported["optimizer"])
        self._take_formats(exported["optimizer"])
        self._load_scaler(exported["scaler"])
        self.noise.load(exported["noise"])
        self.outer.load(exported["outer"])
        self.buffers.track(exported["tracked"])
        self.buffers.anchor()
        for name, value in exported["position"].items():
            setattr(self, name, value)

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        try:
            self.optimizer.load_state_dict(state)
        except (ValueError, KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"the saved state does not fit the optimizer {type(self.optimizer).__name__}: {error}; "
                "use the optimizer and parameter groups that it was saved with, or take the weights only"
            ) from error

    def _take_formats(self, state: Mapping[str, Any]) -> None:
        """Hold the optimizer's numbers as who exported them does: torch loads all in the format of their parameter.

        NAdam, say, keeps a product in fp32 beside parameters in bf16, and went on otherwise from a rounded one.
        """
        places = chain.from_iterable(group["params"] for group in state["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.optimizer.param_groups)
        for place, parameter in zip(places, parameters, strict=True):
            mine = self.optimizer.state.get(parameter, {})
            for name, value in state["state"].get(place, {}).items():
                held = mine.get(name)
                if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor) and held.dtype != value.dtype:
                    mine[name] = value.to(held.device, copy=True)

    def _load_residual(self, kept: Mapping[str, torch.Tensor]) -> None:
        kept = {name: values.to(self.trained[name].device) for name, values in kept.items() if name in self.trained}
        self.residual.load(kept, is_owed=bool(kept))

    def _load_scaler(self, state: Mapping[str, float] | None) -> None:
        self.scaler = None
        if state is not None:
            self.scaler = LossScaler()
            self.scaler.load(state)


_UPDATING = b" updating"
_POSITION = (
    "lineage",
    "round",
    "cursor",
    "surplus",
    "num_redraws",
    "num_skipped",
    "units_per_sample",
    "is_eval_due",
    "batch",
    "user_names",
    "metric",
    "num_asked",
    "stands_at",
)
