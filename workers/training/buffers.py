"""A model's buffers through a round: averaged over ranks, kept only by a commit.

Forward passes write to some buffers (running statistics of batch norm, say) long before the round
is known to count, and each rank writes its own. What a rank adds in a round is sent weighted by its
share of the samples, and at the commit every rank takes the same: anchor + sum of share * change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


class BufferState:
    """A ``StepState``. *Tracked* buffers take part in every exchange: those of normalisation layers, and
    any other that was seen to change. Which they are must be the same on all ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        self._owners = {
            f"{prefix}.{name}" if prefix else name: (module, name)
            for prefix, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        }
        norms = [
            f"{p}.{n}" if p else n for p, m in model.named_modules() if isinstance(m, _NormBase) for n in m._buffers
        ]
        self.names = list(self._owners)
        self._anchors = {name: self._live(name).detach().clone() for name in self.names}
        self._seen: dict[str, tuple[torch.Tensor, int]] = {}
        self._staged: list[torch.Tensor] | None = None
        self.tracked: list[str] = [n for n in norms if n in self._owners]
        self._note()

    @property
    def num_values(self) -> int:
        """How many numbers the tracked buffers are."""
        return sum(self._anchors[name].numel() for name in self.tracked)

    def track(self, names: Iterable[str]) -> None:
        """Let these take part from now on; call it alike on all ranks."""
        wanted = {*self.tracked, *names}
        self.tracked = [name for name in self.names if name in wanted]

    def changed(self) -> list[str]:
        """Buffers that do not take part and that the user's code wrote to in this round."""
        if len(self.tracked) == len(self.names):
            return []
        tracked = set(self.tracked)
        return [n for n in self.names if n not in tracked and self._is_changed(n)]

    def encode(self, share: float, place: torch.Tensor) -> None:
        """Write this rank's part into ``place``, ``num_values`` numbers of the exchange's format."""
        if not self.tracked:
            return
        if share == 0.0:
            place.zero_()
            return
        changes = [(self._live(n).detach().to(place.dtype) - self._anchors[n].to(place.dtype)) for n in self.tracked]
        torch.cat([change.reshape(-1) for change in changes], out=place)
        place.mul_(share)

    def stage(self, place: torch.Tensor) -> None:
        """Take the sums over all ranks of what they encoded."""
        staged, offset = [], 0
        for name in self.tracked:
            anchor = self._anchors[name]
            change = place[offset : offset + anchor.numel()].view(anchor.shape)
            offset += anchor.numel()
            exact = anchor.dtype.is_floating_point or anchor.dtype.is_complex
            staged.append((anchor + change if exact else anchor + change.round()).to(anchor.dtype))
        self._staged = staged

    def commit(self) -> None:
        if self._staged is None:
            return
        for name, value in zip(self.tracked, self._staged, strict=True):
            self._anchors[name].copy_(value)
            self._live(name).copy_(value)
        self._staged = None

    def rollback(self) -> None:
        self._staged = None
        tracked = set(self.tracked)
        for name in self.names:
            if name in tracked or self._is_changed(name):
                live, anchor = self._live(name), self._anchors[name]
                if live.shape == anchor.shape and not live.requires_grad:
                    live.copy_(anchor)
                else:
                    self._put(name, anchor.clone())
        self._note()

    def anchor(self) -> None:
        """Take the buffers as they are now for committed: they were loaded or received."""
        self._anchors = {name: self._live(name).detach().clone() for name in self.names}
        self._staged = None
        self._note()

    def _note(self) -> None:
        self._seen = {name: (self._live(name), self._live(name)._version) for name in self.names}

    def _is_changed(self, name: str) -> bool:
        live, (seen, version) = self._live(name), self._seen[name]
        return live is not seen or live._version != version

    def _live(self, name: str) -> torch.Tensor:
        module, key = self._owners[name]
        buffer = module._buffers[key]
        assert isinstance(buffer, torch.Tensor), f"the buffer {name} was removed"
        return buffer

    def _put(self, name: str, value: torch.Tensor) -> None:
        module, key = self._owners[name]
        module._buffers[key] = value


def mark(names: Sequence[str], chosen: Iterable[str]) -> list[float]:
    """1 for each of ``names`` that is among ``chosen``, else 0."""
    wanted = set(chosen)
    return [float(name in wanted) for name in names]
