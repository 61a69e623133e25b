"""Signatures of the commands about the service itself; what they do is imported when one is called.

Typer makes a command's options of its parameters, so some have more of them than a function should.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import Form, FormOption, HomeOption, UrlOption, YesOption

PANEL = "Service"

HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on.", show_default="127.0.0.1")]
PortOption = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any.", show_default="8420")
]
CpusOption = Annotated[
    int | None, typer.Option("--num-cpus", min=1, help="CPUs of the Ray started here.", show_default="the machine's")
]
DatabaseOption = Annotated[
    str | None, typer.Option("--database", metavar="URL", help="Database.", show_default="SQLite in the home")
]
RayOption = Annotated[
    str | None, typer.Option("--ray-address", metavar="ADDR", help="A Ray to use instead of one started here.")
]
StorageOption = Annotated[
    str | None, typer.Option("--storage", metavar="URL", help="Bundles, checkpoints.", show_default="in the home")
]
AllowedHostOption = Annotated[
    list[str] | None, typer.Option("--allowed-host", metavar="NAME", help="A name to be called by; repeatable.")
]
ProxyOption = Annotated[
    bool | None, typer.Option("--behind-proxy", help="A proxy in front does TLS.", show_default="no")
]
CertificateOption = Annotated[
    Path | None, typer.Option("--tls-certificate", metavar="FILE", help="Speak HTTPS with this certificate (PEM).")
]
KeyOption = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key (PEM, without password).")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    commands: dict[str, Callable[..., None]] = {
        "demo": demo,
        "serve": serve,
        "stop": stop,
        "open": open_page,
        "doctor": doctor,
        "purge": purge,
        "version": version,
    }
    for name, command in commands.items():
        app.command(name, rich_help_panel=PANEL)(command)


def demo(
    home: HomeOption = None,
    port: PortOption = None,
    num_cpus: CpusOption = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=30, help="How long one worker alone would train, about.")
    ] = 110,  # two workers are faster, and a minute has to remain
    leave: Annotated[bool, typer.Option("--exit", help="Stop everything when the job has ended.")] = False,
    output: FormOption = Form.TEXT,
) -> None:
    """Start everything here, train digits, resize it, kill a worker, show the page."""
    from service.cli.demo import DemoOptions, run_demo

    options = DemoOptions(home=home, port=port, num_cpus=num_cpus, seconds=seconds, leave=leave, form=output)
    raise typer.Exit(run_demo(options))


def serve(
    host: HostOption = None,
    port: PortOption = None,
    database: DatabaseOption = None,
    ray_address: RayOption = None,
    num_cpus: CpusOption = None,
    storage: StorageOption = None,
    home: HomeOption = None,
    allowed_host: AllowedHostOption = None,
    behind_proxy: ProxyOption = None,
    tls_certificate: CertificateOption = None,
    tls_key: KeyOption = None,
    output: FormOption = Form.TEXT,
) -> None:
    """Run the service until Ctrl-C: API and pages, the keeper of jobs, and a Ray of its own."""
    from service.cli.serving import run_service

    flags = {
        "host": host,
        "port": port,
        "database": database,
        "ray_address": ray_address,
        "num_cpus": num_cpus,
        "storage": storage,
        "home": home,
        "allowed_hosts": tuple(allowed_host) if allowed_host else None,
        "behind_proxy": behind_proxy,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
    }
    raise typer.Exit(run_service(flags, output))


def stop(home: HomeOption = None, output: FormOption = Form.TEXT) -> None:
    """End the service of a home directory: running jobs save, and go on with the next serve."""
    from service.cli.ending import stop_service

    raise typer.Exit(stop_service(home, output))


def open_page(url: UrlOption = None, home: HomeOption = None, output: FormOption = Form.TEXT) -> None:
    """Open the pages in the browser, logged in by a link that works once; in JSON the link is only told."""
    from service.cli.serving import open_pages

    open_pages(url, home, output)


def doctor(
    database: DatabaseOption = None,
    ray_address: RayOption = None,
    storage: StorageOption = None,
    home: HomeOption = None,
    output: FormOption = Form.TEXT,
) -> None:
    """Check whether this machine can run the service, with what its settings name elsewhere."""
    from service.cli.doctor import examine

    flags = {"database": database, "ray_address": ray_address, "storage": storage, "home": home}
    raise typer.Exit(examine(flags, output))


def purge(home: HomeOption = None, yes: YesOption = False, output: FormOption = Form.TEXT) -> None:
    """Remove everything that Concertina put on this machine."""
    from service.cli.ending import purge_home

    raise typer.Exit(purge_home(home, is_sure=yes, form=output))


def version(output: FormOption = Form.TEXT, url: UrlOption = None, home: HomeOption = None) -> None:
    """Tell the versions of this command and of the service."""
    from service.cli.versions import tell_versions

    tell_versions(url, home, output)
