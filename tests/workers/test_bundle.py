"""Bundles: what is accepted arrives byte for byte, everything harmful is refused and leaves nothing behind."""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers import bundle
from workers.bundle import BundleSummary, extract_bundle, inspect_bundle
from workers.errors import BundleError

FILES = {"train.py": b"def build(config): ...\n", "pkg/__init__.py": b"", "pkg/data/words.txt": "Wörter\n".encode()}


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> io.BytesIO:
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", compression) as archive:
        warnings.simplefilter("ignore")  # duplicate names are some tests' point
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name) if name.endswith("/") else name, content)
    return stream


def with_entry(entry: zipfile.ZipInfo, content: bytes = b"x") -> io.BytesIO:
    stream = zipped(FILES)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr(entry, content)
    return stream


def of_mode(mode: int, name: str = "entry") -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, mode << 16
    return entry


def refused(stream: io.BytesIO, tmp_path: Path) -> str:
    """The message with which both ways refuse it; nothing may be left behind."""
    with pytest.raises(BundleError) as inspected:
        inspect_bundle(stream)
    with pytest.raises(BundleError) as extracted:
        extract_bundle(stream, tmp_path / "out")
    assert inspected.value.message == extracted.value.message
    assert list(tmp_path.iterdir()) == []
    return inspected.value.message


def test_an_accepted_bundle_arrives_byte_for_byte(tmp_path: Path) -> None:
    stream = zipped(FILES)
    summary = extract_bundle(stream, tmp_path / "out")
    digest = hashlib.sha256(stream.getvalue()).hexdigest()
    assert summary == inspect_bundle(stream)
    assert summary == BundleSummary(sha256=digest, size_bytes=len(stream.getvalue()), files=3)
    found = {str(p.relative_to(tmp_path / "out")): p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert found == FILES


def test_a_path_serves_as_well_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    stream = zipped(FILES)
    path.write_bytes(stream.getvalue())
    assert inspect_bundle(path) == extract_bundle(path, tmp_path / "out") == inspect_bundle(stream)


def test_only_the_owner_can_read_what_is_extracted_and_scripts_stay_executable(tmp_path: Path) -> None:
    stream = with_entry(of_mode(stat.S_IFREG | 0o4777, "run.sh"))
    extract_bundle(stream, tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "out" / "run.sh").stat().st_mode) & 0o7077 == 0
    assert (tmp_path / "out" / "run.sh").stat().st_mode & stat.S_IXUSR
    assert not (tmp_path / "out" / "train.py").stat().st_mode & stat.S_IXUSR


def test_folders_are_kept_also_when_empty(tmp_path: Path) -> None:
    extract_bundle(zipped({"data/": b"", "train.py": b""}), tmp_path / "out")
    assert (tmp_path / "out" / "data").is_dir()


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "a/../../evil.py",
        "a/..",
        "/etc/passwd",
        "C:/evil.py",
        "c:evil.py",
        "a\\b.py",
        "..\\evil.py",
        "./train.py",
        "a//b.py",
        "a/./b.py",
        "tab\there.py",
        "line\nbreak.py",
        "n" * 300,
        "/".join(["deep"] * 300),
    ],
)
def test_a_path_that_is_not_plain_and_relative_is_refused(name: str, tmp_path: Path) -> None:
    message = refused(zipped({name: b"x"}), tmp_path)
    assert repr(name)[:50] in message
    assert "relative paths" in message


def test_a_name_cut_short_by_a_zero_byte_is_refused(tmp_path: Path) -> None:
    data = zipped({"trainXpy": b"x"}).getvalue().replace(b"trainXpy", b"train\0py")
    assert "cannot be printed" in refused(io.BytesIO(data), tmp_path)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (stat.S_IFLNK, "symbolic link"),
        (stat.S_IFCHR, "character device"),
        (stat.S_IFBLK, "block device"),
        (stat.S_IFIFO, "named pipe"),
        (stat.S_IFSOCK, "socket"),
        (0o130000, "neither file nor folder"),
        (stat.S_IFDIR, "neither file nor folder"),
    ],
)
def test_links_and_devices_are_refused(kind: int, told: str, tmp_path: Path) -> None:
    assert told in refused(with_entry(of_mode(kind | 0o777), b"/etc/passwd"), tmp_path)


def test_the_same_path_twice_is_refused(tmp_path: Path) -> None:
    stream = with_entry(zipfile.ZipInfo("other.py"))
    data = stream.getvalue().replace(b"other.py", b"train.py")
    assert "'train.py' is there twice" in refused(io.BytesIO(data), tmp_path)


@pytest.mark.parametrize(
    ("first", "second"),
    [("Train.py", "train.py"), ("a/B.py", "A/c.py"), ("straße.py", "STRASSE.py"), ("\u00e9.py", "e\u0301.py")],
)
def test_paths_that_differ_only_in_case_are_refused(first: str, second: str, tmp_path: Path) -> None:
    message = refused(zipped({first: b"", second: b""}), tmp_path)
    assert "differ only in case" in message


@pytest.mark.parametrize("order", [("a", "a/b.py"), ("a/b.py", "a")])
def test_a_path_that_is_both_file_and_folder_is_refused(order: tuple[str, str], tmp_path: Path) -> None:
    assert "both a file and a folder" in refused(zipped(dict.fromkeys(order, b"")), tmp_path)


@pytest.mark.parametrize("name", ["workers/__init__.py", "workers.py", "workers/", "workers.cpython-311-x86_64.so"])
def test_a_top_level_module_named_workers_is_refused(name: str, tmp_path: Path) -> None:
    assert "the one name that the service keeps for itself" in refused(zipped({name: b""}), tmp_path)


def test_other_uses_of_the_name_workers_are_free() -> None:
    names = ["pkg/workers.py", "workers.yaml", "workers_data/x.py", "service.py", "tuning/__init__.py", "my_workers.py"]
    assert inspect_bundle(zipped(dict.fromkeys(names, b""))).files == len(names)


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_ENTRIES", 2)
    assert "has 3 entries, 2 are allowed" in refused(zipped(FILES), tmp_path)


def test_the_bounds_are_those_of_the_contract() -> None:
    assert (bundle.MAX_ENTRIES, bundle.MAX_EXPANDED_BYTES, bundle.MAX_RATIO) == (10_000, 500_000_000, 100)


def test_too_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_EXPANDED_BYTES", 1000)
    message = refused(zipped({"a": bytes(range(256)) * 5}, zipfile.ZIP_STORED), tmp_path)
    assert "expands to at least 1280 bytes, 1000 are allowed" in message


def test_a_bomb_is_refused_by_its_ratio(tmp_path: Path) -> None:
    assert "more than 100 times" in refused(zipped({"zeros": bytes(2_000_000)}), tmp_path)


def test_a_bomb_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    """The declared size is made small in both headers: what counts is what really comes out."""
    stream = zipped({"zeros": bytes(2_000_000)})
    data = stream.getvalue().replace(struct.pack("<L", 2_000_000), struct.pack("<L", 100))
    message = refused(io.BytesIO(data), tmp_path)
    assert "damaged" in message or "100 times" in message


def test_the_bytes_of_all_entries_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_EXPANDED_BYTES", 100_000)
    content = hashlib.shake_256(b"seed").digest(60_000)
    assert "are allowed" in refused(zipped({"a": content, "b": content}, zipfile.ZIP_STORED), tmp_path)


def test_encrypted_entries_are_refused(tmp_path: Path) -> None:
    data = bytearray(zipped({"train.py": b"x"}).getvalue())
    central = data.index(b"PK\x01\x02")
    data[6] |= 1
    data[central + 8] |= 1
    assert "encrypted" in refused(io.BytesIO(bytes(data)), tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_compression_is_refused(method: int, tmp_path: Path) -> None:
    assert "use deflate" in refused(zipped(FILES, method), tmp_path)


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x03\x04", b"\x1f\x8b a gzip", b"PK\x05\x06" + b"\xff" * 18])
def test_what_is_not_a_zip_is_refused(data: bytes, tmp_path: Path) -> None:
    assert "not a zip archive" in refused(io.BytesIO(data), tmp_path)


def test_damaged_content_is_refused(tmp_path: Path) -> None:
    stream = zipped({"a.bin": hashlib.shake_256(b"seed").digest(5000)}, zipfile.ZIP_STORED)
    data = bytearray(stream.getvalue())
    data[1000] ^= 0xFF
    assert "'a.bin' is damaged" in refused(io.BytesIO(bytes(data)), tmp_path)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(FileExistsError):
        extract_bundle(zipped(FILES), tmp_path / "out")
    assert (tmp_path / "out" / "mine").exists()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_damage_whatever_yields_another_error(data: st.DataObject) -> None:
    content = bytearray(zipped(FILES).getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(content)))
    with suppress(BundleError):
        inspect_bundle(io.BytesIO(bytes(content[:end])))
