"""Where Ray is: written by the supervisor, read by the reconciler and by the next `serve`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from service.supervise.home import write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRecord:
    """A Ray that can be used now.

    ``is_own``: it was started by `serve`, on this machine alone. Then ``pid`` and ``started_at`` (Unix
    seconds, as the system tells it) name the head's process, ``temp_dir`` its folder, ``token_path``
    the file with its token and ``raylet_port`` where its node answers; otherwise they are 0 and empty.
    """

    address: str
    is_own: bool
    pid: int = 0
    started_at: float = 0.0
    temp_dir: str = ""
    token_path: str = ""
    num_cpus: int = 0
    raylet_port: int = 0

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])


def read_ray_record(file: Path) -> RayRecord | None:
    """The Ray to use, or None while there is none: it is being started again."""
    try:
        return RayRecord(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_ray_record(file: Path, record: RayRecord) -> None:
    """Announce a Ray; a reader sees the old record or the new one, never a part."""
    write_private(file, json.dumps(asdict(record), indent=1))
