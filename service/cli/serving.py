"""The service on this machine: run it, open its pages."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Mapping
from pathlib import Path

from rich.markup import escape

from service.cli.connection import home_of
from service.cli.failures import SERVER_ERROR, CommandError
from service.cli.login import login_link
from service.cli.news import tell
from service.cli.options import Form
from service.cli.output import answering, say, show
from service.settings import environment, load_settings
from service.supervise.lock import current_holder
from service.supervise.serve import Served, last_settings, serve


def run_service(flags: Mapping[str, object], form: Form) -> int:
    """Run the service until it is told to stop; gives the exit code. Raises SettingsError and what `serve` raises."""
    with answering(form) as answer:

        def on_ready(served: Served) -> None:
            link = login_link(served.settings, served.url)
            _welcome(link)
            answer({"url": served.url, "link": link, "home": str(served.settings.home), "pid": os.getpid()})

        return serve(load_settings(flags), environment(), tell, on_ready)


def _welcome(link: str) -> None:
    say("")
    say(f"  open     [bold]{escape(link)}[/bold]")
    say("           [dim]logs a browser in once, within ten minutes; `concertina open` makes another[/dim]")
    say("  stop     [dim]Ctrl-C: running jobs save, and go on with the next `concertina serve`[/dim]")
    say("")


def open_pages(url: str | None, home: Path | None, form: Form) -> None:
    """Open the browser at a link that logs it in once; the link is printed as well.

    Raises CommandError where the service does not run: the link is made in its database.
    """
    place = home_of(home)
    holder = current_holder(place.lock_file)
    if holder is None:
        raise CommandError(
            f"no service runs from {place.path}; start it with `concertina serve`, "
            "or log in with the token on the login page of the service you mean",
            SERVER_ERROR,
        )
    link = login_link(last_settings(place), url or holder.url)
    show(form, {"link": link}, escape(link))
    if form is Form.TEXT:
        _show(link)


def _show(link: str) -> None:
    """Open a graphical browser, where there is one: one in the terminal would take the terminal over."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    if isinstance(browser, webbrowser.BackgroundBrowser) or not isinstance(browser, webbrowser.GenericBrowser):
        browser.open(link)
