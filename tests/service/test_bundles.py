"""Uploads: what is accepted, what is refused, and that nothing is left behind."""

from __future__ import annotations

import hashlib
import io
import stat
import warnings
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.api.shapes import Bundle
from service.folders import BUNDLES
from service.services import build_services
from service.settings import Settings
from tests.service.given import spec_document, zip_bytes
from tests.service.test_api_jobs import assert_problem

pytestmark = pytest.mark.anyio

PATH = "/api/v1/bundles"


def left_behind(settings: Settings) -> list[str]:
    folder = Path(settings.storage_url) / BUNDLES
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def test_the_same_bytes_are_one_bundle(client: httpx2.AsyncClient, settings: Settings) -> None:
    data = zip_bytes({"train.py": "x = 1", "tuning/a.py": "", "service.py": ""})
    first, second = await client.post(PATH, content=data), await client.post(PATH, content=data)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    Bundle.model_validate(first.json())
    digest = hashlib.sha256(data).hexdigest()
    bundle = first.json()
    assert (bundle["sha256"], bundle["size_bytes"], bundle["files"]) == (digest, len(data), 3)
    [stored] = left_behind(settings)
    assert (Path(settings.storage_url) / BUNDLES / stored).read_bytes() == data
    job = await client.post("/api/v1/jobs", json=spec_document(entrypoint="train:build", bundle=bundle["id"]))
    assert job.status_code == 201


async def test_bytes_that_storage_lost_can_be_uploaded_again(client: httpx2.AsyncClient, settings: Settings) -> None:
    data = zip_bytes({"train.py": "x = 1"})
    first = (await client.post(PATH, content=data)).json()
    folder = Path(settings.storage_url) / BUNDLES
    next(folder.iterdir()).unlink()
    assert (await client.post(PATH, content=data)).json() == first
    services = build_services(settings)
    row = await services.store.bundles.bundle(first["id"])
    await services.store.close()
    assert row is not None
    assert (Path(settings.storage_url) / row.key).read_bytes() == data


def with_entries(*entries: tuple[str, bytes, int]) -> bytes:
    """A zip whose entries have these names, contents and Unix modes, unchecked."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content, mode in entries:
            info = zipfile.ZipInfo("x")
            info.filename = info.orig_filename = name
            info.external_attr = mode << 16
            with warnings.catch_warnings(action="ignore"):  # zipfile warns of double names
                archive.writestr(info, content)
    return buffer.getvalue()


def named(*names: str) -> bytes:
    return with_entries(*((name, b"", 0o644) for name in names))


def damaged() -> bytes:
    data = zip_bytes({"a.py": "x = 1" * 100}, stored=True)
    return data.replace(b"x = 1x", b"x = 2x", 1)


def encrypted() -> bytes:
    data = bytearray(named("a.py"))
    central = data.index(b"PK\x01\x02")
    data[6] |= 1
    data[central + 8] |= 1
    return bytes(data)


REFUSED: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "no zip": lambda: b"\x1f\x8b" + b"x" * 100,
    "half a zip": lambda: zip_bytes({"a.py": "x" * 1000})[:60],
    "a tail before a zip": lambda: b"MZ" + zip_bytes({"a.py": ""}),
    "no files": lambda: zip_bytes({}),
    "only a folder": lambda: named("a/"),
    "damaged bytes": damaged,
    "encrypted": encrypted,
    "..": lambda: named("../a.py"),
    ".. inside": lambda: named("a/../../b.py"),
    "absolute": lambda: named("/etc/a.py"),
    "drive": lambda: named("C:/a.py"),
    "backslash": lambda: named("a\\..\\b.py"),
    "empty part": lambda: named("a//b.py"),
    "dot": lambda: named("./a.py"),
    "control": lambda: named("a\nb.py"),
    "zero": lambda: named("a.py\0.txt"),
    "long": lambda: named("a" * 300),
    "link": lambda: with_entries(("a", b"/etc/passwd", stat.S_IFLNK | 0o777)),
    "device": lambda: with_entries(("a", b"", stat.S_IFCHR | 0o666)),
    "pipe": lambda: with_entries(("a", b"", stat.S_IFIFO | 0o666)),
    "double": lambda: named("a.py", "a.py"),
    "case": lambda: named("a.py", "A.py"),
    "case of a folder": lambda: named("a/x.py", "A/y.py"),
    "composed": lambda: named("\u00e9.py", "e\u0301.py"),
    "file and folder": lambda: named("a", "a/b.py"),
    "folder and file": lambda: named("a/b.py", "a"),
    "workers": lambda: named("workers/__init__.py"),
    "workers.py": lambda: named("workers.py"),
    "workers extension": lambda: named("workers.cpython-311-x86_64-linux-gnu.so"),
    "bomb": lambda: zip_bytes({"a": b"\0" * 2_000_000}),
    "too many": lambda: named(*(f"{n}.py" for n in range(10_001))),
}


async def test_a_bad_archive_is_refused_and_leaves_nothing(
    subtests: pytest.Subtests, client: httpx2.AsyncClient, settings: Settings
) -> None:
    for case, make in REFUSED.items():
        with subtests.test(case=case):
            problem = assert_problem(await client.post(PATH, content=make()), 422, "BUNDLE_INVALID")
            assert problem["errors"][0]["detail"]
            assert left_behind(settings) == []


async def test_names_that_only_look_bad_are_accepted(client: httpx2.AsyncClient) -> None:
    data = named(
        "a..b/c.py", "..a.py", "src/workers/a.py", "workers_of_mine.py", "\u00e9.py", "my workers.txt", "a/", "b/"
    )
    assert (await client.post(PATH, content=data)).status_code == 201


async def test_what_expands_beyond_the_limit_is_refused(settings: Settings, running_app: Any) -> None:
    small = settings.model_copy(update={"max_bundle_bytes": 50_000})
    async with running_app(small) as caller:
        data = zip_bytes({"a.txt": b"abcdefgh" * 10_000})
        assert len(data) < 50_000
        assert_problem(await caller.post(PATH, content=data), 422, "BUNDLE_INVALID")
    assert left_behind(settings) == []


async def test_an_upload_over_the_limit_is_cut_off_while_it_streams(settings: Settings, running_app: Any) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 10_000
            yield b"x" * 10_000

    async with running_app(settings.model_copy(update={"max_bundle_bytes": 50_000})) as caller:
        assert_problem(await caller.post(PATH, content=endless()), 413, "TOO_LARGE")
    assert sent <= 70_000
    assert left_behind(settings) == []
