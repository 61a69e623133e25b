"""The lines by which a running service tells what happens to it."""

from __future__ import annotations

from rich.markup import escape

from service.cli.output import say
from service.supervise.supervisor import Mark

MARKS = {
    Mark.OK: "[green]✓[/green]",
    Mark.NOTE: "[dim]·[/dim]",
    Mark.WARN: "[yellow]![/yellow]",
    Mark.FAIL: "[red]✗[/red]",
}


def tell(mark: Mark, about: str, text: str) -> None:
    """One line: a mark, what it is about, a short sentence."""
    say(f"{MARKS[mark]} {about:<11}{escape(text)}")
