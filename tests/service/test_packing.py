"""Bundles made of folders."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.packing import PackingError, PackingLimits, list_files, pack


def put(folder: Path, name: str, content: str | bytes = "x") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_bundle_holds_the_files_and_nothing_that_python_or_git_left(tmp_path: Path) -> None:
    put(tmp_path, "train.py", "print(1)")
    put(tmp_path, "data/words.txt", "a b")
    for litter in (".git/config", "__pycache__/train.cpython-311.pyc", "pkg/__pycache__/a.pyc", "old.pyc", ".venv/x"):
        put(tmp_path, litter)
    put(tmp_path, "myenv/pyvenv.cfg")
    put(tmp_path, "myenv/lib/thing.py")

    bundle = pack(tmp_path)

    assert list(bundle.sizes) == ["data/words.txt", "train.py"]
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
        assert archive.read("train.py") == b"print(1)"
        assert archive.namelist() == ["data/words.txt", "train.py"]


def test_the_same_files_give_the_same_bytes_whenever_they_were_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, names in ((first, ("a.py", "b/c.py")), (second, ("b/c.py", "a.py"))):
        for name in names:
            os.utime(put(folder, name, name), (1_000_000 + len(folder.name), 2_000_000))
    assert pack(first).sha256 == pack(second).sha256


def test_ignore_files_rule_from_the_repository_down(tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    put(repository, ".git/HEAD")
    put(repository, ".gitignore", "*.bin\n/code/secret/\n")
    code = repository / "code"
    put(code, ".gitignore", "!keep.bin\nruns/*\n!runs/best.txt\n")
    put(code, ".concertinaignore", "notes.md\n")
    for name in ("a.bin", "keep.bin", "secret/key", "runs/one.txt", "runs/best.txt", "notes.md", "train.py"):
        put(code, name)
    put(code, "deep/.gitignore", "*.txt\n")
    put(code, "deep/a.txt")
    put(code, "deep/a.py")

    kept = [".concertinaignore", ".gitignore", "deep/.gitignore", "deep/a.py", "keep.bin", "runs/best.txt", "train.py"]
    assert list(list_files(code)) == kept


@given(
    patterns=st.lists(
        st.sampled_from(
            ["*.log", "/a", "a/", "!a/b.txt", "b*", "**/c", "!keep", "a/**", "*", "!*.py", "!a", "!a/", "!a/**"]
        ),
        max_size=5,
    )
)
def test_what_is_ignored_is_what_git_ignores(patterns: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tree")
    for name in ("a/b.txt", "a/c/d.py", "b.log", "keep/x.log", "train.py", "c"):
        put(folder, name)
    put(folder, ".gitignore", "\n".join(patterns))
    git = ["git", "-c", "core.excludesFile=/dev/null", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], check=True, timeout=20)
    listed = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard"], check=True, timeout=20, capture_output=True, text=True
    )
    assert list(list_files(folder)) == sorted(listed.stdout.splitlines())


def test_a_link_is_refused_unless_it_is_ignored(tmp_path: Path) -> None:
    put(tmp_path, "train.py")
    (tmp_path / "data").symlink_to("/etc")
    with pytest.raises(PackingError, match=r"data is a symbolic link.*\.concertinaignore"):
        pack(tmp_path)
    put(tmp_path, ".concertinaignore", "data\n")
    assert "train.py" in pack(tmp_path).sizes


@pytest.mark.parametrize("name", ["workers.py", "workers/__init__.py"])
def test_the_one_reserved_name_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    with pytest.raises(PackingError, match="keeps for itself; rename"):
        pack(tmp_path)


def test_names_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "Model.py")
    put(tmp_path, "model.py")
    with pytest.raises(PackingError, match="upper and lower case"):
        pack(tmp_path)


def test_limits_name_the_largest_files(tmp_path: Path) -> None:
    put(tmp_path, "big.dat", b"x" * 5000)
    put(tmp_path, "train.py")
    with pytest.raises(PackingError, match=r"largest so far: big\.dat"):
        pack(tmp_path, PackingLimits(max_expanded_bytes=4000))
    with pytest.raises(PackingError, match="more than 1 files"):
        pack(tmp_path, PackingLimits(max_files=1))


def test_very_compressible_files_stay_below_the_ratio_that_the_service_refuses(tmp_path: Path) -> None:
    put(tmp_path, "zeros.dat", bytes(2_000_000))
    bundle = pack(tmp_path)
    assert bundle.expanded_bytes / len(bundle.data) < 100


def test_an_empty_or_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackingError, match="no file is left"):
        pack(tmp_path)
    with pytest.raises(PackingError, match="does not exist; correct `code:`"):
        pack(tmp_path / "gone")


def test_requirements_become_dependencies(tmp_path: Path) -> None:
    put(tmp_path, "requirements.txt", "# ours\neinops>=0.8  # shapes\n-r more.txt\ntorch\neinops>=0.8\n")
    put(tmp_path, "more.txt", "tqdm \\\n  >=4; python_version >= '3.11'\n")
    assert pack(tmp_path).dependencies == ("einops>=0.8", "tqdm    >=4; python_version >= '3.11'", "torch")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--index-url https://example.org", "option"),
        ("-e .", "option"),
        ("not a requirement", "not a PEP 508 requirement"),
        ("-r ../outside.txt", "inside the code folder"),
        ("-r requirements.txt", "circle"),
    ],
)
def test_requirements_that_cannot_travel_are_refused(tmp_path: Path, line: str, complaint: str) -> None:
    put(tmp_path, "requirements.txt", line)
    with pytest.raises(PackingError, match=complaint):
        pack(tmp_path)
