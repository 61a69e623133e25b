"""The paced training as a rival's worker runs it: a plain loop whose whole state fits one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from tests.benchmarks.paced_task import AuditedAdamW, Digits, PacedLoss, make_model


class RivalTraining:
    """One rank's part; ``config`` is that of ``recovery_setting.rival_config``."""

    def __init__(self, config: Mapping[str, Any], rank: int, num_ranks: int) -> None:
        self._global_size, self._checkpoint_every = config["global_size"], config["checkpoint_every"]
        self._rank, self._part = rank, config["global_size"] // num_ranks
        self._loss = PacedLoss(config["pace_s"])
        self._data = Digits()
        self._step = 0
        self.model = make_model(config["hidden"])
        self._optimizer = AuditedAdamW(self.model.parameters(), 1e-3, Path(config["audit"]), lambda: self._loss.size)

    def restore(self, file: Path) -> None:
        """Go on from what ``save`` wrote; before the model is wrapped."""
        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._step = state["step"]

    def save(self, file: Path) -> None:
        """Write all that ``restore`` needs."""
        state = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict(), "step": self._step}
        torch.save(state, file)

    def run(self, wrapped: nn.Module, checkpoint: Callable[[int], None]) -> NoReturn:
        """Step for ever; ``checkpoint`` is called with the step's number after every so many, on all ranks."""
        size, begin = self._global_size, self._rank * self._part
        while True:
            generator = torch.Generator().manual_seed(self._step)
            mine = torch.randint(len(self._data), (size,), generator=generator)[begin : begin + self._part]
            loss = self._loss(wrapped, (self._data.features_ND[mine], self._data.labels_N[mine]))
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            self._step += 1
            if self._step % self._checkpoint_every == 0:
                checkpoint(self._step)
