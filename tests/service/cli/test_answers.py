"""What commands print, as pure values."""

from __future__ import annotations

from typing import Any

from service.cli.looking import show_timeline
from service.cli.options import Form
from service.client import Client


class Told(Client):
    """A service that has one job with these rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def find_job(self, reference: str) -> dict[str, Any]:
        return {"id": reference}

    def timeline(self, job_id: str, after: int | None = None) -> list[dict[str, Any]]:
        return self._rows


def test_many_checkpoints_do_not_hide_what_happened(capsys: Any) -> None:
    def row(kind: str, step: int, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "step": step, "time": "2026-11-21T10:00:00Z", "before": {}, "after": {}, **more}

    saved = [row("checkpoint", step) for step in range(100, 5001, 100)]
    lost = row("worker_lost", 5100, before={"workers": 2}, after={"workers": 1}, cost_s=0.2, steps_lost=0)
    show_timeline(Told([*saved, lost, row("checkpoint", 5200)]), "first", Form.TEXT)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert lines[1].endswith("5,000  50 checkpoints from step 100 on; Checkpoint at step 5,000")
    assert "A worker was lost" in lines[2]
    assert lines[3].endswith("5,200  Checkpoint at step 5,200")
