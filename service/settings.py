"""Settings: flags, then ``CONCERTINA_*`` variables, then ``config.toml`` in the home directory.

The only reader of the environment. Checked once, here, and trusted after.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from service.addresses import SQLITE, database_address, ray_address, storage_place
from workers.scratch import Bounds
from workers.spec_parts import OWN_PREFIXES

PREFIX = "CONCERTINA_"
CONFIG_FILE = "config.toml"
DEFAULT_HOME = "~/.concertina"

CLIENT_NAMES = frozenset({"url", "token", "ca_file"})
WORKER_NAMES = frozenset({"output"})
LISTS = frozenset({"allowed_hosts", "worker_env"})
"""Separated by commas in a variable."""


class SettingsError(Exception):
    """A setting is unknown or cannot be used; the message names it, the value and the remedy."""


class TokenError(SettingsError):
    """``CONCERTINA_TOKEN`` can be no token; the message never has its value."""


class Settings(BaseSettings):
    """Everything that can be set about a service."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=None, extra="forbid", frozen=True, validate_default=True
    )

    home: Annotated[Path, Field(description="Folder of the database, files, token and configuration.")] = Path(
        DEFAULT_HOME
    )
    host: Annotated[
        str, Field(description="Address to listen on; other than loopback needs a certificate or behind_proxy.")
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="TCP port to listen on; 0 takes a free one.")] = 8420
    database: Annotated[
        str | None, Field(repr=False, description="URL of the database; null is SQLite in the home directory.")
    ] = None
    ray_address: Annotated[
        str | None, Field(description="A Ray cluster to attach to; null starts one on this machine.")
    ] = None
    num_cpus: Annotated[
        int | None, Field(ge=1, le=4096, description="CPUs of the Ray started here; null is the machine's.")
    ] = None
    storage: Annotated[
        str | None,
        Field(description="Folder or URL (s3://BUCKET/PATH, ...) of bundles, checkpoints; null: in home."),
    ] = None
    storage_options: Annotated[
        dict[str, Any], Field(repr=False, description="Options of fsspec for that URL, as JSON: keys, an endpoint.")
    ] = {}
    allowed_hosts: Annotated[
        tuple[str, ...], Field(description="Names besides loopback under which the service may be called.")
    ] = ()
    behind_proxy: Annotated[
        bool, Field(description="A proxy in front does TLS; its X-Forwarded-Proto is believed.")
    ] = False
    tls_certificate: Annotated[
        Path | None, Field(description="PEM file of the certificate to show, then its chain; needs tls_key.")
    ] = None
    tls_key: Annotated[Path | None, Field(description="PEM file of the certificate's key, without a password.")] = None
    liveness_s: Annotated[
        float, Field(gt=0, le=3600, description="Seconds after which one that does not answer counts as lost.")
    ] = 15.0
    hold_s: Annotated[
        float, Field(ge=0, le=86400, description="Seconds that survivors below workers.min wait for others.")
    ] = 120.0
    place_s: Annotated[
        float, Field(gt=0, le=86400, description="Seconds that a start waits for a place for workers.min.")
    ] = 120.0
    gather_s: Annotated[
        float, Field(ge=0, le=3600, description="Seconds that a start with workers.min ready waits for more.")
    ] = 10.0
    evacuate_s: Annotated[
        float, Field(ge=0, le=86400, description="Seconds that workers on a drained node wait to be replaced.")
    ] = 60.0
    install_s: Annotated[
        float, Field(ge=1, le=86400, description="Seconds that installing a job's dependencies may take on a node.")
    ] = 1800.0
    build_s: Annotated[
        float, Field(ge=1, le=86400, description="Seconds that a job's entrypoint may take to build its task.")
    ] = 1800.0
    data_s: Annotated[float, Field(ge=1, le=86400, description="Seconds that reading a micro-batch may take.")] = 300.0
    step_s: Annotated[
        float, Field(ge=1, le=86400, description="Seconds that a worker may compute on its micro-batch.")
    ] = 600.0
    eval_s: Annotated[float, Field(ge=1, le=86400, description="Seconds that an evaluation may take.")] = 900.0
    review_s: Annotated[float, Field(ge=1, le=86400, description="Seconds between reviews of shares.")] = 300.0
    max_demand_workers: Annotated[
        int,
        Field(
            ge=0,
            le=10_000,
            description="Workers without room that an autoscaler is told of at most; a job that lacks more gets none.",
        ),
    ] = 16
    spares_per_node: Annotated[
        int, Field(ge=0, le=64, description="Processes that wait with torch loaded, on each node with room.")
    ] = 2
    worker_env: Annotated[
        tuple[str, ...],
        Field(description="Variables that workers of a Ray started here inherit besides the usual ones."),
    ] = ()
    lease_s: Annotated[
        float, Field(ge=10, le=86400, description="Seconds that a worker lives on without a controller's call.")
    ] = 600.0
    leader_lease_s: Annotated[
        float, Field(ge=1, le=600, description="Seconds after which a silent reconciler is succeeded.")
    ] = 15.0
    price_cpu_hour: Annotated[float | None, Field(ge=0, description="Price of one CPU for an hour; null: none.")] = None
    price_gpu_hour: Annotated[float | None, Field(ge=0, description="Price of one GPU for an hour; null: none.")] = None
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$", description="ISO 4217 code of the prices.")] = "EUR"
    max_bundle_bytes: Annotated[
        int, Field(ge=1024, description="Largest bundle, in bytes, both as uploaded and expanded.")
    ] = 500_000_000
    bundle_keep_s: Annotated[
        float, Field(ge=60, description="Seconds after its last upload that a bundle stays which nothing names.")
    ] = 7 * 86400.0
    scratch_keep_s: Annotated[
        float, Field(ge=60, description="Seconds that a node keeps code, packages, logs which no worker uses.")
    ] = Bounds().keep_s
    scratch_max_bytes: Annotated[
        int, Field(ge=0, description="Bytes of code and packages on a node above which what no worker uses goes.")
    ] = Bounds().max_bytes
    max_body_bytes: Annotated[int, Field(ge=1024, description="Largest JSON body of a request, in bytes.")] = 1_000_000
    max_streams: Annotated[int, Field(ge=1, description="Event streams open at the same time; more get a 429.")] = 1000
    poll_s: Annotated[
        float, Field(gt=0, le=60, description="Seconds between looks at the database where no nudge comes.")
    ] = 0.5

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what ``load_settings`` hands over, so that one function decides the order."""
        return (init_settings,)

    @field_validator("home", "tls_certificate", "tls_key")
    @classmethod
    def _whole_path(cls, value: Path | None) -> Path | None:
        return None if value is None else Path(os.path.abspath(value.expanduser()))

    @field_validator("storage")
    @classmethod
    def _known_storage(cls, value: str | None) -> str | None:
        return None if value is None else storage_place(value)

    @field_validator("ray_address")
    @classmethod
    def _known_ray(cls, value: str | None) -> str | None:
        return None if value is None else ray_address(value)

    @field_validator("storage_options", mode="before")
    @classmethod
    def _from_json(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError('it is no JSON; write an object such as {"key": "...", "secret": "..."}') from None

    @field_validator("database")
    @classmethod
    def _known_database(cls, value: str | None) -> str | None:
        return None if value is None else database_address(value)

    @model_validator(mode="after")
    def _closed_to_the_network(self) -> Settings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            given, missing = ("tls_key", "tls_certificate")[:: 1 if self.tls_certificate is None else -1]
            raise ValueError(f"{given} is given without {missing}; give both, or neither")
        if not is_loopback(self.host) and not self.behind_proxy and self.tls_certificate is None:
            raise ValueError(
                f"host={self.host} would open this service to the network without TLS; keep 127.0.0.1, give "
                "tls_certificate and tls_key, or put a TLS proxy in front and set behind_proxy"
            )
        return self

    @property
    def storage_url(self) -> str:
        """Where bundles, checkpoints and outputs lie: the path of a folder, or the URL of other storage."""
        return self.storage or str(self.home / "storage")

    @property
    def storage_folder(self) -> Path | None:
        """The folder; None for other storage."""
        return None if "://" in self.storage_url else Path(self.storage_url)

    @property
    def scratch_bounds(self) -> Bounds:
        """What nodes keep for workers to come."""
        return Bounds(keep_s=self.scratch_keep_s, max_bytes=self.scratch_max_bytes)

    @property
    def public_url(self) -> str | None:
        """Where others call: by the first allowed name, which a certificate is made for; None without TLS here."""
        if self.tls_certificate is None or not self.allowed_hosts:
            return None
        return f"https://{self.allowed_hosts[0]}:{self.port}"

    @property
    def database_url(self) -> str:
        """The URL of the database, as SQLAlchemy writes it."""
        return self.database or f"{SQLITE}{self.home / 'concertina.db'}"

    @property
    def database_file(self) -> Path | None:
        """The file of a SQLite database; None for another database."""
        return Path(self.database_url.removeprefix(SQLITE)) if self.database_url.startswith(SQLITE) else None

    def as_environment(self) -> dict[str, str]:
        """These settings as variables, for a child process to load the same ones."""
        values = self.model_dump(mode="json", exclude_none=True)
        return {f"{PREFIX}{name.upper()}": _as_text(value) for name, value in values.items()}


def _as_text(value: object) -> str:
    match value:
        case list():
            return ",".join(value)
        case dict():
            return json.dumps(value)
    return str(value)


class ClientSettings(BaseModel):
    """Where the command line finds a service: ``--url`` and ``CONCERTINA_TOKEN``.

    ``ca_file`` is the authority of the service's certificate, where this machine does not know it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = None
    token: str | None = None
    ca_file: Path | None = None


def load_settings(flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read all sources; ``flags`` with the value None count as not given.

    Raises SettingsError that names every unknown or unusable setting and where it came from.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    variables = _from_environment(os.environ if environ is None else environ)
    home = Path(str(given.get("home", variables.get("home", DEFAULT_HOME)))).expanduser()
    from_file = _from_file(home / CONFIG_FILE)
    origins = {
        **{name: f"{name} in {home / CONFIG_FILE}" for name in from_file},
        **{name: f"{PREFIX}{name.upper()}" for name in variables},
        **{name: name for name in given},
    }
    try:
        return Settings(**{**from_file, **variables, **given})
    except ValidationError as error:
        raise SettingsError(_in_words(error, origins)) from None


def load_client_settings(url: str | None = None, environ: Mapping[str, str] | None = None) -> ClientSettings:
    """The service to talk to: the flag, else ``CONCERTINA_URL``; the rest from ``CONCERTINA_TOKEN, _CA_FILE``.

    Raises SettingsError for what is no address, TokenError.
    """
    variables = os.environ if environ is None else environ
    ca_file = variables.get(f"{PREFIX}CA_FILE")
    return ClientSettings(
        url=_address(url, "--url") if url else _address(variables.get(f"{PREFIX}URL", ""), f"{PREFIX}URL"),
        token=_token(variables.get(f"{PREFIX}TOKEN", "")),
        ca_file=Path(ca_file).expanduser() if ca_file else None,
    )


def _address(text: str, origin: str) -> str | None:
    address = text.strip()
    try:
        parts = urlsplit(address)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket, or a port that is no number
        is_usable = False
    if address and not (is_usable and address.isprintable()):
        raise SettingsError(f"{origin}={address!r:.200} is no address; give one such as http://127.0.0.1:8420")
    return address or None


def _token(text: str) -> str | None:
    token = text.strip()  # a file of another system ends its line in CR, too
    if not (token.isascii() and token.isprintable()):
        raise TokenError(
            f"{PREFIX}TOKEN is not a token: it holds a character that none has (what it is set to is not shown); "
            "set it to what the file `token` in the service's home directory holds"
        )
    return token or None


def secret_values(names: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Values of secrets in the service's environment; names that are not set are left out. Never log the result.

    The service's own variables and Ray's are left out, too.
    """
    variables = os.environ if environ is None else environ
    return {name: variables[name] for name in names if name in variables and not name.startswith(OWN_PREFIXES)}


def environment() -> dict[str, str]:
    """A copy of this process's environment, to start a child with."""
    return dict(os.environ)


def is_loopback(host: str) -> bool:
    """Whether an address or name stays on this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in CLIENT_NAMES | WORKER_NAMES:
            continue
        if name not in Settings.model_fields:
            raise SettingsError(f"unknown variable {variable}{_suggest(name)}")
        if name in LISTS:
            values[name] = tuple(part.strip() for part in text.split(",") if part.strip())
        else:
            values[name] = text
    return values


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}; correct it, or move it away") from None
    for name in values:
        if name not in Settings.model_fields:
            raise SettingsError(f"unknown setting {name!r} in {path}{_suggest(name)}")
    return values


def _suggest(name: str) -> str:
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(Settings.model_fields))}"


def _in_words(error: ValidationError, origins: Mapping[str, str]) -> str:
    """A line for each fault: where the setting was given, the value unless it may hold a secret, what to do."""
    lines = []
    for e in error.errors(include_url=False):
        place = ".".join(str(p) for p in e["loc"])
        name = str(e["loc"][0]) if e["loc"] else ""
        if e["type"] == "extra_forbidden":
            lines.append(f"{place}: unknown setting{_suggest(place)}")
        elif e["type"] == "value_error":  # raised by a check of ours, which tells value and remedy
            message = e["msg"].removeprefix("Value error, ")
            lines.append(f"{origins.get(name, name)}: {message}" if name else message)
        else:
            lines.append(_unusable(name, origins.get(name, name), e["msg"], e["input"]))
    return "\n".join(lines)


def _unusable(name: str, origin: str, why: str, value: object) -> str:
    field = Settings.model_fields[name]
    seen = f"={value!r:.80}" if field.repr else ""
    return f"{origin}{seen} cannot be used: {why}; correct it or take it away. It means: {field.description}"
