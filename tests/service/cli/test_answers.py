"""What commands print, as pure values."""

from __future__ import annotations

from typing import Any

from service.cli.follow import JobView
from service.cli.looking import show_timeline
from service.cli.options import Form
from service.client import Client


class Told(Client):
    """A service that has one job with these rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows
        self.asked: list[int] = []

    def find_job(self, reference: str) -> dict[str, Any]:
        return {"id": reference}

    def job(self, job_id: str) -> dict[str, Any]:
        return {"id": job_id, "state": "RUNNING"}

    def timeline(self, job_id: str, after: int = 0) -> list[dict[str, Any]]:
        self.asked.append(after)
        return [row for row in self._rows if row.get("seq", 1) > after]


def row(kind: str, step: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, "time": "2026-11-21T10:00:00Z", "before": {}, "after": {}, **more}


def test_many_checkpoints_do_not_hide_what_happened(capsys: Any) -> None:
    saved = [row("checkpoint", step) for step in range(100, 5001, 100)]
    lost = row("worker_lost", 5100, before={"workers": 2}, after={"workers": 1}, cost_s=0.2, steps_lost=0)
    show_timeline(Told([*saved, lost, row("checkpoint", 5200, cost_s=0.112)]), "first", Form.TEXT)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert lines[1].endswith("5,000  50 checkpoints from step 100 on; Checkpoint at step 5,000")
    assert "A worker was lost" in lines[2]
    assert lines[3].endswith("5,200  Checkpoint at step 5,200; training held for 0.11 s")


def test_following_asks_for_news_alone_and_tells_a_change_once_its_cost_is_known() -> None:
    saved = [row("checkpoint", step, seq=step, cost_s=0.0) for step in range(1, 301)]
    rows = [*saved, row("resize", 300, seq=301, before={"workers": 1}, after={"workers": 2}, cost_s=None)]
    client = Told(rows)
    view = JobView(client, "first")
    view.ask()
    assert len(view.news()) == 1  # the state
    rows[300] = {**rows[300], "cost_s": 0.2, "steps_lost": 0}
    rows.append(row("checkpoint", 301, seq=302, cost_s=0.0))
    view.ask()
    assert ["2 workers" in line for line in view.news()] == [True]
    view.ask()
    assert view.news() == []
    assert client.asked == [0, 300, 302]
    assert view.rows == rows


def test_of_a_long_timeline_the_newest_rows_are_printed(capsys: Any) -> None:
    rows = [row("resize", n, seq=n, before={"workers": 1}, after={"workers": 2}, cost_s=0.1) for n in range(1, 801)]
    show_timeline(Told(rows), "first", Form.TEXT)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "300 earlier rows left out; -o json gives all"
    assert "  800  " in lines[-1]
