"""What all sides of the recovery measurement have in common."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.benchmarks.audit import Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The training: one step every ``pace_s`` and a little, a checkpoint every ``checkpoint_every`` steps."""

    pace_s: float = 0.05
    hidden: int = 600
    global_size: int = 32
    checkpoint_every: int = 10


class Side(Protocol):
    """One system that trains on two machines of one worker each; this process's own machine is never the lost one.

    It is made by a context manager that takes a folder, new and its own, and the setting, and that ends the
    job and whatever drives it.
    """

    name: str
    audit: Audit

    def scale(self, num_workers: int) -> None:
        """Order one or two workers, whatever was ordered before; does not wait for those that come."""
        ...

    def prepare(self) -> None:
        """Wait until whatever it keeps ready by itself is there, as it is after a while."""
        ...

    def lose_node(self) -> float:
        """All processes of the second machine end at once; gives when, monotonic seconds."""
        ...

    def return_node(self) -> None:
        """The second machine is there again and may be used; called once after it was lost."""
        ...

    def check(self) -> None:
        """Raises RuntimeError when the job is not going on."""
        ...


def rival_config(setting: Setting, audit: Audit, folder: Path) -> dict[str, Any]:
    """What a rival's training script is told; its checkpoints go to ``storage``."""
    return {"audit": str(audit.folder), "storage": str(folder / "storage"), **asdict(setting)}
