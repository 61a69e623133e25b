"""What a container's limit leaves a worker, told by files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workers.training.footprint import cgroup_left, held, room

MIB = 2**20
CPU = torch.device("cpu")


def cgroup(root: Path, limit: str, used: int, stat: str = "anon 7\nfile 9\ninactive_file 0\nactive_file 9\n") -> Path:
    (root / "memory.max").write_text(f"{limit}\n")
    (root / "memory.current").write_text(f"{used}\n")
    (root / "memory.stat").write_text(stat)
    return root


@pytest.mark.parametrize(
    ("limit", "used", "left"), [(8 * MIB, 5 * MIB, 3 * MIB), (8 * MIB, 9 * MIB, 0), ("max", 5 * MIB, None)]
)
def test_what_is_left_is_the_limit_less_what_all_of_the_container_use(
    limit: int | str, used: int, left: int | None, tmp_path: Path
) -> None:
    assert cgroup_left(cgroup(tmp_path, str(limit), used)) == left


def test_files_that_were_read_once_leave_as_much_as_before(tmp_path: Path) -> None:
    stat = f"anon {MIB}\nfile {6 * MIB}\ninactive_file {4 * MIB}\nactive_file {2 * MIB}\n"
    assert cgroup_left(cgroup(tmp_path, str(8 * MIB), 7 * MIB, stat)) == 5 * MIB


def test_where_files_are_missing_or_cannot_be_read_nobody_knows(tmp_path: Path) -> None:
    assert cgroup_left(tmp_path) is None
    cgroup(tmp_path, str(8 * MIB), 5 * MIB)
    (tmp_path / "memory.stat").unlink()
    assert cgroup_left(tmp_path) == 3 * MIB
    (tmp_path / "memory.current").write_text("not told\n")
    assert cgroup_left(tmp_path) is None


def version_1(root: Path, limit: int, used: int, dropped: int = 0) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (root / "memory.usage_in_bytes").write_text(f"{used}\n")
    (root / "memory.stat").write_text(f"inactive_file {MIB // 2}\ntotal_inactive_file {dropped}\n")


def own_groups(folder: Path, *lines: str) -> Path:
    file = folder / "own"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_of_nested_groups_the_one_with_the_least_left_counts(tmp_path: Path) -> None:
    pod = tmp_path / "kubepods" / "pod7"
    inner = pod / "worker"
    inner.mkdir(parents=True)
    cgroup(inner, "max", 3 * MIB)
    cgroup(pod, str(8 * MIB), 6 * MIB)
    cgroup(pod.parent, str(64 * MIB), 60 * MIB)  # the root of a machine has no such files
    own = own_groups(tmp_path, "0::/kubepods/pod7/worker")
    assert cgroup_left(tmp_path, own) == 2 * MIB
    cgroup(inner, str(4 * MIB), 3 * MIB)
    assert cgroup_left(tmp_path, own) == MIB
    cgroup(pod.parent, str(64 * MIB), 64 * MIB)
    assert cgroup_left(tmp_path, own) == 0


@pytest.mark.parametrize("path", ["/docker/abc", "/../../docker/abc"])
def test_a_container_that_sees_its_own_group_as_the_root_is_told_of_it_there(path: str, tmp_path: Path) -> None:
    assert cgroup_left(cgroup(tmp_path, str(8 * MIB), 5 * MIB), own_groups(tmp_path, f"0::{path}")) == 3 * MIB
    version_1(tmp_path / "memory", 4 * MIB, 3 * MIB)
    assert cgroup_left(tmp_path, own_groups(tmp_path, f"4:memory:{path}")) == MIB


def test_lines_that_name_no_group_are_passed_over(tmp_path: Path) -> None:
    cgroup(tmp_path, str(8 * MIB), 5 * MIB)
    assert cgroup_left(tmp_path, own_groups(tmp_path, "", "gibberish")) is None
    assert cgroup_left(tmp_path, own_groups(tmp_path, "", "0::/", "0:")) == 3 * MIB


def test_version_1_has_its_limit_under_the_memory_controller(tmp_path: Path) -> None:
    version_1(tmp_path / "memory", 9223372036854771712, 50 * MIB)
    version_1(tmp_path / "memory" / "docker" / "abc", 8 * MIB, 7 * MIB, dropped=2 * MIB)
    own = own_groups(
        tmp_path, "9:name=systemd:/", "5:cpu,cpuacct:/docker/abc", "4:memory:/docker/abc", "0::/docker/abc"
    )
    assert cgroup_left(tmp_path, own) == 3 * MIB
    version_1(tmp_path / "memory" / "docker" / "abc", 9223372036854771712, 7 * MIB)
    assert cgroup_left(tmp_path, own) is None


def test_a_worker_gets_half_of_what_its_container_has_left(tmp_path: Path) -> None:
    alone, tight = room(CPU, tmp_path), room(CPU, cgroup(tmp_path, str(8 * MIB), 6 * MIB))
    assert alone.limit_bytes is not None
    assert tight.limit_bytes is not None
    # What is held grows a little between two looks.
    assert 0 <= tight.limit_bytes - held(CPU) + 32 * MIB < 64 * MIB < alone.limit_bytes - held(CPU)
    assert (tight.is_forgiving, tight.is_shared) == (False, True)
